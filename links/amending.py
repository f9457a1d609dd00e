"""What the service says in a begin, an attach or a flow, and the engine cannot be told: such frames are written anew on
their way out (part 2, sections 2.5.6, 2.7.2 and 2.7.3; part 3, section 3.5.3). All other frames are left alone.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from coordinator.codec.encoding import encode_list, encode_uint, skip
from links import performatives
from links.performatives import ATTACH, BEGIN, FLOW, starts_of

if TYPE_CHECKING:
    from collections.abc import Callable

_HEAD = Struct(">I2xH2xB")
_SIZE = Struct(">I")
_PROTOCOL_HEADER, _EMPTY = 8, 8
_PROTOCOL = b"AMQP"
_BODY = 8
_REMOTE_CHANNEL, _HANDLE_MAX = 0, 4
_NEXT_INCOMING_ID = 0
_SOURCE = 5
_NODE_PROPERTIES, _DEFAULT_OUTCOME = 5, 8
_MOST_FIELDS = 16
_NULL = b"\x40"
_IDS = 1 << 32
_MARKED = 2
#: stands before a default-outcome and the node properties, where the engine writes node properties of a source
_MARK = b"\x00\xa3\x1bcoordinator:default-outcome"


def with_default_outcome(default_outcome: bytes, properties: bytes) -> bytes:
    """The node properties that the engine is given for a source with this default-outcome."""
    return _MARK + encode_list([default_outcome, properties or _NULL])


class Amending:
    """Of one connection. ``due``: frames are to be written that say more than the engine knows."""

    __slots__ = ("_counted", "_handle_max", "_sessions", "due")

    def __init__(self, handle_max: int) -> None:
        self._handle_max = handle_max
        #: the peer's channel by ours
        self._sessions: dict[int, int | None] = {}
        #: by the peer's channel: how many of its transfers the engine does not know of, modulo 2^32
        self._counted: dict[int | None, int] = {}
        self.due = False

    def counts(self, number: int, more: int) -> None:
        """Of the session on the peer's channel ``number`` so many more transfers were sent than the engine has got."""
        self._counted[number] = (self._counted.get(number, 0) + more) % _IDS
        self.due = True

    def ended(self, number: int) -> None:
        """The peer has ended that session."""
        self._counted.pop(number, None)

    def amended(self, octets: bytes) -> bytes:
        """All that the engine has to write: whole frames, behind the protocol header at the very beginning."""
        pieces = []
        begun, at = 0, _PROTOCOL_HEADER if octets.startswith(_PROTOCOL) else 0
        while at < len(octets):
            (size,) = _SIZE.unpack_from(octets, at)
            if size > _EMPTY:
                _, channel, code = _HEAD.unpack_from(octets, at)
                change = _CHANGES.get(code)
                if change is not None:
                    pieces += [octets[begun:at], change(self, channel, octets[at : at + size])]
                    begun = at + size
            at += size
        self.due = bool(self._counted)
        return b"".join((*pieces, octets[begun:]))

    def _begin(self, channel: int, frame: bytes) -> bytes:
        found = performatives.read(frame, _BODY)
        assert found is not None
        self._sessions[channel] = found.number(_REMOTE_CHANNEL)
        return _frame(frame, _put(_fields(frame, _BODY), _HANDLE_MAX, encode_uint(self._handle_max)))

    def _flow(self, channel: int, frame: bytes) -> bytes:
        more = self._counted.get(self._sessions.get(channel))
        if not more:
            return frame
        found = performatives.read(frame, _BODY)
        assert found is not None
        expected = found.number(_NEXT_INCOMING_ID) or 0
        fields = _put(_fields(frame, _BODY), _NEXT_INCOMING_ID, encode_uint((expected + more) % _IDS))
        return _frame(frame, fields)

    def _attach(self, _channel: int, frame: bytes) -> bytes:
        found = performatives.read(frame, _BODY)
        assert found is not None
        if not found.has(_SOURCE) or _MARK not in frame:
            return frame
        at = found.starts[_SOURCE]
        source = _fields(frame, at)
        if len(source) <= _NODE_PROPERTIES or not source[_NODE_PROPERTIES].startswith(_MARK):
            return frame
        marked = _fields(source[_NODE_PROPERTIES], 0)
        if len(marked) != _MARKED:  # the mark is the peer's own
            return frame
        default, source[_NODE_PROPERTIES] = marked
        body = frame[at : skip(frame, at + 1)] + encode_list(_put(source, _DEFAULT_OUTCOME, default))
        return _frame(frame, _put(_fields(frame, _BODY), _SOURCE, body))


_CHANGES: dict[int, Callable[[Amending, int, bytes], bytes]] = {
    BEGIN: Amending._begin,
    ATTACH: Amending._attach,
    FLOW: Amending._flow,
}


def _fields(octets: bytes, at: int) -> list[bytes]:
    """Of the described list at ``at``, as they are encoded."""
    starts = starts_of(octets, skip(octets, at + 1), _MOST_FIELDS)
    return [octets[each : skip(octets, each)] for each in starts]


def _put(fields: list[bytes], place: int, value: bytes) -> list[bytes]:
    fields += [_NULL] * (place + 1 - len(fields))
    fields[place] = value
    return fields


def _frame(before: bytes, fields: list[bytes]) -> bytes:
    """The same frame with other fields."""
    body = before[_BODY : skip(before, _BODY + 1)] + encode_list(fields)
    return _SIZE.pack(_BODY + len(body)) + before[_SIZE.size : _BODY] + body
