"""Survey the store: add up its cells, and check the rows that are not in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from spark import checks, ledger, sums, waiting
from spark.directory import Directory
from spark.finding import Finding
from spark.keeping import Keep, brought, job_threads
from spark.metrics import Decisions, Metrics, measure
from spark.period import Period
from spark.progress import Steps
from spark.reading import local, receivers
from spark.slices import Apart, Cells, Weigher, sliced
from spark.sums import Sums, moment_of_micros

#: The most ids that are sent to every task.
_MOST_SENT: Final = 1_000_000
#: Jobs of Spark that run at once, besides the current one.
_JOBS: Final = 2
#: Dead letters shown, the most frequent first.
_MOST_ERRORS: Final = 15

_PAIR: Final = {"half_id": pa.int64(), "group_id": pa.int32()}


@dataclass(frozen=True, kw_only=True)
class Tables:
    """The tables read: ``halves`` is of :func:`spark.ledger.halves`, ``stated`` of :func:`spark.ledger.states`.

    ``weigher``: divides a large store into slices, and then ``stated`` is not used. ``small``: everything fits into
    the driver."""

    halves: DataFrame
    stated: DataFrame
    op: DataFrame
    entry: DataFrame
    directory: Directory
    weigher: Weigher | None
    small: bool


class Survey:
    """Runs the checks of the store and collects the numbers of the report.

    ``width`` is the least distance of points of time in the plots."""

    def __init__(
        self,
        spark: SparkSession,
        tables: Tables,
        *,
        period: Period,
        seen_at: datetime,
        width: timedelta,
        keep: Keep,
        steps: Steps,
    ) -> None:
        self._spark = spark
        self._tables = tables
        self._period = period
        self._seen_at = seen_at
        self._width = width
        self._keep = keep
        self._steps = steps
        self._builder = checks.FindingBuilder(seen_at=seen_at, directory=tables.directory)
        self._slot = min(width, sums.HOUR)
        self._sums = Sums(tables.directory, self._slot)
        self._decisions = Decisions(width)
        late = None if period.is_all else ledger.posted_elsewhere(tables.halves, period)
        self._deliveries = ledger.of_the_period(ledger.delivery_ops(tables.op), period, late)
        entry = ledger.of_the_period(tables.entry, period, late)
        self._receivers = receivers(spark, tables.directory)
        self._instances = sorted(tables.directory.instances)
        self._cells: Cells | None = None
        if tables.weigher is None:
            stated = tables.stated
            self._apart = Apart(of_transactions=stated, stated=stated, deliveries=self._deliveries, entry=entry)
        else:
            self._cells, self._apart = self._sliced(tables.weigher, entry)
        self._of_halves = self._collapsed_halves()
        self._of_transactions = self._collapsed_transactions()
        self._of_pairs = self._collapsed_pairs()
        self._dead_letters: list[tuple[int | None, int, str, int]] = []

    def findings(self) -> Iterator[Finding]:
        """Yield the findings of all checks; after the last one :meth:`metrics` has all numbers."""
        with job_threads(self._spark, _JOBS) as threads:
            transactions = threads.submit(self._parted, self._of_transactions, "looked_at")
            pairs = threads.submit(self._parted, self._of_pairs, "half_id")
            self._steps.stage("adding up messages")
            for cell in self._of_halves.collect():
                self._sums.add_halves(cell)
            self._steps.stage("looking at transactions")
            yield from self._transactions(transactions.result())
            self._steps.stage("looking at deliveries")
            yield from self._pairs(pairs.result())
        yield from checks.unbalanced(self._sums.balance, self._builder)

    def metrics(self) -> Metrics:
        """Return the numbers of the report."""
        return measure(
            self._sums,
            self._decisions,
            dead_letters=self._dead_letters,
            directory=self._tables.directory,
            least_width=self._width,
            seen_at=self._seen_at,
        )

    def _sliced(self, weigher: Weigher, entry: DataFrame) -> tuple[Cells, Apart]:
        return sliced(
            weigher,
            halves=self._tables.halves,
            op=self._tables.op,
            deliveries=self._deliveries,
            entry=entry,
            receivers=self._receivers,
            seen_at=self._seen_at,
            instances=self._instances,
            slot=self._slot,
            width=self._width,
            keep=self._keep,
        )

    def _collapsed_halves(self) -> DataFrame:
        found = sums.halves(self._apart.of_transactions, self._slot)
        return found if self._cells is None else found.unionByName(self._cells.halves)

    def _collapsed_transactions(self) -> DataFrame:
        found = sums.transactions(ledger.transactions(self._apart.of_transactions), self._width)
        return found if self._cells is None else found.unionByName(self._cells.transactions)

    def _transactions(self, parted: _Parted) -> Iterator[Finding]:
        for cell in parted.cells:
            self._decisions.add_cell(cell)
        listed = self._tables.directory.open_transactions
        with_halves: set[str] = set()
        for row in parted.rows():
            known = row.looked_at.asDict()
            known["txn_id"] = ledger.uuid_of(known.pop("txn_high"), known.pop("txn_low"))
            if known["decided_at"] is not None:
                known["decided_at"] = moment_of_micros(known["decided_at"])
            with_halves.add(known["txn_id"])
            yield from self._check(checks.Transaction(**known, listed=listed.get(known["txn_id"])))
        for txn_id, transaction in listed.items():
            if txn_id not in with_halves and self._period.declares(txn_id):
                yield from self._check(checks.Transaction(txn_id=txn_id, listed=transaction))

    def _check(self, found: checks.Transaction) -> Iterator[Finding]:
        self._decisions.add(found)
        return checks.check_transaction(found, self._builder)

    def _collapsed_pairs(self) -> DataFrame:
        apart = self._apart
        expected = ledger.expected(apart.stated, self._receivers)
        met = ledger.met(apart.deliveries, apart.entry, self._seen_at, self._instances)
        found = sums.pairs(self._together(ledger.marked(expected, met), "half_id"))
        return found if self._cells is None else found.unionByName(self._cells.pairs, allowMissingColumns=True)

    def _pairs(self, parted: _Parted) -> Iterator[Finding]:
        for cell in parted.cells:
            self._sums.add_pairs(cell)
        if parted.count:
            found = ledger.facts_of(
                parted.ids(),
                stated=self._apart.stated,
                receivers=self._receivers,
                deliveries=self._apart.deliveries,
                entry=self._apart.entry,
                period=self._period,
                now=self._seen_at,
                instances=self._instances,
            )
            for row in brought(found.where("judged"), parted.count, self._keep):
                pair = ledger.Pair(**row.asDict())
                self._sums.add_pair(pair)
                yield from checks.check_pair(pair, self._builder)
        if any(counts[1] for counts in self._sums.attempts.values()):
            self._dead_letters = self._count_dead_letters()
        yield from self._letters()
        yield from self._passed_over()

    def _passed_over(self) -> Iterator[Finding]:
        """Yield findings of R16 about waiting deliveries."""
        tables, deliveries = self._tables, ledger.delivery_ops(self._tables.op)
        held = waiting.held(self._spark, tables.directory)
        passed = waiting.passed_over(tables.entry, deliveries, held, self._seen_at)
        count = 0
        if not tables.small:
            # mostly empty, and always smaller than the halves, which are not shuffled for it
            passed = self._keep(passed)
            count = passed.count()
            if not count:
                return
        found = waiting.of_the_period(self._sent(passed, count), tables.halves)
        for row in brought(found, count, self._keep):
            yield checks.passed_over(checks.Waiting(**row.asDict()), self._builder)

    def _letters(self) -> Iterator[Finding]:
        """Yield findings of R17, if the store has dead letters or their ops."""
        known = self._tables.directory.letters
        if not known and not self._dead_letters:
            return
        deliveries = ledger.delivery_ops(self._tables.op)
        found = waiting.unmatched(deliveries, self._tables.halves, sorted(known), self._period)
        for row in found.toLocalIterator():
            yield checks.dead_letter_mismatch(checks.Burials(**row.asDict()), self._builder)

    def _count_dead_letters(self) -> list[tuple[int | None, int, str, int]]:
        """Return address, group, error and count of the period's dead letters, the most frequent first."""
        dead = self._deliveries.where(f.col("decision") == "dead-letter").select("half_id", "group_id", "reason")
        count = sum(counts[1] for counts in self._sums.attempts.values())
        judged = self._tables.halves.where("judged").select("half_id", "address_id")
        rows = (
            self._sent(dead, count)
            .join(judged, "half_id")
            .groupBy("address_id", "group_id", f.coalesce("reason", f.lit("no reason given")).alias("error"))
            .count()
            .orderBy(f.desc("count"), "address_id", "group_id", "error")
            .limit(_MOST_ERRORS)
            .collect()
        )
        return [(row[0], row[1], row[2], row[3]) for row in rows]

    def _together(self, frame: DataFrame, key: str) -> DataFrame:
        """Return ``frame`` with all rows of one ``key`` in one task."""
        return frame.coalesce(1) if self._tables.small else frame.repartition(key)

    def _parted(self, collapsed: DataFrame, kept: str) -> _Parted:
        """Divide a frame into cells, and the rows to examine, whose column ``kept`` is not null."""
        if self._tables.small:
            rows = collapsed.collect()
            looked_at = [row for row in rows if row[kept] is not None]
            return _Parted(
                cells=[row for row in rows if row[kept] is None],
                count=len(looked_at),
                rows=lambda: looked_at,
                ids=lambda: local(self._spark, _PAIR, (row.asDict() for row in looked_at)),
            )
        once = self._keep(collapsed)
        frame = once.where(f.col(kept).isNotNull())
        cells = once.where(f.col(kept).isNull()).collect()
        count = frame.count()
        return _Parted(
            cells=cells,
            count=count,
            rows=lambda: brought(frame, count, self._keep),
            ids=lambda: self._sent(frame.select(*_PAIR), count),
        )

    def _sent(self, frame: DataFrame, count: int) -> DataFrame:
        """Return ``frame``, of about ``count`` rows, for a join with a large frame: broadcast if it is small."""
        return f.broadcast(frame) if count <= _MOST_SENT else frame


@dataclass(frozen=True, kw_only=True)
class _Parted:
    """A divided frame: its cells, and the rows to examine, one by one, or the ids of pairs as a frame."""

    cells: list[Row]
    count: int
    rows: Callable[[], Iterable[Row]]
    ids: Callable[[], DataFrame]
