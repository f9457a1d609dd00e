"""The smallest max-frame-size, 512 octets (part 2, section 2.8.19), on both sides and on the peer's alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fix_service import Service, running_service
from tests.fix_wire import Begin
from tests.wire.frames import (
    RECEIVER,
    SENDER,
    Accepted,
    Attach,
    Close,
    Coordinator,
    Detach,
    Discharge,
    Modified,
    Source,
    Target,
)
from tests.wire.messages import data
from tests.wire.peer import Session
from tests.wire.queues import SELECTOR, filtered, select
from tests.wire.types import Described, Symbol

SMALLEST = 512


@pytest.fixture(scope="module", params=[SMALLEST, 65_536], ids=["both", "the peer's"])
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    with running_service({"limits.max_frame_size_bytes": str(request.param)}) as service:
        yield service


@pytest.fixture
def session(begin: Begin) -> Iterator[Session]:
    """No frame that comes on its connection is larger."""
    session = begin(max_frame_size=SMALLEST)
    yield session
    octets = b"".join(each.octets for each in session.peer.record if not each.sent)[8:]
    at = 0
    while at + 4 <= len(octets):
        size = int.from_bytes(octets[at : at + 4], "big")
        assert size <= SMALLEST, octets[at : at + size]
        at += size


@pytest.mark.rule("P2")
def test_messages_and_transactions(session: Session, address: str) -> None:
    control, sender, message = session.control(), session.sender(address), data(b"x" * 3_000_000)
    for fail in (True, False):
        txn = control.declare()
        assert sender.outcome(message, txn=txn, frame_size=400)
        assert control.discharge(txn, fail=fail) == Accepted()
    consumer = session.receiver(address)
    consumer.take().disposition(Modified(delivery_failed=True, message_annotations={Symbol("x-opt-long"): "y" * 300}))
    again = consumer.take()
    assert again.octets.endswith(message)
    txn = control.declare()
    again.retire(txn)
    control.commit(txn)
    assert consumer.drain() == []


@pytest.mark.rule("P2")
def test_long_names_and_filters_that_fit(session: Session, address: str) -> None:
    long = f"{address}-{'n' * 60}"
    assert session.sender(long, name="s" * 100).outcome(data(b"x")) == Accepted()
    consumer = select(session, long, "not (" + " or ".join(f"a = {number}" for number in range(10)) + " or a = 1)")
    assert consumer.answer.source is not None
    assert consumer.answer.source.filter
    assert consumer.drain() == []
    assert session.receiver(long, name="r" * 100).take().body == b"x"


@pytest.mark.rule("P2", "P14")
def test_what_cannot_be_answered_in_a_frame(session: Session, address: str) -> None:
    """The attach is refused, as its answer would be larger; where the name is, nothing can be answered."""
    if session.peer.remote_open is None or session.peer.remote_open.max_frame_size == SMALLEST:
        pytest.skip("the peer's own frame has no room for it")
    symbols = tuple(f"x:{number}" for number in range(200))
    for role, terminus in (
        (SENDER, {"target": Target(address="y" * 500), "initial_delivery_count": 0}),
        (SENDER, {"source": Source(outcomes=symbols), "target": Target(address=address), "initial_delivery_count": 0}),
        (SENDER, {"source": Source(outcomes=symbols), "target": Coordinator(), "initial_delivery_count": 0}),
        (RECEIVER, {"source": filtered(address, {"jms-selector": Described(SELECTOR, "a = 1" + " or a = 1" * 60)})}),
    ):
        answer = session.attach(role, **terminus)
        assert (answer.source, answer.target) == (None, None)
        assert session.peer.wait(Detach, handle=answer.handle).error.condition == "amqp:frame-size-too-small"
    assert session.sender(address).outcome(data(b"x")) == Accepted()
    session.send(Attach(name="n" * 1000, handle=99, role=RECEIVER, source=Source(address=address), target=Target()))
    assert session.peer.wait(Close).error.condition == "amqp:frame-size-too-small"


@pytest.mark.rule("P2", "P14")
def test_a_name_that_leaves_little_room(session: Session, address: str) -> None:
    """For what the service adds to an answer: the default-outcome, and the name of a dynamic node."""
    default = Modified(delivery_failed=True, undeliverable_here=True)
    granted = []
    for size in range(100, 300, 3):
        for source in (Source(address=address, default_outcome=default), Source(dynamic=True, default_outcome=default)):
            link = session.receiver(source, name="n" * size)
            if link.answer.source is None:
                assert link.error == "amqp:frame-size-too-small"
            else:
                assert link.answer.source.default_outcome == default
                granted.append(size)
                link.detach()
    assert 100 in granted
    assert 298 not in granted


@pytest.mark.rule("P2", "P14")
def test_errors_with_long_descriptions(session: Session, address: str) -> None:
    """They are cut, and still well-formed."""
    control = session.control()
    refused = control.reply(Discharge(txn_id="é".encode() * 100, fail=False))
    assert refused.error.condition == "amqp:transaction:unknown-id"
    refused = session.sender(address).outcome(b"\x00\xa3\xc8" + b"q" * 200 + b"\x40", txn=control.declare())
    assert refused.outcome.error.condition == "amqp:decode-error"
    assert select(session, address, "n > > " + "é" * 60).error == "amqp:invalid-field"
