"""Outcomes that the store refuses (``coordinator/retirement.py``): what is leased to us still is not forgotten."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.group.entries import Entry
from coordinator.outcomes import ACCEPTED
from coordinator.retirement import Settlement
from coordinator.transitions import OUTCOME
from store.commit import terms
from store.errors import Conflict, NotLeased, StoreError, StoreFault
from tests.fix_queue import Consumer, queue_of


@pytest.mark.rule("D10")
@pytest.mark.parametrize(
    "error", [NotLeased("x"), StoreFault("x"), Conflict("x")], ids=lambda error: type(error).__name__
)
@pytest.mark.parametrize("there", [True, False], ids=["a consumer", "none"])
def test_a_refused_outcome(error: StoreError, there: bool) -> None:
    """Leased to us: delivered again from here, or given back to the store; else the store has it, and is asked."""
    consumer, other = Consumer(1, 1), Consumer(2, 0)
    queue = queue_of([consumer, other])
    added: list[Any] = []
    instance: Any = queue.instance
    instance.commit = SimpleNamespace(add=added.append)
    assert queue.reserve(1, terms.DEFAULT)
    entry = Entry(queue, 1, 1, b"x", 0, 0, b"")
    queue.arrived(entry)
    queue.pump()
    assert consumer.got == [1]
    queue.remove(consumer)
    if not there:
        queue.remove(other)
    entry.met(OUTCOME)
    entry.outcome = ACCEPTED
    Settlement(instance, [entry]).refused(error)
    other.has = 1
    queue.changed(other)
    leased = not isinstance(error, NotLeased)
    if there and leased:
        queue.pump()
    assert other.got == ([1] if leased and there else [])
    assert len(added) == (1 if leased and not there else 0)
    assert queue.normal.more is (not leased)
