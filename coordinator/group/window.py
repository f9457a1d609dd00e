"""What a queue has in memory of one rank of priorities: entries leased to this instance that no consumer has yet.

What does not fit stays in PostgreSQL. These are values, without a way to the store or to consumers: the queue moves
them (:mod:`coordinator.group.queues`).
"""

from __future__ import annotations

import time
from collections import deque
from heapq import heapify, heappush
from typing import TYPE_CHECKING

from store.commit.terms import DEFAULT, STEPS, Rank, shares_step, step_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.group.entries import Consumer, Entry


# The low-water mark of loads from the store: what was consumed at the head is not walked through again.
#
# Rows already consumed stay in the indexes for a while, and as long as an old snapshot is held: a load that began at
# their head would cost more with each message gone by.

#: how far below the last entry taken a load looks again: for slower commits of other instances
LOW_WATER_SLACK = 60_000 << 22
_HIGHEST = 1 << 63
#: all is looked at no more often, and no more than a share of the time
_WHOLE_SECONDS = 1.0
_WHOLE_SHARE = 20
#: but not more seldom: a look may last for other reasons than what there is to look through
_WHOLE_MOST_SECONDS = 30.0


def next_whole_look(asked_at: float, least: float = _WHOLE_SECONDS) -> float:
    """When all may be looked at again, by the monotonic clock. ``asked_at``: when the look that ends now was asked for;
    ``least``: seconds until the next at least.
    """
    now = time.monotonic()
    return now + min(max(least, _WHOLE_SHARE * (now - asked_at)), _WHOLE_MOST_SECONDS)


class LowWater:
    """Of one rank, for each of its steps (:data:`store.commit.terms.STEPS`). ``marks``: ids above which to look; as far
    as is known, the store has nothing below.
    """

    __slots__ = ("_asked", "_asked_at", "_lowered", "_whole_at", "marks")

    def __init__(self, rank: Rank) -> None:
        self.marks = [0] * STEPS[rank].number
        #: of the load on its way: the marks above which it looks, when it was asked for, and what came back since then
        self._asked = self.marks
        self._asked_at = 0.0
        self._lowered = self._nothing_back()
        #: before then the store is not looked through from its beginning again
        self._whole_at = 0.0

    def _nothing_back(self) -> list[int]:
        return [_HIGHEST] * len(self.marks)

    @property
    def looks_at_all(self) -> bool:
        return not any(self.marks)

    @property
    def whole_in(self) -> float:
        """Seconds until all may be looked at again; 0: now."""
        return max(0.0, self._whole_at - time.monotonic())

    def has_passed(self, entry_id: int) -> bool:
        return any(mark >= entry_id for mark in self.marks)

    def lower(self, below: int, priority: int | None) -> None:
        """Something came that is above this id; ``priority``: its own, None where that is not known."""
        marks, lowered = self.marks, self._lowered
        for step in range(len(marks)) if priority is None else (step_of(priority),):
            if below < marks[step]:
                marks[step] = below
            if below < lowered[step]:
                lowered[step] = below

    def asked(self) -> None:
        """A load looks above the marks."""
        self._asked = list(self.marks)
        self._asked_at = time.monotonic()
        self._lowered = self._nothing_back()

    def read_through(self, last: int) -> None:
        """A range was read up to this id: below, nothing comes any more but what is told by its id."""
        self.marks[0] = min(max(self.marks[0], last), self._lowered[0])

    def loaded(self, entries: Sequence[Entry], newest: int, *, complete: bool, alone: bool) -> bool:
        """The load brought these entries; whether it looked at all. ``newest``: no entry of this instance is newer;
        ``complete``: there was nothing beyond them; ``alone``: no other instance has any.
        """
        looked_at_all = not any(self._asked)
        if looked_at_all:
            self._whole_at = next_whole_look(self._asked_at)
        through = step_of(entries[-1].priority) if entries and not complete else len(self.marks)
        if entries and not complete and shares_step(entries[-1].priority):
            entries = ()
        last: dict[int, int] = {}
        for entry in entries:
            step = step_of(entry.priority)
            last[step] = max(last.get(step, 0), entry.id)
        for step, asked in enumerate(self._asked):
            if step in last:
                mark = max(0, last[step] - (0 if alone else LOW_WATER_SLACK))
            elif step < through and not asked:
                mark = max(0, newest - LOW_WATER_SLACK)
            else:
                continue
            self.marks[step] = min(mark, self._lowered[step])
        return looked_at_all


#: an order before that of any entry
_BEFORE_ALL = (-(1 << 15), 0)


class Window:
    """The entries of one rank that are here, in order, and how far the store may have others that come before them.

    It is a value, and asks no other part. ``more``: the store may have entries of this rank that are not leased.
    """

    __slots__ = (
        "_news",
        "_version",
        "_whole_due",
        "bound",
        "gone",
        "loading",
        "low",
        "more",
        "octets",
        "rank",
        "ready",
        "reserved",
        "returned",
    )

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        #: of normal priority, in order
        self.ready: deque[Entry] = deque()
        #: a heap: of other priorities, and what came back
        self.returned: list[Entry] = []
        self.octets = 0
        #: entries on their way into the window: written in a batch that is not durable yet
        self.reserved = 0
        self.more = True
        #: deliver up to this order; load before going beyond it. None: deliver all. Where priorities differ there is
        #: always one, else after something old came back to the store (D5)
        self.bound: tuple[int, int] | None = None if rank is Rank.NORMAL else _BEFORE_ALL
        #: the same for news that came while a load is on its way: they may lie before what it brings
        self._news = self.bound
        self.loading = False
        self._version = 0
        #: where a load begins to look in the store
        self.low = LowWater(rank)
        #: while a load is on its way: what was settled or given back (the load may have seen it before)
        self.gone: set[int] = set()
        #: whether all will be looked at, not only what is above the low-water mark
        self._whole_due = False

    def __len__(self) -> int:
        return len(self.ready) + len(self.returned)

    @property
    def version(self) -> int:
        """Counts the news of the store; a load that is answered says nothing of later ones."""
        return self._version

    # -- entries coming

    def reserve(self, size: int) -> None:
        """A message of this size comes, as soon as it is durable."""
        self.reserved += 1
        self.octets += size

    def unreserve(self, size: int) -> None:
        self.reserved -= 1
        self.octets -= size

    def arrived(self, entry: Entry) -> None:
        """A reserved entry is durable."""
        self.reserved -= 1
        if self.rank is Rank.NORMAL:
            self.ready.append(entry)
        else:
            heappush(self.returned, entry)

    def give_back(self, entry: Entry) -> None:
        """To its place, before what is newer."""
        self.octets += entry.size
        heappush(self.returned, entry)

    def in_store(self, lowest: int | None, priority: int | None) -> None:
        """The store has (or may have) entries that are not leased; ``lowest``: the lowest of their ids, where it may be
        an old one; ``priority``: the highest they have, where that is known.
        """
        self.more = True
        self._version += 1
        normal = self.rank is Rank.NORMAL
        bound, news = self.bound, self._news
        if normal and lowest is not None and bound and news and bound[1] < lowest and news[1] < lowest:
            pass  # as for nearly all that is posted: what came before is lower
        elif lowest is not None or not normal:
            known = DEFAULT if normal else priority
            before = _BEFORE_ALL if lowest is None or known is None else (-known, lowest - 1)
            self.bound = before if bound is None else min(bound, before)
            self._news = before if news is None else min(news, before)
        if lowest is not None:
            self.low.lower(max(0, lowest - 1), priority)

    def has_passed(self, entry_id: int, newest: int) -> bool:
        """Whether what is looked for next may be beyond this id; of an old one, also whether a load may go beyond it
        that does not see it yet. ``newest``: no entry of this instance is newer.
        """
        return self.low.has_passed(entry_id) or (self.loading and entry_id < newest - LOW_WATER_SLACK)

    # -- entries going

    @property
    def waits(self) -> bool:
        """What is first in it must wait for what the store has before it. There is something in it."""
        bound = self.bound
        if bound is None:
            return False
        ready, returned = self.ready, self.returned
        if returned and (not ready or returned[0].id < ready[0].id):
            return returned[0].order > bound
        return ready[0].id > bound[1]

    def withdraw(self, entry: Entry) -> bool:
        """Take an entry out; whether it was there."""
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
        """Take out what has come back with these ids, as far as it is there."""
        stay: list[Entry] = []
        for entry in self.returned:
            if entry.id in ids:
                self.octets -= entry.size
            else:
                stay.append(entry)
        heapify(stay)
        self.returned = stay

    def empty(self) -> list[Entry]:
        """Take all entries out."""
        entries = [*self.returned, *self.ready]
        self.returned.clear()
        self.ready.clear()
        for entry in entries:
            self.octets -= entry.size
        return entries

    def has_for(self, consumer: Consumer) -> bool:
        """Whether there is something that the consumer has not refused."""
        return bool(self.ready) or any(consumer.key not in entry.refused_by for entry in self.returned)

    def refused_by(self, keys: set[int]) -> list[Entry]:
        """What consumers with these keys have refused, all of them."""
        return [entry for entry in self.returned if keys.issubset(entry.refused_by)]

    # -- loading

    @property
    def blocked(self) -> bool:
        """Whether something here waits for what the store has before it."""
        bound = self.bound
        if bound is None or self.rank is not Rank.NORMAL:
            return bound is not None
        heads = [each[0].id for each in (self.ready, self.returned) if each]
        return bool(heads) and min(heads) > bound[1]

    def asks(self) -> None:
        """A load is on its way, which looks above the low-water marks."""
        self.loading = True
        self._news = None
        self.low.asked()

    def loaded(self, entries: Sequence[Entry], *, complete: bool, version: int) -> None:
        """These came from the store, in order, and :meth:`put` has added those that are new here. ``complete``: there
        was nothing beyond them, when the news were at ``version``.
        """
        if complete and version == self._version:
            self.more = False
            self.bound = None
        elif self.bound is not None:
            last_order = entries[-1].order if entries else _BEFORE_ALL
            self.bound = last_order if self._news is None else min(self._news, last_order)

    def put(self, entries: Sequence[Entry]) -> None:
        """These have come from the store, in order."""
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
        """Move the low-water mark by what was leased; in how many seconds all must be looked at, None: that is known.

        Notices of others do not tell all: now and then all is looked at, also while a backlog is read, the more seldom
        the longer that takes. ``newest``, ``alone``: as :meth:`LowWater.loaded` has them.
        """
        low = self.low
        looked_at_all = low.loaded(entries, newest, complete=complete, alone=alone)
        if not entries and not looked_at_all:
            if not low.whole_in:
                low.lower(0, None)
                return None
            if version == self._version:
                self.more = False  # as far as is known, until all is looked at
                self.bound = None
        if looked_at_all or self._whole_due:
            return None
        self._whole_due = True
        return low.whole_in

    def look_at_all(self, *, by_range: bool) -> None:
        """The time has come; what is read by the range needs no look."""
        self._whole_due = False
        if not by_range:
            self.more = True
            self._version += 1
            self.low.lower(0, None)  # for a load on its way too

    def load_ended(self) -> None:
        self.loading = False
        self.gone.clear()
