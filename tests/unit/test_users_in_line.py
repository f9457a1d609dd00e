"""Clients that log in stand in line for the store, so that others' questions do not wait behind all of them (S5)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.login.password import Code, Outcome
from coordinator.login.users import FOUND_SECONDS, MOST_ASKED, STORE_SECONDS, Users
from store.users import Verifier

CLIENTS = 10 * MOST_ASKED


class Store:
    """In place of an instance's connection to it, and of its loop."""

    def __init__(self) -> None:
        self.names: list[bytes] = []
        self.answers: list[Callable[[object], None]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def ask(self, query: object, parameters: Sequence[bytes], answered: Callable[[object], None]) -> None:
        self.names.append(parameters[0])
        self.answers.append(answered)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.timers.append((seconds, callback))

    def run_timers(self) -> None:
        for _, callback in list(self.timers):
            callback()

    def run_next_timer(self) -> None:
        """The one that is due first."""
        self.timers.remove(due := min(self.timers, key=lambda timer: timer[0]))
        due[1]()


class Kept:
    """A client that logs in."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def found(self, answer: object) -> None:
        self.told.append(answer)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def said(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Verifier | Outcome | None]]:
    """What each of the clients is told, by its number; all log in at once."""
    monkeypatch.setattr("coordinator.login.users.time", SimpleNamespace(monotonic=lambda: 7.0))
    instance: Any = SimpleNamespace(queries=store, loop=store)
    users = Users(instance, b"secret")
    said: list[tuple[int, Verifier | Outcome | None]] = []

    def look_up(number: int) -> None:
        def say(answer: Verifier | Outcome | None) -> None:
            said.append((number, answer))

        users.look_up(f"user {number}", "SCRAM-SHA-256", say, say)

    for number in range(CLIENTS):
        look_up(number)
    return said


@pytest.mark.rule("S1", "S5")
def test_all_are_asked_about_a_few_at_a_time(store: Store, said: list[tuple[int, object]]) -> None:
    while store.answers:
        assert len(store.answers) <= MOST_ASKED
        store.answers.pop(0)(None)
    store.run_timers()
    assert said == [(number, None) for number in range(CLIENTS)]
    assert store.names == [f"user {number}".encode() for number in range(CLIENTS)]


@pytest.mark.rule("S1", "S5")
def test_a_store_that_does_not_answer_is_asked_no_more_for_those_that_were_sent_away(
    store: Store, said: list[tuple[int, object]]
) -> None:
    store.run_timers()
    assert said == [(number, Outcome(Code.SYS_TEMP)) for number in range(CLIENTS)]
    for answer in list(store.answers):
        answer(None)
    assert len(said) == CLIENTS
    assert len(store.names) == MOST_ASKED


@pytest.mark.rule("S1")
@pytest.mark.parametrize("found", [None, Verifier(salt=b"salt", iterations=1, stored_key=b"k", server_key=b"k")])
def test_none_is_told_sooner_whether_its_user_is_there_or_not(
    store: Store, said: list[tuple[int, object]], found: Verifier | None
) -> None:
    """How long the store takes says whether it has a row."""
    assert store.answers
    store.answers.pop(0)(found)
    assert said == []
    ((seconds, tell),) = [each for each in store.timers if each[0] != STORE_SECONDS]
    assert seconds == pytest.approx(FOUND_SECONDS)
    tell()
    assert said == [(0, found)]


@pytest.mark.rule("S4")
def test_nothing_is_kept_of_a_login_until_its_deadline(store: Store) -> None:
    """A flood of those that end at once would hold the memory of seconds of them."""
    instance: Any = SimpleNamespace(queries=store, loop=store)
    users, client = Users(instance, b"secret"), Kept()
    kept = weakref.ref(client)
    users.look_up("alice", "SCRAM-SHA-256", client.found, client.found)
    store.answers.pop()(None)
    store.run_next_timer()
    assert client.told == [None]
    del client
    assert [seconds for seconds, _ in store.timers] == [STORE_SECONDS]
    assert kept() is None
