"""The stream behind ``coordinator watch`` (R33): counts what comes, and checks it as it comes.

Spark cuts what comes into batches and notes their ends in its checkpoint; what a batch has is given to a *ledger*,
which takes each batch once. Each half and each delivery is checked when it comes, as far as the store can tell then
what became of it; what is overdue, at each look. All else is for a reconciliation.
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

#: A batch is small, and most of its time would go to plans and tasks.
_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
#: So often in a row may Spark fail before anything is counted.
_MOST_FAILURES: Final = 3
_AGAIN_SECONDS: Final = 1.0
#: Transactions that are overdue, of which a look tells.
_MOST_OVERDUE: Final = 1_000
_SUSPECT: Final = (
    *("what", "op_id", "txn_id", "half_id", "group_id", "address_id", "state", "decided_at", "sent_at"),
    "listed",
)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What the SQL transactions from ``since`` on, below ``until``, wrote."""

    number: int
    since: int
    until: int
    counts: Mapping[str, int]
    findings: Sequence[Finding]


class Ledger(Protocol):
    """Where batches are counted. Its errors end the watch, but for those of a database that is away."""

    def check(self) -> None:
        """See that the store is there, and is the one of the checkpoint."""

    def wait(self) -> bool:
        """Wait for a database that is away; whether it was."""

    def count(self, watch_id: UUID, batch: Batch) -> None:
        """Count a batch, once."""

    def add_findings(self, watch_id: UUID, findings: Sequence[Finding]) -> None:
        """Now and then: what is found without a batch."""


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
    """Watch the store at ``url``, until an error ends it; each ``every`` seconds, up to ``rows`` in a batch. What fails
    is tried again, a few times where nothing comes of it. ``credentials``: a file with the URL that is there for the
    tasks, too, wherever they run.

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
    """A look failed; the error is the stream's."""


class _Stream:
    """One query of Spark's. ``turns``: batches and looks that went well; ``error``: of the one that did not."""

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
        """Called by Spark, in a thread of its own."""

        def count() -> None:
            counts, suspects, since, until = summed(frame)
            findings = judged(self._url, suspects)
            batch = Batch(number=number, since=since, until=until, counts=counts, findings=findings)
            self._ledger.count(self._id.result(), batch)

        self._turn(count)

    def _turn(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - it is raised where the stream is waited for
            self.error = error
            # Spark looks through the text of an error, however long it is
            raise _Failed(type(error).__name__) from None
        self.turns += 1


def summed(changes: DataFrame) -> tuple[dict[str, int], list[dict[str, Any]], int, int]:
    """How many of what there are, what may be a finding, and the range of SQL transactions that was read."""
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
    """A half without a decision that is not known as undecided (R10); a delivery whose half is nowhere (R11), or not
    committed (R14), or was committed later (R18)."""
    state = f.coalesce(f.col("state"), f.lit("nowhere"))
    half = (f.col("what") == "half") & (state == "open") & ~f.col("listed")
    early = f.col("decided_at") < f.col("sent_at") - f.lit(CLOCK_STEP)
    delivery = (f.col("what") == "delivery") & ((state != "committed") | f.coalesce(early, f.lit(False)))
    return f.coalesce(f.col("judged"), f.lit(False)) & (half | delivery)


def judged(url: str, suspects: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """What the checks say of them."""
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
    """A delivery as its one op tells of it; what a look at it alone cannot tell is as in a healthy one."""
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
    """Spark gives its times without a zone, in the machine's."""
    return None if moment is None else int(moment.astimezone(UTC).timestamp() * 1_000_000)


def overdue(url: str) -> list[Finding]:
    """Undecided transactions past their time (R10). Costs those that are undecided."""
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
    """The moment, and the names of what ``rows`` are about: of what is there and of what was removed."""
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
