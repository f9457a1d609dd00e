"""The loop runs in one thread with one epoll: it watches descriptors, and keeps deadlines in a heap.

Proton's own IO is ``select``, which ends at descriptor 1,024 and scans all connections in each turn.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count
from typing import Any

_MOST_EVENTS = 512
_LONGEST_WAIT_SECONDS = 1.0


class Loop:
    """Runs turns: due deadlines, ready descriptors, then the turn's end. Implements :class:`store.loop.Loop`."""

    def __init__(self) -> None:
        #: connections with output at the end of the turn; if there are any, the loop does not wait
        self.dirty: list[Any] = []
        #: connections to be read; the next turn does not wait if some are left
        self.readable: list[Any] = []
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[int], object]] = {}
        self._deadlines: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self._stopping = False

    def watch(self, fd: int, events: int, callback: Callable[[int], object]) -> None:
        self._callbacks[fd] = callback
        self._epoll.register(fd, events)

    def change(self, fd: int, events: int) -> None:
        self._epoll.modify(fd, events)

    def forget(self, fd: int) -> None:
        self._callbacks.pop(fd, None)
        with suppress(OSError):  # closed by its owner already
            self._epoll.unregister(fd)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        heappush(self._deadlines, (time.monotonic() + seconds, next(self._number), callback))

    def call(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call the callback, and contain an exception."""
        try:
            callback(*arguments)
        except Exception:  # noqa: BLE001 - a defect of the callback
            self.contain(callback)

    def contain(self, what: object) -> None:
        raise NotImplementedError

    def finish_turn(self) -> None:
        """End the turn, when all ready descriptors have been served."""
        raise NotImplementedError

    def stop(self) -> None:
        self._stopping = True

    def run(self) -> None:
        while not self._stopping:
            self.turn(_LONGEST_WAIT_SECONDS)

    def turn(self, longest: float) -> None:
        """Run one turn. ``longest``: the most seconds to wait for a descriptor; fewer if a deadline is due, or work is
        left.
        """
        deadlines, callbacks = self._deadlines, self._callbacks
        now = time.monotonic()
        wait = longest
        while deadlines and deadlines[0][0] <= now:
            self.call(heappop(deadlines)[2])
            wait = 0.0  # its work for the end of the turn, a commit or a delivery, must not wait for a descriptor
        if deadlines:
            wait = min(wait, max(0.0, deadlines[0][0] - now))
        if self.dirty or self.readable:
            wait = 0.0
        for fd, events in self._epoll.poll(wait, _MOST_EVENTS):
            callback = callbacks.get(fd)
            if callback is not None:
                try:
                    callback(events)
                except Exception:  # noqa: BLE001 - a defect of the callback
                    self.contain(callback)
        self.finish_turn()
