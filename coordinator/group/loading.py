"""Entries read from the store into a window, and what becomes of a load whose answer was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.group.entries import POSTGRES_EPOCH
from coordinator.group.units import Reclaim
from store import queries
from store.errors import StoreError

if TYPE_CHECKING:
    from coordinator.group.entries import Entry
    from coordinator.group.queues import Queue
    from coordinator.group.windows import Loader, Window
    from store.asking import Row

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
        return

    def asked(rows: list[Row] | StoreError) -> None:
        queue.holding = isinstance(rows, list) and bool(rows)
        if queue.holding:
            queue.home.holding.add(queue)
        _load(window, most, octets)

    instance.queries.ask(queries.HOLD, [queue.group_id.to_bytes(4, "big"), instance.lease_octets], asked)


def _load(window: Window, most: int, octets: int) -> None:
    queue, low, version = window.queue, window.low, window.version
    instance = queue.instance
    parameters = [
        queue.group_id.to_bytes(4, "big"),
        low.to_bytes(8, "big"),
        most.to_bytes(4, "big"),
        octets.to_bytes(8, "big"),
        instance.lease_octets,
    ]

    def loaded(rows: list[Row] | StoreError) -> None:
        if isinstance(rows, StoreError):
            # a row that the server cannot read: asking at once would change nothing
            instance.loop.call_later(LOAD_RETRY_SECONDS, lambda: reclaim(queue, window))
            return
        entries = [entry_of(queue, row) for row in rows]
        # nothing beyond what came; among others there may be some below the low-water mark, so that an empty answer
        # above it says little
        complete = rows[0][-1] == len(rows) < most if rows else queue.holding or not low
        window.loaded(entries, complete, version)
        queue.touch()

    instance.queries.ask(queries.READ if window.by_range else queries.LEASE[window.rank], parameters, loaded)


def unread(queue: Queue) -> None:
    """Nothing of a group held whole is in our hands any more: should we die, nothing of it was perhaps sent."""
    instance = queue.instance
    instance.queries.ask(queries.UNREAD, [queue.group_id.to_bytes(4, "big"), instance.lease_octets], lambda _: None)


def entry_of(queue: Queue, row: Row) -> Entry:
    entry_id, half_id, attempts, expires, annotations, message, whole, acquired, priority = row[:9]
    entry = queue.entry_kind(
        queue,
        entry_id,
        half_id,
        message,
        attempts,
        0 if expires is None else expires - POSTGRES_EPOCH * 1_000_000,
        annotations or b"",
        acquired,
        priority,
    )
    entry.whole = whole
    return entry


def reclaim(queue: Queue, window: Loader | None) -> None:
    """A load may have leased entries that this instance does not know: find them, and give them back to the store.
    ``window``: whose load it was.

    Entries born leased in a batch under way are not known either, until the batch is answered: what is listed now
    is looked at again once every batch before is answered.
    """
    instance = queue.instance

    def listed(rows: list[Row] | StoreError) -> None:
        unknown = [] if isinstance(rows, StoreError) else [row[0] for row in rows]
        instance.commit.add(Reclaim(queue, window, [found for found in unknown if found not in queue.held]))

    instance.queries.ask(queries.HELD, [queue.group_id.to_bytes(4, "big"), instance.lease_octets], listed)
