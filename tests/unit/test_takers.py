"""Consumers in turns (``coordinator/group/ready.py``): a message costs the same however many wait."""

from __future__ import annotations

import pytest

from coordinator.group.entries import Entry
from coordinator.group.queues import Queue
from store.commit import terms
from tests.fix_queue import Consumer, queue_of


def post(queue: Queue, entry_id: int) -> bool:
    """One message, posted and delivered by itself; whether it was born leased."""
    if not queue.reserve(1, terms.DEFAULT):
        return False
    queue.arrived(Entry(queue, entry_id, entry_id, b"x", 0, 0, b""))
    queue.pump()
    return True


@pytest.mark.parametrize("peers", [0, 1])
def test_a_lone_message_asks_one_consumer(peers: int) -> None:
    consumers = [Consumer(key, 10) for key in range(2000)]
    queue = queue_of(consumers, peers=peers)
    before = sum(each.asked for each in consumers)
    for number in range(1, 101):
        assert post(queue, number)
    assert sum(each.asked for each in consumers) - before <= 200
    assert sorted(len(each.got) for each in consumers)[-100:] == [1] * 100
    assert queue.wanted() == 2000 * 10 - 100


def test_consumers_take_turns() -> None:
    consumers = [Consumer(key, room) for key, room in enumerate((10, 2, 0, 10))]
    queue = queue_of(consumers)
    for number in range(1, 11):
        assert post(queue, number)
    assert [len(each.got) for each in consumers] == [4, 2, 0, 4]


def test_many_messages_are_shared_out() -> None:
    consumers = [Consumer(key, 100) for key in range(4)]
    queue = queue_of(consumers)
    for number in range(1, 41):
        assert queue.reserve(1, terms.DEFAULT)
        queue.arrived(Entry(queue, number, number, b"x", 0, 0, b""))
    queue.pump()
    assert [len(each.got) for each in consumers] == [10] * 4


def test_one_without_room_comes_again_when_it_says_so() -> None:
    full, other = Consumer(1, 1), Consumer(2, 1)
    queue = queue_of([full, other])
    for number in (1, 2, 3):
        assert post(queue, number)
    assert (full.got, other.got) == ([1], [2])
    full.has = 1
    queue.changed(full)
    queue.pump()
    assert full.got == [1, 3]


def test_among_instances_nothing_is_kept_that_has_no_room_here() -> None:
    consumers = [Consumer(1, 1), Consumer(2, 0)]
    queue = queue_of(consumers, peers=1)
    assert post(queue, 1)
    assert not post(queue, 2)
    queue.remove(consumers[0])
    consumers[1].has = 1
    queue.changed(consumers[1])
    assert post(queue, 3)
    assert queue.wanted() == 0


def test_those_that_drain_are_told_when_there_is_nothing() -> None:
    consumers = [Consumer(key, 5) for key in range(3)]
    queue = queue_of(consumers)
    assert post(queue, 1)
    for each in consumers[:2]:
        each.draining = True
        queue.changed(each)
    queue.pump()
    assert [each.has for each in consumers] == [0, 0, 5]
    assert post(queue, 2)
    assert consumers[2].got == [2]


def test_one_that_refused_what_is_first_holds_up_no_other() -> None:
    first, second = Consumer(1, 5), Consumer(2, 5)
    queue = queue_of([first, second])
    entry = Entry(queue, 1, 1, b"x", 0, 0, b"")
    entry.refused_by = (1,)
    queue.held[1] = entry
    queue.window(entry.priority).give_back(entry)
    queue.pump()
    assert (first.got, second.got) == ([], [1])
