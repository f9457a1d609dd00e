"""The pictures of the overview show the last minutes, and say what they show (H19)."""

from __future__ import annotations

import pytest

from coordinator.http.charts import Chart, charts
from coordinator.process.recent import Recent
from coordinator.process.worker_reports import Workers
from store.figures import Decided, Figures, GroupFigures, State, Undecided

pytestmark = pytest.mark.rule("H19")


def _figures(commits: int, waiting: int) -> Figures:
    group = GroupFigures(address="orders", group="", ready=waiting, inflight=0, scheduled=0, failed=0, estimated=0)
    undecided = Undecided(plain=1, checkable=2, oldest_seconds=0.0, checks=0, waiting=0, halves=(), retired=0)
    decided = Decided(counts={("commit", "x"): commits, ("commit", "y"): 1, ("rollback", "x"): 7})
    return Figures(state=State(schema=True), entries=(group,), undecided=undecided, dead_letters=(), decided=decided)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which a test sets."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def _looked(clock: list[float], *looks: tuple[float, Figures]) -> dict[str, Chart]:
    held = Recent()
    for at, figures in looks:
        clock[0] = at
        held.add(figures, Workers())
    return {each.title: each for each in charts(held)}


def test_before_the_first_look_nothing_is_known(clock: list[float]) -> None:
    found = _looked(clock)
    assert {each.now for each in found.values()} == {"not known"}
    assert found["Messages that wait"].text == "Messages that wait: not known yet"


def test_a_look_alone_is_a_point(clock: list[float]) -> None:
    found = _looked(clock, (10.0, _figures(0, 5)))
    assert found["Messages that wait"].lines == ["240.0,2.0 240.0,2.0"]
    assert found["Undecided transactions"].now == "3"
    assert found["Commits a second"].lines == []


def test_rates_are_of_the_time_between_two_looks(clock: list[float]) -> None:
    found = _looked(clock, (0.0, _figures(0, 0)), (60.0, _figures(30, 4)), (120.0, _figures(180, 2)))
    commits, waiting = found["Commits a second"], found["Messages that wait"]
    assert (commits.now, found["Rollbacks a second"].now) == ("2.5", "0")
    assert waiting.text == "Messages that wait: 2; in the last 2 min 0 to 4"
    assert waiting.lines == ["0.0,46.0 120.0,2.0 240.0,24.0"]


def test_a_store_that_was_away_leaves_a_gap(clock: list[float]) -> None:
    away = Figures(decided=Decided())
    looks = [(0.0, _figures(0, 4)), (60.0, away), (120.0, _figures(60, 4))]
    found = _looked(clock, *looks)
    assert len(found["Messages that wait"].lines) == 2
    assert found["Commits a second"].now == "not known"


def test_what_is_kept_is_bounded(clock: list[float]) -> None:
    held = Recent()
    for number in range(1000):
        clock[0] = number * 1.0
        held.add(_figures(number, number), Workers())
    assert len(held.values(lambda seen: seen.waiting)) == 200
    clock[0] = 5000.0
    held.add(_figures(0, 0), Workers())
    assert held.values(lambda seen: seen.waiting) == [(0.0, 0.0)]
