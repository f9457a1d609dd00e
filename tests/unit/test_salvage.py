"""How long a batch that the server could not take waits, and when it is not sent again (store/commit/salvage.py)."""

from __future__ import annotations

import pytest

from store.commit.salvage import pause_seconds
from store.errors import Contended, Locked


def pauses(error: Contended, pausing: int) -> list[float]:
    """Those between the attempts, until it is refused."""
    found: list[float] = []
    while (pause := pause_seconds(len(found) + 1, error, pausing)) is not None:
        found.append(pause)
    return found


@pytest.mark.rule("X3", "S5")
@pytest.mark.parametrize("pausing", [2, 5, 18])
def test_many_that_find_rows_locked_leave_the_time_to_others(pausing: int) -> None:
    """Each attempt may wait 0.2 s for its lock, and none of another batch is sent meanwhile."""
    found = pauses(Locked("x"), pausing)
    assert found, "it is sent again"
    assert pausing * 0.2 / max(found) <= 0.25
    assert sum(found) < 15


@pytest.mark.rule("X3", "S5")
def test_more_than_these_are_told_at_once_to_come_again() -> None:
    assert pauses(Locked("x"), 19) == []


@pytest.mark.rule("X3")
def test_one_that_finds_a_row_locked_is_sent_again_for_some_12_seconds() -> None:
    found = pauses(Locked("x"), 1)
    assert len(found) == 14
    assert 9 < sum(found) < 12


def test_one_that_the_server_cannot_take_is_sent_five_times() -> None:
    assert pauses(Contended("x"), 20) == [0.02, 0.04, 0.08, 0.16]
