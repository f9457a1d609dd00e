"""The database's time, as an instance tells it (``store/clock.py``)."""

from __future__ import annotations

import pytest

from store.clock import DatabaseClock, Reading
from tests.tables import all_cases


@all_cases(
    ("before", "database", "after", "ahead"),
    [
        (100.0, 100.5, 101.0, 0.0),
        (100.0, 100.0, 100.0, 0.0),
        (700.0, 100.0, 701.0, 600.0),
        (100.0, 700.0, 101.0, -599.0),
    ],
)
def test_it_is_off_by_no_more_than_it_must(before: float, database: float, after: float, ahead: float) -> None:
    assert DatabaseClock().compare(Reading(1.0, before), database, Reading(2.0, after)) == ahead


def test_it_tells_the_databases_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between a time of day that is set, and the next comparison."""
    steady = [5.0]
    monkeypatch.setattr("time.time", lambda: 1000.0)
    monkeypatch.setattr("time.monotonic", lambda: steady[0])
    clock = DatabaseClock()
    assert clock.now() == 1000.0
    assert clock.compare(Reading(5.0, 1000.0), 400.0, Reading(5.0, 1000.0)) == 600.0
    assert clock.now() == 400.0
    monkeypatch.setattr("time.time", lambda: 5000.0)
    steady[0] += 2.0
    assert clock.now() == 402.0
    assert clock.compare(Reading(7.0, 5000.0), 402.0, Reading(7.0, 5000.0)) == 4598.0
    assert clock.now() == 402.0
