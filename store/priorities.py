"""The header's priority (part 3, section 3.2.1; rule P17), and how entries of one group are read by it.

Nearly all messages have the default. A group's entries of that priority are read in ranges of ids; the others, few, by
an index of their own: those above the default before, those below it after.
"""

from __future__ import annotations

from enum import IntEnum

#: What a message has that does not say.
DEFAULT = 4


class Rank(IntEnum):
    """In the order in which they are delivered."""

    URGENT = 0
    NORMAL = 1
    PATIENT = 2


def rank_of(priority: int) -> Rank:
    if priority == DEFAULT:
        return Rank.NORMAL
    return Rank.URGENT if priority > DEFAULT else Rank.PATIENT


#: Which entries are of a rank, as a condition of SQL that the index of priorities can prove.
CONDITION = {
    Rank.URGENT: f"priority > {DEFAULT}",
    Rank.NORMAL: f"priority = {DEFAULT}",
    Rank.PATIENT: f"priority < {DEFAULT}",
}
