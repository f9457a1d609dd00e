"""Units of the group commit that give entries back to the store, share them with others, or set them aside."""

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


#: how long what the store could not answer is not asked again
LOAD_RETRY_SECONDS = 0.5


class Share:
    """Unit: the group is held whole no more; what this instance has of it is leased row by row."""

    __slots__ = ("_pinned", "_queue")

    owner: object = None

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._pinned: list[int] = []

    def write(self, batch: Batch) -> None:
        self._pinned = list(self._queue.held)
        batch.share(self._queue.group_id, self._pinned)
        batch.tell(self._queue.group_id, 0)  # none of it could be leased before

    def durable(self) -> None:
        self._queue.shared(self._pinned)

    def refused(self, error: StoreError) -> None:
        self._queue.not_shared()


log = structlog.get_logger(__name__)


def stored_attempts(entry: Entry) -> int:
    """As they are stored with an entry that returns undecided."""
    return entry.attempts if entry.acquired else NEVER_HAD


class Yield:
    """Unit: the leases of entries that were held and never decided end, for any consumer to take them."""

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
        if self._queue.instance.peers:
            self._queue.wake(batch, self._ids)

    def durable(self) -> None:
        self._queue.yielded(self._ids)

    def refused(self, error: StoreError) -> None:
        self.durable()


class Offer(Yield):
    """Unit: as :class:`Yield`, of what consumers here have refused; this instance does not look for it at once."""

    def durable(self) -> None:
        self._queue.offered()


class Reclaim:
    """Unit without rows of its own at first: once it is answered, so is every batch before it."""

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
    """Unit: the stored message cannot be delivered; it is moved to the dead letters as it is."""

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
    """Unit: the message's time ran out before a consumer took it (rule P12)."""

    __slots__ = ("_entry", "_failed")

    owner: object = None

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        #: as written: marked for the dead letters; the policy may change before that is durable
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
