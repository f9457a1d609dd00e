"""What many tests do at a queue: post, browse, select, read its dead letters, look at what became of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from coordinator.address.addresses import dead_letter_name
from tests.wire.frames import Accepted, Rejected, Source
from tests.wire.links import Receiver
from tests.wire.messages import MESSAGE_ANNOTATIONS, Header, data, section
from tests.wire.peer import PATIENCE, Peer, Session
from tests.wire.types import Described, Long, Symbol, ULong

SELECTOR, NO_LOCAL = ULong(0x468C_0000_0004), ULong(0x468C_0000_0003)

#: Not a message: a data section that is longer than its octets.
BROKEN = b"\x00\x53\x75\xb0\x00\x00\x00\xff"
#: A txn-id that no service gives.
NEVER = b"never-was-never-"


def condition(state: Any) -> str:
    """The condition of a rejected outcome, whose error must have a description."""
    assert isinstance(state, Rejected), state
    assert state.error is not None
    assert state.error.description, "an error says what, for a person"
    return str(state.error.condition)


def post(session: Session, address: str, *bodies: bytes) -> None:
    """Post outside transactions; each post must be accepted."""
    sender = session.sender(address)
    for body in bodies:
        assert sender.outcome(data(body)) == Accepted()
    sender.detach()


def later(body: bytes, *, at: Any = None, delay: Any = None, header: Header | None = None) -> bytes:
    """To be delivered ``at`` a Unix time or ``delay`` from now, in milliseconds."""
    annotations = {
        Symbol(name): Long(value) if type(value) is int else value
        for name, value in (("x-opt-delivery-time", at), ("x-opt-delivery-delay", delay))
        if value is not None
    }
    first = b"" if header is None else section(Header.CODE, header.described().value)
    return first + section(MESSAGE_ANNOTATIONS, annotations) + data(body)


def goes_through(session: Session, address: str, size: int) -> None:
    """A message of ``size`` octets is posted, and comes as it was."""
    body = os.urandom(size)
    assert session.sender(address).outcome(data(body)) == Accepted()
    assert session.receiver(address, credit=1).take().body == body


def reads_late(session: Session, address: str, dial: Callable[[], Peer]) -> None:
    """The session is sent more than its socket takes before it reads; nothing is lost. ``dial``: connects another."""
    bodies = [os.urandom(1_000_000) for _ in range(20)]
    sender = session.sender(address)
    for body in bodies:
        assert sender.outcome(data(body)) == Accepted()
    receiver = session.receiver(address)
    receiver.credit(20)
    other = dial()
    other.open()  # the service has answered: it has sent what the socket takes
    other.close()
    assert [delivery.body for delivery in receiver.take_many(20)] == bodies


def browse(session: Session, address: str) -> list[bytes]:
    browser = session.receiver(Source(address=address, distribution_mode="copy"))
    found = [delivery.body for delivery in browser.drain()]
    browser.detach()
    return found


def filtered(address: str, filters: dict[Any, Any], **fields: Any) -> Source:
    return Source(address=address, filter={Symbol(key): value for key, value in filters.items()}, **fields)


def select(session: Session, address: str, selector: str, **fields: Any) -> Receiver:
    source = filtered(address, {"jms-selector": Described(SELECTOR, selector)}, **fields)
    return session.receiver(source)


def dead_letters(session: Session, address: str) -> Receiver:
    """A consumer of the dead letters; waits until the first of them makes their address."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        letters = session.receiver(dead_letter_name(address))
        if letters.answer.source is not None:
            return letters
        assert letters.error == "amqp:not-found"
        time.sleep(0.02)
    raise AssertionError(f"no dead letter of {address} within {PATIENCE:g} s")
