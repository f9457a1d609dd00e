"""How many octets of a client are read at once, and how often before others have their turn (rule S5)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from links import engine
from links import reactor as reactor_module
from links.endpoints import LITTLE_ROOM
from links.reactor import Reactor
from tests.clocked import Clocked, clocked


class Reading(Clocked):
    """Of real sockets, by a clock that goes on with what is read alone; the engine gets nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        #: that each read takes
        self.seconds = 0.0
        #: as an attach has it be, which is in what is read
        self.room_of_attach: int | None = None

    def _push(self, connection: Any, size: int) -> None:
        self.sizes.append(size)
        self.now += self.seconds
        if self.room_of_attach is not None:
            connection.read_room = self.room_of_attach


@pytest.fixture
def reactor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reading]:
    with clocked(Reading(), monkeypatch) as reactor:
        yield reactor


class Client:
    """Of a reactor. ``room``: octets that are read of it at once."""

    def __init__(self, reactor: Reactor, room: int = LITTLE_ROOM) -> None:
        self._reactor = reactor
        self._socket, far = socket.socketpair()
        self._socket.setblocking(False)
        far.setblocking(False)
        self._far: Any = SimpleNamespace(
            open=True,
            paused=False,
            readable=False,
            must_pause=False,
            greeting=None,
            socket=far,
            read_room=room,
            read_seconds=0.0,
        )

    def say(self, octets: int) -> None:
        assert self._socket.send(bytes(octets)) == octets
        self._reactor.read_in_turn(self._far)

    @property
    def room(self) -> int:
        return int(self._far.read_room)

    def close(self) -> None:
        self._socket.close()
        self._far.socket.close()


@pytest.fixture
def clients() -> Iterator[list[Client]]:
    clients: list[Client] = []
    yield clients
    for client in clients:
        client.close()


@pytest.mark.rule("S5")
def test_a_client_that_says_little_is_not_read_in_larger_parts(reactor: Reading, clients: list[Client]) -> None:
    """Else it could say as much at once as one that is known to say what takes no time."""
    client = Client(reactor)
    clients.append(client)
    for _ in range(20):
        client.say(8)
        reactor.finish_turn()
    assert reactor.sizes == [8] * 20
    assert client.room == LITTLE_ROOM


@pytest.mark.rule("S5")
@pytest.mark.parametrize("part", [1.0, 0.6], ids=["full", "less what TLS adds"])
def test_a_client_that_says_much_is_read_in_larger_parts(reactor: Reading, clients: list[Client], part: float) -> None:
    client = Client(reactor)
    clients.append(client)
    for _ in range(8):
        client.say(int(part * min(client.room, 1 << 17)))
        reactor.finish_turn()
    assert client.room == engine.READ_ROOM


@pytest.mark.rule("S5")
def test_those_that_a_turn_leaves_are_read_in_smaller_parts(reactor: Reading, clients: list[Client]) -> None:
    """A client that begins with many does not wait until each has had as much read as when it was alone."""
    reactor.seconds = 2 * reactor_module.READ_SECONDS
    many = [Client(reactor, engine.READ_ROOM) for _ in range(8)]
    clients += many
    for client in many:
        client.say(1 << 16)
    rooms: list[int] = []
    for _ in many:
        rooms.append(many[len(rooms)].room)
        reactor.finish_turn()
    assert rooms == [*(engine.READ_ROOM // 4**turns for turns in range(5)), *[reactor_module.LEAST_ROOM] * 3]


@pytest.mark.rule("S5")
def test_one_that_a_turn_leaves_is_soon_read_in_large_parts_again(reactor: Reading, clients: list[Client]) -> None:
    """Where the machine stood still, and nothing takes long."""
    reactor.seconds = 30.0
    first, second = Client(reactor, engine.READ_ROOM), Client(reactor, engine.READ_ROOM)
    clients += [first, second]
    for client in clients:
        client.say(1 << 16)
    reactor.finish_turn()
    assert (first.room, second.room) == (engine.READ_ROOM // 4, engine.READ_ROOM // 4)
    reactor.seconds = 0.0
    for _ in range(2):
        reactor.finish_turn()
        second.say(1 << 17)
    assert second.room == engine.READ_ROOM


@pytest.mark.rule("S5")
def test_attaches_that_took_long_are_read_in_parts_as_small_as_after_any(
    reactor: Reading, clients: list[Client]
) -> None:
    client = Client(reactor, engine.READ_ROOM)
    clients.append(client)
    reactor.seconds, reactor.room_of_attach = 2 * reactor_module.LONG_READS_SECONDS, LITTLE_ROOM
    client.say(1 << 16)
    reactor.finish_turn()
    assert client.room == LITTLE_ROOM


@pytest.mark.rule("S5")
def test_a_busy_client_waits_for_two_small_reads_of_each_that_was_idle(reactor: Reading, clients: list[Client]) -> None:
    """What a hundred have saved of their shares while they were idle is little."""
    busy = Client(reactor)
    many = [Client(reactor, reactor_module.LEAST_ROOM) for _ in range(100)]
    clients += [busy, *many]
    reactor.seconds = 0.0014  # 512 octets of attaches
    for _ in range(200):
        busy.say(1)
        reactor.finish_turn()
    reactor.sizes.clear()
    for client in many:
        client.say(1 << 13)
    busy.say(1)
    while 1 not in reactor.sizes:
        reactor.finish_turn()
        for client in many:
            client.say(1)
    assert reactor.sizes.count(reactor_module.LEAST_ROOM) < 2.5 * len(many)
