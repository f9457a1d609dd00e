"""What a stored message says: its id, its application properties, its body (AMQP 1.0, part 3).

The store keeps messages as they came. Of each is read what a book's key or compared pair names, in Spark's Python
workers, without the engine of the wire; all else is passed over. Broken input raises
:class:`~spark.values.MessageUnreadable`, never anything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from operator import methodcaller
from typing import Final

from jiter import from_json

from spark.values import (
    LISTS,
    MAPS,
    OCTETS,
    ONE,
    WIDTHS,
    MessageUnreadable,
    Names,
    content,
    count_of,
    end_of,
    item_of,
    names_of,
    plain,
    text_of,
    text_of_octets,
)

_PROPERTIES: Final = 0x73
_APPLICATION_PROPERTIES: Final = 0x74
_DATA: Final = 0x75
_SEQUENCE: Final = 0x76
_VALUE: Final = 0x77
#: Sections that may be there several times, one after the other (section 3.2).
_SEVERAL: Final = {_DATA, _SEQUENCE}
#: How a section begins, as all clients write it.
_BEGINNINGS: Final = {bytes((0x00, 0x53, code)): code for code in range(0x70, 0x79)}
_SYMBOLS: Final = {
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
_CODES: Final = frozenset(_SYMBOLS.values())
_BINARY: Final = (0xA0, 0xB0)
_UNREAD: Final = object()
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


#: Of a path: a name in an object of JSON or a map of AMQP, or a place in an array or a list.
Step = str | int


class Message:
    """A message as the store keeps it. It has whole sections; what these hold is read when it is asked for."""

    __slots__ = ("_again", "_document", "_names", "_octets", "_sections")

    def __init__(self, octets: bytes) -> None:
        """:raises MessageUnreadable: what is broken, and where."""
        self._octets = octets
        sections: dict[int, int] = {}
        again: list[int] = []
        size, at = len(octets), 0
        try:
            while at < size:
                code = _BEGINNINGS.get(octets[at : at + 3])
                if code is None:
                    code, at = _described(octets, at)
                else:
                    at += 3
                if code not in sections:
                    sections[code] = at
                elif code in _SEVERAL:
                    again.append(at)
                else:
                    raise MessageUnreadable(f"two sections 0x{code:02x}, where one is allowed")
                if WIDTHS[octets[at]] == ONE:
                    at += 2 + octets[at + 1]
                else:
                    at = end_of(octets, at)
        except IndexError:
            at = size + 1
        if at != size:
            raise MessageUnreadable(f"ends at octet {size}, in the midst of a value")
        #: of each section, where its value begins; and where that of each further data or sequence
        self._sections = sections
        self._again = again
        self._names: dict[int, Names] = {}
        self._document: object = _UNREAD

    def message_id(self) -> str | None:
        at = self._sections.get(_PROPERTIES)
        if at is None:
            return None
        if self._octets[at] not in LISTS:
            raise MessageUnreadable("properties that are no list")
        first = item_of(self._octets, at, 0)
        return None if first is None else text_of(*first)

    def application_property(self, name: str) -> str | None:
        at = self._sections.get(_APPLICATION_PROPERTIES)
        if at is None:
            return None
        if self._octets[at] not in MAPS:
            raise MessageUnreadable("application properties that are no map")
        value = self._names_of(at).get(name.encode())
        return None if value is None else text_of(self._octets, value)

    def body(self, path: tuple[Step, ...]) -> str | None:
        """What is at the end of ``path``; without a step the whole body, which has to be a single value."""
        sections = self._sections
        at = sections.get(_VALUE)
        if (at is not None) + (_DATA in sections) + (_SEQUENCE in sections) > 1:
            raise MessageUnreadable("bodies of several kinds")
        if at is not None:
            at = plain(self._octets, at)
            return self._of_text(path) if self._octets[at] in OCTETS else self._follow(at, path)
        if _DATA in sections:
            return self._of_text(path)
        return self._of_sequences(path) if _SEQUENCE in sections else None

    def _names_of(self, at: int) -> Names:
        names = self._names.get(at)
        if names is None:
            names = self._names[at] = names_of(self._octets, at)
        return names

    def _text(self) -> bytes:
        """The octets of a body that is text: of one value, or of data."""
        octets, at = self._octets, self._sections.get(_VALUE)
        if at is not None:
            return content(octets, plain(octets, at))
        places = (self._sections[_DATA], *self._again)
        for place in places:
            if octets[place] not in _BINARY:
                raise MessageUnreadable("data that is no binary")
        return content(octets, places[0]) if len(places) == 1 else b"".join([content(octets, at) for at in places])

    def _of_text(self, path: tuple[Step, ...]) -> str | None:
        """A text is JSON; as a whole it may be any."""
        document = self._document
        if document is _UNREAD:
            document = self._document = _read_json(self._text())
        if type(document) is MessageUnreadable:
            if path:
                raise document
            return text_of_octets(self._text())
        for step in path:
            if isinstance(step, int):
                document = document[step] if isinstance(document, list) and step < len(document) else None
            else:
                document = document.get(step) if isinstance(document, dict) else None
        return _text_of_json(document)

    def _of_sequences(self, path: tuple[Step, ...]) -> str | None:
        """Several lists are one (section 3.2.7)."""
        if not path:
            raise MessageUnreadable("a sequence is not a single value")
        number, octets = path[0], self._octets
        if isinstance(number, str):
            return None
        for at in (self._sections[_SEQUENCE], *self._again):
            if octets[at] not in LISTS:
                raise MessageUnreadable("a sequence that is no list")
            found = item_of(octets, at, number)
            if found is not None:
                return self._follow(found[1], path[1:])
            number -= count_of(octets, at)
        return None

    def _follow(self, at: int, path: tuple[Step, ...]) -> str | None:
        octets = self._octets
        for step in path:
            at = plain(octets, at)
            if isinstance(step, int):
                found = item_of(octets, at, step)
                if found is None:
                    return None
                octets, at = found
            else:
                if octets[at] not in MAPS:
                    return None
                names = self._names_of(at) if octets is self._octets else names_of(octets, at)
                value = names.get(step.encode())
                if value is None:
                    return None
                at = value
        return text_of(octets, at)


def _described(octets: bytes, at: int) -> tuple[int, int]:
    """The code of the section at ``at``, and where its value begins: its descriptor may be any number, or a symbol."""
    if octets[at] != 0:
        raise MessageUnreadable(f"a section was expected at octet {at}, not 0x{octets[at]:02x}")
    value = end_of(octets, at + 1)
    kind = octets[at + 1]
    if kind in (0xA3, 0xB3):
        code = _SYMBOLS.get(content(octets, at + 1))
    else:
        code = int.from_bytes(octets[at + 2 : value], "big") if kind in (0x53, 0x80) else None
    if code not in _CODES:
        raise MessageUnreadable(f"the section at octet {at} is none of a message's")
    return code, value


def _read_json(octets: bytes) -> object:
    """The document, its fractions as they are written; or why it is none."""
    try:
        return from_json(
            octets.removeprefix(_BYTE_ORDER_MARK),
            allow_inf_nan=False,
            cache_mode="keys",
            catch_duplicate_keys=True,
            float_mode="lossless-float",
        )
    except ValueError as error:
        return MessageUnreadable(f"the body is not JSON: {str(error)[:200]}")


def _text_of_json(value: object) -> str | None:
    if isinstance(value, str) or value is None:
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        raise MessageUnreadable(f"{'an object' if isinstance(value, dict) else 'an array'} is not a single value")
    return str(value)


Selector = Callable[[Message], str | None]

_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


def selector(source: str) -> Selector:
    """What ``source`` picks from a message: ``message-id``, ``property:NAME``, or ``body:PATH`` with a path like
    ``$.order.lines[0].sku``. It raises :class:`MessageUnreadable`.

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
