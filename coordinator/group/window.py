"""What a queue has in memory of one rank of priorities: entries leased to this instance that no consumer has yet.

What does not fit stays in PostgreSQL. A window is bounded in messages and octets, and asks the store for more when
consumers have room.
"""

from __future__ import annotations

import time
from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Protocol

from coordinator.group import loading
from coordinator.group.entries import now_micros
from store.commit.terms import DEFAULT, STEPS, Rank, shares_step, step_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from coordinator.group.entries import Consumer, Entry
    from coordinator.group.queues import Queue


# Entries that every consumer with room has refused (``modified`` with undeliverable-here): they leave a window to
# others.
#
# They stay leased, without their messages, until a consumer that may take them has room. They go to the store then, and
# come from there in their order. A consumer that chooses takes its own from here, with the message that it has read.

#: of one window
_MOST = 10_000


class Aside:
    """Of one window; false where there are none."""

    __slots__ = ("_entries", "_refused_by", "_window")

    def __init__(self, window: Window) -> None:
        self._window = window
        #: by id
        self._entries: dict[int, Entry] = {}
        #: keys of the consumers that have refused all of them
        self._refused_by: set[int] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry: Entry) -> bool:
        return entry.id in self._entries

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def take(self) -> None:
        """Take what no consumer takes out of the window, where it is in the way of others."""
        window = self._window
        queue = window.queue
        bounds, memory = queue.instance.bounds, queue.instance.memory
        if memory.windows_full:
            return
        if 2 * len(window) < bounds.window_messages and 2 * window.octets < memory.window_bytes:
            return
        keys = {consumer.key for consumer in queue.takers}
        if not keys:
            return
        stay: list[Entry] = []
        for entry in window.returned:
            if len(self._entries) < _MOST and keys.issubset(entry.refused_by):
                self._refused_by = self._refused_by.intersection(entry.refused_by) if self else set(entry.refused_by)
                self._entries[entry.id] = entry
                window.octets -= entry.size
                entry.message = None
            else:
                stay.append(entry)
        heapify(stay)
        window.returned = stay

    def take_out(self, entry_id: int) -> bool:
        """Whether it was there."""
        return self._entries.pop(entry_id, None) is not None

    def empty(self) -> list[Entry]:
        """Take all out."""
        entries, self._entries = self._entries, {}
        return list(entries.values())

    def give_back(self) -> None:
        """To the store, with what is in the window, where a consumer that has room may take some. What comes meanwhile,
        posted now or by a load on its way, waits for them (D5).
        """
        window = self._window
        queue = window.queue
        if any(consumer.key not in self._refused_by for consumer in queue.takers):
            entries = window.empty()
            window.in_store(min(entry.id for entry in entries), None)
            queue.yield_entries(entries)


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
#: entries of one load where the window is full of what the store may have better than
_FEW = 100


class Loader(Protocol):
    """Who asked for a load that was lost."""

    def load_ended(self) -> None:
        """What it may have leased is known, and on its way back."""


class Window:
    """``more``: the store may have entries of this rank that are not leased."""

    __slots__ = (
        "_news",
        "_version",
        "_whole_due",
        "aside",
        "bound",
        "gone",
        "loading",
        "low",
        "more",
        "octets",
        "queue",
        "rank",
        "ready",
        "reserved",
        "returned",
    )

    def __init__(self, queue: Queue, rank: Rank) -> None:
        self.queue = queue
        self.rank = rank
        #: of normal priority, in order
        self.ready: deque[Entry] = deque()
        #: a heap: of other priorities, and what came back
        self.returned: list[Entry] = []
        self.aside = Aside(self)
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
    def has_any(self) -> bool:
        """Whether it has entries that no consumer has, those aside among them."""
        return bool(self.ready or self.returned or self.aside)

    @property
    def version(self) -> int:
        """Counts the news of the store; a load that is answered says nothing of later ones."""
        return self._version

    @property
    def by_range(self) -> bool:
        """Whether entries are taken by the range of their ids, not leased one by one."""
        return self.rank is Rank.NORMAL and self.queue.holding

    # -- entries coming

    def reserve(self, size: int) -> bool:
        """Whether there is room for a message posted now, and nothing older waits in the store."""
        if self.more or self.loading:
            return False
        queue = self.queue
        bounds = queue.instance.bounds
        have = len(self) + self.reserved
        if have >= bounds.window_messages or self.octets + size > queue.instance.memory.window_room:
            return False
        if queue.instance.peers and have >= queue.wanted():
            return False  # another instance may have a consumer that takes it now
        self.reserved += 1
        self.octets += size
        return True

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

    def has_passed(self, entry_id: int) -> bool:
        """Whether what is looked for next may be beyond this id; of an old one, also whether a load may go beyond it
        that does not see it yet.
        """
        return self.low.has_passed(entry_id) or (
            self.loading and entry_id < self.queue.instance.ids.last - LOW_WATER_SLACK
        )

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
        if self.aside.take_out(entry.id):
            return True
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
        for entry_id in ids:
            self.aside.take_out(entry_id)

    def empty(self) -> list[Entry]:
        """Take all entries out."""
        entries = [*self.returned, *self.ready]
        self.returned.clear()
        self.ready.clear()
        for entry in entries:
            self.octets -= entry.size
        return self.aside.empty() + entries

    def has_for(self, consumer: Consumer) -> bool:
        """Whether there is something that the consumer has not refused."""
        return bool(self.ready) or any(consumer.key not in entry.refused_by for entry in self.returned)

    def refused_by(self, keys: set[int]) -> list[Entry]:
        """What consumers with these keys have refused, all of them."""
        return [entry for entry in (*self.returned, *self.aside) if keys.issubset(entry.refused_by)]

    # -- entries going out

    def distribute(self) -> None:
        """Give what is ready to consumers with room, in turns."""
        takers = self.queue.takers
        progress = True
        while progress and self and not self.waits:
            progress = False
            count = len(takers)
            share = max(1, len(self) // count) if count else 0
            for _ in range(count):
                consumer = takers.next()
                room = consumer.room
                given = self._give(consumer, min(room, share)) if room > 0 else 0
                # what a subscription passes over costs it no room
                takers.keep(consumer, room - given if given < room else consumer.room)
                if given:
                    progress = True
                    if not self:
                        break
        if self.returned and not self.waits:
            self.aside.take()

    def _give(self, consumer: Consumer, most: int) -> int:
        ready, returned, bound, queue = self.ready, self.returned, self.bound, self.queue
        given = 0
        aside: list[Entry] = []
        while given < most:
            if returned and (not ready or returned[0].id < ready[0].id):
                if bound is not None and returned[0].order > bound:
                    break
                entry = heappop(returned)
            elif ready:
                if bound is not None and ready[0].id > bound[1]:
                    break
                entry = ready.popleft()
            else:
                break
            if entry.refused_by and consumer.key in entry.refused_by:
                aside.append(entry)
                continue
            self.octets -= entry.size
            if entry.expires and entry.expires <= now_micros():
                queue.expire(entry)
                continue
            more = queue.hand(consumer, entry)
            given += 1
            if not more:
                break
        for entry in aside:
            heappush(returned, entry)
        return given

    # -- loading

    def refill(self) -> bool:
        """Ask the store for more where consumers have room; whether entries may come: lower ranks wait for them."""
        if self.loading:
            return True
        queue = self.queue
        wanted = queue.wanted() if self.more else 0
        if not wanted and self.more and not self and queue.takers.asked:
            wanted = 1
        if not wanted:
            return False
        if queue.returning:
            return True
        instance = queue.instance
        have = len(self) + self.reserved
        # one instance alone reads ahead; no consumer with room may have what is here still (undeliverable-here)
        ahead = wanted - self.reserved if instance.peers else max(2 * wanted, _FEW)
        most = min(instance.bounds.window_messages - have, ahead)
        octets = instance.memory.window_bytes - self.octets
        if instance.memory.windows_full:  # one message
            most, octets = min(most, _FEW), min(octets, 1)
        blocked = self._blocked()
        if blocked:  # what is still here waits for what the store has
            most, octets = max(most, min(wanted, _FEW)), max(octets, 1)
        elif most <= 0 or octets <= 0:
            return False
        if self.reserved < wanted or blocked:
            self.loading = True
            self._news = None
            self.low.asked()
            loading.load(self, most, octets)
        return True

    def _blocked(self) -> bool:
        bound = self.bound
        if bound is None or self.rank is not Rank.NORMAL:
            return bound is not None
        heads = [each[0].id for each in (self.ready, self.returned) if each]
        return bool(heads) and min(heads) > bound[1]

    def loaded(self, entries: list[Entry], complete: bool, version: int) -> None:
        """Entries from the store; ``complete``: there was nothing beyond them, when the news were at ``version``."""
        held, refused, ready = self.queue.held, self.queue.refused, self.ready
        by_range, gone = self.by_range, self.gone
        normal = self.rank is Rank.NORMAL
        last = ready[-1].id if ready else 0
        octets = 0
        for entry in entries:
            entry_id = entry.id
            # What a range brings may have been read before: it is held still, or was settled meanwhile. What was leased
            # just now is new, whatever is known of it here.
            if by_range and (entry_id in held or entry_id in gone):
                continue
            held[entry_id] = entry
            if refused:
                entry.refused_by = refused.pop(entry.half_id, ())
            octets += entry.size
            if normal and entry_id > last:
                ready.append(entry)
                last = entry_id
            else:
                heappush(self.returned, entry)
        self.octets += octets
        if complete and version == self._version:
            self.more = False
            self.bound = None
        elif self.bound is not None:
            last_order = entries[-1].order if entries else _BEFORE_ALL
            self.bound = last_order if self._news is None else min(self._news, last_order)
        if not by_range:
            self._move_low(entries, complete, version)
        elif entries:
            self.low.read_through(entries[-1].id)
        self.load_ended()

    def _move_low(self, entries: list[Entry], complete: bool, version: int) -> None:
        """Notices of others do not tell all: now and then all is looked at, also while a backlog is read, the more
        seldom the longer that takes.
        """
        instance, low = self.queue.instance, self.low
        looked_at_all = low.loaded(entries, instance.ids.last, complete=complete, alone=self.queue.holding)
        if not entries and not looked_at_all:
            if not low.whole_in:
                low.lower(0, None)
                return
            if version == self._version:
                self.more = False  # as far as is known, until all is looked at
                self.bound = None
        if not looked_at_all and not self._whole_due:
            self._whole_due = True
            instance.loop.call_later(low.whole_in, self._look_at_all)

    def _look_at_all(self) -> None:
        self._whole_due = False
        if not self.by_range:
            self.more = True
            self._version += 1
            self.low.lower(0, None)  # for a load on its way too
            self.queue.touch()

    def load_ended(self) -> None:
        self.loading = False
        self.gone.clear()
