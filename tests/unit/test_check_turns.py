"""Which checkers an instance looks for next (``coordinator/check_back.py``)."""

from __future__ import annotations

from itertools import islice

import pytest

from coordinator.check_back import Turns
from tests.fix_check_back import Link

pytestmark = pytest.mark.rule("H11")

AT_ONCE = 4


def _with(count: int) -> tuple[Turns[Link], list[Link]]:
    turns, links = Turns[Link](), [Link(number) for number in range(count)]
    for link in links:
        turns.add(link)
    return turns, links


def _numbers(turns: Turns[Link]) -> list[int]:
    return [link.number for link in turns.take(AT_ONCE)]


def test_each_has_its_turn_in_a_round_and_those_with_more_room_go_first() -> None:
    turns, links = _with(6)
    turns.first([links[5], links[2]])
    assert (turns.hurried, _numbers(turns), turns.hurried) == (True, [5, 2], False)
    turns.begin()
    assert (turns.left, _numbers(turns), turns.left) == (6, [0, 1, 2, 3], 2)
    turns.first([links[1]])
    assert (_numbers(turns), turns.left, _numbers(turns)) == ([1, 4, 5], 0, [])
    turns.begin()
    assert _numbers(turns) == [0, 1, 2, 3]
    turns.begin()  # before the last one ends
    assert [_numbers(turns), _numbers(turns), _numbers(turns)] == [[4, 5, 0, 1], [2, 3], []]


def test_those_that_go_first_again_and_again_leave_the_others_their_turn() -> None:
    turns, links = _with(12)
    turns.begin()
    came: set[int] = set()
    for _ in range(6):
        turns.first(links[:6])
        came.update(_numbers(turns))
    assert came == set(range(12))


def test_one_that_is_gone_has_no_turn() -> None:
    turns, links = _with(6)
    turns.begin()
    turns.first(islice(links, 3))
    for link in links[1:]:
        turns.remove(link)
    assert _numbers(turns) == [0]
    turns.begin()
    turns.remove(links[0])
    assert turns.left == 0
    assert _numbers(turns) == []
