"""Message groups that every consumer here with room has refused are given up to other instances, for a moment, the
longer apart the longer they come back (``coordinator/group/refused.py``; rules P11, P18). Time is the test's.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.group import refused as refused_module
from coordinator.group.fifo import FifoQueue
from coordinator.group.lanes import GroupedEntry, MessageGroup
from store.questions import message_groups as questions
from tests.fix_queue import Consumer, queue_of

pytestmark = pytest.mark.rule("P11", "P18")

REFUSING = 1
LOOKS_A_SECOND = 10
MANY = 120
AT_ONCE = 40


class Clock:
    """In tenths of a second, as what is left is looked at."""

    def __init__(self) -> None:
        self.ticks = 0

    def monotonic(self) -> float:
        return self.ticks / LOOKS_A_SECOND


class Store:
    """Which message groups no instance has: by key, whether their first message was refused by all at both."""

    def __init__(self) -> None:
        self.free: dict[int, bool] = {}


class Worker:
    """A queue of an instance beside another one. Its consumer has refused all but what it is said to take."""

    def __init__(self, clock: Clock, store: Store) -> None:
        self.clock, self.store = clock, store
        self.consumer = Consumer(REFUSING, 1000)
        queue = queue_of([], peers=1, kind=FifoQueue)
        assert isinstance(queue, FifoQueue)
        self.queue = queue
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.pauses: list[tuple[float, Callable[[], None]]] = []
        #: when which were given up
        self.released: list[tuple[float, int]] = []
        self.got: list[int] = []
        instance: Any = queue.instance
        instance.loop.call_later = self._call_later
        instance.commit = SimpleNamespace(add=self._write)
        instance.queries = self
        queue.add(self.consumer)
        queue.claims.more = False

    def _call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.pauses.append((seconds, callback))
        heappush(self.timers, (self.clock.monotonic() + seconds, len(self.pauses), callback))

    def _write(self, unit: Any) -> None:
        heappush(self.timers, (self.clock.monotonic(), -len(self.pauses), unit.durable))

    def come(self, *keys: int, refused_by: tuple[int, ...] = (REFUSING,)) -> None:
        for key in keys:
            group = self.queue.groups[key] = MessageGroup(key, self.queue.free)
            entry = GroupedEntry(self.queue, -key, -key, b"x", 0, 0, b"")
            entry.group, entry.out, entry.coming, entry.refused_by = group, False, False, refused_by
            group.more = False
            self.queue.held[entry.id] = entry
            self.queue.keep(entry)
            self.queue.place(group)

    def release(self, keys: list[int]) -> None:
        self.released += [(self.clock.monotonic(), key) for key in keys]
        self.store.free.update(dict.fromkeys(keys, True))

    def look(self, takes: frozenset[int] = frozenset()) -> None:
        """What a tenth of a second brings."""
        while self.timers and self.timers[0][0] <= self.clock.monotonic() + 1e-6:
            heappop(self.timers)[2]()
        claims = self.queue.claims
        found = [key for key in self.store.free if claims.more or key not in claims.away]
        claims.more = False
        for key in found:
            del self.store.free[key]
        self.got += [key for key in found if key in takes]
        self.come(*(key for key in found if key not in takes))
        self.queue.give_surplus()
        self.offer_soon()

    def offer_soon(self) -> None:
        """As each pump does."""
        if self.queue.ready:
            self.queue.refused.offer_soon()

    def offer(self) -> None:
        """As soon as it may."""
        self.queue.refused._offer()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(refused_module, "_AT_ONCE", AT_ONCE)
    release = lambda asked, group, keys, instance, notify: asked.release(keys)  # noqa: E731
    monkeypatch.setattr(questions, "release", release)
    return clock


@pytest.fixture
def worker(clock: Clock) -> Worker:
    return Worker(clock, Store())


def run(clock: Clock, seconds: float, *looks: Callable[[], None]) -> None:
    for _ in range(round(seconds * LOOKS_A_SECOND)):
        clock.ticks += 1
        for look in looks:
            look()


def test_those_alone_that_all_with_room_have_refused(clock: Clock, worker: Worker) -> None:
    """One that another consumer may take, or has some of, or that comes back just now, stays."""
    other = Consumer(2, 1000)
    worker.queue.add(other)
    worker.queue.claims.more = False
    worker.come(-1, refused_by=(1,))
    worker.come(-2, -3, refused_by=(1, 2))
    worker.come(-4, -5, -6, refused_by=(2, 3, 1))
    worker.queue._move(worker.queue.groups[-4], worker.queue.lanes[2])
    worker.queue.groups[-5].coming = 1
    worker.queue.groups[-6].loading = True
    worker.offer()
    assert worker.queue.claims.away == {-2, -3}
    run(clock, 0.1, worker.look)
    assert [key for _, key in worker.released] == [-2, -3]
    other.has = 0  # that it might take the first one counts no longer
    worker.queue.changed(other)
    run(clock, 1, worker.look)
    assert -1 in [key for _, key in worker.released]


def test_where_no_consumer_has_room_all_are_given_up_anyway(clock: Clock, worker: Worker) -> None:
    worker.consumer.has = 0
    worker.queue.changed(worker.consumer)
    worker.come(-1, refused_by=())
    worker.queue.give_surplus()
    run(clock, 0.1, worker.look)
    assert worker.pauses == []


def test_the_pauses_grow_with_each_time_that_one_comes_back(clock: Clock, worker: Worker) -> None:
    """And begin anew with what was not offered before."""
    worker.come(-1)
    run(clock, 120, worker.look)
    looks = [seconds for seconds, what in worker.pauses if what == worker.queue.refused._load_offered]
    assert looks[:11] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0, 10.0]
    times = [at for at, _ in worker.released]
    apart = [round(after - before, 1) for before, after in pairwise(times)]
    assert all(20 <= each < 21 for each in apart[-2:])
    worker.queue.groups.clear()
    worker.store.free.clear()
    run(clock, 20, worker.look)
    worker.pauses.clear()
    worker.come(-2)
    run(clock, 1, worker.look)
    assert worker.pauses[0][0] == 0.1


def test_some_at_a_time(clock: Clock, worker: Worker) -> None:
    worker.come(*range(-MANY, 0))
    worker.offer()
    assert len(worker.queue.claims.away) == AT_ONCE


def test_others_have_them_until_this_instance_looks_again(clock: Clock, worker: Worker) -> None:
    """News of them wakes it no sooner, but a consumer that may take them does."""
    claims = worker.queue.claims
    worker.come(-1)
    worker.offer()
    assert claims.away == {-1}
    claims.news[-1] = None
    assert not claims.claim(10)
    assert not claims.news
    refused = worker.queue.refused
    wanted = [refused.wanted]
    worker.queue.add(Consumer(2, 5))
    claims.more = False
    wanted.append(refused.wanted)
    assert wanted == [False, True]
    worker.queue._take_back_refused()
    assert (claims.more, claims.away) == (True, set())


def test_many_to_and_fro_for_long(clock: Clock) -> None:
    """Consumers at two instances have refused many groups, and go on so for long: what that writes is little and does
    not grow, none is lost or passed over, and one that the other may take gets there.
    """
    store = Store()
    one, other = Worker(clock, store), Worker(clock, store)
    one.come(*range(-MANY, 0))
    run(clock, 120, one.look, other.look)
    keys = {key for each in (one, other) for _, key in each.released}
    assert keys == {*range(-MANY, 0)}
    for each in (one, other):
        each.released.clear()
    run(clock, 600, one.look, other.look)
    counts = {key: sum(key == found for each in (one, other) for _, found in each.released) for key in keys}
    assert sum(counts.values()) <= 2 * AT_ONCE * (600 / 20 + 1)
    assert min(counts.values()) >= 5
    assert len(one.timers) + len(other.timers) < 10
    late = -MANY - 1
    one.come(late)
    run(clock, 120, one.look, lambda: other.look(frozenset([late])))
    assert other.got == [late]
    left = {*one.queue.groups, *other.queue.groups, *store.free}
    assert left == {*range(-MANY, 0)}
