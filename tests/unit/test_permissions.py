"""Which names a permission is for, and how an instance learns of permissions (rule S3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.address.permissions import Permissions, Rights, unauthorized
from store.errors import StoreError, StoreUnavailable
from store.permissions import Verb
from store.questions.permissions import Found, Granted
from store.tables import ANONYMOUS
from tests.tables import all_cases


def _may(verb: Verb, pattern: str, name: str) -> bool:
    return Rights(frozenset({(verb.value, pattern)})).may(verb, name)


@pytest.mark.rule("S3", "S7")
@all_cases(
    ("pattern", "name"),
    [
        ("orders", "orders"),
        ("orders*", "orders"),
        ("orders*", "orders.eu"),
        ("*", ""),
        ("*", "%DLQ%orders"),
        ("a%", "a%"),
        ("a_*", "a_b"),
        ("[a]*", "[a]?"),
        ("caf\u00e9", "caf\u00e9"),
        ("\U0001f600*", "\U0001f600\U0001f601"),
        ("x" * 1024, "x" * 1024),
    ],
)
def test_a_pattern_fits_names(pattern: str, name: str) -> None:
    for verb in Verb:
        rights = Rights(frozenset({(verb.value, pattern)}))
        assert [each for each in Verb if rights.may(each, name)] == [verb]
        assert [each for each in Verb if rights.ever(each)] == [verb]


@pytest.mark.rule("S3", "S7")
@all_cases(
    ("pattern", "name"),
    [
        ("orders", "orders.eu"),
        ("orders", "order"),
        ("orders", "Orders"),
        ("orders*", "order"),
        ("orders*", "my-orders"),
        ("a%", "ab"),
        ("a_", "ab"),
        ("a?", "ab"),
        ("[ab]", "a"),
        (".*", "a"),
        ("caf\u00e9", "cafe\u0301"),  # another address, too
        ("x" * 1023, "x" * 1024),
        ("orders\u200b", "orders"),
    ],
)
def test_and_no_others(pattern: str, name: str) -> None:
    assert not any(_may(verb, pattern, name) for verb in Verb)


@pytest.mark.rule("S3", "D1")
def test_groups_of_an_address() -> None:
    for verb in (Verb.RECEIVE, Verb.BROWSE):
        assert _may(verb, "orders", "orders::billing")
        assert _may(verb, "orders::billing", "orders::billing")
        assert _may(verb, "orders::*", "orders::billing")
        assert not _may(verb, "orders::*", "orders")
        assert not _may(verb, "orders::billing", "orders")
        assert not _may(verb, "orders::billing", "orders::shipping")
    assert not _may(Verb.CHECK, "a", "a::b")  # a producer group may have such a name
    assert not _may(Verb.SEND, "a", "a::b")


@pytest.mark.rule("S3", "F6")
def test_a_verb_of_a_later_version_takes_none_of_the_others_away() -> None:
    rights = Rights(frozenset({("replay", "*"), ("replay", "orders"), ("send", "orders")}))
    assert rights.may(Verb.SEND, "orders")
    assert not any(rights.ever(verb) for verb in Verb if verb is not Verb.SEND)


@pytest.mark.rule("S3", "S7")
def test_a_refusal_shows_a_hostile_name_escaped_and_cut() -> None:
    said = unauthorized(Verb.SEND, "\x1b[2J\n" + "x" * 5000).description
    assert said.isprintable()
    assert len(said) < 200


class Store:
    """In place of an instance's connection to it, and of its loop."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.answers: list[Callable[[Found | StoreError], None]] = []
        self.timers: list[Callable[[], None]] = []
        self.contained: list[object] = []
        #: what the next answer says
        self.changes = 1
        self.none_counts = False
        #: of roles, among them the one of clients without a login
        self.roles: dict[str, Granted] = {}
        self.users: dict[str, Granted] = {}

    def ask(self, query: object, parameters: Sequence[bytes], answered: Callable[[Any], None]) -> None:
        self.asked.append(_names(parameters[0]))
        self.answers.append(answered)

    def answer(self) -> list[str]:
        """The first question; the names that it was about."""
        names = self.asked.pop(0)
        users = {name: self.users[name] for name in names if name in self.users}
        self.answers.pop(0)(Found(self.changes, self.none_counts, users, self.roles))
        return names

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.timers.append(callback)

    def contain(self, what: object) -> None:
        self.contained.append(what)


def _names(octets: bytes) -> list[str]:
    """Of an array in PostgreSQL's binary format."""
    at, names = 20, []
    while at < len(octets):
        size = int.from_bytes(octets[at : at + 4], "big")
        names.append(octets[at + 4 : at + 4 + size].decode())
        at += 4 + size
    return names


class Holder:
    def __init__(self, user: str | None, *roles: str) -> None:
        self.user = user
        self.roles = roles
        self.heard: list[Granted] = []

    def granted(self, rights: Rights) -> None:
        self.heard.append(rights.granted)


def _granted(*patterns: str) -> Granted:
    return frozenset(("send", pattern) for pattern in patterns)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def known(store: Store) -> Permissions:
    instance: Any = SimpleNamespace(queries=store, loop=store)
    known = Permissions(instance)
    known.start()
    assert store.answer() == []
    return known


@pytest.mark.rule("S3", "S5")
def test_users_that_come_at_once_are_asked_about_together(store: Store, known: Permissions) -> None:
    holders = [Holder(f"user {number}") for number in range(1200)]
    store.users = {f"user {number}": _granted(str(number)) for number in range(1200)}
    for holder in holders:
        known.enter(holder)
    sizes = []
    while store.answers:
        assert len(store.answers) == 1
        sizes.append(len(store.answer()))
    assert sizes == [1, 500, 500, 199]
    assert [holder.heard for holder in holders] == [[_granted(str(number))] for number in range(1200)]
    again = Holder("user 7")
    known.enter(again)
    assert (again.heard, store.answers) == ([_granted("7")], [])


@pytest.mark.rule("S3")
def test_a_change_is_told_to_those_whom_it_changes(store: Store, known: Permissions) -> None:
    alice, bob, none = Holder("alice"), Holder("bob"), Holder(None)
    for holder in (alice, bob, none):
        known.enter(holder)
    while store.answers:
        store.answer()
    store.users = {"bob": _granted("b")}
    store.changes += 1
    known.refresh()
    assert store.answer() == []
    assert sorted(store.answer()) == ["alice", "bob"]
    assert (alice.heard, bob.heard, none.heard) == ([_granted()], [_granted(), _granted("b")], [_granted()])
    store.roles[ANONYMOUS] = _granted("n")
    store.changes += 1
    store.timers.pop()()  # the look that needs no notice
    while store.answers:
        store.answer()
    assert (alice.heard, len(bob.heard), none.heard) == ([_granted()], 2, [_granted(), _granted("n")])


@pytest.mark.rule("S3")
def test_a_notice_during_a_question_has_it_asked_again(store: Store, known: Permissions) -> None:
    alice = Holder("alice")
    known.enter(alice)
    known.refresh()
    assert store.answer() == ["alice"]
    store.users, store.changes = {"alice": _granted("a")}, 2
    assert store.answer() == []
    assert store.answer() == ["alice"]
    assert alice.heard == [_granted(), _granted("a")]
    assert store.answers == []


@pytest.mark.rule("S3", "S5")
def test_what_is_kept_goes_with_the_last_connection_of_a_user(store: Store, known: Permissions) -> None:
    store.users = {"alice": _granted("a")}
    first, second = Holder("alice"), Holder("alice")
    known.enter(first)
    known.enter(second)
    known.leave(first)
    store.answer()
    assert (first.heard, second.heard) == ([], [_granted("a")])
    known.leave(second)
    known.leave(second)
    store.users = {}
    known.enter(first)
    assert first.heard == []
    store.answer()
    assert first.heard == [_granted()]


@pytest.mark.rule("S3")
def test_a_store_that_cannot_answer_is_asked_again(store: Store, known: Permissions) -> None:
    alice = Holder("alice")
    known.enter(alice)
    store.asked.pop()
    store.answers.pop()(StoreUnavailable("away"))
    assert (alice.heard, store.answers) == ([], [])
    store.timers.pop()()
    assert store.answer() == ["alice"]
    assert alice.heard == [_granted()]


@pytest.mark.rule("S13")
def test_roles_of_a_token_count_for_their_connection_alone(store: Store, known: Permissions) -> None:
    """Beside what the store grants to the user."""
    store.users["alice"] = _granted("a")
    store.roles = {"clerks": _granted("c"), "others": _granted("o")}
    plain, clerk = Holder("alice"), Holder("alice", "clerks", "nothing")
    known.enter(plain)
    known.enter(clerk)
    while store.asked:
        store.answer()
    assert (plain.heard[-1], clerk.heard[-1]) == (_granted("a"), _granted("a", "c"))


@pytest.mark.rule("S3", "P14")
def test_a_defect_of_one_connection_keeps_nothing_from_the_others(store: Store, known: Permissions) -> None:
    class Broken(Holder):
        def granted(self, rights: Rights) -> None:
            raise RuntimeError

    broken, sound = Broken("alice"), Holder("alice")
    known.enter(broken)
    known.enter(sound)
    store.answer()
    assert (store.contained, sound.heard) == ([broken], [_granted()])
