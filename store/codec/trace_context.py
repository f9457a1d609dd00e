"""Find the trace that a message belongs to: W3C's Trace Context, as its draft for AMQP places it.

``traceparent`` and ``tracestate`` are strings in the message annotations, where someone on the way has put them, else
in the application properties, where the producer has. What is malformed there counts as absent.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from store.codec.encoding import DecodeError, encode_map, encode_string, encode_symbol, pairs, scalar_of
from store.codec.message import APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS, annotate, front_of, sections

if TYPE_CHECKING:
    from store.spool import Octets

_PARENT, _STATE = "traceparent", "tracestate"
_NAME: Final = b"traceparent"
#: the octets in which the name is looked for, and those in which its sections are read
_SEARCHED: Final = 4096
_FRONT_OCTETS: Final = 1 << 16
#: version, trace-id, parent-id, flags; a later version may have more behind a further dash
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
#: the characters of the first version
_LENGTH: Final = 55
#: what every reader has to take of a tracestate (section 3.3.1.5)
_MOST_STATE = 512
#: the last character of the flags, where it says that the trace is not sampled
_EVEN = b"02468ace"


class TraceContext(NamedTuple):
    """The trace of a message, and the span that has sent it: 32 and 16 hexadecimal digits."""

    trace_id: str
    span_id: str
    sampled: bool
    state: str = ""


#: of a message whose trace is not sampled, at a glance
UNSAMPLED = TraceContext("", "", False)


def glance(message: Octets) -> TraceContext | None:
    """Return what :func:`read_trace` does; :data:`UNSAMPLED` for most messages whose trace is not sampled, which costs
    as little as to find that a message has none. It is looked for in the first 4 KiB.
    """
    at = message.find(_NAME, 0, _SEARCHED)
    if at < 0:
        return None
    value = at + len(_NAME)
    # a string of 55 octets, of the first version
    if message[value : value + 5] == b"\xa1\x3700-" and message[value + 56 : value + 57] in _EVEN:
        return UNSAMPLED
    return read_trace(message[:_FRONT_OCTETS])


def read_trace(front: bytes) -> TraceContext | None:
    """Return the trace of a message; None: it has none. ``front``: its first octets, at least all before the body."""
    for code in (MESSAGE_ANNOTATIONS, APPLICATION_PROPERTIES):
        try:
            found = _of_section(front, code)
        except DecodeError:
            return None
        if found is not None:
            return found
    return None


def _of_section(front: bytes, wanted: int) -> TraceContext | None:
    parent, state = "", ""
    for code, _, value, _ in sections(front, wanted):
        if code == wanted:
            for key, octets in pairs(front, value):
                if key == _PARENT:
                    parent = _text(octets)
                elif key == _STATE:
                    state = _text(octets)
    found = _FORM.fullmatch(parent)
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5]) or _zero(found[2]) or _zero(found[3]):
        return None
    state = state if len(state) <= _MOST_STATE and state.isascii() and state.isprintable() else ""
    return TraceContext(found[2], found[3], bool(int(found[4], 16) & 1), state)


def _text(octets: bytes) -> str:
    """Return the string of a pair of :func:`store.codec.encoding.pairs`; empty: it is of another type."""
    value = scalar_of(octets)
    return value if isinstance(value, str) else ""


def _zero(digits: str) -> bool:
    return not digits.strip("0")


def with_trace(message: bytes, trace_id: str, span_id: str) -> bytes:
    """Return a message, which has no trace, with this one, sampled, in its message annotations.

    :raises DecodeError: the message is malformed, or has as many annotations as it may.
    """
    front = front_of(message)
    added = encode_map([encode_symbol(_PARENT) + encode_string(f"00-{trace_id}-{span_id}-01")])
    return message[: front.before] + annotate(front.annotations, added) + message[front.rest :]
