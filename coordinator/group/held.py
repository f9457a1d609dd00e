"""Entries that checkable transactions hold (rule H20): what a commit will make of one, worked out when it is retired,
as the store decides without this instance; and how one leaves the memory of this instance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.group import deliveries
from coordinator.group.entries import now_micros
from coordinator.group.fifo import FifoQueue
from coordinator.group.message_groups import GroupedEntry
from coordinator.outcomes import ACCEPTED, FAILED, Kind
from store.commit.checkable import Retired

if TYPE_CHECKING:
    from coordinator.group.entries import Entry

_DECISIONS = {
    Kind.ACCEPTED: b"accept",
    Kind.REJECTED: b"reject",
    Kind.RELEASED: b"release",
    Kind.MODIFIED: b"modify",
}


def retired(entry: Entry) -> Retired:
    """What its outcome will do, by the policies of its group now. The outcome says it from then on, too."""
    outcome = entry.outcome
    assert outcome is not None
    entry.kept = False
    # an accepted one leaves no entry that could have annotations
    annotations = b"" if outcome is ACCEPTED else entry.annotations
    attempts, failures, dead, wait = entry.attempts, entry.failures, "", 0
    kind, dead_letters = outcome.kind, entry.queue.policies.dead_letters
    if kind is Kind.REJECTED and not dead_letters:
        dead = outcome.error or "rejected"
    elif kind in (Kind.REJECTED, Kind.MODIFIED):
        kind = Kind.MODIFIED
        attempts, failures = deliveries.attempts_after(entry, outcome), deliveries.failures_after(entry, outcome)
        entry.outcome = outcome = deliveries.concluded(entry, outcome, failures)
        dead, annotations = outcome.dead, deliveries.merged(entry, outcome)
        wait = max(0, outcome.retry_at - now_micros()) // 1000 if outcome.retry_at else 0
    undone = deliveries.concluded(entry, FAILED, deliveries.failures_after(entry, FAILED))
    return Retired(
        decision=_DECISIONS[kind],
        reason=outcome.error,
        attempts=attempts,
        failed=dead,
        annotations=annotations,
        wait_ms=wait,
        undo_failed=undone.dead,
        failures=failures,
    )


def decided_elsewhere(entry: Entry) -> None:
    """Another has committed its transaction, and the store has applied its outcome: tell the link, and let go of it."""
    link, outcome, queue = entry.link, entry.outcome, entry.queue
    assert outcome is not None
    if link is not None:
        if outcome.undeliverable_here or outcome.kind is Kind.REJECTED:
            entry.refused_by = (*entry.refused_by, link.key)
        link.retired(entry, outcome)
    _let_go(entry)
    if outcome.dead or outcome.kind is Kind.REJECTED:
        queue.failed()
    elif outcome is not ACCEPTED:
        queue.note_refused(entry)
        queue.in_store(entry.id, entry.priority)


def left(entry: Entry) -> None:
    """It is its undecided transaction's alone, in the store. Its link, if it is open, has it no more."""
    if isinstance(entry, GroupedEntry):
        entry.group.left()
    if entry.link is not None:
        entry.link.left(entry)
    _let_go(entry)
    entry.queue.in_store(entry.id, entry.priority)  # it may have come back already


def _let_go(entry: Entry) -> None:
    queue = entry.queue
    if isinstance(queue, FifoQueue) and isinstance(entry, GroupedEntry):
        queue.empty([entry.group])  # what is behind it waits in the store until it is decided (P18)
    queue.done_with(entry)
