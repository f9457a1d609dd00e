"""Encode one-dimensional arrays in PostgreSQL's binary format, the parameters of the batch statement and of queries.

Layout (PostgreSQL, ``array_send``): int32 dimensions, int32 has-nulls, int32 element OID, then per dimension int32
length and int32 lower bound, then per element an int32 length and its bytes. An empty array has no dimension.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from store.compiled import compiled

if TYPE_CHECKING:
    from store.spool import Octets

BOOL, BYTEA, INT8, INT2, INT4, TEXT, TIMESTAMPTZ, UUID = 16, 17, 20, 21, 23, 25, 1184, 2950

_HEADER = struct.Struct(">iiiii").pack
_EMPTY = {oid: struct.pack(">iii", 0, 0, oid) for oid in (BOOL, BYTEA, INT8, INT2, INT4, TEXT, TIMESTAMPTZ, UUID)}
_LENGTH = struct.Struct(">i").pack
_SHORT_LENGTHS = [_LENGTH(size) for size in range(4096)]
_SIXTEEN = _LENGTH(16)

_module = compiled("store._packing")
#: encode a plain list (with type and width); None: it must be encoded in Python
_pack_fixed: Callable[[Sequence[int], int, int], bytes | None] | None = None if _module is None else _module.fixed
_pack_varying: Callable[[Sequence[Octets], int], bytes | None] | None = None if _module is None else _module.varying


def _fixed(values: Sequence[int], oid: int, size: int, code: str) -> bytes:
    if not values:
        return _EMPTY[oid]
    if _pack_fixed is not None and (packed := _pack_fixed(values, oid, size)) is not None:
        return packed
    return _fixed_in_python(values, oid, size, code)


def _fixed_in_python(values: Sequence[int], oid: int, size: int, code: str) -> bytes:
    count = len(values)
    flat = [size] * (2 * count)
    flat[1::2] = values
    return _HEADER(1, 0, oid, count, 1) + struct.pack(">" + code * count, *flat)


def boolean(values: Sequence[bool]) -> bytes:
    return _fixed(values, BOOL, 1, "i?")


def int8(values: Sequence[int]) -> bytes:
    return _fixed(values, INT8, 8, "iq")


def int4(values: Sequence[int]) -> bytes:
    return _fixed(values, INT4, 4, "ii")


def int2(values: Sequence[int]) -> bytes:
    return _fixed(values, INT2, 2, "ih")


def timestamptz(values: Sequence[int]) -> bytes:
    """Encode microseconds since 2000-01-01 UTC; the largest value is infinity, the smallest -infinity."""
    return _fixed(values, TIMESTAMPTZ, 8, "iq")


def uuid(values: Sequence[bytes]) -> bytes:
    """Encode UUIDs of 16 octets each."""
    count = len(values)
    if not count:
        return _EMPTY[UUID]
    return _HEADER(1, 0, UUID, count, 1) + _SIXTEEN + _SIXTEEN.join(values)


def _varying(values: Sequence[Octets], oid: int) -> bytes:
    if not values:
        return _EMPTY[oid]
    if _pack_varying is not None and (packed := _pack_varying(values, oid)) is not None:
        return packed
    return _varying_in_python(values, oid)


def _varying_in_python(values: Sequence[Octets], oid: int) -> bytes:
    parts: list[Octets] = [_HEADER(1, 0, oid, len(values), 1)]
    append = parts.append
    for value in values:
        size = len(value)
        append(_SHORT_LENGTHS[size] if size < 4096 else _LENGTH(size))
        append(value)
    return b"".join(parts)


def bytea(values: Sequence[Octets]) -> bytes:
    return _varying(values, BYTEA)


def octets_of(text: str) -> bytes:
    """Encode an element for :func:`text`, without NUL, which PostgreSQL's text cannot have."""
    return text.replace("\0", "").encode()


def text(values: Sequence[bytes]) -> bytes:
    """Encode texts, which are UTF-8 without NUL."""
    return _varying(values, TEXT)
