"""The schedule enters each scheduled message into its group when it is due, like any other (rule D7), and each failed
delivery that waits for a retry (D2); in a message group (D3) the latter keeps its place.

A message that is not due is in the store only, in no instance's window. Every instance queries for due messages, also
those that other instances posted, so that the schedule survives restarts.

A query begins at a low-water mark, the time up to which all messages were promoted: while an old snapshot is held,
promoted messages stay in the index, and a query from the beginning would pass them all. Messages posted here lower the
mark; messages that another instance posted late are found by that instance, or by a query from the beginning.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from coordinator.group.entries import now_micros
from coordinator.group.fifo import FifoQueue
from coordinator.group.window import WHOLE
from store.errors import StoreError
from store.questions import schedule as questions

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.group.serving import Queues
    from coordinator.instance import Instance


#: Poll interval for messages posted by other instances; and the shortest interval.
_LOOK_SECONDS = 0.5
_WHOLE = WHOLE._replace(least=_LOOK_SECONDS)
_SHORTEST_SECONDS = 0.02
_AT_ONCE = 200
#: Seconds after a NOTIFY of an application for which queries are repeated, at intervals that double from the first one:
#: commits that were under way with it send no NOTIFY (store/sql/application.sql).
_AFTER_NOTICE_SECONDS = 0.5
_FIRST_INTERVAL_SECONDS = 0.01
#: How long another instance may have the turn without ending it: its process may be stopped. After that, progress
#: counts more than order.
_PATIENCE_MS = 2000
#: how much older than the promoted messages those may be that another process makes due
_LATE_MICROS = 60_000_000
#: a time before that of any message, and one after
_BEFORE_ALL = -(1 << 63)
_AFTER_ALL = (1 << 63) - 1


class Schedule:
    """Promotes scheduled entries that are due (D7), for all addresses; the instances take turns."""

    def __init__(self, instance: Instance, queues: Queues) -> None:
        self._instance = instance
        self._queues = queues
        self._querying = False
        #: whether entries were made that the query under way may not see
        self._missed = False
        #: NOTIFYs of applications: the monotonic time until which more entries may follow, and from when on these are
        #: due
        self._noticed: deque[tuple[float, int]] = deque()
        self._interval = _FIRST_INTERVAL_SECONDS
        #: the monotonic time of the next query
        self._next = 0.0
        #: the time, in microseconds since 2000, up to which no message is due except those posted here since the last
        #: query; and the lowest of those
        self._low = _BEFORE_ALL
        self._lowered = _AFTER_ALL
        #: the monotonic time of the next query from the beginning
        self._whole_at = 0.0
        #: the monotonic time since when this instance was refused a turn; None: it was not
        self._refused_since: float | None = None
        #: whether another instance was passed over that still has the turn
        self._passed_over = False

    def start(self) -> None:
        self._query()

    def due(self, available: int) -> None:
        """Schedule a query for a message posted here that is due at this time, in microseconds since 2000."""
        self._lowered = min(self._lowered, available - 1)
        self._query_in((available - now_micros()) / 1e6)

    def notified(self, payload: str) -> None:
        """Query now, as another process has made due entries: a decision without this instance, or an application (X2).
        ``payload``: the time of the first of them, in microseconds since 2000, if known.
        """
        self._missed = self._querying
        try:
            lowest = int(payload) - 1
            self._noticed.append((time.monotonic() + _AFTER_NOTICE_SECONDS, lowest))
            self._interval = _FIRST_INTERVAL_SECONDS
        except ValueError:
            lowest = self._low - _LATE_MICROS
        self._lowered = min(self._lowered, max(_BEFORE_ALL, lowest))
        self._query_in(0)

    def _query_in(self, seconds: float) -> None:
        at = time.monotonic() + max(seconds, 0.0)
        if at < self._next:
            self._next = at
            self._instance.loop.call_later(max(seconds, 0.0), self._query_if_due)

    def _query_if_due(self) -> None:
        """Query, unless this timer is outdated."""
        if not self._querying and time.monotonic() >= self._next:
            self._query()

    def _query(self) -> None:
        self._querying = True
        self._missed = False
        instance = self._instance
        ids = [instance.ids.next() for _ in range(_AT_ONCE)]
        now = time.monotonic()
        whole = now >= self._whole_at
        while self._noticed and self._noticed[0][0] < now:
            self._noticed.popleft()
        self._low = _BEFORE_ALL if whole else min(self._low, self._lowered, *(lowest for _, lowest in self._noticed))
        self._lowered = _AFTER_ALL

        def promoted(answer: questions.Promoted | StoreError) -> None:
            if whole:
                self._whole_at = _WHOLE.after(now)
            self._promoted(answer)

        questions.promote(
            instance.queries, ids, self._low, promoted, notify=bool(instance.peers), stalled=self._patience(now)
        )

    def _patience(self, now: float) -> int | None:
        if self._passed_over:
            return 0
        refused = self._refused_since is not None and now - self._refused_since >= _PATIENCE_MS / 1000
        return _PATIENCE_MS if refused else None

    def _took_turn(self, answer: questions.Promoted) -> None:
        self._passed_over = answer.passed_over
        if not answer.refused:
            self._refused_since = None
        elif self._refused_since is None:
            self._refused_since = time.monotonic()

    def _promoted(self, answer: questions.Promoted | StoreError) -> None:
        self._querying = False
        self._next = float("inf")
        if isinstance(answer, StoreError):
            self._query_in(_LOOK_SECONDS)
            return
        self._low = answer.through
        self._took_turn(answer)
        wait = _LOOK_SECONDS
        if self._missed or sum(each.entries for each in answer.due) >= _AT_ONCE:
            wait = 0
        elif answer.next_ms is not None:
            wait = min(wait, max(answer.next_ms / 1000, _SHORTEST_SECONDS))
        if self._noticed:
            wait = min(wait, self._interval)
            self._interval *= 2
        # before the queues are notified: an exception in one of them must not end the schedule
        self._query_in(wait)
        for each in answer.due:
            queue = self._queues.by_group.get(each.group)
            if isinstance(queue, FifoQueue) and each.key is not None:
                queue.entry_stored(each.key, each.lowest)
            elif queue is not None:
                queue.in_store(each.lowest, each.priority)


# Messages that expire in the store, in no instance's window, are found every few seconds (rule P12).

EXPIRY_SECONDS = 2.0
#: how many one query expires: after as many, there are probably more
_EXPIRED_AT_ONCE = 500


class StoredExpiry:
    """Expires messages in the store. ``failed``: called when some are marked, to become dead letters."""

    def __init__(self, instance: Instance, failed: Callable[[], None]) -> None:
        self._instance = instance
        self._failed = failed

    def search(self) -> None:
        instance = self._instance
        questions.expire(instance.queries, instance.uuids.next(), instance.instance_id, self._expired)

    def _expired(self, answer: questions.Expired | StoreError) -> None:
        marked, dropped = (0, 0) if isinstance(answer, StoreError) else answer
        # first: an exception in the rest must not end the checks
        self._instance.loop.call_later(0 if marked + dropped >= _EXPIRED_AT_ONCE else EXPIRY_SECONDS, self.search)
        if marked:
            self._failed()
