"""What clients have sent is read for a moment in each turn, from one connection after the other (rule S5): however much
they send, the store's answers, the heartbeat and the other clients have their turn.

Where there is more than a turn reads, connections have equal shares of the time: who has had the least comes first. A
client that says little does not wait for hundreds that say much, and all they say.
"""

from __future__ import annotations

import time
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from links.shares import COUNTED_SECONDS

if TYPE_CHECKING:
    from links.connection import Connection
    from links.shares import Shares

#: So long a turn reads; it ends what it has begun.
READ_SECONDS = 0.04
#: Reads that take longer, together, were of too much at once: the next ones of their connections are of less.
LONG_READS_SECONDS = 0.02
#: the least octets that are read at once, where octets take long
LEAST_ROOM = 512

_HAD = attrgetter("read_seconds")


class Reactor(Protocol):
    #: connections that are to be read, each once
    readable: list[Connection]
    shares: Shares

    def read(self, connection: Connection) -> None: ...

    def contain(self, what: object) -> None: ...


def read_some(reactor: Reactor) -> None:
    """Those that this turn leaves come first in the next, of those that have had as much, and in smaller parts: where
    hundreds begin at once, none waits until each of the others has had as much read as if it were alone.
    """
    readable, reactor.readable = reactor.readable, []
    shares = reactor.shares
    if shares.behind:
        readable.sort(key=_HAD)
    began = now = time.monotonic()
    least, most = shares.least, shares.most
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
            connection.read_room = min(connection.read_room, max(room // 4, LEAST_ROOM))
        had = max(connection.read_seconds, least)
        connection.read_seconds = had + min(now - before, COUNTED_SECONDS)
        most = max(most, connection.read_seconds)
        if now - began > READ_SECONDS and number < len(readable):
            left = readable[number:]
            for each in left:
                each.read_room = max(each.read_room // 4, LEAST_ROOM)
            reactor.readable = left + reactor.readable
            shares.ended(had, most, behind=True)
            return
    shares.ended(most, most, behind=False)
