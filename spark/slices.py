"""Divide a large store into *slices* of time: sums prove which are in order, and only the others are examined by row.

Row by row, each half would be joined with its decision, and each pair with its ops and its entry: the whole store would
be shuffled in Spark twice. Most of a store is in order, which less work can prove. Each transaction and each pair gets
a *weight*, a hash of its ids. In a slice that is in order, the weights of the stored halves sum up to those of the
halves that the commits count, and the weights of the expected deliveries to those of the ones that ended or wait. Sums
of weights need one small row a slice, which the task that reads the rows computes.

A slice that is not in order has a sum other than 0, but for one in 2^40 of them: weights differ in each run, so no
store can be made to pass. The sums assume that no id is in a table twice: a store that has lost its primary keys is
examined as a whole. Some slices that are in order have other sums: those with failed or released attempts, with a
seek, with an end long before the last commit, with a transaction that is undecided or was rolled back after its halves
were stored. They are examined by row like any other.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark import ledger, marks, sums
from spark.period import Period
from spark.reading import Store
from spark.snapshot import has_keys, read_error

#: The size of a slice in the store's large tables, as PostgreSQL stores them: some 60 halves with their ops.
BYTES: Final = 24 * 1024
#: The most slices: so few that those not in order can be sent to all tasks.
MOST: Final = 1_000_000
#: A slice must be no longer than an end may be before a commit, however few rows the store has.
LONGEST: Final = ledger.CLOCK_STEP
_SHORTEST: Final = timedelta(milliseconds=1)
#: The bits of a hash that a weight leaves out: with them, sums would not fit into 64.
_SPARE: Final = 24
#: The slice of a transaction with more halves is examined by row.
_MOST_POSTED: Final = 1 << 16
#: Marks a pair whose slice must be examined row by row: no pair in order has this mark.
_UNKNOWN: Final = -1


def width_of(extent: timedelta, size: int) -> timedelta:
    """Return the length of slices, in whole milliseconds, for a store of ``size`` octets.

    ``extent``: the time from its first to its last half or op."""
    return max(min(max(extent * BYTES // size, extent // MOST), LONGEST) // _SHORTEST, 1) * _SHORTEST


@dataclass(frozen=True, kw_only=True)
class Weigher:
    """Computes slices and weights; ``seed`` is random in each run."""

    width: timedelta
    seed: int
    period: Period

    def slice_of_txn(self, high: Column) -> Column:
        """Return the slice in which a transaction was declared, by the first 64 bits of its id."""
        return sums.slot(ledger.txn_millis(high), self.width)

    def slice_of_half(self, half_id: Column) -> Column:
        """Return the slice in which a half was posted."""
        return sums.slot(ledger.half_millis(half_id), self.width)

    def weight(self, *ids: Column) -> Column:
        return f.shiftright(f.xxhash64(f.lit(self.seed), *ids), _SPARE)

    def of_transactions(self, halves: DataFrame, op: DataFrame) -> DataFrame:
        """Return ``slice, in_order, decided_by`` of each slice in which transactions of the period were declared.

        ``in_order``: its halves (:func:`spark.ledger.halves`) are all committed, and no half is missing;
        ``decided_by``: when its last commit was."""
        txn_high, high, low = f.col("txn_high"), f.col("id_high"), f.col("id_low")
        decided = self._decided(op)
        posted = f.when(f.col("posted").between(0, _MOST_POSTED), f.col("posted")).otherwise(-1)
        is_commit = f.col("decision") == "commit"
        stored = halves.where(f.col("judged") & txn_high.isNotNull()).select(
            self.slice_of_txn(txn_high).alias("slice"),
            self.weight(txn_high, f.col("txn_low")).alias("weight"),
            f.lit(None).cast("timestamp").alias("decided_at"),
        )
        said = decided.select(
            self.slice_of_txn(high).alias("slice"),
            f.when(is_commit, -posted * self.weight(high, low)).otherwise(0).alias("weight"),
            f.when(is_commit, f.col("decided_at")).alias("decided_at"),
        )
        return (
            stored.unionAll(said)
            .groupBy("slice")
            .agg(f.try_sum("weight").alias("rest"), f.max("decided_at").alias("decided_by"))
            .select("slice", _is_zero("rest").alias("in_order"), "decided_by")
        )

    def _decided(self, op: DataFrame) -> DataFrame:
        return ledger.decided(op).where(f.expr(self.period.declared_high("id_high")))

    def assumed(self, halves: DataFrame, of_transactions: DataFrame) -> DataFrame:
        """Add ``in_order, decided_at`` to ``halves``.

        Those in order are committed, at that time or before; it is unknown whether the others are."""
        plain = f.col("txn_high").isNull()
        known = _by_slice(halves, self.slice_of_txn(f.col("txn_high")), of_transactions, "left")
        return known.withColumns(
            {
                "in_order": plain | f.coalesce("in_order", f.lit(False)),
                "decided_at": f.when(plain, f.col("posted_at")).otherwise(f.col("decided_by")),
            }
        ).drop("decided_by")

    def of_pairs(self, assumed: DataFrame, receivers: DataFrame, met: DataFrame) -> DataFrame:
        """Return ``slice, in_order`` of each slice with halves of the period, or with ops or entries about its halves.

        ``met``: of :func:`spark.ledger.met`. ``in_order``: each expected pair was met once, and by no fact that must be
        examined by row."""
        is_known, has_group = f.col("in_order"), f.col("group_id").isNotNull()
        asked_for = (
            assumed.where("judged")
            .join(f.broadcast(receivers), "address_id", "left")
            .where(~is_known | (has_group & ledger.is_received()))
            .select(
                "half_id",
                "group_id",
                f.when(is_known, marks.EXPECTED).otherwise(_UNKNOWN).cast("long").alias("mark"),
                f.when(is_known, -f.unix_micros("decided_at")).alias("at"),
            )
        )
        mark, weight = f.col("mark"), self.weight(f.col("half_id"), f.col("group_id"))
        is_expected = mark == marks.EXPECTED
        # an op without a mark does not prove that its half exists
        is_counted = is_expected | ((mark != 0) & marks.in_order(mark + marks.EXPECTED))
        return (
            asked_for.unionAll(met)
            .groupBy(self.slice_of_half(f.col("half_id")).alias("slice"))
            .agg(
                f.try_sum(f.when(is_expected, weight).otherwise(-weight)).alias("rest"),
                f.bool_and(is_counted).alias("counted"),
                ledger.too_early().alias("too_early"),
            )
            .select(
                "slice",
                (_is_zero("rest") & f.col("counted") & ~f.col("too_early")).alias("in_order"),
            )
        )

    def half_cells(self, halves: DataFrame, apart: DataFrame, slot: timedelta) -> DataFrame:
        """Return cells (:func:`spark.sums.halves`) of the halves in slices in order, and of plain posts.

        ``apart``: the other slices."""
        found = _by_slice(halves, self.slice_of_txn(f.col("txn_high")), apart, "left_anti")
        committed = {"commits": f.lit(1), "rollbacks": f.lit(0), "state": f.lit("committed")}
        return sums.halves(found.withColumns(committed), slot)

    def transaction_cells(self, op: DataFrame, apart: DataFrame, width: timedelta) -> DataFrame:
        """Return cells (:func:`spark.sums.transactions`) of the slices in order; ``apart``: the other slices."""
        is_commit = f.col("decision") == "commit"
        found = _by_slice(self._decided(op), self.slice_of_txn(f.col("id_high")), apart, "left_anti")
        return sums.transactions(
            found.select(
                f.col("id_high").alias("txn_high"),
                f.col("id_low").alias("txn_low"),
                is_commit.cast("int").alias("commits"),
                (~is_commit).cast("int").alias("rollbacks"),
                "posted",
                "decided_at",
                f.when(is_commit, f.col("posted")).otherwise(0).alias("halves"),
                f.lit(None).cast("int").alias("address_id"),
            ),
            width,
        )

    def pair_cells(self, met: DataFrame, apart: DataFrame) -> DataFrame:
        """Return cells (:func:`spark.sums.pairs`) of the slices in order; ``apart``: the other slices."""
        half_id = f.col("half_id")
        found = _by_slice(met, self.slice_of_half(half_id), apart, "left_anti")
        return found.groupBy(
            "group_id",
            sums.slot(ledger.half_millis(half_id), sums.HOUR).alias("slot"),
            (f.col("mark") + marks.EXPECTED).alias("mark"),
        ).count()


def _is_zero(total: str) -> Column:
    """Return the condition that a sum is 0; a sum that overflowed is null, and is not."""
    return f.coalesce(f.col(total) == 0, f.lit(False))


def _by_slice(frame: DataFrame, number: Column, slices: DataFrame, how: str) -> DataFrame:
    """Join ``frame`` with ``slices``; ``number`` is the slice of a row."""
    return frame.withColumn("slice", number).join(f.broadcast(slices), "slice", how).drop("slice")


def weigher_of(store: Store, extent: timedelta) -> Weigher | None:
    """Return a weigher for the store; None if it is small, or has lost keys, so that sums prove nothing.

    :raises spark.snapshot.StoreUnreadable: the database does not answer.
    """
    if store.small:
        return None
    with read_error():
        if not has_keys(store.snapshot.connection):
            return None
    return Weigher(width=width_of(extent, store.bytes), seed=secrets.randbits(63), period=store.period)


@dataclass(frozen=True, kw_only=True)
class Apart:
    """The rows to examine: the frames of :mod:`spark.ledger`, without the slices in order.

    ``of_transactions`` has the halves and decisions of the transactions; ``stated``, ``deliveries`` and ``entry`` have
    all rows of the pairs."""

    of_transactions: DataFrame
    stated: DataFrame
    deliveries: DataFrame
    entry: DataFrame


@dataclass(frozen=True, kw_only=True)
class Cells:
    """The cells of the slices in order (:mod:`spark.sums`)."""

    halves: DataFrame
    transactions: DataFrame
    pairs: DataFrame


def sliced(
    weigher: Weigher,
    *,
    halves: DataFrame,
    op: DataFrame,
    deliveries: DataFrame,
    entry: DataFrame,
    receivers: DataFrame,
    seen_at: datetime,
    instances: Collection[int],
    slot: timedelta,
    width: timedelta,
    keep: Callable[[DataFrame], DataFrame],
) -> tuple[Cells, Apart]:
    """Divide the store into cells and rows to examine; ``slot``, ``width``: of the cells of halves and transactions."""
    # few rows, which several jobs read
    of_transactions = keep(weigher.of_transactions(halves, op).coalesce(1))
    others = of_transactions.where("not in_order").select("slice")
    assumed = weigher.assumed(halves, of_transactions)
    met = ledger.met(deliveries, entry, seen_at, instances)
    of_pairs = keep(weigher.of_pairs(assumed, receivers, met).coalesce(1))
    apart = of_pairs.where("not in_order").select("slice")

    def examined(frame: DataFrame) -> DataFrame:
        return _by_slice(frame, weigher.slice_of_half(f.col("half_id")), apart, "left_semi")

    def of_slices(frame: DataFrame, high: str, slices: DataFrame) -> DataFrame:
        return _by_slice(frame, weigher.slice_of_txn(f.col(high)), slices, "left_semi")

    halves_apart = keep(examined(halves))
    declared = halves_apart.select(weigher.slice_of_txn(f.col("txn_high")).alias("slice")).unionAll(others).distinct()
    decisions = ledger.decisions(of_slices(ledger.decided(op), "id_high", declared))
    stated = keep(ledger.states(halves_apart, decisions, weigher.period))
    return (
        Cells(
            halves=weigher.half_cells(halves, others, slot),
            transactions=weigher.transaction_cells(op, others, width),
            pairs=weigher.pair_cells(met, apart),
        ),
        Apart(
            of_transactions=of_slices(stated, "txn_high", others),
            stated=stated,
            deliveries=examined(deliveries),
            entry=examined(entry),
        ),
    )
