"""The lives of transactions and deliveries (``coordinator/transitions.py``): what holds of every walk through the
tables; and each cell, reached and left by the rules themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.bounds import Bounds
from coordinator.checkable import CheckTerms, OwnCheckTerms
from coordinator.errors import Condition, Refusal
from coordinator.group.entries import Entry
from coordinator.in_store import apply_producer_group
from coordinator.instance import Instance
from coordinator.memory import Account
from coordinator.outcomes import ACCEPTED, FAILED, Outcome
from coordinator.retirement import Departure, Retirement, Settlement, Settlements
from coordinator.settings import TransactionSettings
from coordinator.transaction import Transaction
from coordinator.transitions import (
    DECIDED,
    DELIVERY,
    ENLISTED,
    GONE,
    HELD,
    SENT,
    TRANSACTION,
    DeliveryEvent,
    DeliveryState,
    TxnEvent,
    TxnState,
    after,
)
from store.codec.message import Facts
from store.commit.terms import PLAIN
from store.errors import Locked, NotLeased, StoreFault
from tests.fix_queue import Consumer, queue_of
from tests.tables import all_cases

ENDS = {TxnState.COMMITTED, TxnState.ROLLED_BACK}
#: decided by the store alone
CHECKED = {TxnState.CHECKABLE, TxnState.WAITING_CHECKABLE}
#: where this instance has nothing more to do
OVER = {*ENDS, TxnState.LEFT}
WAITING = {TxnState.WAITING, TxnState.WAITING_REFUSED}


@pytest.mark.rule("T11")
def test_what_is_decided_stays_so() -> None:
    """Part 4, section 4.3: no event leads out of a decision."""
    leads_to = [(state, target) for (state, _), target in TRANSACTION.items() if state in ENDS]
    assert leads_to
    assert all(target is state for state, target in leads_to)
    assert GONE not in {state for state, _ in DELIVERY}


@pytest.mark.rule("T22", "T23")
def test_what_can_only_roll_back_never_commits() -> None:
    """Part 4, section 4.4.4."""
    reached = {TxnState.ROLLBACK_ONLY}
    for _ in TxnState:
        reached |= {target for (state, _), target in TRANSACTION.items() if state in reached}
    assert reached == {TxnState.ROLLBACK_ONLY, TxnState.WAITING_REFUSED, TxnState.ROLLED_BACK}


@pytest.mark.rule("T8")
def test_committed_is_what_the_store_says() -> None:
    """Part 4, section 4.3: only the store's word makes a commit."""
    ways = {key for key, target in TRANSACTION.items() if target is TxnState.COMMITTED}
    assert ways == {(TxnState.COMMITTING, TxnEvent.DURABLE)}


@pytest.mark.rule("T13", "T14")
@all_cases("event", [TxnEvent.CONTROL_LOST, TxnEvent.TIMEOUT])
@all_cases("state", [state for state in TxnState if state is not TxnState.COMMITTED])
def test_a_lost_link_and_a_timeout_may_come_at_any_time(state: TxnState, event: TxnEvent) -> None:
    """Undecided: rolled back; on its way to the store: left alone; checkable: stays undecided."""
    becomes = state
    if state in (TxnState.ACTIVE, TxnState.ROLLBACK_ONLY, *WAITING):
        becomes = TxnState.ROLLED_BACK
    elif state in CHECKED and event is TxnEvent.CONTROL_LOST:
        becomes = TxnState.LEFT
    assert after(state, event) is becomes


@pytest.mark.rule("H7", "H13", "H20")
def test_what_is_checkable_is_rolled_back_by_its_discharge_alone() -> None:
    """Or as it can only roll back: no event leads from there to a rollback otherwise."""
    ways = {event for (state, event), target in TRANSACTION.items() if state in CHECKED and target in ENDS}
    assert ways == {TxnEvent.DISCHARGE_FAIL}


@given(st.lists(st.sampled_from(TxnEvent), max_size=30))
def test_any_walk(events: list[TxnEvent]) -> None:
    """Events that a state does not allow are refused, and change nothing; every state can still be ended."""
    state = TxnState.ACTIVE
    for event in events:
        try:
            state = after(state, event)
        except KeyError:
            continue
    for event in (TxnEvent.DISCHARGE, TxnEvent.DURABLE):
        if (state, event) in TRANSACTION:
            state = after(state, event)
    assert state in OVER


# -- a transaction, driven through each cell

REFUSAL = Refusal(Condition.INTERNAL_ERROR, "a post is refused")


POST: Any = (SimpleNamespace(name="a", groups=1, check_terms=OwnCheckTerms()), b"m", PLAIN)


class Host:
    """As much as a transaction asks of the registry, and of its control link."""

    def __init__(self) -> None:
        self.units: list[object] = []
        instance: Any = SimpleNamespace(
            commit=SimpleNamespace(add=lambda unit, *_: self.units.append(unit)),
            transaction_limits=TransactionSettings(),
            memory=Account(Bounds(), 1 << 30),
            loop=SimpleNamespace(call_later=lambda *_: None),
            disk_low=False,
        )
        self.instance: Instance = instance
        self.directory: Any = None
        self.decisions: Any = None
        self.settlements = Settlements(self.instance)
        self.enqueue: Any = SimpleNamespace(unposted=lambda entry: None, posted=lambda *_: None)

    def began(self, txn: Transaction) -> None:
        pass

    def forget(self, txn: Transaction) -> None:
        pass

    def refuse_largest(self) -> None:
        raise AssertionError

    # as a control link

    number = 1
    named = b"a connection"

    def discharged(self, txn: Transaction, refusal: Refusal | None) -> None:
        pass


def transaction(host: Host) -> Transaction:
    control: Any = host
    registry: Any = host
    txn = Transaction(registry, bytes(16), "a connection", control, 60.0)
    txn.post(*POST)
    return txn


def _early(txn: Transaction) -> None:
    txn.parked += 1
    txn.discharge(False, None)


def _discharge(txn: Transaction, *, fail: bool) -> None:
    """Where posts wait for their addresses: the last of them has its own."""
    if txn.state in WAITING or txn.state is TxnState.WAITING_CHECKABLE:
        txn.fail = fail
        txn.unpark()
    else:
        txn.discharge(fail, None)


def _durable(txn: Transaction) -> None:
    txn.half_ids, txn.entries = [1] * len(txn.posts), [None] * len(txn.posts)
    txn.durable()


def _made_checkable(txn: Transaction) -> None:
    """By a message that names the producer group; what is posted already is durable at once."""
    address: Any = SimpleNamespace(name="a", groups=1, transactional=False, check_terms=OwnCheckTerms())
    apply_producer_group(txn, Facts(producer_group="shop"), address, CheckTerms(0, 1, 1))


def _checkable(txn: Transaction) -> None:
    _made_checkable(txn)
    (address, _, terms) = POST
    assert txn.in_store is not None
    txn.in_store.stored(1, address, terms, own_row=True)
    txn.in_store.answered()


TXN_EVENTS: dict[TxnEvent, Callable[[Transaction], object]] = {
    TxnEvent.WORK_REFUSED: lambda txn: txn.refuse(REFUSAL),
    TxnEvent.MADE_CHECKABLE: _made_checkable,
    TxnEvent.DISCHARGE_EARLY: _early,
    TxnEvent.DISCHARGE: lambda txn: _discharge(txn, fail=False),
    TxnEvent.DISCHARGE_FAIL: lambda txn: _discharge(txn, fail=True),
    TxnEvent.CONTROL_LOST: lambda txn: txn.abandon(TxnEvent.CONTROL_LOST, "link-lost"),
    TxnEvent.TIMEOUT: lambda txn: txn.abandon(TxnEvent.TIMEOUT, "timeout"),
    TxnEvent.ASKED: lambda txn: txn.abandon(TxnEvent.ASKED, "asked"),
    TxnEvent.DURABLE: _durable,
    TxnEvent.STORE_REFUSED: lambda txn: txn.refused(StoreFault("x")),
}

_REFUSED, _ABANDONED = TXN_EVENTS[TxnEvent.WORK_REFUSED], TXN_EVENTS[TxnEvent.CONTROL_LOST]
TXN_WAYS: dict[TxnState, tuple[Callable[[Transaction], object], ...]] = {
    TxnState.ACTIVE: (),
    TxnState.ROLLBACK_ONLY: (_REFUSED,),
    TxnState.WAITING: (_early,),
    TxnState.WAITING_REFUSED: (_REFUSED, _early),
    TxnState.CHECKABLE: (_checkable,),
    TxnState.WAITING_CHECKABLE: (_checkable, _early),
    TxnState.LEFT: (_checkable, _ABANDONED),
    TxnState.COMMITTING: (TXN_EVENTS[TxnEvent.DISCHARGE],),
    TxnState.ROLLED_BACK: (TXN_EVENTS[TxnEvent.DISCHARGE_FAIL],),
}


@pytest.mark.rule("T8", "T9", "T11", "T13", "T14", "T22", "T23")
@all_cases(("state", "event"), TRANSACTION)
def test_each_cell_of_a_transaction(state: TxnState, event: TxnEvent) -> None:
    host = Host()
    txn = transaction(host)
    for way in TXN_WAYS[state]:
        way(txn)
    assert txn.state is state
    written = len(host.units)
    TXN_EVENTS[event](txn)
    assert txn.state is TRANSACTION[state, event]
    # what is undecided and now decided goes to the store, once; a refused commit goes again, as a rollback
    decides = state not in (TxnState.COMMITTING, *ENDS) and txn.state in (TxnState.COMMITTING, *ENDS)
    again = (state, event) == (TxnState.COMMITTING, TxnEvent.STORE_REFUSED)
    # its posts so far; that it can only roll back; that its client has left it
    told = event is TxnEvent.MADE_CHECKABLE or (state in CHECKED and event is TxnEvent.WORK_REFUSED)
    left = state in CHECKED and txn.state is TxnState.LEFT
    assert len(host.units) - written == (decides or again or told or left)


@pytest.mark.rule("X3", "H5")
def test_a_checkable_commit_that_finds_it_locked_is_not_rolled_back() -> None:
    """Another is about to decide it, or fails to: then the client commits it when it asks again."""
    txn = transaction(host := Host())
    _checkable(txn)
    TXN_EVENTS[TxnEvent.DISCHARGE](txn)
    host.units.clear()
    txn.refused(Locked("x"))
    assert len(host.units) == 1
    assert txn not in host.units


def test_only_the_cells_of_the_table_can_be() -> None:
    txn = transaction(Host())
    txn.discharge(False, None)
    with pytest.raises(KeyError):
        txn.refuse(REFUSAL)
    entry, _ = delivery()
    with pytest.raises(KeyError):
        entry.queue.done_with(delivery_at(GONE)[0])


# -- a delivery


class Link(Consumer):
    def retired(self, entry: Entry, outcome: Outcome) -> None:
        pass

    def enlisted(self, entry: Entry, txn_id: bytes, outcome: Outcome) -> None:
        pass

    def left(self, entry: Entry) -> None:
        pass

    def unretired(self, entry: Entry, description: str) -> None:
        pass

    def refuse(self, refusal: Refusal) -> None:
        raise AssertionError(refusal)

    def send(self, entry: Entry) -> bool:
        entry.link = self
        return super().send(entry)


def delivery() -> tuple[Entry, SimpleNamespace]:
    """In the window of a queue whose consumer has no room; and what its events are made with."""
    host, link = Host(), Link(1, 0)
    queue = queue_of([link])
    instance: Any = queue.instance
    instance.commit = host.instance.commit
    entry = Entry(queue, 1, 1, b"x", 0, 0, b"")
    assert queue.reserve(entry.size, entry.priority)
    queue.arrived(entry)
    txn = transaction(host)
    registry: Any = SimpleNamespace(for_work=lambda txn_id, owner: txn)
    return entry, SimpleNamespace(
        host=host, link=link, txn=txn, retirement=Retirement(registry, host.settlements), queue=queue
    )


def _send(entry: Entry, its: SimpleNamespace) -> None:
    its.link.has = 1
    its.queue.changed(its.link)
    its.queue.pump()


def _unsent(entry: Entry, its: SimpleNamespace) -> None:
    if entry.state is HELD:
        entry.expires = 1
        _send(entry, its)
    else:
        its.queue.set_aside(entry, "it cannot be read")


def _outcome(entry: Entry, its: SimpleNamespace) -> None:
    its.retirement.settle(its.link, entry, ACCEPTED, True)


def _retire(entry: Entry, its: SimpleNamespace) -> None:
    its.retirement.retire(its.link, SimpleNamespace(user_id=None), entry, its.txn.id, ACCEPTED, False)


def _lost(entry: Entry, its: SimpleNamespace) -> None:
    its.link.departure = Departure.LOST
    its.retirement.link_ended(its.link, [entry], dropped=False)


def _kept(entry: Entry, its: SimpleNamespace) -> None:
    its.txn.discharge(True, None)
    its.txn.undone = [(entry, False)]
    its.txn.durable()


def _applied(entry: Entry, its: SimpleNamespace) -> None:
    """The default outcome of a rollback."""
    its.txn.discharge(True, None)
    entry.kept = True
    entry.outcome = FAILED
    its.txn.undone = [(entry, True)]
    its.txn.durable()


def _refused_back(entry: Entry, its: SimpleNamespace) -> None:
    entry.outcome = ACCEPTED
    Settlement(its.host.instance, [entry]).refused(StoreFault("x"))


def _leaves(entry: Entry, its: SimpleNamespace) -> None:
    if entry.state is HELD:
        its.queue.remove(its.link)
    elif entry.txn is None:
        entry.outcome = ACCEPTED
        Settlement(its.host.instance, [entry]).refused(NotLeased("x"))
    else:
        its.txn.discharge(False, None)
        _durable(its.txn)


DELIVERY_EVENTS: dict[DeliveryEvent, Callable[[Entry, SimpleNamespace], object]] = {
    DeliveryEvent.SEND: _send,
    DeliveryEvent.UNSENT: _unsent,
    DeliveryEvent.OUTCOME: _outcome,
    DeliveryEvent.RETIRE: _retire,
    DeliveryEvent.LINK_LOST: _lost,
    DeliveryEvent.KEPT: _kept,
    DeliveryEvent.BACK: lambda entry, its: (_applied if entry.txn is not None else _refused_back)(entry, its),
    DeliveryEvent.LEAVES: _leaves,
}

DELIVERY_WAYS: dict[DeliveryState, tuple[DeliveryEvent, ...]] = {
    HELD: (),
    SENT: (DeliveryEvent.SEND,),
    ENLISTED: (DeliveryEvent.SEND, DeliveryEvent.RETIRE),
    DECIDED: (DeliveryEvent.SEND, DeliveryEvent.OUTCOME),
    GONE: (DeliveryEvent.LEAVES,),
}


def delivery_at(state: DeliveryState) -> tuple[Entry, SimpleNamespace]:
    entry, its = delivery()
    for way in DELIVERY_WAYS[state]:
        DELIVERY_EVENTS[way](entry, its)
    assert entry.state is state
    return entry, its


@pytest.mark.rule("T26", "T27", "T28", "D5", "D10", "P12")
@all_cases(("state", "event"), DELIVERY)
def test_each_cell_of_a_delivery(state: DeliveryState, event: DeliveryEvent) -> None:
    entry, its = delivery_at(state)
    DELIVERY_EVENTS[event](entry, its)
    assert entry.state is DELIVERY[state, event]
    assert (entry.txn is not None) == (entry.state is ENLISTED)
    assert (its.queue.held.get(1) is entry) == (entry.state is not GONE)
