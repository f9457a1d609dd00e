"""The loop of a worker without clients, turned by a test: for the store, and for rules apart from the wire."""

from __future__ import annotations

import time
from collections.abc import Callable

from links.loop import Loop

#: Seconds to wait for events that must happen: far longer than they ever took.
PATIENCE = 60.0

_LONGEST_WAIT_SECONDS = 0.01


class EpollLoop(Loop):
    """``end_turn`` runs after each turn."""

    def __init__(self) -> None:
        super().__init__()
        #: what exceptions arose in; None: they are not contained
        self.contained: list[object] | None = None
        self.end_turn: Callable[[], object] = lambda: None

    def contain(self, what: object) -> None:
        """What a test did not ask for fails it."""
        if self.contained is None:
            raise
        self.contained.append(what)

    def finish_turn(self) -> None:
        self.end_turn()

    def run_until(self, done: Callable[[], object]) -> None:
        """Run turns until ``done()``; fails after :data:`PATIENCE` seconds."""
        deadline = time.monotonic() + PATIENCE
        self.end_turn()
        while not done():
            assert time.monotonic() < deadline, "it did not happen"
            self.turn(_LONGEST_WAIT_SECONDS)

    def run_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.turn(_LONGEST_WAIT_SECONDS)

    def close(self) -> None:
        self._epoll.close()
