"""Scheduled messages (rule D7): when the time comes, each is entered into its group like any other.

A message that waits for its time is in the store only, in no instance's window. Every instance looks for messages
that are due, also those that other instances posted; so a schedule is kept over restarts.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from coordinator.group.entries import now_micros
from store.errors import StoreError
from store.questions import schedule as questions

if TYPE_CHECKING:
    from coordinator.group.serving import Queues
    from coordinator.instance import Instance

#: Poll interval for messages posted by other instances; and the shortest interval.
_LOOK_SECONDS = 0.5
_SHORTEST_SECONDS = 0.02
_AT_ONCE = 200


class Schedule:
    def __init__(self, instance: Instance, queues: Queues) -> None:
        self._instance = instance
        self._queues = queues
        self._asking = False
        #: entries were made that the question under way may not see
        self._missed = False
        #: when to look next, by the monotonic clock
        self._next = 0.0

    def start(self) -> None:
        self._look()

    def due(self, available: int) -> None:
        """A message was posted here for this time, in microseconds since 2000."""
        self._look_in((available - now_micros()) / 1e6)

    def notified(self, _payload: str) -> None:
        """Another process has made entries that are due: a decision without this instance."""
        self._missed = self._asking
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
        questions.promote(instance.queries, ids, self._promoted, notify=bool(instance.peers))

    def _promoted(self, answer: questions.Promoted | StoreError) -> None:
        self._asking = False
        self._next = float("inf")
        if isinstance(answer, StoreError):
            self._look_in(_LOOK_SECONDS)
            return
        wait = _LOOK_SECONDS
        if self._missed or sum(each.entries for each in answer.due) >= _AT_ONCE:
            wait = 0
        elif answer.next_ms is not None:
            wait = min(wait, max(answer.next_ms / 1000, _SHORTEST_SECONDS))
        # Before the queues are told: an exception in one of them must not end the schedule.
        self._look_in(wait)
        for each in answer.due:
            queue = self._queues.by_group.get(each.group)
            if queue is not None:
                queue.in_store(each.lowest)
