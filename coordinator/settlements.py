"""Units for what is decided about deliveries outside transactions: outcomes of consumers, and expiry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from coordinator import outcomes
from store.errors import NotLeased

if TYPE_CHECKING:
    from coordinator.group.entries import Entry
    from coordinator.outcomes import Outcome
    from coordinator.service import Service
    from store.commit.batch import Batch
    from store.errors import StoreError

log = structlog.get_logger(__name__)


class Settlement:
    """Unit: outcomes gathered in one turn; those accepted share one op."""

    __slots__ = ("_items", "_service")

    def __init__(self, service: Service, items: list[tuple[Entry, Outcome]]) -> None:
        self._service = service
        self._items = items

    def write(self, batch: Batch) -> None:
        accepted: list[tuple[int, int]] = []
        uuids = self._service.uuids
        for entry, outcome in self._items:
            outcomes.write(batch, entry, outcome, accepted, uuids, bytes(16))
        if accepted:
            batch.op(uuids.next(), b"accept", covers=accepted)

    def durable(self) -> None:
        for entry, outcome in self._items:
            link = entry.link
            try:
                self._settle(entry, outcome)
            except Exception:  # noqa: BLE001 - the settlements of other links are not concerned
                self._service.loop.contain(link)

    def _settle(self, entry: Entry, outcome: Outcome) -> None:
        if entry.link is not None:
            entry.link.retired(entry, outcome)
        outcomes.settle(entry, outcome)
        if outcome is not outcomes.ACCEPTED:
            entry.queue.returning -= 1
            entry.queue.touch()

    def refused(self, error: StoreError) -> None:
        if len(self._items) > 1:  # one of them: each by itself
            for item in self._items:
                self._service.commit.add(Settlement(self._service, [item]))
            return
        entry, outcome = self._items[0]
        if outcome is not outcomes.ACCEPTED:
            entry.queue.returning -= 1
        if isinstance(error, NotLeased):
            text = "the delivery was taken back before its outcome came; it will be delivered again"
        else:
            text = "the store could not apply the outcome; the message will be delivered again"
        if entry.link is not None:
            entry.link.unretired(entry, text)
        # where the store refused for another reason, the entry is leased to us still
        entry.queue.give_back(entry, leased=not isinstance(error, NotLeased))


class SetAside:
    """Unit: the stored message cannot be delivered; it goes to the dead letters as it is."""

    __slots__ = ("_entry", "_reason")

    def __init__(self, entry: Entry, reason: str) -> None:
        self._entry = entry
        self._reason = reason

    def write(self, batch: Batch) -> None:
        entry = self._entry
        batch.back(
            entry.queue.group_id,
            entry.id,
            attempts=entry.attempts,
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
    """Unit: the message's time ran out before anyone wanted it (rule P12)."""

    __slots__ = ("_entry", "_service")

    def __init__(self, service: Service, entry: Entry) -> None:
        self._service = service
        self._entry = entry

    def write(self, batch: Batch) -> None:
        entry = self._entry
        queue = entry.queue
        if queue.on_expiry == "dead-letter" and not queue.dead_letters:
            batch.back(queue.group_id, entry.id, attempts=entry.attempts, lease=0, failed="expired")
        else:
            batch.gone(queue.group_id, entry.id)
            batch.op(self._service.uuids.next(), b"expire", covers=((entry.half_id, queue.group_id),))

    def durable(self) -> None:
        queue = self._entry.queue
        queue.done_with(self._entry)
        if queue.on_expiry == "dead-letter":
            queue.failed()

    def refused(self, error: StoreError) -> None:
        entry = self._entry
        entry.queue.done_with(entry)
        if not isinstance(error, NotLeased):  # the store looks for what has expired and is in nobody's hands
            entry.queue.yield_ids([entry.id], acquired=entry.acquired)
