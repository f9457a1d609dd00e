"""The default-outcome of a source (part 3, section 3.5.3; part 4, section 4.4.4; rule T28)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fix_wire import Begin
from tests.wire.frames import (
    RECEIVER,
    Accepted,
    Attach,
    Declared,
    Modified,
    Received,
    Rejected,
    Released,
    Source,
    State,
    Target,
)
from tests.wire.queues import dead_letters, post
from tests.wire.types import Raw, Symbol


@pytest.mark.rule("T28", "P8")
@pytest.mark.parametrize(
    ("default", "count"),
    [
        (None, 1),
        (Released(), 0),
        (Modified(delivery_failed=True, undeliverable_here=False), 1),
        (Modified(delivery_failed=False, undeliverable_here=False), 0),
    ],
)
def test_the_default_outcome_of_the_source(begin: Begin, address: str, default: State | None, count: int) -> None:
    """Part 3, section 3.5.3, and part 4, section 4.4.4: the one that the attach names; the answer says so."""
    session = begin()
    post(session, address, b"x")
    control = session.control()
    consumer = session.receiver(Source(address=address, default_outcome=default))
    assert isinstance(consumer.answer.source, Source)
    assert consumer.answer.source.default_outcome == default
    txn = control.declare()
    consumer.take().retire(txn, Accepted())
    control.roll_back(txn)
    assert [each.count for each in consumer.drain()] == [count]


@pytest.mark.rule("P4", "P8")
def test_an_attach_behind_an_empty_frame(begin: Begin, address: str) -> None:
    """Part 2, section 2.4.5: a consumer of a connection that was silent; the answer names its default-outcome."""
    session = begin(idle_time_out=400)
    for _ in range(3):
        assert session.peer.read().performative is None
        consumer = session.receiver(Source(address=address, default_outcome=Released()))
        assert isinstance(consumer.answer.source, Source)
        assert consumer.answer.source.default_outcome == Released()


@pytest.mark.rule("T28", "P8")
@pytest.mark.parametrize(("default", "left"), [(Accepted(), [])])
def test_a_default_outcome_that_retires(begin: Begin, address: str, default: State, left: list[bytes]) -> None:
    """Rolled back and settled, or settled without a state: that outcome is applied."""
    session = begin()
    post(session, address, b"1", b"2")
    control = session.control()
    consumer = session.receiver(Source(address=address, default_outcome=default))
    first, second = consumer.take_many(2)
    txn = control.declare()
    first.retire(txn, Released())
    second.disposition(None)
    control.roll_back(txn)
    session.sync()
    consumer.detach()
    assert session.receiver(address).bodies() == left


@pytest.mark.rule("T28", "P8")
def test_each_answer_says_its_own(begin: Begin, address: str) -> None:
    """Of links of one name on two sessions, and on one, whose attaches come in one go: each steals the one before."""
    session = begin()
    session.sender(address)  # the service knows the address, and waits for nothing
    said = [Released(), None, Modified(delivery_failed=True, undeliverable_here=True), Accepted()]
    sessions = [session, session.peer.begin(), session, session]
    with session.peer.at_once():
        for handle, (on, default) in enumerate(zip(sessions, said, strict=True), start=1):
            source = Source(address=address, default_outcome=default)
            on.send(Attach(name="one", handle=handle, role=RECEIVER, source=source, target=Target()))
    answers = [session.peer.wait(Attach, name="one") for _ in said]
    assert [answer.source.default_outcome for answer in answers] == said


@pytest.mark.rule("T28", "P8")
def test_a_default_outcome_that_rejects(begin: Begin, address: str) -> None:
    session = begin()
    post(session, address, b"x")
    control = session.control()
    consumer = session.receiver(Source(address=address, default_outcome=Rejected()))
    assert isinstance(consumer.answer.source, Source)
    assert consumer.answer.source.default_outcome == Rejected()
    txn = control.declare()
    consumer.take().retire(txn, Accepted())
    control.roll_back(txn)
    assert dead_letters(session, address).take().body == b"x"


@pytest.mark.rule("T28", "P8")
def test_of_an_outcome_only_what_is_granted_is_said(begin: Begin, address: str) -> None:
    """The annotations of a modified are not."""
    asked = Modified(undeliverable_here=True, message_annotations={Symbol("x-opt-a"): "b"})
    answer = begin().receiver(Source(address=address, default_outcome=asked)).answer
    assert isinstance(answer.source, Source)
    assert answer.source.default_outcome == Modified(delivery_failed=False, undeliverable_here=True)


@pytest.mark.rule("P8", "P14")
@pytest.mark.parametrize("default", [Received(section_number=0, section_offset=0), Raw(b"\x41"), Declared(txn_id=b"x")])
def test_a_default_outcome_that_is_none_is_refused(begin: Begin, address: str, default: Any) -> None:
    session = begin()
    assert session.receiver(Source(address=address, default_outcome=default)).error == "amqp:invalid-field"
    assert session.receiver(address).answer.source is not None
