"""One run: read everything as of one snapshot, survey it, compare it with the books, write what was found."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from spark import ledger
from spark.books.comparison import book_findings
from spark.books.description import BookDescription
from spark.books.messages import pick, picked_columns, sent
from spark.books.rows import Book, open_book, unreadable
from spark.charts import Chart, charts
from spark.directory import Directory, read_directory
from spark.finding import Finding
from spark.metrics import Metrics, bucket_width
from spark.period import Period
from spark.progress import Steps
from spark.reading import Store, credentials_file, local
from spark.report import BookTotals, Run, write_report
from spark.results import write_findings
from spark.snapshot import Snapshot, exported_snapshot, read_error, store_bytes
from spark.survey import Keep, Survey, Tables, brought, keeping

#: What is read of each large table; messages are read for the books alone.
_COLUMNS: Final = {
    "op": "id,decision,reason,posted,half_ids,group_ids,decided_at",
    "entry": "group_id,half_id,lease,attempts,available_at,failed",
    "half": "id,txn_id,address_id,posted_at",
}
#: Of the store's large tables as PostgreSQL has them; a task aggregates and joins so much in some hundred megabytes.
_BYTES_PER_TASK: Final = 48 * 1024 * 1024

#: How far around the period a book's messages are looked for, where its grace is shorter.
_LEAST_REACH: Final = timedelta(hours=1)

#: Stages of a run without books; each book adds two.
STAGES: Final = 8


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
    with keeping() as keep, ThreadPoolExecutor(1) as drawing:
        opened = [_keep_book(book, keep, steps) for book in opened]
        read = _read(spark, url, period, opened, keep, steps)
        comparison = _Comparison(spark, read, opened, keep, steps, drawing)
        findings = write_findings(comparison.findings(), out, lambda count: steps.rows(read.total + count))
        steps.stage("writing the report")
        run = Run(
            store=read.snapshot.store,
            version=version,
            period=read.period,
            kept_since=read.period.since if read.period != period else None,
            seen_at=read.snapshot.taken_at,
            took=timedelta(seconds=time.monotonic() - began),
            rows_read=read.rows,
            metrics=comparison.metrics,
            charts=comparison.charts.result(),
            findings=findings,
            books=comparison.totals,
        )
        write_report(run, out, fail_on)
        return run


@dataclass(frozen=True, kw_only=True)
class _Read:
    """What was read: of each book what its messages say; ``extent`` in time, and ``rows`` of each table."""

    snapshot: Snapshot
    period: Period
    tables: Tables
    picked: list[DataFrame]
    extent: timedelta
    rows: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.rows.values())


class _Comparison:
    """The survey of a store and its books. ``metrics``, ``charts`` and ``totals`` are there after the last finding."""

    metrics: Metrics
    charts: Future[list[Chart]]

    def __init__(
        self, spark: SparkSession, read: _Read, books: Sequence[Book], keep: Keep, steps: Steps, drawing: Executor
    ) -> None:
        self._spark = spark
        self._read = read
        self._books = books
        self._keep = keep
        self._steps = steps
        self._drawing = drawing
        self.totals: list[BookTotals] = []

    def findings(self) -> Iterator[Finding]:
        read = self._read
        survey = Survey(
            self._spark,
            read.tables,
            period=read.period,
            seen_at=read.snapshot.taken_at,
            width=bucket_width(read.extent),
            keep=self._keep,
            steps=self._steps,
        )
        yield from survey.findings()
        self.metrics = survey.metrics()
        # drawn while Spark works on the books
        self.charts = self._drawing.submit(charts, self.metrics)
        for book, messages in zip(self._books, read.picked, strict=True):
            self._steps.stage(f"comparing book {book.name}")
            yield from self._differences(book, messages)

    def _differences(self, book: Book, messages: DataFrame) -> Iterator[Finding]:
        read, directory = self._read, self._read.tables.directory
        open_transactions = local(
            self._spark,
            {"id": pa.string(), "plain": pa.bool_()},
            ({"id": known.id, "plain": known.producer_group is None} for known in directory.open_transactions.values()),
        )
        names = local(
            self._spark,
            {"address_id": pa.int32(), "address": pa.string()},
            ({"address_id": number, "address": name} for number, name in directory.addresses.items()),
        )
        of_messages = sent(book.description, messages, read.tables.stated, open_transactions)
        marks = self._keep(of_messages.join(f.broadcast(names), "address_id", "left"))
        compared = marks.where("judged and half_id is not null").count()
        rows = book.rows.count()
        self.totals.append(BookTotals(name=book.name, rows=rows, messages=compared, grace=book.description.grace))
        seen_at = read.snapshot.taken_at
        differences = book_findings(book, marks, read.period, seen_at)
        for row in brought(differences, rows + compared, self._keep):
            yield Finding(**{**row.asDict(), "seen_at": seen_at})


def _fit(spark: SparkSession, store: Store) -> None:
    """Choose plans for the size of the store: a small one takes its time for planning, compiling and starting
    tasks."""
    small = store.small
    partitions = 1 if small else max(spark.sparkContext.defaultParallelism, store.bytes // _BYTES_PER_TASK)
    settings = {
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.codegen.wholeStage": str(not small).lower(),
        "spark.sql.codegen.factoryMode": "NO_CODEGEN" if small else "FALLBACK",
        "spark.sql.adaptive.enabled": str(not small).lower(),
    }
    for name, value in settings.items():
        spark.conf.set(name, value)


def _keep_book(book: Book, keep: Keep, steps: Steps) -> Book:
    """The book's rows read whole, so that what cannot be read stops the run before any other work (R25)."""
    steps.stage(f"reading book {book.name}")
    rows = keep(book.rows)
    try:
        rows.count()
    except (PySparkException, Py4JJavaError) as error:
        raise unreadable(book.description, error) from None
    return replace(book, rows=rows)


def _read(spark: SparkSession, url: str, period: Period, books: Sequence[Book], keep: Keep, steps: Steps) -> _Read:
    """All tables, and of each book what its messages say; read and kept, and the snapshot given back."""
    with ExitStack() as stack:
        local_tasks = str(spark.sparkContext.master).startswith("local")
        # tasks on other machines cannot see a file of ours; they have the URL in their environment
        credentials = stack.enter_context(credentials_file(url)) if local_tasks else None
        steps.stage("reading addresses")
        snapshot = stack.enter_context(exported_snapshot(url))
        directory, rows = read_directory(snapshot.connection, snapshot.taken_at)
        steps.rows(sum(rows.values()))
        period = snapshot.kept(period)
        with read_error():
            size = store_bytes(snapshot.connection)
        store = Store(spark=spark, snapshot=snapshot, period=period, credentials=credentials, bytes=size)
        extent = store.extent()
        _fit(spark, store)
        frames: dict[str, DataFrame] = {}
        for name, columns in _COLUMNS.items():
            steps.stage(f"reading {name}")
            frames[name], known = store.table(name, columns)
            if name == "half":
                # kept with what became of it, and with the decisions that left no half
                frames[name] = keep(ledger.states(frames[name], ledger.decisions(frames["op"]), period))
            elif not store.small:
                frames[name] = keep(frames[name])
            rows[name] = _count(frames[name], name) if known is None else known
            steps.rows(sum(rows.values()))
        picked = [_picked(store, book, directory, keep, steps) for book in books]
    tables = Tables(
        stated=frames["half"], op=frames["op"], entry=frames["entry"], directory=directory, small=store.small
    )
    return _Read(snapshot=snapshot, period=period, tables=tables, picked=picked, extent=extent, rows=rows)


def _count(frame: DataFrame, table: str) -> int:
    """Read ``frame``, which is kept; how many rows of the table there are in it."""
    of_table = f.count("half_id") if table == "half" else f.count("*")
    return int(frame.agg(of_table).collect()[0][0])


def _picked(store: Store, book: Book, directory: Directory, keep: Keep, steps: Steps) -> DataFrame:
    """What the messages of the book's addresses say, read and kept."""
    names = set(book.description.addresses)
    known = [number for number, name in directory.addresses.items() if name in names]
    for name in sorted(names - set(directory.addresses.values())):
        steps.warn(f"book {book.name}: the store knows no address {name!r}; nothing was ever posted to it")
    columns = picked_columns(book.description)
    halves, _ = store.table("half", ",".join((*columns, "address_id")))
    messages = halves.where(f.col("address_id").isin(known))
    picked = keep(pick(book.description, messages.select(*columns)))
    picked.count()
    return picked
