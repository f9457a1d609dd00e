"""The checks: each a pure function from a frame of :mod:`spark.ledger` to findings (:mod:`spark.finding`).

``seen_at`` is the moment of the snapshot, aware. Nothing here reads a clock or a table. Rule numbers are those of
docs/explanation/reconciliation.md.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark.finding import DELIVERY, TRANSACTION, finding
from spark.ledger import ACCOUNTED

#: How late a check, or the decision of a transaction past its timeout, may be before it counts as overdue.
OVERDUE_AFTER: Final = timedelta(minutes=2)
#: For how long the store may still have entries of a group that was removed.
SWEPT_AFTER: Final = timedelta(hours=1)


def _resolve(txn_id: Column, decision: str, reason: str) -> Column:
    return f.format_string(f'coordinator resolve %s --{decision} --reason "{reason}"', txn_id)


def _age(moment: Column, seen_at: datetime) -> Column:
    """How long before ``seen_at``, in the unit that reads best."""
    seconds = f.lit(seen_at.timestamp()) - f.unix_micros(moment) / 1_000_000
    return (
        f.when(seconds < 120, f.format_string("%.0f s", seconds))
        .when(seconds < 7200, f.format_string("%.0f min", seconds / 60))
        .when(seconds < 172_800, f.format_string("%.1f h", seconds / 3600))
        .otherwise(f.format_string("%.1f days", seconds / 86_400))
    )


def overdue(transactions: DataFrame, seen_at: datetime) -> DataFrame:
    """R10: undecided transactions past their time.

    Checkable ones whose check, or whose decision after the timeout with no check sent, is more than ``OVERDUE_AFTER``
    late; and those with stored halves that are neither decided nor listed as undecided, at once: no coordinator knows
    of them.
    """
    late = f.lit(seen_at - OVERDUE_AFTER)
    undecided = transactions.where((f.col("commits") == 0) & (f.col("rollbacks") == 0))
    due = f.coalesce("next_check_at", f.when(f.col("checks") == 0, f.col("timeout_at")))
    asked = undecided.where(f.col("listed") & f.col("producer_group").isNotNull() & (due < late))
    forgotten = undecided.where(~f.col("listed"))
    repair = _resolve(f.col("txn_id"), "rollback", "overdue")
    return finding(
        asked,
        kind="overdue",
        severity="warning",
        seen_at=seen_at,
        about=TRANSACTION,
        detail=f.format_string(
            "declared %s ago by producer group %s, %d checks sent, due %s ago, still undecided",
            _age(f.col("declared_at"), seen_at),
            f.col("producer_group"),
            f.col("checks"),
            _age(due, seen_at),
        ),
        suggested_repair=f.concat(f.lit("ask the producer, then "), repair, f.lit(" (or --commit)")),
    ).unionByName(
        finding(
            forgotten,
            kind="overdue",
            severity="error",
            seen_at=seen_at,
            about=TRANSACTION,
            detail=f.format_string(
                "declared %s ago; %d halves are stored, there is no op, and it is not listed as undecided:"
                " no instance will decide it",
                _age(f.col("declared_at"), seen_at),
                f.col("halves"),
            ),
            suggested_repair=f.concat(f.lit("ask the producer, then "), repair, f.lit(" (or --commit)")),
        )
    )


def orphan_op(pairs: DataFrame, transactions: DataFrame, seen_at: datetime) -> DataFrame:
    """R11: ops whose half is nowhere: of a delivery, or a commit with fewer halves in the store than it says it
    posted."""
    restore = "restore the half from a back-up or the archive; nothing can be delivered without it"
    of_delivery = finding(
        pairs.where(f.col("judged") & f.col("state").isNull() & (f.col("ops") > 0)),
        kind="orphan-op",
        severity="error",
        seen_at=seen_at,
        about=("half_id", "consumer_group"),
        detail=f.format_string(
            "%d ops name half %d, which is nowhere; one is %s", f.col("ops"), f.col("half_id"), f.col("op_id")
        ),
        suggested_repair=restore,
    )
    of_commit = finding(
        transactions.where((f.col("commits") > 0) & (f.col("posted") > f.col("halves"))),
        kind="orphan-op",
        severity="error",
        seen_at=seen_at,
        about=TRANSACTION,
        detail=f.format_string(
            "its commit says %d halves were posted, the store has %d", f.col("posted"), f.col("halves")
        ),
        suggested_repair=restore,
    )
    return of_delivery.unionByName(of_commit)


def double_decision(transactions: DataFrame, seen_at: datetime) -> DataFrame:
    """R12: transactions with more than one decision. The database refuses it; a hand or a restored archive may have
    done it."""
    return finding(
        transactions.where(f.col("commits") + f.col("rollbacks") > 1),
        kind="double-decision",
        severity="error",
        seen_at=seen_at,
        about=TRANSACTION,
        detail=f.format_string(
            "decided %d times: %d commits, %d rollbacks",
            f.col("commits") + f.col("rollbacks"),
            f.col("commits"),
            f.col("rollbacks"),
        ),
        suggested_repair="keep the op that was first (see decided_at); find out what wrote the other",
    )


def lost_delivery(pairs: DataFrame, seen_at: datetime) -> DataFrame:
    """R13: committed, its group had it to receive, and there is neither an entry nor a final op."""
    return finding(
        pairs.where(f.col("judged") & (f.col("expected") > 0) & (f.col("entries") == 0) & (f.col("finals") == 0)),
        kind="lost-delivery",
        severity="error",
        seen_at=seen_at,
        about=DELIVERY,
        detail=f.format_string(
            "committed, but its group has neither an entry nor a final op (%d other ops)", f.col("ops")
        ),
        suggested_repair="give the group its entry again, so that the message is delivered",
    )


def orphan_entry(pairs: DataFrame, consumer_group: DataFrame, removed_group: DataFrame, seen_at: datetime) -> DataFrame:
    """R13: an entry of a group that is gone: no consumer can get it, and it should be swept after ``SWEPT_AFTER``."""
    just_removed = removed_group.where(f.col("removed_at") > f.lit(seen_at - SWEPT_AFTER))
    owned = consumer_group.select(f.col("id").alias("group_id")).unionByName(
        just_removed.select(f.col("id").alias("group_id"))
    )
    return finding(
        pairs.where(f.col("judged") & (f.col("entries") > 0)).join(f.broadcast(owned), "group_id", "left_anti"),
        kind="orphan-entry",
        severity="error",
        seen_at=seen_at,
        about=DELIVERY,
        detail=f.format_string("its consumer group (number %d) is gone, and its entry is still there", "group_id"),
        suggested_repair="see that the service runs: its maintenance drops such entries, with an op",
    )


def phantom_delivery(pairs: DataFrame, seen_at: datetime) -> DataFrame:
    """R14: an entry, or an op of a delivery, of a half that is not committed; or an entry whose half is nowhere."""
    not_committed = f.col("state").isin("rolled-back", "undecided", "unknown") & (f.col("entries") + f.col("ops") > 0)
    no_half = f.col("state").isNull() & (f.col("entries") > 0)
    return finding(
        pairs.where(f.col("judged") & (not_committed | no_half)),
        kind="phantom-delivery",
        severity="error",
        seen_at=seen_at,
        about=DELIVERY,
        detail=f.format_string(
            "its half is %s, yet there are %d entries and %d ops of deliveries",
            f.coalesce("state", f.lit("nowhere")),
            f.col("entries"),
            f.col("ops"),
        ),
        suggested_repair=f.when(
            f.col("ops") > 0, "tell the owner of the group: it was given a message that was never sent"
        ).otherwise("remove the entry before it is delivered"),
    )


def double_delivery(pairs: DataFrame, seen_at: datetime) -> DataFrame:
    """R15: two final ops of one half in one group; or one, and an entry that will deliver it again."""
    again = (f.col("finals") > 0) & (f.col("entries") > 0)
    return finding(
        pairs.where(f.col("judged") & f.col("state").isNotNull() & ((f.col("finals") > 1) | again)),
        kind="double-delivery",
        severity="error",
        seen_at=seen_at,
        about=DELIVERY,
        detail=f.format_string(
            "%d final ops (%d accepted, %d dead-lettered, %d expired, %d purged; one is %s) and %d entries",
            f.col("finals"),
            f.col("accepted"),
            f.col("dead_lettered"),
            f.col("expired"),
            f.col("purged"),
            f.col("op_id"),
            f.col("entries"),
        ),
        suggested_repair=f.when(f.col("entries") > 0, "remove the entry before it is delivered again").otherwise(
            "tell the owner of the group: it may have worked on this message twice"
        ),
    )


def unbalanced(balance: DataFrame, transactions: DataFrame, seen_at: datetime) -> DataFrame:
    """R19: per address and hour, posted = committed + rolled back + undecided, and expected deliveries = those
    accounted for; and, per transaction, no more halves than its commit says it posted."""
    decided = f.col("committed") + f.col("rolled_back") + f.col("undecided")
    delivered = sum((f.col(part) for part in ACCOUNTED[1:]), f.col(ACCOUNTED[0]))
    hour = f.date_format("hour", "yyyy-MM-dd HH:00")
    look = "look at the other findings of this address and hour; where there are none, something left no trace"
    # an address that is gone took its groups and entries along: only its halves can be counted
    of_halves = finding(
        balance.where(f.col("posted") != decided),
        kind="unbalanced",
        severity="error",
        seen_at=seen_at,
        about=("address",),
        detail=f.format_string(
            "%s UTC: posted %d, but %d committed + %d rolled back + %d undecided",
            hour,
            *(f.col(name) for name in ("posted", "committed", "rolled_back", "undecided")),
        ),
        suggested_repair=look,
    )
    of_deliveries = finding(
        balance.where(f.col("expected") != delivered),
        kind="unbalanced",
        severity="error",
        seen_at=seen_at,
        about=("address",),
        detail=f.format_string(
            "%s UTC: committed x groups = %d, accounted for "
            + " + ".join(f"%d {part.replace('_', '-')}" for part in ACCOUNTED),
            hour,
            f.col("expected"),
            *(f.col(part) for part in ACCOUNTED),
        ),
        suggested_repair=look,
    )
    of_commits = finding(
        transactions.where((f.col("commits") > 0) & (f.col("posted") < f.col("halves"))),
        kind="unbalanced",
        severity="error",
        seen_at=seen_at,
        about=TRANSACTION,
        detail=f.format_string(
            "its commit says %d halves were posted, the store has %d", f.col("posted"), f.col("halves")
        ),
        suggested_repair="find out what wrote the other halves; they were delivered with the rest",
    )
    return of_halves.unionByName(of_deliveries).unionByName(of_commits)
