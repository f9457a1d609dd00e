"""The consumer groups that this instance serves: found or made, pumped at the end of a turn, shared with other
instances, and told what these have posted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.group.fifo import FifoQueue
from coordinator.group.known import Known
from coordinator.group.queues import Queue

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.group.policies import Policies
    from coordinator.instance import Instance


#: how often queues are looked at that may be of no use any more
IDLE_QUEUES_SECONDS = 10.0


class Queues:
    """All consumer groups of this instance; those of its fields that a queue changes are for its own entry there."""

    def __init__(self, instance: Instance, failed: Callable[[], None], later: Callable[[int], None]) -> None:
        """``failed`` is called when an entry was marked failed in the store: it is to become a dead letter; ``later``
        when an entry is durable that is to be delivered later: at this time, in microseconds since 2000.
        """
        self._instance = instance
        self.failed = failed
        self.later = later
        self.by_group = Known()
        #: those whose groups are held whole: they are not dropped before they are held no more
        self.holding: set[Queue] = set()
        self.sharing: set[Queue] = set()
        #: those that are pumped at the end of this turn
        self.dirty: list[Queue] = []
        self._idle_before: set[Queue] = set()

    def start(self) -> None:
        self._instance.loop.call_later(IDLE_QUEUES_SECONDS, self._drop_idle)

    def queue(self, group_id: int, address_id: int, name: str, policies: Policies) -> Queue:
        """The one of this group, found or made, with these policies from now on."""
        queue = self.by_group.get(group_id)
        if queue is None:
            kind = FifoQueue if policies.fifo else Queue
            queue = kind(self._instance, self, group_id, address_id, name, policies)
            self.by_group.add(queue)
        queue.policies = policies
        return queue

    def pump(self) -> bool:
        """Give what is ready to consumers; whether there was any. A failure costs the queue and its links, no other."""
        active = bool(self.dirty)
        while self.dirty:
            dirty, self.dirty = self.dirty, []
            for queue in dirty:
                try:
                    queue.pump()
                    queue.count()
                except Exception:  # noqa: BLE001 - whatever it is, it is this queue's
                    for consumer in [queue, *queue.consumers, *queue.browsers]:
                        self._instance.loop.contain(consumer)
        return active

    def _drop_idle(self) -> None:
        """Share the groups of queues that were idle at the last look too: only then is the queue of an address that is
        not known any more freed.
        """
        idle = {queue for queue in self.holding if queue.idle}
        for queue in idle & self._idle_before:
            queue.share()
        self._idle_before = idle
        for queue in self.by_group:
            queue.count()
        self._instance.loop.call_later(IDLE_QUEUES_SECONDS, self._drop_idle)

    # -- among others

    def share(self) -> None:
        """Other instances live: no group is held whole."""
        for queue in self.by_group:
            queue.share()
            queue.touch()

    def all_in_store(self) -> None:
        """Notices were missed: the store may have something for any group."""
        for queue in self.by_group:
            queue.came_before(0)

    def notified(self, payload: str) -> None:
        """Others have something new: tokens ``group`` or ``-address``, and ``/key`` of a message group, or ``>`` and
        the lowest id, or ``<`` and the lowest id of what comes before what was read; an empty token stands for any.
        """
        for token in payload.split(","):
            if not token:  # the leases of an instance that died, or too many groups for a notice
                self.all_in_store()
                continue
            name, before, first = token.partition("<")
            name, _, lowest = name.partition(">")
            name, _, key = name.partition("/")
            from_id = int(lowest, 16) if lowest else None
            if name.startswith("-"):
                found = [queue for queue in self.by_group if queue.address_id == -int(name)]
            else:
                found = [queue for queue in (self.by_group.get(int(name)),) if queue is not None]
            for queue in found:
                if before:
                    queue.came_before(int(first, 16))
                elif isinstance(queue, FifoQueue) and key:
                    number = int(key, 16)  # PostgreSQL writes one below 0 as its complement
                    queue.news(number - (1 << 64) if number >> 63 == 1 else number)
                else:  # what was given back may lie below what was read; new ones, which lie above, need no look there
                    queue.in_store(None if from_id is None or not queue.has_passed(from_id) else from_id)
