"""What is settled, or comes back, while a window is loaded (``coordinator/group/window.py``, rules D1, D5)."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.group.entries import Entry
from coordinator.group.queues import Queue
from coordinator.group.window import Window
from coordinator.transitions import OUTCOME
from store.commit.terms import Rank
from tests.fix_queue import Consumer, queue_of

Loads = list[Window]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    """Windows that have asked the store."""
    asked: Loads = []
    monkeypatch.setattr(Queue, "_load", lambda queue, window, most, octets: asked.append(window))
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
    queue.loaded(queue.normal, [entry], complete=False, version=queue.normal.version, by_range=True)
    queue.pump()
    assert consumer.got == [1]
    entry.met(OUTCOME)
    queue.expect_return(entry)
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
    queue.loaded(queue.normal, [first], complete=False, version=queue.normal.version, by_range=True)
    queue.pump()
    consumer.has = 2
    queue.changed(consumer)
    queue.pump()
    assert loads == [queue.normal] * 2
    first.met(OUTCOME)
    queue.done_with(first)
    again = [_entry(queue, 1), _entry(queue, 2)]
    queue.loaded(queue.normal, again, complete=True, version=queue.normal.version, by_range=True)
    queue.pump()
    assert consumer.got == [1, 2]
    assert list(queue.held) == [2]


#: (priority, id) of an entry
Place = tuple[int, int]


@pytest.mark.rule("D5", "P17")
@pytest.mark.parametrize(
    ("rank", "arrived", "news", "found", "order", "waits"),
    [
        (Rank.NORMAL, [(4, 1), (4, 2)], None, [], [1, 2], False),
        (Rank.NORMAL, [(4, 5)], 3, [], [5], True),
        (Rank.NORMAL, [(4, 5)], 3, [(4, 3)], [3, 5], False),
        (Rank.NORMAL, [(4, 5)], 9, [], [5], False),
        (Rank.NORMAL, [], None, [(4, 7), (4, 8)], [7, 8], False),
        (Rank.URGENT, [(6, 5), (9, 7)], None, [], [7, 5], True),
        (Rank.URGENT, [(6, 5)], None, [(8, 9)], [9, 5], False),
        (Rank.PATIENT, [(1, 5), (3, 6)], 2, [(1, 2)], [6, 2, 5], False),
    ],
)
def test_what_is_first_in_a_window_and_whether_it_waits_for_the_store(
    rank: Rank, arrived: list[Place], news: int | None, found: list[Place], order: list[int], waits: bool
) -> None:
    """``news``: an id that the store has; ``found``: what a load brings then."""
    queue: Any = None
    window = Window(rank)

    def entries(places: list[Place]) -> list[Entry]:
        return [Entry(queue, number, number, b"x", 0, 0, b"", False, priority) for priority, number in places]

    for entry in entries(arrived):
        window.reserve(entry.size)
        window.arrived(entry)
    if news is not None:
        window.in_store(news, None)
    if found:
        window.load_sent()
        came = entries(found)
        window.put(came)
        window.loaded(came, complete=False, version=window.version)
    assert (len(window), window.octets, window.reserved) == (len(order), len(order), 0)
    assert window.waits is waits
    assert [entry.id for entry in sorted(window.empty())] == order
    assert (len(window), window.octets) == (0, 0)
