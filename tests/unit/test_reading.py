"""How much of what clients send one turn reads (rule S5)."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from links import reading
from links.endpoints import LITTLE_ROOM
from links.reactor import Reactor

_ROOM = 1 << 18


class Turning(Reactor):
    """Notes what it reads, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.did: list[str] = []
        self.contained: list[object] = []
        #: seconds of the clock that each read takes
        self.takes = 0.0
        self.now = 0.0

    def read(self, connection: Any) -> None:
        self.did.append(connection.name)
        self.now += self.takes
        if connection.name == "defect":
            raise ValueError

    def contain(self, what: object) -> None:
        self.contained.append(what)


def _connection(name: str) -> Any:
    return SimpleNamespace(name=name, open=True, paused=False, readable=False, read_room=_ROOM)


@pytest.fixture
def reactor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Turning]:
    """Its clock goes on with what is read alone."""
    reactor = Turning()
    monkeypatch.setattr("links.reading.time.monotonic", lambda: reactor.now)
    yield reactor
    reactor._epoll.close()


@pytest.mark.rule("S5")
def test_what_a_turn_leaves_comes_first_in_the_next(reactor: Turning) -> None:
    """And a connection that has sent more meanwhile stands behind all others."""
    first, second, third = (_connection(name) for name in ("first", "second", "third"))
    for each in (first, second, third):
        reactor._serve(each, select.EPOLLIN)
    reactor.takes = 2 * reading.READ_SECONDS
    turns = []
    for _ in range(4):
        reactor.finish_turn()
        reactor._serve(first, select.EPOLLIN)
        reactor._serve(third, select.EPOLLIN)
        turns.append(list(reactor.did))
        reactor.did.clear()
    assert turns == [["first"], ["second"], ["third"], ["first"]]


@pytest.mark.rule("S5")
def test_each_is_read_once_in_a_turn_that_has_time_for_all(reactor: Turning) -> None:
    first, second = _connection("first"), _connection("second")
    for each in (first, second, first):
        reactor._serve(each, select.EPOLLIN)
    reactor.finish_turn()
    reactor.finish_turn()
    assert reactor.did == ["first", "second"]
    assert (first.read_room, second.read_room) == (_ROOM, _ROOM)


@pytest.mark.rule("S5")
def test_the_store_has_its_turn_before_what_is_left(reactor: Turning) -> None:
    """The turn does not wait for a descriptor either."""
    reading_end, writing_end = os.pipe()
    os.write(writing_end, b".")
    reactor.watch(reading_end, select.EPOLLIN, lambda _: reactor.did.append("store"))
    reactor.takes = 2 * reading.READ_SECONDS
    for name in ("first", "second", "third"):
        reactor._serve(_connection(name), select.EPOLLIN)
    for _ in range(3):
        reactor.turn(60)
    for fd in (reading_end, writing_end):
        os.close(fd)
    assert reactor.did == ["store", "first", "store", "second", "store", "third"]
    assert not reactor.readable


@pytest.mark.rule("S5")
def test_a_connection_whose_octets_take_long_is_read_in_smaller_parts(reactor: Turning) -> None:
    connection = _connection("long")
    reactor.takes = 2 * reading.LONG_READS_SECONDS
    rooms = []
    for _ in range(5):
        reactor.read_in_turn(connection)
        reactor.finish_turn()
        rooms.append(connection.read_room)
    assert rooms == [_ROOM // 4, _ROOM // 16, LITTLE_ROOM, LITTLE_ROOM, LITTLE_ROOM]


@pytest.mark.rule("S5")
def test_the_more_connections_are_read_the_less_time_each_takes(reactor: Turning) -> None:
    connections = [_connection(str(number)) for number in range(4)]
    for takes, room in ((reading.LONG_READS_SECONDS / 5, _ROOM), (reading.LONG_READS_SECONDS / 3, _ROOM // 4)):
        reactor.takes = takes
        for each in connections:
            reactor.read_in_turn(each)
        reactor.finish_turn()
        assert [each.read_room for each in connections] == [room] * 4


@pytest.mark.rule("P14", "S5")
def test_a_defect_costs_its_connection_alone(reactor: Turning) -> None:
    defect, other = _connection("defect"), _connection("other")
    reactor.read_in_turn(defect)
    reactor.read_in_turn(other)
    reactor.finish_turn()
    assert reactor.contained == [defect]
    assert reactor.did == ["defect", "other"]


def test_what_ended_or_paused_meanwhile_is_not_read(reactor: Turning) -> None:
    ended, paused = _connection("ended"), _connection("paused")
    for each in (ended, paused):
        reactor.read_in_turn(each)
    ended.open, paused.paused = False, True
    reactor.finish_turn()
    assert reactor.did == []
    paused.paused = False
    reactor.read_in_turn(paused)
    reactor.finish_turn()
    assert reactor.did == ["paused"]
