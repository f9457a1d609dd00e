"""What clients have sent is read for a moment in each turn, from one connection after the other (rule S5): however much
they send, the store's answers, the heartbeat and the other clients have their turn.

Where there is more than a turn reads, connections have equal shares of the time: who has had the least comes first. A
client that says little does not wait for hundreds that say much, and all they say.
"""

from __future__ import annotations

import time
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from links.connection import Connection

#: So long a turn reads; it ends what it has begun.
READ_SECONDS = 0.04
#: Reads that take longer, together, were of too much at once: the next ones of their connections are of less.
LONG_READS_SECONDS = 0.02
#: the least octets that are read at once, where octets take long
LEAST_ROOM = 512
#: So much of its share a connection that says nothing keeps, at least, and twice as much at most.
SAVED_SECONDS = 1.0

_HAD = attrgetter("read_seconds")


class Shares:
    """Of the time that reads take, by the seconds that each connection has had."""

    __slots__ = ("_at", "_before", "_between", "_now", "behind", "most")

    def __init__(self) -> None:
        #: the last turn has left some unread
        self.behind = False
        #: The most that one has had. New ones begin with it: those that come and go have no more than those that stay.
        self.most = 0.0
        #: what those that were read last had had before; the same once or twice that time ago, and when that was noted
        self._now = self._between = self._before = self._at = 0.0

    def least(self, now: float) -> float:
        """Who has had less counts as this: one that was away for long has not saved all of it up."""
        if now - self._at > SAVED_SECONDS:
            self._before, self._between, self._at = self._between, self._now, now
        return self._before

    def ended(self, had: float, most: float, *, behind: bool) -> None:
        """A turn. ``had``: by the last that was read, before; ``most``: by any."""
        self._now, self.most, self.behind = had, most, behind


class Reactor(Protocol):
    #: connections that are to be read, each once
    readable: list[Connection]
    shares: Shares

    def read(self, connection: Connection) -> None: ...

    def contain(self, what: object) -> None: ...


def read_some(reactor: Reactor) -> None:
    """Those that this turn leaves come first in the next, of those that have had as much."""
    readable, reactor.readable = reactor.readable, []
    shares = reactor.shares
    if shares.behind:
        readable.sort(key=_HAD)
    began = now = time.monotonic()
    least, most = shares.least(began), shares.most
    longest = LONG_READS_SECONDS / len(readable)
    for number, connection in enumerate(readable, 1):
        connection.readable = False
        if not connection.open or connection.paused:
            continue
        room = connection.read_room
        try:
            reactor.read(connection)
        except Exception:  # noqa: BLE001 - a defect costs this connection only
            reactor.contain(connection)
        before, now = now, time.monotonic()
        if now - before > longest:
            connection.read_room = max(room // 4, LEAST_ROOM)
        had = max(connection.read_seconds, least)
        connection.read_seconds = had + now - before
        most = max(most, connection.read_seconds)
        if now - began > READ_SECONDS and number < len(readable):
            reactor.readable = readable[number:] + reactor.readable
            shares.ended(had, most, behind=True)
            return
    shares.ended(most, most, behind=False)
