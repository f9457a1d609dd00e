"""Outcomes frame by frame, of deliveries and of posts (part 2, section 2.8, and part 3, section 3.4; rules P6, P11)."""

from __future__ import annotations

import pytest

from tests.fix_wire import Ask, Begin
from tests.wire.frames import (
    SENDER,
    Accepted,
    Disposition,
    Error,
    Modified,
    Rejected,
    Released,
)
from tests.wire.messages import Properties, data, section
from tests.wire.queues import condition, dead_letters, post
from tests.wire.types import Symbol


@pytest.mark.rule("P11")
def test_released_is_back_in_its_place(begin: Begin, address: str) -> None:
    """Part 3, section 3.4.4: the count is unchanged, and it is first again."""
    session = begin()
    post(session, address, b"1", b"2", b"3")
    consumer = session.receiver(address)
    consumer.take().disposition(Released())
    assert [(each.body, each.count) for each in consumer.take_many(3)] == [(b"1", 0), (b"2", 0), (b"3", 0)]


@pytest.mark.rule("P11")
def test_modified_and_failed_counts(begin: Begin, address: str) -> None:
    """Part 3, section 3.4.5: delivery-failed adds one; without it the count stays. Annotations are merged."""
    session = begin()
    session.sender(address).outcome(section(0x72, {Symbol("x-opt-a"): "1", Symbol("x-opt-b"): "1"}) + data(b"x"))
    consumer = session.receiver(address)
    consumer.take().disposition(Modified(delivery_failed=True))
    consumer.take().disposition(Modified(message_annotations={Symbol("x-opt-b"): "2", Symbol("x-opt-c"): "2"}))
    consumer.take().disposition(Modified(delivery_failed=True, message_annotations={Symbol("x-opt-c"): "3"}))
    found = consumer.take()
    assert found.count == 2
    assert found.message.annotations == {"x-opt-a": "1", "x-opt-b": "2", "x-opt-c": "3"}


@pytest.mark.rule("P11")
def test_undeliverable_here_is_not_for_this_link(begin: Begin, address: str) -> None:
    """Part 3, section 3.4.5: the link that said so is passed over; it keeps nothing from others."""
    session = begin()
    post(session, address, b"1", b"2")
    consumer = session.receiver(address)
    consumer.take().disposition(Modified(undeliverable_here=True))
    assert [each.body for each in consumer.drain()] == [b"2"]
    other = session.receiver(address, name="other")
    found = other.take()
    assert (found.body, found.count) == (b"1", 0)


@pytest.mark.rule("P11", "D4")
def test_rejected_is_a_dead_letter(begin: Begin, address: str) -> None:
    """Part 3, section 3.4.2: to the dead letters with its story, the bare message as it was."""
    session = begin()
    control = session.control()
    bare = Properties(message_id="m").encoded() + data(b"bad")
    session.sender(address).outcome(section(0x72, {Symbol("x-opt-own"): "kept"}) + bare)
    consumer = session.receiver(address)
    consumer.take().disposition(Rejected(error=Error(condition="app:no-such-order", description="order 7")))
    letters = dead_letters(session, address)
    letter = letters.take()
    assert letter.octets.endswith(bare)
    annotations = letter.message.annotations
    assert annotations["x-opt-own"] == "kept"
    assert annotations["x-opt-original-address"] == address
    assert annotations["x-opt-delivery-count"] == 0
    assert "app:no-such-order" in annotations["x-opt-last-error"]
    assert "order 7" in annotations["x-opt-last-error"]
    assert isinstance(annotations["x-opt-original-id"], int)
    assert consumer.drain() == []
    txn = control.declare()
    letter.retire(txn)
    control.commit(txn)
    assert letters.drain() == []


@pytest.mark.rule("P11", "T26")
def test_rejected_in_a_transaction_is_a_dead_letter_at_the_commit(begin: Begin, address: str) -> None:
    """Part 4, section 4.4.2; the letter names the transaction that posted it."""
    session = begin()
    control, consumer = session.control(), session.receiver(address)
    posted = control.declare()
    session.sender(address).outcome(data(b"bad"), txn=posted)
    control.commit(posted)
    txn = control.declare()
    consumer.take().retire(txn, Rejected(error=Error(condition="app:bad")))
    control.commit(txn)
    letter = dead_letters(session, address).take()
    assert letter.body == b"bad"
    assert letter.message.annotations["x-opt-txn-id"] == posted


@pytest.mark.rule("P6")
@pytest.mark.parametrize("taken", [True, False])
def test_a_post_is_settled_after_its_sender_has(begin: Begin, address: str, taken: bool) -> None:
    """Part 2, section 2.8.3, receiver settle mode second: answered first; none is settled before."""
    session = begin()
    sender = session.sender(address, rcv_settle_mode=1)
    first = sender.post(data(b"x") if taken else b"no message")
    answer = sender.answer_to(first)
    assert not answer.settled
    assert answer.state == Accepted() if taken else condition(answer.state) == "amqp:decode-error"
    session.sync()
    assert not session.answers[first]
    session.send(Disposition(role=SENDER, first=first, settled=True))
    session.sync()
    kept = [sender.post(data(b"y")) for _ in range(500)]
    assert [sender.answer_to(number).state for number in kept] == [Accepted()] * len(kept)
    session.sync()
    assert not [number for number in kept if session.answers[number]]


@pytest.mark.rule("D10")
def test_an_outcome_that_the_store_refuses_ends_the_link_and_the_message_comes_back(
    begin: Begin, ask: Ask, address: str
) -> None:
    """The entry is not this instance's any more: the consumer hears that its outcome did not count."""
    session = begin()
    post(session, address, b"1")
    consumer = session.receiver(address)
    delivery = consumer.take()
    held = (
        "update coordinator.entry e set lease = %s from coordinator.consumer_group g, coordinator.address a"
        " where g.id = e.group_id and a.id = g.address_id and a.name = %s returning 1"
    )
    assert ask(held, 99, address) == [(1,)]
    delivery.disposition(Accepted(), settled=False)
    error = consumer.wait_detached().error
    assert error is not None
    assert error.condition == "amqp:internal-error"
    assert error.description
    assert ask(held, 0, address) == [(1,)]
    assert session.receiver(address).take().body == b"1"
