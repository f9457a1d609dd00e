"""A group that was held whole is given up for others (``coordinator/group/queues.py``) when the store has it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.group.serving import Queues
from coordinator.group.units import Share
from store.errors import StoreFault
from store.questions.entries import Holder, Loaded
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


class _Asked:
    """What a queue asks the store, by the names of the queries, and how each is answered."""

    def __init__(self) -> None:
        self.names: list[bytes] = []
        self._answers: list[Callable[[Any], None]] = []

    def ask(self, query: Any, _parameters: Any, answer: Callable[[Any], None]) -> None:
        self.names.append(query.name)
        self._answers.append(answer)

    def answer(self, value: object) -> None:
        self._answers.pop(0)(value)


@pytest.mark.rule("D5")
def test_a_consumer_waits_until_the_holder_of_its_group_has_shared_it() -> None:
    """Neither is a drain answered, as if there were nothing, nor is the store asked over and over."""
    consumer = Consumer(1, 5)
    queue = queue_of([consumer], peers=1)
    instance: Any = queue.instance
    instance.queries = asked = _Asked()
    queue.entered, consumer.draining = False, True
    queue.changed(consumer)
    queue.in_store()
    for _ in range(3):
        queue.pump()
    assert asked.names == [b"hold"]
    asked.answer(Holder(9))
    for _ in range(3):
        queue.pump()
    assert (asked.names, consumer.draining) == ([b"hold"], True)
    queue.heard(17)
    assert asked.names == [b"hold"]
    queue.heard(0)
    asked.answer(Holder(0))
    for _ in range(3):
        queue.pump()
    assert asked.names == [b"hold", b"hold", b"lease_urgent"]
    assert (queue.entered, queue.holding, consumer.draining) == (True, False, True)


@pytest.mark.rule("D10")
def test_a_holder_reads_again_from_whatever_id_another_instance_names() -> None:
    """Also while a load is under way, which may pass it without seeing it."""
    queue = queue_of([Consumer(1, 0)], peers=1)
    queue.holding = True
    queue.normal.low.marks[:] = [100]
    queue.normal.load_sent()
    queue.heard(150)
    queue.heard(90)
    queue.normal.low.read_through(200)
    assert queue.normal.low.marks == [89]
    queue.normal.load_sent()
    queue.heard(250)
    queue.normal.low.read_through(300)
    assert queue.normal.low.marks == [249]


@pytest.mark.rule("D10")
def test_a_holder_that_has_read_all_and_hears_nothing_asks_the_store_no_more() -> None:
    """Beside other instances, a group with an idle consumer costs nothing; after a load behind the mark one follows."""
    queue = queue_of([Consumer(1, 5)], peers=1)
    instance: Any = queue.instance
    instance.queries = asked = _Asked()
    looks: list[Callable[[], None]] = []
    instance.loop = SimpleNamespace(call_later=lambda _seconds, callback: looks.append(callback))
    queue.holding, queue.windows = True, (queue.normal,)
    queue.in_store(0)

    def load() -> None:
        queue.pump()
        asked.answer(Loaded([], 0))
        queue.pump()

    load()
    assert (asked.names, looks) == ([b"read"], [])
    queue.normal.low.marks[:] = [100]
    queue.heard(150)
    load()
    load_all = looks.pop()
    assert (asked.names, looks) == ([b"read"] * 2, [])
    load_all()
    load()
    assert (asked.names, looks) == ([b"read"] * 3, [])
    assert queue.normal.low.marks == [0]


@pytest.mark.rule("D10")
def test_that_consumers_have_gone_is_told_again_where_the_store_refused_it() -> None:
    """Else the other instances would share the group with none as long as this one lives."""
    consumer = Consumer(1, 1)
    queue = queue_of([consumer], peers=1)
    instance: Any = queue.instance
    instance.queries = asked = _Asked()
    looks: list[Callable[[], None]] = []
    instance.loop = SimpleNamespace(call_later=lambda _seconds, callback: looks.append(callback))
    queues = Queues(instance, lambda: None, lambda _: None)
    queues.entered.add(queue)
    queues.start()
    look = looks[-1]
    queue.remove(consumer)
    look()
    asked.answer(StoreFault("x"))
    look()
    asked.answer(None)
    look()
    assert (asked.names, queues.entered) == ([b"leave"] * 2, set())
