"""Message groups of a fifo queue whose first message every consumer here with room has refused (``modified`` with
undeliverable-here, P11): given up for a moment, in which an instance whose consumers may take them claims them.

Then this instance looks for them again, as it may be the only one; the longer apart the longer they come back.
"""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordinator.group.fifo import FifoQueue
    from coordinator.group.message_groups import MessageGroup

_FIRST_SECONDS = 0.1
_LONGEST_SECONDS = 10.0
_AT_ONCE = 100
#: halves of which it is remembered that they were offered
_MOST_OFFERED = 10_000


class RefusedGroups:
    """Of one queue."""

    __slots__ = ("_due_at", "_keys", "_leaving", "_offered", "_pause", "_queue", "away")

    def __init__(self, queue: FifoQueue) -> None:
        self._queue = queue
        #: the first messages of groups that were offered
        self._offered: dict[int, None] = {}
        #: by key, those whose entries are on their way to the store
        self._leaving: dict[int, MessageGroup] = {}
        #: the keys of those that others may have now, and the consumers that have refused all of them
        self.away: set[int] = set()
        self._keys: set[int] = set()
        self._pause = _FIRST_SECONDS
        #: when some may be offered again, by the monotonic clock
        self._due_at = 0.0

    def offer(self) -> None:
        """Yield some to the store, with all that lies behind in them."""
        queue = self._queue
        keys = {consumer.key for consumer in queue.takers}
        if not keys or time.monotonic() < self._due_at:
            return
        refused = (
            group
            for group in queue.groups.values()
            if group.lane is queue.free
            and group.ready
            and not (group.coming or group.loading)
            and keys.issubset(group.ready[0].refused_by)
        )
        groups = list(islice(refused, _AT_ONCE))
        if not groups:
            return
        firsts = [group.ready[0].half_id for group in groups]
        come_back = any(half_id in self._offered for half_id in firsts)
        self._pause = min(2 * self._pause, _LONGEST_SECONDS) if come_back else _FIRST_SECONDS
        self._due_at = time.monotonic() + 2 * self._pause  # those of the last offer are looked for before
        self._offered.update(dict.fromkeys(firsts))
        while len(self._offered) > _MOST_OFFERED:
            del self._offered[next(iter(self._offered))]
        self._leaving.update((group.key, group) for group in groups)
        self.away.update(group.key for group in groups)
        self._keys = keys
        queue.empty(groups)

    def yielded(self) -> None:
        """The store has entries back: groups of which it has all are given up."""
        queue = self._queue
        gone = [group for group in self._leaving.values() if not group.coming]
        if gone:
            for group in gone:
                del self._leaving[group.key]
            queue.claims.release(gone, again=False)
            queue.instance.loop.call_later(self._pause, self._look)

    def taken_back(self) -> None:
        """Look for them now where a consumer that has room may take some."""
        if self.away and any(consumer.key not in self._keys for consumer in self._queue.takers):
            self._look()

    def _look(self) -> None:
        self.away.clear()
        self._queue.claims.look_anywhere()
        self._queue.touch()
