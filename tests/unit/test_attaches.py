"""Attaches with filters: some in each turn of the reactor, connections in turns (``links/endpoints.py``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coordinator.errors import Condition, Refusal
from links import endpoints
from links.endpoints import Attaches, InTurn

pytestmark = pytest.mark.rule("S5")


class Waiting(InTurn):
    """An attach that waits, without the engine's link."""

    def __init__(self, connection: Any, pointer: Any) -> None:
        self.connection, self.pointer, self.open = connection, pointer, True


class Client:
    """A connection that notes in ``answered`` the attaches that are answered; it is its own endpoints."""

    def __init__(self, reactor: Any, answered: list[int]) -> None:
        self.endpoints = self
        self.reactor = reactor
        self.waiting: dict[int, InTurn] = {}
        self._answered = answered

    def attach_source(self, pointer: int) -> None:
        self._answered.append(pointer)

    def attached(self, link: Any) -> None:
        self.waiting[link.pointer] = link

    def refuse_attach(self, link: Any, refusal: Refusal) -> None:
        link.open = False


class Reactor:
    """The loop of the attaches, turn by turn."""

    def __init__(self) -> None:
        loop: Any = self
        self.attaches = Attaches(loop)
        self.called: list[Callable[[], None]] = []

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.called.append(callback)

    def turn(self) -> None:
        called, self.called = self.called, []
        for callback in called:
            callback()


@pytest.fixture
def one_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.codec.selectors._TURN_SECONDS", 1e-9)
    monkeypatch.setattr(endpoints, "InTurn", Waiting)


@pytest.mark.usefixtures("one_in_a_turn")
def test_connections_take_turns_and_what_was_detached_or_refused_is_not_answered() -> None:
    reactor = Reactor()
    answered: list[int] = []
    much, little = Client(reactor, answered), Client(reactor, answered)
    clients: list[Any] = [much] * 6 + [little] * 2 + [much]
    for number, client in enumerate(clients):
        reactor.attaches.take(client, number)
    assert answered == [0]
    much.waiting[2].lost()
    for _ in range(2):
        much.waiting[8].refuse(Refusal(Condition.STOLEN, "attached again, by its name"))
    per_turn = []
    while reactor.called:
        reactor.turn()
        per_turn.append(len(answered))
    assert answered == [0, 1, 6, 3, 7, 4, 5]
    assert per_turn == [2, 3, 4, 5, 6, 7]
    reactor.attaches.take(clients[0], 9)
    assert answered[-1] == 9
