"""Run a reconciliation: read all tables of a store as of one snapshot, survey them, compare the books, write the
findings. Of several stores each has a snapshot of its own, and one report tells of all.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import reduce
from pathlib import Path
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from spark import ledger
from spark.archived import open_archive, with_archive
from spark.books.consumption import consumer_findings, fates
from spark.books.description import Description
from spark.books.inbox import Inbox, open_inbox
from spark.books.keys import keyed
from spark.books.loading import unreadable
from spark.books.production import Production
from spark.books.rows import Book, open_book
from spark.books.several import in_several, known, located, rows_of, rows_of_none
from spark.charts import charts
from spark.directory import read_directory
from spark.finding import Finding
from spark.keeping import Keep, brought, job_threads, keeping, near
from spark.metrics import bucket_width
from spark.output import writing
from spark.period import Period
from spark.picking import Messages, Picking
from spark.progress import Steps
from spark.reading import Store, credentials_of_tasks, local
from spark.report import BookTotals, Run, Surveyed, write_report
from spark.results import write_findings
from spark.slices import weigher_of
from spark.snapshot import SMALL_BYTES, At, Snapshot, StoreUnreadable, exported_snapshot, read_error, store_bytes
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

#: Stages of a run over one store without books; each book adds two.
STAGES: Final = 8


def reconcile(
    spark: SparkSession,
    *,
    stores: Sequence[At],
    period: Period,
    books: Sequence[Description],
    inbox: bool = False,
    archive: Path | None = None,
    out: Path,
    steps: Steps,
    version: str,
) -> Run:
    """Reconcile the stores over ``period`` and write the findings into ``out``, a folder that is ours
    (:func:`spark.output.output`); :func:`report` writes the rest. ``inbox``: with each store's own inbox as a book
    besides. ``archive``: with the days that are dropped, from this folder, of the one store.

    :raises spark.books.description.BookError: a book that cannot be used, before any other work.
    :raises spark.snapshot.StoreUnreadable: a store cannot be read.
    :raises store.archive.copies.ArchiveUnusable: the archive is not whole, or is another store's.
    :raises spark.output.OutputUnusable: the output folder cannot be written any more.
    """
    began = time.monotonic()
    opened = [open_book(spark, description) for description in books]
    # with books, messages are read beyond the period too: a row and its message are not of the same moment
    graces = [book.description.grace for book in opened] + [_LEAST_REACH] * (bool(opened) or inbox)
    period = replace(period, reach=max(graces, default=timedelta(0)))
    with keeping() as keep, ExitStack() as files:
        opened = [_keep_book(book, keep, steps) for book in opened]
        reading = _Reading(spark, period, opened, keep, steps, inbox=inbox, archive=archive, began=began)
        comparisons = []
        for at in stores:
            with _named(at):
                # all at once: Spark takes what two stores are read by for one, where it has the same names
                tasks = files.enter_context(credentials_of_tasks(spark, at.url, at.credentials))
                comparisons.append(_Comparison(spark, reading.read(at.url, tasks), keep, steps))
        reading.tell_warnings(len(stores))
        whole = _Whole(comparisons, opened)
        total = sum(each.read.total for each in comparisons)
        with writing(out):
            findings = write_findings(whole.findings(), out, lambda count: steps.rows(total + count))
        first, *others = (each.surveyed(period) for each in comparisons)
        return Run(
            **vars(first),
            version=version,
            period=comparisons[0].read.period if len(comparisons) == 1 else period,
            took=timedelta(seconds=time.monotonic() - began),
            findings=findings,
            books=whole.totals,
            others=others,
        )


@contextmanager
def _named(at: At) -> Iterator[None]:
    """Name the store in an error of the block."""
    try:
        yield
    except StoreUnreadable as error:
        raise StoreUnreadable(f"{at.place}: {error}" if at.place else str(error)) from None


def report(run: Run, out: Path, fail_on: str, steps: Steps) -> None:
    """Write the summary and the report beside the findings; needs no Spark.

    :raises spark.output.OutputUnusable: the output folder cannot be written any more; it has no ``summary.json`` then.
    """
    steps.stage("writing the report")
    with writing(out):
        write_report(run, out, fail_on)


@dataclass(frozen=True, kw_only=True)
class _Read:
    """What was read of a store, ``rows`` of each table, and of how many ``bytes`` it is. ``books``: those that all
    stores are compared with; ``inbox``: its own, with its messages."""

    snapshot: Snapshot
    period: Period
    tables: Tables
    survey: Survey
    books: list[Messages]
    inbox: tuple[Inbox, Messages] | None
    rows: dict[str, int]
    bytes: int

    @property
    def total(self) -> int:
        return sum(self.rows.values())


class _Whole:
    """All stores and the books. ``totals`` are set after the last finding."""

    def __init__(self, comparisons: list[_Comparison], books: Sequence[Book]) -> None:
        self._comparisons = comparisons
        self._books = books
        self.totals: list[BookTotals] = []

    def findings(self) -> Iterator[Finding]:
        for each in self._comparisons:
            yield from each.survey()
        for number, book in enumerate(self._books):
            if len(self._comparisons) == 1:
                yield from self._compared(self._comparisons[0], self._comparisons[0].read.books[number])
            else:
                yield from self._divided(number, book)
        for each in self._comparisons:
            if each.read.inbox is not None:
                own, messages = each.read.inbox
                yield from self._compared(each, messages)
                yield from each.named(own.unknown_consumers(each.read.snapshot.taken_at))

    def _compared(self, comparison: _Comparison, each: Messages) -> Iterator[Finding]:
        yield from comparison.book(each)
        totals = comparison.totals
        self.totals.append(totals if len(self._comparisons) > 1 else replace(totals, store=None))

    def _divided(self, number: int, book: Book) -> Iterator[Finding]:
        """Compare a book with several stores, each with its rows."""
        first, *_ = self._comparisons
        max(self._comparisons, key=lambda each: each.read.bytes).fit(0)
        places = first.keep(located({each.name: each.known(each.read.books[number]) for each in self._comparisons}))
        for each in self._comparisons:
            messages = each.read.books[number]
            rows = first.keep(rows_of(messages.book.rows, places, each.name))
            own = replace(messages.book, rows=rows, together=rows.limit(0))
            yield from self._compared(each, replace(messages, book=own))
        none = self._of_none(number)
        rows = none.read.books[number].book.rows
        rest = replace(none.read.books[number].book, rows=first.keep(rows_of_none(rows, places)), together=rows)
        yield from self._compared(none, replace(none.read.books[number], book=rest))
        found = in_several(book.description, places, none.read.snapshot)
        for row in brought(found, places.where(f.size("committed") > 1).count(), first.keep):
            yield Finding(**{**row.asDict(), "seen_at": none.read.snapshot.taken_at})

    def _of_none(self, number: int) -> _Comparison:
        """Return what the book's rows of no store are compared with: no message, as of the earliest snapshot, over the
        period that all stores have kept.
        """
        reads = [each.read for each in self._comparisons]
        snapshots = [read.snapshot for read in reads]
        kept = [each.kept_since for each in snapshots if each.kept_since is not None]
        first = self._comparisons[0]
        every = [read.books[number] for read in reads]
        groups = [each.groups for each in every if each.groups is not None]
        nothing = replace(
            every[0],
            picked=every[0].picked.where(f.lit(False)),
            groups=reduce(DataFrame.unionByName, groups) if groups else None,
        )
        read = replace(
            first.read,
            snapshot=replace(
                snapshots[0],
                taken_at=min(each.taken_at for each in snapshots),
                kept_since=max(kept, default=None),
            ),
            period=max((read.period for read in reads), key=lambda each: each.since),
            books=[*first.read.books[:number], nothing, *first.read.books[number + 1 :]],
        )
        return first.of_none(read)


class _Comparison:
    """The survey of a store, and its comparison with books. ``totals``: of the last book."""

    totals: BookTotals

    def __init__(self, spark: SparkSession, read: _Read, keep: Keep, steps: Steps, *, none: bool = False) -> None:
        """``none``: it stands for the rows that are of no store."""
        self._spark = spark
        self.read = read
        self.keep = keep
        self._steps = steps
        self._none = none

    def of_none(self, read: _Read) -> _Comparison:
        return _Comparison(self._spark, read, self.keep, self._steps, none=True)

    @property
    def name(self) -> str:
        return str(self.read.snapshot.store)

    def named(self, found: Iterator[Finding]) -> Iterator[Finding]:
        """Yield the findings with the name of their store."""
        return (replace(each, store=None if self._none else self.name) for each in found)

    def fit(self, octets: int) -> None:
        """Choose plans for the store, or for a book of so many octets."""
        read = self.read
        _fit(self._spark, max(read.bytes, octets), small=read.tables.small and octets <= SMALL_BYTES)

    def survey(self) -> Iterator[Finding]:
        read = self.read
        self.fit(0)
        books = read.books if read.inbox is None else [*read.books, read.inbox[1]]
        with_keys = [each.picked for each in books if not each.book.description.by_txn_id]
        yield from self.named(keyed(self._spark, read.survey.findings(), with_keys, read.tables.halves))

    def surveyed(self, period: Period) -> Surveyed:
        """Return what the report says of the store, after the last finding. ``period``: what was asked for."""
        read = self.read
        metrics = read.survey.metrics()
        return Surveyed(
            store=read.snapshot.store,
            kept_since=read.period.since if read.period != period else None,
            seen_at=read.snapshot.taken_at,
            rows_read=read.rows,
            metrics=metrics,
            charts=charts(metrics),
        )

    def known(self, each: Messages) -> DataFrame:
        """Return the keys of the book that the store has (:func:`spark.books.several.known`)."""
        return known(each, self.read.tables.op, self._open_transactions(), self.read.period)

    def book(self, each: Messages) -> Iterator[Finding]:
        read = self.read
        self._steps.stage(f"comparing book {each.book.name}")
        rows = each.book.rows.count()
        self.fit(rows * _BYTES_PER_ROW)
        if each.groups is not None:
            compared, differences = self._consumed(each)
            most = rows + compared
        else:
            compared, most, differences = self._posted(each)
        grace, store = each.book.description.grace, None if self._none else self.name
        self.totals = BookTotals(name=each.book.name, store=store, rows=rows, messages=compared, grace=grace)
        found = brought(differences, most, self.keep)
        yield from self.named(Finding(**{**row.asDict(), "seen_at": read.snapshot.taken_at}) for row in found)

    def _consumed(self, each: Messages) -> tuple[int, DataFrame]:
        """Return how many messages are compared with a consumer's book, and the findings."""
        read, tables = self.read, self.read.tables
        assert each.groups is not None
        stated = ledger.with_txn_id(tables.stated)
        messages = near(fates(each.picked, each.groups, stated=stated, op=tables.op, entry=tables.entry), self.keep)
        complete = read.snapshot.kept_since is None
        taken_at, groups = read.snapshot.taken_at, each.groups
        found = consumer_findings(each.book, messages, read.period, taken_at, groups=groups, complete=complete)
        return messages.where("consumed and judged").count(), found

    def _posted(self, each: Messages) -> tuple[int, int, DataFrame]:
        """Return the number of messages of a producer's book, about how many findings there are, and the findings."""
        read, directory = self.read, self.read.tables.directory
        whole = Production(
            book=each.book,
            messages=each.picked,
            decided=ledger.decided(read.tables.op),
            open_transactions=self._open_transactions(),
        )
        names = local(
            self._spark,
            {"address_id": pa.int32(), "address": pa.string()},
            ({"address_id": number, "address": name} for number, name in directory.addresses.items()),
        )
        most, found = whole.differences(names, read.period, read.snapshot.taken_at, self.keep)
        return each.picked.where("judged").count(), most, found

    def _open_transactions(self) -> DataFrame:
        open_transactions = self.read.tables.directory.open_transactions.values()
        columns = {**ledger.NAMED, "plain": pa.bool_()}
        rows = ({**ledger.named(known.id), "plain": known.producer_group is None} for known in open_transactions)
        return local(self._spark, columns, rows)


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


@dataclass
class _Reading:
    """Reads stores. ``books``: those opened; ``archive``: the folder of one; ``began``: when the first book was opened,
    by the monotonic clock.
    """

    spark: SparkSession
    period: Period
    books: Sequence[Book]
    keep: Keep
    steps: Steps
    inbox: bool
    archive: Path | None
    began: float
    warnings: Counter[str] = field(default_factory=Counter)

    def tell_warnings(self, stores: int) -> None:
        """Warn of what no store has."""
        for text, count in self.warnings.items():
            if count == stores:
                self.steps.warn(text)

    def read(self, url: str, credentials: Path | None) -> _Read:
        """Return all tables of a store, and of each book what its messages say; read and kept, and the snapshot given
        back. ``credentials``: of the tasks.
        """
        spark, keep, steps = self.spark, self.keep, self.steps
        steps.stage("reading addresses")
        with exported_snapshot(url) as snapshot:
            behind = timedelta(seconds=time.monotonic() - self.began)
            books = [replace(book, behind=behind) for book in self.books]
            directory, rows = read_directory(snapshot.connection, snapshot.taken_at)
            steps.rows(sum(rows.values()))
            archive = None if self.archive is None else open_archive(self.archive, snapshot)
            snapshot = with_archive(snapshot, archive)
            period = snapshot.kept(self.period)
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
            picking = Picking(store, directory, halves, keep, lambda text: self.warnings.update([text]))
            of_books = [picking.of(book) for book in books]
            own = open_inbox(store, directory) if self.inbox else None
            of_inbox = None
            if own is not None:
                of_inbox = own, picking.of_consumers(_keep_book(own.book, keep, steps), own.begins)
        return _Read(
            snapshot=snapshot,
            period=period,
            tables=tables,
            survey=survey,
            books=of_books,
            inbox=of_inbox,
            rows=rows,
            bytes=size,
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
