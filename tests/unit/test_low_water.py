"""The low-water mark of a window among other instances: what was consumed at the head is not walked through again."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.bounds import Bounds
from coordinator.group import loading
from coordinator.group import window as window_module
from coordinator.group.entries import Entry
from coordinator.group.window import Window
from coordinator.memory import Account
from store.commit.terms import Rank

SLACK = 1000
NEWEST = 50_000


class Instance:
    """Remembers the loads and the timers."""

    peers = 1
    bounds = SimpleNamespace(window_messages=100, window_bytes=1 << 20)
    ids = SimpleNamespace(last=NEWEST)
    memory = Account(Bounds(), 1 << 30)

    def __init__(self) -> None:
        self.asked_above: list[int] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.loop = SimpleNamespace(call_later=lambda seconds, call: self.timers.append((seconds, call)))

    def load(self, window: Window, most: int, octets: int) -> None:
        self.asked_above.append(window.low.marks[0])
        self.marks = list(window.low.marks)


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch) -> Instance:
    instance = Instance()
    monkeypatch.setattr(window_module, "LOW_WATER_SLACK", SLACK)
    monkeypatch.setattr(loading, "load", instance.load)
    return instance


@pytest.fixture
def window(instance: Instance) -> Window:
    return _window(instance, Rank.NORMAL)


def _window(instance: Instance, rank: Rank) -> Window:
    queue = SimpleNamespace(
        instance=instance, holding=False, returning=0, held={}, refused={}, wanted=lambda: 10, touch=lambda: None
    )
    return Window(cast(Any, queue), rank)


def _entry(window: Window, number: int, priority: int = 4) -> Entry:
    return Entry(window.queue, number, number, b"m", 0, 0, b"", False, priority)


def _load(window: Window, *ids: int) -> None:
    _load_of(window, *((4, each) for each in ids))


def _load_of(window: Window, *found: tuple[int, int], complete: bool = True) -> None:
    """As the service does: where nothing is found above the mark, that says little. ``found``: priorities and ids."""
    window.in_store(None, None)
    window.refill()
    complete = complete if found else window.low.looks_at_all
    window.loaded([_entry(window, each, priority) for priority, each in found], complete, window.version)
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
    monkeypatch.setattr(window_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    window.refill()
    clock[0] += 0.5
    window.loaded([], True, window.version)
    _load(window, NEWEST)
    assert instance.timers[0][0] == pytest.approx(10.0)


def test_a_look_that_lasted_for_long_does_not_put_off_the_next_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process may have been stopped meanwhile."""
    monkeypatch.setattr(window_module, "time", SimpleNamespace(monotonic=lambda: 100.0))
    assert window_module.next_whole_look(90.0) == 130.0


def test_all_is_looked_at_by_and_by_while_a_backlog_is_read(window: Window, instance: Instance) -> None:
    """Each load is full; a look at all, too, is followed by the next after a while."""
    _load_of(window, (4, 40_000), complete=False)
    _load_of(window, (4, 40_100), complete=False)
    ((seconds, look),) = instance.timers
    assert 0 < seconds <= 1
    look()
    _load_of(window, (4, 7), complete=False)
    _load_of(window, (4, 40_200), complete=False)
    assert instance.asked_above == [0, 40_000 - SLACK, 0, 0]


def test_what_came_back_by_id_lowers_the_mark(window: Window, instance: Instance) -> None:
    _load(window)
    window.in_store(17, 4)
    window.refill()
    assert instance.asked_above[-1] == 16


def test_when_the_time_has_come_an_empty_load_is_followed_by_a_look_at_all(
    window: Window, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    _load(window)
    monkeypatch.setattr(window.low, "_whole_at", 0.0)
    _load(window)
    assert window.more
    window.refill()
    assert instance.asked_above == [0, NEWEST - SLACK, 0]


#: of the priorities above 9, and of 9 to 5
_URGENT = 6
_EMPTY = NEWEST - SLACK


def test_each_priority_has_a_mark_of_its_own(instance: Instance) -> None:
    """A load that is full has read the higher priorities to their end, the last one as far as it came, the lower ones
    not at all.
    """
    window = _window(instance, Rank.URGENT)
    _load_of(window, (8, 41_000), (6, 40_000), (6, 42_000), complete=False)
    _load_of(window)
    assert instance.marks == [_EMPTY, _EMPTY, 41_000 - SLACK, _EMPTY, 42_000 - SLACK, 0]


def test_priorities_that_share_a_step_move_its_mark_when_all_are_read(instance: Instance) -> None:
    window = _window(instance, Rank.URGENT)
    _load_of(window, (200, 42_000), (100, 40_000), complete=False)
    _load_of(window, (100, 41_000), (9, 43_000), complete=False)
    _load_of(window)
    assert instance.asked_above == [0, 0, 41_000 - SLACK]


def test_alone_a_load_begins_behind_the_last_entry_taken(instance: Instance) -> None:
    window = _window(instance, Rank.PATIENT)
    window.queue.holding = True
    _load_of(window, (3, 41_000), (0, 42_000))
    _load_of(window)
    assert instance.marks == [41_000, _EMPTY, _EMPTY, 42_000]


def test_what_came_back_lowers_the_mark_of_its_priority(instance: Instance) -> None:
    """Also one that came back while a load is on its way."""
    window = _window(instance, Rank.PATIENT)
    _load_of(window)
    window.in_store(17, 2)
    window.refill()
    assert instance.marks == [_EMPTY, 16, _EMPTY, _EMPTY]
    window.in_store(11, 0)
    window.loaded([_entry(window, 17, 2)], True, window.version - 1)
    window.refill()
    assert instance.marks == [_EMPTY, 0, _EMPTY, 10]
    window.loaded([], False, window.version)
    window.in_store(5, None)
    window.refill()
    assert instance.marks == [4] * 4


def test_all_urgent_ones_are_looked_at_by_and_by(instance: Instance) -> None:
    window = _window(instance, Rank.URGENT)
    _load_of(window)
    _load_of(window, (5, NEWEST))
    ((seconds, look),) = instance.timers
    assert 0 < seconds <= 1
    look()
    assert window.more
    _load_of(window)
    assert instance.marks == [0] * _URGENT


def test_what_came_back_while_a_load_was_on_its_way_keeps_the_mark_low(instance: Instance) -> None:
    window = _window(instance, Rank.PATIENT)
    window.queue.holding = True
    window.in_store(None, None)
    window.refill()
    window.in_store(11, 0)
    window.loaded([_entry(window, 40_000, 1), _entry(window, 41_000, 0)], True, window.version - 1)
    window.refill()
    assert instance.marks == [_EMPTY, _EMPTY, 40_000, 10]
