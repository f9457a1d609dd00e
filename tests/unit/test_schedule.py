"""When the schedule looks into the store (rule D7): the loop and the store are stand-ins, and no time passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from coordinator.group.entries import now_micros
from coordinator.group.schedule import Schedule
from store.errors import StoreError, StoreUnavailable
from store.questions.schedule import Due, Promoted

pytestmark = pytest.mark.rule("D7")

#: What the rule allows: a message comes at most so long after its time.
ALLOWED_SECONDS = 1.0


class Instance:
    """What a schedule uses of one: ``looks`` are the times it asked for, ``answer`` ends its question to the store."""

    def __init__(self) -> None:
        self.loop = self.queries = self.ids = self
        self.peers = 0
        self.by_group: dict[int, object] = {}
        self.looks: list[float] = []
        self.answer: Callable[[Promoted | StoreError], None] | None = None
        self.schedule = Schedule(cast("Any", self), cast("Any", self))
        self.schedule.start()

    def next(self) -> int:
        return 1

    def ask(self, _query: object, _parameters: object, answer: Callable[[Promoted | StoreError], None]) -> None:
        self.answer = answer

    def call_later(self, seconds: float, _callback: Callable[[], None]) -> None:
        self.looks.append(seconds)

    def answered(self, answer: Promoted | StoreError) -> None:
        assert self.answer is not None
        self.answer(answer)


def nothing_due(next_ms: int | None) -> Promoted:
    return Promoted([], next_ms)


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
    instance.answered(Promoted([Due(7, 1, 200)], None))
    assert instance.looks == [0]


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
    instance.schedule._look()
    instance.answered(nothing_due(None))
    assert instance.looks[-1] > 0
