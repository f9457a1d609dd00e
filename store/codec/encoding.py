"""AMQP's type system (part 1, section 1.6), as far as the rules need it: reads any value, writes the few that they add.

Values decode to Python's own: null None, boolean bool, integers int, floats float, binary bytes, string str, symbol
:class:`Symbol`, uuid and decimals their raw octets, list and array list, map :class:`Map`, a list of pairs (keys may be
anything), described :class:`Described`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from store.codec.values import Described, Map, Symbol

if TYPE_CHECKING:
    from store.spool import Octets

_U32 = struct.Struct(">I")
_FIXED = {
    0x56: struct.Struct(">?"), 0x50: struct.Struct(">B"), 0x60: struct.Struct(">H"), 0x70: _U32,
    0x80: struct.Struct(">Q"), 0x51: struct.Struct(">b"), 0x61: struct.Struct(">h"), 0x71: struct.Struct(">i"),
    0x81: struct.Struct(">q"), 0x52: struct.Struct(">B"), 0x53: struct.Struct(">B"), 0x54: struct.Struct(">b"),
    0x55: struct.Struct(">b"), 0x72: struct.Struct(">f"), 0x82: struct.Struct(">d"), 0x83: struct.Struct(">q"),
}  # fmt: skip
_CONSTANT: dict[int, object] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}
_RAW = {0x73: 4, 0x74: 4, 0x84: 8, 0x94: 16, 0x98: 16}
#: the width of fixed types by the high half of their code
_WIDTH = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
_DEEPEST = 32
#: elements of one array that have no octets: on the wire they cost nothing, but here they take memory
_MOST_WITHOUT_OCTETS = 256
#: pairs of a map that is decoded by pairs; one with more is refused
MOST_PAIRS = 10_000


class DecodeError(ValueError):
    """The octets are no AMQP value; the text says at which octet, and what was expected."""


def skip(data: Octets, at: int, deep: int = 0) -> int:
    """The offset behind the value at ``at``."""
    try:
        code = data[at]
    except IndexError:
        raise DecodeError(f"the value at octet {at} is cut off") from None
    if code != 0x00:
        return _end(data, code, at + 1)
    if deep > _DEEPEST:
        raise DecodeError(f"values nested deeper than {_DEEPEST} at octet {at}")
    return skip(data, skip(data, at + 1, deep + 1), deep + 1)


def _end(data: Octets, code: int, at: int) -> int:
    """The offset behind the value whose constructor is ``code`` and whose octets begin at ``at``."""
    try:
        high = code >> 4
        if high in _WIDTH:
            if code not in _FIXED and code not in _CONSTANT and code not in _RAW and code != 0x45:
                raise DecodeError(f"no AMQP type has the code 0x{code:02x} (octet {at - 1})")
            end = at + _WIDTH[high]
        elif code in (0xA0, 0xA1, 0xA3, 0xC0, 0xC1, 0xE0):
            end = at + 1 + data[at]
        elif code in (0xB0, 0xB1, 0xB3, 0xD0, 0xD1, 0xF0):
            end = at + 4 + _U32.unpack_from(data, at)[0]
        else:
            raise DecodeError(f"no AMQP type has the code 0x{code:02x} (octet {at - 1})")
    except (IndexError, struct.error):
        raise DecodeError(f"the value at octet {at - 1} is cut off") from None
    if end > len(data):
        raise DecodeError(f"the value at octet {at - 1} ends at {end}, beyond the {len(data)} octets there are")
    return end


def decode(data: Octets, at: int = 0) -> tuple[object, int]:
    """The value at ``at`` and the offset behind it."""
    return _decode(data, at, 0)


def _decode(data: Octets, at: int, deep: int) -> tuple[object, int]:
    if deep > _DEEPEST:
        raise DecodeError(f"values nested deeper than {_DEEPEST} at octet {at}")
    end = skip(data, at)
    code = data[at]
    if code == 0x00:
        descriptor, at = _decode(data, at + 1, deep + 1)
        value, at = _decode(data, at, deep + 1)
        return Described(descriptor, value), at
    return _plain(data, code, at + 1, end, deep), end


def _plain(data: Octets, code: int, at: int, end: int, deep: int) -> object:
    """The value whose constructor is ``code`` and whose octets are ``data[at:end]``."""
    if code in _CONSTANT:
        return _CONSTANT[code]
    if code == 0x45:
        return []
    if code in _FIXED:
        return _FIXED[code].unpack_from(data, at)[0]
    if code in _RAW:
        return data[at:end]
    kind = code & 0x0F
    wide = code >> 4 in (0xB, 0xD, 0xF)
    at += 4 if wide else 1
    if code >> 4 in (0xA, 0xB):
        octets = data[at:end]
        try:
            return octets if kind == 0 else octets.decode() if kind == 1 else Symbol(octets.decode("ascii"))
        except UnicodeDecodeError:
            raise DecodeError(f"the text at octet {at} is not {'UTF-8' if kind == 1 else 'ASCII'}") from None
    try:
        count = _U32.unpack_from(data, at)[0] if wide else data[at]
    except (IndexError, struct.error):
        raise DecodeError(f"the count at octet {at} is cut off") from None
    at += 4 if wide else 1
    if code >> 4 in (0xE, 0xF):
        return _array(data, at, end, count, deep)
    if count > end - at:
        raise DecodeError(f"{count} values announced at octet {at}, but only {end - at} octets are left")
    values = []
    for _ in range(count):
        value, at = _decode(data, at, deep + 1)
        values.append(value)
    if at != end:
        raise DecodeError(f"the {count} values of the list or map end at octet {at}, not at {end} as announced")
    if kind == 0:
        return values
    if count % 2:
        raise DecodeError(f"the map that ends at octet {end} has a key without a value")
    return Map(zip(values[::2], values[1::2], strict=True))


def _array(data: Octets, at: int, end: int, count: int, deep: int) -> list[object]:
    """Elements share one constructor (section 1.6.24)."""
    if deep > _DEEPEST:
        raise DecodeError(f"values nested deeper than {_DEEPEST} at octet {at}")
    if at >= end:
        raise DecodeError(f"the array at octet {at} has no constructor")
    descriptor: object = None
    described = data[at] == 0x00
    if described:
        descriptor, at = _decode(data, at + 1, deep + 1)
    if at >= end:
        raise DecodeError(f"the array at octet {at} has no constructor")
    code = data[at]
    at += 1
    values: list[object] = []
    if code in _CONSTANT or code == 0x45:  # elements without octets: nothing but the count bounds them
        if count > _MOST_WITHOUT_OCTETS:
            raise DecodeError(
                f"an array of {count} values without octets, at most {_MOST_WITHOUT_OCTETS} were expected"
            )
        values = [_plain(data, code, at, at, deep + 1)] * count
    else:
        for _ in range(count):
            if at >= end:
                raise DecodeError(f"the array at octet {at} is cut off")
            after = _end(data, code, at)
            values.append(_plain(data, code, at, after, deep + 1))
            at = after
    if at != end:
        raise DecodeError(f"the array's elements end at octet {at}, not at {end} as announced")
    return [Described(descriptor, value) for value in values] if described else values


def scalar(data: Octets, at: int) -> tuple[object, int]:
    """As :func:`decode`, for a value that holds no others, so that its cost is bounded by its octets."""
    if at >= len(data):
        raise DecodeError(f"the value at octet {at} is cut off")
    code = data[at]
    if code == 0x00 or code >= 0xC0:
        raise DecodeError(f"a value of type 0x{code:02x} at octet {at}, where none that holds others was expected")
    end = _end(data, code, at + 1)
    return _plain(data, code, at + 1, end, 0), end


def scalar_of(pair: bytes) -> object:
    """The value of a pair as :func:`pairs` gives it; one that holds no others."""
    return scalar(pair, skip(pair, 0))[0]


def pairs(data: Octets, at: int) -> list[tuple[object, bytes]]:
    """The map at ``at`` as (decoded key, the octets of key and value as they are). Keys hold no other values."""
    end = skip(data, at)
    code = data[at]
    if code not in (0xC1, 0xD1):
        raise DecodeError(f"a map was expected at octet {at}, not the code 0x{code:02x}")
    wide = code == 0xD1
    at += 5 if wide else 2
    try:
        count = _U32.unpack_from(data, at)[0] if wide else data[at]
    except (IndexError, struct.error):
        raise DecodeError(f"the count at octet {at} is cut off") from None
    at += 4 if wide else 1
    if count > 2 * MOST_PAIRS:
        raise DecodeError(f"a map of {count // 2} pairs, at most {MOST_PAIRS} were expected")
    found = []
    for _ in range(count // 2):
        key, value_at = scalar(data, at)
        after = skip(data, value_at)
        found.append((key, data[at:after]))
        at = after
    if at != end or count % 2:
        raise DecodeError(f"the map that ends at octet {end} is malformed")
    return found


def encode_map(raw_pairs: list[bytes]) -> bytes:
    """A map of pairs that are encoded already."""
    body = b"".join(raw_pairs)
    return b"\xd1" + _U32.pack(len(body) + 4) + _U32.pack(2 * len(raw_pairs)) + body


def encode_list(values: list[bytes]) -> bytes:
    body = b"".join(values)
    if len(body) < 255 and len(values) < 256:
        return b"\xc0" + bytes((len(body) + 1, len(values))) + body
    return b"\xd0" + _U32.pack(len(body) + 4) + _U32.pack(len(values)) + body


def encode_symbol(value: str) -> bytes:
    octets = value.encode("ascii")
    return b"\xa3" + bytes((len(octets),)) + octets if len(octets) < 256 else b"\xb3" + _U32.pack(len(octets)) + octets


def encode_string(value: str) -> bytes:
    octets = value.encode()
    return b"\xa1" + bytes((len(octets),)) + octets if len(octets) < 256 else b"\xb1" + _U32.pack(len(octets)) + octets


def encode_uint(value: int) -> bytes:
    return b"\x43" if value == 0 else b"\x52" + bytes((value,)) if value < 256 else b"\x70" + _U32.pack(value)


def encode_long(value: int) -> bytes:
    return b"\x81" + struct.pack(">q", value)


def encode_uuid(value: bytes) -> bytes:
    return b"\x98" + value


def encode_boolean(value: bool) -> bytes:
    return b"\x41" if value else b"\x42"


def encode_binary(value: bytes) -> bytes:
    return b"\xa0" + bytes((len(value),)) + value if len(value) < 256 else b"\xb0" + _U32.pack(len(value)) + value


def encode_timestamp(unix_ms: int) -> bytes:
    return b"\x83" + struct.pack(">q", unix_ms)
