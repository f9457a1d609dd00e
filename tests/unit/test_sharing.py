"""A group that was held whole is given up for others (``coordinator/group/queues.py``) when the store has it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.group.units import Share
from store.errors import StoreFault
from tests.fix_queue import Consumer, queue_of


@pytest.mark.rule("D10")
def test_a_group_that_the_store_did_not_give_up_is_held_still() -> None:
    """Else what consumers have of it would be leased again, and go out twice."""
    queue = queue_of([Consumer(1, 1)], peers=1)
    instance: Any = queue.instance
    units: list[Share] = []
    instance.commit = SimpleNamespace(add=units.append)
    queue.home.holding.add(queue)
    queue.holding = True
    queue.share()
    units[0].refused(StoreFault("x"))
    assert queue.holding
    assert queue in queue.home.holding
    assert not queue.normal.loading
    queue.share()
    units[1].durable()
    assert queue.home.holding == queue.home.sharing == set()


@pytest.mark.rule("D10")
def test_a_group_that_is_to_be_shared_is_looked_at_once() -> None:
    """While the store takes no batches each look for idle queues asks again: they do not add up."""
    queue = queue_of([Consumer(1, 1)], peers=1)
    instance: Any = queue.instance
    units: list[Share] = []
    looks: list[Callable[[], None]] = []
    instance.commit = SimpleNamespace(add=units.append)
    instance.loop = SimpleNamespace(call_later=lambda _seconds, callback: looks.append(callback))
    queue.home.holding.add(queue)
    queue.holding = queue.normal.loading = True
    for _ in range(3):
        queue.share()
    assert len(looks) == 1
    queue.normal.loading = False
    looks.pop()()
    for _ in range(3):
        queue.share()
    assert (len(units), looks) == (1, [])
