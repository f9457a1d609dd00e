"""Find messages that wait too long (R16), and dead letters that do not match their ops (R17).

**Waiting.** The store does not know which groups have consumers. Ops of a group prove it: within the last hour it has
had a message that was posted later. So a backlog is no finding: no later message passes it over. Nor are entries that
the holder of a group has read (a consumer may have them), those that wait behind their message group, and those that
were delivered before: it is not known when they were returned. A consumer gets urgent messages first, and of these the
oldest first. So if a message without low priority is passed over for an hour, no consumer can have picked it: a
selector excludes it, as its author intends. That is a note.

**Dead letters.** An op ``dead-letter`` and its letter are written in one transaction of the database, and both have its
moment: the rows of one moment must have as many ops as letters. So neither has to name the other, and names of groups
that were changed or removed meanwhile do not matter. A message that a repair has replayed needs no letter any more.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from spark import ledger, marks
from spark.directory import Directory
from spark.period import BEGINNING, END, Period
from spark.reading import local

#: Moments of the database are compared with periods of ids, which are from the clocks of instances: so long around an
#: edge a letter may have been read without its op, or the reverse.
EDGE: Final = timedelta(hours=1)
#: The beginning of the reason of a repair's op (``store/repairs.py``).
_REPAIRED: Final = "reconciliation"
#: The time a message may be available and passed over.
LONGEST: Final = timedelta(hours=1)
#: The priority of messages that name none, which the holder of a group reads by range.
_DEFAULT: Final = 4
_HELD: Final = {"group_id": pa.int32(), "through": pa.int64()}


def held(spark: SparkSession, directory: Directory) -> DataFrame:
    """Create a frame of the entry up to which the holder of a group has read it: ``group_id, through``."""
    return local(spark, _HELD, ({"group_id": key, "through": value} for key, value in directory.held.items()))


def passed_over(entry: DataFrame, deliveries: DataFrame, held_through: DataFrame, seen_at: datetime) -> DataFrame:
    """Return the pairs that are available for longer than ``LONGEST``, and passed over.

    ``half_id, group_id, since, yields``; ``since`` in microseconds since 1970. ``yields``: its priority is below the
    default, so that most later messages precede it.

    ``deliveries`` is of :func:`spark.ledger.delivery_ops`.
    """
    long_ago = f.lit(seen_at - LONGEST)
    since = f.coalesce("available_at", ledger.half_moment(f.col("id")))
    free = "lease = 0 and failed is null and message_group is null and not acquired"
    by_range = (f.col("priority") == _DEFAULT) & f.col("available_at").isNull() & (f.col("id") <= f.col("through"))
    waiting = (
        entry.where(free)
        .withColumn("since", since)
        .where(f.col("since") <= long_ago)
        .join(f.broadcast(held_through), "group_id", "left")
        .where(~f.coalesce(by_range, f.lit(False)))
        .withColumn("yields", f.col("priority") < _DEFAULT)
    )
    decision = f.col("decision")
    had = decision.isin("commit", *marks.FAILED_ATTEMPT) | ((decision == "accept") & f.col("reason").isNull())
    last = (
        deliveries.where(had & (f.col("decided_at") >= long_ago)).groupBy("group_id").agg(f.max("half_id").alias("had"))
    )
    return (
        waiting.join(f.broadcast(last), "group_id")
        .where(f.col("half_id") < f.col("had"))
        .select("half_id", "group_id", f.unix_micros("since").alias("since"), "yields")
    )


def of_the_period(passed: DataFrame, halves: DataFrame) -> DataFrame:
    """Return the pairs of :func:`passed_over` that are of the period, with ``txn_id, address_id`` of their halves.

    ``halves`` is of :func:`spark.ledger.halves`."""
    known = halves.where("judged").select("half_id", "txn_high", "txn_low", "address_id")
    return ledger.with_txn_id(passed.join(known, "half_id")).drop("txn_high", "txn_low")


def unmatched(deliveries: DataFrame, halves: DataFrame, letters: Collection[int], period: Period) -> DataFrame:
    """Return the moments of ``period`` at which the numbers of ops and letters differ.

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
    """Return the ops ``dead-letter``, except those whose message a repair has replayed since (:mod:`store.repairs`)."""
    repaired = (f.col("decision") == "release") & f.startswith("reason", f.lit(_REPAIRED))
    since = deliveries.where(repaired).groupBy("half_id", "group_id").agg(f.max("decided_at").alias("repaired_at"))
    buried = deliveries.where(f.col("decision") == "dead-letter")
    beside = buried.join(f.broadcast(since), ["half_id", "group_id"], "left")
    return beside.where(f.col("repaired_at").isNull() | (f.col("repaired_at") <= f.col("decided_at")))


def judged(period: Period) -> tuple[datetime, datetime]:
    """Return the moments of the database that are judged for ``period``, without those around an edge."""
    since = period.since if period.since == BEGINNING else period.since + EDGE
    return since, period.until if period.until == END else max(since, period.until - EDGE)
