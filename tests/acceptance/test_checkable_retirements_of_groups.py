"""Deliveries of message groups that are retired in checkable transactions: their groups wait (rules H20, P18)."""

from __future__ import annotations

import pytest

from tests.fix_service import Service
from tests.fix_wire import Ask, Begin
from tests.wire.checkable import in_group
from tests.wire.frames import Accepted, Released
from tests.wire.messages import Properties, data
from tests.wire.retirements import let_go, retire, soon, waiting


@pytest.mark.rule("H20", "P18", "D3")
@pytest.mark.parametrize("fail", [False, True])
def test_its_message_group_waits_and_keeps_its_order(
    service: Service, begin: Begin, address: str, ask: Ask, fail: bool
) -> None:
    service.cli("address", "add", address, "--kind", "fifo")
    session, other = begin(), begin()
    for group, body in (("a", b"a1"), ("a", b"a2"), ("b", b"b1"), ("a", b"a3")):
        assert session.sender(address).outcome(Properties(group_id=group).encoded() + data(body)) == Accepted()
    consumer, control = session.receiver(address, credit=1), in_group(session)
    txn = control.declare()
    first = consumer.take()
    assert first.body == b"a1"
    retire(first, txn)
    session.peer.close_socket()
    let_go(ask, txn)
    second = other.receiver(address, credit=10)
    soon(second, b"b1", 0)
    other.sync()
    assert not second.arrived
    assert in_group(other).discharge(txn, fail=fail) == Accepted()
    if fail:
        soon(second, b"a1", 1)
    assert [second.take().body, second.take().body] == [b"a2", b"a3"]


@pytest.mark.rule("H20", "P18", "D3")
@pytest.mark.parametrize("way", ["lost", "released"])
def test_what_a_consumer_had_behind_it_waits_as_well(
    service: Service, begin: Begin, address: str, ask: Ask, way: str
) -> None:
    """Another consumer of the same worker, which could have it from memory, does not get it before."""
    service.cli("address", "add", address, "--kind", "fifo")
    session, other = begin(), begin()
    waiting(session, address, b"1", b"2", b"3", message=lambda body: Properties(group_id="a").encoded() + data(body))
    consumer, control = session.receiver(address, credit=2), in_group(session)
    txn = control.declare()
    first, behind = consumer.take(), consumer.take()
    second = other.receiver(address, credit=10)
    retire(first, txn)
    if way == "lost":
        session.peer.close_socket()
    else:
        control.detach()
    let_go(ask, txn)
    if way == "released":
        behind.disposition(Released())
        session.sync()
    waiting(other, address, b"else", message=lambda body: Properties(group_id="b").encoded() + data(body))
    assert second.take().body == b"else"
    other.sync()
    assert not second.arrived
    if way == "released":
        consumer.detach()
    assert in_group(other).discharge(txn, fail=True) == Accepted()
    assert [second.take().body for _ in range(3)] == [b"1", b"2", b"3"]
