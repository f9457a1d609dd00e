"""The performatives of a peer (part 2, section 2.7), read as far as the engine does not look at them.

Of each the top of its list is read: where its fields are, and whether those that are mandatory are there and of their
types (part 1, section 1.4). What a field holds is read only where it is asked for, so that a large frame costs no more
than it has fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.codec.encoding import DecodeError, decode, scalar, skip

if TYPE_CHECKING:
    from store.spool import Octets

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)

_NULL = 0x40
_UINT = frozenset((0x43, 0x52, 0x70))
_STRING = frozenset((0xA1, 0xB1))
_BOOLEAN = frozenset((0x41, 0x42, 0x56))

#: by code: its name, and of each mandatory field the place, the name, and the constructors of its type
_MANDATORY: dict[int, tuple[str, tuple[tuple[int, str, frozenset[int]], ...]]] = {
    #: its container-id is looked at when the open is answered
    OPEN: ("open", ()),
    BEGIN: (
        "begin",
        ((1, "next-outgoing-id", _UINT), (2, "incoming-window", _UINT), (3, "outgoing-window", _UINT)),
    ),
    ATTACH: ("attach", ((0, "name", _STRING), (1, "handle", _UINT), (2, "role", _BOOLEAN))),
    FLOW: (
        "flow",
        ((1, "incoming-window", _UINT), (2, "next-outgoing-id", _UINT), (3, "outgoing-window", _UINT)),
    ),
    TRANSFER: ("transfer", ((0, "handle", _UINT),)),
    DISPOSITION: ("disposition", ((0, "role", _BOOLEAN), (1, "first", _UINT))),
    DETACH: ("detach", ((0, "handle", _UINT),)),
    END: ("end", ()),
    CLOSE: ("close", ()),
}
_LISTS = {0x45: (0, 0), 0xC0: (1, 1), 0xD0: (4, 4)}


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'aeo' else 'a'} {name}"


class Performative:
    """``code``: of its descriptor. ``starts``: where its fields begin."""

    __slots__ = ("_octets", "code", "starts")

    def __init__(self, octets: Octets, code: int, starts: list[int]) -> None:
        self._octets = octets
        self.code = code
        self.starts = starts

    @property
    def name(self) -> str:
        """With its article."""
        return _article(_MANDATORY[self.code][0])

    def has(self, place: int) -> bool:
        """Whether the field is there, and not null."""
        return place < len(self.starts) and self._octets[self.starts[place]] != _NULL

    def value(self, place: int) -> object:
        """A field that holds no other values; None: it is not there."""
        return scalar(self._octets, self.starts[place])[0] if place < len(self.starts) else None

    def number(self, place: int) -> int | None:
        """A field that holds a number; None: it is not there.

        :raises DecodeError: it holds something else.
        """
        value = self.value(place)
        if value is None or type(value) is int:
            return value
        raise DecodeError(f"{self.name} whose field {place + 1} is no number")


def read(octets: Octets, at: int) -> Performative | None:
    """The performative at ``at``. None: it is none of part 2, or no list: the engine says what is wrong.

    :raises DecodeError: a mandatory field is not there or of another type, or the list is not whole.
    """
    if octets[at] != 0x00:
        return None
    descriptor, at = decode(octets, at + 1)
    if type(descriptor) is not int or descriptor not in _MANDATORY or at >= len(octets) or octets[at] not in _LISTS:
        return None
    width, _ = _LISTS[octets[at]]
    end = skip(octets, at)
    count = int.from_bytes(octets[at + 1 + width : at + 1 + 2 * width], "big")
    starts = []
    at += 1 + 2 * width
    for _ in range(count):
        if at >= end:
            break
        starts.append(at)
        at = skip(octets, at)
    name, mandatory = _MANDATORY[descriptor]
    if at != end or len(starts) != count:
        raise DecodeError(f"the fields of {_article(name)} do not end where it says")
    for place, field, constructors in mandatory:
        if place >= count or octets[starts[place]] not in constructors:
            kind = "a number" if constructors is _UINT else "a boolean" if constructors is _BOOLEAN else "a string"
            raise DecodeError(f"{_article(name)} without its mandatory field {field}, {kind}")
    return Performative(octets, descriptor, starts)
