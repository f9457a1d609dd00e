"""This module passes over plain frames of a peer, observes those of the service, and rewrites these where they need
values that the engine cannot be given.

Passing over frames is one call of C if the compiled part is there (``_frames.c``); the functions here are its twins,
and specify it.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from coordinator.errors import Condition
from links import performatives
from links.performatives import ATTACH, BEGIN, CLOSE, DETACH, END, FLOW, TRANSFER, Performative, starts_of
from store.codec.encoding import encode_boolean, encode_list, encode_string, encode_symbol, encode_uint, skip
from store.compiled import compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from links.channels import Channel

    #: The octets of a plain frame that stand for its channel, and of a transfer those for its handle.
    Key = tuple[bytes, bytes | None]
    #: By channel: the highest delivery that its dispositions name.
    Named = dict[Channel, int]


_SIZE = Struct(">I").unpack_from
#: a frame's size, channel, and descriptor, if its header has 8 octets
_HEAD = Struct(">I2xH2xB")
_EMPTY = 8
_NOTED = frozenset((BEGIN, ATTACH, DETACH, END))
_REWRITTEN = _NOTED | {FLOW, CLOSE}
#: octets of a frame whose state is not counted: those of an acceptance in a transaction, with both numbers and all
#: descriptors in full. Each further octet may be a value, which takes 80 octets in the engine.
LITTLE = 80

# -- plain frames

#: dots, and the likeliest alternative first: half the cost of repetitions
_UINT = rb"(?:\x70....|\x52.|\x43)"
#: a list, up to the last octet of its count
_FEW, _MANY = rb"\xc0.", rb"\xd0....\x00\x00\x00"
#: a list of fewer than 1,024 octets: see channels.MOST_OF_TRANSFER
_BOUNDED = rb"\xd0\x00\x00[\x00-\x03].\x00\x00\x00"
_TAG = rb"\xa0(?:" + b"|".join(re.escape(bytes((size,))) + b"." * size for size in range(33)) + rb")"
#: four fields, five, six, seven or eight, or more
_COUNT = rb"(?:(\x04)|(\x05)|(\x06)|([\x07\x08])|[\x09-\x0b])"
#: no rcv-settle-mode, and a state without a symbol; or no state and resume=false
_STATE = rb"\x40(?(5)(?!\x00[\xa3\xb3])|\x40[\x40\x42])"
#: the message-format 0; then settled, more=false and the state, as far as the count includes them
_REST = rb"(?:\x43|\x52\x00|\x70\x00\x00\x00\x00)(?(2)|[\x40-\x42](?(3)|[\x40\x42](?(4)|" + _STATE + rb")))"
_HANDLE = rb"(\x43|\x52.|\x70....)"
_TRANSFER = rb"\x14(?:" + _FEW + rb"|" + _BOUNDED + rb")" + _COUNT + _HANDLE + rb"(" + _UINT + rb")" + _TAG + _REST
#: a state whose descriptor is a symbol, or a rejected with an error, which may have one
_NAMED = rb"\x00(?:[\xa3\xb3]|\x53\x25[\xc0\xd0])"
#: a disposition by a receiver: its count, the first delivery and, as far as the count includes them, the last one,
#: settled and the state
_OF_MANY = rb"(?:(\x02)|(\x03)|(\x04)|[\x05\x06])\x41(" + _UINT + rb")"
_TO_LAST = rb"(?(8)|(\x40|" + _UINT + rb")(?(9)|[\x40-\x42](?(10)|(?!" + _NAMED + rb"))))"
_DISPOSITION = rb"\x15(?:" + _FEW + rb"|" + _MANY + rb")" + _OF_MANY + _TO_LAST
_plain = re.compile(rb"....\x02\x00(..)\x00\x53(?:" + _TRANSFER + rb"|" + _DISPOSITION + rb")", re.DOTALL).match
#: groups of the match: the channel; the handle and the delivery of a transfer; the deliveries of a disposition
_WANTED = (1, 6, 7, 11, 12)
_NULL = b"\x40"
_IDS = 1 << 32


def _plain_in_python(octets: bytes, at: int, channels: Mapping[Key, Channel], told: Named) -> int:
    """Pass over plain frames of a peer; return where the first other frame begins. Each transfer increments
    ``received`` and ``delivery`` of its channel.

    Plain frames are: transfers of one frame, of a link that has a channel, with all mandatory fields, of its next
    delivery, which is not resumed; and whole dispositions by a receiver, of a session that has a channel, which name
    deliveries above all in ``told``. They have no descriptor that is a symbol, and no large state.
    """
    end, number_of = len(octets), int.from_bytes
    while (found := _plain(octets, at)) is not None:
        (size,) = _SIZE(octets, at)
        if size < _EMPTY:  # the engine reports the error
            break
        number, handle, delivery, first, last = found.group(*_WANTED)
        channel = channels.get((number, handle))
        if channel is None:
            break
        if first is None:
            if (begun := number_of(delivery[1:], "big")) != channel.delivery:
                break
            channel.delivery = (begun + 1) % _IDS
            channel.received += 1
        else:
            lowest = highest = number_of(first[1:], "big")
            if last is not None and last != _NULL:
                highest = number_of(last[1:], "big")
            if size > LITTLE or at + size > end or not told.get(channel, -1) < lowest <= highest:
                break
            told[channel] = highest
        at += size
    return at


def _unnoted_in_python(octets: bytes | memoryview, at: int, sessions: Mapping[int, _Ours], rewrites: bool) -> int:
    """Pass over frames of ours; return where the first begins that begins or ends a session or a link, or is cut off
    before its descriptor; if ``rewrites``, also a flow or close. Each transfer increments ``sent`` of its session.
    """
    stops = _REWRITTEN if rewrites else _NOTED
    last, head = len(octets) - _HEAD.size, _HEAD.unpack_from
    while at <= last:
        size, channel, code = head(octets, at)
        if size < _EMPTY:
            break
        if size > _EMPTY:
            if code in stops:
                break
            if code == TRANSFER:
                sessions[channel].sent += 1
        at += size
    return at


_frames = compiled("links._frames")
plain: Callable[[bytes, int, Mapping[Key, Channel], Named], int] = (
    _plain_in_python if _frames is None else _frames.plain
)
unnoted: Callable[[bytes | memoryview, int, Mapping[int, _Ours], bool], int] = (
    _unnoted_in_python if _frames is None else _frames.unnoted
)


# Some fields of a begin, an attach or a flow cannot be given to the engine, and some conditions of a close are its own.
# Such frames are rewritten on their way out (part 2, sections 2.5.6, 2.7.2, 2.7.3 and 2.8.15; part 3, section 3.5.3).
# All other frames are unchanged.

_CUT = Struct(">I2xH3x").unpack_from
_FRAME = Struct(">IBBH")
_PROTOCOL_HEADER, _UP_TO_DESCRIPTOR, _BODY = 8, 11, 8
_REMOTE_CHANNEL, _HANDLE_MAX = 0, 4
_NEXT_INCOMING_ID = 0
_NAME, _SOURCE = 0, 5
_NODE_PROPERTIES, _DEFAULT_OUTCOME = 5, 8
_MOST_FIELDS = 16
_MARKED = 2
_ERROR = 0
#: the engine's windows, in and out
_WINDOW = (1 << 31) - 1
#: conditions with which the engine itself closes, and their replacements by the standard
_OF_THE_STANDARD = {
    encode_symbol("amqp:not allowed"): encode_symbol(Condition.NOT_ALLOWED),
}
#: marks a default-outcome, with the node properties, in the field that the engine writes as a source's node properties
_MARK = b"\x00\xa3\x1bcoordinator:default-outcome"


def with_default_outcome(default_outcome: bytes, properties: bytes) -> bytes:
    """Return the node properties that the engine is given for a source with this default-outcome."""
    return _MARK + encode_list([default_outcome, properties or _NULL])


class LinkState(NamedTuple):
    """The flow state of a link on which the service sends."""

    name: str
    delivery_count: int
    credit: int
    drain: bool


class _Ours:
    """A session that the service has begun. ``remote``: the peer's channel; ``sent``: the id of the next transfer;
    ``handles``: by link name and role.
    """

    __slots__ = ("channel", "handles", "remote", "sent")

    def __init__(self, channel: int, remote: int | None, sent: int) -> None:
        self.channel = channel
        self.remote = remote
        self.sent = sent
        self.handles: dict[tuple[object, object], int] = {}


class SentFrames:
    """Tracks what the engine writes on one connection, from its protocol header on: channels, handles and how many
    transfers a session has sent. From these it makes flows that the engine cannot make (part 2, section 2.7.4:
    ``echo``). ``due``: frames have to be rewritten.
    """

    __slots__ = ("_begun", "_counted", "_handle_max", "_left", "_of_peers", "_renames", "_sessions", "due")

    def __init__(self, handle_max: int) -> None:
        self._handle_max = handle_max
        self._left = _PROTOCOL_HEADER
        #: the beginning of an incomplete frame
        self._begun = b""
        #: sessions by our channel, and by the peer's
        self._sessions: dict[int, _Ours] = {}
        self._of_peers: dict[int, _Ours] = {}
        #: by the peer's channel: how many of its transfers the engine has not got, modulo 2^32
        self._counted: dict[int | None, int] = {}
        self._renames = False
        self.due = False

    def renames(self) -> None:
        """Rewrite link names from now on: the engine's may differ from the peer's."""
        self._renames = self.due = True

    def counts(self, number: int, more: int) -> None:
        """Note that the peer sent so many more transfers on its channel ``number`` than the engine has got."""
        self._counted[number] = (self._counted.get(number, 0) + more) % _IDS
        self.due = True

    def ended(self, number: int) -> None:
        """Forget the session on the peer's channel ``number``, which the peer has ended."""
        self._counted.pop(number, None)

    def observe(self, octets: memoryview) -> None:
        """Track the next octets, which are written unchanged; they need not end with a frame."""
        self._take(octets, None)

    def rewrite_outgoing(self, octets: bytes) -> bytes:
        """Track all output of the engine, which is whole frames; return the rewritten octets."""
        changed: list[tuple[int, int, bytes]] = []
        self._take(memoryview(octets), changed)
        pieces, after = [], 0
        for at, end, frame in changed:
            pieces += [octets[after:at], frame]
            after = end
        self.due = self._renames or bool(self._counted)
        return b"".join((*pieces, octets[after:]))

    def _take(self, octets: memoryview, changed: list[tuple[int, int, bytes]] | None) -> None:
        """Track frames. ``changed`` gets the begin, the end and the new octets of each rewritten frame."""
        if self._begun:
            octets = memoryview(self._begun + octets)
        sessions, end, rewrites = self._sessions, len(octets), changed is not None
        at = unnoted(octets, self._left, sessions, rewrites)
        while at <= end - _UP_TO_DESCRIPTOR:
            size, channel = _CUT(octets, at)
            if at + size > end:
                break
            found = performatives.read(bytes(octets[at : at + size]), _BODY)
            assert found is not None
            self._note(channel, found)
            if changed is not None and (changes := self._changes(channel, found)):
                changed.append((at, at + size, found.rewritten(changes)))
            at = unnoted(octets, at + size, sessions, rewrites)
        rest = bytes(octets[at:])
        # an empty frame at the end is whole, though shorter than a descriptor's place
        whole = len(rest) == _EMPTY == _SIZE(rest)[0]
        self._left, self._begun = max(0, at - end), b"" if whole else rest

    def _note(self, channel: int, found: Performative) -> None:
        if found.code == BEGIN:
            remote = found.number(_REMOTE_CHANNEL)
            session = self._sessions[channel] = _Ours(channel, remote, found.number(1) or 0)
            if remote is not None:  # None: the peer has ended the session before it was answered
                self._of_peers[remote] = session
        elif found.code == ATTACH:
            self._sessions[channel].handles[found.value(_NAME), found.value(2)] = found.number(1) or 0
        elif found.code == DETACH:
            handles = self._sessions[channel].handles
            for key in [key for key, handle in handles.items() if handle == found.number(0)]:
                del handles[key]
        elif found.code == END:
            session = self._sessions.pop(channel)
            for number in [number for number, other in self._of_peers.items() if other is session]:
                del self._of_peers[number]

    def flow(self, number: int, received: int, link: LinkState | None) -> bytes:
        """Return a flow with the state of the session on the peer's channel ``number``, and of the link.

        ``received``: the id of the peer's next transfer. Empty if session or link have ended.
        """
        session = self._of_peers.get(number)
        if session is None:
            return b""
        fields = [encode_uint(each % _IDS) for each in (received, _WINDOW, session.sent, _WINDOW)]
        if link is not None:
            handle = session.handles.get((link.name, False))
            if handle is None:
                return b""
            fields += [encode_uint(each % _IDS) for each in (handle, link.delivery_count, link.credit)]
            fields += [_NULL, encode_boolean(link.drain)]
        body = b"\x00\x53" + bytes((FLOW,)) + encode_list(fields)
        return _FRAME.pack(_BODY + len(body), 2, 0, session.channel) + body

    # -- rewriting

    def _changes(self, channel: int, found: Performative) -> dict[int, bytes]:
        """Return the new values of a frame's fields, by their places."""
        if found.code == BEGIN:
            return {_HANDLE_MAX: encode_uint(self._handle_max)}
        if found.code == ATTACH:
            return _of_attach(found)
        if found.code == FLOW:
            return self._of_flow(channel, found)
        return _of_close(found) if found.code == CLOSE else {}

    def _of_flow(self, channel: int, found: Performative) -> dict[int, bytes]:
        session, expected = self._sessions.get(channel), found.number(_NEXT_INCOMING_ID)
        more = None if session is None else self._counted.get(session.remote)
        return {_NEXT_INCOMING_ID: encode_uint((expected + more) % _IDS)} if more and expected is not None else {}


def _of_attach(found: Performative) -> dict[int, bytes]:
    changes = {}
    name, source = found.value(_NAME), _source_of(found)
    if isinstance(name, str) and "\0" in name:  # see channels.renamed
        changes[_NAME] = encode_string(name.partition("\0")[0])
    if source:
        changes[_SOURCE] = source
    return changes


def _source_of(found: Performative) -> bytes:
    """Return the source with its default-outcome; empty: unchanged."""
    frame = bytes(found.octets)
    if _MARK not in frame or not found.has(_SOURCE):
        return b""
    at = found.starts[_SOURCE]
    fields = _fields(frame, at)
    marked = fields[_NODE_PROPERTIES] if len(fields) > _NODE_PROPERTIES else b""
    default_and_properties = _fields(marked, 0) if marked.startswith(_MARK) else []
    if len(default_and_properties) != _MARKED:  # the peer itself has sent the mark
        return b""
    fields += [_NULL] * (_DEFAULT_OUTCOME + 1 - len(fields))
    fields[_DEFAULT_OUTCOME], fields[_NODE_PROPERTIES] = default_and_properties
    return frame[at : skip(frame, at + 1)] + encode_list(fields)


def _of_close(found: Performative) -> dict[int, bytes]:
    if not found.has(_ERROR):
        return {}
    frame, at = bytes(found.octets), found.starts[_ERROR]
    error = _fields(frame, at)
    if error[0] not in _OF_THE_STANDARD:
        return {}
    error[0] = _OF_THE_STANDARD[error[0]]
    return {_ERROR: frame[at : skip(frame, at + 1)] + encode_list(error)}


def _fields(octets: bytes, at: int) -> list[bytes]:
    """Return the encoded fields of the described list at ``at``."""
    starts = starts_of(octets, skip(octets, at + 1), _MOST_FIELDS)
    return [octets[each : skip(octets, each)] for each in starts]
