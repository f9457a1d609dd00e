"""What a stored message says: its id, its application properties, its body (AMQP 1.0, part 3).

The store keeps messages as they came. Of each is read what a book's key or compared pair names, in Spark's Python
workers, by the codec of the service (:mod:`store.codec`); all else is passed over, in time that its octets account for.
What is broken, or has no text, raises :class:`~store.codec.encoding.DecodeError`, and nothing else is raised.
"""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from operator import methodcaller
from typing import Final

from jiter import from_json

from store.codec.encoding import (
    ARRAYS,
    LISTS,
    MAPS,
    STRING8,
    DecodeError,
    content,
    contents,
    item,
    names,
    plain,
    scalar,
)
from store.codec.message import APPLICATION_PROPERTIES, DATA, PROPERTIES, SEQUENCE, VALUE, sections

#: Constructors of octets: binary and string.
_OCTETS: Final = frozenset((0xA0, 0xB0, STRING8, 0xB1))
_FLOAT, _TIMESTAMP = 0x72, 0x83
_UNREAD: Final = object()
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

#: Of a path: a name in an object of JSON or a map of AMQP, or a place in an array or a list.
Step = str | int


class Message:
    """A message as stored. Its sections are found at once; their content is decoded on request."""

    __slots__ = ("_document", "_names", "_octets", "_sections")

    def __init__(self, octets: bytes) -> None:
        """Find the sections of a message.

        :raises DecodeError: with what is broken, and where.
        """
        self._octets = octets
        self._sections = sections(octets)
        self._names: dict[int, dict[bytes | int, int]] = {}
        self._document: object = _UNREAD

    def message_id(self) -> str | None:
        for code, _, at, _ in self._sections:
            if code == PROPERTIES:
                first = item(self._octets, at, 0)
                return None if first is None else text_of(*first)
        return None

    def application_property(self, name: str) -> str | None:
        for code, _, at, _ in self._sections:
            if code == APPLICATION_PROPERTIES:
                value = self._names_of(at).get(name.encode())
                return None if value is None else text_of(self._octets, value)
        return None

    def body(self, path: tuple[Step, ...]) -> str | None:
        """Return the value at ``path`` in the body; without a step the whole body, which must be a single value."""
        for code, _, at, _ in reversed(self._sections):
            if code == VALUE:
                at = plain(self._octets, at)
                return self._of_text(path, code, at) if self._octets[at] in _OCTETS else self._follow(at, path)
            if code == DATA:
                return self._of_text(path, code, at)
            if code == SEQUENCE:
                return self._of_sequences(path)
        return None

    def _names_of(self, at: int) -> dict[bytes | int, int]:
        found = self._names.get(at)
        if found is None:
            found = self._names[at] = names(self._octets, at)
        return found

    def _of_text(self, path: tuple[Step, ...], code: int, at: int) -> str | None:
        """Read a text: with a path it must be JSON, without one any text. ``at``: of the value, or the last data."""
        document = self._document
        if document is _UNREAD:
            document = self._document = _read_json(self._text(code, at))
        if type(document) is DecodeError:
            if path:
                raise document
            return _text(self._text(code, at))
        for step in path:
            if isinstance(step, int):
                document = document[step] if isinstance(document, list) and step < len(document) else None
            else:
                document = document.get(step) if isinstance(document, dict) else None
        return _text_of_json(document)

    def _text(self, code: int, at: int) -> bytes:
        octets = self._octets
        if code == VALUE:
            return content(octets, at)
        return b"".join([content(octets, at) for each, _, at, _ in self._sections if each == DATA])

    def _of_sequences(self, path: tuple[Step, ...]) -> str | None:
        """Several lists are one (section 3.2.7)."""
        if not path:
            raise DecodeError("a sequence is not a single value")
        number, octets = path[0], self._octets
        if isinstance(number, str):
            return None
        for code, _, at, _ in self._sections:
            found = item(octets, at, number) if code == SEQUENCE else None
            if found is not None:
                return self._follow(found[1], path[1:])
            number -= contents(octets, at)[2] if code == SEQUENCE else 0
        return None

    def _follow(self, at: int, path: tuple[Step, ...]) -> str | None:
        octets = self._octets
        for step in path:
            at = plain(octets, at)
            if isinstance(step, int):
                found = item(octets, at, step) if octets[at] in LISTS or octets[at] in ARRAYS else None
                if found is None:
                    return None
                octets, at = found
            else:
                if octets[at] not in MAPS:
                    return None
                known = self._names_of(at) if octets is self._octets else names(octets, at)
                value = known.get(step.encode())
                if value is None:
                    return None
                at = value
        return text_of(octets, at)


def text_of(octets: bytes, at: int) -> str | None:
    """Return the single value at ``at`` as text; None for null.

    :raises DecodeError: lists, maps and arrays, and octets that are no text.
    """
    code = octets[at]
    if code == STRING8:
        return _text(octets[at + 2 : at + 2 + octets[at + 1]])
    if code == 0x00:
        at = plain(octets, at)
        code = octets[at]
    if code >= 0xC0 or code in LISTS:
        raise DecodeError(f"a {'map' if code in MAPS else 'list or an array'} is not a single value")
    value, end = scalar(octets, at)
    if type(value) is int:
        return _moment(value) if code == _TIMESTAMP else str(value)
    if type(value) is bytes:
        return _TEXTS.get(code, _text)(value)
    if type(value) is bool:
        return "true" if value else "false"
    if code == _FLOAT:
        return _float(octets[at + 1 : end])
    return None if value is None else str(value)


def _text(octets: bytes, encoding: str = "utf-8") -> str:
    try:
        return octets.decode(encoding)
    except UnicodeDecodeError:
        raise DecodeError(f"text that is not {encoding}") from None


def _float(octets: bytes) -> str:
    """Return the shortest decimal of a float, as for a double: 12.1, and not 12.100000381469727."""
    value: float = struct.unpack(">f", octets)[0]
    texts = (f"{value:.{digits}g}" for digits in range(1, 9))
    return next((text for text in texts if _is_float(text, octets)), f"{value:.9g}")


def _is_float(text: str, octets: bytes) -> bool:
    try:
        return struct.pack(">f", float(text)) == octets
    except OverflowError:
        # less digits of the largest are more than it
        return False


_UNIX: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _moment(milliseconds: int) -> str:
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


#: Of values whose octets the codec leaves as they are; binaries are text.
_TEXTS: Final[dict[int, Callable[[bytes], str]]] = {
    **dict.fromkeys((0x74, 0x84, 0x94), _decimal),
    0x73: lambda octets: _text(octets, "utf-32-be"),
    0x98: lambda octets: str(uuid.UUID(bytes=octets)),
}


def _read_json(octets: bytes) -> object:
    """Return the document, its fractions as they are written; or why it is none."""
    try:
        return from_json(
            octets.removeprefix(_BYTE_ORDER_MARK),
            allow_inf_nan=False,
            cache_mode="keys",
            catch_duplicate_keys=True,
            float_mode="lossless-float",
        )
    except ValueError as error:
        return DecodeError(f"the body is not JSON: {str(error)[:200]}")


def _text_of_json(value: object) -> str | None:
    if isinstance(value, str) or value is None:
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        raise DecodeError(f"{'an object' if isinstance(value, dict) else 'an array'} is not a single value")
    return str(value)


Selector = Callable[[Message], str | None]

_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


def selector(source: str) -> Selector:
    """Return what ``source`` picks from a message: ``message-id``, ``property:NAME``, or ``body:PATH`` with a path like
    ``$.order.lines[0].sku``. It raises :class:`DecodeError`.

    The body is an AMQP value, or JSON in data sections or in a string. What is not there is ``None``.

    :raises ValueError: no such form.
    """
    if source == "message-id":
        return Message.message_id
    form, _, rest = source.partition(":")
    if form == "property" and rest:
        return methodcaller("application_property", rest)
    if form == "body" and rest.startswith("$"):
        return methodcaller("body", tuple(_steps(source, rest)))
    raise ValueError(f"{source!r}: expected message-id, property:NAME or body:$.PATH")


def _steps(source: str, path: str) -> Iterator[Step]:
    at = 1
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            raise ValueError(f"{source!r}: cannot read the path from {path[at:]!r} on; expected .name or [number]")
        name, number = found.groups()
        yield name if name is not None else int(number)
        at = found.end()
