"""Define the terms on which a message is delivered: expiry, availability, priority, message group."""

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
    """The three classes of priorities, in order of delivery."""

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
    """The queries that read the entries of a rank, in order of delivery; each reads above an id of its own.

    ``first``: the SQL condition of the first step, or None where every step reads a single priority. ``single``: the
    priorities of the other steps.
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
    """Return the index, in its rank, of the step that reads the priority."""
    if priority > DEFAULT:
        return max(0, _HIGHEST + 1 - priority)
    return 0 if priority == DEFAULT else DEFAULT - 1 - priority


def shares_step(priority: int) -> bool:
    """Whether the step of the priority reads several priorities, so that its entries are not ordered by id."""
    return priority > _HIGHEST


#: microseconds since 2000-01-01 that PostgreSQL reads as 'infinity'
INFINITY = (1 << 63) - 1
#: and as '-infinity'
BEFORE = -(1 << 63)
#: 9999-12-30: a message with a later expiry never expires, and no message is delivered later. PostgreSQL stores later
#: times, and clients send them, but programs that read the store cannot represent them in every time zone.
LATEST = 252_455_443_200_000_000


class DeliveryTerms(NamedTuple):
    """The terms on which a message is delivered. Times are in microseconds since 2000-01-01 UTC."""

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
    """Return the key of the entry's message group."""
    return entry_id if terms.message_group == ALONE else terms.message_group


#: The terms of nearly every message; compared by identity.
PLAIN = DeliveryTerms()
