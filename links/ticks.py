"""The clock of connections: ticks of the engine, which keeps the idle times by them, and the time to open (P4)."""

from __future__ import annotations

import time
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol

import structlog

from links import engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from links.connection import Connection

log = structlog.get_logger(__name__)

#: between ticks of a connection whose transport asks for none
_TICK_SECONDS = 30.0


class Reactor(Protocol):
    """What the clock calls."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None: ...

    def call(self, callback: Callable[..., object]) -> None: ...

    def drain_events(self) -> object: ...

    def read(self, connection: Connection) -> None: ...

    def read_in_turn(self, connection: Connection) -> None: ...

    def close(self, connection: Connection) -> None: ...


class Ticks:
    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        #: by number
        self._connections: dict[int, Connection] = {}
        #: when the time of each connection to open is up, the oldest first
        self._unopened: dict[Connection, float] = {}
        #: all share one deadline of the loop: with one each, thousands would outlive their connections
        self._looks_at_unopened = False

    def begin(self, connection: Connection) -> None:
        self._connections[connection.number] = connection
        self._tick(connection)
        seconds = connection.service.bounds.opening_seconds
        if not self._looks_at_unopened:
            self._looks_at_unopened = True
            self._reactor.call_later(seconds, self._end_unopened)
        self._unopened[connection] = time.monotonic() + seconds

    def opened(self, connection: Connection) -> None:
        """Now the idle times of both sides are known (P4): ask the engine when it wants its next tick."""
        self._unopened.pop(connection, None)
        self.tick_in(0, connection)

    def forget(self, connection: Connection) -> None:
        self._connections.pop(connection.number, None)
        self._unopened.pop(connection, None)

    def tick_in(self, seconds: float, connection: Connection) -> None:
        """At most one tick is due at a time. The deadline holds a number, so that a closed connection is not kept
        alive.
        """
        connection.ticks += 1
        self._reactor.call_later(seconds, partial(self._tick_again, connection.number, connection.ticks))

    def _tick_again(self, number: int, ticks: int) -> None:
        connection = self._connections.get(number)
        if connection is not None and connection.ticks == ticks:
            self._reactor.read_in_turn(connection)
            self._reactor.call_later(0, partial(self._tick_when_read, number, ticks))

    def _tick_when_read(self, number: int, ticks: int) -> None:
        """This process may have been stopped, or kept by others, for longer than the idle time: then the peer's sign of
        life still lies in the socket.
        """
        connection = self._connections.get(number)
        if connection is None or connection.ticks != ticks:
            return
        if connection.readable:
            self._reactor.call_later(0, partial(self._tick_when_read, number, ticks))
        else:
            self._reactor.call(partial(self._tick, connection))

    def _tick(self, connection: Connection) -> None:
        if not connection.open:
            return
        now = time.monotonic()
        idle = connection.service.limits.idle_timeout_seconds
        if connection.output.is_stuck(idle):
            log.info(
                "connection closed: its peer reads nothing", peer=connection.peer, unread=len(connection.output.unread)
            )
            self._reactor.close(connection)
            return
        if connection.paused and not connection.must_pause:  # in case what it was paused for ended unnoticed
            self._reactor.call_later(0, connection.resume)
        deadline = engine.transport_tick(connection.transport, int(now * 1000))
        self._reactor.drain_events()
        connection.mark()
        wait = max(deadline / 1000 - now, 0.01) if deadline else _TICK_SECONDS
        if connection.output.unread:
            wait = min(wait, idle)
        self.tick_in(min(wait, _TICK_SECONDS), connection)

    def _end_unopened(self) -> None:
        """Close connections whose peer did not open them in time (P4)."""
        now = time.monotonic()
        late = list(takewhile(lambda connection: self._unopened[connection] <= now, self._unopened))
        for connection in late:
            self._reactor.call(partial(self._read_and_end, connection))
        self._looks_at_unopened = bool(self._unopened)
        if self._unopened:
            self._reactor.call_later(max(0.0, next(iter(self._unopened.values())) - now), self._end_unopened)

    def _read_and_end(self, connection: Connection) -> None:
        """What opens it may lie in the socket: this process may have been stopped."""
        self._reactor.read(connection)
        if self._unopened.pop(connection, None) is not None:
            seconds = connection.service.bounds.opening_seconds
            log.info("connection closed: it was not opened in time", seconds=seconds, peer=connection.peer)
            self._reactor.close(connection)
