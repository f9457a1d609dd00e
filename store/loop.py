"""Define the store's interface to its event loop, and its pauses between attempts and between looks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol


class Backoff(NamedTuple):
    """Computes pauses between attempts, in seconds: each is twice as long as the one before, up to the longest."""

    first: float
    longest: float

    def after(self, failures: int) -> float:
        """Return the pause after so many failures in a row, from 1 on."""
        return min(self.first * 2.0 ** min(failures - 1, 10), self.longest)


class TimeShare(NamedTuple):
    """Computes pauses, in seconds, after work that may have one part in ``parts`` of the time."""

    parts: int
    least: float = 0.0
    most: float = float("inf")

    def pause(self, took: float) -> float:
        """Return the pause after work of ``took`` seconds."""
        return min(max(self.least, (self.parts - 1) * took), self.most)

    def after(self, began: float) -> float:
        """Return the monotonic time of the next work, after work that began at ``began`` and ends now."""
        now = time.monotonic()
        return now + self.pause(now - began)


class Loop(Protocol):
    """The event loop that the connections to PostgreSQL run on: readiness of descriptors, and timers."""

    def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
        """Call ``callback(events)`` when ``fd`` is ready; ``events`` as in :mod:`select` (``EPOLLIN``,
        ``EPOLLOUT``).
        """

    def change(self, fd: int, events: int) -> None: ...

    def forget(self, fd: int) -> None: ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None: ...

    def contain(self, what: object) -> None:
        """Contain an unexpected exception, while it is handled, that ``what``, a callback or a unit, has raised.

        It closes the client's connection that ``what`` belongs to, if it has one; everything else continues.
        """
