"""Posting in transactions frame by frame (part 4, sections 4.4.1 and 4.4.4; rules T20 to T25)."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from tests.fix_night import by_night
from tests.fix_wire import Ask, Begin
from tests.wire.frames import (
    SENDER,
    Accepted,
    Discharge,
    Disposition,
    Released,
    State,
    TransactionalState,
)
from tests.wire.messages import data
from tests.wire.queues import BROKEN, NEVER, browse, condition
from tests.wire.types import Described, Symbol, UInt, ULong


@pytest.mark.rule("T20")
def test_a_half_message_is_seen_by_no_consumer(begin: Begin, address: str, ask: Ask) -> None:
    """Part 4, section 4.4.1: no consumer, browser or count sees it before the commit; then all do."""
    session, other = begin(), begin()
    control, sender = session.control(), session.sender(address)
    consumer = other.receiver(address)
    txn = control.declare()
    for body in (b"1", b"2", b"3"):
        sender.outcome(data(body), txn=txn)
    count = """select count(*) from coordinator.entry e join coordinator.consumer_group g on g.id = e.group_id
               join coordinator.address a on a.id = g.address_id where a.name = %s"""
    assert consumer.drain() == []
    assert browse(session, address) == browse(other, address) == []
    assert ask(count, address) == [(0,)]
    control.commit(txn)
    assert ask(count, address) == [(3,)]
    assert browse(other, address) == [b"1", b"2", b"3"]
    assert consumer.bodies() == [b"1", b"2", b"3"]


@pytest.mark.rule("T20")
def test_a_waiting_consumer_gets_it_at_the_commit(begin: Begin, address: str) -> None:
    """Part 4, section 4.4.1: with its credit given before."""
    session, other = begin(), begin()
    control, sender = session.control(), session.sender(address)
    consumer = other.receiver(address, credit=10)
    txn = control.declare()
    sender.outcome(data(b"x"), txn=txn)
    assert sender.outcome(data(b"outside")) == Accepted()
    assert consumer.take().body == b"outside"
    other.sync()
    assert not consumer.arrived
    control.commit(txn)
    assert consumer.take().body == b"x"


@pytest.mark.rule("T21")
def test_an_unsettled_post_is_answered_before_the_discharge(begin: Begin, address: str) -> None:
    """Part 4, section 4.4.1: transactional-state(txn-id, accepted)."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    answer = sender.answer_to(sender.post(data(b"x"), txn=txn))
    assert answer.state == TransactionalState(txn_id=txn, outcome=Accepted())
    assert answer.settled is True
    control.commit(txn)


@pytest.mark.rule("T22")
def test_a_settled_post_that_cannot_be_stored_spoils_the_transaction(begin: Begin, address: str) -> None:
    """Part 4, section 4.4.4: the discharge says so, and nothing is committed."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    sender.outcome(data(b"good"), txn=txn)
    sender.post(BROKEN, txn=txn, settled=True)
    state = control.discharge(txn)
    assert condition(state) == "amqp:transaction:rollback"
    assert "amqp:decode-error" in state.error.description
    assert session.receiver(address).bodies() == []
    assert sender.detached is None


@pytest.mark.rule("T22")
def test_a_settled_post_that_can(begin: Begin, address: str) -> None:
    """Part 4, section 4.4.1: the right use; nothing is answered before the discharge."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    number = sender.post(data(b"good"), txn=txn, settled=True)
    control.commit(txn)
    assert not session.answers[number]
    assert session.receiver(address).bodies() == [b"good"]


@pytest.mark.rule("T23", "P10")
def test_an_unsettled_post_that_is_refused(begin: Begin, address: str) -> None:
    """Part 4, section 4.4.4: transactional-state(txn-id, rejected(error)); the transaction can only roll back."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    sender.outcome(data(b"good"), txn=txn)
    state = sender.outcome(BROKEN, txn=txn)
    assert isinstance(state, TransactionalState)
    assert state.txn_id == txn
    assert condition(state.outcome) == "amqp:decode-error"
    assert isinstance(sender.outcome(data(b"later"), txn=txn), TransactionalState)
    assert condition(control.discharge(txn)) == "amqp:transaction:rollback"
    assert session.receiver(address).bodies() == []


@pytest.mark.rule("T23")
def test_a_refused_post_may_be_gone_on_from(begin: Begin, address: str) -> None:
    """The link property coordinator:on-refused-post=continue: the peer looks at each outcome itself."""
    session = begin()
    control = session.control()
    sender = session.sender(address, properties={Symbol("coordinator:on-refused-post"): "continue"})
    txn = control.declare()
    sender.outcome(data(b"good"), txn=txn)
    assert condition(sender.outcome(BROKEN, txn=txn).outcome) == "amqp:decode-error"
    control.commit(txn)
    assert session.receiver(address).bodies() == [b"good"]
    # a settled post has no outcome to look at: it spoils the transaction all the same (T22)
    txn = control.declare()
    sender.post(BROKEN, txn=txn, settled=True)
    assert condition(control.discharge(txn)) == "amqp:transaction:rollback"


@pytest.mark.rule("T24")
@pytest.mark.parametrize("txn", [NEVER, b"", b"short", b"x" * 300])
def test_a_post_in_an_unknown_transaction_is_rejected(begin: Begin, address: str, txn: bytes) -> None:
    """Part 4, section 4.4: never stored; unsettled: rejected, and the link stays."""
    session = begin()
    sender = session.sender(address)
    assert condition(sender.outcome(data(b"x"), txn=txn)) == "amqp:transaction:unknown-id"
    assert sender.outcome(data(b"plain")) == Accepted()
    assert session.receiver(address).bodies() == [b"plain"]


@pytest.mark.rule("T24")
def test_a_settled_post_in_an_unknown_transaction_detaches(begin: Begin, address: str) -> None:
    """Part 4, section 4.4: there is no outcome to tell it by."""
    session = begin()
    sender = session.sender(address)
    sender.post(data(b"x"), txn=NEVER, settled=True)
    assert sender.error == "amqp:transaction:unknown-id"
    assert session.receiver(address).bodies() == []


@pytest.mark.rule("T24")
@pytest.mark.parametrize("fail", [False, True])
def test_a_post_in_a_decided_transaction_is_unknown(begin: Begin, address: str, fail: bool) -> None:
    """Part 4, section 4.4: a transaction ends with its discharge."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    sender.outcome(data(b"in time"), txn=txn)
    # the late post is written right behind the discharge, whose decision is then still under way
    discharge = control.request(Discharge(txn_id=txn, fail=fail))
    late = sender.post(data(b"late"), txn=txn)
    assert control.answer_to(discharge).state == Accepted()
    assert condition(sender.answer_to(late).state) == "amqp:transaction:unknown-id"
    assert condition(sender.outcome(data(b"later"), txn=txn)) == "amqp:transaction:unknown-id"
    assert session.receiver(address).bodies() == ([] if fail else [b"in time"])


@pytest.mark.rule("T24")
@pytest.mark.parametrize(
    "state",
    [
        pytest.param(Described(ULong(0x34), []), id="no txn-id"),
        pytest.param(Described(ULong(0x34), [None]), id="null"),
        pytest.param(Described(ULong(0x34), ["text"]), id="a string"),
        pytest.param(Described(ULong(0x34), [UInt(7)]), id="a number"),
    ],
)
def test_a_post_with_a_broken_transactional_state_is_refused(begin: Begin, address: str, state: Any) -> None:
    """Part 4, section 4.5.8: the txn-id is mandatory and a binary; never taken for a post outside transactions."""
    session = begin()
    sender = session.sender(address)
    assert condition(sender.outcome(data(b"x"), state=state)) == "amqp:decode-error"
    assert session.receiver(address).bodies() == []


@pytest.mark.rule("T25", "P6")
@pytest.mark.parametrize("fail", [False, True])
def test_after_the_decision_an_unsettled_post_has_its_plain_outcome(begin: Begin, address: str, fail: bool) -> None:
    """Part 4, section 4.4.4; receiver settle mode second: the peer settles when the transaction is decided."""
    session = begin()
    control, sender = session.control(), session.sender(address, rcv_settle_mode=1)
    assert sender.answer.rcv_settle_mode == 1
    txn = control.declare()
    number = sender.post(data(b"x"), txn=txn)
    answer = sender.answer_to(number)
    assert answer.state == TransactionalState(txn_id=txn, outcome=Accepted())
    assert not answer.settled
    assert control.discharge(txn, fail=fail) == Accepted()
    answer = sender.answer_to(number)
    assert not answer.settled
    assert answer.state == (Released() if fail else Accepted())
    session.send(Disposition(role=SENDER, first=number, settled=True))
    session.sync()
    assert not session.answers[number]


@pytest.mark.rule("T20")
@pytest.mark.parametrize("fail", [False, by_night(True)])
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("state", [None, Accepted(), TransactionalState(txn_id=bytes(16))])
def test_what_a_sender_says_behind_a_post_in_the_same_write(
    begin: Begin, address: str, state: State | None, settled: bool, fail: bool
) -> None:
    """The post stays in the transaction that its transfer has named."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    with session.peer.at_once():
        number = sender.post(data(b"x"), txn=txn)
        session.send(Disposition(role=SENDER, first=number, settled=settled, state=state))
    assert control.discharge(txn, fail=fail) == Accepted()
    assert session.receiver(address).bodies() == ([] if fail else [b"x"])


@pytest.mark.rule("T20", "T22", "T23")
@pytest.mark.parametrize("at_once", [by_night(False), True])
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("last", [by_night(False), True])
@pytest.mark.parametrize(
    ("first", "later"),
    [(None, "t"), ("t", "u"), (None, "u"), pytest.param("t", None, id="a disposition that names none")],
)
def test_a_delivery_whose_transfers_name_two_transactions(
    begin: Begin, address: str, first: str | None, later: str | None, last: bool, settled: bool, at_once: bool
) -> None:
    """Part 4, section 4.4.1: all of them are of one. It is refused and its link ends; none that it names commits.
    ``last``: the last names the other, else one in between.
    """
    session = begin()
    control, sender = session.control(), session.sender(address)
    txns = {name: control.declare() for name in "tu"}
    for txn in txns.values():
        session.sender(f"{address}-beside").outcome(data(b"beside"), txn=txn)
    states = {name: TransactionalState(txn_id=txn) for name, txn in txns.items()}
    number, message = session.next_delivery_id(), data(b"x" * 100)
    given: dict[str, Any] = {"delivery_id": number, "delivery_tag": b"f", "message_format": 0}
    with session.peer.at_once() if at_once else nullcontext():
        sender.transfer(message[:9], **given, settled=settled, more=True, state=states.get(str(first)))
        if not at_once:
            session.sync()
        if later is None:
            session.send(Disposition(role=SENDER, first=number, settled=settled, state=Accepted()))
            sender.transfer(message[9:])
        elif last:
            sender.transfer(message[9:], state=states[later])
        else:
            sender.transfer(message[9:20], state=states[later], more=True)
            sender.transfer(message[20:])
    assert sender.error == "amqp:transaction:rollback"
    if not settled:
        state = session.answers[number][0].state
        outcome = state.outcome if isinstance(state, TransactionalState) else state
        assert condition(outcome) == "amqp:transaction:rollback"
    for name, txn in txns.items():
        named = name in (first, later)
        assert (control.discharge(txn) == Accepted()) is not named
    assert session.receiver(address).bodies() == []
    assert len(session.receiver(f"{address}-beside").bodies()) == 2 - len({first, later} - {None})


@pytest.mark.rule("T20")
@pytest.mark.parametrize("names", [True, False])
def test_a_delivery_whose_transfers_name_one_transaction(begin: Begin, address: str, names: bool) -> None:
    """Each of them, or the first alone."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    number, message, state = session.next_delivery_id(), data(b"x" * 100), TransactionalState(txn_id=txn)
    sender.transfer(message[:9], delivery_id=number, delivery_tag=b"f", message_format=0, more=True, state=state)
    sender.transfer(message[9:20], more=True, state=state if names else None)
    sender.transfer(message[20:], state=state if names else None)
    assert sender.answer_to(number).state == TransactionalState(txn_id=txn, outcome=Accepted())
    assert control.discharge(txn, fail=True) == Accepted()
    assert session.receiver(address).bodies() == []
