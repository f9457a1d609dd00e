"""Dead letters against the ops that made them (R17).

An op ``dead-letter`` and the letter that it tells of are written in one transaction of the database, and both have its
moment: what was written in one moment must be as many ops as letters. So neither has to name the other, and names of
groups that were changed or removed meanwhile do not matter. What a repair has replayed needs no letter any more.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from spark.period import BEGINNING, END, Period

#: Moments of the database are held against periods by ids, which are of the clocks of instances: so long around an
#: edge a letter may have been read without its op, or the reverse.
EDGE: Final = timedelta(hours=1)
#: How the reason of a repair's op begins (``store/repairs.py``).
_REPAIRED: Final = "reconciliation"


def unmatched(deliveries: DataFrame, halves: DataFrame, letters: Collection[int], period: Period) -> DataFrame:
    """The moments of ``period`` at which ops and letters are not as many.

    ``at`` (microseconds since 1970), ``ops, letters, half_id, group_id, letter_id``: how many of each, and one of them.
    ``deliveries`` is of :func:`spark.ledger.delivery_ops`, ``halves`` of :func:`spark.ledger.halves`, ``letters`` are
    the addresses of dead letters.
    """
    none = f.lit(None)
    buried = _not_replayed(deliveries).select(
        f.unix_micros("decided_at").alias("at"), "half_id", "group_id", none.cast("long").alias("letter_id")
    )
    posted = halves.where(f.col("address_id").isin(*letters) & f.col("txn_high").isNull()).select(
        f.unix_micros("posted_at").alias("at"),
        none.cast("long").alias("half_id"),
        none.cast("int").alias("group_id"),
        f.col("half_id").alias("letter_id"),
    )
    since, until = (f.unix_micros(f.lit(edge)) for edge in judged(period))
    return (
        buried.unionAll(posted)
        .where((f.col("at") >= since) & (f.col("at") < until))
        .groupBy("at")
        .agg(
            f.count("half_id").alias("ops"),
            f.count("letter_id").alias("letters"),
            f.min("half_id").alias("half_id"),
            f.min_by("group_id", "half_id").alias("group_id"),
            f.min("letter_id").alias("letter_id"),
        )
        .where(f.col("ops") != f.col("letters"))
    )


def _not_replayed(deliveries: DataFrame) -> DataFrame:
    """The ops ``dead-letter``, without those whose message a repair has replayed since (:mod:`store.repairs`)."""
    repaired = (f.col("decision") == "release") & f.startswith("reason", f.lit(_REPAIRED))
    since = deliveries.where(repaired).groupBy("half_id", "group_id").agg(f.max("decided_at").alias("repaired_at"))
    buried = deliveries.where(f.col("decision") == "dead-letter")
    beside = buried.join(f.broadcast(since), ["half_id", "group_id"], "left")
    return beside.where(f.col("repaired_at").isNull() | (f.col("repaired_at") <= f.col("decided_at")))


def judged(period: Period) -> tuple[datetime, datetime]:
    """The moments of the database that are judged for ``period``: not those around an edge."""
    since = period.since if period.since == BEGINNING else period.since + EDGE
    return since, period.until if period.until == END else max(since, period.until - EDGE)
