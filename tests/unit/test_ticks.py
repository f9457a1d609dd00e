"""A tick after this process was stopped for longer than an idle time (rule P4): loop and connection are stand-ins."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from links.reactor import Ticks

pytestmark = pytest.mark.rule("P4")


class Peer:
    """A connection, which the ticks keep in dictionaries."""

    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


class Reactor:
    """``did``: what the clock called, in order; ``opens``: whether what is read of a connection opens it."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.opens = False
        self.due: list[Callable[[], None]] = []
        self.connection: Any = Peer(
            number=1,
            ticks=0,
            open=True,
            paused=False,
            readable=False,
            peer="a peer",
            service=SimpleNamespace(limits=SimpleNamespace(idle_timeout_seconds=1)),
            output=SimpleNamespace(is_stuck=self._is_stuck, unread=b""),
        )
        self.ticks = Ticks(cast("Any", self))
        self.ticks._connections[1] = cast("Any", self.connection)
        self.ticks.tick_in(1, cast("Any", self.connection))

    def _is_stuck(self, _idle: float) -> bool:
        self.did.append("tick")
        return True

    def call_later(self, _seconds: float, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def call(self, callback: Callable[..., object]) -> None:
        callback()

    def drain_events(self) -> None:
        raise AssertionError

    def read(self, connection: Any) -> None:
        self.did.append("read")
        if self.opens:
            self.ticks.opened(connection)

    def read_in_turn(self, connection: Any) -> None:
        """The next turn reads it."""
        if not connection.paused:
            connection.readable = True

    def close(self, connection: Any, _reason: object, **_more: object) -> None:
        self.did.append("close")


def test_what_the_peer_sent_in_time_is_read_first() -> None:
    """However many turns that takes, and by the turns alone, which are bounded (S5)."""
    reactor = Reactor()
    for _ in range(3):
        reactor.due.pop()()
    assert reactor.connection.readable
    assert reactor.did == []
    reactor.connection.readable = False
    reactor.due.pop()()
    assert reactor.did == ["tick", "close"]


def test_a_connection_that_ends_with_what_is_read_is_not_ticked() -> None:
    reactor = Reactor()
    reactor.due.pop()()
    reactor.ticks.forget(reactor.connection)
    reactor.connection.readable = False
    reactor.due.pop()()
    assert (reactor.did, reactor.due) == ([], [])


def test_a_connection_that_is_paused_is_not_read() -> None:
    reactor = Reactor()
    reactor.connection.paused = True
    reactor.connection.must_pause = True
    reactor.due.pop()()
    reactor.due.pop()()
    assert reactor.did == ["tick", "close"]


def _unopened(reactor: Reactor, number: int, seconds: float) -> None:
    """A connection begins whose peer has so many seconds to open it."""
    bounds = SimpleNamespace(opening_seconds=seconds)
    connection: Any = Peer(number=number, ticks=0, open=False, peer="a peer", service=SimpleNamespace(bounds=bounds))
    reactor.ticks.begin(connection)


def test_what_opens_a_connection_in_time_is_read_first() -> None:
    reactor = Reactor()
    reactor.due.clear()
    reactor.opens = True
    _unopened(reactor, 2, 0.0)
    reactor.due.pop()()
    assert reactor.did == ["read"]


def test_a_connection_that_is_not_opened_is_read_and_closed_and_the_next_is_looked_at_later() -> None:
    reactor = Reactor()
    reactor.due.clear()
    _unopened(reactor, 2, 0.0)
    _unopened(reactor, 3, 3600.0)
    for _ in range(3):
        assert len(reactor.due) == 1, "all share one deadline"
        reactor.due.pop()()
    assert reactor.did == ["read", "close"]
