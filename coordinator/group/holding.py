"""A group that one instance holds whole: the only one that lives reads on by ranges of ids and leases nothing row by
row. When another comes, the group is shared: what the holder has of it is leased then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from store.questions import entries as questions

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.group.queues import Queue
    from store.commit.batch import Batch
    from store.errors import StoreError

#: how long a group that is being read waits to be shared
_READ_SECONDS = 0.01


def hold(queue: Queue, then: Callable[[], None]) -> None:
    """Hold the group whole, where no other instance lives or has it."""
    instance = queue.instance

    def answered(held: bool) -> None:
        queue.holding = held
        if held:
            queue.home.holding.add(queue)
        then()

    questions.hold(instance.queries, queue.group_id, instance.instance_id, answered)


def unread(queue: Queue) -> None:
    """This instance has nothing left of a group held whole: should it die, no entry of the group counts as sent."""
    instance = queue.instance
    questions.unread(instance.queries, queue.group_id, instance.instance_id)


def share(queue: Queue) -> None:
    """Another instance came: hold the group no longer whole."""
    if queue.holding and queue not in queue.home.sharing:
        queue.home.sharing.add(queue)
        _when_read(queue)


def _when_read(queue: Queue) -> None:
    if queue.normal.loading:  # what is being read is not known yet
        queue.instance.loop.call_later(_READ_SECONDS, lambda: _when_read(queue))
        return
    queue.normal.loading = True
    queue.instance.commit.add(Share(queue))


class Share:
    """Unit: the group is held whole no more; what this instance has of it is leased row by row."""

    __slots__ = ("_pinned", "_queue")

    owner: object = None

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._pinned: list[int] = []

    def write(self, batch: Batch) -> None:
        self._pinned = list(self._queue.held)
        batch.share(self._queue.group_id, self._pinned)
        batch.tell(self._queue.group_id, 0)  # none of it could be leased before

    def durable(self) -> None:
        queue = self._queue
        # An entry given back in this batch or the one before was free in the store already, and is leased again now.
        let_go = [each for each in self._pinned if each not in queue.held]
        if let_go:
            queue.yield_ids(let_go)
        queue.holding = False
        queue.home.holding.discard(queue)
        queue.home.sharing.discard(queue)
        queue.normal.load_ended()
        queue.in_store(0)

    def refused(self, error: StoreError) -> None:
        """In the store this instance still holds the group whole, and nothing is leased row by row: it reads on.

        The next heartbeat that sees other instances, or the next look for idle queues, shares the group again.
        """
        self._queue.home.sharing.discard(self._queue)
        self._queue.normal.load_ended()
        self._queue.touch()
