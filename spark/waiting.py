"""Messages that wait although consumers take what came after them (R16).

The store does not know who listens. That a group has consumers shows in its ops: within the last hour it has had a
message that was posted later. So a backlog is no finding: nothing passes it over. Nor is what the holder of a group has
read (it may be in a consumer's hands), what waits behind its message group, and what a link had before: when it came
back is not known.

A consumer gets what is urgent first, and of that what was posted first. So of what is not of low priority no consumer
can have picked what is passed over for an hour: a selector leaves it out, as those who wrote it want. That is a note.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from spark import ledger, marks
from spark.directory import Directory
from spark.reading import local

#: For how long a message may be available.
LONGEST: Final = timedelta(hours=1)
#: The priority of messages that say none, which the holder of a group reads by range.
_DEFAULT: Final = 4
_HELD: Final = {"group_id": pa.int32(), "through": pa.int64()}


def held(spark: SparkSession, directory: Directory) -> DataFrame:
    """``group_id, through``: up to which entry the holder of a group has read it."""
    return local(spark, _HELD, ({"group_id": key, "through": value} for key, value in directory.held.items()))


def passed_over(entry: DataFrame, deliveries: DataFrame, held_through: DataFrame, seen_at: datetime) -> DataFrame:
    """``half_id, group_id, since, yields``: the pairs that are available for longer than ``LONGEST``, and passed over
    since; ``since`` in microseconds since 1970. ``yields``: its priority is below the default, and so most of what
    comes later goes first.

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
    """Of the pairs of :func:`passed_over` those of the period, with ``txn_id, address_id`` of their halves. ``halves``
    is of :func:`spark.ledger.halves`."""
    known = halves.where("judged").select("half_id", "txn_high", "txn_low", "address_id")
    return ledger.with_txn_id(passed.join(known, "half_id")).drop("txn_high", "txn_low")
