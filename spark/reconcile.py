"""Run a reconciliation: read all tables as of one snapshot, survey them, compare the books, write the findings."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark import ledger
from spark.archived import open_archive, with_archive
from spark.books.consumption import consumer_findings, fates
from spark.books.description import Description
from spark.books.inbox import Inbox, open_inbox
from spark.books.keys import keyed
from spark.books.loading import unreadable
from spark.books.production import Production
from spark.books.rows import Book, open_book
from spark.charts import charts
from spark.directory import read_directory
from spark.finding import Finding
from spark.keeping import Keep, brought, job_threads, keeping, near
from spark.metrics import Metrics, bucket_width
from spark.output import writing
from spark.period import Period
from spark.picking import Messages, Picking
from spark.progress import Steps
from spark.reading import Store, credentials_of_tasks, local
from spark.report import BookTotals, Run, write_report
from spark.results import write_findings
from spark.slices import weigher_of
from spark.snapshot import SMALL_BYTES, Snapshot, exported_snapshot, read_error, store_bytes
from spark.source import HalfOpSource
from spark.survey import Survey, Tables

#: The columns of each large table that are read; messages are read for books only.
_COLUMNS: Final = {
    "op": "id_high,id_low,decision,reason,posted,half_ids,group_ids,decided_at",
    "entry": "group_id,id,half_id,lease,failures,priority,acquired,message_group,available_at,failed",
    "half": "id,txn_id_high,txn_id_low,address_id,posted_at",
}
#: Of the store's large tables as PostgreSQL has them; a task aggregates and joins so much in some hundred megabytes.
_BYTES_PER_TASK: Final = 48 * 1024 * 1024
#: The same of a book, whose rows are compared like halves.
_BYTES_PER_ROW: Final = 200

#: The size of a table by that of its file in the archive.
_UNPACKED: Final = 4

#: The least time around the period in which a book's messages are read; a longer grace of the book replaces it.
_LEAST_REACH: Final = timedelta(hours=1)

#: Stages of a run without books; each book adds two.
STAGES: Final = 8


def reconcile(
    spark: SparkSession,
    *,
    url: str,
    period: Period,
    books: Sequence[Description],
    inbox: bool = False,
    archive: Path | None = None,
    credentials: Path | None = None,
    out: Path,
    steps: Steps,
    version: str,
) -> Run:
    """Reconcile the store at ``url`` over ``period`` and write the findings into ``out``, a folder that is ours
    (:func:`spark.output.output`); :func:`report` writes the rest. ``inbox``: with the store's own inbox as a book
    besides. ``archive``: with the days that are dropped, from this folder. ``credentials``: a file with the URL that
    is there for the tasks, too, wherever they run.

    :raises spark.books.description.BookError: a book that cannot be used, before any other work.
    :raises spark.snapshot.StoreUnreadable: the store cannot be read.
    :raises store.archive.copies.ArchiveUnusable: the archive is not whole, or is another store's.
    :raises spark.output.OutputUnusable: the output folder cannot be written any more.
    """
    began = time.monotonic()
    opened = [open_book(spark, description) for description in books]
    # with books, messages are read beyond the period too: a row and its message are not of the same moment
    graces = [book.description.grace for book in opened] + [_LEAST_REACH] * (bool(opened) or inbox)
    period = replace(period, reach=max(graces, default=timedelta(0)))
    with keeping() as keep:
        opened = [_keep_book(book, keep, steps) for book in opened]
        read = _read(
            spark, url, period, opened, keep, steps, inbox=inbox, root=archive, credentials=credentials, began=began
        )
        comparison = _Comparison(spark, read, keep, steps)
        with writing(out):
            findings = write_findings(comparison.findings(), out, lambda count: steps.rows(read.total + count))
        return Run(
            store=read.snapshot.store,
            version=version,
            period=read.period,
            kept_since=read.period.since if read.period != period else None,
            seen_at=read.snapshot.taken_at,
            took=timedelta(seconds=time.monotonic() - began),
            rows_read=read.rows,
            metrics=comparison.metrics,
            charts=charts(comparison.metrics),
            findings=findings,
            books=comparison.totals,
        )


def report(run: Run, out: Path, fail_on: str, steps: Steps) -> None:
    """Write the summary and the report beside the findings; needs no Spark.

    :raises spark.output.OutputUnusable: the output folder cannot be written any more; it has no ``summary.json`` then.
    """
    steps.stage("writing the report")
    with writing(out):
        write_report(run, out, fail_on)


@dataclass(frozen=True, kw_only=True)
class _Read:
    """What was read, ``rows`` of each table, and of how many ``bytes`` the store is."""

    snapshot: Snapshot
    period: Period
    tables: Tables
    survey: Survey
    books: list[Messages]
    inbox: Inbox | None
    rows: dict[str, int]
    bytes: int

    @property
    def total(self) -> int:
        return sum(self.rows.values())


class _Comparison:
    """The survey of a store and its books. ``metrics`` and ``totals`` are set after the last finding."""

    metrics: Metrics

    def __init__(self, spark: SparkSession, read: _Read, keep: Keep, steps: Steps) -> None:
        self._spark = spark
        self._read = read
        self._keep = keep
        self._steps = steps
        self.totals: list[BookTotals] = []

    def findings(self) -> Iterator[Finding]:
        read = self._read
        with_keys = [each.picked for each in read.books if not each.book.description.by_txn_id]
        yield from keyed(self._spark, read.survey.findings(), with_keys, read.tables.halves)
        self.metrics = read.survey.metrics()
        for each in read.books:
            self._steps.stage(f"comparing book {each.book.name}")
            rows = each.book.rows.count()
            size = rows * _BYTES_PER_ROW
            _fit(self._spark, max(read.bytes, size), small=read.tables.small and size <= SMALL_BYTES)
            if each.groups is not None:
                compared, differences = self._consumed(each)
                most = rows + compared
            else:
                compared, most, differences = self._posted(each)
            grace = each.book.description.grace
            self.totals.append(BookTotals(name=each.book.name, rows=rows, messages=compared, grace=grace))
            for row in brought(differences, most, self._keep):
                yield Finding(**{**row.asDict(), "seen_at": read.snapshot.taken_at})
        if read.inbox is not None:
            yield from read.inbox.unknown_consumers(read.snapshot.taken_at)

    def _consumed(self, each: Messages) -> tuple[int, DataFrame]:
        """Return how many messages are compared with a consumer's book, and the findings."""
        read, tables = self._read, self._read.tables
        assert each.groups is not None
        stated = ledger.with_txn_id(tables.stated)
        messages = near(fates(each.picked, each.groups, stated=stated, op=tables.op, entry=tables.entry), self._keep)
        complete = read.snapshot.kept_since is None
        taken_at, groups = read.snapshot.taken_at, each.groups
        found = consumer_findings(each.book, messages, read.period, taken_at, groups=groups, complete=complete)
        return messages.where("consumed and judged").count(), found

    def _posted(self, each: Messages) -> tuple[int, int, DataFrame]:
        """Return the number of messages of a producer's book, about how many findings there are, and the findings."""
        read, directory = self._read, self._read.tables.directory
        whole = Production(
            book=each.book,
            messages=each.picked,
            decided=ledger.decided(read.tables.op),
            open_transactions=local(
                self._spark,
                {**ledger.NAMED, "plain": pa.bool_()},
                (
                    {**ledger.named(known.id), "plain": known.producer_group is None}
                    for known in directory.open_transactions.values()
                ),
            ),
        )
        names = local(
            self._spark,
            {"address_id": pa.int32(), "address": pa.string()},
            ({"address_id": number, "address": name} for number, name in directory.addresses.items()),
        )
        most, found = whole.differences(names, read.period, read.snapshot.taken_at, self._keep)
        return each.picked.where("judged").count(), most, found


def _fit(spark: SparkSession, size: int, *, small: bool) -> None:
    """Choose plans for ``size`` octets: small data takes most of its time for planning and starting tasks."""
    partitions = 1 if small else max(spark.sparkContext.defaultParallelism, size // _BYTES_PER_TASK)
    settings = {
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.codegen.wholeStage": str(not small).lower(),
        "spark.sql.codegen.factoryMode": "NO_CODEGEN" if small else "FALLBACK",
        "spark.sql.adaptive.enabled": str(not small).lower(),
    }
    for name, value in settings.items():
        spark.conf.set(name, value)


def _keep_book(book: Book, keep: Keep, steps: Steps) -> Book:
    """Read all rows of the book, so that an unreadable one stops the run before any other work (R25)."""
    steps.stage(f"reading book {book.name}")
    try:
        rows = keep(book.rows)
        rows.count()
    except (PySparkException, Py4JJavaError) as error:
        raise unreadable(book.description, error) from None
    return replace(book, rows=rows)


def _read(
    spark: SparkSession,
    url: str,
    period: Period,
    books: Sequence[Book],
    keep: Keep,
    steps: Steps,
    *,
    inbox: bool,
    root: Path | None,
    credentials: Path | None,
    began: float,
) -> _Read:
    """Return all tables, and of each book what its messages say; read and kept, and the snapshot given back. ``root``:
    of the archive. ``began``: when the first book was opened, by the monotonic clock.
    """
    with ExitStack() as stack:
        credentials = stack.enter_context(credentials_of_tasks(spark, url, credentials))
        steps.stage("reading addresses")
        snapshot = stack.enter_context(exported_snapshot(url))
        behind = timedelta(seconds=time.monotonic() - began)
        books = [replace(book, behind=behind) for book in books]
        directory, rows = read_directory(snapshot.connection, snapshot.taken_at)
        steps.rows(sum(rows.values()))
        archive = None if root is None else open_archive(root, snapshot)
        snapshot = with_archive(snapshot, archive)
        period = snapshot.kept(period)
        with read_error():
            size = store_bytes(snapshot.connection)
        if archive is not None:
            size += _UNPACKED * archive.bytes
        store = Store(
            spark=spark, snapshot=snapshot, period=period, credentials=credentials, bytes=size, archive=archive
        )
        extent = store.extent()
        _fit(spark, size, small=store.small)
        with _reading_tables(store, keep, steps, sum(rows.values())) as (frames, counts):
            halves = ledger.halves(frames["half"], period)
            tables = Tables(
                halves=halves,
                stated=keep(ledger.states(halves, ledger.decisions(frames["op"]), period)),
                op=frames["op"],
                entry=frames["entry"],
                directory=directory,
                weigher=weigher_of(store, extent),
                small=store.small,
            )
            seen_at, width = snapshot.taken_at, bucket_width(extent)
            survey = Survey(spark, tables, period=period, seen_at=seen_at, width=width, keep=keep, steps=steps)
        rows |= counts
        picking = Picking(store, directory, halves, keep, steps)
        of_books = [picking.of(book) for book in books]
        own = open_inbox(store, directory) if inbox else None
        if own is not None:
            of_books.append(picking.of_consumers(_keep_book(own.book, keep, steps), own.begins))
    return _Read(
        snapshot=snapshot, period=period, tables=tables, survey=survey, books=of_books, inbox=own, rows=rows, bytes=size
    )


@contextmanager
def _reading_tables(
    store: Store, keep: Keep, steps: Steps, before: int
) -> Iterator[tuple[dict[str, DataFrame], dict[str, int]]]:
    """Yield the large tables, which are read during the block, so that plans for them are made meanwhile; after it, how
    many rows each has. ``before``: rows that were read before them.
    """
    frames: dict[str, DataFrame] = {}
    counts: dict[str, int] = {}
    if not store.small:
        # the first one that a session gets starts a Python, which looks for others: a second of processor time
        store.spark.dataSource.register(HalfOpSource)
    with job_threads(store.spark, len(_COLUMNS)) as threads:
        counting: dict[str, Future[int]] = {}
        for name, columns in _COLUMNS.items():
            steps.stage(f"reading {name}")
            frame, known = store.table(name, columns)
            frames[name] = keep(frame) if known is None else frame
            counting[name] = threads.submit(_count, frames[name], known)
        yield frames, counts
        for name, count in counting.items():
            counts[name] = count.result()
            steps.rows(before + sum(counts.values()))


def _count(frame: DataFrame, known: int | None) -> int:
    """Read ``frame``, which is kept; how many rows it has, where they are not ``known``."""
    return frame.count() if known is None else known
