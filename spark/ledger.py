"""Join the store's tables into frames: by half, by transaction, by delivery.

The sums (:mod:`spark.sums`) and the books (:mod:`spark.books`) read these frames. All functions are pure:
``DataFrame`` in, ``DataFrame`` out. Terms:

* a *pair* is one half in one consumer group, which a delivery is about;
* a pair is *expected* when the half is committed, its address exists, and the group had to receive it
  (:class:`spark.directory.Receiver`);
* *final* ops end a delivery: ``commit`` (accepted in that transaction), ``accept``, ``expire``, ``dead-letter``,
  ``purge``; an op ``replay`` takes one back, and counts as -1 of it;
* *judged* rows belong to the period of the run (:mod:`spark.period`); others are read so that nothing is missed at its
  edges.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Final
from uuid import UUID

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark import marks
from spark.period import Period
from store.ids import EPOCH_MS, id_at, moment_of

# the number of bits of a half id below its milliseconds (store.ids)
TIME_SHIFT: Final = id_at(moment_of(0) + timedelta(milliseconds=1)).bit_length() - 1


#: An op may be this much older than the commit of its half: PostgreSQL's clock may be set.
CLOCK_STEP: Final = timedelta(minutes=1)


def half_millis(half_id: Column) -> Column:
    """Return when a half id was generated, in Unix milliseconds."""
    return f.shiftright(half_id, TIME_SHIFT) + f.lit(EPOCH_MS)


def half_moment(half_id: Column) -> Column:
    """Return when a half id was generated, as a timestamp."""
    return f.timestamp_millis(half_millis(half_id))


def txn_millis(high: Column) -> Column:
    """Return when a txn-id was generated, by its first 64 bits: the first 48 of a UUIDv7 are Unix milliseconds."""
    return f.shiftrightunsigned(high, 16)


def uuid_text(high: Column, low: Column) -> Column:
    """Return a UUID as text in the store's form, from its first and its last 64 bits; null for null."""
    digits = f.lower(f.concat(*(f.lpad(f.hex(word), 16, "0") for word in (high, low))))
    return f.regexp_replace(digits, "(.{8})(.{4})(.{4})(.{4})", "$1-$2-$3-$4-")


def uuid_of(high: int, low: int) -> str:
    """Return a UUID as text from its first and last 64 bits, in the driver."""
    return str(UUID(bytes=struct.pack(">qq", high, low)))


def words_of(text: str) -> tuple[int, int]:
    """Return the first and the last 64 bits of a UUID, in the driver."""
    high, low = struct.unpack(">qq", UUID(text).bytes)
    return high, low


#: The columns of a row that :func:`named` returns.
NAMED: Final = {"txn_id": pa.string(), "txn_high": pa.int64(), "txn_low": pa.int64()}


def named(txn_id: str) -> dict[str, str | int]:
    """Return a transaction's id as text and as two numbers, as a row."""
    high, low = words_of(txn_id)
    return {"txn_id": txn_id, "txn_high": high, "txn_low": low}


def uuid_words(text: Column) -> tuple[Column, Column]:
    """Return the first and the last 64 bits of a UUID's text, as :mod:`spark.source` does."""
    digits = f.replace(text, f.lit("-"), f.lit(""))
    high, low = (f.conv(f.substring(digits, at, 16), 16, -10).cast("long") for at in (1, 17))
    return high, low


def declared_at(txn_id: str) -> datetime:
    """Return when a txn-id was generated, in the driver."""
    return datetime.fromtimestamp(int(txn_id[:8] + txn_id[9:13], 16) / 1000, UTC)


_OF_A_HALF: Final = ("half_id", "txn_high", "txn_low", "address_id", "posted_at", "judged")


def halves(half: DataFrame, period: Period, *also: str) -> DataFrame:
    """Return each half that was read; ``also`` are further columns.

    ``half_id, txn_high, txn_low, address_id, posted_at, judged``.
    """
    named = half.select(
        f.col("id").alias("half_id"),
        f.col("txn_id_high").alias("txn_high"),
        f.col("txn_id_low").alias("txn_low"),
        "address_id",
        "posted_at",
        *also,
    )
    return named.withColumn("judged", f.expr(period.judged("half_id")))


def with_txn_id(frame: DataFrame) -> DataFrame:
    """Add ``txn_id``, the text of the transaction that ``frame`` has as numbers."""
    return frame.withColumn("txn_id", uuid_text(f.col("txn_high"), f.col("txn_low")))


def decided(op: DataFrame) -> DataFrame:
    """Return the ops that decide a transaction, whose id is theirs."""
    # in the archive, deliveries that a commit covers have ops of their own (spark/archived.py)
    return op.where(f.col("decision").isin("commit", "rollback") & f.col("posted").isNotNull())


def decisions(op: DataFrame) -> DataFrame:
    """Return the decision of each transaction; it has two only if the store is broken.

    ``txn_high, txn_low, commits, rollbacks, posted, decided_at``.
    """
    return (
        decided(op)
        .groupBy(f.col("id_high").alias("txn_high"), f.col("id_low").alias("txn_low"))
        .agg(
            f.count_if(f.col("decision") == "commit").cast("int").alias("commits"),
            f.count_if(f.col("decision") == "rollback").cast("int").alias("rollbacks"),
            f.max("posted").alias("posted"),
            f.min("decided_at").alias("decided_at"),
        )
    )


def states(halves: DataFrame, decided: DataFrame, period: Period) -> DataFrame:
    """Return each half (:func:`halves`) with the state of its transaction, and each decided transaction without a half.

    The latter (of :func:`decisions`) have a null ``half_id``.

    ``half_id, txn_high, txn_low, address_id, posted_at, judged, state, commits, rollbacks, posted, decided_at``; state
    is ``committed``, ``rolled-back`` or ``open``: not decided. A half posted outside a transaction is committed by
    being stored. Further columns of ``halves`` stay.
    """
    also = [name for name in halves.columns if name not in _OF_A_HALF]
    # halves without a transaction have a key of their own, or all of them would meet in one task
    keyed = halves.select(
        "half_id",
        f.col("txn_high").isNull().alias("plain"),
        "address_id",
        "posted_at",
        f.coalesce("txn_high", f.lit(0)).alias("high"),
        f.coalesce("txn_low", "half_id").alias("low"),
        *also,
    )
    by_key = decided.withColumnsRenamed({"txn_high": "high", "txn_low": "low"}).withColumn("plain", f.lit(False))
    plain = f.col("plain")
    return (
        keyed.join(by_key.hint("shuffle_hash"), ["plain", "high", "low"], "full")
        .select(
            "half_id",
            f.when(~plain, f.col("high")).alias("txn_high"),
            f.when(~plain, f.col("low")).alias("txn_low"),
            "address_id",
            "posted_at",
            f.when(plain, 1).otherwise(f.coalesce("commits", f.lit(0))).alias("commits"),
            f.coalesce("rollbacks", f.lit(0)).alias("rollbacks"),
            "posted",
            f.when(plain, f.col("posted_at")).otherwise(f.col("decided_at")).alias("decided_at"),
            *also,
        )
        .withColumns(
            {
                "judged": f.expr(period.judged("half_id")),
                "state": f.when(f.col("commits") > 0, "committed")
                .when(f.col("rollbacks") > 0, "rolled-back")
                .otherwise("open"),
            }
        )
    )


def transactions(stated: DataFrame) -> DataFrame:
    """Return the transactions declared in the period that have a decision or a half.

    ``txn_high, txn_low, commits, rollbacks, posted, decided_at, halves, address_id`` (of one of its halves).
    """
    return (
        stated.where(f.col("judged") & f.col("txn_high").isNotNull())
        .groupBy("txn_high", "txn_low")
        .agg(
            f.max("commits").alias("commits"),
            f.max("rollbacks").alias("rollbacks"),
            f.max("posted").alias("posted"),
            f.max("decided_at").alias("decided_at"),
            f.count("half_id").alias("halves"),
            f.min("address_id").alias("address_id"),
        )
    )


def delivery_ops(op: DataFrame) -> DataFrame:
    """Return each delivery that an op covers: ``op_id, decision, reason, decided_at, half_id, group_id``.

    An id that is null in the store is 0, which no half and no group has: such an op names nothing that exists. It
    belongs to no bounded period.
    """
    return (
        op.where(f.col("half_ids").isNotNull())
        .select(
            uuid_text(f.col("id_high"), f.col("id_low")).alias("op_id"),
            "decision",
            "reason",
            "decided_at",
            f.explode(f.arrays_zip("half_ids", "group_ids")).alias("delivery"),
        )
        .select(
            "op_id",
            "decision",
            "reason",
            "decided_at",
            f.coalesce("delivery.half_ids", f.lit(0)).alias("half_id"),
            f.coalesce("delivery.group_ids", f.lit(0)).alias("group_id"),
        )
    )


def of_the_period(rows: DataFrame, period: Period, late: DataFrame | None) -> DataFrame:
    """Return the ``rows`` whose ``half_id`` may be judged: posted in the period, or in ``late``.

    ``late``: the result of :func:`posted_elsewhere`; None if the period is all time."""
    if late is None:
        return rows
    known = f.broadcast(late.select("half_id", f.lit(True).alias("is_late")))
    return (
        rows.join(known, "half_id", "left").where(f.expr(period.posted("half_id")) | f.col("is_late")).drop("is_late")
    )


def posted_elsewhere(halves: DataFrame, period: Period) -> DataFrame:
    """Return ``half_id`` of judged halves that were posted outside the period: their transaction was declared in it."""
    return halves.where(f.col("judged") & ~f.expr(period.posted("half_id"))).select("half_id")


def is_received() -> Column:
    """Return the condition that a half, joined with a group (:func:`spark.reading.receivers`), is due to the group."""
    return f.col("receives_from").isNull() | (f.col("posted_at") >= f.col("receives_from"))


def expected(stated: DataFrame, receivers: DataFrame) -> DataFrame:
    """Return the expected pairs of the period, and when they were committed, in microseconds.

    ``half_id, group_id, sent_at``.
    """
    return (
        stated.where(f.col("judged") & (f.col("state") == "committed") & f.col("half_id").isNotNull())
        .join(f.broadcast(receivers), "address_id")
        .where(is_received())
        .select("half_id", "group_id", f.unix_micros("decided_at").alias("sent_at"))
    )


def marked(expected_pairs: DataFrame, met: DataFrame) -> DataFrame:
    """Return each fact about a pair (:mod:`spark.marks`): those of :func:`met`, and that it is expected.

    ``half_id, group_id, mark, at``; ``at`` of the latter: when the half was committed, in microseconds, negated."""
    mark = f.lit(marks.EXPECTED).cast("long").alias("mark")
    return expected_pairs.select("half_id", "group_id", mark, (-f.col("sent_at")).alias("at")).unionAll(met)


def met(deliveries: DataFrame, entry: DataFrame, now: datetime, instances: Collection[int]) -> DataFrame:
    """Return the facts about pairs in ops and entries: ``half_id, group_id, mark, at``.

    ``at``: when the op was decided, in microseconds; null for entries."""
    pair, decided_at = ("half_id", "group_id"), f.unix_micros("decided_at")
    return deliveries.select(
        *pair, marks.of_op(f.col("decision"), f.col("reason")).alias("mark"), decided_at.alias("at")
    ).unionAll(entry.select(*pair, marks.of_entry(now, instances).alias("mark"), f.lit(None).cast("long").alias("at")))


def too_early() -> Column:
    """Return an aggregate of rows of :func:`marked`: whether an op is older than the last commit.

    It must be older by more than ``CLOCK_STEP``."""
    at, step = f.col("at"), CLOCK_STEP // timedelta(microseconds=1)
    # `at` is negative for a commit, and positive for an op
    first_op, sent = f.min(f.when(at > 0, at)), f.max(f.when(at < 0, -at))
    return f.coalesce(first_op < sent - step, f.lit(False))


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A pair that is checked, with the facts of all tables.

    ``state`` is None if the half does not exist; ``op_id`` is of one of its ops; final ops that were taken back do not
    count. ``left``: the ended instance that leases its entry, or 0. ``first_op_at`` and ``sent_at``, when it was
    committed, are microseconds since 1970."""

    half_id: int
    group_id: int
    txn_id: str | None
    address_id: int | None
    state: str | None
    judged: bool
    op_id: str | None
    attempts: int | None
    expected: int
    ops: int
    finals: int
    accepted: int
    dead_lettered: int
    expired: int
    purged: int
    failed_attempts: int
    entries: int
    ready: int
    inflight: int
    scheduled: int
    failing: int
    left: int
    first_op_at: int | None
    sent_at: int | None


_COUNTS: Final = ("expected", "ops", "finals", "failed_attempts", "entries", *marks.ACCOUNTED)


def facts_of(
    pairs: DataFrame,
    *,
    stated: DataFrame,
    receivers: DataFrame,
    deliveries: DataFrame,
    entry: DataFrame,
    period: Period,
    now: datetime,
    instances: Collection[int],
) -> DataFrame:
    """Return all columns of :class:`Pair` for ``pairs`` (``half_id, group_id``)."""
    facts = (
        expected(stated, receivers).withColumn("expected", f.lit(1)),
        _facts_of_ops(deliveries),
        _facts_of_entries(entry, now, instances),
    )
    counted = (
        reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), facts)
        .join(pairs, ["half_id", "group_id"], "left_semi")
        .groupBy("half_id", "group_id")
        .agg(
            *(f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in _COUNTS),
            f.max("op_id").alias("op_id"),
            f.max("attempts").alias("attempts"),
            f.coalesce(f.max("left"), f.lit(0)).alias("left"),
            f.min("first_op_at").alias("first_op_at"),
            f.max("sent_at").alias("sent_at"),
        )
    )
    known = (
        with_txn_id(stated)
        .select("half_id", "txn_id", "address_id", "state", "judged")
        .join(pairs, "half_id", "left_semi")
    )
    return counted.join(known, "half_id", "left").withColumn(
        "judged", f.coalesce("judged", f.expr(period.posted("half_id")))
    )


def _facts_of_ops(deliveries: DataFrame) -> DataFrame:
    decision = f.col("decision")
    back = decision == marks.TAKEN_BACK
    kinds = {
        kind: decision.isin(*marks.ends_as(kind)).cast("int")
        - (back & f.coalesce(f.col("reason") == kind, f.lit(False))).cast("int")
        for kind in dict.fromkeys(marks.ENDS.values())
    }
    return deliveries.select(
        "half_id",
        "group_id",
        "op_id",
        f.unix_micros("decided_at").alias("first_op_at"),
        f.lit(1).alias("ops"),
        (decision.isin(*marks.ENDS).cast("int") - back.cast("int")).alias("finals"),
        decision.isin(*marks.FAILED_ATTEMPT).cast("int").alias("failed_attempts"),
        *(counts.alias(kind) for kind, counts in kinds.items()),
    )


def _facts_of_entries(entry: DataFrame, now: datetime, instances: Collection[int]) -> DataFrame:
    waits = f.lit("ready")
    for kind, condition in reversed(marks.waiting(now).items()):
        waits = f.when(condition, f.lit(kind)).otherwise(waits)
    return entry.select(
        "half_id",
        "group_id",
        f.lit(1).alias("entries"),
        f.col("failures").cast("int").alias("attempts"),
        f.when(marks.left(instances), f.col("lease")).alias("left"),
        *((waits == kind).cast("int").alias(kind) for kind in ("ready", *marks.waiting(now))),
    )
