"""How much of what clients send one turn reads (rule S5)."""

from __future__ import annotations

import os
import select
import socket
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.bounds import Bounds
from coordinator.settings import LimitSettings
from links import reactor as reactor_module
from links.connection import Connection
from links.reactor import Reactor
from tests.clocked import Clocked, clocked

_ROOM = 1 << 18
#: of a read, after which its turn reads no more
_LONG = 0.25
_SERVICE: Any = SimpleNamespace(limits=LimitSettings(), bounds=Bounds())


class Turning(Clocked):
    """Notes what it reads, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.did: list[str] = []
        self.told: Counter[str] = Counter()
        self.contained: list[object] = []
        #: has said more by the time it is read
        self.talks: Any = None
        #: seconds of the clock that each read takes, except of one who says little
        self.takes = 0.0

    def read(self, connection: Any) -> None:
        self.did.append(connection.name)
        self.told[connection.name] += 1
        self.now += 0.0 if connection.name == "little" else self.takes
        if connection is self.talks:
            self.read_in_turn(connection)
        if connection.name == "defect":
            raise ValueError

    def contain(self, what: object) -> None:
        self.contained.append(what)


def _connection(name: str, reactor: Reactor | None = None) -> Any:
    """``reactor``: one that has read others before."""
    had = 0.0 if reactor is None else _begins_with(reactor)
    return SimpleNamespace(name=name, open=True, paused=False, readable=False, read_room=_ROOM, read_seconds=had)


def _begins_with(reactor: Reactor) -> float:
    """What counts for a new connection."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = Connection(reactor, _SERVICE, ours, [])
        reactor._free(connection)
    return connection.read_seconds


@pytest.fixture
def reactor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Turning]:
    """Its clock goes on with what is read alone."""
    with clocked(Turning(), monkeypatch) as reactor:
        yield reactor


@pytest.mark.rule("S5")
def test_what_a_turn_leaves_comes_first_in_the_next(reactor: Turning) -> None:
    """And a connection that has sent more meanwhile stands behind all others."""
    first, second, third = (_connection(name) for name in ("first", "second", "third"))
    for each in (first, second, third):
        reactor._serve(each, select.EPOLLIN)
    reactor.takes = _LONG
    turns = []
    for _ in range(4):
        reactor.finish_turn()
        reactor._serve(first, select.EPOLLIN)
        reactor._serve(third, select.EPOLLIN)
        turns.append(list(reactor.did))
        reactor.did.clear()
    assert turns == [["first"], ["second"], ["third"], ["first"]]


@pytest.mark.rule("S5")
def test_what_a_turn_leaves_comes_before_what_is_said_in_it(reactor: Turning) -> None:
    """They have had as much."""
    reactor.talks = _connection("little")
    for each in (reactor.talks, _connection("second"), _connection("third")):
        reactor._serve(each, select.EPOLLIN)
    reactor.takes = _LONG
    for _ in range(2):
        reactor.finish_turn()
    assert reactor.did == ["little", "second", "third"]


class Many:
    """So many connections that always have more to say, and a turn has time for some of them."""

    def __init__(self, reactor: Turning, count: int, takes: float = _LONG / 128) -> None:
        self._reactor = reactor
        reactor.takes = takes
        self._all = {str(number): _connection(str(number)) for number in range(count)}
        self.say()

    def say(self) -> None:
        """All of them, at once."""
        for each in self._all.values():
            self._reactor._serve(each, select.EPOLLIN)

    def turn(self) -> list[str]:
        """What a turn reads."""
        reactor = self._reactor
        reactor.did.clear()
        reactor.finish_turn()
        for name in reactor.did:
            if name in self._all:
                reactor._serve(self._all[name], select.EPOLLIN)
        return list(reactor.did)


@pytest.mark.rule("S5")
@pytest.mark.parametrize("takes", [0.002, 0.006], ids=["short reads", "long reads"])
def test_a_client_that_says_little_does_not_wait_for_many_that_say_much(reactor: Turning, takes: float) -> None:
    """It comes first whenever it says something. They have as much each."""
    little = _connection("little", reactor)
    many = Many(reactor, 300, takes)
    for _ in range(200):
        many.turn()
    reactor.told.clear()
    for _ in range(100):
        reactor._serve(little, select.EPOLLIN)
        assert many.turn()[0] == "little"
    assert len(reactor.told) == 301
    del reactor.told["little"]
    assert max(reactor.told.values()) - min(reactor.told.values()) <= 1


@pytest.mark.rule("S5")
def test_a_new_client_waits_for_the_others_once(reactor: Turning) -> None:
    many = Many(reactor, 300)
    for _ in range(200):
        many.turn()
    little = _connection("little", reactor)
    turns = []
    for _ in range(20):
        reactor._serve(little, select.EPOLLIN)
        read: list[str] = []
        while "little" not in read:
            read += many.turn()
        turns.append(len(read))
    assert 250 < max(turns[:2]) < 350
    assert max(turns[2:]) < 30


@pytest.mark.rule("S5")
def test_clients_that_come_and_go_do_not_keep_others_from_being_read(reactor: Turning) -> None:
    """Each turn has more new ones than it has time for."""
    many = Many(reactor, 2)
    for _ in range(50):
        for _ in range(30):
            reactor._serve(_connection("new", reactor), select.EPOLLIN)
        many.turn()
    assert min(reactor.told["0"], reactor.told["1"]) > 5


@pytest.mark.rule("S5")
@pytest.mark.parametrize("away", [1, 20])
def test_a_client_that_was_away_has_saved_little_up(reactor: Turning, away: int) -> None:
    """Else it would have all of the time for as long as the others had it before."""
    busy, idle = _connection("busy"), [_connection(f"idle {number}") for number in range(away)]
    reactor.takes = _LONG
    for _ in range(100):
        reactor._serve(busy, select.EPOLLIN)
        reactor.finish_turn()
    reactor.told.clear()
    for _ in range(20 * (1 + away)):
        for each in (busy, *idle):
            reactor._serve(each, select.EPOLLIN)
        reactor.finish_turn()
    del reactor.told["busy"]
    assert len(reactor.told) == away
    assert 20 <= min(reactor.told.values()) <= max(reactor.told.values()) <= 22


@pytest.mark.rule("S5")
@pytest.mark.parametrize(
    "seconds", [reactor_module.LONG_READS_SECONDS, 30.0], ids=["busy for long", "stopped for a while"]
)
def test_a_new_client_does_not_wait_for_hundreds_to_have_what_one_had(reactor: Turning, seconds: float) -> None:
    """Nor does the one that had it: others were idle meanwhile, or the machine stood still during its read."""
    many = Many(reactor, 200)
    reactor.takes = 0.0005
    while reactor.readable:
        reactor.finish_turn()
    busy = _connection("busy")
    reactor.takes = seconds
    for _ in range(100):
        reactor._serve(busy, select.EPOLLIN)
        reactor.finish_turn()
    little = _connection("little", reactor)
    reactor.takes, began = 0.0005, reactor.now
    many.say()
    for each in (busy, little):
        reactor._serve(each, select.EPOLLIN)
    reactor.told.clear()
    while not (reactor.told["busy"] and reactor.told["little"]):
        many.turn()
        assert reactor.now - began < 4.0


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
    reactor.takes = _LONG
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
    reactor.takes = 2 * reactor_module.LONG_READS_SECONDS
    rooms = []
    for _ in range(5):
        reactor.read_in_turn(connection)
        reactor.finish_turn()
        rooms.append(connection.read_room)
    assert rooms == [_ROOM // 4, _ROOM // 16, _ROOM // 64, _ROOM // 256, reactor_module.LEAST_ROOM]


@pytest.mark.rule("S5")
def test_the_more_connections_are_read_the_less_time_each_takes(reactor: Turning) -> None:
    connections = [_connection(str(number)) for number in range(4)]
    for takes, room in (
        (reactor_module.LONG_READS_SECONDS / 5, _ROOM),
        (reactor_module.LONG_READS_SECONDS / 3, _ROOM // 4),
    ):
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
