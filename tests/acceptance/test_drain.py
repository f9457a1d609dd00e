"""A drain ends when there is nothing more, and not where the socket is full (part 2, section 2.6.7; rule P5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.fix_service import Service, running_service
from tests.fix_wire import Begin
from tests.wire.frames import Source
from tests.wire.links import Receiver
from tests.wire.messages import data
from tests.wire.peer import Session
from tests.wire.queues import select

#: more in all than a session lets wait to be written
_COUNT, _SIZE = 150, 32 * 1024
_UNSETTLED = 200


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service({"limits.unsettled_per_link": str(_UNSETTLED)}) as service:
        yield service


def any_of(session: Session, address: str) -> Receiver:
    return session.receiver(address)


def chosen(session: Session, address: str) -> Receiver:
    return select(session, address, "kind IS NULL")


def shown(session: Session, address: str) -> Receiver:
    return session.receiver(Source(address=address, distribution_mode="copy"))


def subscribed(session: Session, address: str) -> Receiver:
    return session.receiver(f"{address}::group")


def posted(session: Session, address: str, count: int, size: int) -> None:
    sender = session.sender(address)
    control = session.control()
    txn = control.declare()
    for _ in range(count):
        sender.post(data(bytes(size)), txn=txn)
    control.commit(txn)


@pytest.mark.rule("P5")
@pytest.mark.parametrize("attached", [any_of, chosen, shown, subscribed])
def test_all_that_there_is(begin: Begin, address: str, attached: Callable[[Session, str], Receiver]) -> None:
    session = begin()
    receiver = attached(session, address)
    posted(session, address, _COUNT, _SIZE)
    assert len(receiver.drain()) == _COUNT


@pytest.mark.rule("P5", "P18")
def test_all_that_there_is_of_a_fifo_address(begin: Begin, address: str, service: Service) -> None:
    service.cli("address", "add", address, "--kind", "fifo")
    test_all_that_there_is(begin, address, any_of)


@pytest.mark.rule("P5")
def test_all_large_ones(begin: Begin, address: str) -> None:
    session = begin()
    posted(session, address, 8, 2 << 20)
    assert len(session.receiver(address).drain()) == 8


@pytest.mark.rule("P5", "S4")
@pytest.mark.parametrize("kind", ["normal", "fifo"])
def test_as_much_as_a_link_may_leave_unsettled(begin: Begin, address: str, service: Service, kind: str) -> None:
    """The peer would wait in vain for more."""
    service.cli("address", "add", address, "--kind", kind)
    session = begin()
    posted(session, address, _UNSETTLED + 10, 10)
    receiver = session.receiver(address)
    assert len(receiver.drain()) == _UNSETTLED
