"""A transaction in the store: what is checkable (rules H1 to H7, H13, H20). Its messages are in the store before the
posts are answered, and stay there undecided when the client goes; so do the entries of what it has retired. The store
decides, all who ask alike, and the first decision wins: a discharge may come too late.

As long as the transaction is open here, its retirements are in memory, too, as those of any other: links keep their
deliveries, and what a rollback leaves to their consumers (T27) stays with them. A notice tells of a decision that
another makes.
"""

from __future__ import annotations

import time
from enum import Enum
from typing import TYPE_CHECKING

import structlog

from coordinator.address.addresses import shown
from coordinator.address.nodes import resource_deleted
from coordinator.checkable import NOTHING_ASKED, asked_terms, producer_group
from coordinator.errors import Condition, Refusal
from coordinator.group import deliveries
from coordinator.group.entries import POSTGRES_EPOCH, now_micros
from coordinator.memory import POST_OCTETS
from coordinator.outcomes import ACCEPTED, as_said
from coordinator.transaction import held_octets, why
from coordinator.transitions import (
    CHECKABLE,
    COMMITTED,
    COMMITTING,
    LEFT,
    ROLLED_BACK,
    TxnEvent,
    after,
)
from store import reasons
from store.codec.message import PRODUCER_GROUP
from store.commit.checkable import Declared, Settled
from store.commit.terms import PLAIN
from store.decisions import Undecided
from store.errors import AddressGone, AlreadyDecided, Locked, NotLeased, StoreError
from store.ids import micros_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coordinator.address.nodes import Address
    from coordinator.checkable import CheckTerms, OwnCheckTerms
    from coordinator.control import Control
    from coordinator.group.entries import Entry
    from coordinator.outcomes import Outcome
    from coordinator.posts import PostLink
    from coordinator.transaction import Transaction
    from store.codec.message import Facts
    from store.commit.batch import Batch, Unit
    from store.commit.terms import DeliveryTerms
    from store.decisions import Decision
    from store.spool import Octets

log = structlog.get_logger(__name__)

#: how long it waits before it asks again what another has decided, where the store could not say
_AGAIN_SECONDS = 1.0
#: The store has not answered; what stands can be asked for.
UNKNOWN = Refusal(Condition.INTERNAL_ERROR, "the store cannot say now what became of it: discharge it again")


def make_checkable(txn: Transaction, group: str, terms: CheckTerms, asked: OwnCheckTerms = NOTHING_ASKED) -> InStore:
    """The control link or the connection of the transaction names a producer group, or a message in it does (H1, H2):
    what it has posted and retired so far goes to the store at once.
    """
    txn.state = after(txn.state, TxnEvent.MADE_CHECKABLE)
    posted, txn.posts = txn.posts, []
    in_store = txn.in_store = InStore(txn, group, terms, asked)
    held = sum(POST_OCTETS + (len(message) if isinstance(message, bytes) else 0) for _, message, _ in posted)
    txn.counted -= held
    txn.instance.memory.transactions -= held
    txn.spooled = 0
    for address, message, its_terms in posted:
        in_store.place(address)
        in_store.send(HalfPost(None, None, in_store, address, message, its_terms), len(message))
    for entry in txn.retired:
        in_store.hold(entry)
    return in_store


def look_at_group(txn: Transaction | None, facts: Facts, address: Address, terms: CheckTerms) -> None:
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
    in_store = txn.in_store
    if in_store is None:
        group = group or producer_group(address.name, "the name of the address, which is the producer group,")
        in_store = make_checkable(txn, group, terms)
    elif group is not None and group != in_store.group:
        text = f"the transaction has the producer group {shown(in_store.group)}, and a message in it {shown(group)}"
        refusal = Refusal(Condition.PRECONDITION_FAILED, text)
        txn.refuse(refusal)
        raise refusal
    asked = asked_terms(dict(facts.checks), "the application property ")
    if not in_store.entered:
        in_store.asked = asked.before(in_store.asked)


class RowState(Enum):
    """Of the row that a transaction has in the store, as far as this instance knows."""

    ABSENT = "absent"
    UNDECIDED = "undecided"
    #: the transaction can only roll back: the store was told before the discharge comes
    ROLLING_BACK = "rolling-back"
    #: and has done so
    ROLLED_BACK = "rolled-back"


class InStore:
    """What a transaction does as its halves and retirements are in the store. ``group``: the producer group; ``terms``:
    how it is checked, at first as the settings say; ``asked``: what its client asks for instead.
    """

    __slots__ = (
        "ask_later",
        "asked",
        "connection",
        "group",
        "held",
        "holding",
        "ids",
        "left_out",
        "on_way",
        "overdue",
        "own_rows",
        "placed",
        "row",
        "sent",
        "terms",
        "txn",
    )

    def __init__(self, txn: Transaction, group: str, terms: CheckTerms, asked: OwnCheckTerms) -> None:
        self.txn = txn
        self.group = group
        self.terms = terms
        self.asked = asked
        #: its first message has said to which address it goes
        self.placed = False
        #: number of the connection that declared it
        self.connection = txn.control.number
        #: of its halves that are in the store, as the posts of the transaction
        self.ids: list[int] = []
        #: those of them that have rows of their own; all others are in the transaction's row
        self.own_rows: set[int] = set()
        #: a group does not get one of them
        self.left_out = False
        #: units that are on their way to the store: no decision is written before they are answered
        self.on_way = 0
        #: a notice of a decision came meanwhile
        self.ask_later = False
        #: the terms with which its row was sent to the store; None: it was not
        self.sent: CheckTerms | None = None
        #: its row in the store
        self.row = RowState.ABSENT
        #: its time was over, and the store was told
        self.overdue = False
        #: of the deliveries that it has retired, those whose entries it holds in the store
        self.held: dict[Entry, None] = {}
        #: those that are on their way there, and whether another outcome came meanwhile
        self.holding: dict[Entry, bool] = {}

    @property
    def entered(self) -> bool:
        """Whether its row is in the store."""
        return self.row is not RowState.ABSENT

    @property
    def is_empty(self) -> bool:
        """Whether the store has, and gets, nothing of it."""
        return self.row is RowState.ABSENT and not self.on_way

    @property
    def is_rolled_back(self) -> bool:
        """Whether the store has rolled it back before its discharge came."""
        return self.row is RowState.ROLLED_BACK

    # -- work

    def post(self, link: PostLink, delivery: object, address: Address, message: Octets, terms: DeliveryTerms) -> None:
        """A message is posted; it is answered once it is durable (H3). ``delivery``: None if its sender has settled it.

        :raises Refusal: it cannot be taken; the caller makes the transaction rollback-only (T23).
        """
        txn = self.txn
        txn.begin()
        size = len(message)
        limits = txn.instance.transaction_limits
        rows = txn.rows + (address.groups or 1)
        octets = txn.octets + size
        if (rows > limits.max_messages or octets > limits.max_bytes) and txn.rows:
            raise txn.too_much(rows)
        txn.rows, txn.octets = rows, octets
        if txn.error is not None:  # it can only roll back: later posts are refused as well (T23)
            txn.dropped += 1
            if delivery is not None:
                link.rejected_in(delivery, txn, txn.error)
            return
        self.place(address)
        unit = HalfPost(link, delivery, self, address, message, terms)
        if delivery is None:
            self.send(unit, size)
        else:
            link.waits(delivery, size)
            self.send(unit, 2 * size)

    def place(self, address: Address) -> None:
        """A message of it goes to this address: the first has the address's terms count. What the client asks for goes
        before them (H7). They come too late where the row of the transaction is in the store, as it retired before.
        """
        if not self.placed:
            self.placed = True
            self.terms = address.check_terms.over(self.terms)

    def retire(self, entry: Entry, outcome: Outcome, peer_settled: bool) -> None:
        """A delivery is retired; its entry is the transaction's until the decision, once that is durable (H20)."""
        txn = self.txn
        before = entry.outcome if entry.txn is txn else None
        if before is not None and as_said(before) == outcome:
            entry.peer_settled = entry.peer_settled or peer_settled
            return
        txn.retire(entry, outcome, peer_settled)
        if not txn.refused_work:
            self.hold(entry)

    def hold(self, entry: Entry) -> None:
        """Bring to the store that it is retired. While that is on its way, a later outcome waits."""
        if entry in self.holding:
            self.holding[entry] = True
            return
        self.holding[entry] = False
        self.send(Hold(self, entry), held_octets(entry.outcome) if entry.outcome is not None else 0)

    def send(self, unit: Unit, octets: int = 0) -> None:
        """The decision waits for the unit, which calls :meth:`answered`."""
        self.on_way += 1
        self.txn.parked += 1
        self.txn.instance.commit.add(unit, octets)

    def answered(self) -> None:
        """A unit that was on its way is durable or refused."""
        txn = self.txn
        self.on_way -= 1
        waited = txn.state is ROLLED_BACK
        txn.unpark()
        if self.on_way:
            return
        if txn.state is LEFT:
            self._release()
        elif waited:
            txn.roll_back(txn.reason)
        elif txn.open and txn.refused_work:
            self._roll_back_early()
        elif self.ask_later:
            self.ask_what_became()

    def enter(self, batch: Batch) -> None:
        """Write its row, with the first that it has in the store; else it must be undecided there."""
        rows, txn = batch.check_back(), self.txn
        if self.entered:
            rows.enlist(txn.id)
            return
        before, self.sent = self.sent, self.asked.over(self.terms)
        here = txn.id in rows.declared
        if not here or self.sent != before:  # a later message of the same batch may say how it is checked
            batch.registered.pop(txn.id, None)
            new = here or (before is None and not txn.registered)
            rows.declare(txn.id, self.declared(self.sent), new=new)

    def declared(self, terms: CheckTerms) -> Declared:
        """Its row in the store."""
        txn = self.txn
        left = txn.began + txn.timeout - time.monotonic()
        return Declared(
            owner=txn.control.named,
            declared=micros_of(txn.id) - POSTGRES_EPOCH * 1_000_000,
            timeout=now_micros() + int(left * 1e6),
            producer_group=self.group.encode(),
            immunity_ms=terms.immunity_ms,
            interval_ms=terms.interval_ms,
            most_checks=terms.most,
            connection=self.connection,
        )

    def was_entered(self) -> None:
        """Its row is durable."""
        self.txn.registered = True
        if self.row is RowState.ABSENT:
            self.row = RowState.UNDECIDED

    def stored(self, half_id: int, address: Address, terms: DeliveryTerms, *, own_row: bool) -> None:
        """A half is durable. ``own_row``: it has a row in ``pending``, and is not in the transaction's."""
        self.was_entered()
        txn = self.txn
        if txn.state is not CHECKABLE and (not txn.open or txn.refused_work):
            txn.dropped += 1
            return
        self.ids.append(half_id)
        if own_row:
            self.own_rows.add(half_id)
        txn.posts.append((address, b"", terms))
        txn.counted += POST_OCTETS
        memory = txn.instance.memory
        memory.transactions += POST_OCTETS
        if memory.transactions > memory.most:
            txn.registry.refuse_largest()

    def awaits_decision(self, link: PostLink, delivery: object, message: Octets) -> None:
        """As of a plain transaction; once it is left, or can only roll back, the sender waits for nothing."""
        txn = self.txn
        if txn.state is LEFT:
            link.left(delivery)
            return
        txn.awaits_decision(link, delivery, message)
        if txn.refused_work:
            txn.release_posts_soon()

    def lacks(self, refusal: Refusal) -> None:
        """The store has refused what the transaction must not commit without (T23)."""
        txn = self.txn
        if txn.open:
            txn.refuse(refusal)
        elif txn.error is None:
            txn.error = refusal

    def work_refused(self) -> None:
        """It can only roll back."""
        self.ids, self.own_rows = [], set()
        if not self.on_way:
            self._roll_back_early()

    def _roll_back_early(self) -> None:
        """Let the store know, before the discharge comes, that it can only roll back."""
        if self.row is RowState.UNDECIDED:
            self.row = RowState.ROLLING_BACK
            self.send(RollBackInStore(self))

    # -- decision

    def time_over(self) -> None:
        """From now on its producer group is asked (T14), and it may still be discharged."""
        if self.entered and not self.overdue:
            self.overdue = True
            self.txn.instance.commit.add(Overdue(self.txn.id, self.txn.owner))

    def leave(self) -> None:
        """It is this instance's no longer: the store has it undecided, or has nothing of it."""
        txn = self.txn
        txn.uncount()
        txn.registry.forget(txn)
        txn.conclude_posts(None)
        txn.posts = []
        txn.returns()  # what its client has retired may be the store's by now, or will come back
        if not self.on_way:
            self._release()
        txn.tell_askers()

    def _release(self) -> None:
        """Leave it to the checkers, once nothing of it is on its way."""
        txn = self.txn
        if txn.error is not None and self.row is RowState.UNDECIDED:
            self._roll_back_early()
            return
        retired, txn.retired = txn.retired, []
        if self.entered and not self.is_rolled_back:
            held_there = [entry for entry in retired if entry in self.held]
            txn.instance.commit.add(ReleaseToCheckers(txn.id, held_there, txn.owner, txn.control))
        for entry in retired:
            if self.is_rolled_back or entry not in self.held:
                txn.keep(entry)
        txn.returned()

    def write(self, batch: Batch) -> None:
        """The decision."""
        txn = self.txn
        if txn.state is COMMITTING:
            self._write_commit(batch)
        else:
            batch.check_back().decide(txn.id, b"rollback", txn.reason)

    def _write_commit(self, batch: Batch) -> None:
        """Its halves become entries, with new ids: above those of all that a holder of their groups has read."""
        txn, instance = self.txn, self.txn.instance
        next_id = instance.ids.next
        txn.half_ids = [next_id() for _ in txn.posts]
        txn.entries = [None] * len(txn.posts)
        batch.rows += txn.rows
        rows = batch.check_back()
        settled = None if txn.retired or self.held or self.left_out else self._settled()
        if settled is None:
            rows.decide(txn.id, b"commit", "", self.ids, txn.half_ids)
        else:
            rows.settle(txn.id, settled, {address.id for address, _, _ in txn.posts})
            if settled.halves:
                batch.queue_addresses.add(settled.address)
        if instance.peers:
            for (address, _, terms), entry_id in zip(txn.posts, txn.half_ids, strict=True):
                txn.registry.enqueue.wake(batch, address, entry_id, terms)
            for entry in txn.retired:
                if entry.outcome is not ACCEPTED:
                    entry.queue.wake(batch, (entry.id,))

    def _settled(self) -> Settled | None:
        """What its commit makes of its halves. None: the function must decide, as the queue of those in the
        transaction's row has other groups by now.
        """
        halves: list[int] = []
        entries: list[int] = []
        pended: list[int] = []
        pended_entries: list[int] = []
        of_row = group = 0
        for (address, _, _), half_id, entry_id in zip(self.txn.posts, self.ids, self.txn.half_ids, strict=True):
            queue = address.queue
            if half_id in self.own_rows:
                pended.append(half_id)
                pended_entries.append(entry_id)
            elif queue is None or address.fans:
                return None
            else:
                halves.append(half_id)
                entries.append(entry_id)
                of_row, group = address.id, queue.group_id
        return Settled(halves, entries, of_row, group, pended, pended_entries)

    def refused(self, error: StoreError) -> None:
        """The store has refused the decision."""
        txn = self.txn
        txn.entries = []
        if isinstance(error, AlreadyDecided):
            txn.registry.decisions.ask(txn.id, self._stands)
            return
        before, txn.state = txn.state, after(txn.state, TxnEvent.STORE_REFUSED)
        if before is COMMITTING and not isinstance(error, Locked):
            if isinstance(error, AddressGone):
                txn.addresses_changed()
            txn.error = why(error)
            txn.counts_as_failed = False
            txn.let_go()
            txn.reason = reasons.STORE_REFUSED
            txn.returns()
            txn.instance.commit.add(txn)
        else:  # the store has it undecided, or another is about to decide it
            self._end_unknown()

    # -- decisions of others

    def ask_what_became(self) -> None:
        """Another may have decided it, while deliveries that it has retired are with their links."""
        self.ask_later = bool(self.on_way)  # what the store says of those comes first
        if self.txn.open and self.held and not self.ask_later:
            self.txn.registry.decisions.ask(self.txn.id, self._learned)

    def _learned(self, found: Decision | Undecided | StoreError | None) -> None:
        if isinstance(found, StoreError):
            self.txn.instance.loop.call_later(_AGAIN_SECONDS, self.ask_what_became)
        elif self.on_way:
            self.ask_later = True
        elif self.txn.open and self.held and not isinstance(found, Undecided | None):
            self._give_up_held(found.decision == "commit", self.txn.returned)

    def _give_up_held(self, committed: bool, then: Callable[[], None]) -> None:
        """Another has decided it: in the store, what it held is applied, or waits for this instance to take it back."""
        txn = self.txn
        if not committed:
            txn.returns()
        retired, txn.retired = txn.retired, []
        held, self.held = self.held, {}
        for entry in retired:
            if entry not in held:
                txn.keep(entry)
            elif committed:
                deliveries.decided_elsewhere(entry)
        if committed or not held:
            then()
        else:
            txn.instance.commit.add(TakeBackRetirements(txn.id, list(held), txn.keep, then))

    def _stands(self, found: Decision | Undecided | StoreError | None) -> None:
        """It was decided already: by an operator, a checker, another connection of its producer group."""
        if found is None or isinstance(found, StoreError | Undecided):
            self._end_unknown()
            return
        txn = self.txn
        committed = found.decision == "commit"
        if txn.state is COMMITTING:
            txn.state = after(txn.state, TxnEvent.DURABLE if committed else TxnEvent.STORE_REFUSED)
        refusal = None
        if committed and txn.state is not COMMITTED:
            without = f", without what was refused: {txn.error}" if txn.error is not None else ""
            refusal = Refusal(Condition.ILLEGAL_STATE, f"the transaction was committed before{found.by}{without}")
        elif not committed and not txn.fail:
            text = f"the transaction was rolled back before{found.by}: {found.reason or 'discharged'}"
            refusal = Refusal(Condition.TXN_ROLLBACK, text)
        self._give_up_held(committed, lambda: self._end(refusal, committed))

    def _end(self, refusal: Refusal | None, committed: bool | None) -> None:
        """Answer the discharge, if there is one; nothing of it is left here to apply."""
        self.txn.registry.forget(self.txn)
        self.txn.uncount()
        self.txn.finish(committed, refusal)

    def _end_unknown(self) -> None:
        """The same where it is not known what became of it: the store has it undecided, or decided."""
        txn = self.txn
        # its own: what the connection goes on with does not wait with it
        txn.instance.commit.add(ReleaseToCheckers(txn.id, list(self.held), txn, txn.control))
        for entry in txn.retired:
            if entry not in self.held:
                txn.keep(entry)
        self._end(UNKNOWN, None)


# Units of the group commit that bring the work of such a transaction to the store, and say what becomes of it.


class HalfPost:
    """One message posted in a checkable transaction. ``link``: None if the post is answered already, as the transaction
    was a plain one; ``delivery``: None if its sender has settled it.
    """

    __slots__ = ("_address", "_delivery", "_id", "_in_store", "_link", "_message", "_own_row", "_terms", "owner")

    def __init__(
        self,
        link: PostLink | None,
        delivery: object,
        in_store: InStore,
        address: Address,
        message: Octets,
        terms: DeliveryTerms,
    ) -> None:
        self.owner = in_store.txn.owner
        self._link = link
        self._delivery = delivery
        self._in_store = in_store
        self._address = address
        self._message = message
        self._terms = terms
        self._id = 0
        self._own_row = False

    def write(self, batch: Batch) -> None:
        in_store, address, terms = self._in_store, self._address, self._terms
        txn = in_store.txn
        half_id = self._id = self._id or txn.instance.ids.next()
        batch.half(half_id, txn.id, address.id, self._message)
        left_out: Sequence[int] = ()
        if address.subscriptions:
            left_out = [queue.group_id for queue in address.subscriptions if queue.not_from is txn.owner]
            in_store.left_out = in_store.left_out or bool(left_out)
        in_store.enter(batch)
        rows = batch.check_back()
        simple = terms is PLAIN and not left_out and not address.fans and address.queue is not None
        self._own_row = not (simple and rows.pend_in_row(txn.id, half_id, address.id))
        if self._own_row:
            rows.pend(txn.id, half_id, address.id, terms, left_out)

    def durable(self) -> None:
        in_store, link = self._in_store, self._link
        in_store.stored(self._id, self._address, self._terms, own_row=self._own_row)
        if link is not None and self._delivery is not None:
            link.stored_in(self._delivery, len(self._message), in_store.txn)
            if link.second:
                in_store.awaits_decision(link, self._delivery, self._message)
        in_store.answered()

    def refused(self, error: StoreError) -> None:
        in_store, link = self._in_store, self._link
        refusal = Refusal(Condition.INTERNAL_ERROR, "the store could not take the message")
        if isinstance(error, AddressGone):
            refusal = resource_deleted(self._address)
            in_store.txn.registry.directory.removed(self._address)
        elif isinstance(error, AlreadyDecided):
            refusal = Refusal(Condition.TXN_ROLLBACK, "the transaction is decided already, and not by this client")
        if link is None or self._delivery is None or not link.continues:
            in_store.lacks(refusal)
        if link is not None and self._delivery is not None:
            link.not_stored_in(self._delivery, len(self._message), in_store.txn, refusal)
        in_store.answered()


class Hold:
    """A delivery is retired, or another outcome replaces the one before: the transaction holds its entry, whatever
    becomes of its client and of this instance, and its decision applies the outcome (H20).
    """

    __slots__ = ("_entry", "_in_store", "owner")

    def __init__(self, in_store: InStore, entry: Entry) -> None:
        self.owner = in_store.txn.owner
        self._in_store = in_store
        self._entry = entry

    def write(self, batch: Batch) -> None:
        in_store, entry = self._in_store, self._entry
        rows = batch.check_back()
        first = entry not in in_store.held
        retired = deliveries.retired(entry)
        rows.retire(in_store.txn.id, entry.queue.group_id, entry.id, retired, first=first)
        batch.octets += len(retired.annotations)
        in_store.enter(batch)

    def durable(self) -> None:
        in_store, entry = self._in_store, self._entry
        in_store.was_entered()
        in_store.held[entry] = None
        if in_store.holding.pop(entry) and not in_store.txn.refused_work:
            in_store.hold(entry)
        elif entry.link is not None and entry.outcome is not None and not entry.peer_settled:
            entry.link.enlisted(entry, in_store.txn.id, entry.outcome)
        in_store.answered()

    def refused(self, error: StoreError) -> None:
        in_store = self._in_store
        del in_store.holding[self._entry]
        text = "the store could not hold a delivery that was retired in it"
        refusal = Refusal(Condition.INTERNAL_ERROR, text)
        if isinstance(error, AlreadyDecided):
            refusal = Refusal(Condition.TXN_ROLLBACK, "the transaction is decided already, and not by this client")
        elif isinstance(error, NotLeased):
            text = "a delivery retired in it is no longer this connection's: it will be delivered again, or was removed"
            refusal = Refusal(Condition.TXN_ROLLBACK, text)
        in_store.lacks(refusal)
        in_store.answered()


class RollBackInStore:
    """A transaction that can only roll back is rolled back before its discharge comes: were the service killed before,
    a checker could commit what is left of it (T22, T23).
    """

    __slots__ = ("_in_store", "owner")

    def __init__(self, in_store: InStore) -> None:
        self.owner = in_store.txn.owner
        self._in_store = in_store

    def write(self, batch: Batch) -> None:
        txn = self._in_store.txn
        assert txn.error is not None
        batch.check_back().decide(txn.id, b"rollback", f"{reasons.ROLLBACK_ONLY}: {txn.error.condition}")

    def durable(self) -> None:
        self._in_store.row = RowState.ROLLED_BACK
        self._in_store.answered()

    def refused(self, error: StoreError) -> None:
        """Its discharge says what stands, or tries again."""
        if not isinstance(error, AlreadyDecided):
            log.error("a transaction that can only roll back is undecided in the store", error=str(error))
        self._in_store.answered()


class Overdue:
    """The time of an undecided transaction is over (H7). ``owner``: what waits with it where others hold the
    transaction: its connection.
    """

    __slots__ = ("_txn_id", "owner")

    def __init__(self, txn_id: bytes, owner: object) -> None:
        self._txn_id = txn_id
        self.owner = owner

    def write(self, batch: Batch) -> None:
        batch.check_back().overdue.append(self._txn_id)

    def durable(self) -> None:
        pass

    def refused(self, error: StoreError) -> None:
        log.error("an undecided transaction is not checked before its control link is gone", error=str(error))


class ReleaseToCheckers:
    """The control link of an undecided transaction is gone (H7), and what it has retired is the store's alone.
    ``held``: what it holds there. ``owner``: as of :class:`Overdue`.
    """

    __slots__ = ("_control", "_held", "_txn_id", "owner")

    def __init__(self, txn_id: bytes, held: Sequence[Entry], owner: object, control: Control) -> None:
        self._txn_id = txn_id
        self._held = held
        self._control = control
        self.owner = owner

    def write(self, batch: Batch) -> None:
        rows = batch.check_back()
        rows.orphaned[self._txn_id] = self._control.number
        if self._held:
            rows.let_go.append(self._txn_id)

    def durable(self) -> None:
        for entry in self._held:
            deliveries.left(entry)

    def refused(self, error: StoreError) -> None:
        log.error("an undecided transaction is not checked before this instance ends", error=str(error))


class TakeBackRetirements:
    """Another has rolled the transaction back: what its consumers have retired is this instance's again. ``then`` is
    called when it is, or cannot be.
    """

    __slots__ = ("_entries", "_keep", "_then", "_txn_id")

    owner: object = None

    def __init__(
        self, txn_id: bytes, entries: Sequence[Entry], keep: Callable[[Entry], None], then: Callable[[], None]
    ) -> None:
        """``keep``: makes the delivery what it was before it was retired."""
        self._txn_id = txn_id
        self._entries = entries
        self._keep = keep
        self._then = then

    def write(self, batch: Batch) -> None:
        batch.check_back().owed.append(self._txn_id)

    def durable(self) -> None:
        for entry in self._entries:
            self._keep(entry)
        self._then()

    def refused(self, error: StoreError) -> None:
        log.error("what was retired comes back when this instance ends", error=str(error), entries=len(self._entries))
        self._then()
