"""This module decodes a peer's performatives (part 2, section 2.7), as far as the engine does not check them.

It decodes the top of each list: where the fields are, whether primitive fields have their types, and whether mandatory
fields are there (part 1, section 1.4). The value of a field is decoded only on access, and a list with too many fields
is not decoded, so that a large frame costs no more than a small one.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from store.codec.encoding import LISTS, DecodeError, contents, encode_list, pairs, scalar, scalar_of, skip
from store.codec.values import Symbol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from store.spool import Octets


OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)

_FRAME = Struct(">IBBH")
_NULL = 0x40
_NULL_OCTET = bytes((_NULL,))
_STRINGS = (b"\xa1", b"\xb1")


class _Kind(NamedTuple):
    """A primitive type: its name, and its constructors."""

    name: str
    constructors: frozenset[int]


_NUMBER = _Kind("a number", frozenset((0x43, 0x52, 0x70)))
_LONG = _Kind("a number", frozenset((0x44, 0x53, 0x80)))
_SHORT = _Kind("a number", frozenset((0x60,)))
_OCTET = _Kind("a number", frozenset((0x50,)))
_BOOLEAN = _Kind("a boolean", frozenset((0x41, 0x42, 0x56)))
_STRING = _Kind("a string", frozenset((0xA1, 0xB1)))
_BINARY = _Kind("a binary", frozenset((0xA0, 0xB0)))


class _Field(NamedTuple):
    """A field of a performative. ``kind``: None if it is not checked here, as it may contain other values."""

    name: str
    kind: _Kind | None = None
    mandatory: bool = False


def _must(name: str, kind: _Kind) -> _Field:
    return _Field(name, kind, mandatory=True)


_PROPERTIES = (_Field("offered-capabilities"), _Field("desired-capabilities"), _Field("properties"))
#: by code: its name, and its fields
_DEFINITIONS: dict[int, tuple[str, tuple[_Field, ...]]] = {
    #: its container-id is looked at when the open is answered
    OPEN: (
        "open",
        (_Field("container-id"), _Field("hostname", _STRING), _Field("max-frame-size", _NUMBER),
         _Field("channel-max", _SHORT), _Field("idle-time-out", _NUMBER), _Field("outgoing-locales"),
         _Field("incoming-locales"), *_PROPERTIES),
    ),
    BEGIN: (
        "begin",
        (_Field("remote-channel", _SHORT), _must("next-outgoing-id", _NUMBER), _must("incoming-window", _NUMBER),
         _must("outgoing-window", _NUMBER), _Field("handle-max", _NUMBER), *_PROPERTIES),
    ),
    ATTACH: (
        "attach",
        (_must("name", _STRING), _must("handle", _NUMBER), _must("role", _BOOLEAN), _Field("snd-settle-mode", _OCTET),
         _Field("rcv-settle-mode", _OCTET), _Field("source"), _Field("target"), _Field("unsettled"),
         _Field("incomplete-unsettled", _BOOLEAN), _Field("initial-delivery-count", _NUMBER),
         _Field("max-message-size", _LONG), *_PROPERTIES),
    ),
    FLOW: (
        "flow",
        (_Field("next-incoming-id", _NUMBER), _must("incoming-window", _NUMBER), _must("next-outgoing-id", _NUMBER),
         _must("outgoing-window", _NUMBER), _Field("handle", _NUMBER), _Field("delivery-count", _NUMBER),
         _Field("link-credit", _NUMBER), _Field("available", _NUMBER), _Field("drain", _BOOLEAN),
         _Field("echo", _BOOLEAN), _Field("properties")),
    ),
    TRANSFER: (
        "transfer",
        (_must("handle", _NUMBER), _Field("delivery-id", _NUMBER), _Field("delivery-tag", _BINARY),
         _Field("message-format", _NUMBER), _Field("settled", _BOOLEAN), _Field("more", _BOOLEAN),
         _Field("rcv-settle-mode", _OCTET), _Field("state"), _Field("resume", _BOOLEAN), _Field("aborted", _BOOLEAN),
         _Field("batchable", _BOOLEAN)),
    ),
    DISPOSITION: (
        "disposition",
        (_must("role", _BOOLEAN), _must("first", _NUMBER), _Field("last", _NUMBER), _Field("settled", _BOOLEAN),
         _Field("state"), _Field("batchable", _BOOLEAN)),
    ),
    DETACH: ("detach", (_must("handle", _NUMBER), _Field("closed", _BOOLEAN), _Field("error"))),
    END: ("end", (_Field("error"),)),
    CLOSE: ("close", (_Field("error"),)),
}  # fmt: skip
#: constructors of lists that have values
_MANY = (0xC0, 0xD0)


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'aeo' else 'a'} {name}"


class Performative:
    """A decoded performative. ``code``: of its descriptor. ``starts``: where its fields begin."""

    __slots__ = ("code", "octets", "starts")

    def __init__(self, octets: Octets, code: int, starts: list[int]) -> None:
        self.octets = octets
        self.code = code
        self.starts = starts

    @property
    def name(self) -> str:
        """The name with its article, for errors."""
        return _article(_DEFINITIONS[self.code][0])

    def has(self, place: int) -> bool:
        """Whether the field is present, and not null."""
        return place < len(self.starts) and self.octets[self.starts[place]] != _NULL

    def end_of(self, place: int) -> int:
        """Return where the field ends, which is present."""
        return self.starts[place + 1] if place + 1 < len(self.starts) else skip(self.octets, self.starts[place])

    def value(self, place: int) -> object:
        """Return the value of a primitive field; None: it is absent."""
        return scalar(self.octets, self.starts[place])[0] if place < len(self.starts) else None

    def number(self, place: int) -> int | None:
        """Return the value of a number field; None: it is absent.

        :raises DecodeError: it has another type.
        """
        value = self.value(place)
        if value is None or type(value) is int:
            return value
        raise DecodeError(f"{self.name} whose field {place + 1} is no number")

    def fields(self, place: int, most: int) -> list[int]:
        """Return where the fields of a source or a target begin, at most ``most``; empty if it is absent."""
        if not self.has(place) or self.octets[self.starts[place]] != 0x00:
            return []
        return starts_of(self.octets, skip(self.octets, self.starts[place] + 1), most)

    def rewritten(self, changes: Mapping[int, bytes]) -> bytes:
        """Return the whole frame with other values in these places; the octets begin with its header."""
        octets = bytes(self.octets)
        fields = [octets[start : skip(octets, start)] for start in self.starts]
        fields += [_NULL_OCTET] * (max(changes) + 1 - len(fields))
        for place, value in changes.items():
            fields[place] = value
        body = b"\x00\x53" + bytes((self.code,)) + encode_list(fields)
        return _FRAME.pack(_FRAME.size + len(body), 2, 0, int.from_bytes(octets[6:8], "big")) + body

    def address(self, place: int) -> object:
        """Return the address of a source or a target, if it is a string; None: it is not, or absent."""
        fields = self.fields(place, 1)
        return (
            scalar(self.octets, fields[0])[0] if fields and self.octets[fields[0] : fields[0] + 1] in _STRINGS else None
        )

    def told(self, place: int, key: str) -> object:
        """Return the scalar that this symbol has in a map, which is the field; None: it has none.

        :raises DecodeError: the field is present, and not a map; or the value is not a scalar.
        """
        if not self.has(place) or key.encode() not in bytes(self.octets[self.starts[place] :]):
            return None
        found = pairs(self.octets, self.starts[place])
        return next((scalar_of(pair) for name, pair in found if type(name) is Symbol and name == key), None)


def starts_of(octets: Octets, at: int, most: int) -> list[int]:
    """Return where the values of the list at ``at`` begin, at most ``most``; empty if it is not a list, or empty."""
    if at >= len(octets) or octets[at] not in _MANY:
        return []
    at, _, count = contents(octets, at)
    found = []
    for _ in range(min(count, most)):
        found.append(at)
        at = skip(octets, at)
    return found


def read(octets: Octets, at: int) -> Performative | None:
    """Decode the performative at ``at``. None: it is not one of part 2, or not a list: the engine reports the error.

    :raises DecodeError: a field has another type, or is mandatory and absent; or the list is incomplete, or has too
        many fields.
    """
    if octets[at] != 0x00:
        return None
    descriptor, at = _descriptor(octets, at + 1)
    if descriptor not in _DEFINITIONS or at >= len(octets) or octets[at] not in LISTS:
        return None
    at, end, count = contents(octets, at)
    name, fields = _DEFINITIONS[descriptor]
    if count > len(fields):
        raise DecodeError(f"{_article(name)} of {count} fields: it has {len(fields)} at most")
    starts = []
    for field in fields[:count]:
        if at >= end:
            break
        starts.append(at)
        if octets[at] != _NULL and field.kind is not None and octets[at] not in field.kind.constructors:
            raise _wrong(name, field)
        at = skip(octets, at)
    if at != end or len(starts) != count:
        raise DecodeError(f"the fields of {_article(name)} do not end where it says")
    for place, field in enumerate(fields):
        if field.mandatory and (place >= count or octets[starts[place]] == _NULL):
            raise _wrong(name, field)
    return Performative(octets, descriptor, starts)


def _descriptor(octets: Octets, at: int) -> tuple[int, int]:
    """Return a ulong descriptor, and where it ends. -1: it is not a ulong, the only type that the engine knows."""
    if at < len(octets) and octets[at] in _LONG.constructors:
        value, after = scalar(octets, at)
        if type(value) is int:
            return value, after
    return -1, at


def _wrong(name: str, field: _Field) -> DecodeError:
    mandatory = "mandatory " if field.mandatory else ""
    kind = "" if field.kind is None else f", {field.kind.name}"
    return DecodeError(f"{_article(name)} without its {mandatory}field {field.name}{kind}")


# A peer may encode descriptors of performatives, states and termini as numbers or as symbols (part 1, section 1.3.4).
# The engine knows only their numbers: frames with symbols are rewritten before it gets them.

#: numbers of the descriptors that the engine decodes. Filters and map values keep their symbols: the service decodes
#: them.
_NUMBERS = {
    f"amqp:{name}:list": number
    for number, name in {
        0x10: "open", 0x11: "begin", 0x12: "attach", 0x13: "flow", 0x14: "transfer", 0x15: "disposition",
        0x16: "detach", 0x17: "end", 0x18: "close", 0x1D: "error", 0x23: "received", 0x24: "accepted",
        0x25: "rejected", 0x26: "released", 0x27: "modified", 0x28: "source", 0x29: "target", 0x30: "coordinator",
        0x33: "declared", 0x34: "transactional-state",
    }.items()
}  # fmt: skip
#: the beginnings of described values whose descriptor is a symbol
_BEGINNINGS = (b"\x00\xa3", b"\x00\xb3")
_SYMBOLS = (0xA3, 0xB3)
#: the deepest level: a disposition, its state, the outcome in it, the error in that
_DEEPEST = 4
_MOST_FIELDS = 16


def numbered(octets: bytes, at: int) -> tuple[bytes, int] | None:
    """Return the performative at ``at`` with numbers for descriptors, and where it ends. None: it has no symbols as
    descriptors, or cannot be decoded.
    """
    if not any(beginning in octets for beginning in _BEGINNINGS):
        return None
    try:
        written, end = _written(octets, at, 0)
    except DecodeError:
        return None
    return None if written == octets[at:end] else (written, end)


def _written(octets: bytes, at: int, deep: int) -> tuple[bytes, int]:
    """Return the rewritten value at ``at``, and where it ends."""
    end = skip(octets, at)
    if octets[at] != 0x00 or deep > _DEEPEST:
        return octets[at:end], end
    after = skip(octets, at + 1)
    descriptor = octets[at:after]
    if octets[at + 1] in _SYMBOLS:
        number = _NUMBERS.get(str(scalar(octets, at + 1)[0]))
        if number is not None:
            descriptor = b"\x00\x53" + bytes((number,))
    return descriptor + _list(octets, after, end, deep), end


def _list(octets: bytes, at: int, end: int, deep: int) -> bytes:
    """Return the rewritten list of a described value; other values are unchanged."""
    if octets[at] not in _MANY:
        return octets[at:end]
    first, _, count = contents(octets, at)
    each = first
    if count > _MOST_FIELDS:
        return octets[at:end]
    fields = []
    for _ in range(count):
        written, each = _written(octets, each, deep + 1)
        fields.append(written)
    if each != end:
        raise DecodeError(f"the fields of the list at octet {at} do not end where it says")
    return octets[at:end] if b"".join(fields) == octets[first:end] else encode_list(fields)
