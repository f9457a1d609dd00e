"""Part 2, section 2.7.4: a flow with ``echo`` is answered with the state of the session, or of the link (rule P5)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fix_night import by_night
from tests.fix_wire import Begin
from tests.wire.frames import Accepted, Flow, Source
from tests.wire.links import Receiver, Sender
from tests.wire.messages import data
from tests.wire.peer import Session


def said(receiver: Receiver) -> Flow:
    """The next flow of that link, which must come."""
    while not receiver.flows:
        receiver.session.peer.step()
    return receiver.flows.popleft()


def of_session(session: Session) -> Flow:
    while not session.flows:
        session.peer.step()
    return session.flows.popleft()


@pytest.mark.rule("P5")
@pytest.mark.parametrize("size", [10, 100_000])
def test_of_a_session(begin: Begin, address: str, size: int) -> None:
    """It counts the transfers of both sides; a message may take many."""
    session = begin(max_frame_size=4096)
    session.flow(echo=True)
    found = of_session(session)
    assert (found.next_incoming_id, found.next_outgoing_id) == (session.next_outgoing_id, session.next_incoming_id)
    sender, receiver = session.sender(address), session.receiver(address)
    for _ in range(3):
        assert sender.outcome(data(bytes(size))) == Accepted()
    assert len(receiver.bodies()) == 3
    session.flow(echo=True)
    found = of_session(session)
    assert (found.next_incoming_id, found.next_outgoing_id) == (session.next_outgoing_id, session.next_incoming_id)
    assert found.incoming_window == session.remote.incoming_window
    assert found.handle is None


@pytest.mark.rule("P5")
@pytest.mark.parametrize("sent", [1000, -3])
def test_what_the_peer_says_that_it_has_sent_counts(begin: Begin, address: str, sent: int) -> None:
    """Part 2, section 2.5.6: of that session, in echoes and in flows that give credit, until its end."""
    peer = begin().peer
    session, other = peer.begin(next_outgoing_id=10), peer.begin()
    session.next_outgoing_id += sent
    session.flow(echo=True)
    assert of_session(session).next_incoming_id == session.next_outgoing_id
    sender = session.sender(address)
    assert session.remote_window == session.remote.incoming_window
    assert sender.outcome(data(b"x")) == Accepted()
    session.flow(echo=True)
    assert of_session(session).next_incoming_id == session.next_outgoing_id
    other.sender(address)
    assert other.remote_window == other.remote.incoming_window
    session.end()
    again = peer.begin()
    again.sender(address)
    assert again.remote_window == again.remote.incoming_window


@pytest.mark.rule("P5")
def test_of_one_session_among_several(begin: Begin, address: str) -> None:
    first = begin()
    second = first.peer.begin()
    first.sender(address).post(data(b"x"))
    second.flow(echo=True)
    assert of_session(second).next_incoming_id == 0
    first.flow(echo=True)
    assert of_session(first).next_incoming_id == 1


@pytest.mark.rule("P5")
@pytest.mark.parametrize("source", [{}, {"distribution_mode": "copy"}], ids=["consumer", "browser"])
def test_of_a_link_that_receives(begin: Begin, address: str, source: dict[str, str]) -> None:
    """Its delivery-count and credit, as messages come and credit goes."""
    session = begin()
    sender = session.sender(address)
    receiver = session.receiver(Source(address=address, **source))  # type: ignore[arg-type]
    receiver.credit(0, echo=True)
    found = said(receiver)
    assert (found.delivery_count, found.link_credit) == (0, 0)
    receiver.credit(5, echo=True)
    found = said(receiver)
    assert (found.delivery_count, found.link_credit, found.drain) == (0, 5, False)
    sender.outcome(data(b"one"))
    sender.outcome(data(b"two"))
    receiver.take_many(2)
    receiver.credit(0, echo=True)
    found = said(receiver)
    assert (found.delivery_count, found.link_credit) == (2, 3)
    assert (found.next_outgoing_id, found.next_incoming_id) == (2, 2)


@pytest.mark.rule("P5")
def test_a_drain_without_credit_is_answered(begin: Begin, address: str) -> None:
    """Section 2.6.7: clients wait for the flow that says that all credit is used."""
    session = begin()
    receiver = session.receiver(address)
    for _ in range(2):
        receiver.credit(0, drain=True)
        found = said(receiver)
        assert (found.delivery_count, found.link_credit, found.drain) == (0, 0, True)
    assert receiver.drain() == []
    receiver.flows.clear()
    receiver.credit(0, drain=True)
    found = said(receiver)
    assert (found.delivery_count, found.link_credit, found.drain) == (1000, 0, True)
    session.sender(address).post(data(b"x"))
    assert receiver.take().body == b"x"


def credit_after(sender: Sender) -> int:
    """What the service says that there is."""
    sender.link_credit = -1
    sender.session.flow(handle=sender.handle, delivery_count=sender.delivery_count, echo=True)
    while sender.link_credit < 0:
        sender.session.peer.step()
    return sender.link_credit


@pytest.mark.rule("P5")
def test_of_links_that_post(begin: Begin, address: str) -> None:
    """However often it is asked, and whatever was posted meanwhile."""
    session = begin()
    for link in (session.sender(address), session.sender(None), session.control()):
        first = link.link_credit
        for _ in range(5):
            assert first <= credit_after(link) <= first + 1
    sender = session.sender(address)
    first = sender.link_credit
    for number in range(3 * first):
        assert sender.outcome(data(b"%d" % number)) == Accepted()
        if number % 7 == 0:
            assert 0 < credit_after(sender) <= first + 1


@pytest.mark.rule("P5")
def test_many_at_once(begin: Begin, address: str) -> None:
    session = begin()
    receiver = session.receiver(address)
    with session.peer.at_once():
        for _ in range(100):
            session.flow(echo=True)
            receiver.credit(1, echo=True)
    of_session(session)
    while said(receiver).link_credit != 100:
        """The last flow says it all; there may be one for several."""


@pytest.mark.rule("P5")
def test_of_a_session_without_drain(begin: Begin) -> None:
    """A field that has its default value says nothing."""
    session = begin()
    session.flow(drain=False, echo=True)
    assert of_session(session).handle is None


@pytest.mark.rule("P5")
@pytest.mark.parametrize("credit", [by_night(2**31 - 1), by_night(2**31), 2**32 - 1])
@pytest.mark.parametrize("source", [{}, {"distribution_mode": "copy"}], ids=["consumer", "browser"])
def test_as_much_credit_as_can_be_given(begin: Begin, address: str, credit: int, source: dict[str, Any]) -> None:
    """It is a uint (part 2, section 2.7.4); the engine counts in a signed one."""
    session = begin()
    sender, receiver = session.sender(address), session.receiver(Source(address=address, **source))
    assert sender.outcome(data(b"1")) == Accepted()
    receiver.credit(credit)
    assert receiver.take().body == b"1"
    assert sender.outcome(data(b"2")) == Accepted()
    assert receiver.take().body == b"2"
    session.flow(handle=receiver.handle, delivery_count=2, link_credit=credit, echo=True)
    assert said(receiver).link_credit == min(credit, 2**31 - 1)
