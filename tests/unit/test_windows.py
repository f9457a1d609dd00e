"""What is settled, or comes back, while a window is loaded (``coordinator/group/window.py``, rules D1, D5)."""

from __future__ import annotations

import pytest

from coordinator.group import loading
from coordinator.group.entries import Entry
from coordinator.group.queues import Queue
from coordinator.group.window import Window
from coordinator.transitions import OUTCOME
from tests.fix_queue import Consumer, queue_of

Loads = list[Window]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    """Windows that have asked the store."""
    asked: Loads = []
    monkeypatch.setattr(loading, "load", lambda window, most, octets: asked.append(window))
    return asked


def _entry(queue: Queue, number: int) -> Entry:
    return Entry(queue, number, number, b"x", 0, 0, b"")


def _reading(consumer: Consumer) -> Queue:
    """A queue that the instance holds whole; its first range is asked for."""
    queue = queue_of([consumer])
    queue.holding = True
    queue.normal.more = True
    queue.pump()
    return queue


@pytest.mark.rule("D5")
def test_what_comes_back_is_waited_for_before_what_is_newer_is_read(loads: Loads) -> None:
    consumer = Consumer(1, 1)
    queue = _reading(consumer)
    assert loads == [queue.normal]
    entry = _entry(queue, 1)
    queue.normal.loaded([entry], False, queue.normal.version)
    queue.pump()
    assert consumer.got == [1]
    entry.met(OUTCOME)
    queue.comes_back(entry)
    consumer.has = 1
    queue.changed(consumer)
    queue.pump()
    assert loads == [queue.normal]
    queue.yielded([1])
    queue.pump()
    assert len(loads) == 2


@pytest.mark.rule("D1")
def test_what_was_settled_while_a_range_was_read_is_not_sent_again(loads: Loads) -> None:
    """The read may have seen it before."""
    consumer = Consumer(1, 1)
    queue = _reading(consumer)
    first = _entry(queue, 1)
    queue.normal.loaded([first], False, queue.normal.version)
    queue.pump()
    consumer.has = 2
    queue.changed(consumer)
    queue.pump()
    assert loads == [queue.normal] * 2
    first.met(OUTCOME)
    queue.done_with(first)
    queue.normal.loaded([_entry(queue, 1), _entry(queue, 2)], True, queue.normal.version)
    queue.pump()
    assert consumer.got == [1, 2]
    assert list(queue.held) == [2]
