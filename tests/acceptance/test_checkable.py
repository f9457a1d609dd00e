"""Posting in checkable transactions frame by frame: what makes one, and its posts (rules H1 to H4, H14)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.fix_compiled import BOTH_RULES
from tests.fix_service import PATIENCE, Service
from tests.fix_wire import Ask, Begin, decided
from tests.wire.checkable import GROUP, accept, in_group, named, pending, row
from tests.wire.frames import Accepted, Discharge, Released, TransactionalState
from tests.wire.messages import MESSAGE_ANNOTATIONS, Header, data, section
from tests.wire.queues import BROKEN, NO_LOCAL, browse, condition, filtered
from tests.wire.types import Described, Int, Symbol, UInt, ULong

pytestmark = BOTH_RULES

TOPIC = (Symbol("topic"),)


@pytest.mark.rule("H2", "H3", "H4", "T20")
def test_each_half_is_durable_before_its_post_is_answered(begin: Begin, address: str, ask: Ask) -> None:
    session, other = begin(), begin()
    control, sender = in_group(session), session.sender(address)
    consumer = other.receiver(address, credit=10)
    txn = control.declare()
    assert row(ask, txn) is None
    for count, body in enumerate((b"1", b"2", b"3"), 1):
        accept(sender, body, txn)
        assert pending(ask, txn) == count
    assert row(ask, txn) == ("shop", True, None, 6000, 30_000, 15)
    other.sync()
    assert not consumer.arrived
    assert browse(session, address) == []
    control.commit(txn)
    assert [consumer.take().body for _ in range(3)] == [b"1", b"2", b"3"]
    assert decided(ask, txn) == ("commit", None)
    assert (row(ask, txn), pending(ask, txn)) == (None, 0)
    assert ask("select posted from coordinator.op where id = encode(%s, 'hex')::uuid", txn) == [(3,)]


@pytest.mark.rule("H2", "H6", "T9")
def test_a_rollback_only_adds_an_op(begin: Begin, address: str, ask: Ask) -> None:
    session = begin()
    control, sender = in_group(session), session.sender(address)
    txn = control.declare()
    accept(sender, b"1", txn)
    control.roll_back(txn)
    assert decided(ask, txn) == ("rollback", "discharged")
    assert (row(ask, txn), pending(ask, txn)) == (None, 0)
    assert session.receiver(address).bodies() == []
    assert ask("select count(*) from coordinator.half where txn_id = encode(%s, 'hex')::uuid", txn) == [(1,)]


@pytest.mark.rule("H2")
def test_the_connection_names_the_group(begin: Begin, address: str, ask: Ask) -> None:
    session = begin(properties={GROUP: Symbol("from the open")})
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    accept(sender, b"1", txn)
    assert row(ask, txn)[0] == "from the open"
    control.commit(txn)


@pytest.mark.rule("H2", "H7")
def test_the_link_names_group_and_immunity(begin: Begin, address: str, ask: Ask) -> None:
    session = begin(properties={GROUP: "other"})
    control, sender = in_group(session, "mine", check_immunity_ms=UInt(90_000)), session.sender(address)
    txn = control.declare()
    accept(sender, b"1", txn)
    assert row(ask, txn) == ("mine", True, None, 90_000, 30_000, 15)
    control.commit(txn)


@pytest.mark.rule("H2", "H3", "H7")
@pytest.mark.parametrize("settled", [False, True])
def test_a_message_names_the_group(begin: Begin, address: str, ask: Ask, settled: bool) -> None:
    """What was posted before goes with it."""
    session, other = begin(), begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    accept(sender, b"1", txn)
    assert row(ask, txn) is None
    message = named(b"2", producer_group="billing", check_immunity_ms=UInt(500))
    number = sender.post(message, txn=txn, settled=settled)
    if not settled:
        assert sender.answer_to(number).state == TransactionalState(txn_id=txn, outcome=Accepted())
    accept(sender, b"3", txn)
    assert pending(ask, txn) == 3
    assert row(ask, txn)[0] == "billing"
    assert row(ask, txn)[3] == 500
    control.commit(txn)
    assert other.receiver(address).bodies() == [b"1", b"2", b"3"]


@pytest.mark.rule("H2", "H3")
def test_one_that_is_listed_becomes_checkable(begin: Begin, address: str, ask: Ask) -> None:
    """Its row is there, as that of a plain transaction which lives longer than a moment."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    accept(sender, b"1", txn)
    deadline = time.monotonic() + PATIENCE
    while row(ask, txn) is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    sender.outcome(named(b"2", producer_group="billing"), txn=txn)
    assert (row(ask, txn)[0], pending(ask, txn)) == ("billing", 2)
    control.commit(txn)
    consumer = session.receiver(address, credit=2)
    assert [consumer.take().body for _ in range(2)] == [b"1", b"2"]


@pytest.mark.rule("H2", "T23")
def test_a_second_group_spoils_the_transaction(begin: Begin, address: str, ask: Ask) -> None:
    """The store knows it before the discharge: a checker could not commit the rest."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    sender.outcome(named(b"1", producer_group="a"), txn=txn)
    assert sender.outcome(named(b"2", producer_group="a"), txn=txn).outcome == Accepted()
    refused = sender.outcome(named(b"3", producer_group="b"), txn=txn)
    assert condition(refused.outcome) == "amqp:precondition-failed"
    assert "'a'" in refused.outcome.error.description
    assert "'b'" in refused.outcome.error.description
    assert decided(ask, txn) == ("rollback", "rollback-only: amqp:precondition-failed")
    assert isinstance(sender.outcome(data(b"4"), txn=txn), TransactionalState)
    assert condition(control.discharge(txn)) == "amqp:transaction:rollback"
    assert session.receiver(address).bodies() == []


@pytest.mark.rule("H1", "H2", "T23")
@pytest.mark.parametrize("first", ["the connection", "the control link", "the address"])
@pytest.mark.parametrize("settled", [False, True])
def test_a_message_names_another_group_than(
    service: Service, begin: Begin, address: str, ask: Ask, first: str, settled: bool
) -> None:
    """The error has both; of one that was sent settled, the discharge has it."""
    group = address if first == "the address" else "shop"
    if first == "the address":
        service.cli("address", "add", address, "--kind", "transaction")
    session = begin(properties={GROUP: group} if first == "the connection" else None)
    control, sender = in_group(session) if first == "the control link" else session.control(), session.sender(address)
    txn = control.declare()
    accept(sender, b"1", txn)
    number = sender.post(named(b"2", producer_group="other"), txn=txn, settled=settled)
    answer: Any = None if settled else sender.answer_to(number).state
    told = control.discharge(txn) if answer is None else answer.outcome
    assert condition(told) == ("amqp:transaction:rollback" if settled else "amqp:precondition-failed")
    assert f"the producer group '{group[:60]}" in told.error.description
    assert "a message in it 'other'" in told.error.description
    assert decided(ask, txn) == ("rollback", "rollback-only: amqp:precondition-failed")
    assert session.receiver(address).bodies() == []


@pytest.mark.rule("H2")
@pytest.mark.parametrize(
    "group", ["", "x" * 256, "a\nb", UInt(7), b"shop"], ids=["empty", "long", "line", "number", "octets"]
)
def test_what_is_no_group(begin: Begin, address: str, group: Any) -> None:
    session = begin()
    assert session.control(properties={GROUP: group}).error == "amqp:invalid-field"
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    state = sender.outcome(named(b"1", producer_group=group), txn=txn)
    assert condition(state.outcome) == "amqp:invalid-field"
    assert "producer-group" in state.outcome.error.description
    control.roll_back(txn)
    assert sender.outcome(named(b"outside", producer_group=group)) == Accepted()  # there it means nothing


@pytest.mark.rule("H7")
@pytest.mark.parametrize("immunity", [UInt(3_600_001), Int(-1), "6000", True], ids=str)
def test_what_is_no_immunity(begin: Begin, address: str, immunity: Any) -> None:
    """The error names what came, and what was expected; nothing of the transaction is delivered."""
    session = begin()
    sender = session.sender(address)
    txn = session.control().declare()
    state = sender.outcome(named(b"1", producer_group="a", check_immunity_ms=immunity), txn=txn)
    assert condition(state.outcome) == "amqp:invalid-field"
    assert "check-immunity-ms" in state.outcome.error.description
    assert f"'{immunity}'" in state.outcome.error.description
    assert "from 0 to 3600000" in state.outcome.error.description
    refused = session.control(properties={GROUP: "a", Symbol("coordinator:check-immunity-ms"): immunity})
    error = refused.wait_detached().error
    assert error is not None
    assert error.condition == "amqp:invalid-field"
    assert f"coordinator:check-immunity-ms is '{immunity}'" in (error.description or "")
    assert session.receiver(address).bodies() == []


@pytest.mark.rule("H7")
@pytest.mark.parametrize("first", [True, False], ids=["in the first message", "in a later one"])
@pytest.mark.parametrize(
    ("name", "value", "limits"),
    [
        ("check_immunity_ms", UInt(3_600_001), "from 0 to 3600000"),
        ("check_interval_ms", UInt(999), "from 1000 to 86400000"),
        ("check_most", UInt(0), "from 1 to 1000"),
    ],
)
def test_a_message_in_a_group_asks_for_what_cannot_be(
    begin: Begin, address: str, first: bool, name: str, value: Any, limits: str
) -> None:
    """Whatever named the group, and whenever the message comes."""
    session = begin()
    control, sender = in_group(session), session.sender(address)
    txn = control.declare()
    if not first:
        accept(sender, b"1", txn)
    state = sender.outcome(named(b"2", **{name: value}), txn=txn)
    assert condition(state.outcome) == "amqp:invalid-field"
    assert limits in state.outcome.error.description
    assert condition(control.discharge(txn)) == "amqp:transaction:rollback"
    assert session.receiver(address).bodies() == []


@pytest.mark.rule("H7")
def test_a_message_says_how_its_transaction_is_checked(begin: Begin, address: str, ask: Ask) -> None:
    """The first one that is stored, also where the link has named the group: it goes before what the link asked for."""
    session = begin()
    control = in_group(session, check_immunity_ms=UInt(70), check_interval_ms=UInt(5_000), check_most=UInt(7))
    sender = session.sender(address)
    txn = control.declare()
    message = named(b"1", check_immunity_ms=UInt(80), check_most=UInt(8))
    assert sender.outcome(message, txn=txn).outcome == Accepted()
    assert row(ask, txn)[3:] == (80, 5_000, 8)
    assert sender.outcome(named(b"2", check_most=UInt(9)), txn=txn).outcome == Accepted()
    assert row(ask, txn)[3:] == (80, 5_000, 8)  # too late
    control.commit(txn)


@pytest.mark.rule("H7")
def test_the_longest_immunity(begin: Begin, address: str, ask: Ask) -> None:
    session = begin()
    control, sender = in_group(session, check_immunity_ms=UInt(3_600_000)), session.sender(address)
    txn = control.declare()
    accept(sender, b"1", txn)
    assert row(ask, txn)[3] == 3_600_000
    control.commit(txn)


@pytest.mark.rule("H3", "T15")
def test_a_pipelined_discharge_waits_for_the_posts(begin: Begin, address: str, ask: Ask) -> None:
    session, other = begin(), begin()
    control, sender = in_group(session), session.sender(address)
    for _ in range(20):
        txn = control.declare()
        with session.peer.at_once():
            numbers = [sender.post(data(b"%d" % each), txn=txn) for each in range(5)]
            discharge = control.request(Discharge(txn_id=txn, fail=False))
        assert control.answer_to(discharge).state == Accepted()
        for number in numbers:
            assert sender.answer_to(number).state == TransactionalState(txn_id=txn, outcome=Accepted())
    assert len(other.receiver(address).bodies()) == 100


@pytest.mark.rule("H5", "T15")
def test_discharged_while_a_delivery_is_partial_it_rolls_back(begin: Begin, address: str, ask: Ask) -> None:
    """No checker commits it without that delivery."""
    session = begin()
    control, sender = in_group(session), session.sender(address)
    txn = control.declare()
    accept(sender, b"1", txn)
    number = sender.begin_in(txn)
    asked = control.request(Discharge(txn_id=txn, fail=False))
    assert condition(control.answer_to(asked).state) == control.error == "amqp:transaction:rollback"
    sender.transfer(b"\xa0\x01x", delivery_id=number)
    assert condition(sender.answer_to(number).state) == "amqp:transaction:unknown-id"
    assert decided(ask, txn)[0] == "rollback"
    assert (pending(ask, txn), row(ask, txn)) == (0, None)


@pytest.mark.rule("H3", "T25")
@pytest.mark.parametrize("fail", [False, True])
def test_receiver_settle_mode_second(begin: Begin, address: str, ask: Ask, fail: bool) -> None:
    session = begin()
    control, sender = in_group(session), session.sender(address, rcv_settle_mode=1)
    txn = control.declare()
    number = sender.post(data(b"1"), txn=txn)
    answer = sender.answer_to(number)
    assert (answer.settled or False, answer.state) == (False, TransactionalState(txn_id=txn, outcome=Accepted()))
    assert pending(ask, txn) == 1
    assert control.discharge(txn, fail=fail) == Accepted()
    assert sender.answer_to(number).state == (Released() if fail else Accepted())


@pytest.mark.rule("H2", "T22", "T23")
def test_a_refused_post_rolls_it_back_at_once(begin: Begin, address: str, ask: Ask) -> None:
    session = begin()
    control, sender = in_group(session), session.sender(address)
    txn = control.declare()
    accept(sender, b"1", txn)
    sender.post(BROKEN, txn=txn, settled=True)
    assert decided(ask, txn) == ("rollback", "rollback-only: amqp:decode-error")
    state = control.discharge(txn)
    assert condition(state) == "amqp:transaction:rollback"
    assert "amqp:decode-error" in state.error.description
    assert (row(ask, txn), pending(ask, txn)) == (None, 0)
    txn = control.declare()
    accept(sender, b"1", txn)
    sender.post(BROKEN, txn=txn, settled=True)
    control.roll_back(txn)


@pytest.mark.rule("H1", "H2", "H14")
def test_an_address_of_kind_transaction(service: Service, begin: Begin, address: str, ask: Ask) -> None:
    service.cli("address", "add", address, "--kind", "transaction")
    session = begin()
    control, sender = session.control(), session.sender(address)
    outside = sender.outcome(data(b"plain"))
    assert condition(outside) == "amqp:precondition-failed"
    assert address[:60] in outside.error.description
    assert "transaction" in outside.error.description
    txn = control.declare()
    accept(sender, b"1", txn)
    assert row(ask, txn)[0] == address
    control.commit(txn)
    assert session.receiver(address).bodies() == [b"1"]
    for later in ({"x-opt-delivery-delay": ULong(1000)}, {"x-opt-delivery-time": ULong(1)}):
        txn = control.declare()
        message = section(MESSAGE_ANNOTATIONS, {Symbol(key): value for key, value in later.items()}) + data(b"2")
        refused = sender.outcome(message, txn=txn)
        assert condition(refused.outcome) == "amqp:precondition-failed"
        assert "later" in refused.outcome.error.description
        control.roll_back(txn)
    grouped = in_group(session, "mine").declare()
    accept(sender, b"3", grouped)
    assert row(ask, grouped)[0] == "mine"


@pytest.mark.rule("H1")
def test_a_normal_address_takes_plain_posts_too(begin: Begin, address: str) -> None:
    session = begin()
    sender = session.sender(address)
    assert sender.outcome(data(b"plain")) == Accepted()
    control = session.control()
    txn = control.declare()
    accept(sender, b"1", txn)
    control.commit(txn)
    assert session.receiver(address).bodies() == [b"plain", b"1"]


@pytest.mark.rule("H4", "P17", "D7")
def test_terms_are_kept_until_the_decision(begin: Begin, address: str, ask: Ask) -> None:
    session, other = begin(), begin()
    control, sender = in_group(session), session.sender(address)
    txn = control.declare()
    later = section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-delivery-delay"): ULong(300)}) + data(b"later")
    urgent = section(Header.CODE, Header(priority=9).described().value) + data(b"urgent")
    for message in (data(b"plain"), later, urgent):
        assert sender.outcome(message, txn=txn).outcome == Accepted()
    control.commit(txn)
    consumer = other.receiver(address, credit=10)
    assert [consumer.take().body for _ in range(3)] == [b"urgent", b"plain", b"later"]


@pytest.mark.rule("H4", "D1", "P16")
def test_each_subscription_gets_it_but_one_with_no_local(begin: Begin, address: str, ask: Ask) -> None:
    session, other = begin(), begin()
    quiet = filtered(address, {"no-local": Described(NO_LOCAL, [])}, capabilities=TOPIC)
    own = session.receiver(quiet, credit=10)
    theirs = other.receiver(filtered(address, {}, capabilities=TOPIC), credit=10)
    control, sender = in_group(session), session.sender(address)
    txn = control.declare()
    accept(sender, b"1", txn)
    control.commit(txn)
    assert theirs.take().body == b"1"
    session.sync()
    assert not own.arrived
