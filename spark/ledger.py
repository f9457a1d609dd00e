"""What the tables say, put side by side: by half, by transaction, by delivery, by address and hour.

The checks (:mod:`spark.checks`), the books (:mod:`spark.books`) and the plots (:mod:`spark.metrics`) read these frames
and nothing else. All are pure: ``DataFrame`` in, ``DataFrame`` out. Terms:

* a *pair* is one half in one consumer group: what a delivery is of;
* a pair is *expected* when the half is committed, its address exists, and the group had it to receive: see
  :func:`receivers`;
* *final* ops end a delivery: ``commit`` (accepted in that transaction), ``accept``, ``expire``, ``dead-letter``,
  ``purge``;
* *judged* rows belong to the period of the run (:mod:`spark.period`); others are there so that nothing is missed at its
  edges.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark.period import Period
from store.ids import EPOCH_MS, id_at, moment_of

FINAL: Final = ("commit", "accept", "expire", "dead-letter", "purge")
#: Ops that say a delivery failed and counted as an attempt; ``release`` does not count.
FAILED_ATTEMPT: Final = ("reject", "modify")

#: What an expected pair counts as, once it is neither lost nor delivered twice.
ACCOUNTED: Final = ("accepted", "dead_lettered", "expired", "purged", "ready", "inflight", "scheduled", "failing")
#: The sums of :func:`balance`.
BALANCE: Final = ("posted", "committed", "rolled_back", "undecided", "unknown", "expected", *ACCOUNTED)

#: A coordinator that knows an address may learn of its new groups this much later than PostgreSQL.
GROUP_SETTLING: Final = timedelta(seconds=10)

# the bits of a half id below its milliseconds, as store.ids makes them
_TIME_SHIFT: Final = id_at(moment_of(0) + timedelta(milliseconds=1)).bit_length() - 1


def half_moment(half_id: Column) -> Column:
    """When a half id was made, to the millisecond."""
    return f.timestamp_millis(f.shiftright(half_id, _TIME_SHIFT) + f.lit(EPOCH_MS))


def txn_moment(txn_id: Column) -> Column:
    """When a txn-id was made: the first 48 bits of a UUIDv7 are Unix milliseconds."""
    digits = f.concat(f.substring(txn_id, 1, 8), f.substring(txn_id, 10, 4))
    return f.timestamp_millis(f.conv(digits, 16, 10).cast("long"))


def decisions(op: DataFrame) -> DataFrame:
    """``txn_id, commits, rollbacks, posted, decided_at, reason``: what was decided of each transaction; two only if
    broken."""
    return (
        op.where(f.col("decision").isin("commit", "rollback"))
        .groupBy(f.col("id").alias("txn_id"))
        .agg(
            f.count_if(f.col("decision") == "commit").alias("commits"),
            f.count_if(f.col("decision") == "rollback").alias("rollbacks"),
            f.max("posted").alias("posted"),
            f.min("decided_at").alias("decided_at"),
            f.min("reason").alias("reason"),
        )
    )


def states(half: DataFrame, decided: DataFrame, txn: DataFrame, period: Period) -> DataFrame:
    """Each half with what became of its transaction.

    ``half_id, txn_id, address_id, posted_at, judged, state, decided_at, commits, rollbacks``; state is ``committed``,
    ``rolled-back``, ``undecided``, or ``unknown``: neither decided nor listed as undecided, so that no
    instance will ever decide it. A half posted outside a transaction is committed by being stored.
    """
    known = txn.select(f.col("id").alias("txn_id"), f.lit(True).alias("listed"))
    return (
        half.select("id", "txn_id", "address_id", "posted_at", f.expr(period.judged()).alias("judged"))
        .withColumnRenamed("id", "half_id")
        .join(decided.select("txn_id", "commits", "rollbacks", "decided_at"), "txn_id", "left")
        .join(f.broadcast(known), "txn_id", "left")
        .select(
            "half_id",
            "txn_id",
            "address_id",
            "posted_at",
            "judged",
            f.when(f.col("txn_id").isNull() | (f.col("commits") > 0), "committed")
            .when(f.col("rollbacks") > 0, "rolled-back")
            .when(f.col("listed"), "undecided")
            .otherwise("unknown")
            .alias("state"),
            f.when(f.col("txn_id").isNull(), f.col("posted_at")).otherwise(f.col("decided_at")).alias("decided_at"),
            f.when(f.col("txn_id").isNull(), 1).otherwise(f.coalesce("commits", f.lit(0))).alias("commits"),
            f.coalesce("rollbacks", f.lit(0)).alias("rollbacks"),
        )
    )


def receivers(address: DataFrame, consumer_group: DataFrame) -> DataFrame:
    """``address_id, group_id, receives_from``: from which moment a group must get what is posted to its address.

    A group made with its address gets everything. One added later gets what is posted once every coordinator
    knows of it (``GROUP_SETTLING``). Groups and addresses that are gone owe nothing.
    """
    made = address.select(f.col("id").alias("address_id"), f.col("created_at").alias("address_created_at"))
    settled = f.col("created_at") + f.expr(f"interval {int(GROUP_SETTLING.total_seconds())} seconds")
    return consumer_group.join(made, "address_id").select(
        "address_id",
        f.col("id").alias("group_id"),
        f.when(f.col("created_at") <= f.col("address_created_at"), f.lit(None))
        .otherwise(settled)
        .alias("receives_from"),
    )


def delivery_ops(op: DataFrame) -> DataFrame:
    """``op_id, decision, txn_id, reason, decided_at, half_id, group_id``: each delivery that an op covers."""
    return (
        op.where(f.col("half_ids").isNotNull())
        .select(
            f.col("id").alias("op_id"),
            "decision",
            "txn_id",
            "reason",
            "decided_at",
            f.explode(f.arrays_zip("half_ids", "group_ids")).alias("delivery"),
        )
        .select(
            "op_id",
            "decision",
            "txn_id",
            "reason",
            "decided_at",
            f.col("delivery.half_ids").alias("half_id"),
            f.col("delivery.group_ids").alias("group_id"),
        )
    )


_PAIR_COUNTS: Final = (
    "expected",
    "ops",
    "finals",
    "accepted",
    "dead_lettered",
    "expired",
    "purged",
    "failed_attempts",
    "entries",
    "ready",
    "inflight",
    "scheduled",
    "failing",
)


def pairs(
    stated: DataFrame, receiving: DataFrame, deliveries: DataFrame, entry: DataFrame, period: Period, now: datetime
) -> DataFrame:
    """One row a pair that is expected, has an entry, or has an op; with counts of each, and its half's state.

    ``half_id, group_id, txn_id, address_id, state, judged, op_id, attempts`` and the counts: expected, ops, finals,
    accepted, dead_lettered, expired, purged, failed_attempts, entries, ready, inflight, scheduled, failing. ``state``
    is null when the half is nowhere. One shuffle by half, whatever the number of groups.
    """
    marks = reduce(
        lambda left, right: left.unionByName(right, allowMissingColumns=True),
        (_expected(stated, receiving), _ops_of_pairs(deliveries), _entries_of_pairs(entry, now)),
    )
    low, high = id_at(period.since), id_at(period.until)
    return (
        marks.repartition("half_id")
        .groupBy("half_id", "group_id")
        .agg(
            *(f.coalesce(f.sum(name), f.lit(0)).cast("int").alias(name) for name in _PAIR_COUNTS),
            f.max("op_id").alias("op_id"),
            f.max("attempts").alias("attempts"),
        )
        .join(
            stated.select("half_id", "txn_id", "address_id", "state", f.col("judged").alias("half_judged")),
            "half_id",
            "left",
        )
        .withColumn(
            "judged",
            f.coalesce("half_judged", (f.col("half_id") >= low) & (f.col("half_id") < high)),
        )
        .drop("half_judged")
    )


def _expected(stated: DataFrame, receiving: DataFrame) -> DataFrame:
    return (
        stated.where(f.col("judged") & (f.col("state") == "committed"))
        .join(f.broadcast(receiving), "address_id")
        .where(f.col("receives_from").isNull() | (f.col("posted_at") >= f.col("receives_from")))
        .select("half_id", "group_id", f.lit(1).alias("expected"))
    )


def _ops_of_pairs(deliveries: DataFrame) -> DataFrame:
    decision = f.col("decision")
    return deliveries.select(
        "half_id",
        "group_id",
        f.lit(1).alias("ops"),
        decision.isin(*FINAL).cast("int").alias("finals"),
        decision.isin("commit", "accept").cast("int").alias("accepted"),
        (decision == "dead-letter").cast("int").alias("dead_lettered"),
        (decision == "expire").cast("int").alias("expired"),
        (decision == "purge").cast("int").alias("purged"),
        decision.isin(*FAILED_ATTEMPT).cast("int").alias("failed_attempts"),
        "op_id",
    )


def _entries_of_pairs(entry: DataFrame, now: datetime) -> DataFrame:
    failing = f.col("failed").isNotNull()
    inflight = ~failing & (f.col("lease") != 0)
    scheduled = ~failing & ~inflight & f.coalesce(f.col("available_at") > f.lit(now), f.lit(False))
    return entry.select(
        "half_id",
        "group_id",
        f.lit(1).alias("entries"),
        failing.cast("int").alias("failing"),
        inflight.cast("int").alias("inflight"),
        scheduled.cast("int").alias("scheduled"),
        (~failing & ~inflight & ~scheduled).cast("int").alias("ready"),
        f.col("attempts").cast("int").alias("attempts"),
    )


def transactions(stated: DataFrame, decided: DataFrame, txn: DataFrame, period: Period) -> DataFrame:
    """The transactions declared in the period, each with what every table says of it.

    ``txn_id, declared_at, commits, rollbacks, posted, decided_at, reason, halves, address_id`` (of one of its halves)
    ``, listed, producer_group, timeout_at, next_check_at, checks``.
    """
    of_halves = (
        stated.where(f.col("txn_id").isNotNull() & f.col("judged"))
        .groupBy("txn_id")
        .agg(f.count("*").alias("halves"), f.min("address_id").alias("address_id"))
    )
    listed = txn.select(
        f.col("id").alias("txn_id"),
        f.lit(True).alias("listed"),
        "producer_group",
        "timeout_at",
        "next_check_at",
        f.col("checks").cast("int").alias("checks"),
    ).where(period.declared("txn_id"))
    return (
        decided.where(period.declared("txn_id"))
        .join(of_halves, "txn_id", "full")
        .join(listed, "txn_id", "full")
        .select(
            "txn_id",
            txn_moment(f.col("txn_id")).alias("declared_at"),
            f.coalesce("commits", f.lit(0)).alias("commits"),
            f.coalesce("rollbacks", f.lit(0)).alias("rollbacks"),
            "posted",
            "decided_at",
            "reason",
            f.coalesce("halves", f.lit(0)).alias("halves"),
            "address_id",
            f.coalesce("listed", f.lit(False)).alias("listed"),
            "producer_group",
            "timeout_at",
            "next_check_at",
            "checks",
        )
    )


def balance(stated: DataFrame, paired: DataFrame) -> DataFrame:
    """R19's two sums per address and hour of posting.

    ``address_id, hour, posted, committed, rolled_back, undecided, unknown`` count halves; ``expected, accepted,
    dead_lettered, expired, purged, ready, inflight, scheduled, failing`` count expected pairs.
    """
    of_halves = stated.where("judged").select(
        "half_id",
        "address_id",
        f.lit(1).alias("posted"),
        (f.col("commits") > 0).cast("int").alias("committed"),
        (f.col("rollbacks") > 0).cast("int").alias("rolled_back"),
        (f.col("state") == "undecided").cast("int").alias("undecided"),
        (f.col("state") == "unknown").cast("int").alias("unknown"),
    )
    expected = f.col("judged") & (f.col("expected") > 0)
    of_pairs = paired.where(expected).select("half_id", "address_id", "expected", *ACCOUNTED)
    return (
        of_halves.unionByName(of_pairs, allowMissingColumns=True)
        .groupBy("address_id", f.date_trunc("hour", half_moment(f.col("half_id"))).alias("hour"))
        .agg(*(f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in BALANCE))
    )


def names(present: DataFrame, removed: DataFrame) -> DataFrame:
    """``id, name`` of addresses, or of groups: those that are there, and those that were."""
    return present.select("id", "name").unionByName(removed.select("id", "name"))


def named(frame: DataFrame, address: DataFrame, consumer_group: DataFrame | None = None) -> DataFrame:
    """``frame`` with ``address`` (name, by ``address_id``) and, where groups are given, ``consumer_group`` (by
    ``group_id``).

    An address that is not even among those removed is ``null``. A queue's default group has the empty name; the frame
    shows it as the store does.
    """
    names = address.select(f.col("id").alias("address_id"), f.col("name").alias("address"))
    result = frame.join(f.broadcast(names), "address_id", "left")
    if consumer_group is not None:
        groups = consumer_group.select(f.col("id").alias("group_id"), f.col("name").alias("consumer_group"))
        result = result.join(f.broadcast(groups), "group_id", "left")
    return result
