"""A store made small: what is in order becomes *cells*, counts by address, time and kind; the rest keeps its id.

Cells are few whatever the store's size, and everything that the report sums up or plots comes from them. What is not in
order is looked at row by row (:mod:`spark.checks`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark import marks
from spark.ledger import half_millis, too_early, txn_millis, uuid_text

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
