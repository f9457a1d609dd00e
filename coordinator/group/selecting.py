"""A search finds the messages of one consumer with a selector (rule P16), in the store and past the window of its
queue.

**Decision.** The window of a queue is for consumers without selectors. If consumers with selectors used it, messages
that no consumer here wants (or whose consumers have no credit) would fill it, and later messages would never be seen;
and leasing thousands of entries only to return them costs two writes each. So each such consumer has a cursor over the
entries of its group, reads them page by page without leasing, evaluates its selector, and leases matching entries by id
(:func:`store.questions.entries.take`). Other entries are neither leased nor kept: memory is one page, other consumers
(here or at other instances) see no difference, and the cursor never passes an entry that the consumer may still want:

* It stops where the consumer's room ends, or where selectors have used up their share of the turn, and continues from
  there.
* A matching entry in this instance's own window is removed from it; one that a consumer has is passed, and when any
  entry returns or arrives, the cursor is set back to before it.
* A selector that wants a field to equal a string passes the entries of which an earlier search has seen that their
  value is another (:mod:`coordinator.group.index`).
* This works whether the instance holds the whole group or leases row by row: a row leased so is marked in both cases,
  and the holder's ranges leave leased rows out.
* At an instance that is alone, ids only grow. Among several instances, commits may overtake each other. A NOTIFY gives
  the id from which on there are new entries; as it may be lost, the last second is read again a moment after each
  piece of news, and all from the beginning every few seconds as long as there is news, more rarely the longer it takes.

Each rank of priorities has a cursor of its own, and higher ranks are read to their end first (P17).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from coordinator.group.entries import now_micros
from coordinator.group.units import LOAD_RETRY_SECONDS
from coordinator.transitions import HELD
from store.commit import terms
from store.commit.terms import Rank, rank_of
from store.errors import StoreError
from store.loop import TimeShare
from store.questions import entries as questions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.codec.selectors import Selector
    from coordinator.group.entries import Consumer, Entry
    from coordinator.group.index import Index
    from coordinator.group.queues import Queue


_FEWEST, _MOST = 20, 1000
_PAGE_OCTETS = 1 << 20

#: above all ids
_NEVER = 1 << 63

_AGAIN_SECONDS = 0.25
#: ids carry milliseconds above their lowest 22 bits
_AGAIN_BACK = 1000 << 22
#: the time for searches from the beginning
_WHOLE = TimeShare(parts=20, least=5.0)


class Cursor:
    """Marks how far a search has read the entries of one rank, in their order: (priority, negated; id)."""

    __slots__ = ("_back_to", "_beginning", "at", "rank", "stale")

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self._beginning = (-terms.DEFAULT, 0) if rank is Rank.NORMAL else (-(1 << 15) + 1, 0)
        #: the position up to which all entries were read
        self.at = self._beginning
        #: the lowest position of news while a query is under way, which its answer may not cover
        self._back_to: tuple[int, int] | None = None
        #: whether there may be entries beyond
        self.stale = True

    def go_back(self, to: tuple[int, int] | None) -> None:
        """Go back to ``to``, to read all after it again; None: to the beginning."""
        to = self._beginning if to is None else to
        self.stale = True
        self.at = min(self.at, to)
        self._back_to = to if self._back_to is None else min(self._back_to, to)

    def move(self, at: tuple[int, int]) -> None:
        """Advance to ``at``, up to which the answer to a query was read."""
        self.at = at if self._back_to is None else min(at, self._back_to)
        self._back_to = None

    def read_sent(self) -> None:
        self.stale = False
        self._back_to = None


class Search:
    """Finds and sends the messages of one consumer; it is in ``queue.searches`` as long as the link is open."""

    __slots__ = (
        "_again", "_asked_at", "_behind", "_consumer", "_cursors", "_found", "_index", "_page", "_queue", "_selector",
        "_waiting", "_wanted", "_whole", "_whole_spent", "_whole_took",
    )  # fmt: skip

    def __init__(self, queue: Queue, consumer: Consumer, selector: Selector) -> None:
        self._queue = queue
        self._consumer = consumer
        self._selector = selector
        self._wanted = selector.wanted
        self._index = None if self._wanted is None else queue.indexed(self._wanted.name)
        self._cursors = tuple(Cursor(rank) for rank in Rank)
        self._waiting = False
        #: whether there is a message for which the consumer had no room
        self._found = False
        self._page = _FEWEST
        #: the id behind which the query under way reads
        self._behind = 0
        self._again = self._whole = False
        self._asked_at = 0.0
        #: seconds spent on the search from the beginning that is under way, without those in which the consumer had no
        #: room; and on the last that ended
        self._whole_spent: float | None = None
        self._whole_took = 0.0

    # -- news

    def arrived(self, lowest: int | None, priority: int | None) -> None:
        """Note that there may be new or returned entries: from the id ``lowest`` on, None for new ones; of
        ``priority``, None for any.
        """
        for cursor in self._cursors if priority is None else (self._cursors[rank_of(priority)],):
            if cursor.rank is Rank.NORMAL:
                cursor.stale = True
                if lowest is not None:
                    cursor.go_back((-terms.DEFAULT, max(0, lowest - 1)))
            else:
                cursor.go_back(None if priority is None or lowest is None else (-priority, lowest - 1))
        instance = self._queue.instance
        if instance.peers:
            if not self._again:
                self._again = True
                instance.loop.call_later(_AGAIN_SECONDS, self._read_again)
            if not self._whole:
                self._whole = True
                instance.loop.call_later(_WHOLE.pause(self._whole_took), self._read_all)

    def has_passed(self, entry_id: int) -> bool:
        return self._cursors[Rank.NORMAL].at[1] >= entry_id

    def _read_again(self) -> None:
        self._again = False
        for cursor in self._cursors:
            back = None
            if cursor.rank is Rank.NORMAL:
                back = (-terms.DEFAULT, max(0, cursor.at[1] - _AGAIN_BACK))
            cursor.go_back(back)
        self._queue.touch()

    def _read_all(self) -> None:
        self._whole = False
        self._whole_spent = 0.0
        for cursor in self._cursors:
            cursor.go_back(None)
        self._queue.touch()

    # -- looking

    @property
    def _open(self) -> bool:
        return self in self._queue.searches

    def uses(self, index: Index) -> bool:
        return self._index is index

    def end(self) -> None:
        """Free the memory of the selector at once, as the link has ended (the link and its search refer to each
        other).
        """
        del self._selector
        self._index = self._wanted = None

    def advance(self) -> None:
        """Read on if the consumer has room; drain it when no entry is left. Entries being returned are awaited
        first.
        """
        queue = self._queue
        if self._waiting or queue.returning:
            return
        consumer = self._consumer
        cursor = next((cursor for cursor in self._cursors if cursor.stale), None)
        room = consumer.room
        self._found = self._found and room <= 0
        # a draining consumer is answered if no message is left, even if its session's window is shut
        looks = room > 0 or (consumer.draining and consumer.shut and not self._found)
        if cursor is not None and looks:
            self._waiting = True
            self._asked_at = time.monotonic()
            self._pass(cursor)
            cursor.read_sent()
            behind = (-cursor.at[0], cursor.at[1])
            self._behind = cursor.at[1]
            queue.browse(cursor.rank, behind, self._page, _PAGE_OCTETS, lambda rows: self._read(cursor, rows))
        elif consumer.draining and (room > 0 or not consumer.waits or (consumer.shut and cursor is None)):
            consumer.drained()

    def _pass(self, cursor: Cursor) -> None:
        """Pass the entries of which the index knows that they have another value. The search from the beginning reads
        them all.
        """
        if (
            self._index is None
            or self._wanted is None
            or cursor.rank is not Rank.NORMAL
            or self._whole_spent is not None
        ):
            return
        through = self._index.through - (_AGAIN_BACK if self._queue.instance.peers else 0)
        cursor.at = (-terms.DEFAULT, self._index.passes(self._wanted.value, cursor.at[1], through))

    def _has_value(self, cursor: Cursor, row: questions.EntryRow) -> bool:
        """Note an entry in the index; whether it has the value that the selector wants."""
        wanted, index = self._wanted, self._index
        if wanted is None or index is None or cursor.rank is not Rank.NORMAL:
            return True
        value = wanted.found(row[2])
        if not index.note(value, row[0], self._behind):
            self._behind = _NEVER
        return value == wanted.value

    def _read(self, cursor: Cursor, rows: Sequence[questions.EntryRow] | StoreError) -> None:
        if isinstance(rows, StoreError):
            self._pause(cursor)
            return
        self._waiting = False
        if not self._open:
            return
        queue = self._queue
        at = cursor.at
        room = self._consumer.room
        chosen: list[Entry] = []
        given = 0
        now = now_micros()
        selecting = queue.instance.selecting
        hurried = False
        for row in rows:
            if selecting.used_up:
                hurried = True
                break
            if not self._has_value(cursor, row):
                at = (-row[7], row[0])
                continue
            held = queue.held.get(row[0])
            if held is None or held.id in queue.refused.aside:
                entry = queue.entry_kind(queue, *row)
                entry.refused_by = held.refused_by if held is not None else ()
            else:
                entry = held
            if self._wants(entry, now):
                if given + len(chosen) >= room:
                    self._found = room <= 0
                    break
                if held is None and not given:
                    chosen.append(entry)
                elif held is None or chosen:
                    break  # chosen entries must be leased, held ones not: one kind at a time keeps the order
                elif queue.withdraw(held):
                    held.message = entry.message  # an entry that was set aside had no message
                    queue.hand(self._consumer, held)
                    given += 1
            at = entry.order
        cursor.stale = cursor.stale or bool(rows)
        if hurried:
            self._page = max(self._page // 2, _FEWEST)
        else:
            self._page = min(max(2 * room, _FEWEST), _MOST) if chosen or given else min(2 * self._page, _MOST)
        if self._whole_spent is not None:
            self._whole_spent += time.monotonic() - self._asked_at
            if not rows and cursor.rank is Rank.NORMAL:
                self._whole_took, self._whole_spent = self._whole_spent, None
        cursor.move(at)
        if chosen:
            self._take(cursor, chosen)
        else:
            queue.touch()

    def _pause(self, cursor: Cursor) -> None:
        """Retry after a pause, as the store could not answer."""

        def again() -> None:
            self._waiting = False
            cursor.stale = True
            self._queue.touch()

        self._queue.instance.loop.call_later(LOAD_RETRY_SECONDS, again)

    def _wants(self, entry: Entry, now: int) -> bool:
        """Whether the consumer may get the entry, as far as is known here; not if a consumer already has it."""
        if entry.message is None or entry.state is not HELD:
            return False
        if entry.expires and entry.expires <= now:
            return False
        key = self._consumer.key
        if key in entry.refused_by or self._queue.refused.knows(entry.half_id, key):
            return False
        return self._selector.matches(entry.message, entry.attempts)

    def _take(self, cursor: Cursor, chosen: list[Entry]) -> None:
        queue = self._queue
        self._waiting = True
        instance = queue.instance

        def taken(got: dict[int, questions.Taken] | StoreError) -> None:
            if isinstance(got, StoreError):
                cursor.go_back((-chosen[0].priority, chosen[0].id - 1))
                self._pause(cursor)
                queue.reclaim()
                return
            self._waiting = False
            back: list[int] = []
            consumer = self._consumer
            alive = self._open
            for entry in chosen:
                if entry.id not in got:
                    continue  # another consumer was faster
                if entry.id in queue.held:  # loaded into the window meanwhile
                    cursor.go_back((-entry.priority, entry.id - 1))
                elif alive and consumer.room > 0:
                    # it may have been delivered elsewhere between the read and the lease
                    entry.attempts, annotations, entry.acquired, entry.failures = got[entry.id]
                    entry.annotations = annotations or b""
                    queue.refused.recall(entry)
                    queue.held[entry.id] = entry
                    if self._index is not None and self._wanted is not None:
                        self._index.gone(self._wanted.value, entry.id)
                    queue.hand(consumer, entry)
                else:
                    back.append(entry.id)
            queue.yield_ids(back)
            queue.touch()

        ids = [entry.id for entry in chosen]
        questions.take(instance.queries, queue.group_id, ids, instance.instance_id, taken)
