"""Pack the facts about a pair (one half in one consumer group) into one whole number that is summed.

Each fact has a mark: the pair is expected; an op ends its delivery, or records a failed attempt; an entry waits. An
op ``replay``, of a group that was moved back, takes an end back: its mark is that of the end, negated. So a message
that was delivered again is in order as if its first delivery had not happened, and one that was delivered twice is not.

The sum of a pair's marks determines whether it is *in order*: expected once, and ended or waiting once. Then, and only
then, the sum also determines how. Every other pair is examined with one column a fact (:func:`spark.ledger.facts_of`).

========  ==================================================
bits      what is counted
========  ==================================================
0 to 6    the pair is expected: a half is stored once
7         its entry is leased by an instance that has ended
8 to 31   ends and entries
32 to 47  these by kind, two bits each: no two kinds together,
          less a third that was taken back, look like a fourth
48 to 52  the failed attempts of an entry
53 to 62  ops that record a failed attempt
========  ==================================================

A sum too large for its 63 bits is null, and its pair not in order.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as f

#: Ops that end a delivery, and the kind that each counts as.
ENDS: Final = {
    "commit": "accepted",
    "accept": "accepted",
    "dead-letter": "dead_lettered",
    "expire": "expired",
    "purge": "purged",
}
#: The op that takes an end back, and the kinds of ends, which its reason names.
TAKEN_BACK: Final = "replay"
TAKES_BACK: Final = ("accepted", "purged")
#: Ops of deliveries that failed and counted as an attempt; ``release`` does not count.
FAILED_ATTEMPT: Final = ("reject", "modify")
#: The kinds of an expected pair that is neither lost nor delivered twice: how it ended, or where it waits.
ACCOUNTED: Final = ("accepted", "dead_lettered", "expired", "purged", "ready", "inflight", "scheduled", "failing")
#: More attempts than these count as these.
MOST_ATTEMPTS: Final = 16

EXPECTED: Final = 1
_LEFT: Final = 1 << 7
_ONE: Final = 1 << 8
_KINDS: Final = 32
_ATTEMPTS: Final = 48
_FAILED: Final = 53
_BELOW_ATTEMPTS: Final = (1 << _ATTEMPTS) - 1


def _accounted(kind: str) -> int:
    return _ONE + (1 << _KINDS + 2 * ACCOUNTED.index(kind))


#: The lower fields of a pair in order, and its kind.
_IN_ORDER: Final = {EXPECTED + _accounted(kind): kind for kind in ACCOUNTED}


def of_op(decision: Column, reason: Column) -> Column:
    """Return the mark of an op with this decision and reason."""
    mark = f.when(decision.isin(*FAILED_ATTEMPT), f.lit(1 << _FAILED))
    for kind in dict.fromkeys(ENDS.values()):
        mark = mark.when(decision.isin(*ends_as(kind)), f.lit(_accounted(kind)))
    for kind in TAKES_BACK:
        mark = mark.when((decision == TAKEN_BACK) & (reason == kind), f.lit(-_accounted(kind)))
    return mark.otherwise(f.lit(0)).cast("long")


def ends_as(kind: str) -> list[str]:
    """Return the decisions that end a delivery with this kind."""
    return [name for name, counts_as in ENDS.items() if counts_as == kind]


def of_entry(now: datetime, instances: Collection[int]) -> Column:
    """Return the mark of a row of ``entry``; ``instances``: those that may hold entries."""
    mark = f.lit(_accounted("ready"))
    for kind, condition in reversed(waiting(now).items()):
        mark = f.when(condition, f.lit(_accounted(kind))).otherwise(mark)
    attempts = f.least(f.col("failures").cast("long"), f.lit(MOST_ATTEMPTS))
    return mark + f.shiftleft(attempts, _ATTEMPTS) + f.when(left(instances), f.lit(_LEFT)).otherwise(f.lit(0))


def left(instances: Collection[int]) -> Column:
    """Return the condition that an entry is leased by an instance other than these."""
    return (f.col("lease") > 0) & ~f.col("lease").isin(*instances)


def waiting(now: datetime) -> dict[str, Column]:
    """Return the conditions of kinds of entries; the first that holds is the kind, else the entry is ready."""
    return {
        "failing": f.col("failed").isNotNull(),
        "inflight": f.col("lease") != 0,
        "scheduled": f.coalesce(f.col("available_at") > f.lit(now), f.lit(False)),
    }


def in_order(mark: Column) -> Column:
    """Return the condition that a pair is in order, by the sum of its marks."""
    return f.coalesce(mark.bitwiseAND(f.lit(_BELOW_ATTEMPTS)).isin(*_IN_ORDER), f.lit(False))


@dataclass(frozen=True, kw_only=True)
class InOrder:
    """A pair in order: ``accounted``, one of ``ACCOUNTED``; the attempts that failed, by ops and by its entry."""

    accounted: str
    failed_attempts: int
    attempts: int


def unpacked(mark: int) -> InOrder:
    """Unpack the sum of the marks of a pair in order."""
    return InOrder(
        accounted=_IN_ORDER[mark & _BELOW_ATTEMPTS],
        failed_attempts=mark >> _FAILED,
        attempts=mark >> _ATTEMPTS & ((1 << (_FAILED - _ATTEMPTS)) - 1),
    )
