"""Values that peers send (maps, symbols), decoded from their octets.

Proton's own conversion to Python objects expects well-formed values: a binary as a map's key, a string that is not
UTF-8 or a character beyond Unicode raise exceptions of various kinds. Here each of these is a :class:`Refusal`.
"""

from __future__ import annotations

from typing import Any

from coordinator.errors import Condition, Refusal
from coordinator.printable import printable
from links import container, engine
from store.codec.encoding import DecodeError, decode
from store.codec.values import Described, Map, Symbol

_LONGEST_KEY = 100


def value(data: engine.Pointer, name: str) -> Any:
    """The value of a ``pn_data_t``, decoded by :mod:`store.codec.encoding`; None if it is empty."""
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


def look_at_node(asked: engine.Pointer) -> None:
    """What properties a client wants of the node that is made for it (part 3, section 3.5.9). ``asked``: its terminus.

    :raises Refusal: one is not understood, or of another type.
    """
    name = "dynamic-node-properties"
    found = value(engine.terminus_properties(asked), name)
    if found is not None and not isinstance(found, Map):
        raise Refusal(Condition.INVALID_FIELD, f"{name}: a map was expected")
    for key, wanted in found or ():
        if key == container.LIFETIME_POLICY:
            if (
                not isinstance(wanted, Described)
                or type(wanted.value) is not list
                or wanted.descriptor not in container.LIFETIME_POLICIES
            ):
                raise Refusal(Condition.INVALID_FIELD, f"{name}: {key} is a lifetime-policy, as delete-on-close")
        elif key == "supported-dist-modes":
            modes = wanted if type(wanted) is list else [wanted]
            if not modes or not all(each in ("move", "copy") for each in modes):  # Proton's clients say a string
                raise Refusal(Condition.INVALID_FIELD, f"{name}: {key} has the symbols move and copy")
        else:
            raise Refusal(
                Condition.NOT_IMPLEMENTED,
                f"{name}: {printable(str(key), _LONGEST_KEY)} is not understood; expected lifetime-policy or "
                "supported-dist-modes",
            )
