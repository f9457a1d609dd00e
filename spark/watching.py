"""The stream of ``coordinator watch`` (R33) counts new halves, ops and deliveries, and checks them.

Spark cuts the new rows into batches and notes their ends in its checkpoint; a *ledger* counts each batch once. Each
half and delivery is checked in its batch against its decision then; overdue transactions are searched at intervals.
All other checks are those of a reconciliation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol
from uuid import UUID

import psycopg
from psycopg import conninfo
from psycopg.rows import dict_row
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from spark import checks
from spark.changes import FORMAT, Changes
from spark.directory import Directory, OpenTransaction
from spark.finding import Finding
from spark.ledger import CLOCK_STEP, Pair
from spark.reading import credentials_of_tasks
from spark.snapshot import read_error
from store.schema import AS_READ
from store.tables import SCHEMA

#: For small batches: otherwise planning and tasks take most of the time.
_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
#: Failures in a row, with no batch counted between them, after which the watch ends.
_MOST_FAILURES: Final = 3
_AGAIN_SECONDS: Final = 1.0
#: The most overdue transactions that one search reports.
_MOST_OVERDUE: Final = 1_000
_SUSPECT: Final = (
    *("what", "op_id", "txn_id", "half_id", "group_id", "address_id", "state", "decided_at", "sent_at"),
    "listed",
)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The rows of the SQL transactions from ``since`` on, below ``until`` (xid8)."""

    number: int
    since: int
    until: int
    counts: Mapping[str, int]
    findings: Sequence[Finding]


class Ledger(Protocol):
    """Counts batches. Its errors end the watch, except those of a lost database."""

    def check(self) -> None:
        """Check that the store answers, and is the one of the checkpoint."""

    def wait(self) -> bool:
        """Wait until the database answers; return whether it was lost."""

    def count(self, watch_id: UUID, batch: Batch) -> None:
        """Count a batch, once."""

    def add_findings(self, watch_id: UUID, findings: Sequence[Finding]) -> None:
        """Add findings that belong to no batch: overdue transactions. Called at intervals, also without any."""


def watch(
    spark: SparkSession,
    *,
    url: str,
    checkpoint: Path,
    every: int,
    rows: int,
    ledger: Ledger,
    credentials: Path | None = None,
) -> None:
    """Watch the store at ``url`` until an error: a batch of up to ``rows`` rows each ``every`` seconds. A failed stream
    is started again, :data:`_MOST_FAILURES` times in a row at most. ``credentials``: a file with the URL that tasks can
    read, too, on whatever machine they run.

    :raises pyspark.errors.StreamingQueryException: Spark fails.
    """
    spark.dataSource.register(Changes)
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    failures = 0
    with credentials_of_tasks(spark, url, credentials) as file:
        while True:
            ledger.check()
            stream = _Stream(spark, url, checkpoint, ledger)
            try:
                stream.run(file, every, rows)
            except (StreamingQueryException, _Failed) as error:
                if ledger.wait():
                    continue
                failures = 1 if stream.turns > 1 else failures + 1
                if failures == _MOST_FAILURES:
                    raise stream.error or error from None
                time.sleep(_AGAIN_SECONDS)


class _Failed(Exception):
    """A batch or a search failed; ``_Stream.error`` has the reason."""


class _Stream:
    """One streaming query of Spark. ``turns``: batches and searches without an error; ``error``: of the failed one."""

    def __init__(self, spark: SparkSession, url: str, checkpoint: Path, ledger: Ledger) -> None:
        self._spark = spark
        self._url = url
        self._checkpoint = checkpoint
        self._ledger = ledger
        self._id: Future[UUID] = Future()
        self.turns = 0
        self.error: Exception | None = None

    def run(self, credentials: Path | None, every: int, rows: int) -> None:
        options = {"rows": str(rows)} if credentials is None else {"rows": str(rows), "credentials": str(credentials)}
        changes = self._spark.readStream.format(FORMAT).options(**options).load()
        query = (
            changes.writeStream.foreachBatch(self._batch)
            .option("checkpointLocation", self._checkpoint.as_uri())
            .trigger(processingTime=f"{every} seconds")
            .start()
        )
        watch_id = UUID(query.id)
        self._id.set_result(watch_id)
        try:
            while True:
                self._turn(lambda: self._ledger.add_findings(watch_id, overdue(self._url)))
                query.awaitTermination(every)
        finally:
            query.stop()

    def _batch(self, frame: DataFrame, number: int) -> None:
        """Count a batch; Spark calls this in a thread of its own."""

        def count() -> None:
            counts, suspects, since, until = summed(frame)
            findings = judged(self._url, suspects)
            batch = Batch(number=number, since=since, until=until, counts=counts, findings=findings)
            self._ledger.count(self._id.result(), batch)

        self._turn(count)

    def _turn(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - watch() raises it
            self.error = error
            # Spark searches the text of an error, however long it is
            raise _Failed(type(error).__name__) from None
        self.turns += 1


def summed(changes: DataFrame) -> tuple[dict[str, int], list[dict[str, Any]], int, int]:
    """Return the counts by kind, the rows that may be findings, and the range of SQL transactions that was read."""
    columns = f.struct(*_SUSPECT)
    rows = (
        changes.groupBy("what", "decision")
        .agg(
            f.count("*").alias("rows"),
            f.collect_list(f.when(_suspect(), columns)).alias("suspects"),
            f.max("since").alias("since"),
            f.max("until").alias("until"),
        )
        .collect()
    )
    known = {(row["what"], row["decision"]): row for row in rows}
    mark = known.pop(("range", None))
    counts = {
        what if decision is None else f"{what} {decision}": row["rows"] for (what, decision), row in known.items()
    }
    suspects = [each.asDict() for row in known.values() for each in row["suspects"]]
    return counts, suspects, mark["since"], mark["until"]


def _suspect() -> Column:
    """Select a half without a decision that is not listed as undecided (R10), and a delivery whose half is missing
    (R11), not committed (R14), or committed later (R18)."""
    state = f.coalesce(f.col("state"), f.lit("nowhere"))
    half = (f.col("what") == "half") & (state == "open") & ~f.col("listed")
    early = f.col("decided_at") < f.col("sent_at") - f.lit(CLOCK_STEP)
    delivery = (f.col("what") == "delivery") & ((state != "committed") | f.coalesce(early, f.lit(False)))
    return f.coalesce(f.col("judged"), f.lit(False)) & (half | delivery)


def judged(url: str, suspects: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Return the findings of the checks."""
    if not suspects:
        return []
    halves: dict[str, list[Mapping[str, Any]]] = {}
    for row in suspects:
        if row["what"] == "half":
            halves.setdefault(row["txn_id"], []).append(row)
    with _connected(url) as connection:
        builder = _builder(connection, suspects)
    found = [
        checks.Transaction(txn_id=txn_id, halves=len(rows), address_id=min(row["address_id"] for row in rows))
        for txn_id, rows in halves.items()
    ]
    pairs = [_pair(row) for row in suspects if row["what"] == "delivery"]
    return [
        *(each for one in found for each in checks.check_transaction(one, builder)),
        *(each for pair in pairs for each in checks.check_pair(pair, builder)),
    ]


def _pair(row: Mapping[str, Any]) -> Pair:
    """Make the pair of a delivery from its one op; all other columns are those of a correct delivery."""
    told = dict.fromkeys(Pair.__dataclass_fields__, 0)
    seen = {
        "half_id": row["half_id"],
        "group_id": row["group_id"],
        "txn_id": row["txn_id"],
        "address_id": row["address_id"],
        "state": row["state"],
        "judged": True,
        "op_id": row["op_id"],
        "attempts": None,
        "ops": 1,
        "first_op_at": _micros(row["decided_at"]),
        "sent_at": _micros(row["sent_at"]),
    }
    return Pair(**{**told, **seen})


def _micros(moment: datetime | None) -> int | None:
    """Convert a time of Spark, which has no zone and is the machine's local time."""
    return None if moment is None else int(moment.astimezone(UTC).timestamp() * 1_000_000)


def overdue(url: str) -> list[Finding]:
    """Find undecided transactions past their time (R10). Reads all undecided checkable transactions."""
    late = "coalesce(t.next_check_at, case when t.checks = 0 then t.timeout_at end) < now() - %s"
    with _connected(url) as connection:
        rows = connection.execute(
            f"""select t.id::text, t.timeout_at, t.producer_group, t.checks, t.next_check_at,
                       (select p.address_id from {SCHEMA}.pending_half p where p.txn_id = t.id
                         order by p.half_id limit 1) as address_id
                  from {SCHEMA}.txn t where t.producer_group is not null and {late} limit {_MOST_OVERDUE}""".encode(),
            (checks.OVERDUE_AFTER,),
        ).fetchall()
        if not rows:
            return []
        builder = _builder(connection, rows)
    names = OpenTransaction.__dataclass_fields__
    listed = [
        checks.Transaction(
            txn_id=row["id"],
            address_id=row["address_id"],
            listed=OpenTransaction(**{name: row[name] for name in names}),
        )
        for row in rows
    ]
    return [each for one in listed for each in checks.check_transaction(one, builder)]


@contextmanager
def _connected(url: str) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    """:raises spark.snapshot.StoreUnreadable: the database does not answer."""
    given = conninfo.make_conninfo(url, application_name="coordinator watch of outcomes", keepalives_idle=30)
    with read_error(), psycopg.connect(given, autocommit=True, row_factory=dict_row) as connection:
        connection.execute(AS_READ)
        yield connection


def _builder(
    connection: psycopg.Connection[dict[str, Any]], rows: Sequence[Mapping[str, Any]]
) -> checks.FindingBuilder:
    """Make the builder with the moment, and the names of addresses and groups in ``rows``, also of removed ones."""
    found = connection.execute("select clock_timestamp() as now").fetchone()
    assert found is not None
    undecided = [row["txn_id"] for row in rows if row.get("listed")]
    return checks.FindingBuilder(
        seen_at=found["now"],
        directory=Directory(
            addresses=_names(connection, "address", rows),
            groups=_names(connection, "group", rows),
            open_transactions={
                each: OpenTransaction(
                    id=each, timeout_at=found["now"], producer_group=None, checks=0, next_check_at=None
                )
                for each in undecided
            },
        ),
    )


_TABLES: Final = {"address": ("removed_address", "address"), "group": ("removed_group", "consumer_group")}


def _names(
    connection: psycopg.Connection[dict[str, Any]], what: str, rows: Sequence[Mapping[str, Any]]
) -> dict[int, str]:
    numbers = sorted({row[f"{what}_id"] for row in rows if row.get(f"{what}_id") is not None})
    looks = " union all ".join(
        f"select id, name from {SCHEMA}.{table} where id = any(%(ids)s)" for table in _TABLES[what]
    )
    return {row["id"]: row["name"] for row in connection.execute(looks.encode(), {"ids": numbers})}
