"""The type system of the rules held against the test client's, which was written apart."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coordinator import encoding
from coordinator.encoding import DecodeError, decode, encode_list, encode_map, pairs, skip
from tests.wire import types


def _integers(kind: type, bits: int, *, signed: bool) -> st.SearchStrategy[Any]:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return st.integers(low, high).map(kind)


_ASCII = st.text(st.characters(max_codepoint=127), max_size=300)
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    _integers(types.UByte, 8, signed=False),
    _integers(types.UShort, 16, signed=False),
    _integers(types.UInt, 32, signed=False),
    _integers(types.ULong, 64, signed=False),
    _integers(types.Byte, 8, signed=True),
    _integers(types.Short, 16, signed=True),
    _integers(types.Int, 32, signed=True),
    _integers(types.Long, 64, signed=True),
    _integers(types.Timestamp, 64, signed=True),
    st.floats(width=32, allow_nan=False).map(types.Float),
    st.floats(allow_nan=False).map(types.Double),
    st.integers(0, 0x10FFFF).map(types.Char),
    st.sampled_from((4, 8, 16)).flatmap(lambda size: st.binary(min_size=size, max_size=size)).map(types.Decimal),
    st.uuids(),
    st.binary(max_size=300),
    st.text(max_size=100),
    _ASCII.map(types.Symbol),
)
#: what one constructor says of every item (section 1.6.24)
_ARRAYS = st.one_of(
    st.builds(types.Array, st.just(0x70), st.lists(_integers(types.UInt, 32, signed=False), max_size=5)),
    st.builds(types.Array, st.just(0x55), st.lists(st.integers(-128, 127).map(types.Long), max_size=5)),
    st.builds(
        types.Array, st.just(0xA3), st.lists(_ASCII.filter(lambda s: len(s) < 200).map(types.Symbol), max_size=5)
    ),
    st.builds(types.Array, st.just(0xB0), st.lists(st.binary(max_size=20), max_size=5), st.just(types.ULong(7))),
    st.builds(types.Array, st.just(0x41), st.lists(st.just(True), max_size=5)),
    st.builds(types.Array, st.just(0x45), st.lists(st.just([]), max_size=5)),
    st.builds(types.Array, st.just(0xD0), st.lists(st.lists(st.booleans(), max_size=2), max_size=5)),
)
_KEYS = st.one_of(st.text(max_size=10), _ASCII.map(types.Symbol), st.integers(0, 255).map(types.UByte), st.uuids())
VALUES = st.recursive(
    st.one_of(_SCALARS, _ARRAYS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(_KEYS, inner, max_size=5),
        st.builds(
            types.Described, st.one_of(st.integers(0, 1 << 63).map(types.ULong), _ASCII.map(types.Symbol)), inner
        ),
    ),
    max_leaves=15,
)


def plain(value: Any) -> Any:
    """What ``coordinator.encoding`` makes of a value of the test client's."""
    if isinstance(value, types.Described):
        return encoding.Described(plain(value.descriptor), plain(value.value))
    if isinstance(value, types.Array):
        items = [plain(item) for item in value.items]
        if value.descriptor is None:
            return items
        return [encoding.Described(plain(value.descriptor), item) for item in items]
    if isinstance(value, dict):
        return [(plain(key), plain(each)) for key, each in value.items()]
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, types.Char):
        return struct.pack(">I", value)
    return value


@given(VALUES, st.booleans())
def test_every_value_is_read_as_it_was_meant(value: Any, large: bool) -> None:
    """Part 1, section 1.6: every type, small and large; the offset behind it, by both ways of getting there."""
    octets = types.encode(value, large=large)
    assert types.decode(octets) == (value, len(octets))
    assert decode(b"??" + octets + b"!", 2) == (plain(value), 2 + len(octets))
    assert skip(b"??" + octets + b"!", 2) == 2 + len(octets)


@given(VALUES, st.booleans(), st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=5), st.data())
@settings(max_examples=400)
def test_what_is_no_value_is_a_decode_error_and_nothing_else(
    value: Any, large: bool, edits: list[tuple[int, int]], draw: st.DataObject
) -> None:
    """Mutated and cut: read, or refused; never another exception, never beyond the end."""
    octets = bytearray(types.encode(value, large=large))
    for at, replacement in edits:
        octets[at % len(octets)] = replacement
    mutated = bytes(octets[: draw.draw(st.integers(0, len(octets)))])
    reads: tuple[Callable[[], int], ...] = (lambda: decode(mutated)[1], lambda: skip(mutated, 0))
    for read in reads:
        with suppress(DecodeError):
            assert 0 < read() <= len(mutated)


@given(st.binary(max_size=60))
@example(b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x41")
@example(b"\xe0\x02\xff\x45")
@example(b"\xd0\x00\x00\x00\x04\xff\xff\xff\xff")
@example(b"\x00" * 50)
@example(b"\xc1\x02\x01\x40")
def test_any_octets_at_all(octets: bytes) -> None:
    """As above, from nothing."""
    for read in (lambda: decode(octets), lambda: pairs(octets, 0)):
        with suppress(DecodeError):
            read()


@given(st.dictionaries(_KEYS, VALUES, max_size=6), st.booleans())
def test_pairs_keep_their_octets(value: dict[Any, Any], large: bool) -> None:
    """A map taken apart and put together again is the same map."""
    octets = types.encode(value, large=large)
    found = pairs(octets, 0)
    assert [key for key, _ in found] == [plain(key) for key in value]
    assert types.decode(encode_map([raw for _, raw in found]))[0] == value


@given(st.lists(VALUES, max_size=8))
def test_lists_are_written_as_others_read_them(values: list[Any]) -> None:
    """Part 1, section 1.6.22."""
    assert types.decode(encode_list([types.encode(value) for value in values]))[0] == values


@given(st.text(max_size=400), _ASCII, st.integers(0, (1 << 32) - 1), st.integers(-(1 << 63), (1 << 63) - 1), st.uuids())
def test_scalars_are_written_as_others_read_them(text: str, name: str, small: int, large: int, key: uuid.UUID) -> None:
    """Part 1, section 1.6."""
    assert types.decode(encoding.encode_string(text))[0] == text
    assert types.decode(encoding.encode_symbol(name))[0] == name
    assert types.decode(encoding.encode_uint(small))[0] == small
    assert types.decode(encoding.encode_long(large))[0] == large
    assert types.decode(encoding.encode_uuid(key.bytes))[0] == key


@pytest.mark.parametrize("depth", [40, 3000])
def test_values_nested_too_deep_are_refused(depth: int) -> None:
    """A reader that follows any depth is one that any peer can end."""
    for octets in (b"\x00\x40" * depth + b"\x40", b"\x00" * depth + b"\x40" * depth):
        with pytest.raises(DecodeError):
            decode(octets)
    nested = b"\x45"
    for _ in range(depth):
        nested = b"\xd0" + struct.pack(">II", len(nested) + 4, 1) + nested
    with pytest.raises(DecodeError):
        decode(nested)
