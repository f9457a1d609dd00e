"""Parked counts and queues posts on the relay and attaches that wait for the store to look up their addresses.

A connection has only a few queries at once for its attaches. The others wait here, without a cost for the store and
other connections; when a link is detached, its query is dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from coordinator.errors import Condition, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from links.connection import Connection
    from links.link import Attaching

T = TypeVar("T")

#: the most octets of one connection that wait; with more, it is not read
_MOST = 1 << 20
#: octets in memory of a waiting attach, measured
_ATTACH_OCTETS = 1500
#: how many queries for the attaches of one connection are sent at once: the store answers them one by one, in turn with
#: those of other connections
_ASKED_AT_ONCE = 2


class Parked:
    """Counts and queues the waiting posts and attaches of one connection. ``octets``: their memory, which the account
    of all connections counts, too.
    """

    __slots__ = ("_asked", "_going_on", "_waiting", "connection", "octets")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.octets = 0
        self._asked = 0
        self._waiting: dict[Attaching, Callable[[], None]] = {}
        self._going_on = False

    def add(self, octets: int) -> None:
        """Count so many more octets as waiting; fewer if ``octets`` is below 0."""
        self.octets += octets
        connection = self.connection
        if not self.octets and connection.paused:  # in the next turn: the waiting posts are still being handled
            connection.service.loop.call_later(0, connection.resume)

    @property
    def too_much(self) -> bool:
        """Whether the connection, of which octets wait, is not to be read until fewer do."""
        memory = self.connection.service.memory
        return self.octets > _MOST or memory.parked > memory.most

    def take_attach(self) -> None:
        """Check that another attach may wait.

        :raises Refusal: too many octets wait.
        """
        memory = self.connection.service.memory
        if memory.parked > 2 * memory.most:
            text = "too many attaches and messages wait for their addresses to be looked up (limits.memory_bytes)"
            raise Refusal(Condition.RESOURCE_LIMIT_EXCEEDED, f"{text}; try later")

    def ask(
        self, attaching: Attaching, question: Callable[[Callable[[T], None]], None], then: Callable[[T], None]
    ) -> None:
        """Send the query ``question`` in its turn, unless the link is detached before. ``then`` gets the answer, even
        if the link was detached meanwhile.
        """

        def start() -> None:
            self._asked += 1
            question(answered)

        def answered(answer: T) -> None:
            self._asked -= 1
            self._count(-_ATTACH_OCTETS)
            try:
                then(answer)
            finally:
                self._go_on()

        self._count(_ATTACH_OCTETS)
        if self._asked < _ASKED_AT_ONCE:
            start()
        else:
            self._waiting[attaching] = start

    def forget(self, attaching: Attaching) -> None:
        """Drop the query of a link that the client has detached."""
        if self._waiting.pop(attaching, None) is not None:
            self._count(-_ATTACH_OCTETS)

    def _count(self, octets: int) -> None:
        self.connection.service.memory.parked += octets
        self.add(octets)

    def _go_on(self) -> None:
        """Send as many queries as may be under way; a loop, as a query may be answered at once."""
        if self._going_on:
            return
        self._going_on = True
        try:
            while self._waiting and self._asked < _ASKED_AT_ONCE:
                attaching = next(iter(self._waiting))
                if attaching.open:
                    self._waiting.pop(attaching)()
                else:
                    self.forget(attaching)
        finally:
            self._going_on = False
