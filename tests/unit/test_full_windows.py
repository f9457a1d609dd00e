"""While the windows of all queues have too much, a queue takes nothing more and keeps no body of what it sends (S4)."""

from __future__ import annotations

import pytest

from coordinator.group.entries import Entry
from store.commit import terms
from tests.fix_queue import Consumer, queue_of


@pytest.mark.rule("S4")
def test_full_windows() -> None:
    queue = queue_of([Consumer(1, 1)])
    memory = queue.instance.memory
    assert queue.reserve(1, terms.DEFAULT)
    entry = Entry(queue, 1, 1, b"x", 0, 0, b"")
    queue.arrived(entry)
    memory.count_windows(memory.most + 1)
    queue.pump()
    assert entry.message is None
    assert not queue.reserve(1, terms.DEFAULT)
    memory.count_windows(-memory.most - 1)
    assert queue.reserve(1, terms.DEFAULT)
