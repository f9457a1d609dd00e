"""Scheduled messages (rule D7): when the time comes, each is entered into its group like any other.

A message that waits for its time is in the store only, in no instance's window. Every instance looks for messages
that are due, also those that other instances posted; so a schedule is kept over restarts.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from coordinator.group.entries import now_micros
from store import arrays, queries
from store.errors import StoreError

if TYPE_CHECKING:
    from coordinator.group.serving import Queues
    from coordinator.instance import Instance
    from store.asking import Row

#: Poll interval for messages posted by other instances; and the shortest interval.
_LOOK_SECONDS = 0.5
_SHORTEST_SECONDS = 0.02
_AT_ONCE = 200


class Schedule:
    def __init__(self, instance: Instance, queues: Queues) -> None:
        self._instance = instance
        self._queues = queues
        self._asking = False
        #: when to look next, by the monotonic clock
        self._next = 0.0

    def start(self) -> None:
        self._look()

    def due(self, available: int) -> None:
        """A message was posted here for this time, in microseconds since 2000."""
        self._look_in((available - now_micros()) / 1e6)

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
        ids = self._instance.ids
        parameters = [
            arrays.int8([ids.next() for _ in range(_AT_ONCE)]),
            b"\x01" if self._instance.peers else b"\x00",
        ]
        self._instance.queries.ask(queries.PROMOTE, parameters, self._promoted)

    def _promoted(self, rows: list[Row] | StoreError) -> None:
        self._asking = False
        self._next = float("inf")
        if isinstance(rows, StoreError):
            self._look_in(_LOOK_SECONDS)
            return
        *groups, (_, _, _, next_ms) = rows
        wait = _LOOK_SECONDS
        if sum(count for _, _, count, _ in groups) >= _AT_ONCE:
            wait = 0
        elif next_ms is not None:
            wait = min(wait, max(next_ms / 1000, _SHORTEST_SECONDS))
        # before the queues hear of it: an exception in one of them must not end the schedule
        self._look_in(wait)
        for group_id, lowest, _, _ in groups:
            queue = self._queues.by_group.get(group_id)
            if queue is not None:
                queue.in_store(lowest)
