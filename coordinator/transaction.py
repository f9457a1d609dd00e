"""A transaction is declared on a control link, used on any session of its connection, and decided once (part 4; rules
T7 to T35).

The transaction is itself a unit of the group commit: its halves, entries, retirements and its op are written together.
Until then its work is in memory. The work of a checkable transaction (H2) is in the store from the first message on;
:class:`coordinator.in_store.InStore` implements the difference.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from coordinator.errors import Condition, Refusal
from coordinator.group import deliveries
from coordinator.memory import POST_OCTETS
from coordinator.outcomes import RELEASED, without_annotations
from coordinator.transitions import (
    ACTIVE,
    AFTER_DISCHARGE,
    AFTER_DURABLE,
    AFTER_RETIRE,
    CHECKABLE,
    COMMITTED,
    COMMITTING,
    ENLISTED,
    KEPT,
    LEFT,
    ROLLBACK_ONLY,
    ROLLED_BACK,
    SENT,
    WAITING,
    WAITING_CHECKABLE,
    WAITING_REFUSED,
    TxnEvent,
    after,
)
from store import reasons
from store.commit.terms import PLAIN
from store.errors import AddressGone, AlreadyDecided, GroupsChanged, NotLeased

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.address.nodes import Address
    from coordinator.control import Control
    from coordinator.group.entries import Entry
    from coordinator.group.queues import Queue
    from coordinator.in_store import InStore
    from coordinator.outcomes import Outcome
    from coordinator.posts import PostLink
    from coordinator.registry import Registry
    from coordinator.traces import TxnTrace
    from store.commit.batch import Batch
    from store.commit.terms import DeliveryTerms
    from store.errors import StoreError
    from store.spool import Octets

#: states before a discharge; states in which a discharge waits for posts; and all of these
_UNDISCHARGED = (ACTIVE, ROLLBACK_ONLY, CHECKABLE)
_WAITING = (WAITING, WAITING_REFUSED, WAITING_CHECKABLE)
_OPEN = (*_UNDISCHARGED, *_WAITING)


class Transaction:
    """One transaction, from its declare to its decision. :mod:`coordinator.transitions` has the table of its states."""

    __slots__ = (
        "_waiting_callers", "acquired", "annotated", "answer", "began", "columns", "control", "counted",
        "counts_as_failed", "dropped", "entries", "error", "fail", "half_ids", "id", "in_store", "instance", "octets",
        "owner", "parked", "partials", "posts", "purged", "reason", "registered", "registry", "retired", "returning",
        "rows", "spooled", "state", "timeout", "trace", "undone", "unsettled_posts", "wire_state",
    )  # fmt: skip

    def __init__(self, registry: Registry, txn_id: bytes, owner: object, control: Control, timeout: float) -> None:
        """Begin a transaction in state ACTIVE. ``owner``: the connection that declared it (T12). ``timeout`` in
        seconds.
        """
        self.registry = registry
        self.instance = registry.instance
        self.id = txn_id
        self.owner = owner
        self.control = control
        #: the monotonic time of its first work; 0: it has no work
        self.began = 0.0
        self.timeout = timeout
        self.state = ACTIVE
        #: the part of a checkable transaction that is in the store; None: the transaction is plain
        self.in_store: InStore | None = None
        #: the first refusal of any of its work, or of the whole transaction
        self.error: Refusal | None = None
        #: the ``fail`` of its discharge, and the discharge's delivery while that is under way
        self.fail = True
        self.answer: object = None
        #: deliveries that have begun and are not complete (T15)
        self.partials = 0
        #: posts that wait for their address, or for the store; a discharge waits for them
        self.parked = 0
        #: posts whose senders wait for the decision (T25)
        self.unsettled_posts: list[tuple[PostLink, object]] = []
        #: whether the store's list of undecided transactions may contain it
        self.registered = False
        self.reason = ""  #: why it is rolled back
        self.trace: TxnTrace | None = None  #: None: it is not sampled
        #: the encoded state of answers to its posts, set and used by links
        self.wire_state: bytes = b""
        self._waiting_callers: tuple[Callable[[], object], ...] = ()
        #: its posts; for halves that are in the store, without the messages
        self.posts: list[tuple[Address, Octets, DeliveryTerms]] = []
        self.octets = 0
        #: rows of its posts: one for each group that gets the message
        self.rows = 0
        #: octets that its posts and retirements have in the account of undecided transactions
        self.counted = 0
        #: the part of the octets that are annotations of its retirements
        self.annotated = 0
        self.spooled = 0  #: octets of its posts that are in files
        #: how many posts were dropped because the transaction can only roll back
        self.dropped = 0
        self.retired: list[Entry] = []
        self.acquired: dict[Entry, None] = {}  #: deliveries that a flow has acquired in it (T33)
        #: whether a rollback counts its retired deliveries as failed: not where the service itself causes it (D5)
        self.counts_as_failed = True
        #: some retired entries were removed with their addresses: the commit leaves them out
        self.purged = False
        #: once the posts are written: their half ids, and their entries that were born leased to this instance
        self.half_ids: list[int] = []
        self.entries: list[Entry | None] = []
        #: whether the posts were written as columns, all at once
        self.columns = False
        #: queues to which a rollback under way returns entries
        self.returning: list[Queue] = []
        #: retired entries, each with whether the rollback under way decides it
        self.undone: list[tuple[Entry, bool]] = []

    def when_decided(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` when the decision on its way to the store is durable or refused."""
        self._waiting_callers = (*self._waiting_callers, callback)

    @property
    def open(self) -> bool:
        """Whether work may still be added."""
        return self.state in _OPEN

    @property
    def refused_work(self) -> bool:
        """Whether part of its work was refused, so that it can only roll back."""
        return self.state is ROLLBACK_ONLY or self.state is WAITING_REFUSED

    @property
    def discharged(self) -> bool:
        """Whether it was discharged: no work may begin in it; posts that wait for an address are still added."""
        return self.state not in _UNDISCHARGED

    @property
    def empty(self) -> bool:
        return not self.posts and not self.dropped and not self.retired

    @property
    def posted(self) -> int:
        return len(self.posts) + self.dropped

    # -- work

    def begin(self) -> None:
        """Start the time limit at the first work, even if that work is refused (T14)."""
        if not self.began:
            self.began = time.monotonic()
            self.registry.began(self)

    def post(self, address: Address, message: Octets, terms: DeliveryTerms) -> None:
        """Add a half message, invisible until the commit (T20).

        :raises Refusal: it cannot be taken; the caller makes the transaction rollback-only (T23).
        """
        if not self.began:
            self.begin()
        instance = self.instance
        limits = instance.transaction_limits
        size = len(message)
        rows = self.rows + (address.groups or 1)
        octets = self.octets + size
        if (rows > limits.max_messages or octets > limits.max_bytes) and self.rows:
            raise self.too_much(rows)
        self.rows, self.octets = rows, octets
        if self.state is not ACTIVE and self.refused_work:
            self.dropped += 1
            return
        self.posts.append((address, message, terms))
        if isinstance(message, bytes):
            held = POST_OCTETS + size
        else:
            held = POST_OCTETS
            self.spooled += size
        self.counted += held
        memory = instance.memory
        memory.transactions += held
        if memory.transactions > memory.most:
            self.registry.refuse_largest()
            if self.error is not None:
                raise self.error

    def too_much(self, rows: int) -> Refusal:
        """Return the refusal of a post that would bring the transaction to ``rows`` rows, or to too many octets."""
        limits = self.instance.transaction_limits
        text = f"a transaction holds at most {limits.max_bytes} bytes of messages (transaction.max_bytes)"
        if rows > limits.max_messages:
            text = (
                f"a transaction holds at most {limits.max_messages} messages (transaction.max_messages); "
                "one to several consumer groups counts once for each"
            )
        return Refusal(Condition.RESOURCE_LIMIT_EXCEEDED, text)

    def refuse(self, refusal: Refusal) -> None:
        """Make the transaction rollback-only, as part of its work is refused (T22, T23)."""
        self.begin()
        self.state = after(self.state, TxnEvent.WORK_REFUSED)
        if self.error is None:
            self.error = refusal
        self.drop_work()
        if self.unsettled_posts:
            self.release_posts_soon()
        if self.in_store is not None:
            self.in_store.work_refused()

    def release_posts_soon(self) -> None:
        """Conclude the unsettled posts in the next turn, when their answers are sent: the engine keeps their octets."""
        self.instance.loop.call_later(0, partial(self.conclude_posts, False))

    def conclude_posts(self, committed: bool | None) -> None:
        """Report the decision to the senders that wait for it (T25). ``committed``: None: it is decided later,
        elsewhere.
        """
        unsettled, self.unsettled_posts = self.unsettled_posts, []
        for link, delivery in unsettled:
            if committed is None:
                link.left(delivery)
            else:
                link.decided(delivery, committed)

    def awaits_decision(self, link: PostLink, delivery: object, message: Octets) -> None:
        """Record a post whose sender waits for the decision (receiver settle mode second), and count its octets: the
        engine keeps them until then.
        """
        self.unsettled_posts.append((link, delivery))
        if isinstance(message, bytes):
            self.counted += len(message)
            self.instance.memory.transactions += len(message)

    def acquire(self, entry: Entry) -> None:
        """Acquire a delivery: unless the transaction commits, it returns to its queue, whatever its outcome (T33)."""
        if not self.began:
            self.begin()
        entry.txn = self
        self.acquired[entry] = None

    def conclude_acquired(self, *, stays: bool) -> None:
        """Release the acquired deliveries that have no outcome. ``stays``: as the transaction is committed, they stay
        with their consumers; else they return (T33).
        """
        acquired, self.acquired = self.acquired, {}
        for entry in acquired:
            if entry.txn is self and entry.state is SENT:
                entry.txn = None
                entry.last_txn = self.id
                if entry.peer_settled:
                    outcome = deliveries.default_outcome(entry, fails=self.counts_as_failed)
                    self.registry.settlements.add(entry, outcome)
                elif not stays:
                    self.registry.settlements.add(entry, RELEASED)

    def retire(self, entry: Entry, outcome: Outcome, peer_settled: bool) -> None:
        """Retire a delivery: the commit applies its outcome; a later outcome replaces the first (T26, T29)."""
        if not self.began:
            self.begin()
        before = 0
        if entry.state is not ENLISTED:
            entry.txn = self
            self.retired.append(entry)
        elif entry.outcome is not None:
            before = held_octets(entry.outcome)
        entry.state = AFTER_RETIRE[entry.state]
        entry.peer_settled = entry.peer_settled or peer_settled
        entry.outcome = outcome
        if outcome.annotations or before:
            self._count_annotations(entry, before)

    def _count_annotations(self, entry: Entry, before: int) -> None:
        """Count the annotations of the entry's outcome, which replace ``before`` octets. A rollback-only transaction
        drops them.
        """
        assert entry.outcome is not None
        if self.refused_work:
            entry.outcome = without_annotations(entry.outcome)
            return
        more = held_octets(entry.outcome) - before
        self.counted += more
        self.annotated += more
        memory = self.instance.memory
        memory.transactions += more
        if memory.transactions > memory.most:
            self.registry.refuse_largest()

    def uncount(self) -> None:
        self.instance.memory.transactions -= self.counted
        self.counted = 0

    def drop_work(self) -> None:
        """Drop the messages and annotations of a transaction that can only roll back."""
        self.uncount()
        self.dropped += len(self.posts)
        self.posts = []
        self.spooled = 0
        self.annotated = 0
        for entry in self.retired:
            if entry.outcome is not None:
                entry.outcome = without_annotations(entry.outcome)

    # -- decision

    def discharge(self, fail: bool, answer: object) -> None:
        """Decide, once no post waits. ``answer``: the discharge, answered by
        :meth:`coordinator.control.Control.discharged`.
        """
        if self.instance.disk_low and self.posts and not fail and self.in_store is None:
            self.refuse(self.registry.enqueue.disk_refusal)
        self.fail, self.answer = fail, answer
        if self.trace is not None:
            self.trace.discharged(self)
        if not self.parked:
            self._decide()
            return
        self.state = after(self.state, TxnEvent.DISCHARGE_EARLY)
        if fail or self.refused_work:
            self.returns()

    def unpark(self) -> None:
        """Count a waiting post as added or refused; after the last, carry out the discharge that waited for it."""
        self.parked -= 1
        if not self.parked and self.state in _WAITING:  # else it timed out, or is not discharged yet
            self._decide()

    def _decide(self) -> None:
        self.state = after(self.state, TxnEvent.DISCHARGE_FAIL) if self.fail else AFTER_DISCHARGE[self.state]
        if self.state is ROLLED_BACK:
            self.roll_back(reasons.DISCHARGED if self.fail else reasons.ROLLBACK_ONLY)
        elif self.empty and not self.registered:  # costs nothing in the store (T35)
            self.durable()
        else:
            self.uncount()
            if self.in_store is not None:
                self.octets = 0  # the store has its messages
            self.instance.commit.add(self, self.octets + self.annotated)

    def abandon(self, event: TxnEvent, reason: str, error: Refusal | None = None) -> None:
        """Roll back a plain transaction, or leave a checkable one undecided: its control link is detached, its time is
        over, or another connection queries the outcome. A commit on its way to the store is not changed (T11, T13,
        T14).
        """
        in_store = self.in_store
        if event is TxnEvent.ASKED and in_store is not None and in_store.is_empty:
            event = TxnEvent.CONTROL_LOST  # the store has no row of it: the query rolls it back (T11)
        state = after(self.state, event)
        if state is self.state:
            return
        self.state = state
        if in_store is not None and state is LEFT:
            in_store.leave()
            return
        if self.error is None:
            self.error = error
        self.roll_back(reason)

    def roll_back(self, reason: str) -> None:
        """Write the rollback's op to the store. Units on their way there finish first, and call this again."""
        self.reason = reason
        self.drop_work()
        if self.error is not None and reason == reasons.ROLLBACK_ONLY:
            self.reason = f"{reasons.ROLLBACK_ONLY}: {self.error.condition}"
        in_store = self.in_store
        if in_store is not None and in_store.on_way:
            self.returns()
        elif (self.empty and not self.registered) or (in_store is not None and in_store.is_rolled_back):
            self.durable()
        else:
            self.returns()
            self.instance.commit.add(self)

    def returns(self) -> None:
        """Mark the queues of retired entries: a rollback under way returns entries to them; drains wait for it."""
        if self.returning:
            return
        self.returning = [entry.queue for entry in self.retired]
        for queue in self.returning:
            queue.returning += 1

    def returned(self) -> None:
        """Unmark the queues: all entries are returned."""
        returning, self.returning = self.returning, []
        for queue in returning:
            queue.returning -= 1
            queue.touch()

    # -- the unit of the group commit

    def write(self, batch: Batch) -> None:
        if self.trace is not None:
            self.trace.batch = batch
        if self.in_store is not None and self.in_store.entered:
            self.in_store.write(batch)
            return
        if self.registered:
            batch.forget(self.id)
        if self.state is COMMITTING:
            self.write_commit(batch)
        else:
            batch.op(self.id, b"rollback", reason=self.reason, posted=self.posted)
            self._write_undone(batch)

    def write_commit(self, batch: Batch) -> None:
        enqueue, instance = self.registry.enqueue, self.instance
        txn_id = self.id
        for entry in self.entries:  # already written in a batch that the store refused because of another unit
            enqueue.unposted(entry)
        entries = self.entries = []
        ids = self.half_ids = self.half_ids or instance.ids.take(len(self.posts))
        self.columns = len(ids) > 1 and enqueue.write_columns(batch, self.posts, ids, txn_id)
        if not self.columns:
            for (address, message, terms), half_id in zip(self.posts, ids, strict=True):
                batch.half(half_id, txn_id, address.id, message)
                entries.append(enqueue.write_entry(batch, address, half_id, message, terms, self.owner))
        if self.retired:
            retired = [entry for entry in self.retired if not entry.queue.gone]
            accepted = deliveries.write(batch, retired, instance.uuids, txn_id)
            batch.op(txn_id, b"commit", posted=len(self.posts), covers=accepted)
        else:
            batch.commit_ids.append(txn_id)
            batch.commit_posted.append(len(self.posts))

    def _write_undone(self, batch: Batch) -> None:
        """Write the outcomes with which a rollback returns retired deliveries."""
        # A delivery that the peer has not settled stays with the peer (T27), unless it was acquired in the transaction
        # (T33). Any other gets the default outcome (T28); if its link was detached meanwhile, it has failed (D5).
        self.undone = [(entry, self._returns(entry)) for entry in self.retired]
        decided = [entry for entry, is_decided in self.undone if is_decided]
        for entry in decided:
            entry.outcome = deliveries.default_outcome(entry, fails=self.counts_as_failed)
        deliveries.write(batch, decided, self.instance.uuids, self.id)

    def durable(self) -> None:
        self.registry.forget(self)
        self.state = AFTER_DURABLE[self.state]
        if self.state is COMMITTED:
            self.apply_commit()
        elif self.in_store is not None and self.in_store.entered:
            # entries that it held in the store are leased to this instance again, as before they were retired (T27,
            # T28)
            for entry in self.retired:
                self.keep(entry)
        else:
            self._apply_rollback()
        self._finish()

    def apply_commit(self) -> None:
        enqueue = self.registry.enqueue
        told: Address | None = None
        if self.columns:
            enqueue.posted(self.posts[0][0], None, self.half_ids[0], PLAIN)
        else:
            for (address, _, terms), half_id, entry in zip(self.posts, self.half_ids, self.entries, strict=True):
                if entry is None and terms is PLAIN:
                    if address is told:
                        continue  # the address was notified of the first half, which has the lowest id
                    told = address
                enqueue.posted(address, entry, half_id, terms)
        for retired in self.retired:
            deliveries.settle(retired)

    def _apply_rollback(self) -> None:
        for entry, is_decided in self.undone:
            entry.last_txn = self.id
            if entry.trace is not None:
                entry.trace.over(undone=True)
            if is_decided:
                deliveries.settle(entry)
            else:
                self.keep(entry)

    def keep(self, entry: Entry) -> None:
        """Restore the state before the retirement; a delivery that does not stay gets the default outcome."""
        entry.last_txn = self.id
        entry.txn = entry.outcome = None
        entry.met(KEPT)
        if entry.trace is not None:
            entry.trace.over(undone=True)
        if self._returns(entry):
            outcome = deliveries.default_outcome(entry, fails=self.counts_as_failed)
            self.registry.settlements.add(entry, outcome)

    def _returns(self, entry: Entry) -> bool:
        """Whether a retired delivery returns to its queue when the transaction rolls back."""
        return entry.peer_settled or entry.link is None or entry in self.acquired

    def _finish(self) -> None:
        """Answer the discharge with the decision."""
        committed = self.state is COMMITTED
        self.finish(committed, None if committed or self.fail else self._refusal())

    def finish(self, committed: bool | None, refusal: Refusal | None) -> None:
        """Release what the transaction holds, and answer its discharge, if any. ``committed``: None: unknown."""
        if self.trace is not None:
            self.trace.finished(self, committed, refusal)
        if self.unsettled_posts:
            self.conclude_posts(committed)
        if self.acquired:
            self.conclude_acquired(stays=committed is True)
        if self.returning:
            self.returned()
        self.posts = []
        self.entries = []
        self.retired = []
        self.undone = []
        self.control.discharged(self, refusal)
        self.answer = None
        if self._waiting_callers:
            self.answer_callers()

    def answer_callers(self) -> None:
        callers, self._waiting_callers = self._waiting_callers, ()
        for call in callers:
            call()

    def _refusal(self) -> Refusal:
        """Return the refusal that answers a commit."""
        if self.error is None:
            return Refusal(Condition.TXN_ROLLBACK, f"the transaction was rolled back: {self.reason}")
        if self.error.condition in (Condition.TXN_TIMEOUT, Condition.TXN_ROLLBACK):
            return self.error
        reason = f"{self.error.condition}: {self.error.description}"
        return Refusal(Condition.TXN_ROLLBACK, f"the transaction was rolled back, as part of it was refused: {reason}")

    def refused(self, error: StoreError) -> None:
        """Handle the store's refusal of the decision: commit once more, or write a rollback instead."""
        if self.in_store is not None and self.in_store.entered and not isinstance(error, GroupsChanged):
            self.in_store.refused(error)
            return
        if self.state is COMMITTING and self._can_commit_after(error):
            self.instance.commit.add(self, self.octets)
            return
        if isinstance(error, AddressGone):
            self.addresses_changed()
        had_retired = bool(self.retired)
        if self.state is COMMITTING and not isinstance(error, AlreadyDecided):
            self.counts_as_failed = False
        self._take_back()
        before, self.state = self.state, after(self.state, TxnEvent.STORE_REFUSED)
        if before is COMMITTING:
            self.error = why(error)
        elif not had_retired:  # only the op can have been refused: the store has one already
            error = AlreadyDecided(str(error))
        if isinstance(error, AlreadyDecided):
            if self.registered:
                self.registry.unlist(self.id)
            self.registry.forget(self)
            self._finish()
        else:  # write the rollback's op alone, without the work
            self.reason = reasons.STORE_REFUSED
            self.instance.commit.add(self)

    def _can_commit_after(self, error: StoreError) -> bool:
        """Whether to commit again after this refusal: the store has groups of which this instance did not know, or
        retired messages were removed with their addresses.
        """
        if isinstance(error, GroupsChanged):
            for address, _, _ in self.posts:
                address.fans = True
            return True
        purged = isinstance(error, NotLeased) and any(entry.queue.gone for entry in self.retired)
        again, self.purged = purged and not self.purged, purged
        return again

    def addresses_changed(self) -> None:
        """Load its target addresses anew, as one of them was removed."""
        for name in {address.name for address, _, _ in self.posts}:
            self.registry.directory.changed(name)

    def _take_back(self) -> None:
        """Undo the posts and retirements in memory, as the store has refused the decision."""
        for entry in self.entries:
            self.registry.enqueue.unposted(entry)
        self.entries = []
        for retired in self.retired:
            self.keep(retired)
        self.retired = []
        self.undone = []


def held_octets(outcome: Outcome) -> int:
    """Return the octets in memory of an outcome's annotations, twice their length: the engine has a copy."""
    return 2 * len(outcome.annotations)


def why(error: StoreError) -> Refusal:
    """Translate the store's error into the refusal of the commit."""
    if isinstance(error, AlreadyDecided):
        text = (
            "the transaction was decided otherwise already, by an operator, an application in SQL or another instance"
        )
    elif isinstance(error, AddressGone):
        return Refusal(Condition.RESOURCE_DELETED, "an address that the transaction posted to was removed")
    elif isinstance(error, NotLeased):
        text = "a delivery retired in it is no longer this connection's: it will be delivered again, or was removed"
    else:
        text = "the store could not take the transaction; it may be tried again"
    return Refusal(Condition.TXN_ROLLBACK, text)
