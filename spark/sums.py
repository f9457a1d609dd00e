"""A store made small, and what it adds up to in the driver: by address and hour, and for the plots.

What is in order becomes *cells*, counts by address, time and kind, which are few whatever the store's size; everything
that the report sums up or plots comes from them. The rest keeps its id, and is looked at row by row
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

#: Sums are held against each other hour by hour.
HOUR: Final = timedelta(hours=1)
#: Times from declare to decision are told apart in steps of 2 percent, from this many seconds on.
SHORTEST: Final = 0.0001
STEPS_PER_E: Final = 50


def halves(stated: DataFrame, width: timedelta) -> DataFrame:
    """The halves of the period (:func:`spark.ledger.states`), counted by address, slot of ``width`` and outcome.

    ``address_id, slot, committed, rolled_back, open_txn_id, count``; ``open_txn_id``: not decided, and of this
    transaction.
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
    """Transactions (:func:`spark.ledger.transactions`): those in order counted by when they were decided.

    ``slot, committed, latency, count, unstored``; ``latency`` is the step of the time from declare to decision,
    ``unstored`` how many halves were posted, rolled back and never stored. Of one that is not in order ``looked_at``
    has all columns (``decided_at`` in microseconds): it was not decided once, or its halves are not those that it
    posted.
    """
    is_committed = f.col("commits") > 0
    # a moment would come to the driver in the zone of its machine, and without it
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
    """Pairs, from what is known of each (:func:`spark.ledger.marked`): those in order counted by group and hour.

    ``group_id, slot, mark, count``, and of one that is not in order ``half_id``, without a mark.
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
    """The number of the slot of ``width`` (an hour or less) in which something was made, from 1970 on."""
    return f.call_function("div", milliseconds, f.lit(width // timedelta(milliseconds=1)))


#: What is summed by address and hour: halves, and expected pairs by what became of them.
BALANCE: Final = ("posted", "committed", "rolled_back", "undecided", "unknown", "expected", *marks.ACCOUNTED)
#: The last attempt that is told apart.
MOST_ATTEMPTS: Final = marks.MOST_ATTEMPTS + 1

_UNIX: Final = datetime(1970, 1, 1, tzinfo=UTC)

#: An address and an hour of posting.
AddressHour = tuple[int | None, datetime]


class Sums:
    """Adds up cells of this module and the pairs that were looked at."""

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
        """A row of :func:`spark.sums.halves`."""
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
        """A row of :func:`spark.sums.pairs` that has a mark."""
        pair = marks.unpacked(cell.mark)
        address_id = self._directory.receivers[cell.group_id].address_id
        sums = self.balance[address_id, moment_of_slot(cell.slot, HOUR)]
        sums["expected"] += cell["count"]
        sums[pair.accounted] += cell["count"]
        self._add_attempt(pair.accounted, pair.failed_attempts, pair.attempts, cell["count"])

    def add_pair(self, pair: Pair) -> None:
        """A pair of the period that was looked at."""
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
    """When a slot begins (:func:`spark.sums.slot`)."""
    return datetime.fromtimestamp(slot * width.total_seconds(), UTC)


def hour_of(moment: datetime) -> datetime:
    """The beginning of its hour."""
    return moment.replace(minute=0, second=0, microsecond=0)


def moment_of_micros(microseconds: int) -> datetime:
    """From microseconds since 1970."""
    return _UNIX + timedelta(microseconds=microseconds)
