"""When the schedule looks into the store (rule D7): the loop and the store are stand-ins, and no time passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

import store.loop
from coordinator.group import schedule
from coordinator.group.entries import now_micros
from coordinator.group.schedule import Schedule
from store.errors import StoreError, StoreUnavailable
from store.questions.schedule import Due, Promoted

pytestmark = pytest.mark.rule("D7")

#: What the rule allows: a message comes at most so long after its time.
ALLOWED_SECONDS = 1.0

THROUGH = 1_000_000
BEFORE_ALL = -(1 << 63)


class Instance:
    """What a schedule uses of one: ``looks`` are the times it asked for, ``answer`` ends its question to the store."""

    def __init__(self) -> None:
        self.loop = self.queries = self.ids = self
        self.peers = 0
        self.by_group: dict[int, object] = {}
        self.looks: list[float] = []
        self.answer: Callable[[Promoted | StoreError], None] | None = None
        self.asked_above: list[int] = []
        self.patience: bytes | None = None
        self.schedule = Schedule(cast("Any", self), cast("Any", self))
        self.schedule.start()

    def next(self) -> int:
        return 1

    def ask(
        self, _query: object, parameters: Sequence[bytes | None], answer: Callable[[Promoted | StoreError], None]
    ) -> None:
        assert parameters[2] is not None
        self.asked_above.append(int.from_bytes(parameters[2], "big", signed=True))
        self.patience = parameters[3]
        self.answer = answer

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.looks.append(seconds)
        self.look = callback

    def look_again(self) -> None:
        self.schedule._next = 0.0
        self.look()

    def answered(self, answer: Promoted | StoreError) -> None:
        assert self.answer is not None
        self.answer(answer)


def nothing_due(next_ms: int | None) -> Promoted:
    return Promoted([], next_ms, THROUGH)


@pytest.mark.parametrize("answer", [nothing_due(None), nothing_due(60_000), StoreUnavailable("away")], ids=str)
def test_what_others_post_is_looked_for_often_enough(answer: Promoted | StoreError) -> None:
    instance = Instance()
    instance.answered(answer)
    assert instance.looks[-1] <= ALLOWED_SECONDS / 2


def test_the_next_known_time_is_looked_at() -> None:
    instance = Instance()
    instance.answered(nothing_due(200))
    assert instance.looks == [pytest.approx(0.2)]


def test_what_is_posted_here_is_looked_for_at_its_time() -> None:
    instance = Instance()
    instance.answered(nothing_due(None))
    before = len(instance.looks)
    instance.schedule.due(now_micros() + 100_000)
    (look,) = instance.looks[before:]
    assert 0 <= look <= 0.1


def test_more_than_one_look_brings_is_looked_for_at_once() -> None:
    instance = Instance()
    instance.answered(Promoted([Due(7, 1, 200)], None, THROUGH))
    assert instance.looks == [0]


@pytest.mark.rule("X2", "P17")
def test_what_is_due_is_read_in_the_rank_of_its_priority_alone() -> None:
    """A look into the store for each of the others would wait for the disk once more."""
    instance = Instance()
    told: list[tuple[int | None, int | None]] = []
    instance.by_group[7] = SimpleNamespace(in_store=lambda lowest, priority: told.append((lowest, priority)))
    instance.answered(Promoted([Due(7, 1, 2), Due(7, 3, 1, 9)], None, THROUGH))
    assert told == [(1, 4), (3, 9)]


def test_what_another_process_made_due_is_looked_for_at_once() -> None:
    instance = Instance()
    instance.answered(nothing_due(None))
    instance.schedule.notified("")
    assert instance.looks[-1] == 0


def test_what_was_made_due_during_a_look_is_looked_for_after_it() -> None:
    instance = Instance()
    instance.schedule.notified("")
    instance.answered(nothing_due(None))
    assert instance.looks[-1] == 0
    instance.schedule._query()
    instance.answered(nothing_due(None))
    assert instance.looks[-1] > 0


def test_another_that_has_the_turn_for_long_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the turn is free again; where it is given at times, another is not passed over."""
    instance = Instance()
    now = 1000.0
    monkeypatch.setattr("coordinator.group.schedule.time.monotonic", lambda: now)
    found = []
    for turn in (0, 0, 1, 0, 0, 2, 2, 1, 0):
        found.append(instance.patience and int.from_bytes(instance.patience, "big") >> 22)
        instance.answered(nothing_due(None)._replace(turn=turn))
        now += 1.0
        instance.look_again()
    assert found == [None, None, 2000, None, None, 2000, 0, 0, None]


def test_a_look_begins_where_the_one_before_ended() -> None:
    instance = Instance()
    instance.answered(nothing_due(20))
    instance.look_again()
    assert instance.asked_above == [BEFORE_ALL, THROUGH]


@pytest.mark.parametrize("early", [True, False], ids=["while it looks", "later"])
def test_what_is_posted_here_late_is_not_passed_over(early: bool) -> None:
    """Its time had come before it was durable; also while a look is on its way that may not have seen it."""
    instance = Instance()
    if early:
        instance.schedule.due(THROUGH - 5)
    instance.answered(nothing_due(20))
    if not early:
        instance.schedule.due(THROUGH - 5)
    instance.look_again()
    instance.answered(nothing_due(20))
    instance.look_again()
    assert instance.asked_above == [BEFORE_ALL, THROUGH - 6, THROUGH]


def test_what_others_post_late_is_found_by_a_look_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    for module in (schedule, store.loop):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    instance = Instance()
    clock[0] += 0.1
    instance.answered(nothing_due(None))
    for _ in range(5):
        clock[0] += 0.5
        instance.look_again()
        instance.answered(nothing_due(None))
    whole = [above == BEFORE_ALL for above in instance.asked_above]
    assert whole == [True, False, False, False, True, True], "the first took 0.1 s: the next is 2 s later"


def test_what_another_process_made_due_may_be_of_a_while_before() -> None:
    """It gets the time at which its transaction began."""
    instance = Instance()
    instance.answered(nothing_due(20))
    instance.schedule.notified("")
    instance.look_again()
    assert instance.asked_above == [BEFORE_ALL, THROUGH - 60_000_000]


@pytest.mark.rule("X2")
def test_a_notice_that_says_since_when_is_looked_for_from_then_on() -> None:
    """A commit of an application may take longer than what is looked back for without it."""
    instance = Instance()
    instance.answered(nothing_due(None))
    instance.schedule.notified(str(THROUGH - 600_000_000))
    instance.look_again()
    assert instance.asked_above[-1] == THROUGH - 600_000_001


@pytest.mark.rule("X2")
def test_after_a_notice_of_an_application_others_without_one_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Soon, then more and more rarely, and each time from when on the notice says."""
    instance = Instance()
    instance.answered(nothing_due(None))
    instance.schedule.notified(str(THROUGH - 5000))
    instance.look_again()
    for _ in range(6):
        instance.answered(nothing_due(None))
        instance.look_again()
    assert instance.looks[-6:] == [pytest.approx(0.01 * 2**each) for each in range(6)]
    assert instance.asked_above[-6:] == [THROUGH - 5001] * 6
    monkeypatch.setattr(schedule, "time", SimpleNamespace(monotonic=lambda: 1e9))
    instance.schedule._whole_at = 2e9
    instance.answered(nothing_due(None))
    instance.look_again()
    instance.answered(nothing_due(None))
    assert (instance.asked_above[-1], instance.looks[-1]) == (THROUGH, 0.5)
