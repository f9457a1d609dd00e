"""On which terms a message is delivered."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

# The header's priority (part 3, section 3.2.1; rule P17), and how entries of one group are read by it.
#
# Nearly all messages have the default priority. A group's entries of that priority are read by ranges of ids. The
# others are few and are read by an index of their own: those above the default first, those below it last.

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

_HIGHEST = 9


class Steps(NamedTuple):
    """In which steps the entries of a rank are looked for, each above an id of its own; in order of delivery.

    ``first``: the SQL condition of the first step; None: the single priorities are all. ``single``: the others.
    """

    first: str | None
    single: tuple[int, ...]

    @property
    def number(self) -> int:
        return (self.first is not None) + len(self.single)


STEPS = {
    Rank.URGENT: Steps(f"priority > {_HIGHEST}", tuple(range(_HIGHEST, DEFAULT, -1))),
    Rank.NORMAL: Steps(CONDITION[Rank.NORMAL], ()),
    Rank.PATIENT: Steps(None, tuple(range(DEFAULT - 1, -1, -1))),
}


def step_of(priority: int) -> int:
    """The place of a priority's step in its rank."""
    if priority > DEFAULT:
        return max(0, _HIGHEST + 1 - priority)
    return 0 if priority == DEFAULT else DEFAULT - 1 - priority


def shares_step(priority: int) -> bool:
    """Whether the entries of its step have several priorities, so that they are not in the order of their ids."""
    return priority > _HIGHEST


#: microseconds since 2000-01-01 that PostgreSQL reads as 'infinity'
INFINITY = (1 << 63) - 1
#: and as '-infinity'
BEFORE = -(1 << 63)
#: 9999-12-30: what is to expire later never does, and nothing is delivered later. PostgreSQL has later times, and
#: clients send them; programs that read them do not, in no time zone.
LATEST = 252_455_443_200_000_000
#: The same in milliseconds since 1970.
LATEST_MS = LATEST // 1000 + 946_684_800_000


class DeliveryTerms(NamedTuple):
    """On which terms a message is delivered. Times in microseconds since 2000-01-01 UTC."""

    #: :data:`INFINITY`: never
    expires: int = INFINITY
    #: :data:`BEFORE`: at once
    available: int = BEFORE
    priority: int = DEFAULT
    #: on an address of kind fifo: the message group as a number below 0, or :data:`ALONE`; elsewhere 0
    message_group: int = 0


#: In :attr:`DeliveryTerms.message_group`: the message is a group of its own.
ALONE = 1


def key_of(terms: DeliveryTerms, entry_id: int) -> int:
    """The entry's message group."""
    return entry_id if terms.message_group == ALONE else terms.message_group


#: The terms of nearly every message; compared by identity.
PLAIN = DeliveryTerms()
