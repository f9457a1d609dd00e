"""What is known of a pair (one half in one consumer group), packed into one whole number that is summed.

A mark is made for each fact: the pair is expected; an op ends its delivery, or says that it failed; an entry waits. The
sum of a pair's marks tells whether it is *in order*: expected once, and ended or waiting once. Then, and only then, the
sum also tells how. Every other pair is looked at again with a column a fact (:func:`spark.ledger.looked_at`).

========  =============================================
bits      what is counted
========  =============================================
0 to 7    the pair is expected: a half is stored once
8 to 31   ends and entries
32 to 51  the codes of these ends and entries
52 to 62  ops that say an attempt failed
========  =============================================

A sum too large for its 63 bits is null, and its pair not in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as f

#: Ops that end a delivery, and what they count as.
ENDS: Final = {
    "commit": "accepted",
    "accept": "accepted",
    "dead-letter": "dead_lettered",
    "expire": "expired",
    "purge": "purged",
}
#: Ops that say a delivery failed and counted as an attempt; ``release`` does not count.
FAILED_ATTEMPT: Final = ("reject", "modify")
#: What an expected pair counts as, once it is neither lost nor delivered twice: its end, or where it waits.
ACCOUNTED: Final = ("accepted", "dead_lettered", "expired", "purged", "ready", "inflight", "scheduled", "failing")
#: Attempts are told apart up to here.
MOST_ATTEMPTS: Final = 16

EXPECTED: Final = 1
_ONE: Final = 1 << 8
_CODE: Final = 32
_FAILED: Final = 52
_ATTEMPTS: Final = 4  # bits of a code below the attempts of an entry
_IN_ORDER: Final = EXPECTED + _ONE
_FIRST_FIELDS: Final = (1 << _CODE) - 1


def _accounted(kind: str) -> int:
    return _ONE + (ACCOUNTED.index(kind) + 1 << _CODE)


def of_op(decision: Column) -> Column:
    """The mark of a pair by an op of this decision."""
    mark = f.when(decision.isin(*FAILED_ATTEMPT), f.lit(1 << _FAILED))
    for kind in dict.fromkeys(ENDS.values()):
        decisions = [name for name, counts_as in ENDS.items() if counts_as == kind]
        mark = mark.when(decision.isin(*decisions), f.lit(_accounted(kind)))
    return mark.otherwise(f.lit(0)).cast("long")


def of_entry(now: datetime) -> Column:
    """The mark of a pair by a row of ``entry``."""
    mark = f.lit(_accounted("ready"))
    for kind, condition in reversed(waiting(now).items()):
        mark = f.when(condition, f.lit(_accounted(kind))).otherwise(mark)
    attempts = f.least(f.col("attempts").cast("long"), f.lit(MOST_ATTEMPTS))
    return mark + f.shiftleft(attempts, _CODE + _ATTEMPTS)


def waiting(now: datetime) -> dict[str, Column]:
    """When a row of ``entry`` is failing, in flight or scheduled, the first that holds; else it is ready."""
    return {
        "failing": f.col("failed").isNotNull(),
        "inflight": f.col("lease") != 0,
        "scheduled": f.coalesce(f.col("available_at") > f.lit(now), f.lit(False)),
    }


def in_order(mark: Column) -> Column:
    """Whether a pair is in order, by the sum of its marks."""
    return f.coalesce(mark.bitwiseAND(f.lit(_FIRST_FIELDS)) == f.lit(_IN_ORDER), f.lit(False))


@dataclass(frozen=True, kw_only=True)
class InOrder:
    """A pair in order: ``accounted``, one of ``ACCOUNTED``; the attempts that failed, by ops and by its entry."""

    accounted: str
    failed_attempts: int
    attempts: int


def unpacked(mark: int) -> InOrder:
    """What the sum of the marks of a pair in order says."""
    code = mark >> _CODE & ((1 << (_FAILED - _CODE)) - 1)
    return InOrder(
        accounted=ACCOUNTED[(code & ((1 << _ATTEMPTS) - 1)) - 1],
        failed_attempts=mark >> _FAILED & ((1 << (63 - _FAILED)) - 1),
        attempts=code >> _ATTEMPTS,
    )
