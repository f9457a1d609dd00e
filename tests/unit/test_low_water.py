"""The low-water mark of a window among other instances: what was consumed at the head is not walked through again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import store.loop
from coordinator.group import window as window_module
from coordinator.group.entries import Entry
from coordinator.group.window import Window
from store.commit.terms import Rank

SLACK = 1000
NEWEST = 50_000


class Loads:
    """Of a window: above which marks the store was asked, and in how many seconds all was to be looked at."""

    def __init__(self, rank: Rank = Rank.NORMAL, *, alone: bool = False) -> None:
        self.window = Window(rank)
        self._alone = alone
        self.asked_above: list[int] = []
        self.looks: list[float] = []

    def ask(self) -> None:
        self.marks = list(self.window.low.marks)
        self.asked_above.append(self.marks[0])
        self.window.load_sent()

    def answer(self, *found: tuple[int, int], complete: bool, late: bool = False) -> None:
        """``found``: priorities and ids. ``late``: there was news since the store was asked."""
        queue: Any = None
        entries = [Entry(queue, each, each, b"m", 0, 0, b"", False, priority) for priority, each in found]
        window = self.window
        version = window.version - late
        window.loaded(entries, complete=complete, version=version)
        seconds = window.move_low(entries, NEWEST, complete=complete, version=version, alone=self._alone)
        self.looks += [] if seconds is None else [seconds]
        window.load_ended()

    def load(self, *ids: int) -> None:
        self.load_of(*((4, each) for each in ids))

    def load_of(self, *found: tuple[int, int], complete: bool = True) -> None:
        """As the queue does: where nothing is found above the mark, that says little."""
        self.window.in_store(None, None)
        self.ask()
        self.answer(*found, complete=complete if found else self.window.low.reads_all)

    def look(self) -> None:
        """The time for it has come."""
        self.window.read_all_next(alone=False)


@pytest.fixture(autouse=True)
def slack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_module, "LOW_WATER_SLACK", SLACK)


def test_the_mark_stays_when_all_is_consumed() -> None:
    loads = Loads()
    loads.load(40_000, 45_000)
    loads.load(46_000)
    loads.load()
    loads.load()
    assert loads.asked_above == [0, 45_000 - SLACK, 46_000 - SLACK, 46_000 - SLACK]


def test_an_empty_store_moves_the_mark_up_to_now() -> None:
    loads = Loads()
    loads.load()
    loads.load()
    assert loads.asked_above == [0, NEWEST - SLACK]


def test_all_is_looked_at_by_and_by_once_for_any_number_of_news() -> None:
    loads = Loads()
    loads.load()
    for number in range(NEWEST, NEWEST + 5):
        loads.load(number)
    assert 0 not in loads.asked_above[1:]
    (seconds,) = loads.looks
    assert 0 < seconds <= 1
    loads.look()
    assert loads.window.more
    loads.load(7)
    assert loads.asked_above[-1] == 0
    assert len(loads.looks) == 1, "a look at all is no news"


def test_a_store_that_is_long_to_look_through_is_looked_through_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = Loads()
    clock = [100.0]
    for module in (window_module, store.loop):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    loads.ask()
    clock[0] += 0.5
    loads.answer(complete=True)
    loads.load(NEWEST)
    assert loads.looks[0] == pytest.approx(9.5)


def test_a_look_that_lasted_for_long_does_not_put_off_the_next_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process may have been stopped meanwhile."""
    monkeypatch.setattr(store.loop, "time", SimpleNamespace(monotonic=lambda: 100.0))
    assert window_module.WHOLE.after(90.0) == 130.0


def test_all_is_looked_at_by_and_by_while_a_backlog_is_read() -> None:
    """Each load is full; a look at all, too, is followed by the next after a while."""
    loads = Loads()
    loads.load_of((4, 40_000), complete=False)
    loads.load_of((4, 40_100), complete=False)
    (seconds,) = loads.looks
    assert 0 < seconds <= 1
    loads.look()
    loads.load_of((4, 7), complete=False)
    loads.load_of((4, 40_200), complete=False)
    assert loads.asked_above == [0, 40_000 - SLACK, 0, 0]


def test_what_came_back_by_id_lowers_the_mark() -> None:
    loads = Loads()
    loads.load()
    loads.window.in_store(17, 4)
    loads.ask()
    assert loads.asked_above[-1] == 16


def test_when_the_time_has_come_an_empty_load_is_followed_by_a_look_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = Loads()
    loads.load()
    monkeypatch.setattr(loads.window.low, "_whole_at", 0.0)
    loads.load()
    assert loads.window.more
    loads.ask()
    assert loads.asked_above == [0, NEWEST - SLACK, 0]


#: of the priorities above 9, and of 9 to 5
_URGENT = 6
_EMPTY = NEWEST - SLACK


def test_each_priority_has_a_mark_of_its_own() -> None:
    """A load that is full has read the higher priorities to their end, the last one as far as it came, the lower ones
    not at all.
    """
    loads = Loads(Rank.URGENT)
    loads.load_of((8, 41_000), (6, 40_000), (6, 42_000), complete=False)
    loads.load_of()
    assert loads.marks == [_EMPTY, _EMPTY, 41_000 - SLACK, _EMPTY, 42_000 - SLACK, 0]


def test_priorities_that_share_a_step_move_its_mark_when_all_are_read() -> None:
    loads = Loads(Rank.URGENT)
    loads.load_of((200, 42_000), (100, 40_000), complete=False)
    loads.load_of((100, 41_000), (9, 43_000), complete=False)
    loads.load_of()
    assert loads.asked_above == [0, 0, 41_000 - SLACK]


def test_alone_a_load_begins_behind_the_last_entry_taken() -> None:
    loads = Loads(Rank.PATIENT, alone=True)
    loads.load_of((3, 41_000), (0, 42_000))
    loads.load_of()
    assert loads.marks == [41_000, _EMPTY, _EMPTY, 42_000]


def test_what_came_back_lowers_the_mark_of_its_priority() -> None:
    """Also one that came back while a load is on its way."""
    loads = Loads(Rank.PATIENT)
    loads.load_of()
    loads.window.in_store(17, 2)
    loads.ask()
    assert loads.marks == [_EMPTY, 16, _EMPTY, _EMPTY]
    loads.window.in_store(11, 0)
    loads.answer((2, 17), complete=True, late=True)
    loads.ask()
    assert loads.marks == [_EMPTY, 0, _EMPTY, 10]
    loads.answer(complete=False)
    loads.window.in_store(5, None)
    loads.ask()
    assert loads.marks == [4] * 4


def test_all_urgent_ones_are_looked_at_by_and_by() -> None:
    loads = Loads(Rank.URGENT)
    loads.load_of()
    loads.load_of((5, NEWEST))
    (seconds,) = loads.looks
    assert 0 < seconds <= 1
    loads.look()
    assert loads.window.more
    loads.load_of()
    assert loads.marks == [0] * _URGENT


def test_what_came_back_while_a_load_was_on_its_way_keeps_the_mark_low() -> None:
    loads = Loads(Rank.PATIENT, alone=True)
    loads.window.in_store(None, None)
    loads.ask()
    loads.window.in_store(11, 0)
    loads.answer((1, 40_000), (0, 41_000), complete=True, late=True)
    loads.ask()
    assert loads.marks == [_EMPTY, _EMPTY, 40_000, 10]
