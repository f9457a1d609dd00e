"""Performatives of a peer: what is no performative, or not as it must be; and what a large one costs (P14)."""

from __future__ import annotations

from typing import Any

import pytest

from links import performatives
from store.codec.encoding import DecodeError
from tests.tables import all_cases
from tests.wire.frames import (
    RECEIVER,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Record,
    Transfer,
    without,
)
from tests.wire.types import UInt, ULong

_BEGIN = Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9)
_ATTACH = Attach(name="n", handle=0, role=RECEIVER)
_WHOLE: tuple[tuple[Record, int], ...] = (
    (Open(container_id="c"), 10),
    (_BEGIN, 8),
    (_ATTACH, 14),
    (Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1), 11),
    (Transfer(handle=0), 11),
    (Disposition(role=RECEIVER, first=0), 6),
    (Detach(handle=0), 3),
    (End(), 1),
    (Close(), 1),
)


def _of(count: int, found: Record) -> bytes:
    """With so many fields: nulls behind those that there are."""
    values = found.described().value
    octets = without(0, found, values[0]) if values else found.encoded()
    assert octets[3] in (0x45, 0xC0)
    fields = b"" if octets[3] == 0x45 else octets[6:]
    fields += b"\x40" * (count - len(values))
    return octets[:3] + b"\xd0" + (len(fields) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + fields


@pytest.mark.rule("P14")
@all_cases(("found", "most"), _WHOLE)
def test_no_more_fields_than_it_has(found: Record, most: int) -> None:
    whole = performatives.read(_of(most, found), 0)
    assert whole is not None
    assert whole.code == found.CODE
    assert len(whole.starts) == most
    for count in (most + 1, 60_000):
        with pytest.raises(DecodeError, match=f"of {count} fields: it has {most} at most"):
            performatives.read(_of(count, found), 0)


@pytest.mark.rule("P14")
@all_cases(
    ("found", "place", "value"),
    [
        (Open(container_id="c", hostname="h"), 1, UInt(1)),
        (Open(container_id="c", max_frame_size=512), 2, ULong(512)),
        (Open(container_id="c", channel_max=7), 3, UInt(7)),
        (Open(container_id="c", idle_time_out=7), 4, "7"),
        (_BEGIN, 0, UInt(0)),
        (Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9, handle_max=1), 4, True),
        (Attach(name="n", handle=0, role=RECEIVER, snd_settle_mode=1), 3, UInt(1)),
        (Attach(name="n", handle=0, role=RECEIVER, rcv_settle_mode=1), 4, True),
        (Attach(name="n", handle=0, role=RECEIVER, incomplete_unsettled=True), 8, UInt(1)),
        (Attach(name="n", handle=0, role=RECEIVER, initial_delivery_count=1), 9, ULong(1)),
        (Attach(name="n", handle=0, role=RECEIVER, max_message_size=1), 10, UInt(1)),
        (Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1, handle=0), 0, ULong(0)),
        (Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1, handle=0), 4, ULong(0)),
        (Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1, echo=True), 9, UInt(1)),
        (Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1, echo=True), 8, UInt(1)),
        (Transfer(handle=0, delivery_id=1), 1, ULong(1)),
        (Transfer(handle=0, delivery_tag=b"t"), 2, "t"),
        (Transfer(handle=0, message_format=1), 3, ULong(0)),
        (Transfer(handle=0, settled=True), 4, []),
        (Transfer(handle=0, more=True), 5, UInt(1)),
        (Transfer(handle=0, rcv_settle_mode=1), 6, UInt(1)),
        (Transfer(handle=0, aborted=True), 9, UInt(1)),
        (Disposition(role=RECEIVER, first=0, last=1), 2, ULong(1)),
        (Disposition(role=RECEIVER, first=0, settled=True), 3, "yes"),
        (Detach(handle=0, closed=True), 1, UInt(1)),
    ],
)
def test_a_field_is_of_its_type(found: Record, place: int, value: Any) -> None:
    """Part 1, section 1.4: mandatory or not."""
    with pytest.raises(DecodeError, match="without its"):
        performatives.read(without(place, found, value), 0)
    assert performatives.read(found.encoded(), 0) is not None


@pytest.mark.rule("P14")
@all_cases(
    "octets",
    [
        pytest.param(b"\x45", id="a list without a descriptor"),
        pytest.param(b"\x00\x52\x17\x45", id="a uint"),
        pytest.param(b"\x00\x50\x17\x45", id="a ubyte"),
        pytest.param(b"\x00\xa3\x0damqp:end:list\x45", id="a symbol"),
        pytest.param(b"\x00\x44\x45", id="0"),
        pytest.param(b"\x00\x53\x19\x45", id="no performative"),
        pytest.param(b"\x00\x53\x17\x40", id="null"),
        pytest.param(b"\x00\x53\x17\xc1\x01\x00", id="a map"),
        pytest.param(b"\x00\x53\x17", id="no list"),
        pytest.param(b"\x00", id="no descriptor"),
        pytest.param(b"\x00\xd0\x00\x00\xff\xf0\x00\x00\xff\xec" + b"\x40" * 0xFFEC + b"\x45", id="a list"),
        pytest.param(b"\x00" * 60_000, id="descriptors of descriptors"),
    ],
)
def test_what_is_no_performative(octets: bytes) -> None:
    """The engine takes none of these, and says so; a descriptor that holds others is not read."""
    assert performatives.read(octets, 0) is None


@pytest.mark.rule("P14")
@all_cases(
    "octets",
    [
        pytest.param(b"\x00\x53\x16\xc0\x03\x01\x43\x43", id="more octets than fields"),
        pytest.param(b"\x00\x53\x16\xc0\x02\x02\x43", id="more fields than octets"),
        pytest.param(b"\x00\x53\x16\xc0\x05\x01\x43", id="cut off"),
        pytest.param(b"\x00\x53\x16\xc0", id="no size"),
        pytest.param(b"\x00\x53\x16\xc0\x04\x01\x70\x00\x00", id="a field that is cut off"),
        pytest.param(b"\x00\x53", id="a descriptor that is cut off"),
    ],
)
def test_what_is_not_whole(octets: bytes) -> None:
    with pytest.raises(DecodeError):
        performatives.read(octets, 0)
