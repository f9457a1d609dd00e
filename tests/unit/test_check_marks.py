"""Where in time an instance looks for transactions to check (``coordinator/check_marks.py``, rule H12)."""

from __future__ import annotations

import pytest

from coordinator.check_marks import Marks
from store.commit.terms import BEFORE, INFINITY

#: microseconds since 2000, in 2026
NOW = 26 * 365 * 86_400 * 1_000_000
LATE = 60_000_000
FAST, SLOW = 0.001, 0.1


def look(marks: Marks, *, left: int | None = None, full: bool = False, seconds: float = FAST) -> tuple[int, int]:
    """One look, after which nothing is left before it begins, or ``left`` on; what it looked at."""
    wanted = marks.wanted(7)
    assert wanted.most == 7
    marks.looked(wanted.low if left is None else left, full=full, seconds=seconds)
    return wanted.low, wanted.high


@pytest.mark.rule("H12")
@pytest.mark.parametrize(("seconds", "most"), [(FAST, 30), (0.01, 1000), (SLOW, 1000)])
def test_all_of_the_past_is_looked_at_without_a_gap(seconds: float, most: int) -> None:
    """Forwards and backwards in turns, from a minute ago on; however fast the looks are, they come to an end."""
    marks = Marks(NOW)
    back = NOW - LATE
    for _ in range(most):
        assert look(marks, seconds=seconds) == (NOW - LATE, INFINITY)
        if marks.complete:
            break
        low, high = look(marks, seconds=seconds)
        assert low < high == back
        back = low
    assert (back, marks.complete) == (BEFORE, True)
    assert [look(marks) for _ in range(3)] == [(NOW - LATE, INFINITY)] * 3


@pytest.mark.rule("H12")
def test_a_piece_in_which_more_are_due_is_looked_at_again() -> None:
    marks = Marks(NOW)
    look(marks)
    piece = look(marks, full=True)
    look(marks)
    assert look(marks) == piece
    look(marks)
    assert look(marks)[1] == piece[0]


@pytest.mark.rule("H12")
def test_pieces_are_longer_while_looks_are_fast_and_shorter_when_they_are_slow() -> None:
    marks = Marks(NOW)
    lengths = []
    for seconds in (FAST, FAST, 0.01, SLOW, FAST):
        look(marks)
        low, high = look(marks, seconds=seconds)
        lengths.append((high - low) // LATE)
    assert lengths == [1, 4, 16, 16, 4]


@pytest.mark.rule("H12")
def test_forwards_it_begins_where_the_last_has_left_none() -> None:
    """Also where the clock of the store is behind: what is then between the two is looked at."""
    marks = Marks(NOW)
    look(marks, left=NOW - 5 * LATE)
    assert look(marks) == (NOW - 6 * LATE, NOW - 5 * LATE)
    assert look(marks, left=NOW) == (NOW - 5 * LATE, INFINITY)
    look(marks)
    assert look(marks)[0] == NOW


@pytest.mark.rule("H12")
def test_all_of_the_past_again() -> None:
    marks = Marks(NOW)
    while not marks.complete:
        look(marks, left=NOW)
    marks.again()
    look(marks)
    states = [marks.complete]
    assert states == [False]
    assert look(marks)[1] == NOW
