"""Read and write the sections of a message (part 3, section 3.2). The bare message is never changed.

A message is stored as it was received. :func:`examine` checks its sections and reads what the service needs;
:func:`outgoing` makes the octets of one delivery: only header, delivery annotations and message annotations may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from store.codec.encoding import (
    FOUR,
    LISTS,
    MAPS,
    MOST_PAIRS,
    ONE,
    WIDTHS,
    DecodeError,
    contents,
    encode_list,
    encode_map,
    encode_uint,
    pairs,
    scalar,
    scalar_of,
    skip,
)
from store.compiled import compiled

if TYPE_CHECKING:
    from store.spool import Octets

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS = 0x70, 0x71, 0x72
PROPERTIES, APPLICATION_PROPERTIES = 0x73, 0x74
DATA, SEQUENCE, VALUE, FOOTER = 0x75, 0x76, 0x77, 0x78

SECTION_NAMES = {
    HEADER: "header", DELIVERY_ANNOTATIONS: "delivery-annotations", MESSAGE_ANNOTATIONS: "message-annotations",
    PROPERTIES: "properties", APPLICATION_PROPERTIES: "application-properties", DATA: "data",
    SEQUENCE: "amqp-sequence", VALUE: "amqp-value", FOOTER: "footer",
}  # fmt: skip
#: the fields of header and properties (sections 3.2.1 and 3.2.4)
FIELD_NAMES = {
    HEADER: ("durable", "priority", "ttl", "first-acquirer", "delivery-count"),
    PROPERTIES: (
        "message-id", "user-id", "to", "subject", "reply-to", "correlation-id", "content-type", "content-encoding",
        "absolute-expiry-time", "creation-time", "group-id", "group-sequence", "reply-to-group-id",
    ),
}  # fmt: skip
_SYMBOLS = {
    "amqp:header:list": HEADER, "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS, "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES, "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE, "amqp:amqp-value:*": VALUE, "amqp:footer:map": FOOTER,
}  # fmt: skip
_NULL = 0x40
_ALLOWED = {
    HEADER: LISTS, DELIVERY_ANNOTATIONS: MAPS, MESSAGE_ANNOTATIONS: MAPS, PROPERTIES: LISTS,
    APPLICATION_PROPERTIES: MAPS, DATA: frozenset((0xA0, 0xB0)), SEQUENCE: LISTS, VALUE: frozenset(range(256)),
    FOOTER: MAPS,
}  # fmt: skip

_CONSTRUCTORS = [_ALLOWED.get(code) for code in range(256)]

#: message annotations for later delivery (rule D7), from the JMS mapping
DELIVERY_TIME, DELIVERY_DELAY = "x-opt-delivery-time", "x-opt-delivery-delay"
#: application properties of messages in checkable transactions (rules H2, H7)
PRODUCER_GROUP = "producer-group"
CHECKS = ("check-immunity-ms", "check-interval-ms", "check-most")

#: offset in the properties list (section 3.2.4)
_TO, _ABSOLUTE_EXPIRY, _GROUP_ID = 2, 8, 10
#: fields of header and properties
_FIELDS = {code: len(names) for code, names in FIELD_NAMES.items()}
#: the most sections of one message: each costs time, however small it is
MOST_SECTIONS = 10_000
#: the most octets of a section whose facts are cached
_SMALL = 256
_UBYTE, _UINT, _ULONG = 0xFF, 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF


#: the code, and three offsets: the beginning, the value behind the descriptor, the end
Section = tuple[int, int, int, int]


class Facts(NamedTuple):
    """The properties of a message that affect its delivery. ``None``: it has no such property."""

    ttl_ms: int | None = None
    absolute_expiry_ms: int | None = None
    priority: int | None = None
    #: Unix time from which it may be delivered, and how long from now
    delivery_time_ms: int | None = None
    delivery_delay_ms: int | None = None
    group_id: str | None = None
    #: not checked: outside transactions they have no meaning
    producer_group: object | None = None
    checks: tuple[tuple[str, object], ...] = ()


NO_FACTS = Facts()

_Scanned = tuple[()] | tuple[int | None, int | None, int | None, str | None]
_module = compiled("store.codec._scan")
#: returns the first three facts and the group of a plain message, or (); None: Python has to examine the message
_scan: Callable[[Octets], _Scanned | None] | None = None if _module is None else _module.scan


def sections(message: Octets, last_code: int = FOOTER) -> list[Section]:
    """Return all sections up to ``last_code``, in order; DecodeError if the message is malformed (rule P10)."""
    found: list[Section] = []
    at = 0
    size = len(message)
    last = 0
    while at < size:
        if message[at] != 0x00:
            raise DecodeError(f"a section was expected at octet {at}, not 0x{message[at]:02x}")
        if at + 3 < size and message[at + 1] == 0x53:
            code = message[at + 2]
            value = at + 3
        else:
            descriptor, value = scalar(message, at + 1)
            code = descriptor if type(descriptor) is int else _SYMBOLS.get(str(descriptor), 0)
            if not 0 <= code < len(_CONSTRUCTORS):
                code = 0
        allowed = _CONSTRUCTORS[code]
        if allowed is None:
            raise DecodeError(f"the section at octet {at} is none of a message's")
        if code > last_code:
            break
        # sections are ordered by code; only data and sequence may repeat, and a body is of one kind
        if code <= last:
            if code < last or code not in (DATA, SEQUENCE):
                raise _out_of_place(code, at)
            if len(found) >= MOST_SECTIONS:
                raise DecodeError(f"more than {MOST_SECTIONS} sections")
        elif last >= DATA and code < FOOTER:
            raise _out_of_place(code, at)
        constructor = message[value] if value < size else 0x00
        width = WIDTHS[constructor]
        if width == ONE and value + 1 < size:
            end = value + 2 + message[value + 1]
        elif width == FOUR:
            end = value + 5 + int.from_bytes(message[value + 1 : value + 5], "big")
        else:
            end = skip(message, value)
        if end > size:
            end = skip(message, value)  # raises the error
        if constructor not in allowed:
            raise DecodeError(
                f"the section {SECTION_NAMES[code]} at octet {at} has a value of type 0x{constructor:02x}"
            )
        found.append((code, at, value, end))
        last = code
        at = end
    return found


def _out_of_place(code: int, at: int) -> DecodeError:
    return DecodeError(f"the section {SECTION_NAMES[code]} at octet {at} is out of its place")


def shows_properties(head: Octets) -> bool:
    """Return whether this beginning of a message has all sections before the body."""
    try:
        found = sections(head, APPLICATION_PROPERTIES)
    except DecodeError:
        return False
    return not found or found[-1][3] < len(head)


def examine(message: Octets) -> Facts:
    """Check the sections and read the facts. DecodeError if the message is malformed."""
    if _scan is not None and (said := _scan(message)) is not None:
        return _facts_of(*said) if said else NO_FACTS
    if message[:4] == b"\x00\x53\x75\xb0" and len(message) == 8 + int.from_bytes(message[4:8], "big"):
        return NO_FACTS  # only one data section
    return _facts(message, sections(message))


def _facts_of(ttl: int | None, expiry: int | None, priority: int | None, group: str | None) -> Facts:
    return Facts(ttl, expiry, priority, None, None, group)


def examine_head(head: Octets) -> Facts:
    """Read the facts from the beginning of a checked message, cut off in its body."""
    return _facts(head, sections(head, APPLICATION_PROPERTIES))


def _facts(message: Octets, found: list[Section]) -> Facts:
    facts = NO_FACTS
    for code, _, value, end in found:
        if code >= DATA:
            break
        if code == PROPERTIES or end - value > _SMALL:
            own = _section_facts(code, message, value)
        else:
            own = _cached_facts(code, message[value:end])
        if own is not NO_FACTS:
            facts = facts._replace(**{name: fact for name, fact in own._asdict().items() if fact is not None})
    return facts


@lru_cache(maxsize=1000)
def _cached_facts(code: int, section: bytes) -> Facts:
    """Cache :func:`_section_facts`: clients send the same small sections again and again."""
    return _section_facts(code, section, 0)


def _section_facts(code: int, message: Octets, value: int) -> Facts:
    """Read the facts of the section whose value is at ``value``."""
    ttl = expiry = priority = time = delay = None
    group: str | None = None
    producer_group: object | None = None
    checks: list[tuple[str, object]] = []
    if code == HEADER:
        fields = fields_of(message, value, HEADER)
        _boolean(fields, 0, "durable")
        priority = unsigned(fields, 1, "priority", _UBYTE)
        ttl = unsigned(fields, 2, "ttl", _UINT)
        _boolean(fields, 3, "first-acquirer")
        unsigned(fields, 4, "delivery-count", _UINT)
    elif code == PROPERTIES:
        fields = fields_of(message, value, PROPERTIES)
        if len(fields) > _ABSOLUTE_EXPIRY:
            expiry = unsigned(fields, _ABSOLUTE_EXPIRY, "absolute-expiry-time", _ULONG)
        if len(fields) > _GROUP_ID:
            group = _text(fields[_GROUP_ID], "group-id")
    else:
        for key, octets in pairs(message, value):
            if code == MESSAGE_ANNOTATIONS and key == DELIVERY_TIME:
                time = _annotated(octets, DELIVERY_TIME)
            elif code == MESSAGE_ANNOTATIONS and key == DELIVERY_DELAY:
                delay = _annotated(octets, DELIVERY_DELAY)
            elif code == APPLICATION_PROPERTIES and key == PRODUCER_GROUP:
                producer_group = scalar_of(octets)
            elif code == APPLICATION_PROPERTIES and key in CHECKS:
                checks.append((str(key), scalar_of(octets)))
    facts = Facts(ttl, expiry, priority, time, delay, group, producer_group, tuple(checks))
    return NO_FACTS if facts == NO_FACTS else facts


def _annotated(octets: bytes, name: str) -> int | None:
    """Return the value of a pair of :func:`pairs`: milliseconds."""
    return unsigned([scalar_of(octets)], 0, name, _ULONG)


def fields_of(message: Octets, value: int, code: int) -> list[object]:
    """Decode the fields of header or properties, the list at ``value``; no field may contain other values."""
    if message[value] not in LISTS:
        raise DecodeError(f"the section {SECTION_NAMES[code]} is not a list")
    at, end, count = contents(message, value)
    if count > _FIELDS[code]:
        raise DecodeError(
            f"the section {SECTION_NAMES[code]} has {count} fields, at most {_FIELDS[code]} were expected"
        )
    fields: list[object] = []
    for _ in range(count):
        if at < end and message[at] == _NULL:  # most are null
            fields.append(None)
            at += 1
            continue
        field, at = scalar(message, at)
        fields.append(field)
    if at != end:
        raise DecodeError(
            f"the {count} fields of the {SECTION_NAMES[code]} end at octet {at}, not at {end} as announced"
        )
    return fields


def unsigned(fields: list[object], index: int, name: str, most: int) -> int | None:
    found = fields[index] if index < len(fields) else None
    if found is None or (type(found) is int and 0 <= found <= most):
        return found
    came = found if type(found) is int else f"of the type {type(found).__name__}"
    expected = "milliseconds, 0 or more" if most == _ULONG else f"a number from 0 to {most}"
    raise DecodeError(f"{name} is {came}; expected {expected}")


def _boolean(fields: list[object], index: int, name: str) -> None:
    if len(fields) > index and fields[index] is not None and type(fields[index]) is not bool:
        raise DecodeError(f"{name} is of the type {type(fields[index]).__name__}, a boolean was expected")


def _text(field: object, name: str) -> str | None:
    if field is not None and not isinstance(field, str):
        raise DecodeError(f"the property {name} is not a string")
    return field


def to_of(message: Octets) -> str | None:
    """Return the property ``to``: the address to which the anonymous relay posts the message."""
    for code, _, value, _ in sections(message):
        if code == PROPERTIES:
            fields = fields_of(message, value, PROPERTIES)
            return _text(fields[_TO], "to") if len(fields) > _TO else None
    return None


def _header(front: Front, attempts: int, first_acquirer: bool, ttl_ms: int | None) -> bytes:
    priority = front.priority
    return b"\x00\x53\x70" + encode_list(
        [
            b"\x41" if front.header and front.header[0] else b"\x42",
            b"\x40" if priority is None else b"\x50" + bytes((priority,)),
            b"\x40" if ttl_ms is None else encode_uint(min(ttl_ms, 0xFFFFFFFF)),
            b"\x41" if first_acquirer else b"\x42",
            encode_uint(attempts),
        ]
    )


#: the header of a first delivery by the poster's header: posters have few
_first_headers: dict[bytes, bytes] = {}
_MOST_HEADERS = 1000


class Front(NamedTuple):
    """The sections before the bare message."""

    header: list[object]
    priority: int | None
    #: the poster's ``delivery-count``
    attempts: int
    #: offset of the end of header and delivery annotations
    before: int
    #: octets of the section message-annotations; empty without one
    annotations: bytes
    #: offset of the bare message
    rest: int


def front_of(message: bytes) -> Front:
    """Read the front; DecodeError if it is malformed. The message may be cut off after its annotations."""
    header: list[object] = []
    annotations = b""
    before = rest = 0
    for code, start, value, end in sections(message, MESSAGE_ANNOTATIONS):
        rest = end
        if code == MESSAGE_ANNOTATIONS:
            annotations = message[start:end]
        else:
            before = end
            if code == HEADER:
                header = fields_of(message, value, HEADER)
    priority = unsigned(header, 1, "priority", _UBYTE)
    return Front(header, priority, unsigned(header, 4, "delivery-count", _UINT) or 0, before, annotations, rest)


_FIRST_HEADER = _header(Front([], None, 0, 0, b"", 0), 0, first_acquirer=True, ttl_ms=None)


#: the first octets of a section that goes on past one hop are between these
_ENDS_HERE, _NO_SECTION = bytes((0x00, 0x53, DELIVERY_ANNOTATIONS)), b"\x00\x54"


def first_delivery(message: bytes) -> bytes:
    """Return the octets of a message's first delivery, with its ttl unchanged (section 3.2.1). The message may be cut
    off after its annotations.
    """
    if message[:4] == b"\x00\x53\x70\xc0":
        end = 5 + message[4]
        if _ENDS_HERE < message[end : end + 3] < _NO_SECTION:
            header = _first_headers.get(message[:end])
            if header is None:
                header = _first_header(message[:end])
            return header + message[end:]
    elif _ENDS_HERE < message[:3] < _NO_SECTION:
        return _FIRST_HEADER + message
    return outgoing(message, 0, _ttl(front_of(message)), b"", acquired=False)


def _ttl(front: Front) -> int | None:
    return unsigned(front.header, 2, "ttl", _UINT)


def _first_header(header: bytes) -> bytes:
    front = front_of(header)
    made = _header(front, 0, _is_first(front), _ttl(front))
    if len(_first_headers) < _MOST_HEADERS:
        _first_headers[header] = made
    return made


def _is_first(front: Front) -> bool:
    """Return False if the poster received the message elsewhere, where another link had acquired it."""
    return len(front.header) <= 3 or front.header[3] is not False or front.attempts == 0


def outgoing(message: bytes, attempts: int, ttl_left_ms: int | None, annotations: bytes, *, acquired: bool) -> bytes:
    """Return the octets of one delivery; DecodeError if the message, which may be cut off after its annotations, is
    malformed. Delivery annotations are for one hop (section 3.2.2) and end here.

    ``acquired``: a client had it before; ``attempts``: deliveries before this one that a client may have seen;
    ``ttl_left_ms`` replaces the ttl of a message that has one; ``annotations``: an encoded map merged into the message
    annotations, or empty; it is left out if both together have more pairs than a map may have.
    """
    front = front_of(message)
    header = front.header
    message_annotations = front.annotations
    if annotations:
        with suppress(DecodeError):  # too many together
            message_annotations = annotate(message_annotations, annotations)
    has_ttl = len(header) > 2 and header[2] is not None
    first = not acquired and attempts == 0 and _is_first(front)
    return b"".join(
        (_header(front, attempts, first, ttl_left_ms if has_ttl else None), message_annotations, message[front.rest :])
    )


def data_front(size: int) -> bytes:
    """Return the octets before the content, ``size`` octets, of a data section."""
    return b"\x00\x53\x75\xb0" + size.to_bytes(4, "big")


def first_annotations(section: bytes, most: int) -> bytes:
    """Return the section message-annotations with its first pairs only; empty if it is malformed."""
    try:
        own = pairs(section, _value_of(section))
    except DecodeError:
        return b""
    return b"\x00\x53\x72" + encode_map([raw for _, raw in own[:most]])


def annotate(section: bytes, annotations: bytes) -> bytes:
    """Add or replace pairs, those of an encoded map, in the section message-annotations, which may be empty octets.

    DecodeError if either is malformed, or they have more pairs together than a map may have.
    """
    own = pairs(section, _value_of(section)) if section else []
    return b"\x00\x53\x72" + encode_map(_joined(own, pairs(annotations, 0)))


def _value_of(section: bytes) -> int:
    """Return where the value of the only section begins."""
    return sections(section)[0][2]


def merge_maps(first: bytes, second: bytes) -> bytes:
    """Merge two encoded maps (either may be empty octets); the second wins. DecodeError as in :func:`annotate`."""
    if not first or not second:
        return first or second
    return encode_map(_joined(pairs(first, 0), pairs(second, 0)))


def _joined(own: list[tuple[object, bytes]], added: list[tuple[object, bytes]]) -> list[bytes]:
    new = {key for key, _ in added}
    joined = [raw for key, raw in own if key not in new] + [raw for _, raw in added]
    if len(joined) > MOST_PAIRS:
        raise DecodeError(f"a map of {len(joined)} pairs, at most {MOST_PAIRS} were expected")
    return joined
