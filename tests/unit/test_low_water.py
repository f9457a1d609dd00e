"""The low-water mark of a window among other instances: what was consumed at the head is not walked through again."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.group import loading, windows
from coordinator.group.entries import Entry
from coordinator.group.windows import Window
from coordinator.memory import Account
from coordinator.settings import LimitSettings
from store.priorities import Rank

SLACK = 1000
NEWEST = 50_000


class Instance:
    """Remembers the loads and the timers."""

    peers = 1
    limits = SimpleNamespace(window_messages=100, window_bytes=1 << 20)
    ids = SimpleNamespace(last=NEWEST)
    memory = Account(LimitSettings(), 1 << 30)

    def __init__(self) -> None:
        self.asked_above: list[int] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.loop = SimpleNamespace(call_later=lambda seconds, call: self.timers.append((seconds, call)))

    def load(self, window: Window, most: int, octets: int) -> None:
        self.asked_above.append(window.low)


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch) -> Instance:
    instance = Instance()
    monkeypatch.setattr(windows, "LOW_WATER_SLACK", SLACK)
    monkeypatch.setattr(loading, "load", instance.load)
    return instance


@pytest.fixture
def window(instance: Instance) -> Window:
    queue = SimpleNamespace(
        instance=instance, holding=False, returning=0, held={}, refused={}, wanted=lambda: 10, touch=lambda: None
    )
    return Window(cast(Any, queue), Rank.NORMAL)


def _entry(window: Window, number: int) -> Entry:
    return Entry(window.queue, number, number, b"m", 0, 0, b"", False, 4)


def _load(window: Window, *ids: int, complete: bool = True) -> None:
    """As the service does: where nothing is found above the mark, that says little."""
    window.in_store(None, 4)
    window.refill()
    complete = complete if ids else not window.low
    window.loaded([_entry(window, each) for each in ids], complete, window.version)
    window.empty()


def test_the_mark_stays_when_all_is_consumed(window: Window, instance: Instance) -> None:
    _load(window, 40_000, 45_000)
    _load(window, 46_000)
    _load(window)
    _load(window)
    assert instance.asked_above == [0, 45_000 - SLACK, 46_000 - SLACK, 46_000 - SLACK]


def test_an_empty_store_moves_the_mark_up_to_now(window: Window, instance: Instance) -> None:
    _load(window)
    _load(window)
    assert instance.asked_above == [0, NEWEST - SLACK]


def test_all_is_looked_at_by_and_by_once_for_any_number_of_news(window: Window, instance: Instance) -> None:
    _load(window)
    for number in range(NEWEST, NEWEST + 5):
        _load(window, number)
    assert 0 not in instance.asked_above[1:]
    ((seconds, look),) = instance.timers
    assert 0 < seconds <= 1
    look()
    assert window.more
    _load(window, 7)
    assert instance.asked_above[-1] == 0
    assert len(instance.timers) == 1, "a look at all is no news"


def test_a_store_that_is_long_to_look_through_is_looked_through_seldom(
    window: Window, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(windows, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    window.refill()
    clock[0] += 0.5
    window.loaded([], True, window.version)
    _load(window, NEWEST)
    assert instance.timers[0][0] == pytest.approx(10.0)


def test_what_came_back_by_id_lowers_the_mark(window: Window, instance: Instance) -> None:
    _load(window)
    window.in_store(17, 4)
    window.refill()
    assert instance.asked_above[-1] == 16


def test_when_the_time_has_come_an_empty_load_is_followed_by_a_look_at_all(
    window: Window, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    _load(window)
    monkeypatch.setattr(window, "_whole_at", 0.0)
    _load(window)
    assert window.more
    window.refill()
    assert instance.asked_above == [0, NEWEST - SLACK, 0]
