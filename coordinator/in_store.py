"""A checkable transaction keeps its messages and retirements in the store while it is undecided (rules H1 to H7, H13,
H20). Its messages are stored before the posts are answered, and stay there undecided when the client disconnects; so do
the entries that it has retired. The store decides, for every client alike, and the first decision wins: a discharge may
be too late.

As long as the transaction is open here, its retirements are in memory, too, like those of a plain one: links keep their
deliveries, and those that a rollback leaves to their consumers (T27) stay with them. A NOTIFY reports a decision that
another client or instance makes.
"""

from __future__ import annotations

import time
from enum import Enum
from typing import TYPE_CHECKING

import structlog

from coordinator.address.addresses import shown
from coordinator.address.nodes import resource_deleted
from coordinator.checkable import NO_OWN_TERMS, producer_group, read_check_terms
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
    from coordinator.traces import PostSpan
    from coordinator.transaction import Transaction
    from store.codec.message import Facts
    from store.commit.batch import Batch, Unit
    from store.commit.terms import DeliveryTerms
    from store.decisions import Decision
    from store.spool import Octets

log = structlog.get_logger(__name__)

#: the wait before the store is queried again for another's decision, after an error
_AGAIN_SECONDS = 1.0
#: The store has not answered; the client can query the decision later.
UNKNOWN = Refusal(Condition.INTERNAL_ERROR, "the store cannot say now what became of it: discharge it again")


def make_checkable(txn: Transaction, group: str, terms: CheckTerms, own_terms: OwnCheckTerms = NO_OWN_TERMS) -> InStore:
    """Make a transaction checkable, as its control link, its connection or a message in it names a producer group (H1,
    H2), and send its posts and retirements so far to the store at once.
    """
    txn.state = after(txn.state, TxnEvent.MADE_CHECKABLE)
    posted, txn.posts = txn.posts, []
    in_store = txn.in_store = InStore(txn, group, terms, own_terms)
    held = sum(POST_OCTETS + (len(message) if isinstance(message, bytes) else 0) for _, message, _ in posted)
    txn.counted -= held
    txn.instance.memory.transactions -= held
    txn.spooled = 0
    for address, message, its_terms in posted:
        in_store.place(address)
        in_store.send(HalfPost(None, None, in_store, address, message, its_terms, None), len(message))
    for entry in txn.retired:
        in_store.hold(entry)
    return in_store


def apply_producer_group(txn: Transaction | None, facts: Facts, address: Address, terms: CheckTerms) -> None:
    """Make the transaction of a message checkable if the message names a producer group, or its address is of kind
    transaction (H1, H2); apply the check terms that the message names (H7). ``txn``: None outside transactions, where
    neither has an effect.

    :raises Refusal: the message may not be posted so.
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
    own_terms = read_check_terms(dict(facts.checks), "the application property ")
    if not in_store.entered:
        in_store.own_terms = own_terms.before(in_store.own_terms)


class RowState(Enum):
    """The state of a transaction's row in the store, as far as this instance knows."""

    ABSENT = "absent"
    UNDECIDED = "undecided"
    #: the transaction can only roll back: a rollback was sent before the discharge came
    ROLLING_BACK = "rolling-back"
    #: that rollback is durable
    ROLLED_BACK = "rolled-back"


class InStore:
    """The part of a checkable transaction that is in the store: its halves, its retirements and its row. ``group``: the
    producer group; ``terms``: how it is checked, at first by the settings; ``own_terms``: the client's own check terms.
    """

    __slots__ = (
        "connection", "group", "held", "holding", "ids", "left_out", "on_way", "overdue", "own_rows", "own_terms",
        "placed", "query_later", "row", "sent", "terms", "txn",
    )  # fmt: skip

    def __init__(self, txn: Transaction, group: str, terms: CheckTerms, own_terms: OwnCheckTerms) -> None:
        self.txn = txn
        self.group = group
        self.terms = terms
        self.own_terms = own_terms
        #: whether its first message has set the address's check terms
        self.placed = False
        #: the number of the connection that declared it
        self.connection = txn.control.number
        #: ids of its halves in the store, in the order of the transaction's posts
        self.ids: list[int] = []
        #: ids of halves with rows of their own in ``pending``; all others are in the transaction's row
        self.own_rows: set[int] = set()
        #: whether some half is left out of a consumer group
        self.left_out = False
        #: how many units are on their way to the store: no decision is written before they are answered
        self.on_way = 0
        #: a NOTIFY of a decision came meanwhile: query the decision after those units
        self.query_later = False
        #: the check terms in the row sent to the store; None: no row was sent
        self.sent: CheckTerms | None = None
        #: the state of its row in the store
        self.row = RowState.ABSENT
        #: whether its timeout was reported to the store
        self.overdue = False
        #: retired deliveries whose entries the transaction holds in the store
        self.held: dict[Entry, None] = {}
        #: retired deliveries on their way there, each with whether another outcome came meanwhile
        self.holding: dict[Entry, bool] = {}

    @property
    def entered(self) -> bool:
        """Whether its row is in the store."""
        return self.row is not RowState.ABSENT

    @property
    def is_empty(self) -> bool:
        """Whether the store has no row of it, and no unit is on its way there."""
        return self.row is RowState.ABSENT and not self.on_way

    @property
    def is_rolled_back(self) -> bool:
        """Whether the store has rolled it back before its discharge came."""
        return self.row is RowState.ROLLED_BACK

    # -- work

    def post(
        self,
        link: PostLink,
        delivery: object,
        address: Address,
        message: Octets,
        terms: DeliveryTerms,
        span: PostSpan | None,
    ) -> None:
        """Store a posted message; it is answered once it is durable (H3). ``delivery``: None if its sender has settled
        it. ``span``: ends then; None: it is not sampled.

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
            if span is not None:
                span.end(txn.error)
            return
        self.place(address)
        unit = HalfPost(link, delivery, self, address, message, terms, span)
        if delivery is None:
            self.send(unit, size)
        else:
            link.waits(delivery, size)
            self.send(unit, 2 * size)

    def place(self, address: Address) -> None:
        """Apply the check terms of the address of the first message; the client's own terms override them (H7). They
        have no effect where an earlier retirement has already written the transaction's row.
        """
        if not self.placed:
            self.placed = True
            self.terms = address.check_terms.over(self.terms)

    def retire(self, entry: Entry, outcome: Outcome, peer_settled: bool) -> None:
        """Retire a delivery; once that is durable, the transaction holds the entry until its decision (H20)."""
        txn = self.txn
        before = entry.outcome if entry.txn is txn else None
        if before is not None and as_said(before) == outcome:
            entry.peer_settled = entry.peer_settled or peer_settled
            return
        txn.retire(entry, outcome, peer_settled)
        if not txn.refused_work:
            self.hold(entry)

    def hold(self, entry: Entry) -> None:
        """Write the retirement to the store. While it is on its way, a later outcome waits."""
        if entry in self.holding:
            self.holding[entry] = True
            return
        self.holding[entry] = False
        self.send(Hold(self, entry), held_octets(entry.outcome) if entry.outcome is not None else 0)

    def send(self, unit: Unit, octets: int = 0) -> None:
        """Add a unit to the group commit; the decision waits until the unit calls :meth:`answered`."""
        self.on_way += 1
        self.txn.parked += 1
        self.txn.instance.commit.add(unit, octets)

    def answered(self) -> None:
        """Count a sent unit as durable or refused; after the last, continue what waited for it."""
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
        elif self.query_later:
            self.query_decision()

    def enter(self, batch: Batch) -> None:
        """Write the transaction's row with its first half or retirement; later, require that the row is undecided."""
        rows, txn = batch.check_back(), self.txn
        if self.entered:
            rows.enlist(txn.id)
            return
        before, self.sent = self.sent, self.own_terms.over(self.terms)
        here = txn.id in rows.declared
        if not here or self.sent != before:  # a later message of the same batch may set check terms
            batch.registered.pop(txn.id, None)
            new = here or (before is None and not txn.registered)
            rows.declare(txn.id, self.declared(self.sent), new=new)

    def declared(self, terms: CheckTerms) -> Declared:
        """Return the transaction's row for the store."""
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
        """Record that the transaction's row is durable."""
        self.txn.registered = True
        if self.row is RowState.ABSENT:
            self.row = RowState.UNDECIDED

    def stored(self, half_id: int, address: Address, terms: DeliveryTerms, *, own_row: bool) -> None:
        """Record a durable half. ``own_row``: it has a row in ``pending``, and is not in the transaction's row."""
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
        """Keep a post's sender waiting for the decision, unless the transaction is left or can only roll back."""
        txn = self.txn
        if txn.state is LEFT:
            link.left(delivery)
            return
        txn.awaits_decision(link, delivery, message)
        if txn.refused_work:
            txn.release_posts_soon()

    def lacks(self, refusal: Refusal) -> None:
        """Make the transaction rollback-only, as the store has refused a required part of its work (T23)."""
        txn = self.txn
        if txn.open:
            txn.refuse(refusal)
        elif txn.error is None:
            txn.error = refusal

    def work_refused(self) -> None:
        """Roll back early in the store, as the transaction can only roll back."""
        self.ids, self.own_rows = [], set()
        if not self.on_way:
            self._roll_back_early()

    def _roll_back_early(self) -> None:
        """Write the rollback of an undecided row before the discharge comes."""
        if self.row is RowState.UNDECIDED:
            self.row = RowState.ROLLING_BACK
            self.send(RollBackInStore(self))

    # -- decision

    def time_over(self) -> None:
        """Report the timeout to the store: checkers get the transaction now (T14); a discharge is still valid."""
        if self.entered and not self.overdue:
            self.overdue = True
            self.txn.instance.commit.add(Overdue(self.txn.id, self.txn.owner))

    def leave(self) -> None:
        """Forget the transaction here, as its client has left it: the store has it undecided, or has no row of it."""
        txn = self.txn
        txn.uncount()
        txn.registry.forget(txn)
        txn.conclude_posts(None)
        txn.posts = []
        txn.returns()  # retired entries may be held in the store by now, or will be returned
        if not self.on_way:
            self._release()
        txn.answer_callers()

    def _release(self) -> None:
        """Release the transaction to the checkers, once no unit of it is on its way."""
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
        txn.conclude_acquired(stays=False)
        txn.returned()

    def write(self, batch: Batch) -> None:
        """Write the decision."""
        txn = self.txn
        if txn.state is COMMITTING:
            self._write_commit(batch)
        else:
            batch.check_back().decide(txn.id, b"rollback", txn.reason)

    def _write_commit(self, batch: Batch) -> None:
        """Turn its halves into entries with new ids, above all ids that a holder of their groups has read."""
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
                if entry.outcome is not ACCEPTED and entry.queue.is_shared:
                    entry.queue.wake(batch, (entry.id,))

    def _settled(self) -> Settled | None:
        """Return the entries that the commit makes of its halves. None: the SQL function must decide, as the queue of
        the halves in the transaction's row has other groups by now.
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
        """Handle the store's refusal of the decision: query an earlier decision, roll back, or answer "unknown"."""
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
            txn.drop_work()
            txn.reason = reasons.STORE_REFUSED
            txn.returns()
            txn.instance.commit.add(txn)
        else:  # the row is undecided, or another client is about to decide it
            self._end_unknown()

    # -- decisions of others

    def query_decision(self) -> None:
        """Query the decision: another may have decided while retired deliveries are still with their links."""
        self.query_later = bool(self.on_way)  # wait for the store's answers to those units
        if self.txn.open and self.held and not self.query_later:
            self.txn.registry.decisions.ask(self.txn.id, self._learned)

    def _learned(self, found: Decision | Undecided | StoreError | None) -> None:
        if isinstance(found, StoreError):
            self.txn.instance.loop.call_later(_AGAIN_SECONDS, self.query_decision)
        elif self.on_way:
            self.query_later = True
        elif self.txn.open and self.held and not isinstance(found, Undecided | None):
            self._give_up_held(found.decision == "commit", self.txn.returned)

    def _give_up_held(self, committed: bool, then: Callable[[], None]) -> None:
        """Release held entries after another's decision: applied by its commit, taken back after its rollback."""
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
        """Answer the discharge with an earlier decision: by an operator, a checker or a connection of its group."""
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
        """Forget the transaction and answer its discharge, if there is one; no work is left to apply here."""
        self.txn.registry.forget(self.txn)
        self.txn.uncount()
        self.txn.finish(committed, refusal)

    def _end_unknown(self) -> None:
        """End a transaction whose decision is unknown: the store has it undecided, or decided."""
        txn = self.txn
        # its own owner: later work of the connection does not wait for this unit
        txn.instance.commit.add(ReleaseToCheckers(txn.id, list(self.held), txn, txn.control))
        for entry in txn.retired:
            if entry not in self.held:
                txn.keep(entry)
        self._end(UNKNOWN, None)


# Units of the group commit that write the work of a checkable transaction to the store, and report the results.


class HalfPost:
    """Unit: writes one message posted in a checkable transaction. ``link``: None if the post was answered already,
    while the transaction was plain; ``delivery``: None if its sender has settled it.
    """

    __slots__ = (
        "_address", "_delivery", "_id", "_in_store", "_link", "_message", "_own_row", "_span", "_terms", "owner",
    )  # fmt: skip

    def __init__(
        self,
        link: PostLink | None,
        delivery: object,
        in_store: InStore,
        address: Address,
        message: Octets,
        terms: DeliveryTerms,
        span: PostSpan | None,
    ) -> None:
        self.owner = in_store.txn.owner
        self._span = span
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
        if self._span is not None:
            self._span.batch = batch
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
        if self._span is not None:
            self._span.end()
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
        if self._span is not None:
            self._span.end(refusal)
        if link is None or self._delivery is None or not link.continues:
            in_store.lacks(refusal)
        if link is not None and self._delivery is not None:
            link.not_stored_in(self._delivery, len(self._message), in_store.txn, refusal)
        in_store.answered()


class Hold:
    """Unit: holds the entry of a retired delivery for the transaction, or replaces its outcome. The hold outlives the
    client and this instance; the decision applies the outcome (H20).
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
    """Unit: rolls back a rollback-only transaction before its discharge comes: if the service were killed before that,
    a checker could commit the rest of it (T22, T23).
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
        """Log an error; the discharge reports the earlier decision, or retries the rollback."""
        if not isinstance(error, AlreadyDecided):
            log.error("a transaction that can only roll back is undecided in the store", error=str(error))
        self._in_store.answered()


class Overdue:
    """Unit: marks an undecided transaction as timed out (H7). ``owner``: its connection, whose units wait with this one
    while others hold the transaction.
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
    """Unit: releases an undecided transaction to the checkers, as its control link is gone (H7); entries that it holds
    are in the store alone from then on. ``held``: these entries. ``owner``: see :class:`Overdue`.
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
    """Unit: leases retired entries to this instance again, after another has rolled the transaction back. ``then`` is
    called when that is durable or refused.
    """

    __slots__ = ("_entries", "_keep", "_then", "_txn_id")

    owner: object = None

    def __init__(
        self, txn_id: bytes, entries: Sequence[Entry], keep: Callable[[Entry], None], then: Callable[[], None]
    ) -> None:
        """``keep`` restores the delivery to its state before it was retired."""
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
