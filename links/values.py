"""Values that peers send (maps, symbols), decoded from their octets.

Proton's own conversion to Python objects expects well-formed values: a binary as a map's key, a string that is not
UTF-8 or a character beyond Unicode raise exceptions of various kinds. Here each of these is a :class:`Refusal`.
"""

from __future__ import annotations

from typing import Any

from coordinator.codec.encoding import DecodeError, Map, Symbol, decode
from coordinator.errors import Condition, Refusal
from links import engine


def value(data: engine.Pointer, name: str) -> Any:
    """The value of a ``pn_data_t``, decoded by :mod:`coordinator.codec.encoding`; None if it is empty."""
    try:
        octets = engine.encoded(data)
        return decode(octets)[0] if octets else None
    except DecodeError as error:
        raise Refusal(Condition.DECODE_ERROR, f"{name}: {error}") from None


def symbols(data: engine.Pointer, name: str) -> list[str]:
    """The symbols of a value that is one symbol or an array of symbols."""
    found = value(data, name)
    return [str(each) for each in (found if type(found) is list else [found]) if isinstance(each, Symbol)]


def properties(data: engine.Pointer, name: str) -> dict[str, object]:
    """The properties that the peer gave a connection or a link."""
    found = value(data, name)
    if not isinstance(found, Map):
        return {}
    return {str(key): each for key, each in found if isinstance(key, Symbol)}
