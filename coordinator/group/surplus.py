"""What consumers here leave in memory goes to the store, where consumers of other instances may wait for it: all of it
where none here has room, and else, now and then, what those with room have refused (``modified`` with
undeliverable-here, P11).

Of what they have refused, some at a time, the longer apart the longer no other instance takes any. After a moment, in
which the others have been told, this instance looks for them again.
"""

from __future__ import annotations

from heapq import nsmallest
from typing import TYPE_CHECKING

from coordinator.group.units import Yield

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.group.queues import Queue

#: how long a message waits in one instance's window for a consumer's credit while other instances live
SURPLUS_SECONDS = 0.1
#: how long others have to take what is offered; and what lies between the first offers
_FIRST_SECONDS = 0.1
_LONGEST_SECONDS = 10.0
_AT_ONCE = 100
#: halves of which it is remembered that they were offered
_MOST_OFFERED = 10_000


class Surplus:
    """Of one queue; true while some were offered that this instance has not looked for again."""

    __slots__ = ("_away", "_due", "_keys", "_lot", "_offered", "_pause", "_queue", "_through", "_timed")

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        #: halves that were offered, and have not come back since
        self._offered: dict[int, None] = {}
        #: of what was offered last: how many, and the order of the last of them
        self._lot = 0
        self._through: tuple[int, int] | None = None
        #: of what was offered since this instance looked: the lowest id, and the consumers that have refused all of it
        self._away = 0
        self._keys: set[int] = set()
        self._pause = _FIRST_SECONDS
        self._due = self._timed = False

    def __bool__(self) -> bool:
        return self._away > 0

    def look(self) -> None:
        """There is something in memory, and other instances live."""
        queue = self._queue
        if not self._due:
            self._due = True
            queue.instance.loop.call_later(SURPLUS_SECONDS, self._give)
        if not self._timed and any(window.returned or window.aside for window in queue.windows):
            self._timed = True
            queue.instance.loop.call_later(self._pause, self._offer)

    def _give(self) -> None:
        self._due = False
        self._queue.give_surplus()

    def _offer(self) -> None:
        self._timed = False
        queue = self._queue
        keys = {consumer.key for consumer in queue.takers}
        refused = [entry for window in queue.windows for entry in window.refused_by(keys)] if keys else []
        if not refused or not queue.instance.peers:
            self._pause = _FIRST_SECONDS
            self._offered.clear()
            return
        back = [entry.half_id for entry in refused if entry.half_id in self._offered]
        for half_id in back:
            del self._offered[half_id]
        # others may have them for a while only, as all consumers there have refused them, too
        come_back = 2 * len(back) >= self._lot > 0
        self._pause = min(2 * self._pause, _LONGEST_SECONDS) if come_back else _FIRST_SECONDS
        through = self._through
        beyond = [entry for entry in refused if through is None or entry.order > through]
        entries = nsmallest(_AT_ONCE, beyond or refused)
        self._lot = len(entries)
        self._through = entries[-1].order
        self._offered.update((entry.half_id, None) for entry in entries)
        while len(self._offered) > _MOST_OFFERED:
            del self._offered[next(iter(self._offered))]
        ids = {entry.id for entry in entries}
        self._keys = self._keys & keys if self._away else keys
        self._away = min(min(ids), self._away or min(ids))
        for window in queue.windows:
            window.take_out(ids)
        for entry in entries:
            queue.forget(entry)
        attempts = [entry.attempts for entry in entries]
        queue.instance.commit.add(Offer(self, queue, [entry.id for entry in entries], attempts))

    def taken_back(self) -> None:
        """Look for them now where a consumer that has room may take some (D5, and the answer to its drain): what is on
        its way to the store is waited for.
        """
        if any(consumer.key not in self._keys for consumer in self._queue.takers):
            self.look_for_them()

    def look_for_them(self) -> None:
        if self._away:
            lowest, self._away = self._away, 0
            self._queue.in_store(lowest)


class Offer(Yield):
    """Unit: as :class:`Yield`, and this instance does not look for them at once."""

    __slots__ = ("_surplus",)

    def __init__(self, surplus: Surplus, queue: Queue, ids: Sequence[int], attempts: Sequence[int]) -> None:
        super().__init__(queue, ids, attempts)
        self._surplus = surplus

    def durable(self) -> None:
        self._queue.returning -= 1
        self._queue.touch()
        self._queue.instance.loop.call_later(_FIRST_SECONDS, self._surplus.look_for_them)
