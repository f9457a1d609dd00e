"""Work in transactions frame by frame: many links as one, acquisition, empty transactions (part 4, section 4.4; rules
T31, T33, T35)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fix_wire import Ask, Begin
from tests.wire.frames import (
    Accepted,
    Declare,
    Discharge,
    Flow,
    Transfer,
    frame,
)
from tests.wire.links import Receiver
from tests.wire.messages import VALUE, data, section
from tests.wire.queues import post
from tests.wire.types import Symbol


@pytest.mark.rule("T31")
@pytest.mark.parametrize("fail", [False, True])
def test_many_links_and_sessions_are_one(begin: Begin, address: str, fail: bool) -> None:
    """Part 4, section 4.1 (multi-ssns-per-txn): posts to many targets and retirements from many sources."""
    session, other = begin(), begin()
    names = [f"{address}-{number}" for number in range(3)]
    for name in names:
        post(session, name, b"old")
    control = session.control()
    txn, aside = control.declare(), control.declare()
    held: list[Receiver] = []
    for name in names:
        working = session.peer.begin()
        working.sender(name).outcome(data(b"new"), txn=txn)
        held.append(working.receiver(name))
        held[-1].take().retire(txn)
    session.sender(names[0]).outcome(data(b"aside"), txn=aside)
    assert control.discharge(txn, fail=fail) == Accepted()
    for consumer in held:
        consumer.detach()
    for name in names:
        assert other.receiver(name).bodies() == ([b"old"] if fail else [b"new"])
    control.commit(aside)
    assert other.receiver(names[0]).bodies() == [b"aside"]


@pytest.mark.rule("T33")
@pytest.mark.parametrize("counted", [True, False], ids=["", "without-next-incoming-id"])
@pytest.mark.parametrize("symbolic", [False, True], ids=["", "by-symbol"])
def test_a_flow_with_a_txn_id_ends_its_link(begin: Begin, address: str, symbolic: bool, counted: bool) -> None:
    """Part 4, section 4.4.3: its credit acquires nothing, and the session goes on."""
    session = begin()
    post(session, address, b"x")
    control, consumer = session.control(), session.receiver(address)
    txn = control.declare()
    flow = Flow(
        next_incoming_id=session.next_incoming_id if counted else None, incoming_window=100,
        next_outgoing_id=session.next_outgoing_id, outgoing_window=100, handle=consumer.handle, delivery_count=0,
        link_credit=1, properties={"txn-id": txn},
    )  # fmt: skip
    session.peer.send(flow.encoded(symbolic=symbolic), channel=session.channel)
    assert consumer.error == "amqp:not-implemented"
    assert not consumer.arrived
    taken = session.receiver(address).drain()
    assert [(delivery.body, delivery.count) for delivery in taken] == [(b"x", 0)]


@pytest.mark.rule("T33")
@pytest.mark.parametrize("properties", [{Symbol("txn-id"): None}, {"my-txn-id": b"t"}, {Symbol("x"): Symbol("txn-id")}])
def test_a_flow_with_other_properties_gives_credit(begin: Begin, address: str, properties: dict[Any, Any]) -> None:
    session = begin()
    post(session, address, b"x")
    consumer = session.receiver(address)
    consumer.credit(1, properties=properties)
    assert consumer.take().body == b"x"


@pytest.mark.rule("T35")
def test_empty_transactions_cost_nothing_in_the_store(begin: Begin, ask: Ask) -> None:
    """Declared and discharged with nothing in between: no row, either way."""
    session = begin()
    control = session.control()
    before = ask("select count(*) from coordinator.op")
    txns = [control.declare() for _ in range(20)]
    for number, txn in enumerate(txns):
        assert control.discharge(txn, fail=bool(number % 2)) == Accepted()
    assert ask("select count(*) from coordinator.op") == before
    assert ask("select count(*) from coordinator.txn where id = any(%s::text[]::uuid[])", [t.hex() for t in txns]) == [
        (0,)
    ]


@pytest.mark.rule("T35")
def test_a_declare_waits_for_no_flush(begin: Begin, address: str) -> None:
    """The declare sent with a discharge is answered before it: Qpid JMS sends them together."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    sender.outcome(data(b"x" * 100_000), txn=txn)
    octets = b""
    numbers = []
    for body in (Discharge(txn_id=txn, fail=False), Declare()):
        number = session.next_delivery_id()
        numbers.append(number)
        transfer = Transfer(handle=control.handle, delivery_id=number, delivery_tag=b"t%d" % number, message_format=0)
        octets += frame(transfer, payload=section(VALUE, body.described()), channel=session.channel)
    session.next_outgoing_id += 2
    session.peer.send_octets(octets)
    discharge, declare = numbers
    assert control.answer_to(declare).state is not None
    assert not session.answers[discharge], "the discharge was answered first"
    assert control.answer_to(discharge).state == Accepted()
