"""Lanes order the message groups of a fifo queue in memory, with their entries."""

from __future__ import annotations

from hashlib import sha256
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from coordinator.group.entries import Entry

if TYPE_CHECKING:
    from coordinator.group.entries import Consumer


#: The lowest possible key of a message group.
LOWEST = -(1 << 63)
_HIGHEST = 1 << 63


def message_group(group_id: str) -> int:
    """Return the number of a group, below 0. Two names with the same number are one group, which does no harm."""
    return int.from_bytes(sha256(group_id.encode(errors="surrogatepass")).digest()[:8]) // 2 + LOWEST


class GroupedEntry(Entry):
    """An entry of a message group. ``out``: a consumer has it, or it is enlisted; ``coming``: its outcome may return
    it.
    """

    __slots__ = ("coming", "group", "out")

    group: MessageGroup
    coming: bool
    out: bool


class Lane:
    """Orders the message groups of one consumer, or the free ones (no consumer)."""

    __slots__ = ("consumer", "hungry", "ready")

    def __init__(self, consumer: Consumer | None) -> None:
        self.consumer = consumer
        #: a heap of groups by their first entry; those with another ticket have left the lane
        self.ready: list[tuple[int, int, MessageGroup]] = []
        #: groups that must be read further, in the order of arrival
        self.hungry: dict[int, MessageGroup] = {}


class MessageGroup:
    """A message group of a fifo queue: its entries here, in order, and what of it is elsewhere or on its way."""

    __slots__ = (
        "aside", "asked", "bound", "coming", "held", "key", "lane", "loading", "low", "lowered", "more", "out", "ready",
        "suspended", "ticket",
    )  # fmt: skip

    def __init__(self, key: int, lane: Lane) -> None:
        self.key = key
        self.lane = lane
        #: a heap of entries leased to this instance that no consumer has
        self.ready: list[GroupedEntry] = []
        #: how many deliveries are unsettled, or enlisted in an undecided transaction
        self.out = 0
        #: how many entries have an outcome or a yield that is not durable yet
        self.coming = 0
        self.loading = False
        #: whether the store may have more entries of it
        self.more = True
        #: entries beyond this id must wait, as the store may have older ones; None: none must
        self.bound: int | None = None
        #: the first entry in the store known to wait for a retry: later entries must wait, too
        self.suspended: int | None = None
        #: the id above which it is read: as far as is known, the store has no entries of it below
        self.low = 0
        #: while it is loading: the lowest such id by news since then
        self.lowered = 0
        #: its first entry, if set aside: it is in the store, and all consumers with room have refused it
        self.aside: GroupedEntry | None = None
        #: the ticket of its place among the ready groups of its lane; 0: it has no place
        self.ticket = 0
        #: ``held``: only an undecided transaction holds an entry of it, in the store: all others wait there, until a
        #: load
        #: sent since then (``asked``) brings some
        self.held = self.asked = False

    def left(self) -> None:
        """Note that an undecided transaction holds an entry of it in the store alone (H20)."""
        self.held, self.asked = True, False

    def read_from(self, lowest: int) -> None:
        """Note that the store may have entries of it from this id on."""
        self.more = True
        below = max(0, lowest - 1)
        self.low = min(self.low, below)
        self.lowered = min(self.lowered, below)

    def came_back(self, lowest: int) -> None:
        """Note that entries of it returned to the store, from this id on, which precede those here."""
        self.bound = 0
        self.read_from(lowest)

    def suspend(self, entry_id: int) -> None:
        """Note that this entry waits in the store for a retry."""
        self.suspended = entry_id if self.suspended is None else min(self.suspended, entry_id)

    def waits_before(self, entry: Entry) -> bool:
        """Whether an earlier entry waits for a retry, or an undecided transaction holds any."""
        return self.held or (self.suspended is not None and self.suspended < entry.id)

    def loads(self) -> None:
        """Begin a load above the mark: the store reports anew whether an entry waits for a retry."""
        self.loading = self.asked = True
        self.more, self.bound, self.suspended = False, None, None
        self.lowered = _HIGHEST

    def read_through(self, mark: int) -> None:
        """Raise the mark to this id, up to which it was read, except for news since then."""
        self.low = min(mark, self.lowered)


def valid(places: list[tuple[int, int, MessageGroup]]) -> list[tuple[int, int, MessageGroup]]:
    """Remove groups that have left the lane from the top of the heap, and return the heap."""
    while places and places[0][2].ticket != places[0][1]:
        heappop(places)
    return places


def first_for(consumer: Consumer, lane: Lane, free: Lane, now: int) -> MessageGroup | None:
    """Remove and return the group with the oldest next entry that the consumer may get, of its lane and the free ones;
    also one whose entry the consumer has refused, and which has expired ``now``.
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
