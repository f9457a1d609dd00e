"""Frames that are malformed, cut off or about nothing: each ends its connection, session or link, and no other (part 2;
rule P14)."""

from __future__ import annotations

import pytest

from tests.fix_wire import Begin, Dial
from tests.wire.frames import (
    AMQP_HEADER,
    RECEIVER,
    SASL,
    SENDER,
    Accepted,
    Attach,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    SaslInit,
    Source,
    Target,
    Transfer,
    frame,
)
from tests.wire.frames import (
    Begin as BeginFrame,
)
from tests.wire.messages import data
from tests.wire.queues import post
from tests.wire.types import Described, ULong, encode


@pytest.mark.rule("P14")
@pytest.mark.parametrize(
    "octets",
    [
        pytest.param(b"\x00\x00\x00\x00\x02\x00\x00\x00", id="size 0"),
        pytest.param(b"\x00\x00\x00\x07\x02\x00\x00\x00", id="size 7"),
        pytest.param(b"\x00\x00\x00\x0c\x01\x00\x00\x00ABCD", id="data offset 1"),
        pytest.param(b"\x00\x00\x00\x0c\xff\x00\x00\x00ABCD", id="data offset behind the end"),
        pytest.param(b"\x7f\xff\xff\xff\x02\x00\x00\x00", id="size 2 GB"),
        pytest.param(b"\xff\xff\xff\xff\x02\x00\x00\x00", id="size 4 GB"),
        pytest.param(frame(b"\xff\xff\xff\xff"), id="no value"),
        pytest.param(frame(b"\x00"), id="descriptor cut off"),
        pytest.param(frame(b"\x00\x53"), id="descriptor without a value"),
        pytest.param(frame(encode(Described(ULong(0x10), {}))), id="open as a map"),
        pytest.param(frame(encode(Described(ULong(0x99), []))), id="unknown performative"),
        pytest.param(frame(encode(Described(ULong(1 << 60), []))), id="unknown, and large"),
        pytest.param(frame(encode([])), id="not described"),
        pytest.param(frame(b"\x00\x53\x12\xc0\xff\x01"), id="list longer than the frame"),
        pytest.param(frame(b"\x00\x53\x12\xd0\xff\xff\xff\xff\x00\x00\x00\x01"), id="list of 4 GB"),
        pytest.param(frame(b"\x00\x53\x12\xd0\x00\x00\x00\x08\xff\xff\xff\xff\x40\x40\x40\x40"), id="4 G fields"),
        pytest.param(frame(b"\x00\x53\x12" + b"\x00\x53\x12" * 3000 + b"\x45"), id="nested without end"),
        pytest.param(frame(Attach(handle=0, role=RECEIVER)), id="attach without a name"),
        pytest.param(
            frame(Disposition(role=RECEIVER, first=5, last=3, settled=True)), id="a range that runs backwards"
        ),
        pytest.param(frame(Transfer(handle=77, delivery_id=0, delivery_tag=b"x")), id="transfer on no link"),
        pytest.param(frame(Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1), channel=9), id="no session"),
        pytest.param(frame(Detach(handle=77, closed=True)), id="detach of no link"),
        pytest.param(frame(End(), channel=9), id="end of no session"),
        pytest.param(frame(Open(container_id="again")), id="a second open"),
        pytest.param(frame(SaslInit(mechanism="ANONYMOUS"), kind=SASL), id="SASL in the middle"),
        pytest.param(AMQP_HEADER, id="a header again"),
        pytest.param(b"\x00" * 1000, id="zeros"),
        pytest.param(b"\xff" * 1000, id="ones"),
    ],
)
def test_bad_bytes_end_that_connection_and_no_other(begin: Begin, address: str, octets: bytes) -> None:
    """Part 2, sections 2.3, 2.4.3 and 2.8: a close (or end, or detach) with an error; others do not notice."""
    other, session = begin(), begin()
    txn_control = other.control()
    txn = txn_control.declare()
    other.sender(address).outcome(data(b"kept"), txn=txn)
    control = session.control()
    lost = control.declare()
    session.sender(address).outcome(data(b"lost"), txn=lost)
    session.peer.send_octets(octets)
    session.peer.socket.shutdown(1)
    rest = [found.performative for found in session.peer.rest()]
    errors = [found.error for found in rest if isinstance(found, Close | End | Detach) and found.error is not None]
    assert errors, rest
    txn_control.commit(txn)
    assert other.receiver(address).bodies() == [b"kept"]


@pytest.mark.rule("P14")
def test_a_frame_of_another_type_is_passed_over(begin: Begin, address: str) -> None:
    """Part 2, section 2.3.1: Proton reads nothing in it; the connection and its transaction go on."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    sender.outcome(data(b"before"), txn=txn)
    session.peer.send_octets(frame(b"", kind=7))
    sender.outcome(data(b"after"), txn=txn)
    control.commit(txn)
    assert session.receiver(address).bodies() == [b"before", b"after"]


@pytest.mark.rule("P14")
@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_frame_cut_off_by_the_end_of_the_stream(begin: Begin, address: str, cut: int) -> None:
    """Part 2, section 2.3: half a frame has no effect."""
    session, other = begin(), begin()
    sender = session.sender(address)
    whole = frame(
        Transfer(handle=sender.handle, delivery_id=0, delivery_tag=b"x", message_format=0), payload=data(b"y" * 60)
    )
    session.peer.send_octets(whole[:cut])
    session.peer.socket.shutdown(1)
    session.peer.rest()
    assert other.receiver(address).bodies() == []


@pytest.mark.rule("P14")
def test_a_peer_reads_why_its_connection_is_closed_while_it_still_sends(begin: Begin) -> None:
    """A socket that is closed with input unread is reset, which takes the close from its peer."""
    session = begin()
    size = 4 << 20
    session.peer.send_octets(size.to_bytes(4, "big") + b"\x02\x00\x00\x00" + bytes(size))
    assert session.peer.closed().condition == "amqp:connection:framing-error"


@pytest.mark.rule("P14")
def test_one_octet_at_a_time(dial: Dial, address: str) -> None:
    """Part 2, section 2.3: where a frame is cut into segments means nothing."""
    peer = dial()
    octets = b"".join(
        (
            AMQP_HEADER,
            frame(Open(container_id="slow")),
            frame(BeginFrame(next_outgoing_id=0, incoming_window=10, outgoing_window=10)),
            frame(Attach(name="s", handle=0, role=SENDER, target=Target(address=address), initial_delivery_count=0)),
        )
    )
    for at in range(len(octets)):
        peer.send_octets(octets[at : at + 1])
    assert peer.read_header() == AMQP_HEADER
    assert peer.wait(Attach).role is RECEIVER
    assert peer.wait(Flow).link_credit > 0


@pytest.mark.rule("P14")
def test_an_attach_that_is_wrong_ends_its_link_only(begin: Begin, address: str) -> None:
    """Part 2, section 2.6.3: neither source nor target: refused with a detach; the session goes on."""
    session = begin()
    answer = session.attach(RECEIVER, name="nothing")
    assert answer.source is None
    found = session.peer.wait(Detach, handle=answer.handle)
    assert found.closed is True
    assert found.error is not None
    assert session.sender(address).outcome(data(b"x")) == Accepted()


@pytest.mark.rule("P14")
@pytest.mark.parametrize("role", [SENDER, RECEIVER])
@pytest.mark.parametrize("name", ["", "x" * 2000, "bell\x07", "$management", "line\nbreak"])
def test_an_impossible_address_is_refused(begin: Begin, role: bool, name: str) -> None:
    """Part 2, section 2.6.3: the answer's terminus is null, then detached with the error."""
    session = begin()
    source, target = (Source(), Target(address=name)) if role is SENDER else (Source(address=name), Target())
    answer = session.attach(role, source=source, target=target, initial_delivery_count=0)
    assert (answer.target if role is SENDER else answer.source) is None
    found = session.peer.wait(Detach, handle=answer.handle)
    assert found.error.condition in ("amqp:invalid-field", "amqp:not-found")
    assert session.control().declare()


@pytest.mark.rule("P14")
@pytest.mark.parametrize(
    "broken",
    [
        Disposition(role=RECEIVER, first=5, last=2, settled=True),
        Disposition(role=SENDER, first=5, last=2, settled=True),
        Disposition(role=RECEIVER, first=0, last=2**32 - 1, settled=True),
    ],
)
def test_the_engines_own_errors_have_conditions_of_the_standard(
    begin: Begin, address: str, broken: Disposition
) -> None:
    session = begin()
    assert session.sender(address).outcome(data(b"x")) == Accepted()
    session.send(broken)
    closed = session.peer.closed()
    assert closed.condition == "amqp:not-allowed"
    assert closed.description


@pytest.mark.rule("P14")
def test_dispositions_of_nothing_are_ignored(begin: Begin, address: str) -> None:
    """Part 2, section 2.7.6: deliveries that are settled already, or never were."""
    session = begin()
    post(session, address, b"x")
    consumer = session.receiver(address)
    delivery = consumer.take()
    delivery.disposition(Accepted())
    delivery.disposition(Accepted())
    for first, last in ((0, None), (1000, 2000), (0xFFFFFFFF, 0xFFFFFFFF)):
        session.send(Disposition(role=RECEIVER, first=first, last=last, settled=True, state=Accepted()))
    assert consumer.drain() == []
