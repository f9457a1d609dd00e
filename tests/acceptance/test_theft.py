"""A link's name that is attached again on the same session (part 2, section 2.6.1): the second steals the first."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from coordinator.service import Service as InProcess
from links.posting import Posting
from tests.fix_wire import Ask, Begin, Dial, decided
from tests.wire.frames import (
    AMQP_HEADER,
    RECEIVER,
    SENDER,
    Accepted,
    Attach,
    Detach,
    End,
    Flow,
    Open,
    Source,
    Target,
    frame,
)
from tests.wire.messages import data
from tests.wire.peer import Peer, Session
from tests.wire.queues import post
from tests.wire.types import Symbol


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


@pytest.mark.rule("P13", "S5")
@pytest.mark.parametrize("by", ["detach", "attach"])
def test_a_link_that_another_could_not_steal_is_let_go(
    service_and_port: tuple[InProcess, int], by: str, address: str
) -> None:
    """The second is refused while posts of the first wait for the store: once these are answered, nothing is left."""
    peer = Peer(service_and_port[1])
    peer.open()
    session = peer.begin()
    sender = _sender(session, address)
    with peer.at_once():
        number = sender.post(data(b"x"))
        session.send(
            Attach(name="again", handle=9, role=SENDER, target=Target(address="$no"), initial_delivery_count=0)
        )
        if by == "detach":
            session.send(Detach(handle=sender.handle, closed=True))
    assert sender.answer_to(number).state == Accepted()
    while sender.detached is None:
        peer.step()
    assert peer.wait(Attach, name="again").target is None
    peer.close()
    other = Peer(service_and_port[1])
    other.open()  # answered in a later turn
    other.close()
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, Posting)]


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
@pytest.mark.parametrize("begun", [True, False], ids=["under-way", "new"])
def test_transfers_on_a_stolen_link_are_let_go(begin: Begin, address: str, begun: bool, settled: bool) -> None:
    """Also where the first of a delivery came before: nothing of it is stored, and its session goes on."""
    session = begin()
    first = _sender(session, address)
    assert first.outcome(data(b"kept")) == Accepted()
    fields: dict[str, Any] = {
        "delivery_id": session.next_delivery_id(), "delivery_tag": b"t", "message_format": 0, "settled": settled
    }  # fmt: skip
    message = data(b"lost")
    if begun:
        first.transfer(message[:3], **fields, more=True)
        fields = {}
    second = _sender(session, address)
    first.transfer(message[3:] if begun else message, **fields)
    assert first.error == "amqp:link:stolen"
    for number in range(3):
        assert second.outcome(data(b"%d" % number)) == Accepted()
    assert session.receiver(address).bodies() == [b"kept", b"0", b"1", b"2"]


@pytest.mark.rule("P13", "P14")
def test_an_attach_as_large_as_a_frame_may_be(begin: Begin, address: str) -> None:
    """The engine's name of its link is longer: it would take the frame for one that is too large."""
    sessions = [begin()]
    peer = sessions[0].peer
    sessions.append(peer.begin())
    assert peer.remote_open is not None
    most = peer.remote_open.max_frame_size or 0

    def attach(octets: int) -> Attach:
        more = {Symbol("more"): "x" * octets}
        return Attach(name="again", handle=9, role=RECEIVER, source=Source(address=address), properties=more)

    largest = attach(1000 + most - len(frame(attach(1000))))
    assert len(frame(largest)) == most
    sessions[0].send(largest)
    peer.wait(Attach, name="again")
    _receiver(sessions[1], address)
    sessions[1].send(largest)
    assert peer.wait(End).error.condition == "amqp:frame-size-too-small"
    sessions[0].sync()


@pytest.mark.rule("P13")
def test_an_echo_of_each_is_its_own(begin: Begin, address: str) -> None:
    """The name is in use by three links at once: the last one alone is there for the service."""
    session = begin()
    receivers = [_receiver(session, address) for _ in range(3)]
    receivers[2].credit(5, echo=True)
    while not receivers[2].flows:
        session.peer.step()
    assert receivers[2].flows.popleft().link_credit == 5
    for receiver in receivers[:2]:
        receiver.credit(7, echo=True)
        assert receiver.error == "amqp:link:stolen"
    again = _receiver(session, address)
    assert receivers[2].error == "amqp:link:stolen"
    again.credit(1)
    post(session, address, b"x")
    assert again.take().body == b"x"


@pytest.mark.rule("P13")
def test_names_that_are_free_again(begin: Begin, address: str) -> None:
    """In every order in which two of one name, and a third, may come and go."""
    session = begin()
    first, second = _receiver(session, address), _receiver(session, address)
    second.detach()
    third = _receiver(session, address)
    assert first.error == "amqp:link:stolen"
    third.detach()
    for _ in range(3):
        _receiver(session, address).detach()
    post(session, address, b"x")
    assert _receiver(session, address).bodies() == [b"x"]


@pytest.mark.rule("P13")
def test_a_container_without_an_id(dial: Dial, address: str) -> None:
    """Its links are those of its connection."""
    peers = [dial(), dial()]
    for peer in peers:
        peer.send_octets(AMQP_HEADER)
        assert peer.read_header() == AMQP_HEADER
        peer.send(Open(container_id=""))
        peer.remote_open = peer.wait(Open)
    sessions = [peer.begin() for peer in peers]
    first, other = [_sender(session, address) for session in sessions]
    second = _sender(sessions[0], address)
    assert first.error == "amqp:link:stolen"
    assert [link.outcome(data(b"x")) for link in (second, other)] == [Accepted()] * 2


@pytest.mark.rule("P13")
def test_a_name_is_of_one_direction(begin: Begin, address: str) -> None:
    session = begin()
    sender, receiver = _sender(session, address), _receiver(session, address)
    assert sender.outcome(data(b"x")) == Accepted()
    assert receiver.take().body == b"x"
