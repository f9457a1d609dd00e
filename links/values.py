"""What peers say in maps and lists of symbols, read from its octets.

Proton's own way to Python objects is for what is well formed: a map whose key is a binary, a string that is no UTF-8
or a character beyond Unicode end it in an exception of their own. Here all that is a :class:`Refusal`.
"""

from __future__ import annotations

from typing import Any

from coordinator.encoding import DecodeError, Map, Symbol, decode
from coordinator.errors import Condition, Refusal
from links import engine


def value(data: engine.Pointer, name: str) -> Any:
    """What a ``pn_data_t`` holds, as :mod:`coordinator.encoding` has it; None where it is empty."""
    try:
        octets = engine.encoded(data)
        return decode(octets)[0] if octets else None
    except DecodeError as error:
        raise Refusal(Condition.DECODE_ERROR, f"{name}: {error}") from None


def symbols(data: engine.Pointer, name: str) -> list[str]:
    """A symbol, or an array of them."""
    found = value(data, name)
    return [str(each) for each in (found if type(found) is list else [found]) if isinstance(each, Symbol)]


def properties(data: engine.Pointer, name: str) -> dict[str, object]:
    """Of a connection or a link, as its peer gave them."""
    found = value(data, name)
    if not isinstance(found, Map):
        return {}
    return {str(key): each for key, each in found if isinstance(key, Symbol)}
