"""``python -m tests.benchmarks.reconciliation``: ``coordinator reconcile`` over a store of some size (R36).

The store is made by PostgreSQL itself: transactions of two halves to ten queues over twenty hours, nine of ten halves
retired by tens in transactions, the others waiting. While others write, the store is held against books in which
faults of every kind are planted; then faults of every kind are planted in the store. Beside the
command, with the same columns: Spark's JDBC reader, which reads and counts, and the same checks as plain SQL. Then the
command with a book in Parquet that has a row for each transaction; and once more while others write.
PostgreSQL's JDBC driver is fetched by Maven, for this and nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

import psycopg
import pyarrow as pa

from spark.reading import credentials_file
from spark.session import open_session
from spark.source import HalfOpReader, KeyRange, ReadOptions
from store.database import connected
from store.ids import id_at
from store.migrations import upgrade
from store.partitions import make_days
from store.tables import SCHEMA
from tests.benchmarks.planted_books import BOOK_PIECE, message_of, plant_in_books, write_rows
from tests.benchmarks.planting import fewest, plant
from tests.benchmarks.spark_source import driver_jar
from tests.fix_store_rows import NOW
from tests.reconciling import Writer, post_and_retire, wait_for

QUEUES: Final = 10
SPAN: Final = timedelta(hours=20)
#: Faults of each kind that are planted.
PLANTED: Final = 1_000
#: Halves that one SQL transaction writes, with their ops.
PIECE: Final = 1_000
#: The queue, and its group, of those that write meanwhile.
_BUSY: Final = QUEUES + 1
_WRITE: Final = post_and_retire(_BUSY, lease=0, seconds=0.002)
#: What Spark's reader is given: the columns that a run reads.
COLUMNS: Final = {
    "op": "id,decision,reason,posted,half_ids,group_ids,decided_at",
    "entry": "group_id,half_id,lease,attempts,available_at,failed",
    "half": "id,txn_id,address_id,posted_at",
}


def fill(url: str, halves: int, span: timedelta = SPAN) -> None:
    """A healthy store of ``halves`` halves in the migrated, empty database at ``url``, in SQL transactions of
    :data:`PIECE` halves each: a watch splits none."""
    begin = NOW - span - timedelta(hours=1)
    with connected(url) as made:
        make_days(made, sorted({(begin + timedelta(days=day)).date() for day in range(span.days + 2)}))
    first, step = int(begin.timestamp() * 1000), span / (halves // 2) / timedelta(milliseconds=1)
    functions = f"""
        create function pg_temp.ms(i bigint) returns bigint immutable language sql as
          'select {first} + (i * {step})::bigint';
        create function pg_temp.txn(i bigint) returns uuid immutable language sql as
          $$select (lpad(to_hex(pg_temp.ms(i)), 12, '0') || '7' || substr(md5(i::text), 1, 3) || '8'
                    || substr(md5(i::text), 4, 15))::uuid$$;
        create function pg_temp.half(h bigint) returns bigint immutable language sql as
          'select {id_at(begin)} + ((pg_temp.ms((h + 1) / 2) - {first} + 5) << 22) + h % 4096'"""
    at = "to_timestamp((pg_temp.ms({}) + 5) / 1000.0)"
    message, retired = message_of("lpad(h::text, 12, '0')"), halves * 9 // 10
    once = (
        f"insert into {SCHEMA}.address (name, created_at)"
        f" select 'queue-' || i, '{begin - timedelta(days=1)}' from generate_series(1, {_BUSY}) i",
        f"insert into {SCHEMA}.consumer_group (address_id, created_at)"
        f" select id, created_at from {SCHEMA}.address order by id",
    )
    # the halves above {0}, up to {1}
    piece = (
        f"insert into {SCHEMA}.op (id, decision, txn_id, posted, instance_id, decided_at)"
        f" select pg_temp.txn(i), 'commit', pg_temp.txn(i), 2, 1, {at.format('i')}"
        " from generate_series({0} / 2 + 1, {1} / 2) i",
        f"insert into {SCHEMA}.half (id, txn_id, address_id, message, posted_at)"
        f" select pg_temp.half(h), pg_temp.txn((h + 1) / 2), 1 + h % {QUEUES}, {message}, {at.format('(h + 1) / 2')}"
        " from generate_series({0} + 1, {1}) h",
        f"insert into {SCHEMA}.op (id, decision, half_ids, group_ids, instance_id, decided_at)"
        f" select overlay(pg_temp.txn(j * 5)::text placing '9' from 20)::uuid, 'accept',"
        f" array(select pg_temp.half(h) from generate_series(10 * j - 9, 10 * j) h),"
        f" array(select (1 + h % {QUEUES})::int from generate_series(10 * j - 9, 10 * j) h), 1, {at.format('j * 5')}"
        f" from generate_series({{0}} / 10 + 1, least({{1}}, {retired}) / 10) j",
        f"insert into {SCHEMA}.entry (group_id, id, half_id)"
        f" select 1 + h % {QUEUES}, pg_temp.half(h), pg_temp.half(h)"
        f" from generate_series(greatest({{0}}, {retired}) + 1, {{1}}) h",
    )
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in (*functions.split(";\n"), *once):
            connection.execute(statement.encode())
        for low in range(0, halves, PIECE):
            with connection.transaction():
                for statement in piece:
                    connection.execute(statement.format(low, min(low + PIECE, halves)).encode())
        for table in COLUMNS:
            connection.execute(f"vacuum analyze {SCHEMA}.{table}".encode())


def write_book(url: str, folder: Path) -> Path:
    """The description of a book of the transactions that are committed."""
    of = f"select id::text, min(decided_at) from {SCHEMA}.op where decision = 'commit' group by id"
    schema = pa.schema({"txn_id": pa.string(), "placed_at": pa.timestamp("us", tz="UTC")})
    with psycopg.connect(url) as connection, connection.cursor("book") as rows:
        rows.itersize = BOOK_PIECE
        write_rows(folder / "book.parquet", schema, rows.execute(of.encode()))
    described = folder / "book.toml"
    described.write_text(
        f"""name = "book"
format = "parquet"
addresses = [{", ".join(f'"queue-{number}"' for number in range(1, QUEUES + 1))}]
key = "txn_id"
message_key = "txn-id"
time = "placed_at"
committed_when = "true"
[options]
path = "book.parquet"
""",
        encoding="utf-8",
    )
    return described


@contextmanager
def written_to(url: str) -> Iterator[None]:
    """Meanwhile others post messages in transactions, and retire those that they posted."""
    with Writer(url, 2, _WRITE) as one, Writer(url, 3, _WRITE) as two:
        began = wait_for(1, one, two)
        yield
        assert wait_for(1, one, two) > began


def run(url: str, memory: str, *books: Path) -> tuple[float, dict[str, object]]:
    """Seconds of ``coordinator reconcile``, and its summary."""
    asked = [argument for book in books for argument in ("--book", str(book))]
    with tempfile.TemporaryDirectory(prefix="coordinator-bench-") as out:
        began = time.perf_counter()
        ran = subprocess.run(
            [sys.executable, "-m", "coordinator", "reconcile", "--out", out, "--memory", memory, *asked],
            env={**os.environ, "COORDINATOR_DATABASE_URL": url},
            check=False,
        )
        took = time.perf_counter() - began
        assert ran.returncode in (0, 1), ran.returncode
        return took, json.loads((Path(out) / "summary.json").read_text(encoding="utf-8"))


def jdbc(url: str) -> dict[str, float]:
    """Seconds in which Spark's own reader reads and counts the same columns, by the same ranges of the key; with the
    start of the session."""
    parts = psycopg.conninfo.conninfo_to_dict(url)
    began = time.perf_counter()
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="coordinator-jdbc-"))
        stack.callback(shutil.rmtree, folder)
        jar = driver_jar(folder)
        began = time.perf_counter()
        spark = open_session("local[*]", memory="2g", settings={"spark.jars": str(jar)})
        stack.callback(spark.stop)
        credentials = stack.enter_context(credentials_file(url))
        seconds = {"start": time.perf_counter() - began}
        for table, columns in COLUMNS.items():
            began = time.perf_counter()
            read = ReadOptions.parse({"table": table, "credentials": str(credentials), "columns": columns})
            names = ", ".join(f"{read.table.sql[name]} as {name}" for name in read.columns)
            keys = {name: f"key_{place}" for place, name in enumerate(read.table.key)}
            frame = spark.read.jdbc(
                f"jdbc:postgresql://{parts['host']}:{parts.get('port', 5432)}/{parts['dbname']}",
                f"(select {names}, {', '.join(f'{name} as {key}' for name, key in keys.items())}"
                f" from {SCHEMA}.{table}) as t",
                predicates=[_range(list(keys.values()), part) for part in HalfOpReader(read).partitions()],
                properties={
                    "driver": "org.postgresql.Driver",
                    "user": str(parts["user"]),
                    "password": str(parts.get("password", "")),
                    "fetchsize": "10000",
                },
            )
            # every column is read
            frame.selectExpr(*(f"count({name})" for name in read.columns)).collect()
            seconds[table] = time.perf_counter() - began
    return seconds


def _range(keys: list[str], part: KeyRange) -> str:
    bounds = ((part.low, ">="), (part.high, "<"))
    return (
        " and ".join(
            f"({', '.join(keys)}) {comparison} ({', '.join(bound)})"
            for bound, comparison in bounds
            if bound is not None
        )
        or "true"
    )


PLAIN_SQL: Final = f"""
with decided as (
  select id, bool_or(decision = 'commit') as committed, max(posted) as posted, count(*) as times from {SCHEMA}.op
   where decision in ('commit', 'rollback') group by id),
 transactions as (
  select d.id from decided d left join (select txn_id, count(*) as halves from {SCHEMA}.half group by txn_id) h
      on h.txn_id = d.id where times > 1 or (committed and posted <> coalesce(halves, 0))),
 expected as (
  select h.id as half_id, g.id as group_id from {SCHEMA}.half h join {SCHEMA}.consumer_group g using (address_id)
    left join decided d on d.id = h.txn_id where h.txn_id is null or d.committed),
 facts as (
  select half_id, group_id, 1 as expected, 0 as accounted from expected
  union all
  select u.half_id, u.group_id, 0, 1 from {SCHEMA}.op, unnest(half_ids, group_ids) as u (half_id, group_id)
   where decision in ('commit', 'accept', 'expire', 'dead-letter', 'purge')
  union all
  select half_id, group_id, 0, 1 from {SCHEMA}.entry),
 pairs as (
  select half_id, group_id, sum(expected) as expected, sum(accounted) as accounted from facts group by 1, 2)
select (select count(*) from transactions) + (select count(*) from pairs where expected <> 1 or accounted <> 1)
"""


def plain_sql(url: str) -> tuple[float, int]:
    """Seconds of the same as one statement in PostgreSQL, and how many transactions and pairs it finds not in order."""
    with psycopg.connect(url) as connection:
        connection.execute("set work_mem = '256MB'")
        began = time.perf_counter()
        row = connection.execute(PLAIN_SQL.encode()).fetchone()
        assert row is not None
        return time.perf_counter() - began, int(row[0])


def _check(summary: dict[str, object], planted: Counter[str] | None) -> None:
    """All that was planted is found, and nothing else."""
    print(json.dumps(summary["findings"]))
    findings = summary["findings"]
    assert isinstance(findings, dict)
    assert planted is None or findings["by_kind"] == planted, f"expected {planted}"


def _check_books(url: str, memory: str, count: int) -> None:
    with tempfile.TemporaryDirectory(prefix="coordinator-bench-") as folder, written_to(url):
        books, planted = plant_in_books(url, Path(folder), count, QUEUES)
        took, summary = run(url, memory, *books)
    print(f"a producer's and a consumer's book, each key compared, while others write: {took:.1f} s")
    _check(summary, planted)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database-url", required=True, help="an empty database on TCP; its store is made anew")
    parser.add_argument("--halves", type=int, default=1_000_000)
    parser.add_argument("--planted", type=int, default=PLANTED, help="faults of each kind")
    parser.add_argument("--twice", action="store_true", help="with second decisions: it has no primary key then")
    parser.add_argument("--memory", default="2g", help="of Spark, as of the command")
    parser.add_argument("--keep", action="store_true", help="measure the store that is there, as it is")
    asked = parser.parse_args(arguments)
    if asked.halves < fewest(asked.planted):
        parser.error(f"--halves: {asked.planted:,} faults of each kind need {fewest(asked.planted):,}")
    planted: Counter[str] | None = None
    if not asked.keep:
        with psycopg.connect(asked.database_url, autocommit=True) as connection:
            connection.execute(f"drop schema if exists {SCHEMA} cascade".encode())
        upgrade(asked.database_url)
        fill(asked.database_url, asked.halves)
        _check_books(asked.database_url, asked.memory, asked.planted)
        planted = Counter(plant(asked.database_url, asked.planted, twice=asked.twice))
    reader = jdbc(asked.database_url)
    print(f"Spark's JDBC reader, the same columns counted: {sum(reader.values()):.1f} s:", reader)
    seconds, found = plain_sql(asked.database_url)
    print(f"plain SQL: {seconds:.1f} s, {found} transactions and pairs not in order")
    took, summary = run(asked.database_url, asked.memory)
    print(f"coordinator reconcile: {took:.1f} s, {took / sum(reader.values()):.2f} times the reader")
    _check(summary, planted)
    with tempfile.TemporaryDirectory(prefix="coordinator-bench-") as folder:
        took, summary = run(asked.database_url, asked.memory, write_book(asked.database_url, Path(folder)))
    print(f"with a book: {took:.1f} s, {took / sum(reader.values()):.2f} times the reader")
    print(json.dumps(summary["findings"]))
    with written_to(asked.database_url):
        took, summary = run(asked.database_url, asked.memory)
    print(f"while others write: {took:.1f} s")
    _check(summary, planted)


if __name__ == "__main__":
    main()
