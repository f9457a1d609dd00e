"""What undecided transactions may hold of a service, each limit by its setting's name (rule S4)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fix_service import Service, running_service
from tests.fix_wire import Begin
from tests.wire.frames import Declare, Source
from tests.wire.messages import data
from tests.wire.queues import condition


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """One with small limits."""
    settings = {
        "limits.transactions_per_connection": "8",
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
        assert "limits.transactions_per_connection" in refused.error.description
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
