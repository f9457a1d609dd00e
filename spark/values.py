"""AMQP values in their octets (part 1, section 1.6): found by where they begin, passed over by their sizes, and read as
text.

Whatever the octets are, a function here finds what it is asked for, or raises :class:`MessageUnreadable`, in time that
their number accounts for.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final


class MessageUnreadable(ValueError):
    """The octets are not an AMQP message, or what is asked for has no text; says what."""


#: What follows a constructor: so many octets, or their number in one octet, or in four.
ONE, FOUR, NONE = -1, -4, -9
_OF_WIDTH: Final = {
    0: (0x40, 0x41, 0x42, 0x43, 0x44, 0x45),
    1: (0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56),
    2: (0x60, 0x61),
    4: (0x70, 0x71, 0x72, 0x73, 0x74),
    8: (0x80, 0x81, 0x82, 0x83, 0x84),
    16: (0x94, 0x98),
    ONE: (0xA0, 0xA1, 0xA3, 0xC0, 0xC1, 0xE0),
    FOUR: (0xB0, 0xB1, 0xB3, 0xD0, 0xD1, 0xF0),
}
_WIDTH_OF: Final = {code: width for width, codes in _OF_WIDTH.items() for code in codes}
WIDTHS: Final = [_WIDTH_OF.get(code, NONE) for code in range(256)]

STRING8, STRING32 = 0xA1, 0xB1
#: Constructors of octets: binary and string.
OCTETS: Final = frozenset((0xA0, 0xB0, STRING8, STRING32))
MAPS: Final = frozenset((0xC1, 0xD1))
LISTS: Final = frozenset((0x45, 0xC0, 0xD0))
_ARRAYS: Final = frozenset((0xE0, 0xF0))
#: A key of a map is a string or a symbol.
_TEXTS_OF_KEYS: Final = frozenset((0xA3, STRING32, 0xB3))

#: A map's keys by their octets, and others, which no book can name, by where they are; and where the values begin.
Names = dict[bytes | int, int]


def end_of(octets: bytes, at: int) -> int:
    """Where the value at ``at`` ends. It may be beyond the last octet: what holds the value ends elsewhere, then."""
    values = 1
    try:
        while values:
            width = WIDTHS[octets[at]]
            if width >= 0:
                at += 1 + width
            elif width == ONE:
                at += 2 + octets[at + 1]
            elif width == FOUR:
                at += 5 + int.from_bytes(octets[at + 1 : at + 5], "big")
            elif octets[at] == 0:
                # a described value: its descriptor, and the value
                at += 1
                values += 2
            else:
                raise MessageUnreadable(f"0x{octets[at]:02x} at octet {at} is no type of AMQP 1.0")
            values -= 1
    except IndexError:
        raise _cut_off(octets) from None
    return at


def _cut_off(octets: bytes) -> MessageUnreadable:
    return MessageUnreadable(f"ends at octet {len(octets)}, in the midst of a value")


def plain(octets: bytes, at: int) -> int:
    """Where the value at ``at`` begins, behind its descriptor."""
    while octets[at : at + 1] == b"\0":
        at = end_of(octets, at + 1)
    if at >= len(octets):
        raise _cut_off(octets)
    return at


def content(octets: bytes, at: int) -> bytes:
    """The octets of a binary, a string or a symbol."""
    if octets[at] < 0xB0:
        return octets[at + 2 : at + 2 + octets[at + 1]]
    return octets[at + 5 : at + 5 + int.from_bytes(octets[at + 1 : at + 5], "big")]


def _inside(octets: bytes, at: int) -> tuple[int, int, int]:
    """Of a list, a map or an array: where its values begin and end, and how many it says that there are."""
    code = octets[at]
    if code == 0x45:
        return at + 1, at + 1, 0
    if code < 0xD0 or code == 0xE0:
        first, sizes = at + 3, octets[at + 1 : at + 3]
        end, count = at + 2 + sizes[0], sizes[-1]
    else:
        first = at + 9
        end = at + 5 + int.from_bytes(octets[at + 1 : at + 5], "big")
        count = int.from_bytes(octets[at + 5 : at + 9], "big")
    if not first <= end <= len(octets):
        raise MessageUnreadable(f"the list, map or array at octet {at} ends in its midst")
    return first, end, count


def names_of(octets: bytes, at: int) -> Names:
    """Of the map at ``at``: its keys, and where their values begin."""
    first, end, count = _inside(octets, at)
    names: Names = {}
    at = first
    try:
        while at < end:
            code = octets[at]
            if code == STRING8:
                value = at + 2 + octets[at + 1]
                names[octets[at + 2 : value]] = value
            else:
                value = end_of(octets, at)
                names[content(octets, at) if code in _TEXTS_OF_KEYS else at] = value
            width = WIDTHS[octets[value]]
            if width == ONE:
                at = value + 2 + octets[value + 1]
            elif width >= 0:
                at = value + 1 + width
            else:
                at = end_of(octets, value)
    except IndexError:
        raise _cut_off(octets) from None
    if at != end:
        raise MessageUnreadable(f"the map that ends at octet {end} has a value that ends elsewhere")
    if 2 * len(names) != count:
        raise MessageUnreadable(f"a map of {count} values has {len(names)} keys: one is there twice, or has no value")
    return names


def item_of(octets: bytes, at: int, number: int) -> tuple[bytes, int] | None:
    """The octets and the place of an item of the list or array at ``at``; None: it is none, or has not so many."""
    if octets[at] in LISTS:
        first, end, count = _inside(octets, at)
        if number >= count:
            return None
        for _ in range(number):
            first = _next(octets, first, end)
        _next(octets, first, end)
        return octets, first
    if octets[at] in _ARRAYS:
        return _element(octets, at, number)
    return None


def count_of(octets: bytes, at: int) -> int:
    """How many items a list says that it has."""
    return _inside(octets, at)[2]


def _next(octets: bytes, at: int, end: int) -> int:
    following = end_of(octets, at) if at < end else end + 1
    if following > end:
        raise MessageUnreadable(f"the list that ends at octet {end} has less items than it says")
    return following


def _element(octets: bytes, at: int, number: int) -> tuple[bytes, int] | None:
    """Elements share one constructor (section 1.6.24): the value is put together of it and of the element's octets."""
    first, end, count = _inside(octets, at)
    if number >= count:
        return None
    first = plain(octets, first)
    code = octets[first : first + 1]
    start = following = first + 1
    for _ in range(number + 1):
        start = following
        # a size, where there is one, is in the first four
        following = start - 1 + end_of(code + octets[start : start + 4], 0)
        if following > end:
            raise MessageUnreadable(f"the array that ends at octet {end} has less elements than it says")
    return code + octets[start:following], 0


def text_of(octets: bytes, at: int) -> str | None:
    """The single value at ``at`` as text; null is None.

    :raises MessageUnreadable: lists, maps and arrays, and octets that are no text.
    """
    code = octets[at]
    if code == STRING8:
        return text_of_octets(octets[at + 2 : at + 2 + octets[at + 1]])
    if code == 0:
        return text_of(octets, plain(octets, at))
    read = _TEXTS.get(code)
    if read is None:
        raise MessageUnreadable(f"a {'map' if code in MAPS else 'list or an array'} is not a single value")
    return read(octets[at + 1 : at + 1 + WIDTHS[code]]) if WIDTHS[code] >= 0 else read(content(octets, at))


def _text(octets: bytes, encoding: str) -> str:
    try:
        return octets.decode(encoding)
    except UnicodeDecodeError:
        raise MessageUnreadable(f"text that is not {encoding}") from None


def text_of_octets(octets: bytes) -> str:
    """:raises MessageUnreadable: they are no text."""
    return _text(octets, "utf-8")


def _unsigned(octets: bytes) -> str:
    return str(int.from_bytes(octets, "big"))


def _signed(octets: bytes) -> str:
    return str(int.from_bytes(octets, "big", signed=True))


def _boolean(octets: bytes) -> str:
    if octets[0] > 1:
        raise MessageUnreadable(f"a boolean of {octets[0]}")
    return "true" if octets[0] else "false"


def _float(octets: bytes) -> str:
    """The shortest number that is this one, as of a double: 12.1, and not 12.100000381469727."""
    value: float = struct.unpack(">f", octets)[0]
    texts = (f"{value:.{digits}g}" for digits in range(1, 9))
    return next((text for text in texts if _is_float(text, octets)), f"{value:.9g}")


def _is_float(text: str, octets: bytes) -> bool:
    try:
        return struct.pack(">f", float(text)) == octets
    except OverflowError:
        # less digits of the largest are more than it
        return False


def _double(octets: bytes) -> str:
    return str(struct.unpack(">d", octets)[0])


_UNIX: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _moment(octets: bytes) -> str:
    milliseconds = int.from_bytes(octets, "big", signed=True)
    try:
        return (_UNIX + timedelta(milliseconds=milliseconds)).isoformat()
    except OverflowError:
        return str(milliseconds)


#: Of IEEE 754's decimals with that many octets: bits of the exponent, its bias, and the most digits.
_DECIMALS: Final = {4: (8, 101, 7), 8: (10, 398, 16), 16: (14, 6176, 34)}


def _decimal(octets: bytes) -> str:
    """In the binary integer encoding, as AMQP has it (sections 1.6.13 to 1.6.15)."""
    width, bias, digits = _DECIMALS[len(octets)]
    bits = 8 * len(octets) - 1
    value = int.from_bytes(octets, "big")
    sign, value = "-" if value >> bits else "", value & ((1 << bits) - 1)
    size = bits - width
    number = 0
    if value >> (bits - 4) == 0b1111:
        return "NaN" if value >> (bits - 5) & 1 else f"{sign}Infinity"
    if value >> (bits - 2) == 0b11:
        # a coefficient that begins with the bits 100, which are not written
        size -= 2
        number = 0b100 << size
    number |= value & ((1 << size) - 1)
    exponent = (value >> size) & ((1 << width) - 1)
    if number >= 10**digits:
        number = 0
    return str(Decimal(f"{sign}{number}E{exponent - bias}"))


_TEXTS: Final[dict[int, Callable[[bytes], str | None]]] = {
    0x40: lambda _: None,
    0x41: lambda _: "true",
    0x42: lambda _: "false",
    0x56: _boolean,
    **dict.fromkeys((0x43, 0x44, 0x50, 0x52, 0x53, 0x60, 0x70, 0x80), _unsigned),
    **dict.fromkeys((0x51, 0x54, 0x55, 0x61, 0x71, 0x81), _signed),
    0x72: _float,
    0x82: _double,
    **dict.fromkeys((0x74, 0x84, 0x94), _decimal),
    0x73: lambda octets: _text(octets, "utf-32-be"),
    0x83: _moment,
    0x98: lambda octets: str(uuid.UUID(bytes=octets)),
    **dict.fromkeys((0xA0, 0xB0, STRING8, STRING32), text_of_octets),
    **dict.fromkeys((0xA3, 0xB3), lambda octets: _text(octets, "ascii")),
}
