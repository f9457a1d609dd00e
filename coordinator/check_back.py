"""Checkable transactions (rules H1 to H7, H13): their messages are in the store before the posts are answered, and stay
there undecided when the client goes. The store decides them, for all by one function: a discharge may come too late.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from coordinator.address.addresses import shown
from coordinator.checkable import immunity_ms, producer_group
from coordinator.codec.message import CHECK_IMMUNITY_MS, PRODUCER_GROUP
from coordinator.errors import Condition, Refusal
from coordinator.group.entries import POSTGRES_EPOCH, now_micros
from coordinator.halves import Doom, HalfPost, Halves, Left, PostLink
from coordinator.memory import POST_OCTETS
from coordinator.transactions import Transaction
from coordinator.transitions import CHECKABLE, COMMITTED, COMMITTING, LEFT, TxnEvent, after
from coordinator.work import why
from store.commit.checkable import Declared
from store.decisions import Undecided
from store.errors import AddressGone, AlreadyDecided, StoreError
from store.ids import micros_of

if TYPE_CHECKING:
    from coordinator.address.directory import Address, Directory
    from coordinator.checkable import CheckTerms
    from coordinator.codec.message import Facts
    from coordinator.group.entries import Entry
    from coordinator.instance import Instance
    from coordinator.outcomes import Outcome
    from store.commit.batch import Batch
    from store.commit.terms import Terms
    from store.decisions import Decision
    from store.spool import Octets


class Poster(PostLink, Protocol):
    def waits(self, delivery: Any, octets: int) -> None: ...

    def rejected_in(self, delivery: Any, txn: Any, refusal: Refusal) -> None: ...


class Checkable(Transaction):
    """A transaction with :class:`Halves`. What it has posted is in ``posts`` without the messages."""

    __slots__ = ()
    halves: Halves

    # -- work

    @property
    def instance(self) -> Instance:
        return self._instance

    @property
    def directory(self) -> Directory:
        return self._host.directory

    def take(self, link: Poster, delivery: Any, address: Address, message: Octets, terms: Terms) -> None:
        """A message is posted; it is answered once it is durable (H3). ``delivery``: None if its sender has settled it.

        :raises Refusal: it cannot be taken; the caller makes the transaction rollback-only (T23).
        """
        self.begin()
        size = len(message)
        limits = self._instance.transaction_limits
        rows = self.rows + (address.groups or 1)
        octets = self.octets + size
        if (rows > limits.max_messages or octets > limits.max_bytes) and self.rows:
            raise self._too_much(rows)
        self.rows, self.octets = rows, octets
        if self.error is not None:  # it can only roll back: later posts are refused as well (T23)
            self.dropped += 1
            if delivery is not None:
                link.rejected_in(delivery, self, self.error)
            return
        unit = HalfPost(link, delivery, self, address, message, terms)
        if delivery is None:
            self._on_way(unit, size)
        else:
            link.waits(delivery, size)
            self._on_way(unit, 2 * size)

    def _on_way(self, unit: HalfPost | Doom, octets: int = 0) -> None:
        self.halves.on_way += 1
        self.parked += 1
        self._instance.commit.add(unit, octets)

    def declared(self) -> Declared:
        """Its row in the store."""
        halves = self.halves
        left = self.began + self.timeout - time.monotonic()
        return Declared(
            owner=str(self.owner).replace("\0", "").encode(),
            declared=micros_of(self.id) - POSTGRES_EPOCH * 1_000_000,
            timeout=now_micros() + int(left * 1e6),
            producer_group=halves.group.encode(),
            immunity_ms=halves.terms.immunity_ms,
            interval_ms=halves.terms.interval_ms,
            most_checks=halves.terms.most,
            connection=halves.connection,
        )

    def stored(self, half_id: int, address: Address, terms: Terms) -> None:
        """A half is durable."""
        self.halves.entered = self.registered = True
        if not self.open or self.refused_work:
            self.dropped += 1
            return
        self.halves.ids.append(half_id)
        self.posts.append((address, b"", terms))
        self.counted += POST_OCTETS
        memory = self._instance.memory
        memory.transactions += POST_OCTETS
        if memory.transactions > memory.most:
            self._host.refuse_largest()

    def arrived(self) -> None:
        """A unit that was on its way is answered."""
        halves = self.halves
        halves.on_way -= 1
        self.unpark()
        if halves.on_way:
            return
        if self.state is LEFT:
            self._leave()
        elif halves.waiting is not None:
            reason, halves.waiting = halves.waiting, None
            self._roll_back(reason)
        elif self.open and self.refused_work:
            self._doom()

    def lacks(self, refusal: Refusal) -> None:
        """A post was refused, which the transaction must not commit without (T23)."""
        if self.open:
            self.refuse(refusal)
        elif self.error is None:
            self.error = refusal

    def refuse(self, refusal: Refusal) -> None:
        super().refuse(refusal)
        self.halves.ids = []
        if not self.halves.on_way:
            self._doom()

    def _doom(self) -> None:
        """It can only roll back: let the store know before the discharge comes."""
        halves = self.halves
        if halves.entered and not halves.doomed:
            halves.doomed = True
            self._on_way(Doom(self))

    def retire(self, entry: Entry, outcome: Outcome, peer_settled: bool) -> None:
        if not self.refused_work:
            self.refuse(NO_RETIREMENTS)
        super().retire(entry, outcome, peer_settled)

    # -- decision

    def overdue(self) -> None:
        """Its time is over (T14): from now on its producer group is asked, and it may still be discharged."""
        if self.halves.entered and not self.halves.overdue:
            self.halves.overdue = True
            self._instance.commit.add(Left(self.id, overdue=True))

    def abandon(self, event: TxnEvent, reason: str, error: Refusal | None = None) -> None:
        if after(self.state, event) is not LEFT:
            super().abandon(event, reason, error)
        elif self.state is not LEFT:
            self._go()

    def _go(self) -> None:
        """It is this instance's no longer: the store has it undecided, or has nothing of it."""
        self.state = LEFT
        self.uncount()
        self._host.forget(self)
        self._let_go_of_posts(None)
        if not self.halves.on_way:
            self._leave()
        self.forget_work()
        self._tell_askers()

    def _leave(self) -> None:
        if self.error is not None and not self.halves.doomed:
            self._doom()
        elif self.halves.entered and not self.halves.decided:
            self._instance.commit.add(Left(self.id))

    def discharge(self, fail: bool, answer: object) -> None:
        self.answer = answer
        self.wanted = fail
        if self.parked:
            self.state = after(self.state, TxnEvent.DISCHARGE_EARLY)
        else:
            self._decide(fail)

    def _decide(self, fail: bool) -> None:
        self.octets = 0  # the store has its messages
        super()._decide(fail)

    def _roll_back(self, reason: str) -> None:
        halves = self.halves
        if halves.on_way:
            halves.waiting = reason
            self.let_go()
        elif halves.decided and not self.retired:
            self.let_go()
            self.durable()
        else:
            super()._roll_back(reason)

    def write(self, batch: Batch) -> None:
        halves = self.halves
        if not halves.entered:
            super().write(batch)
        elif self.state is COMMITTING:
            self._write_commit(batch)
        else:
            if not halves.decided:
                batch.check_back().decide(self.id, b"rollback", self.reason)
            self.write_undone(batch)

    def _write_commit(self, batch: Batch) -> None:
        """Its halves become entries, with new ids: above those of all that a holder of their groups has read."""
        next_id = self._instance.ids.next
        self.half_ids = [next_id() for _ in self.posts]
        self.entries = [None] * len(self.posts)
        batch.rows += self.rows
        batch.check_back().decide(self.id, b"commit", "", self.halves.ids, self.half_ids)
        for (address, _, terms), entry_id in zip(self.posts, self.half_ids, strict=True):
            self._host.enqueue.wake(batch, address, entry_id, terms)

    def refused(self, error: StoreError) -> None:
        if not self.halves.entered:
            super().refused(error)
            return
        self.take_back()
        if isinstance(error, AlreadyDecided):
            self._host.decisions.ask(self.id, self._stands)
            return
        before, self.state = self.state, after(self.state, TxnEvent.STORE_REFUSED)
        if before is COMMITTING:
            if isinstance(error, AddressGone):
                for name in {address.name for address, _, _ in self.posts}:
                    self._host.directory.changed(name)
            self.error = why(error)
            self.let_go()
            self.reason = "store-refused"
            self._instance.commit.add(self)
        else:  # the store has it undecided
            self._instance.commit.add(Left(self.id))
            self._end(UNKNOWN)

    def _stands(self, found: Decision | Undecided | StoreError | None) -> None:
        """It was decided already: by an operator, a checker, another connection of its producer group."""
        if found is None or isinstance(found, StoreError | Undecided):
            self._end(UNKNOWN)
            return
        committed = found.decision == "commit"
        if self.state is COMMITTING:
            self.state = after(self.state, TxnEvent.DURABLE if committed else TxnEvent.STORE_REFUSED)
        refusal = None
        if committed and self.state is not COMMITTED:
            without = f", without what was refused: {self.error}" if self.error is not None else ""
            refusal = Refusal(Condition.ILLEGAL_STATE, f"the transaction was committed before{found.by}{without}")
        elif not committed and self.wanted is False:
            text = f"the transaction was rolled back before{found.by}: {found.reason or 'discharged'}"
            refusal = Refusal(Condition.TXN_ROLLBACK, text)
        self._end(refusal, committed=committed)

    def _end(self, refusal: Refusal | None, *, committed: bool | None = None) -> None:
        """Answer the discharge, if there is one; nothing of it is left here to apply. ``committed``: None: it is not
        known.
        """
        self._host.forget(self)
        self._let_go_of_posts(committed)
        self.uncount()
        self._answer(refusal)

    def _let_go_of_posts(self, committed: bool | None) -> None:
        """Those that wait for the decision (T25)."""
        unsettled, self.unsettled_posts = self.unsettled_posts, []
        for poster, delivery in unsettled:
            if committed is None:
                poster.left(delivery)
            else:
                poster.decided(delivery, committed)


#: The store has not answered; what stands can be asked for.
UNKNOWN = Refusal(Condition.INTERNAL_ERROR, "the store cannot say now what became of it: discharge it again")
NO_RETIREMENTS = Refusal(
    Condition.NOT_IMPLEMENTED,
    "a checkable transaction only posts: deliveries cannot be retired in it by this version; use another transaction, "
    "without a producer group, for them",
)


def look_at_group(txn: Transaction | None, facts: Facts, address: Address, terms: CheckTerms) -> None:
    """A message names its producer group, or goes to an address of kind transaction (H1, H2): its transaction becomes
    checkable. ``txn``: None outside transactions, where a producer group means nothing.

    :raises Refusal: it may not be posted so.
    """
    if txn is None:
        if address.transactional:
            text = f"the address {shown(address.name)} is of kind transaction, and the message came in none"
            raise Refusal(Condition.PRECONDITION_FAILED, text)
        return
    if txn.refused_work:
        return
    named, halves = facts.producer_group, txn.halves
    group = None if named is None else producer_group(named, f"the application property {PRODUCER_GROUP}")
    if halves is None:
        group = group or producer_group(address.name, "the name of the address, which is the producer group,")
        halves = Halves(group, terms, txn.control.number)
        _make_checkable(txn, halves)
    elif group is not None and group != halves.group:
        text = f"the transaction has the producer group {shown(halves.group)}, and a message in it {shown(group)}"
        refusal = Refusal(Condition.PRECONDITION_FAILED, text)
        txn.refuse(refusal)
        raise refusal
    if facts.check_immunity_ms is not None and not halves.entered:
        asked = immunity_ms(facts.check_immunity_ms, f"the application property {CHECK_IMMUNITY_MS}")
        halves.terms = halves.terms._replace(immunity_ms=asked)


def _make_checkable(txn: Transaction, halves: Halves) -> None:
    """From now on the transaction is a :class:`Checkable`: what it has posted so far goes to the store at once.

    :raises Refusal: it has retired deliveries.
    """
    if txn.retired:
        raise NO_RETIREMENTS
    txn.state = after(txn.state, TxnEvent.MADE_CHECKABLE)
    posted, txn.posts = txn.posts, []
    _become(txn, halves)
    assert isinstance(txn, Checkable)
    held = sum(POST_OCTETS + (len(message) if isinstance(message, bytes) else 0) for _, message, _ in posted)
    txn.counted -= held
    txn.instance.memory.transactions -= held
    txn.spooled = 0
    for address, message, terms in posted:
        txn._on_way(HalfPost(None, None, txn, address, message, terms), len(message))


def declared_checkable(txn: Transaction, halves: Halves) -> None:
    """As a message with a producer group does, with the declare: there is no work yet."""
    txn.state = CHECKABLE
    _become(txn, halves)


def _become(txn: Transaction, halves: Halves) -> None:
    """The same object, as links and the registry hold it; the class adds no slots."""
    txn.halves = halves
    txn.__class__ = Checkable
