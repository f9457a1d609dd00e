"""Contents are what a stored message says, section by section, as text for people."""

from __future__ import annotations

import json
from collections.abc import Iterable

from coordinator.printable import printable
from store.codec.encoding import DecodeError, decode
from store.codec.message import (
    APPLICATION_PROPERTIES,
    DATA,
    FIELD_NAMES,
    FOOTER,
    SECTION_NAMES,
    VALUE,
    sections,
)
from store.codec.values import Described, Map

#: Characters of a section, and sections. The octets of a whole message, in hexadecimal digits, are fewer characters.
_LONGEST = 400_000
_MOST = 100


def contents(octets: bytes, *, whole: bool) -> list[tuple[str, str]]:
    """Return the name and the text of each section of a message. ``whole``: else ``octets`` is its beginning, and its
    body is left out. A line of a text is a line of the body, or a field, in which line ends are escaped. What is cut is
    said in the name, or is a section of its own.
    """
    told = []
    try:
        found = sections(octets, FOOTER if whole else APPLICATION_PROPERTIES)
        for code, _, value, end in found[:_MOST]:
            its, _ = decode(octets[:end], value)
            name, text = _data(its) if code == DATA else (SECTION_NAMES[code], _section(code, its))
            cut = "" if len(text) <= _LONGEST else f", the first {_LONGEST:,} of {len(text):,} characters"
            told.append((f"{name}{cut}", text[:_LONGEST]))
        if len(found) > _MOST:
            told.append(("what follows", f"{len(found) - _MOST:,} sections more"))
    except DecodeError as error:
        told.append(("what follows cannot be read", str(error)))
    if not whole:
        told.append(("body", "it is too large to be shown"))
    return told


def _section(code: int, value: object) -> str:
    if code in FIELD_NAMES and isinstance(value, list):
        return _lines(zip(FIELD_NAMES[code], value, strict=False))
    if code == VALUE and isinstance(value, str):
        return value
    return _lines(value) if isinstance(value, Map) else _text(value)


def _lines(pairs: Iterable[tuple[object, object]]) -> str:
    return "\n".join(f"{_text(key)}: {_text(value)}" for key, value in pairs if value is not None)


def _data(octets: object) -> tuple[str, str]:
    """Return what data is, and its text as it came; else its octets."""
    assert isinstance(octets, bytes)
    try:
        text = octets.decode()
    except UnicodeDecodeError:
        return "data, octets", octets.hex(" ")
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return "data, text", text
    return "data, JSON", text


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Described):
        return f"{_text(value.descriptor)} {_text(value.value)}"
    if isinstance(value, Map):
        return "{" + ", ".join(f"{_text(key)}: {_text(each)}" for key, each in value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    return printable(str(value))
