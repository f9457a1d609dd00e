"""Work in transactions frame by frame: many links as one, empty transactions (part 4, section 4.4; rules T31 and
T35)."""

from __future__ import annotations

import pytest

from tests.fix_wire import Ask, Begin
from tests.wire.frames import (
    Accepted,
    Declare,
    Discharge,
    Transfer,
    frame,
)
from tests.wire.links import Receiver
from tests.wire.messages import VALUE, data, section
from tests.wire.queues import post


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
