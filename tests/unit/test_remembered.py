"""What a queue remembers of messages that it does not have is bounded (rules S4, S5)."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.group import fifo, refused
from coordinator.group.entries import Entry
from coordinator.group.fifo import FifoQueue
from coordinator.group.lanes import MessageGroup
from store.questions import message_groups as questions
from tests.fix_queue import Consumer, queue_of

pytestmark = pytest.mark.rule("S4", "S5")


def test_of_those_in_the_store_that_were_refused_the_oldest_may_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused, "MOST_KNOWN", 2)
    queue = queue_of([Consumer(1, 0)])
    for number in (1, 2, 3):
        entry = Entry(queue, number, number, b"x", 0, 0, b"")
        entry.refused_by = (1,)
        queue.held[number] = entry
        queue.forget(entry)
    assert [number for number in (1, 2, 3) if queue.refused.knows(number, 1)] == [2, 3]


def test_message_groups_with_nothing_to_deliver_are_given_up_where_they_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released: list[int] = []
    monkeypatch.setattr(fifo, "_MOST_IDLE", 2)
    monkeypatch.setattr(questions, "release", lambda asked, group, keys, *rest, **more: released.extend(keys))
    queue = queue_of([Consumer(1, 0)], kind=FifoQueue)
    assert isinstance(queue, FifoQueue)
    instance: Any = queue.instance
    instance.queries = None
    for key in (-1, -2, -3):
        group = queue.groups[key] = MessageGroup(key, queue.free)
        group.more = False
        queue.place(group)
        queue.pump()
    assert released == [-1, -2, -3]
    assert not queue.groups
