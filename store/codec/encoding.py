"""Decode any value of AMQP's type system (part 1, section 1.6), and encode the few types that the service writes.

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
_RAW = frozenset((0x73, 0x74, 0x84, 0x94, 0x98))
#: how many octets follow a constructor; ONE, FOUR: their number follows, in one octet or in four
ONE, FOUR, _NONE = -1, -4, -9
_OF_WIDTH = {
    0: (0x40, 0x41, 0x42, 0x43, 0x44, 0x45), 1: (0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56), 2: (0x60, 0x61),
    4: (0x70, 0x71, 0x72, 0x73, 0x74), 8: (0x80, 0x81, 0x82, 0x83, 0x84), 16: (0x94, 0x98),
    ONE: (0xA0, 0xA1, 0xA3, 0xC0, 0xC1, 0xE0), FOUR: (0xB0, 0xB1, 0xB3, 0xD0, 0xD1, 0xF0),
}  # fmt: skip
_WIDTH_OF = {code: width for width, codes in _OF_WIDTH.items() for code in codes}
WIDTHS = [_WIDTH_OF.get(code, _NONE) for code in range(256)]
LISTS, MAPS, ARRAYS = frozenset((0x45, 0xC0, 0xD0)), frozenset((0xC1, 0xD1)), frozenset((0xE0, 0xF0))
STRING8 = 0xA1
_TEXTS = frozenset((0xA1, 0xA3, 0xB1, 0xB3))
_DEEPEST = 32
#: the most elements of an array whose elements have no octets: they take memory here alone
_MOST_WITHOUT_OCTETS = 256
#: pairs of a map that is decoded by pairs; one with more is refused
MOST_PAIRS = 10_000


class DecodeError(ValueError):
    """The octets are not an AMQP value; the text says at which octet, and what was expected."""


def skip(data: Octets, at: int, deep: int = 0) -> int:
    """Return the offset behind the value at ``at``."""
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
    """Return the offset behind the value whose constructor is ``code`` and whose octets begin at ``at``."""
    width = WIDTHS[code]
    try:
        if width >= 0:
            end = at + width
        elif width == ONE:
            end = at + 1 + data[at]
        elif width == FOUR:
            end = at + 4 + _U32.unpack_from(data, at)[0]
        else:
            raise DecodeError(f"no AMQP type has the code 0x{code:02x} (octet {at - 1})")
    except (IndexError, struct.error):
        raise DecodeError(f"the value at octet {at - 1} is cut off") from None
    if end > len(data):
        raise DecodeError(f"the value at octet {at - 1} ends at {end}, beyond the {len(data)} octets there are")
    return end


def decode(data: Octets, at: int = 0) -> tuple[object, int]:
    """Return the value at ``at`` and the offset behind it."""
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
    """Decode the value whose constructor is ``code`` and whose octets are ``data[at:end]``."""
    fixed = _FIXED.get(code)
    if fixed is not None:
        return fixed.unpack_from(data, at)[0]
    if code in _CONSTANT:
        return _CONSTANT[code]
    if code == 0x45:
        return []
    if code in _RAW:
        return data[at:end]
    kind = code & 0x0F
    if code < 0xC0:
        at += 4 if code >= 0xB0 else 1
        octets = data[at:end]
        try:
            return octets if kind == 0 else octets.decode() if kind == 1 else Symbol(octets.decode("ascii"))
        except UnicodeDecodeError:
            raise DecodeError(f"the text at octet {at} is not {'UTF-8' if kind == 1 else 'ASCII'}") from None
    at, count = _counted(data, code, at, end)
    if code in ARRAYS:
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


def _counted(data: Octets, code: int, at: int, end: int) -> tuple[int, int]:
    """Return where the values of a list, map or array begin, and its count. ``at``: behind its constructor."""
    first = at + (8 if code >= 0xD0 and code != 0xE0 else 2)
    if first > end:
        raise DecodeError(f"the count at octet {at} is cut off")
    return first, data[at + 1] if first == at + 2 else _U32.unpack_from(data, at + 4)[0]


def contents(data: Octets, at: int) -> tuple[int, int, int]:
    """Return where the values of the list, map or array at ``at`` begin and end, and its count."""
    end = skip(data, at)
    code = data[at]
    if code == 0x45:
        return end, end, 0
    first, count = _counted(data, code, at + 1, end)
    return first, end, count


def _array(data: Octets, at: int, end: int, count: int, deep: int) -> list[object]:
    """Decode an array, whose elements share one constructor (section 1.6.24)."""
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
    if code in _CONSTANT or code == 0x45:
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
    """Decode a value that contains no others, so that its cost is bounded by its octets."""
    if at >= len(data):
        raise DecodeError(f"the value at octet {at} is cut off")
    code = data[at]
    if code == 0x00 or code >= 0xC0:
        raise DecodeError(f"a value of type 0x{code:02x} at octet {at}, where none that holds others was expected")
    end = _end(data, code, at + 1)
    return _plain(data, code, at + 1, end, 0), end


def scalar_of(pair: bytes) -> object:
    """Return the value of a pair of :func:`pairs`; it contains no others."""
    return scalar(pair, skip(pair, 0))[0]


def pairs(data: Octets, at: int) -> list[tuple[object, bytes]]:
    """Return the map at ``at`` as (decoded key, octets of key and value). Keys contain no other values."""
    end = skip(data, at)
    code = data[at]
    if code not in MAPS:
        raise DecodeError(f"a map was expected at octet {at}, not the code 0x{code:02x}")
    at, count = _counted(data, code, at + 1, end)
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


# -- find a value inside others without decoding these; ``at``: where a whole value begins, from sections(), names() or
# item()


def plain(data: bytes, at: int) -> int:
    """Return where the value at ``at`` begins, behind its descriptors."""
    while data[at] == 0x00:
        at = skip(data, at + 1)
    return at


def content(data: bytes, at: int) -> bytes:
    """Return the octets of the binary, string or symbol at ``at``."""
    if data[at] < 0xB0:
        return data[at + 2 : at + 2 + data[at + 1]]
    return data[at + 5 : at + 5 + _U32.unpack_from(data, at + 1)[0]]


def names(data: bytes, at: int) -> dict[bytes | int, int]:
    """Return where the values of the map at ``at`` begin, by the octets of their keys; by the key's offset if it is
    neither string nor symbol. DecodeError if a key occurs twice."""
    if data[at] == 0xC1 and data[at + 1]:
        at, end, count = at + 3, at + 2 + data[at + 1], data[at + 2]
    else:
        at, end, count = contents(data, at)
    found: dict[bytes | int, int] = {}
    try:
        while at < end:
            code = data[at]
            if code == STRING8:
                value = at + 2 + data[at + 1]
                found[data[at + 2 : value]] = value
            else:
                value = skip(data, at)
                found[content(data, at) if code in _TEXTS else at] = value
            # skip(data, value), inlined for speed
            width = WIDTHS[data[value]]
            if width >= 0:
                at = value + 1 + width
            elif width == ONE:
                at = value + 2 + data[value + 1]
            else:
                at = skip(data, value)
    except IndexError:
        raise DecodeError(f"the map that ends at octet {end} is cut off") from None
    if at != end:
        raise DecodeError(f"the map that ends at octet {end} has a value that ends elsewhere")
    if 2 * len(found) != count:
        raise DecodeError(f"a map of {count} values has {len(found)} keys: one is there twice, or has no value")
    return found


def item(data: bytes, at: int, number: int) -> tuple[bytes, int] | None:
    """Return an item of the list or array at ``at``, as octets and where in them it begins. None: there is none."""
    first, end, count = contents(data, at)
    if number >= count:
        return None
    if data[at] in ARRAYS:
        return _element(data, first, end, number)
    for _ in range(number):
        first = skip(data, first)
    if skip(data, first) > end:
        raise DecodeError(f"the list that ends at octet {end} has less items than it says")
    return data, first


def _element(data: bytes, at: int, end: int, number: int) -> tuple[bytes, int]:
    """Return an array's element as a value: the shared constructor (section 1.6.24), and the element's octets."""
    while at < end and data[at] == 0x00:
        at = skip(data, at + 1)
    if at >= end:
        raise DecodeError(f"the array that ends at octet {end} has no constructor")
    code = data[at]
    width = WIDTHS[code]
    start = at + 1 + max(width, 0) * number
    if width < 0:
        for _ in range(number):
            start = _end(data, code, start)
    following = _end(data, code, start)
    if following > end:
        raise DecodeError(f"the array that ends at octet {end} has less elements than it says")
    return data[at : at + 1] + data[start:following], 0


# -- encode


def encode_map(raw_pairs: list[bytes]) -> bytes:
    """Encode a map of encoded pairs."""
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


def encode_boolean(value: bool) -> bytes:
    return b"\x41" if value else b"\x42"


def encode_binary(value: bytes) -> bytes:
    return b"\xa0" + bytes((len(value),)) + value if len(value) < 256 else b"\xb0" + _U32.pack(len(value)) + value


def encode_timestamp(unix_ms: int) -> bytes:
    return b"\x83" + struct.pack(">q", unix_ms)
