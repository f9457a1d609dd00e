"""The header's priority (part 3, section 3.2.1; rule P17), and how entries of one group are read by it.

Nearly all messages have the default priority. A group's entries of that priority are read by ranges of ids. The others
are few and are read by an index of their own: those above the default first, those below it last.
"""

from __future__ import annotations

from enum import IntEnum

#: The priority of a message that names none.
DEFAULT = 4


class Rank(IntEnum):
    """In order of delivery."""

    URGENT = 0
    NORMAL = 1
    PATIENT = 2


def rank_of(priority: int) -> Rank:
    if priority == DEFAULT:
        return Rank.NORMAL
    return Rank.URGENT if priority > DEFAULT else Rank.PATIENT


#: The SQL condition of each rank, in the form that the partial index of priorities has.
CONDITION = {
    Rank.URGENT: f"priority > {DEFAULT}",
    Rank.NORMAL: f"priority = {DEFAULT}",
    Rank.PATIENT: f"priority < {DEFAULT}",
}
