"""Serving keeps the queues of this instance: it finds or creates them, pumps them at the end of a turn, shares them
with other instances, and passes on the NOTIFYs of these.
"""

from __future__ import annotations

import time
from heapq import nsmallest
from typing import TYPE_CHECKING

from coordinator.group.fifo import FifoQueue
from coordinator.group.known import Known
from coordinator.group.queues import Queue
from store.questions import entries as questions

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.group.policies import Policies
    from coordinator.instance import Instance
    from store.errors import StoreError


#: seconds between checks for idle queues
IDLE_QUEUES_SECONDS = 10.0
#: seconds for which a group stays shared, at least, before one instance holds it whole again
HOLD_SECONDS = 5.0
#: how many groups an instance tries to hold at once
_MOST_TRIED = 100


class Queues:
    """Keeps the queues of all consumer groups of this instance; a queue changes only its own entries of the fields."""

    def __init__(self, instance: Instance, failed: Callable[[], None], later: Callable[[int], None]) -> None:
        """``failed`` is called when an entry was marked failed in the store, to become a dead letter; ``later`` when a
        durable entry is to be delivered later, with the time in microseconds since 2000.
        """
        self._instance = instance
        self.failed = failed
        self.later = later
        self.by_group = Known()
        #: queues whose whole groups are held; they are not dropped before they are shared
        self.holding: set[Queue] = set()
        self.sharing: set[Queue] = set()
        #: queues of which the store knows, or is told, that consumers are here
        self.entered: set[Queue] = set()
        #: queues that are pumped at the end of this turn
        self.dirty: list[Queue] = []
        self._idle_before: set[Queue] = set()

    def start(self) -> None:
        self._instance.loop.call_later(IDLE_QUEUES_SECONDS, self._drop_idle)
        self._instance.loop.call_later(HOLD_SECONDS, self._hold_again)

    def queue(self, group_id: int, address_id: int, name: str, policies: Policies) -> Queue:
        """Find or create the queue of this group, and set its policies."""
        queue = self.by_group.get(group_id)
        if queue is None:
            kind = FifoQueue if policies.fifo else Queue
            queue = kind(self._instance, self, group_id, address_id, name, policies)
            self.by_group.add(queue)
        else:
            queue.set_policies(policies)
        return queue

    def pump(self) -> bool:
        """Pump the dirty queues; whether there were any. A failure costs the queue and its links, no other."""
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
        """Share the groups of queues that were idle at the last check too: only then can the queue of a forgotten
        address be freed.
        """
        idle = {queue for queue in self.holding if queue.idle}
        for queue in idle & self._idle_before:
            queue.share()
        self._idle_before = idle
        for queue in self.by_group:
            queue.count()
        self._instance.loop.call_later(IDLE_QUEUES_SECONDS, self._drop_idle)

    # -- among others

    def _hold_again(self) -> None:
        """Leave groups that have no consumers here any more, and hold those that no other instance has consumers of."""
        instance = self._instance
        left = [queue for queue in self.entered if not (queue.has_links or queue.entering)]
        for queue in left:
            queue.entered, queue.asked_at = False, 0.0
            self.entered.discard(queue)
        for start in range(0, len(left), 1000):
            self._leave(left[start : start + 1000])
        before = time.monotonic() - HOLD_SECONDS
        tried = [queue for queue in self.entered if queue.may_hold(before)]
        for queue in nsmallest(_MOST_TRIED, tried, key=lambda each: each.tried_at):
            queue.enter()
        instance.loop.call_later(HOLD_SECONDS, self._hold_again)

    def _leave(self, queues: list[Queue]) -> None:
        def answered(error: StoreError | None) -> None:
            if error is not None:  # else no other instance would hold these groups as long as this one lives
                self.entered.update(queues)

        instance = self._instance
        questions.leave(instance.queries, instance.instance_id, [queue.group_id for queue in queues], answered)

    def share(self, payload: str) -> None:
        """Share the group of this id, if it is held here, as another instance has consumers of it."""
        queue = self.by_group.get(int(payload))
        if queue is not None:
            queue.share()

    def share_all(self) -> None:
        """Share all groups held here, as a notice to share one may have been lost; they are held again in time."""
        if self._instance.peers:
            for queue in list(self.holding):
                queue.share()

    def touch(self) -> None:
        """Have all queues pumped, as other instances are alive."""
        for queue in self.by_group:
            queue.touch()

    def all_in_store(self) -> None:
        """Note that the store may have entries for any group, as a NOTIFY may have been lost."""
        for queue in self.by_group:
            queue.enter_again()
            queue.arrived_before(0)

    def notified(self, payload: str) -> None:
        """Handle a NOTIFY of new entries at other instances: tokens ``group`` or ``-address``, and ``/key`` of a
        message group, or ``>`` and the lowest id, or ``<`` and the lowest id of entries before those read; an empty
        token stands for any group.
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
                    queue.arrived_before(int(first, 16))
                elif isinstance(queue, FifoQueue) and key:
                    number = int(key, 16)  # PostgreSQL writes one below 0 as its complement
                    queue.news(number - (1 << 64) if number >> 63 == 1 else number)
                else:
                    queue.heard(from_id)
