"""Annotations that outcomes leave on a message, and stored messages that cannot be read: neither stops a queue, nor the
service (rules P11, P14, D4).
"""

from __future__ import annotations

from typing import Any

import pytest

from store.codec.encoding import MOST_PAIRS
from tests.fix_service import Service
from tests.fix_wire import Ask, Begin
from tests.wire import types
from tests.wire.frames import Accepted, Modified, Rejected, Source
from tests.wire.messages import data, section
from tests.wire.queues import dead_letters, post
from tests.wire.types import Symbol


def marks(first: int, count: int) -> dict[Symbol, Any]:
    """That many annotations of a few octets each: one disposition carries thousands."""
    return {Symbol(f"{first + number:x}"): None for number in range(count)}


@pytest.mark.rule("P11")
@pytest.mark.parametrize("in_transaction", [False, True])
def test_annotations_whose_keys_are_no_symbols(
    begin: Begin, address: str, service: Service, in_transaction: bool
) -> None:
    """Part 3, section 3.2.10: left out, and the log says how many."""
    session = begin()
    post(session, address, b"x")
    consumer, control = session.receiver(address), session.control()
    since = len(service.log_lines())
    marked: Any = types.Raw(types.encode({Symbol("kept"): "so", "a text": in_transaction}))
    modified = Modified(delivery_failed=True, message_annotations=marked)
    taken = consumer.take()
    if in_transaction:
        txn = control.declare()
        taken.retire(txn, modified)
        control.commit(txn)
    else:
        taken.disposition(modified)
    assert consumer.take().message.annotations == {"kept": "so"}
    told = [line for line in service.log_lines()[since:] if "left out" in line["event"]]
    assert [line["left_out"] for line in told] == [1]


@pytest.mark.rule("P11", "P14")
def test_annotations_beyond_what_a_map_may_have(begin: Begin, address: str) -> None:
    """Part 3, section 3.4.5: what is too many is left out, the outcome counts; others are served."""
    session, neighbour = begin(), begin()
    post(session, address, b"x")
    consumer, beside = session.receiver(address), neighbour.receiver(f"{address}-beside")
    consumer.take().disposition(Modified(delivery_failed=True, message_annotations=marks(0, 9000)))
    again = consumer.take()
    again.disposition(Modified(delivery_failed=True, message_annotations=marks(9000, 9000)))
    post(neighbour, f"{address}-beside", b"1")
    assert beside.bodies() == [b"1"]
    for count in range(2, 16):
        again = consumer.take()
        assert (again.body, again.count) == (b"x", count)
        assert set(again.message.annotations) == set(marks(0, 9000))
        again.disposition(Modified(delivery_failed=True, message_annotations=marks(9000, 9000)))
    letter = dead_letters(session, address).take()
    assert letter.body == b"x"
    assert letter.message.annotations.items() >= marks(0, 9000).items()
    assert letter.message.annotations["x-opt-delivery-count"] == 16


@pytest.mark.rule("P11")
def test_annotations_of_a_few_large_outcomes(begin: Begin, address: str) -> None:
    """Part 3, section 3.4.5: 256 KiB of them stay on a message; more are left out."""
    session = begin()
    post(session, address, b"x")
    consumer = session.receiver(address)
    for number in range(8):
        value = {Symbol(f"x-opt-{number}"): bytes(50_000)}
        consumer.take().disposition(Modified(message_annotations=value))
    assert set(consumer.take().message.annotations) == {f"x-opt-{number}" for number in range(5)}


@pytest.mark.rule("P11", "D4")
def test_a_message_full_of_annotations_is_buried(begin: Begin, address: str) -> None:
    """A letter keeps the annotations that tell why it is one, those of outcomes, then its own as far as they fit."""
    session = begin()
    own = section(0x72, marks(0, MOST_PAIRS), large=True)
    assert session.sender(address).outcome(own + data(b"x")) == Accepted()
    consumer = session.receiver(address)
    consumer.take().disposition(Modified(message_annotations={Symbol("x-opt-mark"): True}))
    again = consumer.take()
    assert set(again.message.annotations) == set(marks(0, MOST_PAIRS))
    again.disposition(Rejected())
    letters = dead_letters(session, address)
    found = letters.take().message.annotations
    story = {"x-opt-original-address", "x-opt-original-id", "x-opt-delivery-count", "x-opt-last-error"}
    assert set(found) == set(marks(0, MOST_PAIRS - len(story))) | story


@pytest.mark.rule("P14", "D4")
def test_annotations_that_an_older_version_has_stored(begin: Begin, address: str, ask: Ask) -> None:
    """More than a map may have: the message is delivered and buried without them."""
    session = begin()
    sender = session.sender(address)
    assert sender.outcome(data(b"x")) == Accepted()
    stored = types.encode(marks(0, 18_000), large=True)
    changed = ask(
        "update coordinator.entry e set annotations = %s, attempts = 14, failures = 14 "
        "from coordinator.consumer_group g join coordinator.address a on a.id = g.address_id "
        "where e.group_id = g.id and a.name = %s returning 1",
        stored,
        address,
    )
    assert changed == [(1,)]
    consumer = session.receiver(address)
    for count in (14, 15):
        found = consumer.take()
        assert (found.count, found.message.annotations) == (count, {})
        found.disposition(Modified(delivery_failed=True, message_annotations={Symbol("x"): True}))
    letter = dead_letters(session, address).take()
    assert (letter.body, letter.message.annotations["x-opt-delivery-count"]) == (b"x", 16)


@pytest.mark.rule("P14", "D4")
def test_a_stored_message_that_cannot_be_read(begin: Begin, address: str, ask: Ask) -> None:
    """It becomes the body of a dead letter; the messages behind it are delivered, and so is the letter, twice."""
    session = begin()
    post(session, address, b"1", b"2")
    octets = b"\x00\x53\x70\xc0\x01"
    stored = ask(
        "with unreadable as ("
        "  insert into coordinator.half (id, address_id, message) select h.id - 1, h.address_id, %s"
        "    from coordinator.half h join coordinator.address a on a.id = h.address_id"
        "   where a.name = %s order by h.id limit 1 returning id, address_id) "
        "insert into coordinator.entry (group_id, id, half_id, attempts) select g.id, u.id, u.id, 1"
        "  from unreadable u join coordinator.consumer_group g on g.address_id = u.address_id returning 1",
        octets,
        address,
    )
    assert stored == [(1,)]
    browser = session.receiver(Source(address=address, distribution_mode="copy"), credit=10)
    assert [browser.take().body for _ in range(2)] == [b"1", b"2"]
    consumer = session.receiver(address)
    assert consumer.bodies() == [b"1", b"2"]
    letters = dead_letters(session, address)
    letter = letters.take()
    letter.disposition(Modified(delivery_failed=True))
    letter = letters.take()
    assert letter.body == octets
    assert "cannot be read" in letter.message.annotations["x-opt-last-error"]
