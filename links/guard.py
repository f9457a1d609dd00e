"""The guard cuts a peer's input into frames before the engine, withholds frames that would break more than the standard
says, or take too much memory, and does what the standard requires instead (:mod:`links.channels`).
"""

from __future__ import annotations

from functools import partial
from struct import Struct
from typing import TYPE_CHECKING

from coordinator.errors import Condition, Refusal
from links import engine, frames, performatives
from links.channels import MOST_CREDIT, MOST_OF_TRANSFER, Before, Broken, Channels
from links.close_reason import CloseReason
from links.performatives import ATTACH, CLOSE, FLOW, OPEN, TRANSFER, Performative
from store.codec.encoding import DecodeError, encode_uint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from links.connection import Connection

    #: The end of the octets before the frame, the octets in place of the frame, the begin of the octets after it, and
    #: the act before those.
    Cut = tuple[int, bytes, int, Callable[[], None]]

_SIZE = Struct(">I")
_HEADER = 8
_SMALLEST_OFFSET = 2
#: the most octets of a transfer before its message, with its header
_HEAD_OF_TRANSFER = 4 * 255 + 176 + MOST_OF_TRANSFER
#: a flow without next-incoming-id counts its window from our first id, which is 0 (part 2, section 2.5.6)
_FROM_THE_FIRST = {0: encode_uint(0)}
_AN_OPEN = b"\x00\x00\x00\x10\x02\x00\x00\x00\x00\x53\x10\xc0\x03\x01\xa1\x00"
_TRANSFERS = (
    b"\x00\x53\x14",
    b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x14",
    b"\x00\xa3\x12amqp:transfer:list",
    b"\x00\xb3\x00\x00\x00\x12amqp:transfer:list",
)


class FrameGuard:
    """Filters the input of one peer, from its protocol header on. ``most``: our max-frame-size; ``handle_max``: that of
    our begins.
    """

    __slots__ = (
        "_begun", "_blind", "_connection", "_held", "_instead", "_left", "_most", "_refused", "_withheld", "channels",
        "plain", "waits",
    )  # fmt: skip

    def __init__(self, connection: Connection, most: int, handle_max: int) -> None:
        self._connection = connection
        self._most = most
        self.channels = Channels(connection, handle_max)
        #: octets of the current frame still to be received; ``_withheld``: the engine does not get them
        self._left = _HEADER
        self._withheld = False
        #: the beginning of a frame, while it is too short to be checked
        self._begun = b""
        #: no further frame is checked: the engine reports the error; ``_refused``: the engine gets no further frame
        self._blind = False
        self._refused = False
        #: a frame that the engine gets after the act, in place of the checked one
        self._instead = b""
        #: whether input is held here for now, and the connection is not read
        self.waits = False
        self._held = b""
        #: whether the last input was plain transfers and dispositions alone, without an act
        self.plain = False

    def filter(self, octets: bytes, buffer: engine.Pointer) -> Iterator[tuple[engine.Pointer, int]]:
        """Yield the pieces of these octets that the engine gets, each with its length; ``buffer`` has the octets too.

        The engine's events are handled between two pieces. ``octets`` are no view: if the garbage collector clears a
        view while cffi has its buffer, the process ends.
        """
        if self._begun:
            octets = self._begun + octets
            buffer = engine.buffer_of(octets)
            self._begun = b""
        end, at = len(octets), self._left
        told = self.channels.named
        told.clear()
        self.channels.largest = 0
        start = min(at, end) if self._withheld else 0
        self.plain = False
        while at < end and self._continues:
            after = frames.plain(octets, at, self.channels.plain, told)
            if after > at:
                self.plain = after >= end and at == self._left and start == 0
                at, self._withheld = after, False
            size = self._size(octets, at, end)
            if size == 0:
                break
            cut = self._judge(octets, at, size)
            self._withheld = cut is not None and cut[0] < at + size <= cut[2]
            if cut is not None:
                until, instead, again, act = cut
                if until > start:
                    yield buffer + start, until - start
                if instead:
                    yield engine.buffer_of(instead), len(instead)
                start = min(again, end)
                act()
                if self._instead:
                    late, self._instead = self._instead, b""
                    yield engine.buffer_of(late), len(late)
            at += size
        if self.waits:
            self._left, self._held = 0, octets[start:]
            return
        if self._refused:
            if not self.channels.opened:  # the engine writes a close only after the peer's open
                self.channels.opened = True
                yield engine.buffer_of(_AN_OPEN), len(_AN_OPEN)
            return
        if self._blind:
            at = end
        self._left, self._begun = max(0, at - end), octets[at:]
        if min(at, end) > start:
            yield buffer + start, min(at, end) - start

    @property
    def _continues(self) -> bool:
        return not (self._blind or self._refused or self.waits)

    def held(self) -> bytes:
        """Return the held input, which is to be filtered next."""
        self.waits = False
        held, self._held = self._held, b""
        return held

    def _size(self, octets: bytes, at: int, end: int) -> int:
        """Return the size of the frame at ``at``. 0: too few octets to check it, or the engine reports the error."""
        there = end - at
        if there < _HEADER:
            return 0
        (size,) = _SIZE.unpack_from(octets, at)
        offset, kind = octets[at + 4], octets[at + 5]
        # the engine ignores empty frames of any type
        if not _HEADER <= size <= self._most or offset < _SMALLEST_OFFSET or (kind and size > 4 * offset):
            self._blind = True
            return 0
        return size if there >= size or (there >= _HEAD_OF_TRANSFER and _is_transfer(octets, at)) else 0

    def _judge(self, octets: bytes, at: int, size: int) -> Cut | None:
        """Check one frame. None: the engine gets it unchanged, without an act."""
        body = 4 * octets[at + 4]
        if body >= size:
            return None
        head = octets[at : at + (min(size, _HEAD_OF_TRANSFER) if _is_transfer(octets, at) else size)]
        numbered = performatives.numbered(head, body)
        if numbered is None:
            return self._judge_head(at, size, head, body)
        written, end = numbered
        self.channels.by_symbol()
        head = _SIZE.pack(size + body + len(written) - end) + head[4:body] + written
        cut = self._judge_head(at, size, head, body)
        if cut is None:
            return at, head, at + end, _nothing
        until, instead, again, act = cut
        if until == at + size:  # the act follows the frame
            return at, head, at + end, act
        if isinstance(act, Before):
            return at, b"", at + end, partial(self._before, act, instead or head)
        return at, instead, max(again, at + size), act

    def _judge_head(self, at: int, size: int, head: bytes, body: int) -> Cut | None:
        """Check the frame that begins with ``head``, whose descriptors are numbers."""
        number, found = int.from_bytes(head[6:8], "big"), None
        try:
            if _octets_of_transfer(head, body) > MOST_OF_TRANSFER:
                text = f"a transfer with more than {MOST_OF_TRANSFER} bytes besides its message: say less in its state"
                raise Broken(Condition.RESOURCE_LIMIT_EXCEEDED, text)
            found = performatives.read(head, body)
            if found is None:
                return None
            if self.channels.ignores(number, found):
                return at, b"", at + size, partial(self.channels.refuse_incomplete, number, found)
            frame = self.channels.renamed(number, found) if found.code == ATTACH else b""
            if len(frame) > self._most:
                text = f"an attach of {size} octets, by the name of another link of its session: detach that one first"
                raise Refusal(Condition.FRAME_SIZE_TOO_SMALL, text)
            if frame:
                head, found = frame, performatives.read(frame, _HEADER) or found
            act = self.channels.take(number, found, head)
        except DecodeError as error:
            return at, b"", at + size, partial(self._close, Refusal(Condition.DECODE_ERROR, str(error)))
        except Refusal as refusal:
            if isinstance(refusal, Broken) or not self.channels.opened:
                return at, b"", at + size, partial(self._close, refusal)
            return at, b"", at + size, partial(self.channels.end, number, refusal, found)
        if found.code == OPEN:
            act = self._opened
        if found.code == CLOSE:
            act = self._stop
        if found.code == TRANSFER:
            frame = self.channels.resumed(number, found)
        if found.code == FLOW:
            frame = _as_the_engine_takes_it(found)
        if isinstance(act, Before):
            return (at, b"", at + size, partial(self._before, act, frame)) if frame else (at, b"", at, act)
        if frame:
            return at, frame, at + size, act or _nothing
        return None if act is None else (at + size, b"", at + size, act)

    def _before(self, act: Callable[[], None], frame: bytes) -> None:
        """Refuse a link before the engine gets the transfer that is the reason."""
        act()
        self._instead = frame

    def _opened(self) -> None:
        """Hold further input until the open is answered: the engine refuses transfers before it has written our
        begin.
        """
        self.waits = self._connection.opening

    def _stop(self) -> None:
        """Withhold all further input, which is ignored."""
        self._refused = True

    def _close(self, refusal: Refusal) -> None:
        self._stop()
        if not self.channels.opened:
            self.channels.open_refused = refusal, ""
        elif not self._connection.closing:
            exceeds = refusal.condition is Condition.RESOURCE_LIMIT_EXCEEDED
            reason = CloseReason.LIMIT_EXCEEDED if exceeds else CloseReason.PROTOCOL_ERROR
            self._connection.force_close(reason, refusal.condition, refusal.description)


def _as_the_engine_takes_it(flow: Performative) -> bytes:
    """Return the flow rewritten for the engine; empty: unchanged. Credit is limited to the most that the engine
    counts.
    """
    changes = {} if flow.has(0) else _FROM_THE_FIRST
    if (flow.number(6) or 0) > MOST_CREDIT:
        changes = {**changes, 6: encode_uint(MOST_CREDIT)}
    return flow.rewritten(changes) if changes else b""


def _nothing() -> None:
    """Do nothing: the frame is only withheld from the engine."""


def _is_transfer(octets: bytes, at: int) -> bool:
    body = at + 4 * octets[at + 4]
    return octets.startswith(_TRANSFERS, body)


def _octets_of_transfer(head: bytes, body: int) -> int:
    """Return the octets of a transfer's fields, without its message; 0: it is another frame, or they are few."""
    for descriptor in _TRANSFERS[:2]:
        at = body + len(descriptor)
        if head.startswith(descriptor, body) and head[at : at + 1] == b"\xd0":
            return int.from_bytes(head[at + 1 : at + 5], "big")
    return 0
