"""Messages that every consumer here has refused go to others in their order, at this instance or another (P11, D5)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from coordinator.group.queues import SURPLUS_SECONDS
from tests.fix_proxy import Proxy
from tests.fix_service import Service, running_service
from tests.fix_wire import Begin, BeginAt
from tests.wire.frames import Accepted, Modified
from tests.wire.links import Receiver
from tests.wire.messages import data
from tests.wire.peer import Session
from tests.wire.queues import post

_WINDOW = 10
_SETTINGS = {"bounds.window_messages": str(_WINDOW)}


@pytest.fixture(scope="module")
def store(module_database_url: str) -> Iterator[Proxy]:
    proxy = Proxy(module_database_url)
    yield proxy
    proxy.close()


@pytest.fixture(scope="module")
def service(store: Proxy) -> Iterator[Service]:
    with running_service({**_SETTINGS, "database_url": store.url}) as service:
        yield service


@pytest.fixture
def other(module_database_url: str, service: Service) -> Iterator[Service]:
    """A second service on the same store."""
    with running_service({**_SETTINGS, "database_url": module_database_url}) as other:
        yield other


def refused(session: Session, address: str, count: int) -> tuple[Receiver, list[bytes]]:
    """So many messages are posted, and a consumer with credit refuses all; and their bodies."""
    bodies = [b"%d" % number for number in range(count)]
    post(session, address, *bodies)
    receiver = session.receiver(address, credit=1000)
    for body in bodies:
        delivery = receiver.take()
        assert delivery.body == body
        delivery.disposition(Modified(undeliverable_here=True))
    return receiver, bodies


@pytest.mark.rule("P11", "D5")
def test_what_is_posted_while_they_come_back_is_sent_after_them(begin: Begin, address: str, store: Proxy) -> None:
    session = begin()
    receiver, bodies = refused(session, address, _WINDOW // 2)
    other = session.receiver(address)
    assert receiver.drain() == []
    sender = session.sender(address)
    sender.wait_for_credit()
    with store.held("replies"):
        sender.post(data(b"new"))
        session.sync()
        other.credit(len(bodies) + 1)
        session.sync()
    assert [each.body for each in other.take_many(len(bodies) + 1)] == [*bodies, b"new"]


@pytest.mark.rule("P11", "D5")
def test_one_that_takes_them_one_by_one_gets_them_in_order(begin: Begin, address: str) -> None:
    """Beside the one that has refused them, and has credit."""
    _, bodies = refused(begin(), address, 20 * _WINDOW)
    other = begin().receiver(address)
    for body in bodies[:20]:
        delivery = other.take()
        assert delivery.body == body
        delivery.disposition(Accepted())


@pytest.mark.rule("P11")
@pytest.mark.parametrize("count", [_WINDOW // 2, 30 * _WINDOW])
def test_consumers_of_another_instance_get_them(
    begin: Begin, begin_at: BeginAt, other: Service, address: str, count: int
) -> None:
    """Whether the consumer that has refused them has room for more, or none."""
    receiver, bodies = refused(begin(), address, count)
    found = [each.body for each in begin_at(other).receiver(address).take_many(len(bodies))]
    assert sorted(found) == sorted(bodies)
    assert receiver.drain() == []


@pytest.mark.rule("P11")
def test_consumers_of_another_instance_get_them_when_the_credit_is_gone(
    begin: Begin, begin_at: BeginAt, other: Service, address: str
) -> None:
    receiver, bodies = refused(begin(), address, _WINDOW // 2)
    time.sleep(3 * SURPLUS_SECONDS)  # else what is not aside yet brings all of them to the store
    assert receiver.drain() == []
    assert [each.body for each in begin_at(other).receiver(address).take_many(len(bodies))] == bodies
