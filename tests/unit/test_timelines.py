"""Timelines of a store's servers."""

from __future__ import annotations

from store.session import SeenTimelines, Timeline, read


def test_what_is_below_the_highest_is_left_behind() -> None:
    seen = SeenTimelines()
    assert [seen.above(Timeline(-7, number)) for number in (1, 2, 1, 2, 17, 2)] == [0, 0, 2, 0, 0, 17]


def test_timelines_of_another_system_are_others() -> None:
    """A store that was moved to a new server begins anew."""
    seen = SeenTimelines()
    assert [seen.above(Timeline(*at)) for at in ((7, 3), (8, 1), (8, 1), (8, 2), (8, 1))] == [0, 0, 0, 0, 2]


def test_a_standby_has_no_timeline() -> None:
    assert read(b"7501223344556677889 0000001F") == Timeline(7501223344556677889, 31)
    assert read("7501223344556677889 0") == Timeline(7501223344556677889, 0)
    assert read("") is None


def test_a_standby_is_not_left_behind() -> None:
    """Commands read it."""
    seen = SeenTimelines()
    assert [seen.above(Timeline(7, number)) for number in (2, 0)] == [0, 0]
    assert seen.above(None) == 0
