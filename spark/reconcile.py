"""One run: read everything as of one snapshot, put it side by side, check, compare with the books, write what was
found."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.storagelevel import StorageLevel

from spark import checks, ledger
from spark.books.comparison import book_findings
from spark.books.description import BookDescription
from spark.books.messages import pick, picked_columns, sent
from spark.books.rows import Book, open_book, unreadable
from spark.metrics import Metrics, measure
from spark.period import Period
from spark.progress import Steps
from spark.report import BookTotals, Run, write_report
from spark.results import write_findings
from spark.snapshot import Snapshot, exported_snapshot
from spark.source import FORMAT

#: What is read of each table; messages are read for the books alone.
_COLUMNS: Final = {
    "address": "id,name,created_at",
    "consumer_group": "id,address_id,name,created_at",
    "removed_address": "id,name",
    "removed_group": "id,name,removed_at",
    "txn": "id,timeout_at,producer_group,checks,next_check_at",
    "op": "id,decision,txn_id,reason,posted,half_ids,group_ids,decided_at",
    "half": "id,txn_id,address_id,posted_at",
    "entry": "group_id,half_id,lease,attempts,available_at,failed",
}
#: On disk: a run must not need memory for the store's size, and each table is read once.
_KEPT: Final = StorageLevel.DISK_ONLY

#: Rows that a task sorts and joins in a few dozen megabytes.
_ROWS_PER_TASK: Final = 100_000
#: From this many rows on compiled plans save more time than it takes to compile them.
_ROWS_TO_COMPILE_FOR: Final = 500_000

#: How far around the period a book's messages are looked for, where its grace is shorter.
_LEAST_REACH: Final = timedelta(hours=1)

#: Stages of a run without books; each book adds two.
STAGES: Final = len(_COLUMNS) + 5


class OutputUnusable(Exception):
    """The output folder cannot be made or written; says which and why."""


def prepare_output(out: Path) -> None:
    """Make ``out`` where it is missing, and see that it can be written.

    :raises OutputUnusable: it cannot.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=out, prefix=".reconcile-"):
            pass
    except OSError as error:
        raise OutputUnusable(f"output folder {out}: {error.strerror}") from None


@contextmanager
def credentials_file(url: str) -> Iterator[Path]:
    """A file of mode 0600 with the database's URL, for the tasks; gone after the block."""
    descriptor, name = tempfile.mkstemp(prefix="coordinator-")
    path = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(url)
        yield path
    finally:
        path.unlink(missing_ok=True)


@dataclass(frozen=True, kw_only=True)
class Store:
    """The store's tables as of one snapshot. ``credentials`` is the file with the URL for the tasks; none: they take it
    from their environment."""

    spark: SparkSession
    snapshot: Snapshot
    period: Period
    credentials: Path | None

    def table(self, name: str, columns: str) -> DataFrame:
        options = {
            "table": name,
            "columns": columns,
            "snapshot": self.snapshot.name,
            "since": self.period.since.isoformat(),
            "until": self.period.until.isoformat(),
            "reach": str(self.period.reach.total_seconds()),
        }
        if self.credentials is not None:
            options["credentials"] = str(self.credentials)
        return self.spark.read.format(FORMAT).options(**options).load()


def reconcile(
    spark: SparkSession,
    *,
    url: str,
    period: Period,
    books: Sequence[BookDescription],
    out: Path,
    fail_on: str,
    steps: Steps,
    version: str,
) -> Run:
    """Reconcile the store at ``url`` over ``period`` and write everything into ``out``, which is there and can be
    written.

    :raises spark.books.description.BookError: a book that cannot be used, before any other work.
    :raises spark.snapshot.StoreUnreadable: the store cannot be read.
    """
    began = time.monotonic()
    opened = [open_book(spark, description) for description in books]
    # with books, messages are read beyond the period too: a row and its message are not of the same moment
    graces = [max(book.description.grace, _LEAST_REACH) for book in opened]
    period = replace(period, reach=max(graces, default=timedelta(0)))
    with _keeping() as keep:
        opened = [_keep_book(book, keep, steps) for book in opened]
        tables, picked, rows_read, snapshot = _read(spark, url, period, opened, keep, steps)
        asked, period = period, snapshot.kept(period)
        _fit(spark, sum(rows_read.values()))
        progress = _Progress(steps, sum(rows_read.values()))
        sides = _side_by_side(tables, period, snapshot.taken_at, keep, progress)
        found = _checked(sides, tables, snapshot.taken_at)
        totals: list[BookTotals] = []
        for book, messages in zip(opened, picked, strict=True):
            steps.stage(f"comparing book {book.name}")
            sent_by_key = sent(book.description, messages, sides.stated, sides.decided, tables["txn"])
            marks = keep(ledger.named(sent_by_key, sides.address))
            totals.append(_totals(book, marks))
            found.append(book_findings(book, marks, period, snapshot.taken_at))
        steps.stage("checking")
        findings = write_findings(reduce(DataFrame.unionByName, found), out, progress.beside)
        steps.stage("measuring")
        metrics = _measured(sides, snapshot.taken_at)
        steps.stage("writing the report")
        run = Run(
            store=snapshot.store,
            version=version,
            period=period,
            kept_since=period.since if period != asked else None,
            seen_at=snapshot.taken_at,
            took=timedelta(seconds=time.monotonic() - began),
            rows_read=rows_read,
            metrics=metrics,
            findings=findings,
            books=totals,
        )
        write_report(run, out, fail_on)
        return run


#: Has a frame computed once and kept on disk.
_Keep = Callable[[DataFrame], DataFrame]


@contextmanager
def _keeping() -> Iterator[_Keep]:
    """What is kept during the block is given up after it."""
    with ExitStack() as kept:

        def keep(frame: DataFrame) -> DataFrame:
            stored = frame.persist(_KEPT)
            kept.callback(stored.unpersist)
            return stored

        yield keep


class _Progress:
    """Tells ``steps`` of rows: ``total`` so far."""

    def __init__(self, steps: Steps, total: int) -> None:
        self.steps = steps
        self._total = total

    def add(self, frame: DataFrame) -> None:
        """Compute ``frame``, which is kept."""
        self._total += frame.count()
        self.steps.rows(self._total)

    def beside(self, count: int) -> None:
        """``count`` rows beside the total."""
        self.steps.rows(self._total + count)


@dataclass(frozen=True, kw_only=True)
class _Sides:
    """The frames of :mod:`spark.ledger`, and the names of addresses and groups."""

    decided: DataFrame
    stated: DataFrame
    deliveries: DataFrame
    transactions: DataFrame
    pairs: DataFrame
    balance: DataFrame
    address: DataFrame
    group: DataFrame


def _side_by_side(
    tables: dict[str, DataFrame], period: Period, seen_at: datetime, keep: _Keep, progress: _Progress
) -> _Sides:
    progress.steps.stage("matching halves and ops")
    decided = keep(ledger.decisions(tables["op"]))
    stated = keep(ledger.states(tables["half"], decided, tables["txn"], period))
    deliveries = ledger.delivery_ops(tables["op"])
    receiving = ledger.receivers(tables["address"], tables["consumer_group"])
    transactions = keep(ledger.transactions(stated, decided, tables["txn"], period))
    progress.add(transactions)
    progress.steps.stage("matching deliveries")
    pairs = keep(ledger.pairs(stated, receiving, deliveries, tables["entry"], period, seen_at))
    progress.add(pairs)
    return _Sides(
        decided=decided,
        stated=stated,
        deliveries=deliveries,
        transactions=transactions,
        pairs=pairs,
        balance=keep(ledger.balance(stated, pairs)),
        address=ledger.names(tables["address"], tables["removed_address"]),
        group=ledger.names(tables["consumer_group"], tables["removed_group"]),
    )


def _checked(sides: _Sides, tables: dict[str, DataFrame], seen_at: datetime) -> list[DataFrame]:
    """The findings of every check."""
    pairs = ledger.named(sides.pairs, sides.address, sides.group)
    transactions = ledger.named(sides.transactions, sides.address)
    return [
        checks.overdue(transactions, seen_at),
        checks.orphan_op(pairs, transactions, seen_at),
        checks.double_decision(transactions, seen_at),
        checks.lost_delivery(pairs, seen_at),
        checks.orphan_entry(pairs, tables["consumer_group"], tables["removed_group"], seen_at),
        checks.phantom_delivery(pairs, seen_at),
        checks.double_delivery(pairs, seen_at),
        checks.unbalanced(ledger.named(sides.balance, sides.address), transactions, seen_at),
    ]


def _totals(book: Book, marks: DataFrame) -> BookTotals:
    compared = marks.where("judged and half_id is not null").count()
    return BookTotals(name=book.name, rows=book.rows.count(), messages=compared, grace=book.description.grace)


def _measured(sides: _Sides, seen_at: datetime) -> Metrics:
    return measure(
        stated=ledger.named(sides.stated, sides.address),
        transactions=sides.transactions,
        pairs=sides.pairs,
        deliveries=_judged_deliveries(sides.deliveries, sides.stated, sides.address, sides.group),
        balance=ledger.named(sides.balance, sides.address),
        seen_at=seen_at,
    )


def _fit(spark: SparkSession, rows: int) -> None:
    """Choose plans for the number of rows: a small store takes its time for starting tasks and for compiling."""
    partitions = max(spark.sparkContext.defaultParallelism, rows // _ROWS_PER_TASK)
    spark.conf.set("spark.sql.shuffle.partitions", partitions)
    spark.conf.set("spark.sql.codegen.wholeStage", rows >= _ROWS_TO_COMPILE_FOR)


def _keep_book(book: Book, keep: _Keep, steps: Steps) -> Book:
    """The book's rows read whole, so that what cannot be read stops the run before any other work (R25)."""
    steps.stage(f"reading book {book.name}")
    rows = keep(book.rows)
    try:
        rows.count()
    except (PySparkException, Py4JJavaError) as error:
        raise unreadable(book.description, error) from None
    return replace(book, rows=rows)


def _read(
    spark: SparkSession,
    url: str,
    period: Period,
    books: Sequence[Book],
    keep: _Keep,
    steps: Steps,
) -> tuple[dict[str, DataFrame], list[DataFrame], dict[str, int], Snapshot]:
    """All tables, and of each book what its messages say; read and kept, and the snapshot given back."""
    tables: dict[str, DataFrame] = {}
    picked: list[DataFrame] = []
    rows: dict[str, int] = {}
    with ExitStack() as stack:
        local = str(spark.sparkContext.master).startswith("local")
        # tasks on other machines cannot see a file of ours; they have the URL in their environment
        credentials = stack.enter_context(credentials_file(url)) if local else None
        snapshot = stack.enter_context(exported_snapshot(url))
        store = Store(spark=spark, snapshot=snapshot, period=snapshot.kept(period), credentials=credentials)
        for name, columns in _COLUMNS.items():
            steps.stage(f"reading {name}")
            tables[name] = keep(store.table(name, columns))
            rows[name] = tables[name].count()
            steps.rows(sum(rows.values()))
        all_names = ledger.names(tables["address"], tables["removed_address"])
        for book in books:
            names = book.description.addresses
            known = all_names.where(f.col("name").isin(names)).collect()
            for name in sorted(set(names) - {row["name"] for row in known}):
                steps.warn(f"book {book.name}: the store knows no address {name!r}; nothing was ever posted to it")
            messages = store.table("half", ",".join((*picked_columns(book.description), "address_id")))
            messages = messages.where(f.col("address_id").isin([row["id"] for row in known]))
            picked.append(keep(pick(book.description, messages.select(*picked_columns(book.description)))))
            picked[-1].count()
    return tables, picked, rows, snapshot


def _judged_deliveries(deliveries: DataFrame, stated: DataFrame, address: DataFrame, group: DataFrame) -> DataFrame:
    """Dead letters of the period's halves, with names."""
    dead = deliveries.where(f.col("decision") == "dead-letter").select("half_id", "group_id", "decision", "reason")
    judged = stated.where("judged").select("half_id", "address_id")
    return ledger.named(dead.join(judged, "half_id"), address, group)
