"""On which terms a message is delivered."""

from __future__ import annotations

from typing import NamedTuple

from store import arrays, priorities


class Terms(NamedTuple):
    """On which terms a message is delivered. Times in microseconds since 2000-01-01 UTC."""

    #: ``arrays.INFINITY``: never
    expires: int = arrays.INFINITY
    #: ``arrays.BEFORE``: at once
    available: int = arrays.BEFORE
    priority: int = priorities.DEFAULT
    #: on an address of kind fifo: the message group as a number below 0, or :data:`ALONE`; elsewhere 0
    message_group: int = 0


#: In :attr:`Terms.message_group`: of a group that is its own.
ALONE = 1


def key_of(terms: Terms, entry_id: int) -> int:
    """The entry's message group."""
    return entry_id if terms.message_group == ALONE else terms.message_group


#: Nearly every message's; recognised by identity.
PLAIN = Terms()
