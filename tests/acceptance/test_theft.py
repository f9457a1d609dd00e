"""A link's name that is attached again on the same session (part 2, section 2.6.1): the second steals the first."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fix_wire import Ask, Begin, decided
from tests.wire.frames import RECEIVER, SENDER, Accepted, Attach, Detach, End, Flow, Source, Target, Transfer
from tests.wire.messages import data
from tests.wire.peer import Session
from tests.wire.queues import post


def _sender(session: Session, address: str) -> Any:
    return session.sender(address, name="again")


def _receiver(session: Session, address: str) -> Any:
    return session.receiver(address, name="again")


def _browser(session: Session, address: str) -> Any:
    return session.receiver(Source(address=address, distribution_mode="copy"), name="again")


def _control(session: Session, address: str) -> Any:
    return session.control(name="again")


@pytest.mark.rule("P13")
@pytest.mark.parametrize("attach", [_sender, _receiver, _browser, _control])
def test_a_name_attached_again_on_the_same_session(begin: Begin, address: str, attach: Any) -> None:
    """Again and again; the first ends with amqp:link:stolen, and all else goes on."""
    session = begin()
    other = session.sender(address, name="other")
    link = attach(session, address)
    for _ in range(3):
        before, link = link, attach(session, address)
        assert before.error == "amqp:link:stolen"
        assert link.detached is None
    link.detach()
    assert other.outcome(data(b"x")) == Accepted()
    assert session.receiver(address).bodies() == [b"x"]


@pytest.mark.rule("P13", "D5")
def test_what_the_first_had_comes_to_the_second(begin: Begin, address: str) -> None:
    session = begin()
    post(session, address, b"x")
    first = _receiver(session, address)
    assert first.take().count == 0
    second = _receiver(session, address)
    assert first.error == "amqp:link:stolen"
    taken = second.take()
    assert (taken.body, taken.count) == (b"x", 1)
    taken.disposition(Accepted())
    second.detach()
    assert session.receiver(address).drain() == []


@pytest.mark.rule("P13", "T13")
def test_the_transactions_of_a_control_link_that_is_stolen_roll_back(begin: Begin, address: str, ask: Ask) -> None:
    session = begin()
    first, sender = _control(session, address), session.sender(address)
    txn = first.declare()
    sender.outcome(data(b"x"), txn=txn)
    second = _control(session, address)
    assert first.error == "amqp:link:stolen"
    assert decided(ask, txn) == ("rollback", "link-lost")
    assert second.declare() != txn


@pytest.mark.rule("P13", "D9")
def test_posts_are_answered_before_their_link_is_stolen(begin: Begin, address: str) -> None:
    """All in one go; and what comes behind the attach waits with it."""
    session = begin()
    sender = _sender(session, address)
    with session.peer.at_once():
        numbers = [sender.post(data(b"%d" % number)) for number in range(50)]
        session.send(
            Attach(name="again", handle=9, role=SENDER, target=Target(address="$no"), initial_delivery_count=0)
        )
        session.send(Attach(name="behind", handle=10, role=RECEIVER, source=Source(address=address)))
    assert [sender.answer_to(number).state for number in numbers] == [Accepted()] * 50
    assert sender.error == "amqp:link:stolen"
    assert session.peer.wait(Attach, name="again").target is None
    assert session.peer.wait(Attach, name="behind").source is not None


@pytest.mark.rule("P13", "P14")
def test_what_comes_on_a_stolen_link_means_nothing(begin: Begin, address: str) -> None:
    """Until its detach, which gives its handle back: the session goes on."""
    session = begin()
    first = _sender(session, address)
    second = _sender(session, address)
    session.send(
        Flow(next_incoming_id=0, incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=first.handle,
             delivery_count=0, echo=True)
    )  # fmt: skip
    assert second.outcome(data(b"kept")) == Accepted()
    assert first.error == "amqp:link:stolen"
    session.send(Attach(name="third", handle=first.handle, role=RECEIVER, source=Source(address=address)))
    assert session.peer.wait(Attach, name="third").source is not None
    session.send(Detach(handle=first.handle, closed=True))
    assert session.receiver(address, name="fourth").bodies() == [b"kept"]


@pytest.mark.rule("P13", "P14")
@pytest.mark.parametrize("settled", [True, False])
def test_a_transfer_on_a_stolen_link_ends_its_session(begin: Begin, address: str, settled: bool) -> None:
    """Also one that was under way: nothing of it is stored, and the connection goes on."""
    session = begin()
    first = _sender(session, address)
    assert first.outcome(data(b"kept")) == Accepted()
    _sender(session, address)
    session.send(
        Transfer(handle=first.handle, delivery_id=session.next_delivery_id(), delivery_tag=b"t", message_format=0,
                 settled=settled),
        payload=data(b"lost"),
    )  # fmt: skip
    error = session.peer.wait(End).error
    assert error is not None
    assert error.condition == "amqp:illegal-state"
    assert session.peer.begin().receiver(address).bodies() == [b"kept"]


@pytest.mark.rule("P13")
def test_a_name_is_of_one_direction(begin: Begin, address: str) -> None:
    session = begin()
    sender, receiver = _sender(session, address), _receiver(session, address)
    assert sender.outcome(data(b"x")) == Accepted()
    assert receiver.take().body == b"x"
