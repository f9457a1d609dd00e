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

from store.codec import encoding
from store.codec.encoding import DecodeError, decode, encode_list, encode_map, pairs, skip
from store.codec.values import Described
from tests.wire import types
from tests.wire.values import ASCII, KEYS, VALUES


def plain(value: Any) -> Any:
    """What ``store.codec.encoding`` makes of a value of the test client's."""
    if isinstance(value, types.Described):
        return Described(plain(value.descriptor), plain(value.value))
    if isinstance(value, types.Array):
        items = [plain(item) for item in value.items]
        if value.descriptor is None:
            return items
        return [Described(plain(value.descriptor), item) for item in items]
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


@given(st.dictionaries(KEYS, VALUES, max_size=6), st.booleans())
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


@given(st.text(max_size=400), ASCII, st.integers(0, (1 << 32) - 1), st.integers(-(1 << 63), (1 << 63) - 1), st.uuids())
def test_scalars_are_written_as_others_read_them(text: str, name: str, small: int, large: int, key: uuid.UUID) -> None:
    """Part 1, section 1.6."""
    assert types.decode(encoding.encode_string(text))[0] == text
    assert types.decode(encoding.encode_symbol(name))[0] == name
    assert types.decode(encoding.encode_uint(small))[0] == small
    assert types.decode(encoding.encode_long(large))[0] == large
    assert types.decode(b"\x98" + key.bytes)[0] == key


@pytest.mark.parametrize("depth", [40, 3000])
def test_values_nested_too_deep_are_refused(depth: int) -> None:
    """A reader that follows any depth is one that any peer can end."""
    for octets in (b"\x00\x40" * depth + b"\x40", b"\x00" * depth + b"\x40" * depth):
        with pytest.raises(DecodeError, match="nested deeper"):
            decode(octets)
    nested = b"\x45"
    for _ in range(depth):
        nested = b"\xd0" + struct.pack(">II", len(nested) + 4, 1) + nested
    with pytest.raises(DecodeError, match="nested deeper"):
        decode(nested)
