"""What ends a session or a link, and leaves the connection as it is (part 2, sections 2.5.5, 2.7 and 2.8.17)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.fix_night import by_night
from tests.fix_wire import Begin, Dial
from tests.wire import types
from tests.wire.frames import (
    AMQP_HEADER,
    RECEIVER,
    SENDER,
    Accepted,
    Attach,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Record,
    Source,
    Target,
    TransactionalState,
    Transfer,
    frame,
    without,
)
from tests.wire.frames import Begin as BeginFrame
from tests.wire.messages import data
from tests.wire.peer import Peer, Session
from tests.wire.queues import post

_NOWHERE = 77
_BEGIN = BeginFrame(next_outgoing_id=0, incoming_window=9, outgoing_window=9)
_FLOW = Flow(next_incoming_id=0, incoming_window=9, next_outgoing_id=0, outgoing_window=9)


def ended(session: Session) -> Any:
    """The error of the service's end, which must come; it is answered."""
    error = session.peer.wait(End).error
    del session.peer.sessions[session.remote_channel]
    session.send(End())
    return error


@contextmanager
def in_pieces(peer: Peer, size: int) -> Iterator[None]:
    """What is sent meanwhile is written in pieces of so many octets."""
    whole: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peer, "send_octets", whole.append)
        yield
    octets = b"".join(whole)
    for at in range(0, len(octets), size):
        peer.send_octets(octets[at : at + size])


def still_serves(session: Session, address: str) -> None:
    """The connection of this session, which has ended, has others."""
    other = session.peer.begin()
    assert other.sender(address).outcome(data(b"after")) == Accepted()
    assert other.receiver(address).bodies()[-1] == b"after"
    session.peer.close()


@pytest.mark.rule("P14")
@pytest.mark.parametrize(
    "performative",
    [
        Transfer(handle=_NOWHERE, delivery_id=0, delivery_tag=b"t", message_format=0),
        Flow(
            next_incoming_id=0, incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=_NOWHERE,
            delivery_count=0, link_credit=1,
        ),
        Detach(handle=_NOWHERE, closed=True),
    ],
    ids=lambda each: type(each).__name__,
)  # fmt: skip
def test_a_handle_that_no_link_has_ends_the_session(begin: Begin, address: str, performative: Record) -> None:
    """Part 2, section 2.8.17: amqp:session:unattached-handle."""
    session = begin()
    session.sender(address)
    session.send(performative)
    assert ended(session).condition == "amqp:session:unattached-handle"
    still_serves(session, address)


@pytest.mark.rule("P14")
def test_a_handle_that_has_been_detached_is_unattached(begin: Begin, address: str) -> None:
    session = begin()
    sender = session.sender(address)
    assert sender.outcome(data(b"one")) == Accepted()
    assert sender.outcome(data(b"two")) == Accepted()
    sender.detach()
    sender.post(data(b"three"))
    assert ended(session).condition == "amqp:session:unattached-handle"
    other = session.peer.begin()
    assert other.receiver(address).bodies() == [b"one", b"two"]


@pytest.mark.rule("P14")
def test_a_handle_in_use_ends_the_session(begin: Begin, address: str) -> None:
    """Part 2, section 2.8.17: amqp:session:handle-in-use."""
    session = begin()
    sender = session.sender(address)
    session.send(
        Attach(
            name="other", handle=sender.handle, role=SENDER, target=Target(address=address), initial_delivery_count=0
        )
    )
    assert ended(session).condition == "amqp:session:handle-in-use"
    still_serves(session, address)


@pytest.mark.rule("P14")
def test_a_transfer_on_a_link_of_the_other_direction_ends_the_session(begin: Begin, address: str) -> None:
    session = begin()
    receiver = session.receiver(address)
    session.send(Transfer(handle=receiver.handle, delivery_id=0, delivery_tag=b"t", message_format=0))
    assert ended(session).condition == "amqp:not-allowed"
    still_serves(session, address)


@pytest.mark.rule("P14")
@pytest.mark.parametrize("field", ["delivery_count", "link_credit", "available"])
def test_a_flow_of_the_session_says_nothing_of_a_link(begin: Begin, address: str, field: str) -> None:
    """Part 2, section 2.7.4: these fields must not be set where there is no handle."""
    session = begin()
    session.flow(**{field: 1})
    assert ended(session).condition == "amqp:invalid-field"
    still_serves(session, address)


@pytest.mark.rule("P14")
def test_a_first_transfer_without_its_delivery_id_ends_the_session(begin: Begin, address: str) -> None:
    session = begin()
    session.sender(address).transfer(data(b"x"), delivery_tag=b"t", message_format=0)
    assert ended(session).condition == "amqp:invalid-field"
    still_serves(session, address)


def _next_but_one(session: Session) -> dict[str, Any]:
    session.next_delivery_id()
    return {"delivery_id": session.next_delivery_id(), "delivery_tag": b"t", "message_format": 0}


@pytest.mark.rule("P14", "T22")
@pytest.mark.parametrize("txn", [False, True])
@pytest.mark.parametrize("symbolic", [False, by_night(True)])
@pytest.mark.parametrize("inside", [False, True])
def test_a_delivery_id_that_is_not_the_next_ends_the_session(
    begin: Begin, address: str, inside: bool, symbolic: bool, txn: bool
) -> None:
    """Of the first transfer of a delivery, or of one ``inside``: that of another. Part 2, section 2.5.4: a fault of one
    session ends no other.
    """
    session = begin()
    other = session.peer.begin()
    control, sender, elsewhere = other.control(), session.sender(address), other.sender(f"{address}-other")
    named = control.declare()
    state = TransactionalState(txn_id=named) if txn else None
    kept = control.declare()
    elsewhere.outcome(data(b"kept"), txn=kept)
    sender.outcome(data(b"0"))
    if inside:
        given = {"delivery_id": session.next_delivery_id(), "delivery_tag": b"f", "message_format": 0}
        sender.transfer(data(b"cut")[:4], **given, state=state, more=True)
    wrong = Transfer(handle=sender.handle, **_next_but_one(session), state=state)
    if symbolic:
        octets = wrong.encoded().replace(b"\x00\x53\x14", b"\x00\xa3\x12amqp:transfer:list", 1)
        session.peer.send(octets, channel=session.channel, payload=data(b"x"))
    else:
        session.send(wrong, payload=data(b"x"))
    assert ended(session).condition == "amqp:invalid-field"
    assert control.discharge(kept) == Accepted()
    assert (control.discharge(named) == Accepted()) is not txn
    assert other.receiver(f"{address}-other").bodies() == [b"kept"]
    assert other.receiver(address).bodies() == [b"0"]


@pytest.mark.rule("P2", "P14")
def test_a_delivery_that_was_refused_need_not_be_sent_to_its_end(begin: Begin, address: str) -> None:
    """Part 2, section 2.6.12: its sender may go on with the next, while it does not know of the end of the link."""
    session = begin()
    sender, other = session.sender(address), session.sender(address)
    most = int(sender.answer.max_message_size or 0)
    first = {"delivery_id": session.next_delivery_id(), "delivery_tag": b"1", "message_format": 0}
    sender.transfer(bytes(50_000), **first, more=True)
    for _ in range(most // 50_000 + 1):
        sender.transfer(bytes(50_000), more=True)
    while sender.detached is None:
        session.peer.step()
    second = {"delivery_id": session.next_delivery_id(), "delivery_tag": b"2", "message_format": 0}
    sender.transfer(data(b"x"), **second)
    assert sender.error == "amqp:link:message-size-exceeded"
    assert other.outcome(data(b"after")) == Accepted()
    assert session.receiver(address).bodies() == [b"after"]


@pytest.mark.rule("P14")
def test_a_sender_attaches_with_its_delivery_count(begin: Begin, address: str) -> None:
    """Part 2, section 2.7.3: initial-delivery-count must not be null if the role is sender."""
    session = begin()
    session.send(Attach(name="s", handle=0, role=SENDER, source=Source(), target=Target(address=address)))
    assert ended(session).condition == "amqp:invalid-field"
    still_serves(session, address)


@pytest.mark.rule("P14")
@pytest.mark.parametrize("size", [1, 13, 1 << 16])
def test_what_comes_after_the_end_means_nothing(begin: Begin, address: str, size: int) -> None:
    """Part 2, section 2.5.5: frames are discarded until the peer has ended the session, too, wherever they are cut."""
    session = begin()
    sender = session.sender(address)
    other = session.peer.begin()
    with in_pieces(session.peer, size):
        sender.post(data(b"before"))
        session.send(Detach(handle=_NOWHERE, closed=True))
        sender.post(data(b"after"))
        session.send(Attach(name="late", handle=5, role=RECEIVER, source=Source(address=address), target=Target()))
        session.send(Disposition(role=SENDER, first=0, last=1, settled=True))
        session.send(Transfer(handle=_NOWHERE, delivery_id=9, delivery_tag=b"9", message_format=0))
        other.send(Flow(next_incoming_id=0, incoming_window=9, next_outgoing_id=0, outgoing_window=9))
        session.send(End())
    assert session.peer.wait(End).error.condition == "amqp:session:unattached-handle"
    del session.peer.sessions[session.remote_channel]
    receiver = other.receiver(address)
    assert receiver.take().body == b"before"  # it may be on its way to the store
    assert receiver.bodies() == []
    # the channel is free, for a session of its own
    session.send(BeginFrame(next_outgoing_id=0, incoming_window=9, outgoing_window=9))
    assert session.peer.wait(BeginFrame).remote_channel == session.channel


@pytest.mark.rule("P14")
def test_a_transfer_in_pieces_beside_a_session_that_has_ended(begin: Begin, address: str) -> None:
    """What is discarded ends with its frame."""
    session = begin()
    other = session.peer.begin()
    sender = other.sender(address)
    assert sender.outcome(data(b"before")) == Accepted()
    session.send(Detach(handle=_NOWHERE, closed=True))
    session.peer.wait(End)
    with in_pieces(session.peer, 30_000):
        session.send(_FLOW)
        delivery = sender.post(data(bytes(60_000)))
    assert sender.answer_to(delivery).state == Accepted()


@pytest.mark.rule("P14")
def test_a_close_is_answered_while_a_session_has_ended(begin: Begin) -> None:
    """It comes on channel 0, which may be that session's."""
    session = begin()
    session.send(Detach(handle=_NOWHERE, closed=True))
    session.peer.wait(End)
    assert session.peer.close().error is None


@pytest.mark.rule("P14", "P15")
def test_a_session_that_ends_before_the_open_is_answered(dial: Dial) -> None:
    """All at once, where the open waits for the store."""
    peer = dial()
    sole = (types.Symbol("sole-connection-for-container"),)
    peer.send_octets(
        AMQP_HEADER
        + frame(Open(container_id="early", desired_capabilities=sole))
        + frame(_BEGIN)
        + frame(Detach(handle=_NOWHERE, closed=True))
        + frame(_BEGIN, channel=1)
    )
    assert peer.read_header() == AMQP_HEADER
    assert peer.wait(Open).container_id
    assert peer.wait(BeginFrame, remote_channel=0)
    assert peer.wait(End).error.condition == "amqp:session:unattached-handle"
    assert peer.wait(BeginFrame, remote_channel=1)
    peer.close()


@pytest.mark.rule("T13", "P14")
def test_a_transaction_of_a_session_that_ends_so_rolls_back(begin: Begin, address: str) -> None:
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    sender.answer_to(sender.post(data(b"half"), txn=txn))
    session.send(Detach(handle=_NOWHERE, closed=True))
    assert ended(session).condition == "amqp:session:unattached-handle"
    still_serves(session, address)


# -- one link only


@pytest.mark.rule("P14")
@pytest.mark.parametrize(
    ("fields", "condition"),
    [
        ({"delivery_tag": None}, "amqp:invalid-field"),
        ({"message_format": 1}, "amqp:not-implemented"),
        ({"rcv_settle_mode": 1}, "amqp:invalid-field"),
    ],
    ids=["delivery-tag", "message-format", "rcv-settle-mode"],
)
def test_a_transfer_that_does_not_fit_its_link_ends_the_link(
    begin: Begin, address: str, fields: dict[str, Any], condition: str
) -> None:
    """Part 2, section 2.7.5: of the message nothing is kept, and the session goes on."""
    session = begin()
    sender, other = session.sender(address), session.sender(address)
    assert sender.outcome(data(b"before")) == Accepted()
    sender.post(data(b"wrong"), **fields)
    assert sender.error == condition
    assert other.outcome(data(b"after")) == Accepted()
    assert session.receiver(address).bodies() == [b"before", b"after"]


@pytest.mark.rule("P14")
def test_a_delivery_of_many_transfers_has_its_format_on_the_first(begin: Begin, address: str) -> None:
    """Part 2, section 2.7.5: message-format must be there; of one transfer it may be left out."""
    session = begin()
    sender, other = session.sender(address), session.sender(address)
    assert sender.outcome(data(b"one"), message_format=None) == Accepted()
    sender.post(data(b"many" * 9), message_format=None, frame_size=10)
    assert sender.error == "amqp:invalid-field"
    assert other.outcome(data(b"after")) == Accepted()
    assert session.receiver(address).bodies() == [b"one", b"after"]


@pytest.mark.rule("P14")
@pytest.mark.parametrize("between", [None, True])
def test_a_delivery_that_is_settled_stays_so(begin: Begin, address: str, between: bool | None) -> None:
    """Part 2, section 2.7.5: a later transfer of it may leave settled out, and not say that it is false."""
    session = begin()
    message = data(b"settled")
    for last in (None, True, False):
        sender = session.sender(address)
        sender.wait_for_credit()
        first = {"delivery_id": session.next_delivery_id(), "delivery_tag": b"t", "message_format": 0}
        sender.transfer(message[:3], **first, settled=True, more=True)
        sender.transfer(message[3:5], settled=between, more=True)
        sender.transfer(message[5:], settled=last)
    assert ended(session).condition == "amqp:invalid-field"
    other = session.peer.begin()
    post(other, address, b"stored behind them")
    assert other.receiver(address).bodies() == [b"settled", b"settled", b"stored behind them"]


@pytest.mark.rule("P2")
def test_a_window_without_next_incoming_id_counts_from_the_first(begin: Begin, address: str) -> None:
    """Part 2, section 2.5.6: what was sent until then is part of it."""
    posting = begin()
    sender = posting.sender(address)
    assert [sender.outcome(data(b"%d" % number)) for number in range(9)] == [Accepted()] * 9
    session = posting.peer.begin(incoming_window=2)
    receiver = session.receiver(address)
    receiver.credit(9, next_incoming_id=None, incoming_window=2)
    taken = [receiver.take(), receiver.take()]
    for window in (3, 5):
        session.flow(next_incoming_id=None, incoming_window=window)
        taken += [receiver.take() for _ in range(window - len(taken))]
        session.flow(next_incoming_id=None, incoming_window=window, echo=True)
        while not session.flows:
            session.peer.step()
        assert session.flows.popleft().next_outgoing_id == window
        assert not receiver.arrived
    assert [each.body for each in taken] == [b"%d" % number for number in range(5)]


@pytest.mark.rule("P6")
def test_mode_second_may_be_said_again_on_a_link_that_has_it(begin: Begin, address: str) -> None:
    session = begin()
    sender = session.sender(address, rcv_settle_mode=1)
    assert sender.answer_to(sender.post(data(b"x"), rcv_settle_mode=1)).state == Accepted()


# -- the connection


@pytest.mark.rule("P14")
@pytest.mark.parametrize(
    ("performative", "place", "field"),
    [
        (_BEGIN, 1, "next-outgoing-id"),
        (_BEGIN, 2, "incoming-window"),
        (_BEGIN, 3, "outgoing-window"),
        (Attach(name="n", handle=0, role=RECEIVER), 0, "name"),
        (Attach(name="n", handle=0, role=RECEIVER), 1, "handle"),
        (Attach(name="n", handle=0, role=RECEIVER), 2, "role"),
        (_FLOW, 1, "incoming-window"),
        (_FLOW, 2, "next-outgoing-id"),
        (_FLOW, 3, "outgoing-window"),
        (Transfer(handle=0, delivery_id=0, delivery_tag=b"t", message_format=0), 0, "handle"),
        (Disposition(role=SENDER, first=0, settled=True), 0, "role"),
        (Disposition(role=SENDER, first=0, settled=True), 1, "first"),
        (Detach(handle=0, closed=True), 0, "handle"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Record) else str(each),
)
def test_a_mandatory_field_that_is_absent(begin: Begin, performative: Record, place: int, field: str) -> None:
    """Part 1, section 1.4, and part 2, section 2.7: the frame cannot be decoded, which closes the connection."""
    session = begin()
    channel = session.channel + isinstance(performative, BeginFrame)
    session.peer.send_octets(frame(without(place, performative), channel=channel))
    error = session.peer.closed()
    assert error.condition == "amqp:decode-error"
    assert field in str(error.description)


@pytest.mark.rule("P14")
def test_a_field_of_another_type(begin: Begin) -> None:
    session = begin()
    session.peer.send_octets(frame(without(0, Detach(handle=0, closed=True), "zero"), channel=session.channel))
    error = session.peer.closed()
    assert error.condition == "amqp:decode-error"
    assert "handle" in str(error.description)


@pytest.mark.rule("P14")
def test_a_name_that_is_no_text(begin: Begin) -> None:
    """Part 1, section 1.6.20: a string is UTF-8."""
    session = begin()
    attach = Attach(name="name", handle=0, role=RECEIVER, source=Source(), target=Target()).encoded()
    session.peer.send_octets(frame(attach.replace(b"name", b"n\xffme"), channel=session.channel))
    assert session.peer.closed().condition == "amqp:decode-error"


@pytest.mark.rule("P14")
def test_a_begin_on_a_channel_in_use(begin: Begin) -> None:
    session = begin()
    session.send(_BEGIN)
    assert session.peer.closed().condition == "amqp:decode-error"


@pytest.mark.rule("P14")
@pytest.mark.parametrize("size", [0, 7])
def test_a_frame_smaller_than_its_header(begin: Begin, size: int) -> None:
    """Whatever comes in it."""
    session = begin()
    octets = frame(Disposition(role=SENDER, first=0, last=0, settled=True), channel=session.channel)
    session.peer.send_octets(size.to_bytes(4, "big") + octets[4:])
    assert session.peer.closed().condition == "amqp:connection:framing-error"


@pytest.mark.rule("P14")
@pytest.mark.parametrize("kind", [1, 2])
def test_what_comes_after_an_empty_frame_of_another_type(begin: Begin, address: str, kind: int) -> None:
    """It is looked at as before."""
    session = begin()
    session.peer.send(None, kind=kind)
    session.send(Detach(handle=_NOWHERE, closed=True))
    assert ended(session).condition == "amqp:session:unattached-handle"
    still_serves(session, address)
