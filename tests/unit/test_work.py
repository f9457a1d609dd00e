"""The work of a transaction once it is decided, and what it and plain outcomes are in a batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.group.entries import Entry
from coordinator.outcomes import ACCEPTED
from coordinator.settlements import Settlement
from coordinator.transitions import OUTCOME
from coordinator.work import Work
from store import priorities
from store.commit.batch import Batch
from store.commit.terms import PLAIN, Terms
from store.ids import UuidV7
from tests.fix_queue import Consumer, queue_of

URGENT = Terms(priority=9)
LATER = Terms(available=1)


@pytest.mark.rule("T8", "P17", "D7")
def test_each_kind_of_post_is_told_to_its_address_once_or_more() -> None:
    """Of plain ones the first is enough, which has the lowest id; a post with terms of its own is told by itself."""
    told: list[tuple[str, int, Terms]] = []
    enqueue = SimpleNamespace(posted=lambda address, entry, half_id, terms: told.append((address, half_id, terms)))
    host = SimpleNamespace(enqueue=enqueue, instance=None, settlements=None)
    work = Work(cast(Any, host), bytes(16), None)
    posts = [("a", PLAIN), ("a", PLAIN), ("a", URGENT), ("a", LATER), ("a", PLAIN), ("b", PLAIN)]
    work.posts = [(cast(Any, address), b"m", terms) for address, terms in posts]
    work.half_ids = [1, 2, 3, 4, 5, 6]
    work.entries = [None] * 6
    work.apply_commit()
    assert told == [("a", 1, PLAIN), ("a", 3, URGENT), ("a", 4, LATER), ("b", 6, PLAIN)]


def _held(count: int) -> tuple[Any, Consumer, list[Entry]]:
    consumer = Consumer(1, count)
    queue = queue_of([consumer])
    entries = []
    for number in range(1, count + 1):
        assert queue.reserve(1, priorities.DEFAULT)
        entries.append(Entry(queue, number, number, b"m", 0, 0, b""))
        queue.arrived(entries[-1])
    queue.pump()
    assert len(consumer.got) == count
    return queue, consumer, entries


@pytest.mark.rule("D10")
def test_what_is_accepted_counts_as_rows_of_its_batch() -> None:
    """Else the bound of a batch would not hold for retirements."""
    queue, _, entries = _held(3)
    for entry in entries:
        entry.met(OUTCOME)
        entry.outcome = ACCEPTED
    batch = Batch()
    instance = SimpleNamespace(uuids=UuidV7(), commit=None, loop=None)
    Settlement(cast(Any, instance), entries).write(batch)
    assert batch.rows >= 3
    assert batch.gone_ids == [1, 2, 3]
    assert set(batch.gone_groups) == {queue.group_id}


@pytest.mark.rule("D10")
def test_a_queue_is_looked_at_when_something_of_it_is_done() -> None:
    """A window that memory had closed may have room now, whatever its consumers have."""
    queue, _, entries = _held(1)
    queue.dirty = False
    queue.home.dirty.clear()
    entries[0].met(OUTCOME)
    queue.done_with(entries[0])
    assert queue.home.dirty == [queue]


@pytest.mark.rule("D10")
def test_what_was_done_while_a_range_was_read_does_not_come_again() -> None:
    """The range was read before its outcome was in the store."""
    queue, consumer, entries = _held(2)
    queue.holding = queue.normal.loading = True
    entries[0].met(OUTCOME)
    queue.done_with(entries[0])
    consumer.has = 10
    queue.changed(consumer)
    again = [Entry(queue, number, number, b"m", 0, 0, b"") for number in (1, 2, 3)]
    queue.normal.loaded(again, True, 0)
    queue.pump()
    assert consumer.got == [1, 2, 3]
