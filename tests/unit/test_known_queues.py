"""Queues are found by their groups as long as something has them."""

from __future__ import annotations

import gc
from typing import Any

from coordinator.group.known import Known


class _Queue:
    anchor: object = None

    def __init__(self, group_id: int) -> None:
        self.group_id = group_id


def test_a_queue_is_found_while_it_is_in_use() -> None:
    known = Known()
    queues: list[Any] = [_Queue(1), _Queue(2)]
    for each in queues:
        known.add(each)
    gc.collect()
    assert [known.get(number) for number in (1, 2, 3)] == [*queues, None]
    assert list(known) == queues
    del queues[0], each
    gc.collect()
    assert known.get(1) is None
    assert list(known) == queues


def test_one_that_is_removed_is_not_found_even_so() -> None:
    known = Known()
    queue: Any = _Queue(1)
    known.add(queue)
    known.remove(queue)
    known.remove(queue)
    assert known.get(1) is None
