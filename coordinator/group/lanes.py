"""What a fifo queue has in memory: message groups, their entries, and the lanes in which they wait."""

from __future__ import annotations

import time
from hashlib import sha256
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING

from coordinator.group.entries import Entry, now_micros

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.group.entries import Consumer
    from coordinator.group.fifo import FifoQueue


#: No key of a message group is below.
LOWEST = -(1 << 63)
_HIGHEST = 1 << 63


def message_group(group_id: str) -> int:
    """The number of a group, below 0. Two that have the same are one group, which does no harm."""
    return int.from_bytes(sha256(group_id.encode(errors="surrogatepass")).digest()[:8]) // 2 + LOWEST


class GroupedEntry(Entry):
    """``out``: in a consumer's hands, or enlisted; ``coming``: its outcome may bring it back."""

    __slots__ = ("coming", "group", "out")

    group: MessageGroup
    coming: bool
    out: bool


class Lane:
    """The message groups of one consumer, or those that are free (no consumer)."""

    __slots__ = ("consumer", "hungry", "ready")

    def __init__(self, consumer: Consumer | None) -> None:
        self.consumer = consumer
        #: a heap of groups by what they have first; those whose ticket is another are no longer here
        self.ready: list[tuple[int, int, MessageGroup]] = []
        #: groups that must be read on, in the order in which they came
        self.hungry: dict[int, MessageGroup] = {}


class MessageGroup:
    __slots__ = (
        "aside", "asked", "bound", "coming", "held", "key", "lane", "loading", "low", "lowered", "more", "out", "ready",
        "suspended", "ticket",
    )  # fmt: skip

    def __init__(self, key: int, lane: Lane) -> None:
        self.key = key
        self.lane = lane
        #: a heap: leased to this instance, and not with a consumer
        self.ready: list[GroupedEntry] = []
        #: deliveries not settled, or enlisted in a transaction that is undecided
        self.out = 0
        #: entries whose outcome, or whose way back to the store, is not durable yet
        self.coming = 0
        self.loading = False
        #: the store may have more of it
        self.more = True
        #: the store may have older ones than those beyond this id, which must wait; None: it has none
        self.bound: int | None = None
        #: in the store, the first entry that is known to wait for its time: what comes behind it must wait, too
        self.suspended: int | None = None
        #: the id above which it is read: as far as is known, the store has nothing of it below
        self.low = 0
        #: while it is loading: the lowest such id by what came meanwhile
        self.lowered = 0
        #: its first entry, which is in the store, where it stands aside as all consumers with room have refused it
        self.aside: GroupedEntry | None = None
        #: of its place among the ready ones of its lane; 0: it has none
        self.ticket = 0
        #: an undecided transaction has an entry of it in the store alone: all others wait there, until a load that was
        #: asked since then brings some
        self.held = self.asked = False

    def left(self) -> None:
        """An entry of it is an undecided transaction's, and in no memory any more (H20)."""
        self.held, self.asked = True, False

    def look_from(self, lowest: int) -> None:
        """The store may have something of it from this id on."""
        self.more = True
        below = max(0, lowest - 1)
        self.low = min(self.low, below)
        self.lowered = min(self.lowered, below)

    def came_back(self, lowest: int) -> None:
        """The store has entries of it again, from this id on, which come before what is here."""
        self.bound = 0
        self.look_from(lowest)

    def suspend(self, entry_id: int) -> None:
        """In the store, this entry waits for its time."""
        self.suspended = entry_id if self.suspended is None else min(self.suspended, entry_id)

    def waits_before(self, entry: Entry) -> bool:
        """Whether an entry that comes before this one waits for its time, or any is an undecided transaction's."""
        return self.held or (self.suspended is not None and self.suspended < entry.id)

    def loads(self) -> None:
        """It is read above its mark: the store says anew whether an entry waits for its time."""
        self.loading = self.asked = True
        self.more, self.bound, self.suspended = False, None, None
        self.lowered = _HIGHEST

    def read_through(self, mark: int) -> None:
        """It was read up to this id, but for what came meanwhile."""
        self.low = min(mark, self.lowered)


def valid(places: list[tuple[int, int, MessageGroup]]) -> list[tuple[int, int, MessageGroup]]:
    """The heap without what is first in it and no longer of its lane."""
    while places and places[0][2].ticket != places[0][1]:
        heappop(places)
    return places


def first_for(consumer: Consumer, lane: Lane, free: Lane, now: int) -> MessageGroup | None:
    """Of the groups that the consumer may have, those of its lane and the free ones, the one whose next entry is the
    oldest; it has no place then. Also one that the consumer has refused, and whose life is over ``now``.
    """
    aside: list[tuple[int, int, MessageGroup]] = []
    found = None
    while found is None:
        own, others = valid(lane.ready), valid(free.ready)
        if not own and not others:
            break
        heap = own if own and (not others or own[0] < others[0]) else others
        place = heappop(heap)
        group = place[2]
        first = group.ready[0]
        if consumer.key not in first.refused_by or 0 < first.expires <= now:
            group.ticket = 0
            found = group
        elif heap is own:
            group.ticket = 0  # until nothing of it is in the consumer's hands
        else:
            aside.append(place)
    for place in aside:
        heappush(free.ready, place)
    return found


# Message groups of a fifo queue whose first message every consumer here with room has refused (``modified`` with
# undeliverable-here, P11).
#
# Where other instances live, they are given up for a moment, in which an instance whose consumers may take them claims
# them. Then this instance looks for them again, as it may be the only one; the longer apart the longer they come back.
# Where they fill the window, they stand aside: their messages go to the store, and they are read again when a consumer
# that may take some has room, or the life of what holds one up is over (P12).

_FIRST_SECONDS = 0.1
_LONGEST_SECONDS = 10.0
_AT_ONCE = 100
#: halves of which it is remembered that they were offered
_MOST_OFFERED = 10_000
#: groups that stand aside
_MOST_ASIDE = 10_000


class RefusedGroups:
    """Of one queue."""

    __slots__ = (
        "_aside_keys",
        "_due_at",
        "_keys",
        "_leaving",
        "_looks_at",
        "_offered",
        "_pause",
        "_queue",
        "aside",
        "away",
    )

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
        #: by key, the groups that stand aside, and the consumers that have refused all of them
        self.aside: dict[int, MessageGroup] = {}
        self._aside_keys: set[int] = set()
        #: when to look for what has expired and holds up its group, in microseconds since 2000; 0: there is none
        self._looks_at = 0

    def _refused(self, keys: set[int]) -> Iterator[MessageGroup]:
        """Those in memory that all these consumers have refused."""
        queue = self._queue
        return (
            group
            for group in queue.groups.values()
            if group.lane is queue.free
            and group.ready
            and not (group.coming or group.loading)
            and keys.issubset(group.ready[0].refused_by)
        )

    def stand_aside(self) -> None:
        """They are in the way of others."""
        queue = self._queue
        keys = {consumer.key for consumer in queue.takers}
        groups = list(islice(self._refused(keys), max(0, _MOST_ASIDE - len(self.aside)))) if keys else []
        firsts = [group.ready[0] for group in groups]
        for group, first in zip(groups, firsts, strict=True):
            self._aside_keys = self._aside_keys.intersection(first.refused_by) if self.aside else set(first.refused_by)
            group.aside = first
            self.aside[group.key] = group
        queue.empty(groups)
        for first in firsts:
            first.message = None

    def held_up(self, first: GroupedEntry) -> None:
        """It may be the first of its group, and some have refused it: look at the group when its life is over."""
        if first.expires and not 0 < self._looks_at <= first.expires:
            now = now_micros()
            self._looks_at = min(first.expires, now + int(_LONGEST_SECONDS * 1e6))
            self._queue.instance.loop.call_later(max(0, self._looks_at - now) / 1e6, self._look_for_expired)

    def _look_for_expired(self) -> None:
        now = now_micros()
        if not 0 < self._looks_at <= now:
            return
        self._looks_at = 0
        self._come_back([group for group in self.aside.values() if group.aside and 0 < group.aside.expires <= now])
        for group in self._queue.groups.values():
            first = group.aside or (group.ready[0] if group.ready else None)
            if first is not None and first.refused_by and first.expires > now:
                self.held_up(first)
        self._queue.touch()

    def _come_back(self, groups: list[MessageGroup]) -> None:
        for group in groups:
            del self.aside[group.key]
            group.aside = None
            self._queue.place(group)

    def offer(self) -> None:
        """Yield some to the store, with all that lies behind in them."""
        queue = self._queue
        keys = {consumer.key for consumer in queue.takers}
        if not keys or time.monotonic() < self._due_at:
            return
        aside = [group for group in islice(self.aside.values(), _AT_ONCE) if not group.coming]
        groups = aside + list(islice(self._refused(keys), _AT_ONCE - len(aside)))
        if not groups:
            return
        firsts = [(group.aside or group.ready[0]).half_id for group in groups]
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
        self.yielded()

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
        queue = self._queue
        if self.aside and not queue.free.hungry and any(each.key not in self._aside_keys for each in queue.takers):
            keys = {consumer.key for consumer in queue.takers}
            some = (each for each in self.aside.values() if each.aside and not keys.issubset(each.aside.refused_by))
            groups = list(islice(some, _AT_ONCE))
            self._come_back(groups)
            if not groups:
                self._aside_keys |= keys
        if self.away and any(consumer.key not in self._keys for consumer in queue.takers):
            self._look()

    def _look(self) -> None:
        self.away.clear()
        self._queue.claims.look_anywhere()
        self._queue.touch()
