"""Entries that every consumer with room has refused stand aside (``coordinator/group/window.py``, rules P11, S4)."""

from __future__ import annotations

import pytest

from coordinator.bounds import Bounds
from coordinator.group import window as window_module
from coordinator.group.entries import Entry
from coordinator.group.queues import Queue
from coordinator.group.window import Window
from tests.fix_queue import Consumer, queue_of

pytestmark = pytest.mark.rule("P11", "S4")

KEY = 1


def refused(queue: Queue, count: int, octets: int = 1) -> list[Entry]:
    """So many in the window, refused by the consumer; the last is the first in order."""
    entries = []
    for number in range(count, 0, -1):
        entry = Entry(queue, number, number, bytes(octets), 0, 0, b"")
        entry.refused_by = (KEY,)
        queue.held[number] = entry
        queue.normal.give_back(entry)
        entries.append(entry)
    return entries


def window(consumer: Consumer, *, most: int = 10, octets: int = 1 << 20) -> Window:
    """Of a queue with this consumer; bounded."""
    queue = queue_of([consumer])
    queue.instance.bounds = Bounds(window_messages=most, window_bytes=octets)
    queue.instance.memory.window_bytes = octets
    return queue.normal


@pytest.mark.parametrize(("count", "octets", "stand_aside"), [(4, 1, 0), (5, 1, 5), (4, 200_000, 4)])
def test_they_do_so_when_they_fill_half_of_the_window(count: int, octets: int, stand_aside: int) -> None:
    """In messages or in octets; they count no more then, and have no message."""
    found = window(Consumer(KEY, 5))
    entries = refused(found.queue, count, octets)
    found.distribute()
    assert (len(found.aside), len(found)) == (stand_aside, count - stand_aside)
    assert found.octets == octets * (count - stand_aside)
    assert sum(entry.message is None for entry in entries) == stand_aside


def test_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stays is sent in its order to a consumer that has not refused it."""
    monkeypatch.setattr(window_module, "_MOST", 3)
    found = window(Consumer(KEY, 5))
    refused(found.queue, 9)
    found.distribute()
    assert (len(found.aside), len(found)) == (3, 6)
    stay = sorted(entry.id for entry in found.returned)
    found.aside.empty()
    other = Consumer(KEY + 1, 6)
    found.queue.add(other)
    found.distribute()
    assert other.got == stay


def test_what_waits_for_older_ones_of_the_store_does_not() -> None:
    found = window(Consumer(KEY, 5))
    refused(found.queue, 9)
    found.bound = (-4, 0)
    found.distribute()
    assert (len(found.aside), len(found)) == (0, 9)


def test_while_all_memory_is_full_none_does() -> None:
    found = window(Consumer(KEY, 5))
    refused(found.queue, 9)
    memory = found.queue.instance.memory
    memory.count_windows(memory.most + 1)
    found.distribute()
    assert (len(found.aside), len(found)) == (0, 9)
