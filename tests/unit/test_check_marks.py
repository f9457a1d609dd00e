"""Where in time an instance looks for transactions to check (``coordinator/check_back.py``, rule H12)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from coordinator.check_back import Marks
from store.commit.terms import BEFORE, INFINITY

MINUTE = 60_000_000
#: microseconds since 2000, in 2026
NOW = 26 * 365 * 24 * 60 * MINUTE


def look(
    marks: Marks, *, left: int | None = None, full: bool = False, now: int = NOW, seconds: float = 0.001
) -> tuple[int, int]:
    """One look, after which nothing is left before it begins, or ``left`` on; what it looked at."""
    wanted = marks.wanted(7, now)
    assert wanted.most == 7
    marks.scanned(wanted.low if left is None else left, full=full, seconds=seconds)
    return wanted.low, wanted.high


def all_of_the_past(marks: Marks) -> list[tuple[int, int]]:
    """The pieces that it looks at, backwards; forwards in turns with them, always from the same time on."""
    pieces: list[tuple[int, int]] = []
    ahead = {look(marks)}
    while not marks.complete:
        assert len(pieces) < 150
        pieces.append(look(marks))
        ahead.add(look(marks))
    assert len(ahead) == 1
    return pieces


@pytest.mark.rule("H12")
def test_all_of_the_past_is_looked_at_without_a_gap() -> None:
    """From a minute ago on; no piece is longer than a minute, or than an eighth of the past that was looked at."""
    marks = Marks(NOW)
    pieces = all_of_the_past(marks)
    assert pieces[0][1] == NOW - MINUTE
    assert pieces[-1][0] == BEFORE
    assert all(later[0] == earlier[1] for later, earlier in pairwise(pieces))
    assert all(high - low <= max(MINUTE, (NOW - MINUTE - high) / 8) for low, high in pieces[:-1])
    assert [look(marks) for _ in range(3)] == [(NOW - MINUTE, INFINITY)] * 3


@pytest.mark.rule("H12")
def test_after_a_slow_look_the_next_piece_is_smaller() -> None:
    """So that none walks long through what was decided while a snapshot is held. The past is not endless even so."""
    marks = Marks(NOW)
    look(marks)
    pieces: list[tuple[int, int]] = []
    while not marks.complete:
        assert len(pieces) < 500
        pieces.append(look(marks, seconds=0.011))
        look(marks, seconds=0.011)
    assert all(high - low <= max(MINUTE, (NOW - MINUTE - high) / 32) for low, high in pieces[2:-1])


@pytest.mark.rule("H12")
def test_pieces_stay_small_until_a_look_is_quick() -> None:
    marks = Marks(NOW)
    look(marks)

    def part(seconds: float) -> int:
        """Of the past that was looked at."""
        low, high = look(marks, seconds=seconds)
        look(marks)
        return round((NOW - MINUTE - high) / (high - low))

    for _ in range(60):  # until parts are longer than the shortest piece
        part(0.001)
    assert [part(seconds) for seconds in (0.011, 0.011, 0.011, 0.009, 0.004)] == [8, 16, 32, 32, 32]
    assert [part(seconds) for seconds in (0.002, 0.002, 0.002, 0.002)] == [32, 16, 8, 8]


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
def test_forwards_it_begins_where_the_last_has_left_none() -> None:
    """Also where the clock of the store is behind: what is then between the two is looked at."""
    marks = Marks(NOW)
    look(marks, left=NOW - 5 * MINUTE)
    assert look(marks) == (NOW - 6 * MINUTE, NOW - 5 * MINUTE)
    assert look(marks, left=NOW) == (NOW - 5 * MINUTE, INFINITY)
    look(marks)
    assert look(marks)[0] == NOW


@pytest.mark.rule("H12")
def test_all_of_the_past_again() -> None:
    marks = Marks(NOW)
    first = all_of_the_past(marks)
    look(marks)
    marks.again()
    assert all_of_the_past(marks) == first


@pytest.mark.rule("H12")
def test_one_that_has_not_looked_for_long_begins_anew() -> None:
    """What is due long, and is left again and again, is no reason."""
    marks = Marks(NOW)
    all_of_the_past(marks)
    assert look(marks, now=NOW + 9 * MINUTE) == (NOW - MINUTE, INFINITY)
    assert look(marks, now=NOW + 18 * MINUTE) == (NOW - MINUTE, INFINITY)
    assert look(marks, now=NOW + 29 * MINUTE) == (NOW + 28 * MINUTE, INFINITY)
    assert look(marks, now=NOW + 29 * MINUTE)[1] == NOW + 28 * MINUTE
