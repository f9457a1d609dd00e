"""What undecided transactions may hold of a service, each limit by its setting's name (rule S4)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.fix_service import Service, running_service
from tests.fix_wire import Ask, Begin, BeginAt
from tests.wire.frames import Accepted, Declare, Rejected, Source, Target
from tests.wire.messages import data
from tests.wire.queues import condition
from tests.wire.types import Symbol, UInt

MIB = 1 << 20


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """One with small limits."""
    settings = {
        "bounds.transactions_per_connection": "8",
        "transaction.longest_timeout_seconds": "600",
        "limits.spool_bytes": "16 MiB",
        "transaction.max_messages": "50",
    }
    with running_service(settings) as service:
        yield service


@pytest.mark.rule("S4", "T7")
def test_more_transactions_than_a_connection_may_have(begin: Begin, address: str) -> None:
    """Part 4, section 4.2: a declare that fails is rejected, with the limit's name. On all control links together; one
    that is decided, or goes with its link, makes room; other connections have their own.
    """
    session, other = begin(), begin()
    control, second = session.control(), session.peer.begin().control()
    txns = [control.declare() for _ in range(6)]
    for _ in range(2):
        second.declare()
    for each in (control, second):
        refused = each.reply(Declare())
        assert condition(refused) == "amqp:resource-limit-exceeded"
        assert "at most 8 undecided transactions" in refused.error.description
    assert other.control().declare()
    control.commit(txns[0])
    session.sender(address).outcome(data(b"x"), txn=txns[1])
    control.commit(txns[1])
    second.detach()
    for _ in range(4):
        assert control.declare()
    assert condition(control.reply(Declare())) == "amqp:resource-limit-exceeded"


@pytest.mark.rule("S4", "T8")
def test_a_declare_too_many_where_rejected_is_not_known(begin: Begin) -> None:
    """Part 4, section 4.2: the source's outcomes say what the peer can take; else the link is detached."""
    session = begin()
    control = session.control(source=Source(outcomes=("amqp:accepted:list", "amqp:declared:list")))
    for _ in range(8):
        control.declare()
    control.request(Declare())
    assert control.error == "amqp:resource-limit-exceeded"
    assert session.control().declare()


@pytest.mark.rule("T14", "S4")
def test_a_timeout_longer_than_the_longest_is_refused(begin: Begin) -> None:
    """Part 2, section 2.8.15: amqp:invalid-field, naming the property and the setting."""
    session = begin()
    assert session.control(properties={Symbol("coordinator:timeout-ms"): UInt(600_000)}).declare()
    control = session.control(properties={Symbol("coordinator:timeout-ms"): UInt(600_001)})
    assert not control.accepted
    found = control.wait_detached().error
    assert found is not None
    assert found.condition == "amqp:invalid-field"
    assert "coordinator:timeout-ms" in str(found.description)
    assert "transaction.longest_timeout_seconds" in str(found.description)


@pytest.mark.rule("T14", "H16")
def test_a_transaction_that_is_not_used_for_long_is_forgotten(begin_at: BeginAt) -> None:
    """After a day, or half the time that decisions are kept: its decision would go with the day of its declare. Work in
    it, or a commit, is told so; the control link goes on.
    """
    with running_service({"retention.hours": "0.001", "retention.decisions_hours": "0.002"}) as short:
        session = begin_at(short)
        control, sender = session.control(), session.sender("later")
        posting, committing, used = control.declare(), control.declare(), control.declare()
        sender.outcome(data(b"used"), txn=used)
        time.sleep(6)
        late = sender.outcome(data(b"late"), txn=posting)
        for refused in (late, control.discharge(posting), control.discharge(committing)):
            assert condition(refused) == "amqp:transaction:timeout"
            assert "no work in it for 3.6 s" in refused.error.description
        assert control.discharge(committing, fail=True) == Accepted()
        control.commit(used)
        again = control.declare()
        sender.outcome(data(b"again"), txn=again)
        control.commit(again)
        assert session.receiver("later").bodies() == [b"used", b"again"]


@pytest.mark.rule("S4", "T23")
def test_a_neighbour_has_room_for_large_messages(begin: Begin, address: str) -> None:
    """Files of large messages are full of one client's undecided transactions: the one with the most of them rolls
    back, with the setting's name; what another client posts, and a transaction with less, are taken.
    """
    session, other = begin(), begin()
    control, sender = session.control(), session.sender(address)
    large, small = control.declare(), control.declare()
    octets = data(bytes(2 * MIB))
    assert sender.outcome(octets, txn=small).outcome == Accepted()
    for _ in range(6):
        assert sender.outcome(octets, txn=large).outcome == Accepted()
    beside = other.sender(address)
    for _ in range(4):
        assert beside.outcome(octets) == Accepted()
    refused = control.discharge(large)
    assert condition(refused) == "amqp:transaction:rollback"
    assert "limits.spool_bytes" in refused.error.description
    control.commit(small)
    assert len(other.receiver(address).bodies()) == 5


@pytest.mark.rule("S4", "T23")
def test_the_largest_goes_on_as_rollback_only(begin: Begin, address: str) -> None:
    """It alone fills all the room: its later posts are refused, and other transactions continue at once."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    octets = data(bytes(2 * MIB))
    outcomes = [sender.outcome(octets, txn=txn).outcome for _ in range(20)]
    accepted = outcomes.count(Accepted())
    assert 0 < accepted < 20
    assert {condition(each) for each in outcomes[accepted:]} == {"amqp:resource-limit-exceeded"}
    assert condition(control.discharge(txn)) == "amqp:transaction:rollback"
    again = control.declare()
    for _ in range(6):
        assert sender.outcome(octets, txn=again).outcome == Accepted()
    control.commit(again)
    assert len(session.receiver(address).bodies()) == 6


@pytest.mark.rule("T22", "T23", "D1")
def test_a_transaction_whose_messages_go_to_many_groups(begin: Begin, address: str, ask: Ask) -> None:
    """It is one SQL transaction with an entry for each group: that many are counted."""
    session = begin()
    topic = Target(address=address, capabilities=("topic",))
    for number in range(20):
        session.receiver(Source(address=f"{address}::{number}", capabilities=("topic",))).detach()
    control, sender = session.control(), session.sender(topic)
    txn = control.declare()
    states = [sender.outcome(data(b"x"), txn=txn) for _ in range(3)]
    assert [type(state.outcome) for state in states] == [Accepted, Accepted, Rejected]
    assert condition(states[2].outcome) == "amqp:resource-limit-exceeded"
    description = states[2].outcome.error.description
    assert "at most 50 messages (transaction.max_messages)" in description
    assert "counts once for each" in description
    assert condition(control.discharge(txn)) == "amqp:transaction:rollback"
    txn = control.declare()
    for _ in range(2):
        sender.post(data(b"y"), txn=txn)
    control.commit(txn)
    counted = """select count(*) from coordinator.entry e join coordinator.consumer_group g on g.id = e.group_id
                   join coordinator.address a on a.id = g.address_id where a.name = %s"""
    assert ask(counted, address) == [(40,)]
