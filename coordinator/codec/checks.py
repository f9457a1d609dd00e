"""The copy that is sent to a checker (rule H8): the first half, or of a transaction that has only retired the first
message of these, with delivery annotations of its own.
"""

from __future__ import annotations

from contextlib import suppress

from store.codec.encoding import (
    DecodeError,
    encode_binary,
    encode_boolean,
    encode_map,
    encode_string,
    encode_symbol,
    encode_timestamp,
    encode_uint,
)
from store.codec.message import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Section,
    data_front,
    sections,
)

TXN_ID, CHECK_COUNT = "x-opt-txn-id", "x-opt-check-count"
HALF_COUNT, RETIRED_COUNT = "x-opt-half-count", "x-opt-retired-count"
ORIGINAL_ADDRESS, DECLARED_AT = "x-opt-original-address", "x-opt-declared-at"
#: of a large message: its body is not part of the copy
BODY_LEFT_OUT = "x-opt-body-left-out"
#: the last section before the body that a copy has, where not all of them can be read
_BEFORE_BODY = (APPLICATION_PROPERTIES, PROPERTIES, MESSAGE_ANNOTATIONS, HEADER)


def told(txn_id: bytes, checks: int, halves: int, retired: int, address: str, declared_ms: int) -> list[bytes]:
    """The pairs of the delivery annotations; ``checks`` counts this one, ``declared_ms`` is Unix time."""
    return [
        encode_symbol(TXN_ID) + encode_binary(txn_id),
        encode_symbol(CHECK_COUNT) + encode_uint(checks),
        encode_symbol(HALF_COUNT) + encode_uint(halves),
        encode_symbol(RETIRED_COUNT) + encode_uint(retired),
        encode_symbol(ORIGINAL_ADDRESS) + encode_string(address),
        encode_symbol(DECLARED_AT) + encode_timestamp(declared_ms),
    ]


def copy(message: bytes, annotations: list[bytes], *, whole: bool) -> bytes:
    """The message with these delivery annotations in place of its own.

    ``whole``: False where ``message`` is the beginning of a large one; the copy ends before its body then, and says so.
    A message that cannot be read is the body of the copy.
    """
    if whole:
        with suppress(DecodeError):
            return _with(message, sections(message), annotations)
        return _section(annotations) + data_front(len(message)) + message
    annotations = [*annotations, encode_symbol(BODY_LEFT_OUT) + encode_boolean(True)]
    for last in _BEFORE_BODY:
        with suppress(DecodeError):
            return _with(message, sections(message, last), annotations) + data_front(0)
    return _section(annotations) + data_front(0)


def _section(annotations: list[bytes]) -> bytes:
    return b"\x00\x53\x71" + encode_map(annotations)


def _with(message: bytes, found: list[Section], annotations: list[bytes]) -> bytes:
    header = b"".join(message[start:end] for code, start, _, end in found if code == HEADER)
    rest = [(start, end) for code, start, _, end in found if code > DELIVERY_ANNOTATIONS]
    return header + _section(annotations) + (message[rest[0][0] : rest[-1][1]] if rest else b"")
