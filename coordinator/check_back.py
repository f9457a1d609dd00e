"""Checkable transactions (rules H1 to H7, H13, H20): their messages are in the store before the posts are answered, and
stay there undecided when the client goes; so do the entries of what they have retired. The store decides them, all who
ask alike, and the first decision wins: a discharge may come too late.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from coordinator.address.addresses import shown
from coordinator.checkable import NOTHING_ASKED, asked_terms, producer_group
from coordinator.errors import Condition, Refusal
from coordinator.group import deliveries
from coordinator.group.entries import POSTGRES_EPOCH, now_micros
from coordinator.halves import Doom, HalfPost, Halves, Hold, Left, Overdue, Owed, PostLink, hold
from coordinator.memory import POST_OCTETS
from coordinator.outcomes import ACCEPTED, as_said
from coordinator.transactions import Poster as TransactionPoster
from coordinator.transactions import Transaction
from coordinator.transitions import CHECKABLE, COMMITTED, COMMITTING, LEFT, TxnEvent, after
from coordinator.work import why
from store import reasons
from store.codec.message import PRODUCER_GROUP
from store.commit.checkable import Declared
from store.decisions import Undecided
from store.errors import AddressGone, AlreadyDecided, GroupsChanged, Locked, StoreError
from store.ids import micros_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.address.directory import Directory
    from coordinator.address.nodes import Address
    from coordinator.checkable import CheckTerms
    from coordinator.group.entries import Entry
    from coordinator.instance import Instance
    from coordinator.outcomes import Outcome
    from store.codec.message import Facts
    from store.commit.batch import Batch
    from store.commit.terms import Terms
    from store.decisions import Decision
    from store.spool import Octets


#: how long it waits before it asks again what another has decided, where the store could not say
_AGAIN_SECONDS = 1.0


class Poster(PostLink, Protocol):
    def waits(self, delivery: Any, octets: int) -> None: ...

    def rejected_in(self, delivery: Any, txn: Any, refusal: Refusal) -> None: ...


class Checkable(Transaction):
    """A transaction, as the registry makes each: a plain one until it has :class:`Halves`. What it then posts is in
    ``posts`` without the message.
    """

    __slots__ = ("halves",)
    #: of a checkable one alone
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
        if not self.began:
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
        self.halves.place(address)
        unit = HalfPost(link, delivery, self, address, message, terms)
        if delivery is None:
            self.on_its_way(unit, size)
        else:
            link.waits(delivery, size)
            self.on_its_way(unit, 2 * size)

    def on_its_way(self, unit: HalfPost | Doom | Hold, octets: int = 0) -> None:
        self.halves.on_way += 1
        self.parked += 1
        self._instance.commit.add(unit, octets)

    def declared(self, terms: CheckTerms) -> Declared:
        """Its row in the store."""
        halves = self.halves
        left = self.began + self.timeout - time.monotonic()
        return Declared(
            owner=self.control.named,
            declared=micros_of(self.id) - POSTGRES_EPOCH * 1_000_000,
            timeout=now_micros() + int(left * 1e6),
            producer_group=halves.group.encode(),
            immunity_ms=terms.immunity_ms,
            interval_ms=terms.interval_ms,
            most_checks=terms.most,
            connection=halves.connection,
        )

    def stored(self, half_id: int, address: Address, terms: Terms, *, own_row: bool) -> None:
        """A half is durable. ``own_row``: it has a row in ``pending``, and is not in the transaction's."""
        self.entered()
        if self.state is not CHECKABLE and (not self.open or self.refused_work):
            self.dropped += 1
            return
        self.halves.ids.append(half_id)
        if own_row:
            self.halves.own_rows.add(half_id)
        self.posts.append((address, b"", terms))
        self.counted += POST_OCTETS
        memory = self._instance.memory
        memory.transactions += POST_OCTETS
        if memory.transactions > memory.most:
            self._host.refuse_largest()

    def entered(self) -> None:
        """Its row is in the store."""
        self.halves.entered = self.registered = True

    def awaits_decision(self, poster: TransactionPoster, delivery: object, message: Octets) -> None:
        """Of one that is left, or a checkable one that can only roll back by now, the sender waits for nothing."""
        if self.state is LEFT:
            poster.left(delivery)
            return
        super().awaits_decision(poster, delivery, message)
        if self.checkable and self.refused_work:
            self._instance.loop.call_later(0, self._conclude_posts)

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
        elif halves.news:
            self.told()

    def lacks(self, refusal: Refusal) -> None:
        """A post was refused, which the transaction must not commit without (T23)."""
        if self.open:
            self.refuse(refusal)
        elif self.error is None:
            self.error = refusal

    def refuse(self, refusal: Refusal) -> None:
        super().refuse(refusal)
        if not self.checkable:
            return
        self.halves.ids, self.halves.own_rows = [], set()
        if not self.halves.on_way:
            self._doom()

    def _doom(self) -> None:
        """It can only roll back: let the store know before the discharge comes."""
        halves = self.halves
        if halves.entered and not halves.doomed:
            halves.doomed = True
            self.on_its_way(Doom(self))

    def hold(self, entry: Entry, outcome: Outcome, peer_settled: bool) -> None:
        """As :meth:`retire`; its entry is the transaction's until the decision, once that is durable (H20)."""
        before = entry.outcome if entry.txn is self else None
        if before is not None and as_said(before) == outcome:
            entry.peer_settled = entry.peer_settled or peer_settled
            return
        self.retire(entry, outcome, peer_settled)
        if not self.refused_work:
            hold(self, entry)

    # -- decision

    def overdue(self) -> None:
        """Its time is over (T14): from now on its producer group is asked, and it may still be discharged."""
        if self.halves.entered and not self.halves.overdue:
            self.halves.overdue = True
            self._instance.commit.add(Overdue(self.id, self.owner))

    def abandon(self, event: TxnEvent, reason: str, error: Refusal | None = None) -> None:
        if not self.checkable:
            super().abandon(event, reason, error)
            return
        if event is TxnEvent.ASKED and not self.halves.entered and not self.halves.on_way:
            event = TxnEvent.CONTROL_LOST  # the store has nothing of it: the question rolls it back (T11)
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
        self.posts = []
        self.returns()  # what its client has retired may be the store's by now, or will come back
        if not self.halves.on_way:
            self._leave()
        self._tell_askers()

    def _leave(self) -> None:
        halves = self.halves
        if self.error is not None and halves.entered and not halves.doomed:
            self._doom()
            return
        retired, self.retired = self.retired, []
        if halves.entered and not halves.decided:
            held_there = [entry for entry in retired if entry in halves.held]
            self._instance.commit.add(Left(self.id, held_there, self.owner, self.control))
        for entry in retired:
            if halves.decided or entry not in halves.held:
                self._keep(entry)
        self.returned()

    def _roll_back(self, reason: str) -> None:
        if not self.checkable:
            super()._roll_back(reason)
            return
        halves = self.halves
        if halves.on_way:
            halves.waiting = reason
            self.let_go()
            self.returns()
        elif halves.decided:
            self.let_go()
            self.durable()
        else:
            super()._roll_back(reason)

    def write(self, batch: Batch) -> None:
        if self.checkable and self.halves.entered:
            if self.state is COMMITTING:
                self._write_commit(batch)
            else:
                batch.check_back().decide(self.id, b"rollback", self.reason)
            return
        if self.registered:
            batch.forget(self.id)
        if self.state is COMMITTING:
            self.write_commit(batch)
        else:
            self.write_rollback(batch, self.reason)

    def _write_commit(self, batch: Batch) -> None:
        """Its halves become entries, with new ids: above those of all that a holder of their groups has read."""
        next_id = self._instance.ids.next
        self.half_ids = [next_id() for _ in self.posts]
        self.entries = [None] * len(self.posts)
        batch.rows += self.rows
        rows, halves = batch.check_back(), self.halves
        settled = None if self.retired or halves.held or halves.left_out else halves.settled(self.posts, self.half_ids)
        if settled is None:
            rows.decide(self.id, b"commit", "", halves.ids, self.half_ids)
        else:
            rows.settle(self.id, settled, {address.id for address, _, _ in self.posts})
            if settled.halves:
                batch.queue_addresses.add(settled.address)
        if self._instance.peers:
            for (address, _, terms), entry_id in zip(self.posts, self.half_ids, strict=True):
                self._host.enqueue.wake(batch, address, entry_id, terms)
            for entry in self.retired:
                if entry.outcome is not ACCEPTED:
                    entry.queue.wake(batch, (entry.id,))

    def apply_rollback(self) -> None:
        """What it held in the store is leased to this instance again: deliveries are as they were (T27, T28)."""
        if not self.checkable or not self.halves.entered:
            super().apply_rollback()
            return
        for entry in self.retired:
            self._keep(entry)

    def refused(self, error: StoreError) -> None:
        if not self.checkable or not self.halves.entered or isinstance(error, GroupsChanged):
            super().refused(error)
            return
        self.entries = []
        if isinstance(error, AlreadyDecided):
            self._host.decisions.ask(self.id, self._stands)
            return
        before, self.state = self.state, after(self.state, TxnEvent.STORE_REFUSED)
        if before is COMMITTING and not isinstance(error, Locked):
            if isinstance(error, AddressGone):
                for name in {address.name for address, _, _ in self.posts}:
                    self._host.directory.changed(name)
            self.error = why(error)
            self.fails = False
            self.let_go()
            self.reason = reasons.STORE_REFUSED
            self.returns()
            self._instance.commit.add(self)
        else:  # the store has it undecided, or another is about to decide it
            self._end(UNKNOWN)

    def told(self) -> None:
        """Another may have decided it, while deliveries that it has retired are with their links."""
        self.halves.news = bool(self.halves.on_way)  # what the store says of those comes first
        if self.open and self.halves.held and not self.halves.news:
            self._host.decisions.ask(self.id, self._learned)

    def _learned(self, found: Decision | Undecided | StoreError | None) -> None:
        if isinstance(found, StoreError):
            self._instance.loop.call_later(_AGAIN_SECONDS, self.told)
        elif self.halves.on_way:
            self.halves.news = True
        elif self.open and self.halves.held and not isinstance(found, Undecided | None):
            self._give_up_held(found.decision == "commit", self.returned)

    def _give_up_held(self, committed: bool, then: Callable[[], None]) -> None:
        """Another has decided it: in the store, what it held is applied, or waits for this instance to take it back."""
        if not committed:
            self.returns()
        retired, self.retired = self.retired, []
        holds, self.halves.held = self.halves.held, {}
        for entry in retired:
            if entry not in holds:
                self._keep(entry)
            elif committed:
                deliveries.decided_elsewhere(entry)
        if committed or not holds:
            then()
        else:
            self._instance.commit.add(Owed(self.id, list(holds), self._keep, then))

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
        self._give_up_held(committed, lambda: self._end(refusal, committed=committed))

    def _end(self, refusal: Refusal | None, *, committed: bool | None = None) -> None:
        """Answer the discharge, if there is one; nothing of it is left here to apply. ``committed``: None: it is not
        known, and the store has it undecided, or decided.
        """
        self._host.forget(self)
        if committed is None:
            # its own: what the connection goes on with does not wait with it
            self._instance.commit.add(Left(self.id, list(self.halves.held), self, self.control))
            for entry in self.retired:
                if entry not in self.halves.held:
                    self._keep(entry)
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


# What makes a transaction checkable (rules H1, H2): its control link or its connection says so, or the first message
# of it that names a producer group, or goes to an address of kind transaction.


def look_at_group(txn: Checkable | None, facts: Facts, address: Address, terms: CheckTerms) -> None:
    """A message names its producer group, or goes to an address of kind transaction (H1, H2): its transaction becomes
    checkable. Or it says how its checkable transaction is to be checked (H7). ``txn``: None outside transactions, where
    neither means anything.

    :raises Refusal: it may not be posted so.
    """
    if txn is None:
        if address.transactional:
            text = f"the address {shown(address.name)} is of kind transaction, and the message came in none"
            raise Refusal(Condition.PRECONDITION_FAILED, text)
        return
    if txn.refused_work:
        return
    named = facts.producer_group
    group = None if named is None else producer_group(named, f"the application property {PRODUCER_GROUP}")
    if not txn.checkable:
        group = group or producer_group(address.name, "the name of the address, which is the producer group,")
        _make_checkable(txn, Halves(group, terms, txn.control.number, NOTHING_ASKED))
    elif group is not None and group != txn.halves.group:
        text = f"the transaction has the producer group {shown(txn.halves.group)}, and a message in it {shown(group)}"
        refusal = Refusal(Condition.PRECONDITION_FAILED, text)
        txn.refuse(refusal)
        raise refusal
    asked = asked_terms(dict(facts.checks), "the application property ")
    halves = txn.halves
    if not halves.entered:
        halves.asked = asked.before(halves.asked)


def _make_checkable(txn: Checkable, halves: Halves) -> None:
    """What the transaction has posted and retired so far goes to the store at once."""
    txn.state = after(txn.state, TxnEvent.MADE_CHECKABLE)
    posted, txn.posts = txn.posts, []
    txn.halves, txn.checkable = halves, True
    held = sum(POST_OCTETS + (len(message) if isinstance(message, bytes) else 0) for _, message, _ in posted)
    txn.counted -= held
    txn.instance.memory.transactions -= held
    txn.spooled = 0
    for address, message, terms in posted:
        halves.place(address)
        txn.on_its_way(HalfPost(None, None, txn, address, message, terms), len(message))
    for entry in txn.retired:
        hold(txn, entry)


def declared_checkable(txn: Checkable, halves: Halves) -> None:
    """As a message with a producer group does, with the declare: there is no work yet."""
    txn.state = CHECKABLE
    txn.halves, txn.checkable = halves, True
