"""What the service lacks to be ready, by what the last look into the store has seen (H19)."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from coordinator.http.live import Live
from coordinator.process import measuring
from coordinator.process.children import Supervising
from coordinator.process.measuring import POLL_SECONDS, Measuring
from coordinator.settings import Settings
from store.figures import Decided, Figures, State
from tests.tables import all_cases

_NONE_SERVES = "workers: none of this machine serves clients"

pytestmark = pytest.mark.rule("H19")


@all_cases(
    ("state", "wanting"),
    [
        (None, ["store: away, or it does not answer"]),
        (State(schema=False), ["schema: not the one of this version"]),
        (State(schema=True, instances_alive=1, days_ahead=1), []),
        (
            State(schema=True, only_reads=True, days_ahead=1),
            ["store: the database only reads: a standby, or a role or database set to read only (SQLSTATE 25006)"],
        ),
        (State(schema=True, instances_alive=1, days_ahead=0), ["days: 0 made ahead, 1 needed"]),
        (State(schema=True, instances_alive=1, days_ahead=-1), ["days: -1 made ahead, 1 needed"]),
    ],
)
def test_what_is_wanting(monkeypatch: pytest.MonkeyPatch, state: State | None, wanting: list[str]) -> None:
    assert _measuring(state, 0.0, monkeypatch).wanting() == wanting


@all_cases(
    ("reports", "wanting"),
    [
        ([], [_NONE_SERVES]),
        ([(0, True, 11.0)], [_NONE_SERVES]),
        ([(0, False, 0.0)], [_NONE_SERVES]),
        ([(0, False, 0.0), (1, True, 11.0)], [_NONE_SERVES]),
        ([(0, False, 0.0), (1, True, 9.0)], []),
    ],
)
def test_a_worker_of_this_machine_serves(
    monkeypatch: pytest.MonkeyPatch, reports: list[tuple[int, bool, float]], wanting: list[str]
) -> None:
    """Each report: the worker, whether it serves, and the age in seconds. Instances of other machines are none."""
    ready = State(schema=True, instances_alive=7, days_ahead=14)
    assert _measuring(ready, 0.0, monkeypatch, reports).wanting() == wanting


def test_a_look_of_long_ago_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = State(schema=True, instances_alive=1, days_ahead=14)
    assert _measuring(ready, 20.0, monkeypatch).wanting() == []
    assert _measuring(ready, 40.0, monkeypatch).wanting() == ["store: not looked at yet, or it does not answer"]


@pytest.mark.rule("S11")
def test_open_pages_are_told_that_the_look_is_of_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    live = Live(_measuring(State(schema=True, instances_alive=1, days_ahead=14), 0.0, monkeypatch, []))
    first = live.event()
    assert live.event() is first
    monkeypatch.setattr(measuring, "_FRESH_SECONDS", -1000.0)
    told, told_then = (json.loads(each.removeprefix("data: ")) for each in (first, live.event()))
    assert _NONE_SERVES in told["said"]
    assert "store: not looked at yet, or it does not answer" in told_then["said"]
    assert told_then["at"] == told["at"]


def test_before_the_first_look_it_is_not_ready() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert Measuring("postgresql://", Supervising(ours), Settings(), None).wanting() != []
        assert Measuring("postgresql://", Supervising(ours), Settings(), None).figures() is None


def test_parts_that_are_missing_are_told_and_so_is_their_return(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "POLL_SECONDS", 0.01)
    ours, theirs = socket.socketpair()
    looks = [("entries",), ("entries",), ("entries", "undecided"), (), ()]
    with ours, theirs, capture_logs() as told:
        of = Measuring("postgresql://", Supervising(ours), Settings(), None)

        def look() -> Figures:
            if len(looks) == 1:
                theirs.close()
            return Figures(decided=Decided(), failed=looks.pop(0))

        monkeypatch.setattr(of._reader, "read", look)
        of.run()
    missing = {"event": "metrics are missing", "log_level": "warning", "seconds": 0.0}
    assert told == [
        {**missing, "parts": ("entries",)},
        {**missing, "parts": ("entries", "undecided")},
        {"event": "all metrics are there again", "log_level": "info"},
    ]


@pytest.mark.parametrize(
    ("state", "seconds", "pause"),
    [
        (None, 7.0, POLL_SECONDS),
        (State(schema=True), 0.1, POLL_SECONDS),
        (State(schema=True), 7.0, 133.0),
    ],
    ids=["no store", "a short look", "a long look"],
)
def test_looks_take_a_part_of_the_time_and_a_store_that_is_away_is_looked_for_again(
    monkeypatch: pytest.MonkeyPatch, state: State | None, seconds: float, pause: float
) -> None:
    monkeypatch.setattr("coordinator.process.measuring.time.monotonic", lambda: 1000.0)
    ours, theirs = socket.socketpair()
    with ours:
        of = Measuring("postgresql://", Supervising(ours), Settings(), None)
        seen = Figures(state=state, decided=Decided(), seconds=seconds)
        monkeypatch.setattr(of._reader, "read", lambda: seen)
        theirs.close()
        of.run()
    assert of._last == (seen, 1000.0 + pause)


def _measuring(
    state: State | None,
    since: float,
    monkeypatch: pytest.MonkeyPatch,
    reports: Sequence[tuple[int, bool, float]] = ((0, True, 0.0),),
) -> Measuring:
    """``since``: seconds since the next look was due. ``reports``: worker, whether it serves, and the report's age."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        of = Measuring("postgresql://", Supervising(ours), Settings(), None)
    now = time.monotonic()
    of._last = (Figures(state=state, decided=Decided()), now - since)
    for worker, serves, age in reports:
        with monkeypatch.context() as then:
            then.setattr("coordinator.process.worker_reports.time.monotonic", lambda age=age: now - age)
            of.workers.receive(worker=worker, pid=1, figures={"serves": serves, "commit_waits": 0.0})
    return of
