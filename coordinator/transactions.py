"""Transactions: declared on a control link, used on any session of its connection, decided once (part 4; rules T7 to
T35).

A transaction is itself a unit of the group commit: its halves, entries, retirements and its op are written together.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from coordinator import work
from coordinator.errors import Condition, Refusal
from coordinator.memory import POST_OCTETS
from coordinator.outcomes import without_annotations
from coordinator.registration import Removal
from coordinator.transitions import (
    ACTIVE,
    AFTER_DISCHARGE,
    AFTER_DURABLE,
    AFTER_RETIRE,
    CHECKABLE,
    COMMITTED,
    COMMITTING,
    ROLLBACK_ONLY,
    ROLLED_BACK,
    WAITING,
    WAITING_CHECKABLE,
    WAITING_REFUSED,
    TxnEvent,
    after,
)
from coordinator.work import Work, held_octets, why
from store import reasons
from store.errors import AddressGone, AlreadyDecided

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.address.directory import Directory
    from coordinator.address.nodes import Address
    from coordinator.group.entries import Entry
    from coordinator.outcomes import Outcome
    from store.commit.batch import Batch
    from store.commit.terms import Terms
    from store.decisions import Decisions
    from store.errors import StoreError
    from store.spool import Octets

#: no discharge has come; and with these, states in which a discharge waits for the addresses of posts
_UNDISCHARGED = (ACTIVE, ROLLBACK_ONLY, CHECKABLE)
_OPEN = (*_UNDISCHARGED, WAITING, WAITING_REFUSED, WAITING_CHECKABLE)


class Poster(Protocol):
    """A link that posted in a transaction and left the delivery unsettled (receiver settle mode second)."""

    def decided(self, delivery: object, committed: bool) -> None:
        """The transaction is decided: give the delivery its plain outcome (part 4, section 4.4.4; T25)."""

    def left(self, delivery: object) -> None:
        """Its outcome in the transaction is all that the delivery gets: the decision is made elsewhere, and later."""


class Discharging(Protocol):
    """What the control link of a transaction does for it."""

    def discharged(self, txn: Transaction, refusal: Refusal | None) -> None:
        """The transaction is decided: accept its discharge (``txn.answer``, if there is one), or reject it with the
        refusal.
        """

    def refuse(self, refusal: Refusal) -> None:
        """T29: detach the link; its transactions roll back with it."""

    @property
    def number(self) -> int:
        """Of its connection, at this instance."""

    @property
    def named(self) -> bytes:
        """Its connection, as the list of undecided transactions shows it."""

    def give_up(self, txn_id: bytes) -> None:
        """Another control link of the connection discharges the transaction."""


class Host(work.Host, Protocol):
    """The undecided transactions of an instance, as one of them sees it."""

    @property
    def directory(self) -> Directory: ...

    @property
    def decisions(self) -> Decisions: ...

    def began(self, txn: Transaction) -> None:
        """The transaction has its first work, and so a time limit (T14)."""

    def forget(self, txn: Transaction) -> None:
        """The transaction is decided."""

    def refuse_largest(self) -> None:
        """Undecided transactions hold too much memory: refuse some."""


class Transaction(Work["Host"]):
    """What each does as long as it is a plain one: :class:`coordinator.check_back.Checkable` does the rest."""

    __slots__ = (
        "_askers",
        "answer",
        "began",
        "checkable",
        "control",
        "error",
        "parked",
        "partials",
        "reason",
        "registered",
        "state",
        "timeout",
        "unsettled_posts",
        "wanted",
        "wire_state",
    )

    def __init__(self, host: Host, txn_id: bytes, owner: object, control: Discharging, timeout: float) -> None:
        """``owner``: the connection that declared it (T12). ``timeout`` in seconds."""
        super().__init__(host, txn_id, owner)
        self.control = control
        #: when its first work came, by the monotonic clock; 0: it has none
        self.began = 0.0
        self.timeout = timeout
        self.state = ACTIVE
        #: False: it is a plain one
        self.checkable = False
        self.error: Refusal | None = None
        #: the delivery of the discharge, while it is under way
        self.answer: object = None
        #: deliveries that have begun and are not complete (T15)
        self.partials = 0
        #: posts that wait for their address to be known; a discharge waits for them
        self.parked = 0
        #: the ``fail`` of its discharge; None: no discharge has come
        self.wanted: bool | None = None
        self.unsettled_posts: list[tuple[Poster, object]] = []
        self.registered = False
        self.reason = ""
        #: the encoded state of answers to its posts, set and used by links
        self.wire_state: bytes = b""
        self._askers: tuple[Callable[[], object], ...] = ()

    def when_decided(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` when the decision on its way to the store is durable or refused."""
        self._askers = (*self._askers, callback)

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
        """Whether no work may begin in it; posts that wait for an address are still added."""
        return self.state not in _UNDISCHARGED

    # -- work

    def begin(self) -> None:
        """The first work has come, even if it is refused: from now on the time limit runs (T14)."""
        if not self.began:
            self.began = time.monotonic()
            self._host.began(self)

    def post(self, address: Address, message: Octets, terms: Terms) -> None:
        """Add a half message, invisible until the commit (T20).

        :raises Refusal: it cannot be taken; the caller makes the transaction rollback-only (T23).
        """
        if not self.began:
            self.begin()
        instance = self._instance
        limits = instance.transaction_limits
        size = len(message)
        rows = self.rows + (address.groups or 1)
        octets = self.octets + size
        if (rows > limits.max_messages or octets > limits.max_bytes) and self.rows:
            raise self._too_much(rows)
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
            self._host.refuse_largest()
            if self.error is not None:
                raise self.error

    def _too_much(self, rows: int) -> Refusal:
        """The refusal of a post with which it would have so many rows, or too many octets."""
        limits = self._instance.transaction_limits
        text = f"a transaction holds at most {limits.max_bytes} bytes of messages (transaction.max_bytes)"
        if rows > limits.max_messages:
            text = (
                f"a transaction holds at most {limits.max_messages} messages (transaction.max_messages); "
                "one to several consumer groups counts once for each"
            )
        return Refusal(Condition.RESOURCE_LIMIT_EXCEEDED, text)

    def refuse(self, refusal: Refusal) -> None:
        """Part of the work is refused: from now on it can only roll back (T22, T23)."""
        self.begin()
        self.state = after(self.state, TxnEvent.WORK_REFUSED)
        if self.error is None:
            self.error = refusal
        self.let_go()
        if self.unsettled_posts:
            # The engine would keep their octets until the discharge. In the next turn: by then their answers are sent.
            self._instance.loop.call_later(0, self._conclude_posts)

    def _conclude_posts(self) -> None:
        unsettled, self.unsettled_posts = self.unsettled_posts, []
        for poster, delivery in unsettled:
            poster.decided(delivery, self.state is COMMITTED)

    def awaits_decision(self, poster: Poster, delivery: object, message: Octets) -> None:
        """The sender of a post waits for the decision (receiver settle mode second). The engine keeps the octets until
        then.
        """
        self.unsettled_posts.append((poster, delivery))
        if isinstance(message, bytes):
            self.counted += len(message)
            self._instance.memory.transactions += len(message)

    def retire(self, entry: Entry, outcome: Outcome, peer_settled: bool) -> None:
        """Retire a delivery: the commit applies the outcome; a later one in the transaction replaces it (T26, T29)."""
        if not self.began:
            self.begin()
        before = 0
        if entry.txn is not self:
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
        """Count the annotations of its outcome, which replace so many octets ``before``. A transaction that can only
        roll back keeps none.
        """
        assert entry.outcome is not None
        if self.refused_work:
            entry.outcome = without_annotations(entry.outcome)
            return
        more = held_octets(entry.outcome) - before
        self.counted += more
        self.annotated += more
        memory = self._instance.memory
        memory.transactions += more
        if memory.transactions > memory.most:
            self._host.refuse_largest()

    # -- decision

    def discharge(self, fail: bool, answer: object) -> None:
        """``answer``: the delivery of the discharge, which :meth:`Discharging.discharged` answers."""
        if self._instance.disk_low and self.posts and not fail and not self.checkable:
            self.refuse(self._host.enqueue.disk_refusal)
        self.answer = answer
        self.wanted = fail
        if self.parked:
            self.state = after(self.state, TxnEvent.DISCHARGE_EARLY)
            if fail or self.refused_work:
                self.returns()
        else:
            self._decide(fail)

    def unpark(self) -> None:
        """A post that waited for its address is added, or refused."""
        self.parked -= 1
        if not self.parked and self.wanted is not None and self.open:  # else its time ran out
            self._decide(self.wanted)

    def _decide(self, fail: bool) -> None:
        self.state = after(self.state, TxnEvent.DISCHARGE_FAIL) if fail else AFTER_DISCHARGE[self.state]
        if self.state is ROLLED_BACK:
            self._roll_back(reasons.DISCHARGED if fail else reasons.ROLLBACK_ONLY)
        elif self.empty and not self.registered:  # costs nothing in the store (T35)
            self.durable()
        else:
            self.uncount()
            if self.checkable:
                self.octets = 0  # the store has its messages
            self._instance.commit.add(self, self.octets + self.annotated)

    def abandon(self, event: TxnEvent, reason: str, error: Refusal | None = None) -> None:
        """Roll back: the control link is detached, the time is over, or another connection has asked for the outcome. A
        commit on its way to the store is left alone (T11, T13, T14).
        """
        state = after(self.state, event)
        if state is self.state:
            return
        self.state = state
        if self.error is None:
            self.error = error
        self._roll_back(reason)

    def _roll_back(self, reason: str) -> None:
        self.reason = reason
        self.let_go()
        if self.error is not None and reason == reasons.ROLLBACK_ONLY:
            self.reason = f"{reasons.ROLLBACK_ONLY}: {self.error.condition}"
        if self.empty and not self.registered:
            self.durable()
        else:
            self.returns()
            self._instance.commit.add(self)

    # -- the unit of the group commit

    def write(self, batch: Batch) -> None:
        raise NotImplementedError

    def durable(self) -> None:
        self._host.forget(self)
        self.state = AFTER_DURABLE[self.state]
        if self.state is COMMITTED:
            self.apply_commit()
        else:
            self.apply_rollback()
        self._finish()

    def _finish(self) -> None:
        """After the decision: let go of what it holds, and answer the discharge."""
        self._conclude_posts()
        self._answer(None if self.state is COMMITTED or self.wanted is not False else self.refusal())

    def _answer(self, refusal: Refusal | None) -> None:
        self.forget_work()
        self.control.discharged(self, refusal)
        self.answer = None
        self._tell_askers()

    def _tell_askers(self) -> None:
        askers, self._askers = self._askers, ()
        for asker in askers:
            asker()

    def refusal(self) -> Refusal:
        """The refusal with which a commit is answered."""
        if self.error is None:
            return Refusal(Condition.TXN_ROLLBACK, f"the transaction was rolled back: {self.reason}")
        if self.error.condition in (Condition.TXN_TIMEOUT, Condition.TXN_ROLLBACK):
            return self.error
        reason = f"{self.error.condition}: {self.error.description}"
        return Refusal(Condition.TXN_ROLLBACK, f"the transaction was rolled back, as part of it was refused: {reason}")

    def refused(self, error: StoreError) -> None:
        """The store has refused the decision."""
        if self.state is COMMITTING and self.can_commit_after(error):
            self._instance.commit.add(self, self.octets)
            return
        if isinstance(error, AddressGone):
            for name in {address.name for address, _, _ in self.posts}:
                self._host.directory.changed(name)
        had_retired = bool(self.retired)
        if self.state is COMMITTING and not isinstance(error, AlreadyDecided):
            self.fails = False
        self.take_back()
        before, self.state = self.state, after(self.state, TxnEvent.STORE_REFUSED)
        if before is COMMITTING:
            self.error = why(error)
        elif not had_retired:  # only the op can have been refused: there is one already
            error = AlreadyDecided(str(error))
        if isinstance(error, AlreadyDecided):
            if self.registered:
                self._instance.commit.add(Removal(self.id))
            self._host.forget(self)
            self._finish()
        else:  # write an op all the same, without the work
            self.reason = reasons.STORE_REFUSED
            self._instance.commit.add(self)
