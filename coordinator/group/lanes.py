"""What a fifo queue has in memory: message groups, their entries, and the lanes in which they wait."""

from __future__ import annotations

from hashlib import sha256
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from coordinator.group.entries import Entry

if TYPE_CHECKING:
    from coordinator.group.entries import Consumer


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
