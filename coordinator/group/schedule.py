"""Scheduled messages (rule D7): when the time comes, each is entered into its group like any other. So are failed
deliveries that wait (D2); in a message group (D3) such a one keeps its place.

A message that waits for its time is in the store only, in no instance's window. Every instance looks for messages
that are due, also those that other instances posted; so a schedule is kept over restarts.

A look begins at a low-water mark, the time up to which all was promoted: while an old snapshot is held, what was
promoted stays in the index, and a look from the beginning walks through it. Messages posted here lower the mark; what
another instance posted late is found by that instance, or by a look at all.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from coordinator.group.entries import now_micros
from coordinator.group.fifo import FifoQueue
from coordinator.group.window import next_whole_look
from store.errors import StoreError
from store.questions import schedule as questions

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.group.serving import Queues
    from coordinator.instance import Instance


#: Poll interval for messages posted by other instances; and the shortest interval.
_LOOK_SECONDS = 0.5
_SHORTEST_SECONDS = 0.02
_AT_ONCE = 200
#: For so long after a notice of an application it is looked again, at intervals that double from the first one: others
#: whose commits were under way with it give none (store/sql/application.sql).
_AFTER_NOTICE_SECONDS = 0.5
_FIRST_INTERVAL_SECONDS = 0.01
#: For so long another instance may have the turn without giving a place: it may be stopped. Then
#: order is less than that nothing comes at all.
_PATIENCE_MS = 2000
#: how much older what another process makes due may be than what was promoted already
_LATE_MICROS = 60_000_000
#: a time before, and one after, that of any message
_BEFORE_ALL = -(1 << 63)
_AFTER_ALL = (1 << 63) - 1


class Schedule:
    def __init__(self, instance: Instance, queues: Queues) -> None:
        self._instance = instance
        self._queues = queues
        self._asking = False
        #: entries were made that the question under way may not see
        self._missed = False
        #: notices of applications: until when more may come with each, by the monotonic clock, and from when on due
        self._told: deque[tuple[float, int]] = deque()
        self._interval = _FIRST_INTERVAL_SECONDS
        #: when to look next, by the monotonic clock
        self._next = 0.0
        #: no message is due up to this time, in microseconds since 2000, but those posted here since then: the first
        self._low = _BEFORE_ALL
        self._lowered = _AFTER_ALL
        #: when all may be looked at again, by the monotonic clock
        self._whole_at = 0.0
        #: since when it was never this instance's turn, by the monotonic clock
        self._refused_since: float | None = None
        #: another was passed over, and still has the turn
        self._passed_over = False

    def start(self) -> None:
        self._look()

    def due(self, available: int) -> None:
        """A message was posted here for this time, in microseconds since 2000."""
        self._lowered = min(self._lowered, available - 1)
        self._look_in((available - now_micros()) / 1e6)

    def notified(self, payload: str) -> None:
        """Another process has made entries that are due: a decision without this instance, or an application (X2).
        ``payload``: none of them is due before this time, in microseconds since 2000, where that is known.
        """
        self._missed = self._asking
        try:
            lowest = int(payload) - 1
            self._told.append((time.monotonic() + _AFTER_NOTICE_SECONDS, lowest))
            self._interval = _FIRST_INTERVAL_SECONDS
        except ValueError:
            lowest = self._low - _LATE_MICROS
        self._lowered = min(self._lowered, max(_BEFORE_ALL, lowest))
        self._look_in(0)

    def _look_in(self, seconds: float) -> None:
        at = time.monotonic() + max(seconds, 0.0)
        if at < self._next:
            self._next = at
            self._instance.loop.call_later(max(seconds, 0.0), self._look_if_due)

    def _look_if_due(self) -> None:
        """Only the last call that was scheduled counts."""
        if not self._asking and time.monotonic() >= self._next:
            self._look()

    def _look(self) -> None:
        self._asking = True
        self._missed = False
        instance = self._instance
        ids = [instance.ids.next() for _ in range(_AT_ONCE)]
        now = time.monotonic()
        whole = now >= self._whole_at
        while self._told and self._told[0][0] < now:
            self._told.popleft()
        self._low = _BEFORE_ALL if whole else min(self._low, self._lowered, *(lowest for _, lowest in self._told))
        self._lowered = _AFTER_ALL

        def promoted(answer: questions.Promoted | StoreError) -> None:
            if whole:
                self._whole_at = next_whole_look(now, _LOOK_SECONDS)
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
        self._asking = False
        self._next = float("inf")
        if isinstance(answer, StoreError):
            self._look_in(_LOOK_SECONDS)
            return
        self._low = answer.through
        self._took_turn(answer)
        wait = _LOOK_SECONDS
        if self._missed or sum(each.entries for each in answer.due) >= _AT_ONCE:
            wait = 0
        elif answer.next_ms is not None:
            wait = min(wait, max(answer.next_ms / 1000, _SHORTEST_SECONDS))
        if self._told:
            wait = min(wait, self._interval)
            self._interval *= 2
        # Before the queues are told: an exception in one of them must not end the schedule.
        self._look_in(wait)
        for each in answer.due:
            queue = self._queues.by_group.get(each.group)
            if isinstance(queue, FifoQueue) and each.key is not None:
                queue.came(each.key, each.lowest)
            elif queue is not None:
                queue.in_store(each.lowest, each.priority)


# Messages whose time runs out in the store, in no instance's window (rule P12): looked for every few seconds.

EXPIRY_SECONDS = 2.0
#: as many at once, and there are probably more
_EXPIRED_AT_ONCE = 500


class StoredExpiry:
    """``failed``: called when some are marked: they are to become dead letters."""

    def __init__(self, instance: Instance, failed: Callable[[], None]) -> None:
        self._instance = instance
        self._failed = failed

    def look(self) -> None:
        instance = self._instance
        questions.expire(instance.queries, instance.uuids.next(), instance.instance_id, self._expired)

    def _expired(self, answer: questions.Expired | StoreError) -> None:
        marked, dropped = (0, 0) if isinstance(answer, StoreError) else answer
        # first: an exception in what follows must not end it
        self._instance.loop.call_later(0 if marked + dropped >= _EXPIRED_AT_ONCE else EXPIRY_SECONDS, self.look)
        if marked:
            self._failed()
