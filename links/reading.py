"""What clients have sent is read for a moment in each turn, from one connection after the other (rule S5): however much
they send, the store's answers, the heartbeat and the other clients have their turn.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from links.endpoints import LITTLE_ROOM

if TYPE_CHECKING:
    from links.connection import Connection

#: So long a turn reads; it ends what it has begun.
READ_SECONDS = 0.1
#: Reads that take longer, together, were of too much at once: the next ones of their connections are of less.
LONG_READS_SECONDS = 0.05


class Reactor(Protocol):
    #: connections that are to be read, each once
    readable: list[Connection]

    def read(self, connection: Connection) -> None: ...

    def contain(self, what: object) -> None: ...


def read_some(reactor: Reactor) -> None:
    """Those that this turn leaves come first in the next."""
    readable, reactor.readable = reactor.readable, []
    began = now = time.monotonic()
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
            connection.read_room = max(room // 4, LITTLE_ROOM)
        if now - began > READ_SECONDS:
            reactor.readable = readable[number:] + reactor.readable
            break
