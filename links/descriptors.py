"""Descriptors of performatives, states and termini, which a peer may give as a number or as a symbol (part 1, section
1.3.4). The engine knows them by their numbers alone: frames with symbols are written anew before it gets them.
"""

from __future__ import annotations

from store.codec.encoding import DecodeError, encode_list, scalar, skip

#: those that the engine looks at. Filters keep their symbols, and what a map holds: the service reads these itself.
_NUMBERS = {
    f"amqp:{name}:list": number
    for number, name in {
        0x10: "open", 0x11: "begin", 0x12: "attach", 0x13: "flow", 0x14: "transfer", 0x15: "disposition",
        0x16: "detach", 0x17: "end", 0x18: "close", 0x1D: "error", 0x23: "received", 0x24: "accepted",
        0x25: "rejected", 0x26: "released", 0x27: "modified", 0x28: "source", 0x29: "target", 0x30: "coordinator",
        0x33: "declared", 0x34: "transactional-state",
    }.items()
}  # fmt: skip
#: how a descriptor begins that is a symbol
_BEGINNINGS = (b"\x00\xa3", b"\x00\xb3")
_SYMBOLS = (0xA3, 0xB3)
#: by constructor: the octets of a list's size, and of its count
_LISTS = {0xC0: 1, 0xD0: 4}
#: a disposition, its state, the outcome in it, the error in that
_DEEPEST = 4
_MOST_FIELDS = 16


def numbered(octets: bytes, at: int) -> tuple[bytes, int] | None:
    """The performative at ``at`` with numbers for descriptors, and where it ends. None: it has none by symbol, or
    cannot be read.
    """
    if not any(beginning in octets for beginning in _BEGINNINGS):
        return None
    try:
        written, end = _written(octets, at, 0)
    except DecodeError:
        return None
    return None if written == octets[at:end] else (written, end)


def _written(octets: bytes, at: int, deep: int) -> tuple[bytes, int]:
    """The value at ``at`` as it is to be, and where it ends."""
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
    """The same of the value that is described, which is a list or is left as it is."""
    width = _LISTS.get(octets[at])
    if width is None:
        return octets[at:end]
    count = int.from_bytes(octets[at + 1 + width : at + 1 + 2 * width], "big")
    first = each = at + 1 + 2 * width
    if count > _MOST_FIELDS:
        return octets[at:end]
    fields = []
    for _ in range(count):
        written, each = _written(octets, each, deep + 1)
        fields.append(written)
    if each != end:
        raise DecodeError(f"the fields of the list at octet {at} do not end where it says")
    return octets[at:end] if b"".join(fields) == octets[first:end] else encode_list(fields)
