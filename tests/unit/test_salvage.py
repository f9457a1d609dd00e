"""How long a batch that the server could not take waits, and when it is not sent again (store/commit/rescue.py)."""

from __future__ import annotations

import pytest

from store.commit.rescue import pause_seconds
from store.errors import Contended, Locked


def pauses(error: Contended, pausing: int, took: float = 0.1) -> list[float]:
    """Those between the attempts, until it is refused."""
    found: list[float] = []
    while (pause := pause_seconds(len(found) + 1, error, pausing, took)) is not None:
        found.append(pause)
    return found


@pytest.mark.rule("X3", "S5")
@pytest.mark.parametrize("pausing", [2, 5, 18])
def test_many_that_wait_for_locks_leave_the_time_to_others(pausing: int) -> None:
    """Each attempt may wait 0.2 s for its lock, and none of another batch is sent meanwhile."""
    found = pauses(Locked("x"), pausing, took=0.2)
    assert found, "it is sent again"
    assert pausing * 0.2 / max(found) <= 0.25
    assert sum(found) < 18


@pytest.mark.rule("X3", "S5")
def test_more_than_these_are_told_at_once_to_come_again() -> None:
    assert pauses(Locked("x"), 23, took=0.2) == []


@pytest.mark.rule("X3")
@pytest.mark.parametrize("pausing", [1, 200])
def test_those_that_find_rows_locked_and_do_not_wait_are_sent_again_for_some_12_seconds(pausing: int) -> None:
    found = pauses(Locked("x"), pausing)
    assert len(found) == 17
    assert 12 < sum(found) < 13


def test_one_that_the_server_cannot_take_is_sent_five_times() -> None:
    assert pauses(Contended("x"), 20) == [0.02, 0.04, 0.08, 0.16]
