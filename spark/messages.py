"""What a stored message says: its id, its application properties, its body (AMQP 1.0, parts 1 and 3).

The store keeps messages as they came, all sections. This decoder reads just what a book's key or compared pair may
name, in Spark's Python workers, without the engine of the wire. Broken input raises :class:`MessageUnreadable`, never
anything else.
"""

from __future__ import annotations

import json
import re
import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

#: How deep lists and maps may be nested before a message counts as broken.
DEEPEST: Final = 32
_UNIX: Final = datetime(1970, 1, 1, tzinfo=UTC)


class MessageUnreadable(ValueError):
    """The bytes are not an AMQP message, or a selector finds something that has no text; says what."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """The parts of a message that a book may refer to; ``body`` is ``bytes`` for data sections, else the AMQP
    value(s)."""

    message_id: object = None
    application_properties: dict[object, object] = field(default_factory=dict)
    body: object = None


# Fixed-width primitive types (part 1, section 1.6): constructor -> how to unpack
_FIXED: Final[dict[int, struct.Struct]] = {
    0x50: struct.Struct(">B"),
    0x60: struct.Struct(">H"),
    0x70: struct.Struct(">I"),
    0x52: struct.Struct(">B"),
    0x80: struct.Struct(">Q"),
    0x53: struct.Struct(">B"),
    0x51: struct.Struct(">b"),
    0x61: struct.Struct(">h"),
    0x71: struct.Struct(">i"),
    0x54: struct.Struct(">b"),
    0x81: struct.Struct(">q"),
    0x55: struct.Struct(">b"),
    0x72: struct.Struct(">f"),
    0x82: struct.Struct(">d"),
}
_CONSTANT: Final[dict[int, object]] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0, 0x45: ()}
_OPAQUE: Final = {0x74: 4, 0x84: 8, 0x94: 16}  # IEEE 754 decimals: rare, kept as bytes

_PROPERTIES: Final = 0x73
_APPLICATION_PROPERTIES: Final = 0x74
_DATA: Final = 0x75
_SEQUENCE: Final = 0x76
_VALUE: Final = 0x77
_SECTIONS: Final = {
    b"amqp:header:list": 0x70,
    b"amqp:delivery-annotations:map": 0x71,
    b"amqp:message-annotations:map": 0x72,
    b"amqp:properties:list": _PROPERTIES,
    b"amqp:application-properties:map": _APPLICATION_PROPERTIES,
    b"amqp:data:binary": _DATA,
    b"amqp:amqp-sequence:list": _SEQUENCE,
    b"amqp:amqp-value:*": _VALUE,
    b"amqp:footer:map": 0x78,
}


class _Reader:
    """A cursor over the encoded bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def more(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise MessageUnreadable(f"ends at octet {len(self._data)}, in the middle of a value that needs {end}")
        part = self._data[self._at : end]
        self._at = end
        return part

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def value(self, depth: int = 0) -> object:
        """Decode the next value, whatever its type."""
        if depth > DEEPEST:
            raise MessageUnreadable(f"values are nested more than {DEEPEST} deep")
        constructor = self.number(1)
        if constructor == 0:
            self.value(depth + 1)  # the descriptor: what is described is enough for a book
            return self.value(depth + 1)
        return self.primitive(constructor, depth)

    def primitive(self, constructor: int, depth: int) -> object:
        if constructor in _CONSTANT:
            constant = _CONSTANT[constructor]
            return [] if constant == () else constant
        if constructor in _FIXED:
            fixed = _FIXED[constructor]
            number: int | float = fixed.unpack(self.take(fixed.size))[0]
            return number
        if constructor == 0x56:
            return self.number(1) == 1
        if constructor == 0x73:
            return _text(self.take(4), "utf-32-be")
        if constructor == 0x83:
            milliseconds: int = struct.unpack(">q", self.take(8))[0]
            try:
                return _UNIX + timedelta(milliseconds=milliseconds)
            except OverflowError:
                return milliseconds
        if constructor == 0x98:
            return uuid.UUID(bytes=self.take(16))
        if constructor in _OPAQUE:
            return self.take(_OPAQUE[constructor])
        high, low = constructor & 0xF0, constructor & 0x0F
        if high in (0xA0, 0xB0) and low in (0, 1, 3):
            content = self.take(self.number(1 if high == 0xA0 else 4))
            return content if low == 0 else _text(content, "utf-8" if low == 1 else "ascii")
        if high in (0xC0, 0xD0) and low in (0, 1):
            return self._compound(4 if high == 0xD0 else 1, is_map=low == 1, depth=depth)
        if constructor in (0xE0, 0xF0):
            return self._array(4 if constructor == 0xF0 else 1, depth)
        raise MessageUnreadable(f"0x{constructor:02x} at octet {self._at - 1} is no type of AMQP 1.0")

    def _sized(self, width: int) -> tuple[_Reader, int]:
        inner = _Reader(self.take(self.number(width)))
        return inner, inner.number(width)

    def _compound(self, width: int, *, is_map: bool, depth: int) -> object:
        inner, count = self._sized(width)
        values: list[object] = []
        for _ in range(count):
            values.append(inner.value(depth + 1))
        if not is_map:
            return values
        if count % 2:
            raise MessageUnreadable(f"a map of {count} values: one key has none")
        pairs = zip(values[::2], values[1::2], strict=True)
        return {(str(key) if isinstance(key, list | dict) else key): value for key, value in pairs}

    def _array(self, width: int, depth: int) -> list[object]:
        inner, count = self._sized(width)
        constructor = inner.number(1)
        if constructor == 0:
            inner.value(depth + 1)
            constructor = inner.number(1)
        if constructor in _CONSTANT and count > 65_536:
            raise MessageUnreadable(f"an array of {count} values without any octets")
        return [inner.primitive(constructor, depth + 1) for _ in range(count)]


def _text(content: bytes, encoding: str) -> str:
    try:
        return content.decode(encoding)
    except UnicodeDecodeError:
        raise MessageUnreadable(f"text that is not {encoding}") from None


def decode(data: bytes) -> Message:
    """The message in ``data`` (part 3, section 3.2).

    :raises MessageUnreadable: what is broken, and where.
    """
    reader = _Reader(bytes(data))
    message_id: object = None
    properties: dict[object, object] = {}
    chunks: list[bytes] = []
    sequences: list[object] = []
    body: object = None
    while reader.more:
        if reader.number(1) != 0:
            raise MessageUnreadable("a section does not begin with a descriptor")
        descriptor = reader.value()
        section = _SECTIONS.get(descriptor.encode()) if isinstance(descriptor, str) else descriptor
        value = reader.value()
        if section == _PROPERTIES and isinstance(value, list):
            message_id = value[0] if value else None
        elif section == _APPLICATION_PROPERTIES and isinstance(value, dict):
            properties = value
        elif section == _DATA and isinstance(value, bytes):
            chunks.append(value)
        elif section == _SEQUENCE and isinstance(value, list):
            sequences.extend(value)
        elif section == _VALUE:
            body = value
        elif section not in (0x70, 0x71, 0x72, 0x78):
            raise MessageUnreadable(f"a section described by {descriptor!r} with a {type(value).__name__}")
    if chunks:
        body = b"".join(chunks)
    elif sequences:
        body = sequences
    return Message(message_id=message_id, application_properties=properties, body=body)


def text_of(value: object) -> str | None:
    """A key or a compared value as text; ``None`` stays ``None``.

    :raises MessageUnreadable: lists, maps, and octets that are no text.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | Decimal | uuid.UUID):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return _text(value, "utf-8")
    raise MessageUnreadable(f"a {type(value).__name__} is not a single value")


Selector = Callable[[Message], str | None]

_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


def selector(source: str) -> Selector:
    """What ``source`` picks from a message: ``message-id``, ``property:NAME``, or ``body:PATH`` with a path like
    ``$.order.lines[0].sku``.

    The body is an AMQP value, or JSON in data sections or in a string. What is not there is ``None``.

    :raises ValueError: no such form.
    """
    if source == "message-id":
        return lambda message: text_of(message.message_id)
    form, _, rest = source.partition(":")
    if form == "property" and rest:
        return lambda message: text_of(message.application_properties.get(rest))
    if form == "body" and rest.startswith("$"):
        steps: list[str | int] = []
        at = 1
        while at < len(rest):
            found = _STEP.match(rest, at)
            if found is None:
                raise ValueError(f"{source!r}: cannot read the path from {rest[at:]!r} on; expected .name or [number]")
            steps.append(found.group(1) if found.group(1) is not None else int(found.group(2)))
            at = found.end()
        return lambda message: text_of(_follow(_document(message.body), steps))
    raise ValueError(f"{source!r}: expected message-id, property:NAME or body:$.PATH")


def _document(body: object) -> object:
    if isinstance(body, str | bytes):
        try:
            return json.loads(body, parse_float=Decimal)
        except (ValueError, RecursionError):
            raise MessageUnreadable("the body is not JSON") from None
    return body


def _follow(value: object, steps: list[str | int]) -> object:
    for step in steps:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and step < len(value) else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value
