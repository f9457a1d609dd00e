"""What a book's selector finds in a message, read the long way: all of it decoded by the test client's own decoder, and
JSON by the standard library. Written apart from ``spark/messages.py``, so that one can be held against the other.
"""

from __future__ import annotations

import json
import re
import struct
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from tests.wire import types

#: It is there, and has no text.
NO_TEXT: Final = object()
_UNIX = datetime(1970, 1, 1, tzinfo=UTC)


def found(octets: bytes, source: str) -> Any:
    """The value that ``source`` names, None, or :data:`NO_TEXT`.

    :raises ValueError: the message cannot be decoded.
    """
    sections = _sections(octets)
    form, _, rest = source.partition(":")
    if form == "message-id":
        (properties,) = sections.get(0x73, [[]])
        value = properties[0] if properties else None
    elif form == "property":
        (properties,) = sections.get(0x74, [{}])
        value = _named(properties, rest)
    else:
        value = _in_body(
            sections, [name or int(number) for name, number in re.findall(r"\.([^.\[\]]+)|\[(\d+)]", rest)]
        )
    return _with_text(value)


def _sections(octets: bytes) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    at = 0
    while at < len(octets):
        section, at = types.decode(octets, at)
        if not isinstance(section, types.Described) or section.descriptor not in range(0x70, 0x79):
            raise types.Malformed("no section of a message")
        found.setdefault(int(section.descriptor), []).append(section.value)
    kinds = {0x70: list, 0x71: dict, 0x72: dict, 0x73: list, 0x74: dict, 0x75: bytes, 0x76: list, 0x78: dict}
    if list(found) != sorted(found):
        raise types.Malformed("sections out of their order")
    for code, values in found.items():
        if not all(isinstance(value, kinds.get(code, object)) for value in values):
            raise types.Malformed("a section of another type")
        if len(values) > 1 and code not in (0x75, 0x76):
            raise types.Malformed("a section that is there twice")
    if len(found.keys() & {0x75, 0x76, 0x77}) > 1:
        raise types.Malformed("bodies of several kinds")
    return found


def _in_body(sections: dict[int, list[Any]], steps: list[str | int]) -> Any:
    if 0x75 in sections:
        body: Any = b"".join(sections[0x75])
    elif 0x76 in sections:
        body = [item for each in sections[0x76] for item in each]
    else:
        (body,) = sections.get(0x77, [None])
    body = _plain(body)
    if type(body) in (str, bytes):
        try:
            body = read_json(body.encode() if isinstance(body, str) else body)
        except ValueError:
            return NO_TEXT if steps else body
    for step in steps:
        body = _plain(body)
        if isinstance(step, int):
            items = body.items if isinstance(body, types.Array) else body
            body = items[step] if isinstance(items, list) and step < len(items) else None
        else:
            body = _named(body, step) if isinstance(body, dict) else None
    return body


def _plain(value: Any) -> Any:
    while isinstance(value, types.Described):
        value = value.value
    return value


def _named(pairs: dict[Any, Any], name: str) -> Any:
    return next((value for key, value in pairs.items() if isinstance(key, str) and key == name), None)


def read_json(octets: bytes) -> Any:
    """As RFC 8259 has it; and no object has a name twice.

    :raises ValueError: it is no JSON.
    """

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(found)) != len(found):
            raise ValueError("a name is there twice")
        return dict(found)

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is no number of JSON")

    text = octets.removeprefix(b"\xef\xbb\xbf").decode()
    value = json.loads(text, parse_float=Decimal, parse_constant=constant, object_pairs_hook=pairs)
    json.dumps(value, ensure_ascii=False, default=str).encode()  # half a character (a lone surrogate) is no text
    return value


def _with_text(value: Any) -> Any:
    value = _plain(value)
    if isinstance(value, list | dict | types.Array):
        return NO_TEXT
    if isinstance(value, types.Char):
        return chr(value) if value <= 0x10FFFF and not 0xD800 <= value < 0xE000 else NO_TEXT
    if type(value) is bytes:
        try:
            return value.decode()
        except UnicodeDecodeError:
            return NO_TEXT
    return value


def says(text: str | None, value: Any) -> bool:
    """Whether ``text`` is ``value``."""
    if text is None or value is None:
        return text is value is None
    if isinstance(value, bool):
        return text == ("true" if value else "false")
    if isinstance(value, types.Timestamp):
        try:
            return text == (_UNIX + timedelta(milliseconds=value)).isoformat()
        except OverflowError:
            return text == str(int(value))
    if isinstance(value, types.Float):
        return len(text) < 16 and (struct.pack(">f", float(text)) == struct.pack(">f", value) or value != value)
    if isinstance(value, float):
        return float(text) == value or value != value
    if isinstance(value, types.Decimal):
        # those that have one encoding are looked at one by one
        return Decimal(text) is not None
    if isinstance(value, Decimal | int):
        return Decimal(text) == value
    return text == str(value) if isinstance(value, uuid.UUID | str) else False
