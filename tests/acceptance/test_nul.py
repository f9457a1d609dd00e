"""Names with a NUL, where Proton's strings end: two that differ behind it are never taken for one (part 1, section
1.6.20; rules P13, P14, S3)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fix_wire import Begin, Dial
from tests.wire.frames import AMQP_HEADER, RECEIVER, SENDER, Attach, Close, Detach, End, Open, Source, Target, frame
from tests.wire.frames import Begin as BeginFrame
from tests.wire.messages import data

_BEGIN = BeginFrame(next_outgoing_id=0, incoming_window=9, outgoing_window=9)


@pytest.mark.rule("P14", "S3")
@pytest.mark.parametrize("container", ["one\0two", "\0", "one\0"])
@pytest.mark.parametrize("followed", [b"", frame(_BEGIN)], ids=["alone", "pipelined"])
def test_a_container_id_with_a_nul(dial: Dial, container: str, followed: bytes) -> None:
    peer = dial()
    peer.send_octets(AMQP_HEADER + frame(Open(container_id=container)) + followed)
    assert peer.read_header() == AMQP_HEADER
    answer, *_, close = (found.performative for found in peer.rest())
    assert isinstance(answer, Open)
    assert isinstance(close, Close)
    assert close.error is not None
    assert close.error.condition == "amqp:invalid-field"
    assert close.error.info == {"invalid-field": "container-id"}
    assert "container-id has a NUL" in str(close.error.description)


@pytest.mark.rule("P13", "P14", "S3")
@pytest.mark.parametrize("role", [SENDER, RECEIVER])
def test_a_link_name_with_a_nul(begin: Begin, address: str, role: bool) -> None:
    """It steals no link from another connection of the container: its session ends, and no other."""
    kept, session = begin(container_id="the same"), begin(container_id="the same")
    sender, receiver = kept.sender(address, name="mine"), kept.receiver(address, name="mine")
    fields: dict[str, Any] = {"role": role, "source": Source(address=address), "target": Target(address=address)}
    session.send(Attach(name="mine\0of another", handle=0, initial_delivery_count=0, **fields))
    error = session.peer.wait(End).error
    assert error.condition == "amqp:invalid-field"
    assert "name of a link has a NUL" in error.description
    sender.outcome(data(b"there"))
    assert receiver.bodies() == [b"there"]
    assert session.peer.begin().control().declare()


@pytest.mark.rule("P14", "S3")
@pytest.mark.parametrize("role", [SENDER, RECEIVER])
def test_an_address_with_a_nul(begin: Begin, address: str, role: bool) -> None:
    """It is not the address before the NUL; the session goes on."""
    session = begin()
    session.sender(address).outcome(data(b"kept"))
    hostile = f"{address}\0forged"
    source, target = (Source(), Target(address=hostile)) if role is SENDER else (Source(address=hostile), Target())
    for _ in range(2):
        answer = session.attach(role, source=source, target=target, initial_delivery_count=0)
        assert (answer.target if role is SENDER else answer.source) is None
        found = session.peer.wait(Detach, handle=answer.handle)
        assert found.error.condition == "amqp:invalid-field"
        assert "address has a NUL" in found.error.description
    assert session.receiver(address).bodies() == [b"kept"]
