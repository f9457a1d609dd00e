"""Addresses whose kind is changed while they have undecided messages (H1): these are delivered as they were taken."""

from __future__ import annotations

import time

import pytest

from tests.fix_service import Service
from tests.fix_wire import Ask, Begin, decided
from tests.wire.checkable import in_group, left, pending, row
from tests.wire.frames import Accepted, TransactionalState
from tests.wire.links import Sender
from tests.wire.messages import MESSAGE_ANNOTATIONS, data, section
from tests.wire.peer import Session
from tests.wire.queues import condition
from tests.wire.types import Long, Symbol, UInt

pytestmark = pytest.mark.rule("H1")

#: from one kind to another; mixed takes what normal takes
CHANGES = [
    ("normal", "transaction"),
    ("transaction", "mixed"),
    ("normal", "delay"),
    ("delay", "transaction"),
    ("transaction", "delay"),
]


def _message(kind: str, body: bytes) -> bytes:
    """As an address of the kind takes it; due at once."""
    due = section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-delivery-time"): Long(1)}) if kind == "delay" else b""
    return due + data(body)


def _change(session: Session, service: Service, address: str, kind: str) -> None:
    """Known to the worker: it asks for what was changed before it asks for the second of these addresses."""
    service.cli("address", "set", address, "--kind", kind)
    for number in range(2):
        session.sender(f"{address}-{number}-{time.monotonic_ns()}")


def _takes(sender: Sender, message: bytes, txn: bytes) -> None:
    assert sender.outcome(message, txn=txn) == TransactionalState(txn_id=txn, outcome=Accepted())


@pytest.mark.rule("H4", "T8")
@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_what_was_taken_before_is_delivered(
    service: Service, begin: Begin, ask: Ask, address: str, before: str, after: str
) -> None:
    """By the commit of its client, of a transaction that is checkable and of one that is not, and by a checker's."""
    service.cli("address", "add", address, "--kind", before)
    session = begin()
    sender = session.sender(address)
    plain, owned = session.control(), in_group(session, address)
    asked = in_group(session, address, check_immunity_ms=UInt(0))
    txns = [control.declare() for control in (plain, owned, asked)]
    for number, txn in enumerate(txns):
        _takes(sender, _message(before, b"%d" % number), txn)
    _change(session, service, address, after)
    asked.detach()
    check = session.receiver(f"$check/{address}", credit=1).take()
    assert check.message.delivery_annotations["x-opt-txn-id"] == txns[2]
    check.disposition(Accepted())
    plain.commit(txns[0])
    owned.commit(txns[1])
    assert [decided(ask, txn)[0] for txn in txns] == ["commit"] * 3
    consumer = session.receiver(address, credit=3)
    assert sorted(consumer.take().body for _ in txns) == [b"0", b"1", b"2"]


@pytest.mark.rule("D7", "H14")
def test_a_delay_that_was_taken_is_kept(service: Service, begin: Begin, address: str) -> None:
    """Also where the address refuses delays by now."""
    service.cli("address", "add", address, "--kind", "delay")
    session = begin()
    control, sender = in_group(session, address), session.sender(address)
    txn = control.declare()
    at = int(1000 * time.time()) + 1500
    _takes(sender, section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-delivery-time"): Long(at)}) + data(b"later"), txn)
    _change(session, service, address, "transaction")
    refused = sender.outcome(_message("delay", b"no"), txn=control.declare())
    assert condition(refused.outcome) == "amqp:precondition-failed"
    control.commit(txn)
    assert session.receiver(address).take().body == b"later"
    assert time.time() * 1000 >= at


@pytest.mark.rule("T23")
def test_the_next_post_of_the_same_transaction_counts(service: Service, begin: Begin, ask: Ask, address: str) -> None:
    """At an address that takes no such posts any more it is refused, and with it what the transaction has posted."""
    service.cli("address", "add", address)
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    _takes(sender, data(b"1"), txn)
    _change(session, service, address, "delay")
    refused = sender.outcome(data(b"2"), txn=txn)
    assert condition(refused.outcome) == "amqp:precondition-failed"
    assert condition(control.discharge(txn)) == "amqp:transaction:rollback"
    assert session.receiver(address).bodies() == []


@pytest.mark.rule("H2", "H3")
def test_the_next_post_makes_it_checkable(service: Service, begin: Begin, ask: Ask, address: str) -> None:
    """With what was posted while the address was an ordinary one: a checker decides on all of it."""
    service.cli("address", "add", address)
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    _takes(sender, data(b"1"), txn)
    assert row(ask, txn) is None
    _change(session, service, address, "transaction")
    _takes(sender, data(b"2"), txn)
    assert row(ask, txn)[0] == address
    assert pending(ask, txn) == 2
    control.detach()
    left(ask, txn)
    in_group(session, address).commit(txn)
    assert session.receiver(address).bodies() == [b"1", b"2"]


@pytest.mark.rule("H2", "H7")
def test_a_transaction_stays_checkable(service: Service, begin: Begin, ask: Ask, address: str) -> None:
    """Its address is an ordinary one by now; what it posts there afterwards goes with it."""
    service.cli("address", "add", address, "--kind", "transaction")
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    _takes(sender, data(b"1"), txn)
    _change(session, service, address, "normal")
    _takes(sender, data(b"2"), txn)
    assert pending(ask, txn) == 2
    control.detach()
    assert left(ask, txn)[0] == address
    in_group(session, address).commit(txn)
    assert session.receiver(address).bodies() == [b"1", b"2"]
    control = session.control()
    fresh = control.declare()
    _takes(sender, data(b"3"), fresh)
    assert row(ask, fresh) is None
    control.commit(fresh)
