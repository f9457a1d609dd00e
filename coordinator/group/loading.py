"""Entries read from the store into a window, and what becomes of a load whose answer was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.group import holding
from coordinator.group.units import Reclaim
from store.errors import StoreError
from store.questions import entries as questions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coordinator.group.entries import Entry
    from coordinator.group.queues import Queue
    from coordinator.group.windows import Loader, Window
    from store.priorities import Rank

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
        holding.hold(queue, lambda: _load(window, most, octets))


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
