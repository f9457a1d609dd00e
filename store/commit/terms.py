"""On which terms a message is delivered."""

from __future__ import annotations

from typing import NamedTuple

from store import priorities

#: microseconds since 2000-01-01 that PostgreSQL reads as 'infinity'
INFINITY = (1 << 63) - 1
#: and as '-infinity'
BEFORE = -(1 << 63)
#: 9999-12-30: what is to expire later never does, and nothing is delivered later. PostgreSQL has later times, and
#: clients send them; programs that read them do not, in no time zone.
LATEST = 252_455_443_200_000_000
#: The same in milliseconds since 1970.
LATEST_MS = LATEST // 1000 + 946_684_800_000


class Terms(NamedTuple):
    """On which terms a message is delivered. Times in microseconds since 2000-01-01 UTC."""

    #: :data:`INFINITY`: never
    expires: int = INFINITY
    #: :data:`BEFORE`: at once
    available: int = BEFORE
    priority: int = priorities.DEFAULT
    #: on an address of kind fifo: the message group as a number below 0, or :data:`ALONE`; elsewhere 0
    message_group: int = 0


#: In :attr:`Terms.message_group`: the message is a group of its own.
ALONE = 1


def key_of(terms: Terms, entry_id: int) -> int:
    """The entry's message group."""
    return entry_id if terms.message_group == ALONE else terms.message_group


#: The terms of nearly every message; compared by identity.
PLAIN = Terms()
