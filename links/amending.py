"""What the service says in a begin, an attach or a flow, and the engine cannot be told; and what the engine says by
itself in a close. Such frames are written anew on their way out (part 2, sections 2.5.6, 2.7.2, 2.7.3 and 2.8.15; part
3, section 3.5.3). All other frames are left alone.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from coordinator.errors import Condition
from links import performatives
from links.performatives import ATTACH, BEGIN, CLOSE, FLOW, starts_of
from store.codec.encoding import encode_list, encode_string, encode_symbol, encode_uint, skip

if TYPE_CHECKING:
    from collections.abc import Callable

    from links.performatives import Performative

    #: by place, the values that are to be others
    _Change = Callable[["Amending", Performative, int], dict[int, bytes]]

_HEAD = Struct(">I2xH2xB")
_SIZE = Struct(">I")
_PROTOCOL_HEADER, _EMPTY = 8, 8
_PROTOCOL = b"AMQP"
_BODY = 8
_REMOTE_CHANNEL, _HANDLE_MAX = 0, 4
_NEXT_INCOMING_ID = 0
_NAME, _SOURCE = 0, 5
_NODE_PROPERTIES, _DEFAULT_OUTCOME = 5, 8
_MOST_FIELDS = 16
_NULL = b"\x40"
_IDS = 1 << 32
_MARKED = 2
_ERROR = 0
#: conditions with which the engine closes by itself, and those of the standard in their places
_OF_THE_STANDARD = {
    encode_symbol("amqp:not allowed"): encode_symbol(Condition.NOT_ALLOWED),
}
#: stands before a default-outcome and the node properties, where the engine writes node properties of a source
_MARK = b"\x00\xa3\x1bcoordinator:default-outcome"


def with_default_outcome(default_outcome: bytes, properties: bytes) -> bytes:
    """The node properties that the engine is given for a source with this default-outcome."""
    return _MARK + encode_list([default_outcome, properties or _NULL])


class Amending:
    """Of one connection. ``due``: frames are to be written that say more than the engine knows."""

    __slots__ = ("_counted", "_handle_max", "_renames", "_sessions", "due")

    def __init__(self, handle_max: int) -> None:
        self._handle_max = handle_max
        #: the peer's channel by ours
        self._sessions: dict[int, int | None] = {}
        #: by the peer's channel: how many of its transfers the engine does not know of, modulo 2^32
        self._counted: dict[int | None, int] = {}
        self._renames = False
        self.due = False

    def renames(self) -> None:
        """From now on the engine's names of links may not be the peer's."""
        self._renames = self.due = True

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
                    pieces += [octets[begun:at], self._changed(change, octets[at : at + size], channel)]
                    begun = at + size
            at += size
        self.due = self._renames or bool(self._counted)
        return b"".join((*pieces, octets[begun:]))

    def _changed(self, change: _Change, frame: bytes, channel: int) -> bytes:
        found = performatives.read(frame, _BODY)
        assert found is not None
        changes = change(self, found, channel)
        return found.rewritten(changes) if changes else frame

    def _begin(self, found: Performative, channel: int) -> dict[int, bytes]:
        self._sessions[channel] = found.number(_REMOTE_CHANNEL)
        return {_HANDLE_MAX: encode_uint(self._handle_max)}

    def _flow(self, found: Performative, channel: int) -> dict[int, bytes]:
        more, expected = self._counted.get(self._sessions.get(channel)), found.number(_NEXT_INCOMING_ID)
        return {_NEXT_INCOMING_ID: encode_uint((expected + more) % _IDS)} if more and expected is not None else {}

    def _attach(self, found: Performative, _channel: int) -> dict[int, bytes]:
        changes = {}
        name, source = found.value(_NAME), self._source(found)
        if isinstance(name, str) and "\0" in name:  # see channels.renamed
            changes[_NAME] = encode_string(name.partition("\0")[0])
        if source:
            changes[_SOURCE] = source
        return changes

    @staticmethod
    def _source(found: Performative) -> bytes:
        """With its default-outcome; empty: as it is."""
        frame = bytes(found.octets)
        if _MARK not in frame or not found.has(_SOURCE):
            return b""
        at = found.starts[_SOURCE]
        fields = _fields(frame, at)
        marked = fields[_NODE_PROPERTIES] if len(fields) > _NODE_PROPERTIES else b""
        default_and_properties = _fields(marked, 0) if marked.startswith(_MARK) else []
        if len(default_and_properties) != _MARKED:  # the mark is the peer's own
            return b""
        fields += [_NULL] * (_DEFAULT_OUTCOME + 1 - len(fields))
        fields[_DEFAULT_OUTCOME], fields[_NODE_PROPERTIES] = default_and_properties
        return frame[at : skip(frame, at + 1)] + encode_list(fields)

    def _close(self, found: Performative, _channel: int) -> dict[int, bytes]:
        if not found.has(_ERROR):
            return {}
        frame, at = bytes(found.octets), found.starts[_ERROR]
        error = _fields(frame, at)
        if error[0] not in _OF_THE_STANDARD:
            return {}
        error[0] = _OF_THE_STANDARD[error[0]]
        return {_ERROR: frame[at : skip(frame, at + 1)] + encode_list(error)}


_CHANGES: dict[int, _Change] = {
    BEGIN: Amending._begin,
    ATTACH: Amending._attach,
    FLOW: Amending._flow,
    CLOSE: Amending._close,
}


def _fields(octets: bytes, at: int) -> list[bytes]:
    """Of the described list at ``at``, as they are encoded."""
    starts = starts_of(octets, skip(octets, at + 1), _MOST_FIELDS)
    return [octets[each : skip(octets, each)] for each in starts]
