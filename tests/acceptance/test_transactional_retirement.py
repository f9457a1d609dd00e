"""Retirement in transactions frame by frame (part 4, sections 4.4.2 and 4.4.4; rules T26 to T30, T32 and T34)."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from tests.fix_night import by_night
from tests.fix_wire import Ask, Begin, decided
from tests.wire.frames import (
    Accepted,
    Discharge,
    Modified,
    Received,
    Rejected,
    Released,
    State,
    TransactionalState,
)
from tests.wire.messages import data, section
from tests.wire.queues import NEVER, post
from tests.wire.types import Described, Symbol, UInt, ULong


@pytest.mark.rule("T26")
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize(
    ("outcome", "back", "count"),
    [
        (Accepted(), False, 0),
        (Rejected(), False, 0),
        (Released(), True, 0),
        (Modified(), True, 0),
        (Modified(delivery_failed=True), True, 1),
        (Modified(delivery_failed=True, undeliverable_here=True), True, 1),
    ],
)
def test_an_outcome_is_applied_at_the_commit(
    begin: Begin, address: str, outcome: State, back: bool, count: int, settled: bool
) -> None:
    """Part 4, section 4.4.2: each outcome, settled by the peer or not; nothing before the discharge."""
    session, other = begin(), begin()
    post(session, address, b"x")
    control, consumer = session.control(), session.receiver(address)
    delivery = consumer.take()
    txn = control.declare()
    delivery.retire(txn, outcome, settled=settled)
    session.sync()
    assert other.receiver(address, name="before").drain() == []
    control.commit(txn)
    if not settled:
        settlement = delivery.settlement()
        assert settlement.settled is True
        assert type(settlement.state) is type(outcome)
    consumer.detach()
    found = other.receiver(address, name="after").drain()
    assert [each.body for each in found] == ([b"x"] if back else [])
    assert [each.count for each in found] == ([count] if back else [])


@pytest.mark.rule("T26", "P11")
def test_modified_in_a_transaction_with_all_its_fields(begin: Begin, address: str) -> None:
    """Part 3, section 3.4.5: not to this link again, one more failed delivery, annotations merged."""
    session = begin()
    sender = session.sender(address)
    sender.outcome(section(0x72, {Symbol("x-opt-old"): "old", Symbol("x-opt-both"): "old"}) + data(b"x"))
    control, consumer = session.control(), session.receiver(address)
    txn = control.declare()
    annotations = {Symbol("x-opt-both"): "new", Symbol("x-opt-new"): UInt(7)}
    modified = Modified(delivery_failed=True, undeliverable_here=True, message_annotations=annotations)
    consumer.take().retire(txn, modified)
    control.commit(txn)
    assert consumer.drain() == []
    found = session.receiver(address, name="another").take()
    assert found.count == 1
    assert found.message.annotations == {"x-opt-old": "old", "x-opt-both": "new", "x-opt-new": 7}


@pytest.mark.rule("T26")
def test_one_disposition_covers_a_range(begin: Begin, address: str) -> None:
    """Part 2, section 2.7.6: first to last, in one transactional state."""
    session = begin()
    post(session, address, *(b"%d" % number for number in range(20)))
    control, consumer = session.control(), session.receiver(address)
    deliveries = consumer.take_many(20)
    txn = control.declare()
    deliveries[3].disposition(TransactionalState(txn_id=txn, outcome=Accepted()), last=deliveries[16])
    control.commit(txn)
    consumer.detach()
    assert session.receiver(address).bodies() == [b"0", b"1", b"2", b"17", b"18", b"19"]


@pytest.mark.rule("T26")
def test_a_retirement_without_an_outcome(begin: Begin, address: str) -> None:
    """Part 4, section 4.4.2: the outcome is not mandatory; settled without one, the default outcome holds."""
    session = begin()
    post(session, address, b"x")
    control, consumer = session.control(), session.receiver(address)
    txn = control.declare()
    consumer.take().disposition(TransactionalState(txn_id=txn), settled=True)
    control.commit(txn)
    assert consumer.take().count == 1


@pytest.mark.rule("T27")
@pytest.mark.parametrize("outcome", [Accepted(), Rejected(), Released(), Modified(delivery_failed=True)])
def test_rolled_back_and_not_settled_it_stays_with_the_link(begin: Begin, address: str, outcome: State) -> None:
    """Part 4, section 4.4.4: acquired still, and not delivered again; it may be retired in another transaction."""
    session, other = begin(), begin()
    post(session, address, b"x")
    control, consumer = session.control(), session.receiver(address)
    delivery = consumer.take()
    for _ in range(2):
        txn = control.declare()
        delivery.retire(txn, outcome, settled=False)
        control.roll_back(txn)
        assert consumer.drain() == other.receiver(address).drain() == []
        assert not session.settlements[delivery.id]
    txn = control.declare()
    delivery.retire(txn, Accepted())
    control.commit(txn)
    consumer.detach()
    assert begin().receiver(address).bodies() == []


@pytest.mark.rule("T27")
def test_rolled_back_and_not_settled_it_may_be_settled_outside(begin: Begin, address: str) -> None:
    """Part 4, section 4.4.4: its state is what it was before the transaction."""
    session = begin()
    post(session, address, b"1", b"2")
    control, consumer = session.control(), session.receiver(address)
    first, second = consumer.take_many(2)
    txn = control.declare()
    first.retire(txn, settled=False)
    second.retire(txn, settled=False)
    control.roll_back(txn)
    first.disposition(Accepted())
    second.disposition(Released())
    again = consumer.take()
    assert (again.body, again.count) == (b"2", 0)
    consumer.detach()
    assert [(each.body, each.count) for each in session.receiver(address).drain()] == [(b"2", 1)]


@pytest.mark.rule("T28")
@pytest.mark.parametrize("outcome", [Accepted(), Rejected(), Released()])
def test_rolled_back_and_settled_it_has_the_default_outcome(begin: Begin, address: str, outcome: State) -> None:
    """Part 4, section 4.4.4: modified(delivery-failed), where the source gave no other."""
    session = begin()
    post(session, address, b"x")
    control, consumer = session.control(), session.receiver(address)
    delivery = consumer.take()
    txn = control.declare()
    delivery.retire(txn, outcome)
    control.roll_back(txn)
    again = consumer.take()
    assert (again.body, again.count) == (b"x", 1)


@pytest.mark.rule("P6", "T26")
def test_a_receiver_that_settles_second_in_a_transaction(begin: Begin, address: str) -> None:
    """Part 2, section 2.8.3: the service settles when the outcome is applied, and not when it is said."""
    session = begin()
    post(session, address, b"x")
    control, consumer = session.control(), session.receiver(address, rcv_settle_mode=1)
    delivery = consumer.take()
    txn = control.declare()
    delivery.retire(txn, Accepted(), settled=False)
    session.sync()
    assert not any(each.settled for each in session.settlements[delivery.id])
    control.commit(txn)
    while not any(each.settled for each in session.settlements[delivery.id]):
        session.peer.step()
    assert session.settlements[delivery.id][-1].state == Accepted()
    delivery.disposition(None, settled=True)
    consumer.detach()
    assert session.receiver(address).bodies() == []


@pytest.mark.rule("T29")
def test_two_undecided_transactions_for_one_delivery(begin: Begin, address: str, ask: Ask) -> None:
    """Part 4, section 4.4.2: the control link is detached with rollback; the delivery stays as it was."""
    session = begin()
    post(session, address, b"x")
    control, consumer = session.control(), session.receiver(address)
    delivery = consumer.take()
    one, two = control.declare(), control.declare()
    delivery.retire(one, settled=False)
    session.sync()  # of two dispositions in one read the engine shows only the later (docs/explanation/traps.md)
    delivery.retire(two, settled=False)
    assert control.error == "amqp:transaction:rollback"
    assert decided(ask, one)[0] == "rollback"
    control = session.control()
    txn = control.declare()
    delivery.retire(txn)
    control.commit(txn)
    consumer.detach()
    assert session.receiver(address).bodies() == []


@pytest.mark.rule("T29")
@pytest.mark.parametrize(("outcome", "bodies"), [(Released(), [b"x"]), (Accepted(), [])])
def test_the_later_outcome_in_one_transaction_holds(
    begin: Begin, address: str, outcome: State, bodies: list[bytes]
) -> None:
    """Part 4, section 4.4.2: under the same transaction the later replaces the earlier."""
    session = begin()
    post(session, address, b"x")
    control, consumer = session.control(), session.receiver(address)
    delivery = consumer.take()
    txn = control.declare()
    delivery.retire(txn, Released() if outcome == Accepted() else Accepted(), settled=False)
    delivery.retire(txn, outcome)
    control.commit(txn)
    assert consumer.bodies() == bodies


def _becomes(begin: Begin, address: str, said: list[tuple[str | None, bool]], *, fail: bool, apart: bool) -> list[Any]:
    """Of two transactions, and of a message of which two things are ``said``: in which of them, and settled."""
    session = begin()
    post(session, address, b"x")
    control, delivery = session.control(), session.receiver(address).take()
    txns = {name: control.declare() for name in "tu"}
    with nullcontext() if apart else session.peer.at_once():
        for where, settled in said:
            outcome = None if where is None else Accepted()
            state = TransactionalState(txn_id=txns[where], outcome=outcome) if where in txns else outcome
            delivery.disposition(state, settled=settled)
            if apart:
                session.sync()
    session.sync()
    found: list[Any] = [] if control.detached is None else [control.error]
    if control.detached is None:
        found += [type(control.discharge(txns["t"], fail=fail)), type(control.discharge(txns["u"]))]
    delivery.receiver.detach()
    return found + begin().receiver(address).bodies()


_SAID = [(where, settled) for where in (None, "in none", "t", "u") for settled in (False, True)]


@pytest.mark.rule("T26", "T28", "T29")
@pytest.mark.parametrize(
    ("first", "second", "fail"),
    [
        # a rollback after what leaves the delivery to the link is by day, too
        (first, second, fail) if not first[1] and fail == (second == ("t", True)) else by_night(first, second, fail)
        for first in _SAID
        for second in _SAID
        for fail in (False, True)
    ],
)
def test_two_dispositions_of_one_delivery_mean_the_same_in_one_write(
    begin: Begin, address: str, first: tuple[str | None, bool], second: tuple[str | None, bool], fail: bool
) -> None:
    said = [first, second]
    apart = _becomes(begin, address, said, fail=fail, apart=True)
    assert _becomes(begin, address, said, fail=fail, apart=False) == apart


@pytest.mark.rule("T30")
def test_a_settled_retirement_in_an_unknown_transaction(begin: Begin, address: str) -> None:
    """Part 4, section 4.4: not applied; the link is detached with unknown-id, the default outcome holds."""
    session = begin()
    post(session, address, b"x")
    consumer = session.receiver(address)
    consumer.take().retire(NEVER)
    assert consumer.error == "amqp:transaction:unknown-id"
    again = session.receiver(address).take()
    assert (again.body, again.count) == (b"x", 1)


@pytest.mark.rule("T30")
def test_an_unsettled_retirement_in_an_unknown_transaction(begin: Begin, address: str) -> None:
    """Part 4, section 4.4: the outcome is not applied, and the link is told: detached with unknown-id."""
    session = begin()
    post(session, address, b"x")
    consumer = session.receiver(address)
    consumer.take().retire(NEVER, settled=False)
    assert consumer.error == "amqp:transaction:unknown-id"
    assert session.receiver(address).take().body == b"x"


@pytest.mark.rule("T30")
@pytest.mark.parametrize(
    "state",
    [
        pytest.param(Described(ULong(0x34), []), id="no txn-id"),
        pytest.param(Described(ULong(0x34), ["text", None]), id="a string"),
        pytest.param(Described(ULong(0x34), [b"x" * 16, Described(ULong(0x99), [])]), id="no outcome of ours"),
        pytest.param(Described(ULong(0x34), [b"x" * 16, "accepted"]), id="a string for an outcome"),
        pytest.param(Described(ULong(0x34), {}), id="a map"),
    ],
)
def test_a_broken_transactional_state_of_a_delivery(begin: Begin, address: str, state: Any) -> None:
    """Part 4, section 4.5.8: never taken for an outcome; the link or the connection is told."""
    session = begin()
    post(session, address, b"x")
    consumer = session.receiver(address)
    consumer.take().disposition(state)
    assert consumer.error == "amqp:decode-error"
    assert session.receiver(address).take().body == b"x"


@pytest.mark.rule("T32")
@pytest.mark.parametrize("settled", [False, True])
def test_deliveries_not_enlisted_are_untouched(begin: Begin, address: str, settled: bool) -> None:
    """Part 4, section 4.4.4: prefetched messages keep their order and their count through a rollback."""
    session = begin()
    post(session, address, *(b"%d" % number for number in range(6)))
    control, consumer = session.control(), session.receiver(address)
    deliveries = consumer.take_many(6)
    txn = control.declare()
    for delivery in deliveries[:2]:
        delivery.retire(txn, settled=settled)
    control.roll_back(txn)
    again = consumer.drain()
    assert [(each.body, each.count) for each in again] == ([(b"0", 1), (b"1", 1)] if settled else [])
    for delivery in (again or deliveries[:2]) + deliveries[2:]:
        txn = control.declare()
        delivery.retire(txn)
        control.commit(txn)
    consumer.detach()
    assert session.receiver(address).bodies() == []


@pytest.mark.rule("T34")
@pytest.mark.parametrize("fail", [False, True])
def test_settling_after_the_discharge(begin: Begin, address: str, fail: bool) -> None:
    """Part 4, section 4.4.2: deliveries of the transaction just decided are settled, nothing else, no error."""
    session = begin()
    post(session, address, b"1", b"2")
    control, consumer = session.control(), session.receiver(address)
    first, second = consumer.take_many(2)
    txn = control.declare()
    first.retire(txn, settled=False)
    second.retire(txn, settled=False)
    assert control.discharge(txn, fail=fail) == Accepted()
    first.retire(txn, settled=True)
    second.disposition(TransactionalState(txn_id=txn, outcome=Accepted()), settled=True)
    session.sync()
    assert consumer.detached is None
    found = consumer.drain()
    assert [(each.body, each.count) for each in found] == ([(b"1", 1), (b"2", 1)] if fail else [])


@pytest.mark.rule("T30")
@pytest.mark.parametrize("outcome", [Accepted(), Released(), Modified(delivery_failed=True)])
def test_an_outcome_after_the_rollback_that_settles_nothing(begin: Begin, address: str, outcome: State) -> None:
    """Part 4, section 4.4: the transaction is over, and the outcome is not applied: the link is told."""
    session = begin()
    post(session, address, b"x")
    control, consumer = session.control(), session.receiver(address)
    delivery = consumer.take()
    txn = control.declare()
    delivery.retire(txn, outcome, settled=False)
    control.roll_back(txn)
    assert consumer.drain() == []
    delivery.retire(txn, outcome, settled=False)
    assert consumer.error == "amqp:transaction:unknown-id"
    assert session.receiver(address).take().body == b"x"


@pytest.mark.rule("T34")
def test_settling_right_behind_the_discharge(begin: Begin, address: str) -> None:
    """Part 4, section 4.4.2: written in one go, while the commit is on its way to the store."""
    session = begin()
    post(session, address, b"x")
    control, consumer = session.control(), session.receiver(address)
    delivery = consumer.take()
    txn = control.declare()
    delivery.retire(txn, settled=False)
    number = control.request(Discharge(txn_id=txn, fail=False))
    delivery.retire(txn, settled=True)
    assert control.answer_to(number).state == Accepted()
    assert consumer.bodies() == []
    assert consumer.detached is None


@pytest.mark.rule("T34", "T30")
def test_settling_with_another_decided_transaction(begin: Begin, address: str) -> None:
    """Part 4, section 4.4: a delivery that was no part of it falls under the unknown id."""
    session = begin()
    post(session, address, b"x")
    control, consumer = session.control(), session.receiver(address)
    delivery = consumer.take()
    txn = control.declare()
    session.sender(address + "-other").outcome(data(b"y"), txn=txn)
    control.commit(txn)
    delivery.retire(txn)
    assert consumer.error == "amqp:transaction:unknown-id"
    assert session.receiver(address).take().body == b"x"


def test_states_that_are_no_outcome_change_nothing(begin: Begin, address: str) -> None:
    """Part 3, section 3.4.1: received is not terminal."""
    session = begin()
    post(session, address, b"x")
    consumer = session.receiver(address)
    delivery = consumer.take()
    delivery.disposition(Received(section_number=0, section_offset=0), settled=False)
    delivery.disposition(Accepted())
    consumer.detach()
    assert session.receiver(address).bodies() == []
