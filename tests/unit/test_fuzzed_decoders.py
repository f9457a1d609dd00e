"""The decoders under the grammar of the fuzzing, without a service (rules S6, P10)."""

from __future__ import annotations

import struct
from random import Random, SystemRandom
from typing import Any

import pytest

from store.codec import encoding, message
from store.codec.encoding import DecodeError
from store.codec.message import examine
from tests.fuzz.decoders import Decoders
from tests.tables import all_cases
from tests.wire.messages import Header, Properties, data, section
from tests.wire.types import Raw, Timestamp, UByte, UInt, ULong, encode

pytestmark = pytest.mark.usefixtures("both_forms")


@pytest.mark.day
@pytest.mark.rule("S6", "P10")
@pytest.mark.parametrize("seed", [1, 2, None])
def test_what_is_sent_is_decoded_or_refused(seed: int | None) -> None:
    """Half of the inputs are broken; one in 500 is large, of the smallest parts."""
    drawn = SystemRandom().getrandbits(32) if seed is None else seed
    print(f"seed {drawn}")  # noqa: T201 (shown where it fails)
    Decoders(Random(drawn)).play(4_000)


@pytest.mark.rule("P10")
@all_cases(
    ("field", "value"),
    [
        ("priority", "high"),
        ("priority", UInt(256)),
        ("durable", UByte(1)),
        ("first_acquirer", []),
        ("ttl", ULong(1 << 32)),
        ("delivery_count", b"1"),
    ],
)
def test_fields_of_the_header_are_of_their_types(field: str, value: Any) -> None:
    """Part 3, section 3.2.1. What is taken goes out again: the header is the one section that is written anew."""
    wrong: dict[str, Any] = {field: Raw(encode(value))}
    with pytest.raises(DecodeError, match=f"^{field.replace('_', '-')} is "):
        examine(Header(**wrong).encoded() + data(b"x"))


@pytest.mark.rule("P10")
@all_cases("code", [Header.CODE, Properties.CODE])
def test_a_list_has_no_more_fields_than_are_defined(code: int) -> None:
    with pytest.raises(DecodeError, match="14 fields"):
        examine(section(code, [None] * 14))


@pytest.mark.rule("P10", "S6")
def test_fields_hold_no_other_values() -> None:
    """What is decoded of a message costs no more than its octets: no lists and maps in header, properties and keys."""
    many: Any = Raw(struct.pack(">BII", 0xD0, (1 << 20) + 4, 1 << 20) + b"\x40" * (1 << 20))
    for octets in (Header(priority=many).encoded(), Properties(message_id=many).encoded(), section(0x74, {many: None})):
        with pytest.raises(DecodeError, match="holds others"):
            examine(octets)


@pytest.mark.rule("S6")
def test_an_expiry_beyond_all_time_is_one() -> None:
    """Its type allows more than the store's timestamps do."""
    assert (
        examine(Properties(absolute_expiry_time=Timestamp((1 << 63) - 1)).encoded()).absolute_expiry_ms == (1 << 63) - 1
    )


@pytest.mark.rule("P10")
def test_a_time_that_is_none_is_said_to_be_milliseconds() -> None:
    with pytest.raises(DecodeError, match=r"^absolute-expiry-time is -1; expected milliseconds, 0 or more$"):
        examine(Properties(absolute_expiry_time=Timestamp(-1)).encoded())


@pytest.mark.rule("S6")
def test_an_array_costs_what_its_octets_do() -> None:
    """A million elements, each read once: copied for each, they would take until tomorrow."""
    count = 1 << 20
    found, end = encoding.decode(struct.pack(">BIIB", 0xF0, count + 5, count, 0x50) + bytes(count))
    assert found == [0] * count
    assert end == count + 10


@pytest.mark.rule("S6")
@all_cases(
    ("octets", "said"),
    [
        pytest.param(
            b"\xf0\x00\x00\x00\x06\xff\xff\xff\xff\x40\x40",
            "4294967295 values without octets",
            id="nulls without octets",
        ),
        pytest.param(
            b"\xf0\x00\x00\x00\x05\x00\x01\x00\x00\x45", "65536 values without octets", id="empty lists without octets"
        ),
        pytest.param(
            b"\xf0" + struct.pack(">IIB", 0xFFFF, 1, 0xF0) * 7000 + bytes(70_000),
            "nested deeper",
            id="arrays in arrays",
        ),
    ],
)
def test_an_array_of_too_much_is_refused(octets: bytes, said: str) -> None:
    with pytest.raises(DecodeError, match=said):
        encoding.decode(octets)


@pytest.mark.rule("S6")
def test_sections_and_pairs_are_counted() -> None:
    with pytest.raises(DecodeError, match="10000 sections"):
        message.sections(data(b"") * 10_001)
    pair = b"\xa3\x01a\x40"
    body = pair * 10_001
    with pytest.raises(DecodeError, match="10001 pairs"):
        examine(b"\x00\x53\x72" + struct.pack(">BII", 0xD1, len(body) + 4, 2 * 10_001) + body)
