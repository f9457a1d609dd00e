"""Units of the group commit yield entries to the store, share them with other instances, or move them to dead
letters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from store.commit.checkable import NEVER_HAD
from store.errors import NotLeased, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coordinator.group.entries import Entry
    from coordinator.group.queues import Queue
    from store.commit.batch import Batch


#: seconds before a failed query is retried
LOAD_RETRY_SECONDS = 0.5


class Share:
    """Unit: ends the hold of a whole group; the entries that this instance has are leased row by row."""

    __slots__ = ("_pinned", "_queue")

    owner: object = None

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._pinned: list[int] = []

    def write(self, batch: Batch) -> None:
        self._pinned = list(self._queue.held)
        batch.share(self._queue.group_id, self._pinned)
        batch.notify(self._queue.group_id, 0)  # no entry of the group could be leased before

    def durable(self) -> None:
        self._queue.shared(self._pinned)

    def refused(self, error: StoreError) -> None:
        self._queue.not_shared()


log = structlog.get_logger(__name__)


def stored_attempts(entry: Entry) -> int:
    """Return the attempts that are stored with an entry that returns undecided."""
    return entry.attempts if entry.acquired else NEVER_HAD


class Yield:
    """Unit: ends the leases of undecided entries, so that any consumer may get them."""

    __slots__ = ("_attempts", "_ids", "_queue")

    owner: object = None

    def __init__(self, queue: Queue, ids: Sequence[int], attempts: Sequence[int]) -> None:
        self._queue = queue
        self._ids = ids
        self._attempts = attempts
        queue.yields()

    def write(self, batch: Batch) -> None:
        for entry_id, attempts in zip(self._ids, self._attempts, strict=True):
            batch.yield_entry(self._queue.group_id, entry_id, attempts=attempts)
        if self._queue.is_shared:
            self._queue.wake(batch, self._ids)

    def durable(self) -> None:
        self._queue.yielded(self._ids)

    def refused(self, error: StoreError) -> None:
        self.durable()


class Offer(Yield):
    """Unit: yields entries that consumers here have refused; this instance does not load them at once."""

    def durable(self) -> None:
        self._queue.offered()


class Reclaim:
    """Unit: yields entries of a lost load. It writes no rows itself: once it is answered, so is every earlier batch."""

    __slots__ = ("_queue", "_then", "_unknown")

    owner: object = None

    def __init__(self, queue: Queue, unknown: list[int], then: Callable[[], None] | None) -> None:
        self._queue = queue
        self._unknown = unknown
        self._then = then

    def write(self, batch: Batch) -> None:
        pass

    def durable(self) -> None:
        queue = self._queue
        lost = [found for found in self._unknown if found not in queue.held]
        if lost:
            log.warning("entries of a lost load given back", queue=queue.name, entries=len(lost))
            queue.yield_ids(lost)
        else:
            queue.in_store(0)
        if self._then is not None:
            self._then()

    def refused(self, error: StoreError) -> None:
        self.durable()


class SetAside:
    """Unit: moves a stored message that cannot be delivered to the dead letters, unchanged."""

    __slots__ = ("_entry", "_reason")

    owner: object = None

    def __init__(self, entry: Entry, reason: str) -> None:
        self._entry = entry
        self._reason = reason

    def write(self, batch: Batch) -> None:
        entry = self._entry
        batch.back(
            entry.queue.group_id,
            entry.id,
            attempts=entry.attempts,
            failures=entry.failures,
            lease=0,
            failed=self._reason,
            annotations=entry.annotations,
        )

    def durable(self) -> None:
        queue = self._entry.queue
        queue.done_with(self._entry)
        queue.failed()

    def refused(self, error: StoreError) -> None:
        log.error("a message could not be set aside", entry=self._entry.id, error=str(error))
        self._entry.queue.done_with(self._entry)


class Expiry:
    """Unit: expires a message whose time to live ended before a consumer got it (rule P12)."""

    __slots__ = ("_entry", "_failed")

    owner: object = None

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        #: whether it was marked for the dead letters when written: the policy may change before that is durable
        self._failed = False

    def write(self, batch: Batch) -> None:
        entry = self._entry
        queue = entry.queue
        self._failed = queue.policies.on_expiry == "dead-letter" and not queue.policies.dead_letters
        if self._failed:
            batch.back(
                queue.group_id,
                entry.id,
                attempts=entry.attempts,
                failures=entry.failures,
                lease=0,
                failed="expired",
                annotations=entry.annotations,
            )
        else:
            batch.gone(queue.group_id, entry.id)
            batch.op(queue.instance.uuids.next(), b"expire", covers=((entry.half_id, queue.group_id),))

    def durable(self) -> None:
        queue = self._entry.queue
        queue.done_with(self._entry)
        if self._failed:
            queue.failed()

    def refused(self, error: StoreError) -> None:
        entry = self._entry
        entry.queue.done_with(entry)
        if not isinstance(error, NotLeased):  # the store finds expired entries that are not leased
            entry.queue.yield_ids([entry.id], [stored_attempts(entry)])
