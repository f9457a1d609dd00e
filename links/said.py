"""What the service has said on a connection, as far as the engine does not tell it: how many transfers a session has
sent, and which channels and handles are the service's own. From these a flow is made that the engine cannot be asked
for (part 2, section 2.7.4: ``echo``).
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from links import frames, performatives
from links.performatives import ATTACH, BEGIN, DETACH, FLOW
from store.codec.encoding import encode_boolean, encode_list, encode_uint

#: a frame's size and channel, as the engine writes them, and what is up to its descriptor
_HEAD = Struct(">I2xH3x")
_FRAME = Struct(">IBBH")
_PROTOCOL_HEADER = 8
#: of the engine, both ways
_WINDOW = (1 << 31) - 1
_NULL = b"\x40"


class LinkState(NamedTuple):
    """Of a link on which the service sends."""

    name: str
    delivery_count: int
    credit: int
    drain: bool


class _Session:
    """Of ours. ``sent``: how many transfers; ``handles``: by name and role."""

    __slots__ = ("channel", "handles", "sent")

    def __init__(self, channel: int, sent: int) -> None:
        self.channel = channel
        self.sent = sent
        self.handles: dict[tuple[object, object], int] = {}


class Said:
    """On one connection, from its protocol header on."""

    __slots__ = ("_begun", "_left", "_of_peers", "_sessions")

    def __init__(self) -> None:
        self._left = _PROTOCOL_HEADER
        #: the beginning of a frame that is not whole yet
        self._begun = b""
        #: by our channel, and by the peer's
        self._sessions: dict[int, _Session] = {}
        self._of_peers: dict[int, _Session] = {}

    def hear(self, octets: memoryview) -> None:
        """The next octets of ours, which need not end with a frame."""
        if self._begun:
            octets = memoryview(self._begun + octets)
        end, sessions = len(octets), self._sessions
        last = end - _HEAD.size
        at = frames.unnoted(octets, self._left, sessions)
        while at <= last:
            size, channel = _HEAD.unpack_from(octets, at)
            if at + size > end:
                break
            self._note(channel, bytes(octets[at : at + size]))
            at = frames.unnoted(octets, at + size, sessions)
        self._left, self._begun = max(0, at - end), bytes(octets[at:])

    def _note(self, channel: int, frame: bytes) -> None:
        found = performatives.read(frame, 8)
        assert found is not None
        if found.code == BEGIN:
            session = self._sessions[channel] = _Session(channel, found.number(1) or 0)
            remote = found.number(0)
            if remote is not None:  # without it, the peer has ended the session before it was answered
                self._of_peers[remote] = session
        elif found.code == ATTACH:
            self._sessions[channel].handles[found.value(0), found.value(2)] = found.number(1) or 0
        elif found.code == DETACH:
            handles = self._sessions[channel].handles
            for key in [key for key, handle in handles.items() if handle == found.number(0)]:
                del handles[key]
        else:
            session = self._sessions.pop(channel)
            for number in [number for number, other in self._of_peers.items() if other is session]:
                del self._of_peers[number]

    def flow(self, number: int, received: int, link: LinkState | None) -> bytes:
        """The frame that says how it stands with the session on the peer's channel ``number``, and with the link.

        ``received``: the id of the peer's next transfer. Empty where session or link are no more.
        """
        session = self._of_peers.get(number)
        if session is None:
            return b""
        fields = [encode_uint(each % (1 << 32)) for each in (received, _WINDOW, session.sent, _WINDOW)]
        if link is not None:
            handle = session.handles.get((link.name, False))
            if handle is None:
                return b""
            fields += [encode_uint(each % (1 << 32)) for each in (handle, link.delivery_count, link.credit)]
            fields += [_NULL, encode_boolean(link.drain)]
        body = b"\x00\x53" + bytes((FLOW,)) + encode_list(fields)
        return _FRAME.pack(8 + len(body), 2, 0, session.channel) + body
