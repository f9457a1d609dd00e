"""Retirement applies the delivery states that consumers send, plain or transactional, apart from the wire (part 4,
section 4.4; rules T26 to T30, T34, P11).

The link of a consumer passes on the states that it receives. An outcome is applied when it is durable, alone or with
the decision of its transaction; until then the delivery is enlisted, or its outcome is on its way to the store.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

from coordinator.errors import Condition, Refusal
from coordinator.group import deliveries
from coordinator.outcomes import ACCEPTED, FAILED, LOST, RELEASED, RETURNED, UNTRANSFERRED, Kind
from coordinator.transitions import DECIDED, DELIVERY, LINK_LOST, OUTCOME, ROLLED_BACK, SENT
from store.errors import NotLeased
from store.tables import PASSED_OVER

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from coordinator.address.directory import Maker
    from coordinator.group.entries import Entry
    from coordinator.instance import Instance
    from coordinator.outcomes import Outcome
    from coordinator.registry import Registry
    from coordinator.transaction import Transaction
    from coordinator.transitions import DeliveryEvent
    from store.commit.batch import Batch
    from store.errors import StoreError


class Departure(Enum):
    """The ways in which a link ends."""

    #: its connection is cut, or its client has been silent for too long
    LOST = "lost"
    #: its client detaches it, or ends its session or its connection
    LEFT = "left"
    #: the service ends it, whatever the reason
    ENDED = "ended"


class Retiring(Protocol):
    """The link of a consumer, with the facts that the rules use."""

    default_outcome: Outcome | None
    departure: Departure
    #: whether its client has decided any delivery outside transactions, other than by releasing it
    has_decided: bool
    #: whether its client has retired any delivery in a transaction
    transactional: bool

    def refuse(self, refusal: Refusal) -> None:
        """Detach the link with the refusal."""


class Retirement:
    """Applies delivery states for all consumers of an instance."""

    def __init__(self, registry: Registry, settlements: Settlements) -> None:
        self._registry = registry
        self._settlements = settlements

    def settle(self, link: Retiring, entry: Entry, outcome: Outcome | None, settled: bool) -> None:
        """Apply a plain state. ``outcome``: None if the state has none; ``settled``: the peer has settled the
        delivery.
        """
        txn = entry.txn
        if txn is not None:
            if entry.state is SENT and outcome is not None and not txn.discharged:
                _enlist(link, txn, entry, outcome, settled)  # it was acquired in it, so its outcome is of it, too (T33)
            else:
                # enlisted: before the discharge, a plain state can only settle the delivery
                entry.peer_settled = entry.peer_settled or settled
        elif outcome is not None or settled:
            outcome = outcome or link.default_outcome or RELEASED
            link.has_decided = link.has_decided or outcome.kind is not Kind.RELEASED
            self._settlements.add(entry, outcome)

    def retire(
        self, link: Retiring, owner: Maker, entry: Entry, txn_id: bytes, outcome: Outcome | None, settled: bool
    ) -> None:
        """Apply a transactional state. ``owner``: the link's connection; ``outcome``: None if the state names none."""
        txn = self._registry.for_work(txn_id, owner)
        enlisted = entry.txn
        if txn is None:
            if enlisted is None:
                known = entry.last_txn == txn_id and settled
                if settled:  # T28
                    self._settlements.add(entry, link.default_outcome or FAILED)
            else:
                known = enlisted.id == txn_id and (settled or enlisted.state is not ROLLED_BACK)
                if known:
                    entry.peer_settled = entry.peer_settled or settled
            if not known:  # T30; else the delivery is part of it, or was, and is settled (T34)
                link.refuse(self._registry.unknown(txn_id, owner.user_id))
        elif enlisted is not None and enlisted is not txn:  # T29
            entry.peer_settled = entry.peer_settled or settled
            text = "a delivery was retired in one transaction and then in another, both undecided"
            refusal = Refusal(Condition.TXN_ROLLBACK, text)
            txn.refuse(refusal)  # a checkable one would stay undecided, and could be committed without the retirement
            txn.control.refuse(refusal)
        elif entry.state is not DECIDED:  # else it is settled outside transactions already
            _enlist(link, txn, entry, outcome or link.default_outcome or FAILED, settled)

    def link_ended(
        self, link: Retiring, entries: Iterable[Entry], *, unsent: Collection[Entry] = (), dropped: bool
    ) -> None:
        """Return the undecided deliveries of an ended link to their queue (D5); enlisted ones wait for their
        transaction. ``entries``: its deliveries, in the order of sending. ``unsent``: those never transferred.
        ``dropped``: their group or address was removed, so that they are only forgotten.
        """
        if dropped:
            for entry in entries:
                if entry.met(LINK_LOST):
                    entry.queue.done_with(entry)
            return
        first, others = _undecided(link)
        outcome, waits = first, False
        for entry in entries:
            came = entry.state is SENT and entry not in unsent
            if came:
                waits = waits or outcome is LOST
            self._settlements.add(entry, outcome if came else UNTRANSFERRED, LINK_LOST, behind_others=waits)
            if came:
                outcome = others


def _enlist(link: Retiring, txn: Transaction, entry: Entry, outcome: Outcome, settled: bool) -> None:
    link.transactional = True
    if entry.trace is not None:
        entry.trace.came(outcome, txn)
    if txn.in_store is not None:
        txn.in_store.retire(entry, outcome, settled)
    else:
        txn.retire(entry, outcome, settled)


def _undecided(link: Retiring) -> tuple[Outcome, Outcome]:
    """Return the outcome of the first of a link's undecided deliveries, and that of all others (D5: the table in
    docs/reference).

    A client that detaches has worked on the first at most, and may not have read the others: if all counted as failed,
    as the default-outcome that Qpid JMS names for each source requests, messages that no application has seen would
    become dead letters. A client that has decided others before may be working on no message, such as one that receives
    a message, accepts it and detaches. If it uses transactions, their rollbacks have counted the failures.
    """
    if link.departure is Departure.LOST:
        return LOST, LOST
    named = link.default_outcome
    if named is not None and not named.delivery_failed and named.kind in (Kind.RELEASED, Kind.MODIFIED):
        return RELEASED, RELEASED  # the default outcome of the source (part 3, section 3.5.3)
    fails = link.departure is Departure.LEFT and not (link.has_decided or link.transactional)
    return (LOST if fails and (named is None or named.delivery_failed) else RETURNED), RETURNED


# Outcomes of deliveries outside transactions are gathered for a turn, and become few units of the group commit.

#: the most outcomes of one unit
MOST_OF_A_UNIT = 500


class Settlement:
    """Unit: writes outcomes of one turn, of one connection or several; accepted ones share one op, with ``reason``."""

    __slots__ = ("_entries", "_instance", "_reason", "owner")

    def __init__(self, instance: Instance, entries: list[Entry], owner: object = None, reason: str = "") -> None:
        self.owner = owner
        self._instance = instance
        self._entries = entries
        self._reason = reason

    def write(self, batch: Batch) -> None:
        uuids = self._instance.uuids
        accepted = deliveries.write(batch, self._entries, uuids, bytes(16))
        if accepted:
            batch.op(uuids.next(), b"accept", reason=self._reason, covers=accepted)

    def durable(self) -> None:
        for entry in self._entries:
            link = entry.link
            returns = entry.outcome is not ACCEPTED
            try:
                deliveries.settle(entry)
                if returns:
                    entry.queue.returning -= 1
                    entry.queue.touch()
            except Exception:  # noqa: BLE001 - a defect costs the connection of this entry only
                self._instance.loop.contain(link)

    def refused(self, error: StoreError) -> None:
        if len(self._entries) > 1:  # one of them is refused: retry each alone
            for each in self._entries:
                self._instance.commit.add(Settlement(self._instance, [each], self.owner, self._reason))
            return
        entry = self._entries[0]
        deliveries.end_span(entry)
        if entry.outcome is not ACCEPTED:
            entry.queue.returning -= 1
        if isinstance(error, NotLeased):
            text = "the delivery was taken back before its outcome came; it will be delivered again"
        else:
            text = "the store could not apply the outcome; the message will be delivered again"
        if entry.link is not None:
            entry.link.unretired(entry, text)
            entry.outcome = RETURNED
        assert entry.outcome is not None
        entry.attempts = deliveries.attempts_after(entry, entry.outcome)
        # refused for another reason: the entry is still leased to this instance
        entry.queue.give_back(entry, leased=not isinstance(error, NotLeased))


class Settlements:
    """Gathers the outcomes of a turn for the group commit."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self.gathered: list[Entry] = []
        self.passed_over: list[Entry] = []

    def pass_over(self, entry: Entry) -> None:
        """Accept an entry that no consumer got, as the selector of its subscription does not match it."""
        entry.state = DELIVERY[entry.state, OUTCOME]
        entry.outcome = ACCEPTED
        self.passed_over.append(entry)

    def add(
        self, entry: Entry, outcome: Outcome, event: DeliveryEvent = OUTCOME, *, behind_others: bool = False
    ) -> None:
        """Add an outcome outside transactions, applied with the others of this turn. It has no effect if another one is
        on its way to the store, or a transaction has retired the delivery. ``behind_others``: an outcome that changes
        nothing in the store waits for those that do, to keep the order.
        """
        before = entry.state
        after = entry.state = DELIVERY[before, event]
        if after is not DECIDED or before is DECIDED:
            return
        entry.outcome = outcome
        if entry.trace is not None:
            entry.trace.came(outcome, None)
        if outcome is ACCEPTED:
            self.gathered.append(entry)
        elif outcome.kind is Kind.RELEASED and not behind_others:  # nothing changes in the store
            deliveries.settle(entry)
        else:
            entry.queue.expect_return(entry)
            self.gathered.append(entry)

    def hand_over(self) -> None:
        """Add the gathered outcomes to the group commit: few as one unit, many by connection."""
        gathered, self.gathered = self.gathered, []
        passed_over, self.passed_over = self.passed_over, []
        commit = self._instance.commit
        self._hand_over(passed_over, None, PASSED_OVER)
        if len(gathered) <= MOST_OF_A_UNIT and not commit.crowded:
            self._hand_over(gathered, None)
            return
        by_owner: dict[object, list[Entry]] = {}
        for entry in gathered:
            link = entry.link
            by_owner.setdefault(None if link is None else link.connection, []).append(entry)
        for owner, entries in by_owner.items():
            self._hand_over(entries, owner)

    def _hand_over(self, entries: list[Entry], owner: object, reason: str = "") -> None:
        for start in range(0, len(entries), MOST_OF_A_UNIT):
            some = entries[start : start + MOST_OF_A_UNIT]
            self._instance.commit.add(Settlement(self._instance, some, owner, reason))
