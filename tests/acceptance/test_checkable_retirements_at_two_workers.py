"""Retirements in checkable transactions, whose consumers are at one worker and whose deciders at another (rule H20)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coordinator.group.lanes import message_group
from tests.fix_service import Service, running_service
from tests.fix_wire import Ask, DialTo, decided
from tests.wire.checkable import in_group, left
from tests.wire.frames import Accepted, Open, Released, TransactionalState
from tests.wire.links import Delivery
from tests.wire.messages import Properties, data
from tests.wire.peer import Session
from tests.wire.queues import condition


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service({"check.immunity_seconds": "0", "workers": "2"}) as service:
        yield service


@pytest.fixture
def workers(dial_to: DialTo, address: str) -> list[Session]:
    """A session at each."""
    sessions = []
    for worker in (0, 1):
        peer = dial_to(worker)
        peer.send(Open(container_id=f"{worker}-{address}"))
        peer.remote_open = peer.wait(Open)
        sessions.append(peer.begin())
    return sessions


def retire(delivery: Delivery, txn: bytes) -> None:
    delivery.retire(txn, settled=False)
    assert delivery.settlement().state == TransactionalState(txn_id=txn, outcome=Accepted())


@pytest.mark.rule("H20", "T27")
@pytest.mark.parametrize("fail", [False, True])
def test_another_worker_decides_while_the_consumer_has_the_delivery(
    workers: list[Session], address: str, ask: Ask, fail: bool
) -> None:
    here, there = workers
    sender = there.sender(address)
    for body in (b"1", b"2"):
        assert sender.outcome(data(body)) == Accepted()
    control, consumer = in_group(here), here.receiver(address, credit=1)
    txn = control.declare()
    delivery = consumer.take()
    retire(delivery, txn)
    second = there.receiver(address, credit=5)
    assert second.take().body == b"2"
    assert in_group(there).discharge(txn, fail=fail) == Accepted()
    if fail:
        there.sync()
        assert not second.arrived
        assert condition(control.discharge(txn)) == "amqp:transaction:rollback"
        delivery.disposition(Released())
        assert second.take().body == b"1"
    else:
        assert delivery.settlement().state == Accepted()
        control.commit(txn)
        there.sync()
        assert not second.arrived


@pytest.mark.rule("H20", "H8")
@pytest.mark.parametrize("commits", [True, False])
def test_a_checker_at_another_worker_decides_for_a_consumer_that_is_gone(
    workers: list[Session], address: str, ask: Ask, commits: bool
) -> None:
    here, there = workers
    for number in range(20):
        assert there.sender(address).outcome(data(b"%d" % number)) == Accepted()
    second = there.receiver(address, credit=0)
    txn = in_group(here, address).declare()
    taken = here.receiver(address, credit=20).take_many(20)
    for each in taken:
        retire(each, txn)
    here.peer.close_socket()
    left(ask, txn)
    assert second.drain() == []
    check = there.receiver(f"$check/{address}", credit=1).take()
    check.disposition(Accepted() if commits else Released(), settled=False)
    check.settlement()
    if commits:
        assert decided(ask, txn) == ("commit", "checked")
        assert second.drain() == []
    else:
        in_group(there, address).roll_back(txn)
        second.credit(20)
        back = second.take_many(20)
        assert [(each.body, each.count) for each in back] == [(b"%d" % number, 1) for number in range(20)]


@pytest.mark.rule("H20", "P18", "D3")
@pytest.mark.parametrize("fail", [False, True])
def test_a_message_group_waits_at_all_workers(
    service: Service, workers: list[Session], address: str, ask: Ask, fail: bool
) -> None:
    service.cli("address", "add", address, "--kind", "fifo")
    here, there = workers
    a, b = sorted(("one", "other"), key=message_group)  # a consumer gets groups in the order of their numbers
    for group, body in ((a, b"a1"), (a, b"a2"), (b, b"b1"), (a, b"a3")):
        assert there.sender(address).outcome(Properties(group_id=group).encoded() + data(body)) == Accepted()
    txn = in_group(here).declare()
    first = here.receiver(address, credit=1).take()
    assert first.body == b"a1"
    retire(first, txn)
    second = there.receiver(address, credit=10)
    assert second.take().body == b"b1"
    here.peer.close_socket()
    left(ask, txn)
    there.sync()
    assert not second.arrived
    assert in_group(there).discharge(txn, fail=fail) == Accepted()
    expected = [b"a1"] * fail + [b"a2", b"a3"]
    assert [second.take().body for _ in expected] == expected
