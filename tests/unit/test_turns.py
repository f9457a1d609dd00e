"""Whose turn it is (``store/turns.py``): of owners by their shares, and in a line one after the other."""

from __future__ import annotations

from collections import OrderedDict

import pytest

from store.turns import Turns, turn_of
from tests.tables import all_cases

pytestmark = pytest.mark.rule("S5")


def _of(waiting: str) -> Turns[str]:
    """Each letter is an item, of the owner with that letter."""
    turns: Turns[str] = Turns()
    for each in waiting:
        turns.add(each, each)
    return turns


def _taken(turns: Turns[str], costs: dict[str, float], most: int = 100) -> str:
    taken = ""
    while turns.ready and len(taken) < most:
        taken += turns.take()
        turns.charge(taken[-1], costs.get(taken[-1], 1.0))
    return taken


@all_cases(
    ("waiting", "costs", "taken"),
    [
        ("", {}, ""),
        ("aaa", {}, "aaa"),
        ("aaabbbccc", {}, "abcabcabc"),
        ("aaaaab", {}, "abaaaa"),
        ("aaaabbbb", {"a": 3.0}, "abbbabaa"),
        ("aabbbbbbcc", {"a": 0.0}, "aabcbcbbbb"),
    ],
)
def test_the_owner_that_has_had_the_least_is_next(waiting: str, costs: dict[str, float], taken: str) -> None:
    turns = _of(waiting)
    assert _taken(turns, costs) == taken
    assert (turns.count, turns.lines) == (0, {})


def test_items_of_one_owner_are_taken_in_order() -> None:
    turns: Turns[int] = Turns()
    for each in range(4):
        turns.add(each % 2, each)
    taken = []
    while turns.ready:
        taken.append(turns.take())
        turns.charge(taken[-1] % 2, 1.0)
    assert taken == [0, 1, 2, 3]


@all_cases(
    ("before", "cost", "late", "taken"),
    [
        ("a", 1.0, "l", "bblbbbb"),
        ("a", 50.0, "l", "bblbbbb"),
        ("abab", 1.0, "l", "bblbbbb"),
        ("a", 2.5, "aa", "bbbabab"),
    ],
)
def test_who_comes_waits_for_no_backlog_and_who_comes_again_has_had_its_share(
    before: str, cost: float, late: str, taken: str
) -> None:
    """An owner begins with what those that wait have had; one that was served keeps its sum until they have had it."""
    turns = _of(before + "bbbbbb")
    assert _taken(turns, {"a": cost}, len(before)) == before
    assert _taken(turns, {}, 2) == taken[:2]
    for each in late:
        turns.add(each, each)
    assert _taken(turns, {}, len(taken) - 2) == taken[2:]


def test_what_is_removed_has_no_turn() -> None:
    turns = _of("aabbc")
    for each in "abb":
        turns.remove(each, each)
    assert (turns.count, _taken(turns, {})) == (2, "ac")
    assert turns.lines == {}


def test_what_is_removed_in_the_turn_of_its_owner_leaves_nothing() -> None:
    turns = _of("aaab")
    assert turns.take() == "a"
    for _ in range(2):
        turns.remove("a", "a")
    turns.charge("a", 1.0)
    assert (turns.count, _taken(turns, {}), turns.lines) == (1, "b", {})


@all_cases(("waiting", "ready", "later"), [("", "", "123"), ("ab", "b", "12a3"), ("aabb", "bb", "12aa3")])
def test_an_owner_that_is_held_has_no_turn(waiting: str, ready: str, later: str) -> None:
    turns = _of(waiting)
    turns.hold("a", ["1", "2"])
    assert (turns.has_waiting("a"), _taken(turns, {})) == (True, ready)
    turns.add("a", "3")
    turns.release("a")
    for each in later:
        assert turns.take() == each
        turns.charge("a", 1.0)
    assert (turns.has_waiting("a"), turns.count, turns.lines) == (False, 0, {})


def test_in_a_line_each_has_its_turn() -> None:
    line = OrderedDict.fromkeys("abc")
    assert "".join(turn_of(line) for _ in range(7)) == "abcabca"
    del line["b"]
    line["d"] = None
    assert "".join(turn_of(line) for _ in range(4)) == "cadc"
