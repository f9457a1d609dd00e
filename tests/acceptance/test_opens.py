"""The first frame of a connection and its last (part 2, section 2.4), as Proton does not look at them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fix_night import by_night
from tests.fix_wire import Dial
from tests.wire import types
from tests.wire.frames import (
    AMQP_HEADER,
    SENDER,
    Accepted,
    Attach,
    Close,
    Detach,
    End,
    Flow,
    Open,
    Record,
    Target,
    Transfer,
    frame,
    without,
)
from tests.wire.frames import Begin as BeginFrame
from tests.wire.messages import data

_BEGIN = BeginFrame(next_outgoing_id=0, incoming_window=9, outgoing_window=9)


def opening(dial: Dial, octets: bytes) -> tuple[Open, Close]:
    """What the service says to an open."""
    peer = dial()
    peer.send_octets(AMQP_HEADER + octets)
    assert peer.read_header() == AMQP_HEADER
    answer, close = peer.rest()
    return answer.performative, close.performative


@pytest.mark.rule("P14")
@pytest.mark.parametrize("size", [0, 1, 511])
def test_a_frame_size_that_is_too_small(dial: Dial, size: int) -> None:
    """Part 2, section 2.7.1: every peer takes frames of 512 octets."""
    answer, close = opening(dial, frame(Open(container_id="small", max_frame_size=size)))
    assert isinstance(answer, Open)
    assert close.error is not None
    assert close.error.condition == "amqp:invalid-field"


@pytest.mark.rule("P1", "P14")
@pytest.mark.parametrize("desired", [None, by_night(("sole-connection-for-container",))])
@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("piece", [1, 1 << 16])
def test_transfers_that_come_with_the_open_end_their_link(
    dial: Dial, address: str, desired: tuple[str, ...] | None, settled: bool, piece: int
) -> None:
    """Part 2, section 2.6.7: there was no credit for them; the connection, and its session, go on. An open that has to
    wait for the store holds back what comes behind it.
    """
    peer = dial()
    attach = Attach(name="hasty", handle=0, role=SENDER, target=Target(address=address), initial_delivery_count=0)
    transfers = [
        frame(
            Transfer(handle=0, delivery_id=number, delivery_tag=b"%d" % number, message_format=0, settled=settled),
            payload=data(b"x"),
        )
        for number in range(5)
    ]
    opening = frame(Open(container_id=address, desired_capabilities=desired))
    *early, last = b"".join((AMQP_HEADER, opening, frame(_BEGIN), frame(attach)))
    for at in range(0, len(early), piece):
        peer.send_octets(bytes(early[at : at + piece]))
    # with the last octet of the attach: after it they may come when there is credit already
    peer.send_octets(b"".join((bytes((last,)), *transfers)))
    assert peer.read_header() == AMQP_HEADER
    peer.remote_open = peer.wait(Open)
    assert peer.remote_open.idle_time_out
    assert peer.wait(BeginFrame).remote_channel == 0
    assert peer.wait(Attach, name="hasty").target is None
    assert peer.wait(Detach).error.condition == "amqp:link:transfer-limit-exceeded"
    peer._channels = 1
    session = peer.begin()
    assert session.sender(address).outcome(data(b"y")) == Accepted()
    assert session.receiver(address).bodies() == [b"y"]


@pytest.mark.rule("P14")
def test_an_open_on_another_channel(dial: Dial) -> None:
    """Part 2, section 2.4.1: opens are on channel 0."""
    _, close = opening(dial, frame(Open(container_id="astray"), channel=1))
    assert close.error is not None
    assert close.error.condition == "amqp:not-allowed"


@pytest.mark.rule("P14")
@pytest.mark.parametrize(
    ("early", "condition"),
    [
        pytest.param(_BEGIN, "amqp:illegal-state", id="a begin"),
        pytest.param(End(), "amqp:illegal-state", id="an end"),
        pytest.param(Close(), "amqp:illegal-state", id="a close"),
        pytest.param(Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1), "amqp:illegal-state", id="a flow"),
        pytest.param(without(1, _BEGIN), "amqp:decode-error", id="a begin that cannot be read"),
        pytest.param(b"\x00\x53\x10\xc0\x03\x01\xa1\x05", "amqp:decode-error", id="an open that cannot be read"),
        pytest.param(b"\x00\x53\x10\xc0\x04\x01\xa1\x01\xff", "amqp:decode-error", id="an open of no text"),
    ],
)
def test_the_open_comes_first(dial: Dial, early: Record | bytes, condition: str) -> None:
    """Part 2, section 2.4.1. What follows is not looked at: the name of the link, which is no text, ended the writing
    of the answers.
    """
    name: Any = types.Raw(b"\xa1\x01\xff")
    attach = Attach(name=name, handle=0, role=SENDER, target=Target(address="x"), initial_delivery_count=0)
    answer, close = opening(dial, b"".join(map(frame, (early, Open(container_id="late"), _BEGIN, attach))))
    assert answer.container_id.startswith("coordinator-")
    assert close.error is not None
    assert close.error.condition == condition


@pytest.mark.rule("P14")
def test_an_open_without_a_container_id(dial: Dial) -> None:
    """Part 2, section 2.7.1: container-id is mandatory."""
    _, close = opening(dial, frame(without(0, Open(container_id="x", max_frame_size=1024))))
    assert close.error is not None
    assert close.error.condition == "amqp:decode-error"


@pytest.mark.rule("P14")
def test_what_comes_after_the_close_means_nothing(dial: Dial) -> None:
    """Part 2, section 2.7.9: the close is the last that is sent. Nor is it read where it is no AMQP."""
    peer = dial()
    peer.open()
    name: Any = types.Raw(b"\xa1\x01\xff")
    attach = Attach(name=name, handle=0, role=SENDER, target=Target(address="x"), initial_delivery_count=0)
    peer.send_octets(b"".join(map(frame, (Close(), _BEGIN, attach))) + b"no AMQP")
    assert [found.performative for found in peer.rest()] == [Close()]
