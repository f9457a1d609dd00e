"""Fields of frames that are left out, or that name what is not the peer's: what they mean (part 2, section 2.7)."""

from __future__ import annotations

import pytest

from tests.fix_wire import Begin
from tests.wire.frames import SENDER, Accepted, Disposition
from tests.wire.messages import data
from tests.wire.queues import post


@pytest.mark.rule("P5")
def test_credit_without_a_delivery_count_counts_from_the_first(begin: Begin, address: str) -> None:
    """Section 2.6.7: a receiver that has not seen our attach yet does not know it."""
    session = begin()
    post(session, address, b"1", b"2", b"3")
    consumer = session.receiver(address)
    session.flow(handle=consumer.handle, link_credit=2)
    assert [each.body for each in consumer.take_many(2)] == [b"1", b"2"]
    session.sync()
    assert not consumer.arrived


@pytest.mark.rule("P6")
def test_a_transfer_that_does_not_say_settled_is_answered(begin: Begin, address: str) -> None:
    """Section 2.7.5: it is not."""
    sender = begin().sender(address)
    assert sender.answer_to(sender.post(data(b"x"), settled=None)).state == Accepted()  # type: ignore[arg-type]


@pytest.mark.rule("P7")
def test_a_disposition_of_the_other_role_settles_nothing(begin: Begin, address: str) -> None:
    """Section 2.7.6: the sender's is about what it has sent itself."""
    session = begin()
    post(session, address, b"x")
    consumer = session.receiver(address)
    taken = consumer.take()
    session.send(Disposition(role=SENDER, first=taken.id, settled=True, state=Accepted()))
    session.sync()
    consumer.detach()
    assert session.receiver(address).bodies() == [b"x"]
