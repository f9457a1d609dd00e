"""Policies of an address that change while its queue is at work (rules D2, P12)."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.group.entries import Entry
from coordinator.group.policies import Policies, parse_retry
from coordinator.group.serving import Queues
from coordinator.group.units import Expiry
from store.commit.batch import Batch
from tests.fix_queue import Instance, queue_of


def _policies(retry: str = "immediate", *, on_expiry: str = "drop") -> Policies:
    return Policies(max_attempts=16, on_expiry=on_expiry, fifo=False, dead_letters=False, retry=parse_retry(retry))


@pytest.mark.rule("P12", "D4")
def test_what_was_written_for_the_dead_letters_goes_there_by_any_later_policy() -> None:
    """With the annotations of its outcomes."""
    queue = queue_of([])
    told: list[bool] = []
    queue.home.failed = lambda: told.append(True)
    queue.policies = _policies(on_expiry="dead-letter")
    entry = Entry(queue, 1, 1, b"x", 0, 1, b"annotations")
    queue.held[1] = entry
    queue.window(entry.priority).give_back(entry)
    units: list[Expiry] = []
    instance: Any = queue.instance
    instance.commit = type("Commit", (), {"add": staticmethod(units.append)})
    assert queue.withdraw(entry)
    queue.expire(entry)
    batch = Batch()
    units[0].write(batch)
    (back,) = batch.backs
    assert (back.failed, back.annotations) == (b"expired", b"annotations")
    queue.policies = _policies()
    units[0].durable()
    assert told == [True]


@pytest.mark.rule("D2")
def test_a_queue_that_outlived_its_address_in_memory_has_the_policies_of_now() -> None:
    """An address without links may be forgotten, while its group is held."""
    instance: Any = Instance(0)
    queues = Queues(instance, lambda: None, lambda available: None)
    queue = queues.queue(1, 1, "q", _policies())
    assert queues.queue(1, 1, "q", _policies("ladder 1s")) is queue
    assert queue.policies.retry.wait_ms(1) == 1000
