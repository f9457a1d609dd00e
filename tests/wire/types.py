"""AMQP's type system (part 1, section 1.6) for the test client: every type, in its small and in its large encoding.

Written apart from ``codec/encoding.py`` and from Proton, so that one can be held against the other. Python's own
types stand for what they say (None, bool, bytes, str, list, dict, ``uuid.UUID``); numbers say their width by a class of
their own, as the wire knows no plain number. :class:`Raw` goes out as it is: the way to send what no encoder would.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass, field
from typing import Any


class UByte(int):
    """0 to 255."""


class UShort(int):
    """16 bits."""


class UInt(int):
    """32 bits."""


class ULong(int):
    """64 bits."""


class Byte(int):
    """8 bits, signed."""


class Short(int):
    """16 bits, signed."""


class Int(int):
    """32 bits, signed."""


class Long(int):
    """64 bits, signed."""


class Char(int):
    """A Unicode code point."""


class Timestamp(int):
    """Milliseconds since 1970."""


class Float(float):
    """32 bits."""


class Double(float):
    """64 bits."""


class Symbol(str):
    """ASCII."""


class Decimal(bytes):
    """4, 8 or 16 octets, not looked into."""


class Raw(bytes):
    """Octets that stand for themselves, constructor and all."""


@dataclass(frozen=True)
class Described:
    descriptor: Any
    value: Any


@dataclass(frozen=True)
class Array:
    """``code``: the constructor that all items share (section 1.6.24)."""

    code: int
    items: list[Any] = field(default_factory=list)
    descriptor: Any = None


class Malformed(ValueError):
    """The octets are not what the standard says."""


_NUMBERS: dict[int, tuple[type, str]] = {
    0x50: (UByte, ">B"), 0x60: (UShort, ">H"), 0x70: (UInt, ">I"), 0x80: (ULong, ">Q"),
    0x51: (Byte, ">b"), 0x61: (Short, ">h"), 0x71: (Int, ">i"), 0x81: (Long, ">q"),
    0x52: (UInt, ">B"), 0x53: (ULong, ">B"), 0x54: (Int, ">b"), 0x55: (Long, ">b"),
    0x73: (Char, ">I"), 0x83: (Timestamp, ">q"), 0x72: (Float, ">f"), 0x82: (Double, ">d"),
}  # fmt: skip
_ZEROS: dict[int, type] = {0x43: UInt, 0x44: ULong}
_LARGE = {
    UByte: 0x50, UShort: 0x60, UInt: 0x70, ULong: 0x80, Byte: 0x51, Short: 0x61, Int: 0x71, Long: 0x81,
    Char: 0x73, Timestamp: 0x83, Float: 0x72, Double: 0x82,
}  # fmt: skip
#: small encodings by type: (code, lowest, highest)
_SMALL = {UInt: (0x52, 0, 255), ULong: (0x53, 0, 255), Int: (0x54, -128, 127), Long: (0x55, -128, 127)}
_DECIMALS = {0x74: 4, 0x84: 8, 0x94: 16}
_VARIABLE: dict[type, tuple[int, int]] = {bytes: (0xA0, 0xB0), str: (0xA1, 0xB1), Symbol: (0xA3, 0xB3)}


def encode(value: Any, *, large: bool = False) -> bytes:
    """``value`` with its constructor, in the smallest encoding, or the largest."""
    if isinstance(value, Raw):
        return bytes(value)
    if isinstance(value, Described):
        return b"\x00" + encode(value.descriptor, large=large) + encode(value.value, large=large)
    code = _code(value, large)
    return bytes((code,)) + _octets(code, value, large)


def _code(value: Any, large: bool) -> int:
    kind = type(value)
    if value is None:
        return 0x40
    if kind is bool:
        return 0x56 if large else 0x41 if value else 0x42
    if kind in _LARGE:
        if not large and kind in _ZEROS.values() and value == 0:
            return 0x43 if kind is UInt else 0x44
        if not large and kind in _SMALL and _SMALL[kind][1] <= value <= _SMALL[kind][2]:
            return _SMALL[kind][0]
        return _LARGE[kind]
    if kind is Decimal:
        return {size: code for code, size in _DECIMALS.items()}[len(value)]
    if kind is uuid.UUID:
        return 0x98
    if kind in _VARIABLE:
        small, big = _VARIABLE[kind]
        return big if large or len(_text_octets(value)) > 255 else small
    if kind in (list, tuple):
        if not value and not large:
            return 0x45
        return 0xD0 if large or not _fits(_items(value, large), len(value)) else 0xC0
    if kind is dict:
        flat = [each for pair in value.items() for each in pair]
        return 0xD1 if large or not _fits(_items(flat, large), len(flat)) else 0xC1
    if kind is Array:
        return 0xF0 if large or not _fits(_array_octets(value, large), len(value.items)) else 0xE0
    raise TypeError(f"{kind.__name__} is no AMQP type; expected one of tests/wire/types.py")


def _fits(octets: bytes, count: int) -> bool:
    return len(octets) < 255 and count < 256


def _text_octets(value: Any) -> bytes:
    return bytes(value) if isinstance(value, bytes) else str(value).encode()


def _items(values: Any, large: bool) -> bytes:
    return b"".join(encode(value, large=large) for value in values)


def _octets(code: int, value: Any, large: bool) -> bytes:
    """What follows the constructor ``code``."""
    if code in (0x40, 0x41, 0x42, 0x43, 0x44, 0x45):
        return b""
    if code == 0x56:
        return bytes((bool(value),))
    if code in _NUMBERS:
        return struct.pack(_NUMBERS[code][1], value)
    if code in _DECIMALS:
        return bytes(value)
    if code == 0x98:
        return bytes(value.bytes)
    if code in (0xA0, 0xA1, 0xA3, 0xB0, 0xB1, 0xB3):
        octets = _text_octets(value)
        return struct.pack(">B" if code < 0xB0 else ">I", len(octets)) + octets
    if code in (0xC0, 0xD0):
        return _sized(code >= 0xD0, _items(value, large), len(value))
    if code in (0xC1, 0xD1):
        return _sized(code >= 0xD0, _items([each for pair in value.items() for each in pair], large), 2 * len(value))
    return _sized(code >= 0xF0, _array_octets(value, large), len(value.items))


def _sized(large: bool, octets: bytes, count: int) -> bytes:
    if large:
        return struct.pack(">II", len(octets) + 4, count) + octets
    return struct.pack(">BB", len(octets) + 1, count) + octets


def _array_octets(array: Array, large: bool) -> bytes:
    descriptor = b"" if array.descriptor is None else b"\x00" + encode(array.descriptor, large=large)
    return descriptor + bytes((array.code,)) + b"".join(_octets(array.code, item, large) for item in array.items)


def symbols(*names: str) -> Array:
    return Array(0xA3, [Symbol(name) for name in names])


def decode(data: bytes, at: int = 0) -> tuple[Any, int]:
    """The value at ``at`` and the offset behind it. Malformed if there is no value."""
    code, at = _octet(data, at)
    if code == 0x00:
        descriptor, at = decode(data, at)
        value, at = decode(data, at)
        return Described(descriptor, value), at
    return _value(code, data, at)


def _octet(data: bytes, at: int) -> tuple[int, int]:
    return _take(data, at, 1)[0], at + 1


def _take(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise Malformed(f"{size} octets expected at {at}, {len(data) - at} are left")
    return data[at : at + size]


def _value(code: int, data: bytes, at: int) -> tuple[Any, int]:
    if code in (0x40, 0x41, 0x42, 0x45):
        return {0x40: None, 0x41: True, 0x42: False, 0x45: []}[code], at
    if code in _ZEROS:
        return _ZEROS[code](0), at
    if code == 0x56:
        octet, at = _octet(data, at)
        if octet > 1:
            raise Malformed(f"a boolean of {octet}")
        return bool(octet), at
    if code in _NUMBERS:
        kind, form = _NUMBERS[code]
        size = struct.calcsize(form)
        return kind(struct.unpack(form, _take(data, at, size))[0]), at + size
    if code in _DECIMALS:
        return Decimal(_take(data, at, _DECIMALS[code])), at + _DECIMALS[code]
    if code == 0x98:
        return uuid.UUID(bytes=_take(data, at, 16)), at + 16
    wide = code >> 4 in (0xB, 0xD, 0xF)
    if code >> 4 not in (0xA, 0xB, 0xC, 0xD, 0xE, 0xF):
        raise Malformed(f"no type has the code 0x{code:02x}")
    width = 4 if wide else 1
    size = int.from_bytes(_take(data, at, width), "big")
    at += width
    content = _take(data, at, size)
    end = at + size
    if code in (0xA0, 0xB0):
        return content, end
    if code in (0xA1, 0xB1):
        return content.decode("utf-8"), end
    if code in (0xA3, 0xB3):
        return Symbol(content.decode("ascii")), end
    if code not in (0xC0, 0xD0, 0xC1, 0xD1, 0xE0, 0xF0):
        raise Malformed(f"no type has the code 0x{code:02x}")
    count = int.from_bytes(_take(content, 0, width), "big")
    return _compound(code, content, width, count), end


def _compound(code: int, content: bytes, at: int, count: int) -> Any:
    if code in (0xE0, 0xF0):
        descriptor = None
        element, at = _octet(content, at)
        if element == 0x00:
            descriptor, at = decode(content, at)
            element, at = _octet(content, at)
        items = []
        for _ in range(count):
            item, at = _value(element, content, at)
            items.append(item)
        found: Any = Array(element, items, descriptor)
    else:
        values = []
        for _ in range(count):
            value, at = decode(content, at)
            values.append(value)
        found = values
        if code in (0xC1, 0xD1):
            if count % 2:
                raise Malformed("a map with a key and no value")
            found = dict(zip(values[::2], values[1::2], strict=True))
    if at != len(content):
        raise Malformed(f"{len(content) - at} octets too many in a list, map or array")
    return found
