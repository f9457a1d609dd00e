"""What the store needs of its event loop: watch a descriptor, call back later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Loop(Protocol):
    def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
        """Call ``callback(events)`` when ``fd`` is ready; ``events`` as in :mod:`select` (``EPOLLIN``,
        ``EPOLLOUT``).
        """

    def change(self, fd: int, events: int) -> None: ...

    def forget(self, fd: int) -> None: ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None: ...

    def contain(self, what: object) -> None:
        """Call it while an unexpected exception is handled, which arose in ``what``, a callback or a unit. It closes
        the client's connection that ``what`` belongs to, if there is one; everything else goes on.
        """
