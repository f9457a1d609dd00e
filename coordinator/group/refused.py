"""Refused keeps track of messages that every consumer here with room has refused (``modified`` with undeliverable-here;
rule P11).

Such a message is not sent to the same link again, and blocks no other:

* The consumers that have refused it are remembered with its entry, and by its half while only the store has it, up to
  a bound.
* If such entries fill the window they are set aside: this instance still leases them, but drops their messages.
* If other instances share the group, some are offered: yielded to the store, for others to lease. After a pause this
  instance loads them again, as it may be the only one. The pause doubles as long as they return: others refuse them,
  too.
* When a consumer here that may take some has room, the queue loads them at once.

In a fifo queue the entry is the first of its message group, and the whole group is set aside or offered with it.
"""

from __future__ import annotations

from heapq import nsmallest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.group.entries import Entry
    from coordinator.group.queues import Queue

#: seconds that others have to lease offered entries; doubled up to the longest
_FIRST_SECONDS = 0.1
_LONGEST_SECONDS = 10.0
#: how many entries are offered at once
_AT_ONCE = 200
#: how many entries in the store keep the record of their refusals
MOST_KNOWN = 10_000
#: how many entries may be set aside
_MOST_ASIDE = 10_000
#: how many offered halves are remembered
_MOST_OFFERED = 10_000


class Refused:
    """Tracks the refused entries of one queue; true while some are set aside, or offered and not loaded since."""

    __slots__ = (
        "_busy", "_known", "_lot", "_offered", "_pause", "_queue", "_through", "aside", "away", "keys",
    )  # fmt: skip

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        #: of entries in the store: keys of the consumers that refused them, by half, as entry ids may change
        self._known: dict[int, tuple[int, ...]] = {}
        #: entries set aside, by id
        self.aside: dict[int, Entry] = {}
        #: the lowest id offered since the queue loaded such entries; 0: there is none
        self.away = 0
        #: keys of the consumers that have refused all entries set aside or offered
        self.keys: set[int] = set()
        #: halves that were offered, and have not returned since
        self._offered: dict[int, None] = {}
        #: of the last offer: how many entries, and the sort key of the last of them
        self._lot = 0
        self._through: tuple[int, int] | None = None
        self._pause = _FIRST_SECONDS
        #: whether a timer runs, or an offer is on its way to the store
        self._busy = False

    def __bool__(self) -> bool:
        return self.away > 0 or bool(self.aside)

    # -- refusals of entries in the store

    def remember(self, entry: Entry) -> None:
        """Remember the refusals of an entry that returns to the store."""
        if entry.refused_by:
            self._known[entry.half_id] = entry.refused_by
            if len(self._known) > MOST_KNOWN:  # the oldest may be sent to the same links again
                del self._known[next(iter(self._known))]

    @property
    def knows_any(self) -> bool:
        return bool(self._known)

    def recall(self, entry: Entry) -> None:
        """Restore the refusals of an entry that was loaded from the store."""
        entry.refused_by = self._known.pop(entry.half_id, ())

    def knows(self, half_id: int, key: int) -> bool:
        """Whether this consumer has refused the half, which is in the store."""
        return key in self._known.get(half_id, ())

    def forget_all(self) -> None:
        """Forget all refusals, as no consumer is left that has refused any."""
        self._known.clear()

    # -- setting entries aside

    @property
    def room(self) -> int:
        """The number of further entries that may be set aside."""
        return _MOST_ASIDE - len(self.aside)

    def add(self, entries: Sequence[Entry]) -> None:
        """Set aside entries that the queue has removed from its window."""
        self._note(entries)
        for entry in entries:
            self.aside[entry.id] = entry
            entry.message = None

    def empty(self) -> list[Entry]:
        """Remove and return all entries set aside."""
        entries = list(self.aside.values())
        self.aside.clear()
        return entries

    def _note(self, entries: Sequence[Entry]) -> None:
        """Note the refusals of further entries that are set aside or offered."""
        if entries and not self:
            self.keys = set(entries[0].refused_by)
        for entry in entries:
            self.keys = self.keys.intersection(entry.refused_by)

    @property
    def wanted(self) -> bool:
        """Whether a consumer that has room may take some of them."""
        return bool(self) and any(consumer.key not in self.keys for consumer in self._queue.takers)

    # -- offering entries to other instances

    def offer_soon(self) -> None:
        """Schedule an offer, as other instances share the group and refused entries may be here."""
        if not self._busy:
            self._busy = True
            self._queue.instance.loop.call_later(self._pause, self._offer)

    def _offer(self) -> None:
        self._busy = False
        queue = self._queue
        keys = {consumer.key for consumer in queue.takers}
        refused = queue.refused_by(keys) if keys and queue.is_shared else []
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
        """Schedule the next load of the offered entries, as the offer is durable."""
        self._queue.instance.loop.call_later(self._pause, self._load_offered)

    def _load_offered(self) -> None:
        self._busy = False
        self.load_offered()

    def load_offered(self) -> None:
        """Load offered entries again, even before the pause is over."""
        if self.away:
            lowest, self.away = self.away, 0
            self._queue.load_offered(lowest)
