"""What all consumers with room have refused (``coordinator/group/refused.py``, rules P11, S4): it stands aside where it
is in the way of others, and goes to other instances.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.bounds import Bounds
from coordinator.group import refused as refused_module
from coordinator.group.entries import Entry
from coordinator.group.queues import Queue
from coordinator.group.units import Offer
from tests.fix_queue import Consumer, queue_of

KEY = 1


def queue_with(consumer: Consumer, *, most: int = 10, octets: int = 1 << 20) -> Queue:
    """A bounded one."""
    queue = queue_of([consumer])
    queue.instance.bounds = Bounds(window_messages=most, window_bytes=octets)
    queue.instance.memory.window_bytes = octets
    return queue


def refused(queue: Queue, count: int, octets: int = 1, priority: int = 4) -> list[Entry]:
    """So many in the window, refused by the consumer; the last is the first in order."""
    entries = []
    for number in range(count, 0, -1):
        entry = Entry(queue, number, number, bytes(octets), 0, 0, b"", False, priority)
        entry.refused_by = (KEY,)
        queue.held[number] = entry
        queue.window(priority).give_back(entry)
        entries.append(entry)
    queue.pump()
    return entries


@pytest.mark.rule("P11", "S4")
@pytest.mark.parametrize(("count", "octets", "stand_aside"), [(4, 1, 0), (5, 1, 5), (4, 200_000, 4)])
def test_they_stand_aside_when_they_fill_half_of_the_window(count: int, octets: int, stand_aside: int) -> None:
    """In messages or in octets; they count no more then, and have no message."""
    queue = queue_with(Consumer(KEY, 5))
    entries = refused(queue, count, octets)
    assert (len(queue.refused.aside), len(queue.normal)) == (stand_aside, count - stand_aside)
    assert queue.window_octets == octets * (count - stand_aside)
    assert sum(entry.message is None for entry in entries) == stand_aside


@pytest.mark.rule("P11", "S4")
def test_the_number_of_those_that_stand_aside_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stays is sent in its order to a consumer that has not refused it."""
    monkeypatch.setattr(refused_module, "_MOST_ASIDE", 3)
    queue = queue_with(Consumer(KEY, 5))
    refused(queue, 9)
    assert (len(queue.refused.aside), len(queue.normal)) == (3, 6)
    stay = sorted(entry.id for entry in queue.normal.returned)
    queue.refused.empty()
    other = Consumer(KEY + 1, 6)
    queue.add(other)
    queue.normal.more, queue.normal.bound = False, None
    queue._distribute(queue.normal)
    assert other.got == stay


@pytest.mark.rule("P11", "D5")
def test_what_waits_for_older_ones_of_the_store_does_not_stand_aside() -> None:
    queue = queue_with(Consumer(KEY, 5))
    queue.normal.bound = (-4, 0)
    refused(queue, 9)
    assert (len(queue.refused.aside), len(queue.normal)) == (0, 9)


@pytest.mark.rule("P11", "S4")
def test_while_all_memory_is_full_none_stands_aside() -> None:
    queue = queue_with(Consumer(KEY, 5))
    queue.instance.memory.count_windows(queue.instance.memory.most + 1)
    refused(queue, 9)
    assert (len(queue.refused.aside), len(queue.normal)) == (0, 9)


@pytest.mark.rule("P11", "P17", "D5")
@pytest.mark.parametrize("priority", [4, 7])
def test_for_a_consumer_that_may_take_some_they_go_to_the_store_and_come_in_their_order(
    monkeypatch: pytest.MonkeyPatch, priority: int
) -> None:
    """With what is in their window, before anything newer."""
    monkeypatch.setattr(Queue, "_load", lambda queue, window, most, octets: None)
    queue = queue_with(Consumer(KEY, 5))
    units: list[Any] = []
    instance: Any = queue.instance
    instance.commit = SimpleNamespace(add=units.append)
    refused(queue, 9, priority=priority)
    other = Consumer(KEY + 1, 5)
    queue.consumers[other] = None
    queue.changed(other)
    queue.pump()
    assert (len(queue.refused.aside), len(queue.window(priority)), queue.held, other.got) == (0, 0, {}, [])
    assert [sorted(unit._ids) for unit in units] == [list(range(1, 10))]
    assert queue.window(priority).bound == (-4 if priority == 4 else -(1 << 15), 0)
    assert all(queue.refused.knows(number, KEY) for number in range(1, 10))


KEYS = (1, 2)


class Offering:
    """A queue with other instances; both of its consumers have refused four messages, of which two are offered at
    once.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(refused_module, "_AT_ONCE", 2)
        monkeypatch.setattr(Queue, "_load", lambda queue, window, most, octets: None)
        self.consumers = [Consumer(key, 5) for key in KEYS]
        self.queue = queue_of(self.consumers, peers=1)
        instance: Any = self.queue.instance
        self.timers: list[Callable[[], None]] = []
        self.pauses: list[float] = []
        self.units: list[Offer] = []
        instance.loop.call_later = self._call_later
        instance.commit = SimpleNamespace(add=self.units.append)
        self.come(*range(1, 5))

    def _call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        if callback == self.queue.refused._offer:
            self.pauses.append(seconds)
        self.timers.append(callback)

    def come(self, *numbers: int) -> None:
        """From the store; both have refused them."""
        for number in numbers:
            entry = Entry(self.queue, number, number, b"x", 0, 0, b"")
            entry.refused_by = KEYS
            self.queue.held[number] = entry
            self.queue.normal.give_back(entry)

    def run_timers(self) -> None:
        timers, self.timers[:] = list(self.timers), []
        for run in timers:
            run()

    def offer(self) -> Offer:
        """The next one."""
        before = len(self.units)
        while len(self.units) == before:
            self.queue.pump()
            self.run_timers()
        return self.units[-1]


@pytest.fixture
def offering(monkeypatch: pytest.MonkeyPatch) -> Offering:
    return Offering(monkeypatch)


@pytest.mark.rule("P11", "D5")
def test_what_was_offered_is_looked_for_again(offering: Offering) -> None:
    """After a moment; before, no more are offered."""
    offer = offering.offer()
    for _ in range(3):
        offering.queue.pump()
        offering.run_timers()
    assert len(offering.units) == 1
    offer.durable()
    assert offering.queue.normal.bound is None
    offering.run_timers()
    assert offering.queue.normal.bound == (-4, 0)


@pytest.mark.rule("P11")
def test_others_have_a_moment_to_take_them(offering: Offering) -> None:
    offering.offer().durable()
    offering.queue.pump()
    assert not offering.queue.normal.more


@pytest.mark.rule("P11", "D5")
@pytest.mark.parametrize("durable", [False, True], ids=["on the way", "in the store"])
def test_a_consumer_that_may_take_them_gets_nothing_newer_first(offering: Offering, durable: bool) -> None:
    offer = offering.offer()
    if durable:
        offer.durable()
    other = Consumer(3, 5)
    offering.queue.consumers[other] = None
    offering.queue.changed(other)
    offering.queue.pump()
    assert other.got == []
    assert offering.queue.normal.bound == (-4, 0)


@pytest.mark.rule("P11", "D5")
def test_one_that_may_take_some_of_those_that_stand_aside_or_were_offered_has_all_looked_for(
    offering: Offering,
) -> None:
    """It has refused others among them."""
    for entry in list(offering.queue.held.values())[:1]:
        entry.refused_by = (KEYS[0],)
    _, second = offering.consumers
    second.has = 0
    offering.queue.changed(second)
    offering.offer()
    offering.queue.pump()
    assert offering.queue.normal.bound is None
    second.has = 5
    offering.queue.changed(second)
    offering.queue.pump()
    assert offering.queue.normal.bound == (-4, 0)


@pytest.mark.rule("P11")
def test_what_comes_back_again_and_again_is_offered_more_and_more_rarely(offering: Offering) -> None:
    """Consumers of other instances may have refused it, too. Each has its turn."""
    turns = []
    for _ in range(10):
        offer = offering.offer()
        offer.durable()
        offering.run_timers()
        offering.come(*offer._ids)
        turns.append(list(offer._ids))
    assert offering.pauses[:10] == [0.1, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert turns[:4] == [[1, 2], [3, 4]] * 2


@pytest.mark.rule("P11")
def test_where_others_take_them_more_are_offered_soon(offering: Offering) -> None:
    for count in range(1, 10):
        offering.offer().durable()
        offering.come(2 * count + 3, 2 * count + 4)
    assert set(offering.pauses) == {0.1}


@pytest.mark.rule("P11", "S4")
def test_what_was_offered_is_forgotten_by_and_by(offering: Offering, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest first: memory is bounded."""
    monkeypatch.setattr(refused_module, "_MOST_OFFERED", 3)
    for _ in range(2):
        offering.offer().durable()
    assert list(offering.queue.refused._offered) == [2, 3, 4]
