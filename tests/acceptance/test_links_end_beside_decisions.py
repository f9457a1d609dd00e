"""Links that end while decisions are on their way to the store: what their peers are told, and get."""

from __future__ import annotations

import pytest

from tests.fix_compiled import BOTH_RULES
from tests.fix_service import Service
from tests.fix_wire import Begin
from tests.held_store import nothing_is_decided
from tests.wire.frames import Accepted, Detach, Discharge
from tests.wire.messages import data
from tests.wire.queues import condition

pytestmark = BOTH_RULES


@pytest.mark.rule("T8", "T13")
@pytest.mark.parametrize("closed", [True, False])
def test_a_discharge_is_answered_before_its_control_link_ends(
    service: Service, begin: Begin, address: str, closed: bool
) -> None:
    """A settlement without an outcome may be taken for success, and the commit is not durable. What is not discharged
    rolls back.
    """
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn, other = control.declare(), control.declare()
    sender.outcome(data(b"x"), txn=txn)
    sender.outcome(data(b"y"), txn=other)
    with nothing_is_decided(service) as waits:
        with session.peer.at_once():
            asked = control.request(Discharge(txn_id=txn, fail=False))
            session.send(Detach(handle=control.handle, closed=closed))
        waits()
        session.sync()
        assert (list(session.answers[asked]), control.detached) == ([], None)
    answer = control.answer_to(asked)
    assert (answer.state, answer.settled) == (Accepted(), True)
    while control.detached is None:
        session.peer.step()
    assert control.detached.closed
    assert session.receiver(address).bodies() == [b"x"]


@pytest.mark.rule("T5", "T8")
def test_nor_does_the_service_end_it_before(service: Service, begin: Begin, address: str) -> None:
    """What comes meanwhile is refused for the same reason."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    sender.outcome(data(b"x"), txn=txn)
    with nothing_is_decided(service) as waits:
        asked = control.request(Discharge(txn_id=txn, fail=False))
        waits()
        control.request(Discharge(txn_id=bytes(16), fail=False), settled=True)
        later = control.reply(Discharge(txn_id=bytes(16), fail=False))
        assert condition(later) == "amqp:illegal-state"
        assert (list(session.answers[asked]), control.detached) == ([], None)
    assert control.answer_to(asked).state == Accepted()
    assert control.error == "amqp:illegal-state"


@pytest.mark.rule("T13", "P5")
@pytest.mark.parametrize("how", ["detach", "close", "discharge"])
def test_a_drain_waits_for_what_a_rollback_gives_back(service: Service, begin: Begin, address: str, how: str) -> None:
    """As it does outside transactions."""
    session, other = begin(), begin()
    for body in (b"1", b"2", b"3"):
        session.sender(address).outcome(data(body))
    control, consumer = session.control(), session.receiver(address, credit=3)
    txn = control.declare()
    for delivery in consumer.take_many(3):
        delivery.retire(txn, settled=False)
    session.sync()
    drains = other.receiver(address)
    with nothing_is_decided(service) as waits:
        with session.peer.at_once():
            if how != "close":
                session.send(Detach(handle=consumer.handle, closed=True))
            if how == "detach":
                session.send(Detach(handle=control.handle, closed=True))
            if how == "discharge":
                control.request(Discharge(txn_id=txn, fail=True))
        if how == "close":
            session.peer.close()
        waits()
        drains.credit(10, drain=True)
        other.sync()
        assert not drains.arrived
        assert drains.link_credit == 10
    assert [each.body for each in drains.take_many(3)] == [b"1", b"2", b"3"]
