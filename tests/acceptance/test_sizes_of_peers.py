"""No message is sent that is larger than its receiver takes (part 2, section 2.7.3: max-message-size)."""

from __future__ import annotations

import pytest

from store.codec.message import first_delivery
from tests.fix_check_back import Plant
from tests.fix_service import Service
from tests.fix_wire import Begin
from tests.wire.frames import RECEIVER, Accepted, Detach, Released, Source, Target
from tests.wire.messages import Properties, data
from tests.wire.queues import SELECTOR, browse, filtered, post
from tests.wire.types import Described

LARGE = 300_000
WHOLE = data(b"x" * 100)
#: with the header that says that it is the first delivery
MOST = len(first_delivery(WHOLE))


@pytest.mark.rule("P2", "P11")
def test_a_message_that_is_larger_stays_for_others(begin: Begin, address: str, service: Service) -> None:
    """What comes behind it is delivered; one that fits to the octet is, too. The log says it once."""
    session = begin()
    bodies = [b"y" * 101, b"x" * 100, b"z" * LARGE, b"w" * 102, b"1"]
    post(session, address, *bodies)
    limited = session.receiver(address, max_message_size=MOST)
    assert [each.body for each in limited.drain(9)] == [b"x" * 100, b"1"]
    assert limited.drain(9) == []
    free = session.receiver(address)
    rest = free.drain(9)
    assert [(each.body, each.count) for each in rest] == [(b"y" * 101, 0), (b"z" * LARGE, 0), (b"w" * 102, 0)]
    told = [line for line in service.log_lines() if line["event"] == "message larger than its consumer takes"]
    assert [(line["address"], line["size"], line["most"]) for line in told if line["address"] == address] == [
        (address, MOST + 1, MOST)
    ]


@pytest.mark.rule("P2", "D6")
def test_a_count_that_makes_it_larger_counts(begin: Begin, address: str) -> None:
    """After a delivery that failed its header says so."""
    session = begin()
    post(session, address, b"x" * 100)
    first = session.receiver(address, credit=1)
    first.take()
    first.detach()
    assert session.receiver(address, max_message_size=MOST).drain(1) == []
    (again,) = session.receiver(address, max_message_size=MOST + 20).drain(1)
    assert (again.body, again.count) == (b"x" * 100, 1)


@pytest.mark.rule("P2", "P8")
def test_a_browser_passes_over_what_is_larger(begin: Begin, address: str) -> None:
    session = begin()
    post(session, address, b"y" * 101, b"x" * 100, b"z" * LARGE, b"1")
    browser = session.receiver(Source(address=address, distribution_mode="copy"), max_message_size=MOST)
    assert [each.body for each in browser.drain(9)] == [b"x" * 100, b"1"]
    assert len(browse(session, address)) == 4


@pytest.mark.rule("P2", "D1")
@pytest.mark.parametrize("group", ["billing", "*"])
def test_a_group_and_a_listener(begin: Begin, address: str, group: str) -> None:
    session = begin()
    limited = session.receiver(f"{address}::{group}", max_message_size=MOST)
    post(session, address, b"y" * 101, b"1")
    assert [each.body for each in limited.drain(9)] == [b"1"]


@pytest.mark.rule("P2", "P16")
def test_a_selector_and_a_size(begin: Begin, address: str) -> None:
    session = begin()
    sender = session.sender(address)
    for body in (b"y" * 101, b"x"):
        assert sender.outcome(Properties(subject="this").encoded() + data(body)) == Accepted()
    source = filtered(address, {"jms-selector": Described(SELECTOR, "JMSType = 'this'")})
    limited = session.receiver(source, max_message_size=MOST)
    assert [each.body for each in limited.drain(9)] == [b"x"]
    assert [each.body for each in session.receiver(address).drain(9)] == [b"y" * 101]


@pytest.mark.rule("H8", "P2")
def test_a_check_leaves_out_what_its_checker_does_not_take(begin: Begin, address: str, planted: Plant) -> None:
    """The body first, then all that the producer wrote."""
    small, wide = (
        Properties(subject="order").encoded() + data(b"x" * 9_000),
        Properties(subject="o" * 9_000).encoded() + data(b"x"),
    )
    for message in (small, wide):
        planted("sizes", address, message)
    checker = begin().receiver("$check/sizes", max_message_size=8_192, credit=5)
    copies = [checker.take() for _ in range(2)]
    assert all(len(copy.octets) < 8_192 for copy in copies)
    assert [copy.message.delivery_annotations["x-opt-body-left-out"] for copy in copies] == [True, True]
    assert sorted(len(copy.message.sections) for copy in copies) == [2, 3]
    for copy in copies:
        copy.disposition(Released())


@pytest.mark.rule("H8", "P2")
def test_a_checker_that_takes_next_to_nothing(begin: Begin) -> None:
    session = begin()
    answer = session.attach(RECEIVER, source=Source(address="$check/sizes"), target=Target(), max_message_size=8_191)
    assert answer.source is None
    error = session.peer.wait(Detach, handle=answer.handle).error
    assert error.condition == "amqp:not-implemented"
    assert "8191 octets" in error.description
