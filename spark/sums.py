"""Aggregate a store to cells, and add these up in the driver: by address and hour, and for the plots.

Rows in order become *cells*, counts by address, time and kind, which are few whatever the store's size; all sums and
plots of the report are computed from them. The other rows keep their ids, and are examined one by one
(:mod:`spark.checks`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark import marks
from spark.directory import Directory
from spark.ledger import Pair, half_millis, too_early, txn_millis, uuid_text
from store.ids import moment_of

#: Sums are compared hour by hour.
HOUR: Final = timedelta(hours=1)
#: Times from declare to decision are counted in steps of 2 percent, from this many seconds on.
SHORTEST: Final = 0.0001
STEPS_PER_E: Final = 50


def halves(stated: DataFrame, width: timedelta) -> DataFrame:
    """Count the halves of the period (:func:`spark.ledger.states`) by address, slot of ``width`` and outcome.

    ``address_id, slot, committed, rolled_back, open_txn_id, count``; ``open_txn_id``: the undecided transaction of
    these halves.
    """
    return (
        stated.where(f.col("judged") & f.col("half_id").isNotNull())
        .groupBy(
            "address_id",
            slot(half_millis(f.col("half_id")), width).alias("slot"),
            (f.col("commits") > 0).alias("committed"),
            (f.col("rollbacks") > 0).alias("rolled_back"),
            f.when(f.col("state") == "open", uuid_text(f.col("txn_high"), f.col("txn_low"))).alias("open_txn_id"),
        )
        .count()
    )


def transactions(found: DataFrame, width: timedelta) -> DataFrame:
    """Count the transactions in order (:func:`spark.ledger.transactions`) by the slot of their decision.

    ``slot, committed, latency, count, unstored``; ``latency`` is the step of the time from declare to decision,
    ``unstored`` how many halves were posted, rolled back and never stored. Of a transaction that is not in order
    ``looked_at`` has all columns (``decided_at`` in microseconds): it has no decision or several, or other halves than
    it posted.
    """
    is_committed = f.col("commits") > 0
    # the driver would receive a timestamp in the zone of its machine, without the zone
    columns = [f.unix_micros(name).alias(name) if name == "decided_at" else f.col(name) for name in found.columns]
    in_order = (f.col("commits") + f.col("rollbacks") == 1) & (
        ~is_committed | f.coalesce(f.col("posted") == f.col("halves"), f.lit(False))
    )
    waited = (f.unix_micros("decided_at") - 1_000 * txn_millis(f.col("txn_high"))) / 1_000_000
    step = f.floor(f.ln(f.greatest(waited, f.lit(SHORTEST)) / SHORTEST) * STEPS_PER_E).cast("int")
    unstored = f.when(is_committed, 0).otherwise(f.greatest(f.col("posted") - f.col("halves"), f.lit(0)))
    seconds = f.lit(int(width.total_seconds()))
    return found.groupBy(
        f.when(in_order, f.call_function("div", f.unix_seconds("decided_at"), seconds)).alias("slot"),
        f.when(in_order, is_committed).alias("committed"),
        f.when(in_order, step).alias("latency"),
        f.when(~in_order, f.struct(*columns)).alias("looked_at"),
    ).agg(f.count("*").alias("count"), f.sum(unstored).alias("unstored"))


def pairs(marked: DataFrame) -> DataFrame:
    """Count the pairs in order by group, hour and mark, from the facts about each (:func:`spark.ledger.marked`).

    ``group_id, slot, mark, count``; a pair that is not in order has ``half_id``, and no mark.
    """
    summed = marked.groupBy("half_id", "group_id").agg(
        f.try_sum("mark").alias("mark"),
        too_early().alias("too_early"),
    )
    in_order = marks.in_order(f.col("mark")) & ~f.col("too_early")
    return summed.groupBy(
        "group_id",
        slot(half_millis(f.col("half_id")), HOUR).alias("slot"),
        f.when(in_order, f.col("mark")).alias("mark"),
        f.when(~in_order, f.col("half_id")).alias("half_id"),
    ).count()


def slot(milliseconds: Column, width: timedelta) -> Column:
    """Return the number, since 1970, of the slot of ``width`` (an hour or less) that has the moment."""
    return f.call_function("div", milliseconds, f.lit(width // timedelta(milliseconds=1)))


#: The sums by address and hour: of halves, and of expected pairs by kind.
BALANCE: Final = ("posted", "committed", "rolled_back", "undecided", "unknown", "expected", *marks.ACCOUNTED)
#: The last attempt that is counted separately.
MOST_ATTEMPTS: Final = marks.MOST_ATTEMPTS + 1

_UNIX: Final = datetime(1970, 1, 1, tzinfo=UTC)

#: An address and an hour of posting.
AddressHour = tuple[int | None, datetime]


class Sums:
    """Adds up the cells of this module and the pairs that were examined."""

    def __init__(self, directory: Directory, width: timedelta) -> None:
        """``width`` is of the slots of halves."""
        self._directory = directory
        self._width = width
        self.balance: dict[AddressHour, Counter[str]] = defaultdict(Counter)
        #: address, moment -> halves committed, rolled back, undecided
        self.outcomes: dict[tuple[int | None, datetime], list[int]] = defaultdict(lambda: [0, 0, 0])
        #: attempt -> accepted, dead-lettered, waiting
        self.attempts: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])

    def add_halves(self, cell: Any) -> None:
        """Add a row of :func:`spark.sums.halves`."""
        at = moment_of_slot(cell.slot, self._width)
        sums = self.balance[cell.address_id, hour_of(at)]
        sums["posted"] += cell["count"]
        if cell.committed:
            sums["committed"] += cell["count"]
        if cell.rolled_back:
            sums["rolled_back"] += cell["count"]
        if cell.open_txn_id is not None:
            listed = cell.open_txn_id in self._directory.open_transactions
            sums["undecided" if listed else "unknown"] += cell["count"]
        outcome = 0 if cell.committed else 1 if cell.rolled_back else 2
        self.outcomes[cell.address_id, at][outcome] += cell["count"]

    def add_pairs(self, cell: Any) -> None:
        """Add a row of :func:`spark.sums.pairs` that has a mark."""
        pair = marks.unpacked(cell.mark)
        address_id = self._directory.receivers[cell.group_id].address_id
        sums = self.balance[address_id, moment_of_slot(cell.slot, HOUR)]
        sums["expected"] += cell["count"]
        sums[pair.accounted] += cell["count"]
        self._add_attempt(pair.accounted, pair.failed_attempts, pair.attempts, cell["count"])

    def add_pair(self, pair: Pair) -> None:
        """Add a pair of the period that was examined."""
        if pair.expected:
            sums = self.balance[pair.address_id, hour_of(moment_of(pair.half_id))]
            for name in ("expected", *marks.ACCOUNTED):
                sums[name] += getattr(pair, name)
        ended = next((kind for kind in ("accepted", "dead_lettered") if getattr(pair, kind)), None)
        kind = ended or ("ready" if pair.entries else "expired")
        self._add_attempt(kind, pair.failed_attempts, pair.attempts or 0, 1)

    def _add_attempt(self, kind: str, failed: int, attempts: int, count: int) -> None:
        if kind == "accepted":
            self.attempts[min(failed + 1, MOST_ATTEMPTS)][0] += count
        elif kind == "dead_lettered":
            self.attempts[min(max(failed, 1), MOST_ATTEMPTS)][1] += count
        elif kind not in ("expired", "purged"):
            self.attempts[min(attempts + 1, MOST_ATTEMPTS)][2] += count


def moment_of_slot(slot: int, width: timedelta) -> datetime:
    """Return when a slot begins (:func:`spark.sums.slot`)."""
    return datetime.fromtimestamp(slot * width.total_seconds(), UTC)


def hour_of(moment: datetime) -> datetime:
    """Return the beginning of the moment's hour."""
    return moment.replace(minute=0, second=0, microsecond=0)


def moment_of_micros(microseconds: int) -> datetime:
    """Convert microseconds since 1970 to a moment."""
    return _UNIX + timedelta(microseconds=microseconds)
