"""Sections of messages (``store/codec/message.py``): the bare message stays as it is (rule P10)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.codec.encoding import DecodeError
from store.codec.message import examine, first_delivery, outgoing, sections, to_of
from tests.wire import types
from tests.wire.frames import Record
from tests.wire.messages import DATA, SEQUENCE, VALUE, Header, Message, Properties, section
from tests.wire.types import Symbol, Timestamp, UInt
from tests.wire.values import VALUES

pytestmark = pytest.mark.usefixtures("both_forms")

_OPTIONAL_UINT = st.one_of(st.none(), st.integers(0, (1 << 32) - 1).map(UInt))
_NAMES = st.text("abc-", min_size=1, max_size=8).map(Symbol)
_HEADERS = st.builds(
    Header,
    durable=st.sampled_from((None, True, False)),
    priority=st.one_of(st.none(), st.integers(0, 255)),
    ttl=_OPTIONAL_UINT,
    first_acquirer=st.sampled_from((None, True, False)),
    delivery_count=_OPTIONAL_UINT,
)
_PROPERTIES = st.builds(
    Properties,
    message_id=st.one_of(st.none(), st.text(max_size=9), st.uuids()),
    to=st.one_of(st.none(), st.text(max_size=9)),
    absolute_expiry_time=st.one_of(st.none(), st.integers(0, 1 << 45).map(Timestamp)),
    group_sequence=_OPTIONAL_UINT,
)
_ANNOTATIONS = st.dictionaries(_NAMES, VALUES, max_size=3)
_BODIES = st.one_of(
    st.lists(st.binary(max_size=30), max_size=3).map(lambda parts: [(DATA, part) for part in parts]),
    st.lists(st.lists(VALUES, max_size=2), max_size=2).map(lambda parts: [(SEQUENCE, part) for part in parts]),
    VALUES.map(lambda value: [(VALUE, value)]),
)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Any well-formed message; sections in either form of descriptor, small or large."""
    large, symbolic = draw(st.booleans()), draw(st.booleans())
    parts: list[bytes] = []

    def add(found: Any, code: int = 0) -> None:
        if isinstance(found, Record):
            parts.append(found.encoded(large=large, symbolic=symbolic))
        elif found is not None:
            parts.append(section(code, found, large=large))

    add(draw(st.none() | _HEADERS))
    add(draw(st.none() | _ANNOTATIONS), 0x71)
    add(draw(st.none() | _ANNOTATIONS), 0x72)
    add(draw(st.none() | _PROPERTIES))
    add(draw(st.none() | st.dictionaries(st.text(max_size=5), st.integers(0, 9).map(UInt), max_size=3)), 0x74)
    for code, value in draw(_BODIES):
        add(value, code) if value is not None else parts.append(section(code, None))
    add(draw(st.none() | _ANNOTATIONS), 0x78)
    return b"".join(parts)


@pytest.mark.rule("P10", "D6")
@given(messages(), st.integers(0, 5), st.booleans(), st.one_of(st.none(), st.integers(1, 1 << 33)), _ANNOTATIONS)
def test_a_delivery_differs_in_its_header_and_annotations_only(
    octets: bytes, attempts: int, acquired: bool, left: int | None, added: dict[Any, Any]
) -> None:
    """Part 3, section 3.2: durable and priority stay, the count and the time left are ours; the rest is as it was."""
    before = Message(octets)
    annotations = types.encode(added, large=True) if added else b""
    after = Message(outgoing(octets, attempts, left, annotations, acquired=acquired))
    assert after.bare == before.bare
    assert after.annotations == {**before.annotations, **added}
    assert not any(found.code == 0x71 for found in after.sections), "delivery annotations are for one hop"
    assert bool(after.header.durable) == bool(before.header.durable)
    assert after.header.priority == before.header.priority
    assert after.header.delivery_count == attempts
    expected = None if before.header.ttl is None or left is None else min(left, 0xFFFFFFFF)
    assert after.header.ttl == expected
    assert not (after.header.first_acquirer and (attempts or acquired))


@pytest.mark.rule("D6")
@given(messages())
def test_a_first_delivery_says_that_it_is_one(octets: bytes) -> None:
    """Part 3, section 3.2.1. The count that its poster set is never passed on; a message that its poster had from
    elsewhere, where another link had it, says so.
    """
    before = Message(octets)
    for _ in range(2):  # a header that is known by then
        after = Message(first_delivery(octets))
        assert after.bare == before.bare
        assert after.annotations == before.annotations
        assert not any(found.code == 0x71 for found in after.sections), "delivery annotations are for one hop"
        assert after.header.delivery_count == 0
        assert after.header.first_acquirer is not (
            before.header.first_acquirer is False and bool(before.header.delivery_count)
        )
        assert bool(after.header.durable) == bool(before.header.durable)
        assert (after.header.priority, after.header.ttl) == (before.header.priority, before.header.ttl)


@pytest.mark.rule("P10", "P12", "P17")
@given(messages())
def test_what_a_message_says_of_itself(octets: bytes) -> None:
    """Part 3, sections 3.2.1 and 3.2.4: ttl, absolute-expiry-time, to."""
    message = Message(octets)
    properties = next((found.value for found in message.sections if found.code == Properties.CODE), Properties())
    facts = examine(octets)
    assert facts.ttl_ms == message.header.ttl
    assert facts.priority == message.header.priority
    assert facts.absolute_expiry_ms == properties.absolute_expiry_time
    assert to_of(octets) == properties.to
    found = sections(octets)
    assert [code for code, *_ in found] == [each.code for each in message.sections]
    assert b"".join(octets[start:end] for _, start, _, end in found) == octets


@pytest.mark.rule("P10")
@settings(max_examples=400)
@given(messages(), st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=4), st.data())
def test_mutated_messages_are_read_or_refused(octets: bytes, edits: list[tuple[int, int]], draw: st.DataObject) -> None:
    """Whatever was taken in can be given out; nothing but a DecodeError is ever raised."""
    mutated = bytearray(octets)
    for at, value in edits:
        if mutated:
            mutated[at % len(mutated)] = value
    message = bytes(mutated[: draw.draw(st.integers(0, len(mutated)))])
    try:
        examine(message)
    except DecodeError:
        return
    made = outgoing(message, 1, 5, types.encode({Symbol("x-opt"): "y"}), acquired=False)
    kept = b"".join(message[start:end] for code, start, _, end in sections(message) if code >= Properties.CODE)
    assert made.endswith(kept)
    with suppress(DecodeError):
        to_of(message)


@pytest.mark.rule("P10", "D7")
@pytest.mark.parametrize("padding", [0, 300])
def test_what_one_message_says_is_not_said_of_the_next(padding: int) -> None:
    """The same octets in another section, other octets in the same: whether a section is remembered or is too long."""
    body = section(DATA, b"x")
    pad = {Symbol("pad"): "p" * padding} if padding else {}
    later = {Symbol("x-opt-delivery-time"): Timestamp(5000), **pad}
    soon = {Symbol("x-opt-delivery-delay"): UInt(7), **pad}
    for _ in range(2):
        for priority in (None, 3, 9):
            header = b"\x00\x53\x70" + types.encode([True, priority and types.UByte(priority)])
            for code in (0x71, 0x72, 0x74):
                for told in (later, soon):
                    found = examine(header + section(code, told) + body)
                    assert found.priority == priority
                    assert found.delivery_time_ms == (5000 if code == 0x72 and told is later else None)
                    assert found.delivery_delay_ms == (7 if code == 0x72 and told is soon else None)
