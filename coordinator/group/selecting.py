"""A consumer with a selector looks for its messages itself (rule P16), in the store and past the window of its queue.

**Decision.** The window of a queue is for consumers that take anything. Were consumers that choose to feed from it,
messages that no consumer here wants (or whose takers have no credit) would fill it, and what lies behind them would
never be seen; and to lease thousands of entries only to give them back costs two writes each. So each such consumer has
a cursor over the entries of its group, reads on from it page by page without taking anything, evaluates its selector,
and takes what matches by id (:func:`store.questions.entries.take`). What does not match is neither leased nor kept:
memory is one page, others (here or on other instances) see no difference, and the cursor never passes what it might
still want:

* It stops where the consumer's room ends, and goes on from there; so it does where selectors have used up their share
  of the turn.
* An entry that lies in this instance's own window is taken out of it; one that is in a consumer's hands is passed, and
  when any comes back, or arrives, the cursor is set back to before it.
* This works alike when the instance holds the group whole and when it leases row by row: a row taken so carries its
  lease either way, and the holder's reading leaves leased rows out.
* Alone, ids only grow. Among other instances commits may overtake each other. A notice says from which id on there is
  something; as it may be missed, the last second is looked at again a moment after each piece of news, and everything
  from the beginning every few seconds as long as there is news, the more seldom the longer that takes.

Each rank of priorities has a cursor of its own, and those above are read to their end first (P17).
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
from store.questions import entries as questions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.codec.selectors import Selector
    from coordinator.group.entries import Consumer, Entry
    from coordinator.group.queues import Queue


_FEWEST, _MOST = 20, 1000
_PAGE_OCTETS = 1 << 20

_AGAIN_SECONDS = 0.25
#: ids carry milliseconds above their lowest 22 bits
_AGAIN_BACK = 1000 << 22
_WHOLE_SECONDS = 5.0
#: of its time a look at everything may take a twentieth
_WHOLE_SHARE = 20


class Cursor:
    """How far the entries of one rank were looked at, in their order: (priority, negated; id)."""

    __slots__ = ("_back_to", "_beginning", "at", "rank", "stale")

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self._beginning = (-terms.DEFAULT, 0) if rank is Rank.NORMAL else (-(1 << 15) + 1, 0)
        #: everything up to here was looked at
        self.at = self._beginning
        #: what came while a question was under way may lie below what the answer covers
        self._back_to: tuple[int, int] | None = None
        #: there may be something beyond
        self.stale = True

    def go_back(self, to: tuple[int, int] | None) -> None:
        """Look again at all that is behind ``to``; None: at everything."""
        to = self._beginning if to is None else to
        self.stale = True
        self.at = min(self.at, to)
        self._back_to = to if self._back_to is None else min(self._back_to, to)

    def move(self, at: tuple[int, int]) -> None:
        """A question was answered, and looked at up to ``at``."""
        self.at = at if self._back_to is None else min(at, self._back_to)
        self._back_to = None

    def asked(self) -> None:
        self.stale = False
        self._back_to = None


class Search:
    """One consumer's; lives in ``queue.searches`` as long as its link."""

    __slots__ = (
        "_again", "_asked_at", "_consumer", "_cursors", "_found", "_page", "_queue", "_selector",
        "_waiting", "_whole", "_whole_spent", "_whole_took",
    )  # fmt: skip

    def __init__(self, queue: Queue, consumer: Consumer, selector: Selector) -> None:
        self._queue = queue
        self._consumer = consumer
        self._selector = selector
        self._cursors = tuple(Cursor(rank) for rank in Rank)
        self._waiting = False
        #: there is something for it, for which it had no room
        self._found = False
        self._page = _FEWEST
        self._again = self._whole = False
        self._asked_at = 0.0
        #: seconds spent on the look at everything that is under way, without those in which the consumer had no room;
        #: and on the last that ended
        self._whole_spent: float | None = None
        self._whole_took = 0.0

    # -- news

    def came(self, lowest: int | None, priority: int | None) -> None:
        """Entries may be there that were not: from the id ``lowest`` on, None for new ones; of ``priority``, None for
        any.
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
                instance.loop.call_later(_AGAIN_SECONDS, self._look_again)
            if not self._whole:
                self._whole = True
                instance.loop.call_later(max(_WHOLE_SECONDS, _WHOLE_SHARE * self._whole_took), self._look_at_all)

    def has_passed(self, entry_id: int) -> bool:
        return self._cursors[Rank.NORMAL].at[1] >= entry_id

    def _look_again(self) -> None:
        self._again = False
        for cursor in self._cursors:
            back = None
            if cursor.rank is Rank.NORMAL:
                back = (-terms.DEFAULT, max(0, cursor.at[1] - _AGAIN_BACK))
            cursor.go_back(back)
        self._queue.touch()

    def _look_at_all(self) -> None:
        self._whole = False
        self._whole_spent = 0.0
        for cursor in self._cursors:
            cursor.go_back(None)
        self._queue.touch()

    # -- looking

    @property
    def _open(self) -> bool:
        return self in self._queue.searches

    def end(self) -> None:
        """Its link has ended: free the memory of its selector at once (the link and its search refer to each other)."""
        del self._selector

    def advance(self) -> None:
        """Look on, where the consumer has room; tell it when there is nothing. Entries on their way back come first."""
        queue = self._queue
        if self._waiting or queue.returning:
            return
        consumer = self._consumer
        cursor = next((cursor for cursor in self._cursors if cursor.stale), None)
        room = consumer.room
        self._found = self._found and room <= 0
        # one that drains is told if there is nothing for it, also where the window of its session is shut
        looks = room > 0 or (consumer.draining and consumer.shut and not self._found)
        if cursor is not None and looks:
            self._waiting = True
            self._asked_at = time.monotonic()
            cursor.asked()
            behind = (-cursor.at[0], cursor.at[1])
            queue.browse(cursor.rank, behind, self._page, _PAGE_OCTETS, lambda rows: self._seen(cursor, rows))
        elif consumer.draining and (room > 0 or not consumer.waits or (consumer.shut and cursor is None)):
            consumer.drained()

    def _seen(self, cursor: Cursor, rows: Sequence[questions.EntryRow] | StoreError) -> None:
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
                    break  # those must be asked for, these not: one kind at a time keeps the order
                elif queue.withdraw(held):
                    held.message = entry.message  # one that stood aside had none
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
        """The store could not answer: look again, but not at once, as that would change nothing."""

        def again() -> None:
            self._waiting = False
            cursor.stale = True
            self._queue.touch()

        self._queue.instance.loop.call_later(LOAD_RETRY_SECONDS, again)

    def _wants(self, entry: Entry, now: int) -> bool:
        """Whether it may have the entry, as far as is known here; not where a consumer has it already."""
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
                    continue  # another was faster
                if entry.id in queue.held:  # read into the window meanwhile
                    cursor.go_back((-entry.priority, entry.id - 1))
                elif alive and consumer.room > 0:
                    # it may have been elsewhere between the look and the taking
                    entry.attempts, annotations, entry.acquired, entry.failures = got[entry.id]
                    entry.annotations = annotations or b""
                    queue.refused.recall(entry)
                    queue.held[entry.id] = entry
                    queue.hand(consumer, entry)
                else:
                    back.append(entry.id)
            queue.yield_ids(back)
            queue.touch()

        ids = [entry.id for entry in chosen]
        questions.take(instance.queries, queue.group_id, ids, instance.instance_id, taken)
