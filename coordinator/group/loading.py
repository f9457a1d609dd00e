"""Entries read from the store into a window, and what becomes of a load whose answer was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from store.commit.checkable import NEVER_HAD
from store.errors import NotLeased, StoreError
from store.questions import entries as questions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coordinator.group.entries import Entry
    from coordinator.group.queues import Queue
    from coordinator.group.window import Loader, Window
    from store.commit.batch import Batch
    from store.commit.terms import Rank


# A group that one instance holds whole: the only one that lives reads on by ranges of ids and leases nothing row by
# row. When another comes, the group is shared: what the holder has of it is leased then.

#: how long a group that is being read waits to be shared
_READ_SECONDS = 0.01


def hold(queue: Queue, then: Callable[[], None]) -> None:
    """Hold the group whole, where no other instance lives or has it."""
    instance = queue.instance

    def answered(held: bool) -> None:
        queue.holding = held
        if held:
            queue.home.holding.add(queue)
        then()

    questions.hold(instance.queries, queue.group_id, instance.instance_id, answered)


def unread(queue: Queue) -> None:
    """This instance has nothing left of a group held whole: should it die, no entry of the group counts as sent."""
    instance = queue.instance
    questions.unread(instance.queries, queue.group_id, instance.instance_id)


def share(queue: Queue) -> None:
    """Another instance came: hold the group no longer whole."""
    if queue.holding and queue not in queue.home.sharing:
        queue.home.sharing.add(queue)
        _when_read(queue)


def _when_read(queue: Queue) -> None:
    if queue.normal.loading:  # what is being read is not known yet
        queue.instance.loop.call_later(_READ_SECONDS, lambda: _when_read(queue))
        return
    queue.normal.loading = True
    queue.instance.commit.add(Share(queue))


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
        queue = self._queue
        # An entry given back in this batch or the one before was free in the store already, and is leased again now.
        let_go = [each for each in self._pinned if each not in queue.held]
        if let_go:
            queue.yield_ids(let_go)
        queue.holding = False
        queue.home.holding.discard(queue)
        queue.home.sharing.discard(queue)
        queue.normal.load_ended()
        queue.in_store(0)

    def refused(self, error: StoreError) -> None:
        """In the store this instance still holds the group whole, and nothing is leased row by row: it reads on.

        The next heartbeat that sees other instances, or the next look for idle queues, shares the group again.
        """
        self._queue.home.sharing.discard(self._queue)
        self._queue.normal.load_ended()
        self._queue.touch()


# Units of the group commit about entries that this instance holds, other than their outcomes: given back,
# expired, or set aside.

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
        queue.returning += 1

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

    __slots__ = ("_queue", "_unknown", "_window")

    owner: object = None

    def __init__(self, queue: Queue, window: Loader | None, unknown: list[int]) -> None:
        self._queue = queue
        self._window = window
        self._unknown = unknown

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
        if self._window is not None:
            self._window.load_ended()

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


#: what an entry is read as
EntryRow = questions.EntryRow
#: how long what the store could not answer is not asked again
LOAD_RETRY_SECONDS = 0.5


def load(window: Window, most: int, octets: int) -> None:
    """Take entries from the store into the window; the answer goes to ``window.loaded``.

    Alone, this instance holds the whole group and reads on from where it was; among others it leases each entry.
    """
    queue = window.queue
    instance = queue.instance
    if queue.holding or instance.peers:
        _load(window, most, octets)
    else:
        hold(queue, lambda: _load(window, most, octets))


def _load(window: Window, most: int, octets: int) -> None:
    queue, low, version = window.queue, window.low, window.version
    by_range, looks_at_all = window.by_range, low.looks_at_all
    instance = queue.instance

    def loaded(answer: questions.Loaded | StoreError) -> None:
        if isinstance(answer, StoreError):
            # a row that the server cannot read: asking at once would change nothing
            instance.loop.call_later(LOAD_RETRY_SECONDS, lambda: reclaim(queue, window))
            return
        rows, found = answer
        entry_kind = queue.entry_kind
        entries = [entry_kind(queue, *row[:10]) for row in rows]
        # nothing beyond what came; what is not read by the range may lie below the low-water mark, so that an empty
        # answer above it says little
        complete = found == len(rows) < most if rows else by_range or looks_at_all
        window.loaded(entries, complete, version)
        queue.touch()

    asked, group, number = instance.queries, queue.group_id, instance.instance_id
    if by_range:
        questions.read(asked, group, low.marks[0], most, octets, number, loaded)
    else:
        questions.lease(asked, window.rank, group, low.marks, most, octets, number, loaded)


def reclaim(queue: Queue, window: Loader | None) -> None:
    """A load may have leased entries that this instance does not know: find them, and give them back to the store.
    ``window``: whose load it was.

    Entries born leased in a batch under way are not known either, until the batch is answered: what is listed now
    is looked at again once every batch before is answered.
    """
    instance = queue.instance

    def listed(found: list[int]) -> None:
        instance.commit.add(Reclaim(queue, window, [each for each in found if each not in queue.held]))

    questions.leased(instance.queries, queue.group_id, instance.instance_id, listed)


def browse(
    queue: Queue,
    rank: Rank,
    behind: tuple[int, int],
    most: int,
    octets: int,
    found: Callable[[Sequence[EntryRow] | StoreError], None],
) -> None:
    """Look at entries of this rank that no instance has, behind a priority and an id, and take none."""
    questions.browse(queue.instance.queries, rank, queue.group_id, behind, most, octets, found)


def piece(entry: Entry, at: int, size: int, found: Callable[[bytes | None], None]) -> None:
    """Octets of an entry's stored message from an offset on; None where there are none, or the store cannot answer."""
    questions.piece(entry.queue.instance.queries, entry.half_id, at, size, found)
