"""A window keeps in memory the entries of one rank of priorities that are leased to this instance, and with no
consumer.

Entries that do not fit stay in PostgreSQL. Windows are values without access to the store or to consumers: the queue
loads and sends (:mod:`coordinator.group.queues`).
"""

from __future__ import annotations

import time
from collections import deque
from heapq import heapify, heappush
from typing import TYPE_CHECKING

from store.commit.terms import DEFAULT, STEPS, Rank, shares_step, step_of
from store.loop import TimeShare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.group.entries import Consumer, Entry


# The low-water mark keeps loads from passing the entries that were consumed at the head.
#
# Consumed rows stay in the indexes for a while, and as long as an old snapshot is held: a load that began at their head
# would cost more with each consumed message.

#: how far below the last leased entry the next load begins: for slower commits of other instances
LOW_WATER_SLACK = 60_000 << 22
_HIGHEST = 1 << 63
#: the time for loads from the beginning, which may take long for other reasons than the number of rows
WHOLE = TimeShare(parts=20, least=1.0, most=30.0)


class LowWater:
    """Keeps the low-water marks of one rank, one for each of its steps (:data:`store.commit.terms.STEPS`). ``marks``:
    ids above which loads begin; as far as is known, the store has no entries below.
    """

    __slots__ = ("_lowered", "_sent", "_sent_at", "_whole_at", "marks")

    def __init__(self, rank: Rank) -> None:
        self.marks = [0] * STEPS[rank].number
        #: of the load on its way: its marks, when it was sent, and the lowest marks of entries returned since then
        self._sent = self.marks
        self._sent_at = 0.0
        self._lowered = self._nothing_back()
        #: the monotonic time before which no load begins at the beginning again
        self._whole_at = 0.0

    def _nothing_back(self) -> list[int]:
        return [_HIGHEST] * len(self.marks)

    @property
    def reads_all(self) -> bool:
        return not any(self.marks)

    @property
    def whole_in(self) -> float:
        """The seconds until a load may begin at the beginning again; 0: now."""
        return max(0.0, self._whole_at - time.monotonic())

    def has_passed(self, entry_id: int) -> bool:
        return any(mark >= entry_id for mark in self.marks)

    def lower(self, below: int, priority: int | None) -> None:
        """Lower the marks to this id, as an entry above it arrived. ``priority``: the entry's; None: unknown."""
        marks, lowered = self.marks, self._lowered
        for step in range(len(marks)) if priority is None else (step_of(priority),):
            if below < marks[step]:
                marks[step] = below
            if below < lowered[step]:
                lowered[step] = below

    def load_sent(self) -> None:
        """Note that a load above the marks is sent."""
        self._sent = list(self.marks)
        self._sent_at = time.monotonic()
        self._lowered = self._nothing_back()

    def read_through(self, last: int) -> bool:
        """Raise the mark to this id, up to which a range was read: entries below are only added with a notice of their
        id. Returns whether the load began at the beginning.
        """
        self.marks[0] = min(max(self.marks[0], last), self._lowered[0])
        return self._has_read_all()

    def _has_read_all(self) -> bool:
        """Whether the load that has ended began at the beginning; then the next may not do so for a while."""
        read_all = not any(self._sent)
        if read_all:
            self._whole_at = WHOLE.after(self._sent_at)
        return read_all

    def loaded(self, entries: Sequence[Entry], newest: int, *, complete: bool, alone: bool) -> bool:
        """Raise the marks by the loaded entries; whether the load began at the beginning. ``newest``: no entry of this
        instance is newer; ``complete``: the store had no others; ``alone``: no other instance has any.
        """
        read_all = self._has_read_all()
        through = step_of(entries[-1].priority) if entries and not complete else len(self.marks)
        if entries and not complete and shares_step(entries[-1].priority):
            entries = ()
        last: dict[int, int] = {}
        for entry in entries:
            step = step_of(entry.priority)
            last[step] = max(last.get(step, 0), entry.id)
        for step, asked in enumerate(self._sent):
            if step in last:
                mark = max(0, last[step] - (0 if alone else LOW_WATER_SLACK))
            elif step < through and not asked:
                mark = max(0, newest - LOW_WATER_SLACK)
            else:
                continue
            self.marks[step] = min(mark, self._lowered[step])
        return read_all


#: a sort key before that of any entry
_BEFORE_ALL = (-(1 << 15), 0)


class Window:
    """Keeps the entries of one rank in order, and the bound before which the store may have others.

    It is a value, and calls no other part. ``more``: the store may have entries of this rank that are not leased.
    """

    __slots__ = (
        "_news", "_version", "_whole_due", "bound", "gone", "loading", "low", "more", "octets", "rank", "ready",
        "reserved", "returned",
    )  # fmt: skip

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        #: entries of normal priority, in order
        self.ready: deque[Entry] = deque()
        #: a heap of entries of other priorities, and of returned ones
        self.returned: list[Entry] = []
        self.octets = 0
        #: how many entries are on their way into the window, in a batch that is not durable yet
        self.reserved = 0
        self.more = True
        #: the sort key up to which entries may be delivered, until a load has brought those beyond; None: all. A rank
        #: whose priorities differ begins with one; the normal rank has one after old entries returned to the store (D5)
        self.bound: tuple[int, int] | None = None if rank is Rank.NORMAL else _BEFORE_ALL
        #: the bound by news since a load was sent: such entries may precede those that it brings
        self._news = self.bound
        self.loading = False
        self._version = 0
        #: the marks at which a load begins in the store
        self.low = LowWater(rank)
        #: ids settled or returned while a load is on its way, which may have read them before
        self.gone: set[int] = set()
        #: whether a load from the beginning, not from the low-water mark, is scheduled
        self._whole_due = False

    def __len__(self) -> int:
        return len(self.ready) + len(self.returned)

    @property
    def version(self) -> int:
        """The number of news of the store; the answer to a load does not cover later ones."""
        return self._version

    # -- entries coming

    def reserve(self, size: int) -> None:
        """Reserve room for a message of this size, which arrives when it is durable."""
        self.reserved += 1
        self.octets += size

    def unreserve(self, size: int) -> None:
        self.reserved -= 1
        self.octets -= size

    def arrived(self, entry: Entry) -> None:
        """Add a reserved entry, which is durable."""
        self.reserved -= 1
        if self.rank is Rank.NORMAL:
            self.ready.append(entry)
        else:
            heappush(self.returned, entry)

    def give_back(self, entry: Entry) -> None:
        """Put an entry back to its place, before newer ones."""
        self.octets += entry.size
        heappush(self.returned, entry)

    def in_store(self, lowest: int | None, priority: int | None) -> None:
        """Note that the store has (or may have) entries that are not leased. ``lowest``: the lowest id, where it may be
        an old one; ``priority``: the highest priority, if known.
        """
        self.more = True
        self._version += 1
        normal = self.rank is Rank.NORMAL
        bound, news = self.bound, self._news
        if normal and lowest is not None and bound and news and bound[1] < lowest and news[1] < lowest:
            pass  # the usual case of a post: the bounds are lower already
        elif lowest is not None or not normal:
            known = DEFAULT if normal else priority
            before = _BEFORE_ALL if lowest is None or known is None else (-known, lowest - 1)
            self.bound = before if bound is None else min(bound, before)
            self._news = before if news is None else min(news, before)
        if lowest is not None:
            self.low.lower(max(0, lowest - 1), priority)

    def has_passed(self, entry_id: int, newest: int) -> bool:
        """Whether the next load may begin beyond this id; for an old id, also whether a load under way may pass it
        without seeing it. ``newest``: no entry of this instance is newer.
        """
        return self.low.has_passed(entry_id) or (self.loading and entry_id < newest - LOW_WATER_SLACK)

    # -- entries going

    @property
    def waits(self) -> bool:
        """Whether the first entry must wait for entries that the store has before it. The window is not empty."""
        bound = self.bound
        if bound is None:
            return False
        ready, returned = self.ready, self.returned
        if returned and (not ready or returned[0].id < ready[0].id):
            return returned[0].order > bound
        return ready[0].id > bound[1]

    def withdraw(self, entry: Entry) -> bool:
        """Remove an entry; whether it was there."""
        try:
            self.ready.remove(entry)
        except ValueError:
            if entry not in self.returned:
                return False
            self.returned.remove(entry)
            heapify(self.returned)
        self.octets -= entry.size
        return True

    def take_out(self, ids: set[int]) -> None:
        """Remove the returned entries with these ids, as far as they are there."""
        stay: list[Entry] = []
        for entry in self.returned:
            if entry.id in ids:
                self.octets -= entry.size
            else:
                stay.append(entry)
        heapify(stay)
        self.returned = stay

    def empty(self) -> list[Entry]:
        """Remove and return all entries."""
        entries = [*self.returned, *self.ready]
        self.returned.clear()
        self.ready.clear()
        for entry in entries:
            self.octets -= entry.size
        return entries

    def has_for(self, consumer: Consumer) -> bool:
        """Whether there is an entry that the consumer has not refused."""
        return bool(self.ready) or any(consumer.key not in entry.refused_by for entry in self.returned)

    def refused_by(self, keys: set[int]) -> list[Entry]:
        """Return the entries that all consumers with these keys have refused."""
        return [entry for entry in self.returned if keys.issubset(entry.refused_by)]

    # -- loading

    @property
    def blocked(self) -> bool:
        """Whether an entry here waits for others that the store has before it."""
        bound = self.bound
        if bound is None or self.rank is not Rank.NORMAL:
            return bound is not None
        heads = [each[0].id for each in (self.ready, self.returned) if each]
        return bool(heads) and min(heads) > bound[1]

    def load_sent(self) -> None:
        """Note that a load above the low-water marks is on its way."""
        self.loading = True
        self._news = None
        self.low.load_sent()

    def loaded(self, entries: Sequence[Entry], *, complete: bool, version: int) -> None:
        """Move the bound by the loaded entries, of which :meth:`put` has added the new ones. ``complete``: the store
        had no others, as of ``version`` of its news.
        """
        if complete and version == self._version:
            self.more = False
            self.bound = None
        elif self.bound is not None:
            last_order = entries[-1].order if entries else _BEFORE_ALL
            self.bound = last_order if self._news is None else min(self._news, last_order)

    def put(self, entries: Sequence[Entry]) -> None:
        """Add entries from the store, which are in order."""
        ready = self.ready
        normal = self.rank is Rank.NORMAL
        last = ready[-1].id if ready else 0
        octets = 0
        for entry in entries:
            octets += entry.size
            if normal and entry.id > last:
                ready.append(entry)
                last = entry.id
            else:
                heappush(self.returned, entry)
        self.octets += octets

    def move_low(
        self, entries: Sequence[Entry], newest: int, *, complete: bool, version: int, alone: bool
    ) -> float | None:
        """Move the low-water mark by the leased entries; return in how many seconds a load from the beginning must
        follow, None: none must, or it is scheduled.

        The notices of other instances are not complete: now and then a load begins at the beginning, also while a
        backlog is read, more rarely the longer it takes. ``newest``, ``alone``: see :meth:`LowWater.loaded`.
        """
        low = self.low
        read_all = low.loaded(entries, newest, complete=complete, alone=alone)
        if not entries and not read_all:
            if not low.whole_in:
                low.lower(0, None)
                return None
            if version == self._version:
                self.more = False  # as far as is known, until a load begins at the beginning
                self.bound = None
        if read_all or self._whole_due:
            return None
        self._whole_due = True
        return low.whole_in

    def move_through(self, entries: Sequence[Entry], *, alone: bool) -> float | None:
        """Move the low-water mark by the entries of a range; return in how many seconds, at least, a load from the
        beginning must follow, None: none must, or it is scheduled. ``alone``: only this instance posts.
        """
        read_all = self.low.read_through(entries[-1].id if entries else 0)
        if read_all or alone or self._whole_due:
            return None
        self._whole_due = True
        return self.low.whole_in

    def read_all_next(self, *, alone: bool) -> None:
        """Have the next load begin at the beginning. ``alone``: only this instance posts, and it misses nothing."""
        self._whole_due = False
        if not alone:
            self.more = True
            self._version += 1
            self.low.lower(0, None)  # for a load on its way too

    def load_ended(self) -> None:
        self.loading = False
        self.gone.clear()
