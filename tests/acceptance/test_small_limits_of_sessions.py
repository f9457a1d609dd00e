"""What a peer may have when its session has ended, or when it asks for its state again and again."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.fix_service import Service, running_service
from tests.fix_wire import Begin
from tests.wire.frames import Accepted, Detach, End
from tests.wire.messages import Properties, data


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service({"bounds.links_per_connection": "12", "bounds.link_credit": "10"}) as service:
        yield service


@pytest.mark.rule("P12", "P14")
def test_links_of_a_session_that_the_peer_has_not_ended_count(begin: Begin, address: str) -> None:
    """The engine keeps them until then."""
    session = begin()
    for _ in range(7):
        assert session.sender(address).accepted
    session.send(Detach(handle=99, closed=True))
    assert session.peer.wait(End).error.condition == "amqp:session:unattached-handle"
    other = session.peer.begin()
    for _ in range(5):
        assert other.sender(address).accepted
    assert other.sender(address).error == "amqp:resource-limit-exceeded"
    session.send(End())
    assert other.sender(address).accepted


@pytest.mark.rule("P5", "P12")
def test_asking_for_credit_gives_no_more_than_one(begin: Begin, address: str, service: Service) -> None:
    """However often the peer asks (part 2, section 2.7.4: ``echo``), while the store is away."""
    session = begin()
    sender = session.sender(None)
    sender.wait_for_credit()
    service.signal_database(signal.SIGSTOP)
    try:
        for _ in range(3):
            while sender.link_credit > 0:
                sender.post(Properties(to=address).encoded() + data(b"x"))
            session.flow(handle=sender.handle, delivery_count=sender.delivery_count, echo=True)
            session.flow(echo=True)
            while not session.flows:
                session.peer.step()
            session.flows.clear()
            assert 0 <= sender.link_credit <= 1
    finally:
        service.signal_database(signal.SIGCONT)
    assert sender.delivery_count == 11
    sender.wait_for_credit()


@pytest.mark.rule("P5")
def test_credit_that_is_taken_back_may_be_used_still(begin: Begin, address: str) -> None:
    """Asked once, the service lends one; asked again, it takes that back, while all is on its way to it."""
    session = begin()
    sender = session.sender(address)
    session.flow(handle=sender.handle, delivery_count=sender.delivery_count, echo=True)
    session.sync()
    assert sender.link_credit == 11
    with session.peer.at_once():
        session.flow(handle=sender.handle, delivery_count=sender.delivery_count, echo=True)
        last = [sender.post(data(b"%d" % number)) for number in range(11)][-1]
    assert sender.answer_to(last).state == Accepted()
    session.sync()
    assert sender.detached is None
