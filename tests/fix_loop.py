"""A minimal event loop for the store: one epoll and deadlines, so that the store is tested without clients."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

#: Seconds to wait for events that must happen: far longer than they ever took.
PATIENCE = 60.0


class EpollLoop:
    """Implements :class:`store.loop.Loop`; ``end_turn`` runs after each turn."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._deadlines: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        #: what exceptions arose in; None: they are not contained
        self.contained: list[object] | None = None
        self.end_turn: Callable[[], object] = lambda: None

    def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
        self._callbacks[fd] = callback
        self._epoll.register(fd, events)

    def change(self, fd: int, events: int) -> None:
        self._epoll.modify(fd, events)

    def forget(self, fd: int) -> None:
        self._callbacks.pop(fd, None)
        with contextlib.suppress(OSError):
            self._epoll.unregister(fd)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        heappush(self._deadlines, (time.monotonic() + seconds, next(self._number), callback))

    def contain(self, what: object) -> None:
        """What a test did not ask for fails it."""
        if self.contained is None:
            raise
        self.contained.append(what)

    def turn(self, longest: float = 0.01) -> None:
        now = time.monotonic()
        while self._deadlines and self._deadlines[0][0] <= now:
            heappop(self._deadlines)[2]()
        for fd, events in self._epoll.poll(longest):
            callback = self._callbacks.get(fd)
            if callback is not None:
                callback(events)
        self.end_turn()

    def run_until(self, done: Callable[[], object]) -> None:
        """Run turns until ``done()``; fails after :data:`PATIENCE` seconds."""
        deadline = time.monotonic() + PATIENCE
        self.end_turn()
        while not done():
            assert time.monotonic() < deadline, "it did not happen"
            self.turn()

    def run_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.turn()

    def close(self) -> None:
        self._epoll.close()
