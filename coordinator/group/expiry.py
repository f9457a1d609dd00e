"""Messages whose time runs out in the store, in no instance's window (rule P12): looked for every few seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from store.errors import StoreError
from store.questions import expiry as questions

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.instance import Instance

EXPIRY_SECONDS = 2.0
#: as many at once, and there are probably more
_AT_ONCE = 500


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
        self._instance.loop.call_later(0 if marked + dropped >= _AT_ONCE else EXPIRY_SECONDS, self.look)
        if marked:
            self._failed()
