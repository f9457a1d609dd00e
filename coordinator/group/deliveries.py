"""Deliveries applies outcomes to their entries (rules P11, T26): first in the store, then in memory."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from coordinator.group.entries import now_micros
from coordinator.group.fifo import FifoQueue
from coordinator.group.lanes import GroupedEntry
from coordinator.outcomes import ACCEPTED, FAILED, LOST, RETURNED, Kind
from store.codec.encoding import DecodeError, pairs, scalar_of
from store.codec.message import merge_maps
from store.commit.checkable import Retired
from store.commit.terms import BEFORE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.group.entries import Entry
    from coordinator.outcomes import Outcome
    from store.commit.batch import Batch
    from store.ids import UuidV7


log = structlog.get_logger(__name__)

#: The most octets of annotations that all outcomes together leave on one message.
MOST_ANNOTATION_OCTETS = 1 << 18

#: annotation of a modified outcome: the level of the wait before the next delivery; below 0, to the dead letters (D2)
DELAY_LEVEL = "x-opt-delay-level"
_DELAY_LEVEL_OCTETS = DELAY_LEVEL.encode()


def write(batch: Batch, entries: Sequence[Entry], ops: UuidV7, txn_id: bytes) -> Sequence[tuple[int, int]]:
    """Write the rows that apply the outcomes of leased entries to a batch. Return (half id, group id) of the accepted
    ones: the caller writes one op that covers them all.
    """
    accepted = [entry for entry in entries if entry.outcome is ACCEPTED]
    if len(accepted) < len(entries):
        for entry in entries:
            if entry.outcome is not ACCEPTED:
                _write_other(batch, entry, ops, txn_id)
    groups = [entry.queue.group_id for entry in accepted]
    batch.all_gone(groups, [entry.id for entry in accepted])
    return list(zip([entry.half_id for entry in accepted], groups, strict=True))


def _write_other(batch: Batch, entry: Entry, ops: UuidV7, txn_id: bytes) -> None:
    queue, outcome = entry.queue, entry.outcome
    assert outcome is not None
    kind = outcome.kind
    if kind is Kind.REJECTED and not queue.policies.dead_letters:
        batch.back(
            queue.group_id,
            entry.id,
            attempts=entry.attempts,
            failures=entry.failures,
            lease=0,
            failed=outcome.error or "rejected",
            annotations=entry.annotations,
        )
        batch.op(ops.next(), b"reject", txn_id=txn_id, reason=outcome.error, covers=((entry.half_id, queue.group_id),))
    elif kind is Kind.RELEASED:
        pass  # the row keeps its lease and its counts; only memory changes
    else:
        failures = failures_after(entry, outcome)
        entry.outcome = outcome = concluded(entry, outcome, failures)
        # decided now, because consumers may come and go before the rows are durable
        at_once = not outcome.dead and not outcome.retry_at
        entry.kept = at_once and queue.can_keep(entry)
        if at_once and not entry.kept and queue.is_shared:
            queue.wake(batch, (entry.id,))
        batch.back(
            queue.group_id,
            entry.id,
            attempts=attempts_after(entry, outcome),
            failures=failures,
            lease=queue.lease if entry.kept else 0,
            failed=outcome.dead,
            annotations=merged(entry, outcome),
            available=outcome.retry_at or BEFORE,
        )
        batch.op(ops.next(), b"modify", txn_id=txn_id, reason=outcome.error, covers=((entry.half_id, queue.group_id),))


def failures_after(entry: Entry, outcome: Outcome) -> int:
    """Return the number of failed deliveries, this one included."""
    return entry.failures + (1 if outcome.delivery_failed or outcome.kind is Kind.REJECTED else 0)


def attempts_after(entry: Entry, outcome: Outcome) -> int:
    """Return the number of deliveries that a client may have seen, this one included; deliveries that it has released
    or modified do not count (part 3, sections 3.4.4 and 3.4.5).
    """
    return entry.attempts + (1 if outcome.delivery_failed or outcome.seen or outcome.kind is Kind.REJECTED else 0)


def concluded(entry: Entry, outcome: Outcome, failures: int) -> Outcome:
    """Return the outcome with its effect on the message: dead, delivered later, or at once (D2, D4)."""
    policies = entry.queue.policies
    level = _level(outcome)
    dead, wait = "", 0
    if policies.dead_letters:
        pass  # failed dead letters stay at their address
    elif failures >= policies.max_attempts:
        dead = f"attempts used up: {failures} of {policies.max_attempts}"
    elif level < 0:
        dead = f"its consumer asked for the dead letters ({DELAY_LEVEL} {level})"
    if not dead and not outcome.vanished and not outcome.undeliverable_here:
        if level > 0:
            wait = policies.retry.at_level(level)
        elif failures > entry.failures:
            wait = policies.retry.wait_ms(failures)
    retry_at = now_micros() + wait * 1000 if wait else 0
    if policies.fifo and entry.expires:  # it blocks its message group only until it expires
        retry_at = min(retry_at, entry.expires)
    return outcome._replace(dead=dead, retry_at=retry_at)


def _level(outcome: Outcome) -> int:
    """Return the delay level that a consumer names; 0: it names none, or no number, or it cannot be decoded."""
    if _DELAY_LEVEL_OCTETS not in outcome.annotations:
        return 0
    for key, octets in pairs(outcome.annotations, 0):
        if key == DELAY_LEVEL:
            with suppress(DecodeError):
                value = scalar_of(octets)
                return value if type(value) is int else 0
    return 0


def merged(entry: Entry, outcome: Outcome) -> bytes:
    """Return the entry's annotations merged with the outcome's; unchanged if they cannot be decoded or are too
    large.
    """
    if not outcome.annotations:
        return entry.annotations
    try:
        annotations = merge_maps(entry.annotations, outcome.annotations)
    except DecodeError:
        return entry.annotations
    return annotations if len(annotations) <= MOST_ANNOTATION_OCTETS else entry.annotations


def settle(entry: Entry) -> None:
    """Apply an outcome in memory, and report it to the link, as the rows of :func:`write` are durable."""
    link, outcome = entry.link, entry.outcome
    assert outcome is not None
    if entry.trace is not None:
        end_span(entry)
    if link is not None:
        link.retired(entry, outcome)
    queue = entry.queue
    if outcome is ACCEPTED:
        queue.done_with(entry)
        return
    kind = outcome.kind
    if kind is Kind.REJECTED and not queue.policies.dead_letters:
        queue.done_with(entry)
        queue.failed()
    elif kind is Kind.RELEASED:
        entry.attempts = attempts_after(entry, outcome)
        queue.give_back(entry)
    elif outcome.dead:
        queue.done_with(entry)
        queue.failed()
    elif outcome.retry_at:
        queue.refused.remember(entry)
        queue.done_with(entry)
        queue.home.later(outcome.retry_at)
    else:
        entry.attempts, entry.failures = attempts_after(entry, outcome), failures_after(entry, outcome)
        annotations = merged(entry, outcome)
        if outcome.annotations and annotations is entry.annotations:
            log.warning("annotations of an outcome left out: too many", queue=queue.name, entry=entry.id)
        grown = len(annotations) - len(entry.annotations)
        entry.annotations = annotations
        entry.size += grown
        if entry.message is not None:
            queue.sent_octets += grown
        if (outcome.undeliverable_here or kind is Kind.REJECTED) and link is not None:
            entry.refused_by = (*entry.refused_by, link.key)
        queue.give_back(entry, leased=entry.kept)


def end_span(entry: Entry) -> None:
    """End the span of an outcome; the next delivery has a span of its own."""
    if entry.trace is not None:
        entry.trace.over()
        entry.trace = None


def default_outcome(entry: Entry, *, fails: bool) -> Outcome:
    """Return the outcome of a delivery that is settled in a transaction which rolls back (T28), or whose link has
    ended. ``fails``: whether the delivery counts as failed (D5).
    """
    link = entry.link
    outcome = LOST if link is None else link.default_outcome or FAILED
    return outcome if fails or not outcome.delivery_failed else RETURNED


# Checkable transactions hold entries in the store (rule H20). The effect of a commit is computed when the entry is
# retired, as the store decides without this instance.

_DECISIONS = {
    Kind.ACCEPTED: b"accept",
    Kind.REJECTED: b"reject",
    Kind.RELEASED: b"release",
    Kind.MODIFIED: b"modify",
}


def retired(entry: Entry) -> Retired:
    """Return the effect of the entry's outcome by the current policies of its group, and set the outcome to match."""
    outcome = entry.outcome
    assert outcome is not None
    entry.kept = False
    # an accepted message leaves no entry that could have annotations
    annotations = b"" if outcome is ACCEPTED else entry.annotations
    attempts, failures, dead, wait = entry.attempts, entry.failures, "", 0
    kind, dead_letters = outcome.kind, entry.queue.policies.dead_letters
    if kind is Kind.REJECTED and not dead_letters:
        dead = outcome.error or "rejected"
    elif kind in (Kind.REJECTED, Kind.MODIFIED):
        kind = Kind.MODIFIED
        attempts, failures = attempts_after(entry, outcome), failures_after(entry, outcome)
        entry.outcome = outcome = concluded(entry, outcome, failures)
        dead, annotations = outcome.dead, merged(entry, outcome)
        wait = max(0, outcome.retry_at - now_micros()) // 1000 if outcome.retry_at else 0
    undone = concluded(entry, FAILED, failures_after(entry, FAILED))
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
    """Forget an entry whose transaction another has committed, and report the outcome to its link."""
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
        queue.refused.remember(entry)
        queue.in_store(entry.id, entry.priority)


def left(entry: Entry) -> None:
    """Forget an entry that only its undecided transaction holds, in the store; settle it on its link, if open."""
    if isinstance(entry, GroupedEntry):
        entry.group.left()
    if entry.link is not None:
        entry.link.left(entry)
    _let_go(entry)
    entry.queue.in_store(entry.id, entry.priority)  # the entry may have been returned already


def _let_go(entry: Entry) -> None:
    end_span(entry)
    queue = entry.queue
    if isinstance(queue, FifoQueue) and isinstance(entry, GroupedEntry):
        queue.empty([entry.group])  # later entries of the group wait in the store until the decision (P18)
    queue.done_with(entry)
