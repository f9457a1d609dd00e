"""Messages that every consumer here with room has refused (``modified`` with undeliverable-here; rule P11).

Such a message does not come to the same link again, and holds up no other:

* Who has refused it is remembered with its entry, and by its half while it is in the store alone, up to a bound.
* Where such entries fill the window they stand aside: this instance has them still, but not their messages.
* Where other instances live, some are given back to the store, for others to take. After a pause this instance looks
  for them again, as it may be the only one. The pause doubles as long as they come back: others refuse them, too.
* When a consumer here that may take some has room, the queue looks for them at once.

In a fifo queue the entry is the first of its message group, and all of the group goes with it.
"""

from __future__ import annotations

from heapq import nsmallest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.group.entries import Entry
    from coordinator.group.queues import Queue

#: how long others have to take what is given back; it doubles up to the longest
_FIRST_SECONDS = 0.1
_LONGEST_SECONDS = 10.0
#: entries that are given back at once
_AT_ONCE = 200
#: entries in the store of which it is remembered who has refused them
MOST_KNOWN = 10_000
#: entries that stand aside
_MOST_ASIDE = 10_000
#: halves of which it is remembered that they were given back
_MOST_OFFERED = 10_000


class Refused:
    """Of one queue; true while some stand aside, or were given back and not looked for since."""

    __slots__ = (
        "_busy", "_known", "_lot", "_offered", "_pause", "_queue", "_through", "aside", "away", "keys",
    )  # fmt: skip

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        #: of entries that are in the store, by half, as their ids may change: the keys of consumers that refused them
        self._known: dict[int, tuple[int, ...]] = {}
        #: by id
        self.aside: dict[int, Entry] = {}
        #: the lowest id that was given back since the queue looked for such; 0: there is none
        self.away = 0
        #: keys of the consumers that have refused all that stand aside or are away
        self.keys: set[int] = set()
        #: halves that were given back, and have not come back since
        self._offered: dict[int, None] = {}
        #: of what was given back last: how many, and the order of the last of them
        self._lot = 0
        self._through: tuple[int, int] | None = None
        self._pause = _FIRST_SECONDS
        #: a timer runs, or some are on their way to the store
        self._busy = False

    def __bool__(self) -> bool:
        return self.away > 0 or bool(self.aside)

    # -- who has refused what is in the store

    def remember(self, entry: Entry) -> None:
        """It goes to the store, and may come again."""
        if entry.refused_by:
            self._known[entry.half_id] = entry.refused_by
            if len(self._known) > MOST_KNOWN:  # the oldest may come again
                del self._known[next(iter(self._known))]

    @property
    def knows_any(self) -> bool:
        return bool(self._known)

    def recall(self, entry: Entry) -> None:
        """It came from the store."""
        entry.refused_by = self._known.pop(entry.half_id, ())

    def knows(self, half_id: int, key: int) -> bool:
        """Whether this consumer has refused what is in the store."""
        return key in self._known.get(half_id, ())

    def forget_all(self) -> None:
        """No consumer is left that has refused any."""
        self._known.clear()

    # -- those that are in the way

    @property
    def room(self) -> int:
        """How many more may stand aside."""
        return _MOST_ASIDE - len(self.aside)

    def stand_aside(self, entries: Sequence[Entry]) -> None:
        """The queue has taken them out of its window."""
        self._note(entries)
        for entry in entries:
            self.aside[entry.id] = entry
            entry.message = None

    def empty(self) -> list[Entry]:
        """Take all out that stand aside."""
        entries = list(self.aside.values())
        self.aside.clear()
        return entries

    def _note(self, entries: Sequence[Entry]) -> None:
        """These come to those that stand aside, or are away."""
        if entries and not self:
            self.keys = set(entries[0].refused_by)
        for entry in entries:
            self.keys = self.keys.intersection(entry.refused_by)

    @property
    def wanted(self) -> bool:
        """Whether a consumer that has room may take some of them."""
        return bool(self) and any(consumer.key not in self.keys for consumer in self._queue.takers)

    # -- those that other instances may take

    def offer_soon(self) -> None:
        """Other instances live, and there may be some."""
        if not self._busy:
            self._busy = True
            self._queue.instance.loop.call_later(self._pause, self._offer)

    def _offer(self) -> None:
        self._busy = False
        queue = self._queue
        keys = {consumer.key for consumer in queue.takers}
        refused = queue.refused_by(keys) if keys and queue.instance.peers else []
        if not refused:
            self._pause = _FIRST_SECONDS
            self._offered.clear()
            return
        back = [entry.half_id for entry in refused if entry.half_id in self._offered]
        for half_id in back:
            del self._offered[half_id]
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
        self._note(entries)
        self.away = min(entry.id for entry in entries)
        for entry in entries:
            self.aside.pop(entry.id, None)
        self._busy = True
        queue.offer(entries)

    def offered(self) -> None:
        """The store has what was given back."""
        self._queue.instance.loop.call_later(self._pause, self._look)

    def _look(self) -> None:
        self._busy = False
        self.look_again()

    def look_again(self) -> None:
        """For those that were given back, before the pause is over where a consumer may take some."""
        if self.away:
            lowest, self.away = self.away, 0
            self._queue.look_again(lowest)
