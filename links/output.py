"""Output writes one connection's octets to its socket, as far as the socket accepts them; it keeps and counts the rest.

The engine does not report how many octets it has to write, so octets that a socket does not accept are moved out of the
engine. While a peer leaves too many octets unread, its connection is not read either: each frame could add an answer.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog

from links import engine
from links.close_reason import CloseReason
from links.frames import SentFrames
from links.layer import Layer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from links.connection import Connection

log = structlog.get_logger(__name__)

#: The most octets of messages that wait to be written on one connection, over all its sessions.
MOST_HANDED = 4 << 20
#: The most octets of states that the engine keeps for a connection while all connections together keep too many.
MOST_STATES = 1 << 18

#: Octets of Proton's record of a delivery, beside the buffer of its message.
_BESIDES = 1500


def _buffer_octets(octets: int) -> int:
    """Return the octets of Proton's buffer for a message, which it doubles until the message fits."""
    return _BESIDES + (1 << octets.bit_length())


class Output:
    """Buffers and writes one connection's output, and counts what the peer has not read. ``writing``: the socket
    accepts no more octets for now.
    """

    __slots__ = (
        "_buffers", "_connection", "_frames", "_kept", "_most_posted", "_moved", "_states", "_states_kept",
        "_unsettled", "frames", "handed", "posted", "put_off", "unread", "writing",
    )  # fmt: skip

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.writing = False
        #: octets moved out of the engine that the socket has not accepted yet
        self.unread = bytearray()
        self.frames = SentFrames(connection.service.bounds.handle_max)
        #: functions that make frames which the engine cannot make, called once the engine has no output; by subject, so
        #: that repeated requests of a peer take no more memory
        self._frames: dict[object, Callable[[], bytes]] = {}
        #: the monotonic time at which the socket last accepted octets
        self._moved = 0.0
        #: octets of messages handed to the engine since it last had no output
        self.handed = 0
        #: transactions whose posts were answered in this turn, and which were not discharged since. Without other
        #: output,
        #: the answers are written together with those of the discharges: one write for each batch.
        self.put_off: set[object] = set()
        #: octets of posts that the store has not answered
        self.posted = 0
        #: octets of buffers that Proton keeps for the connection's next messages: of deliveries to the peer, by
        #: pointer,
        #: as Proton reuses pointers; :attr:`_most_posted`: the largest sum of posts so far; :attr:`_kept`: the sum
        self._buffers: dict[engine.Pointer, int] = {}
        #: the sum of the buffers of unsettled deliveries to the peer
        self._unsettled = 0
        self._most_posted = 0
        #: octets that Proton keeps of large states, by pointer; and the sum
        self._states: dict[engine.Pointer, int] = {}
        self._states_kept = 0
        self._kept = 0

    def hold(self, delivery: engine.Pointer, octets: int) -> bool:
        """Count a message of so many octets, which is in the engine until it is settled. Proton reuses buffers; False:
        it needed a larger one, and the connection is over its share now.
        """
        had = self._buffers.get(delivery, 0)
        if had > octets + _BESIDES:
            self._unsettled += had
            return True
        buffer = _buffer_octets(octets)
        self._keep(buffer - had)
        self._unsettled += buffer
        self._buffers[delivery] = buffer
        return not self.over_share

    def octets_of(self, delivery: engine.Pointer) -> int:
        """Return the octets that the engine keeps for the delivery."""
        return self._buffers[delivery]

    def _keep(self, octets: int) -> None:
        self._kept += octets
        self._connection.service.memory.unread += octets

    def hold_state(self, delivery: engine.Pointer, octets: int) -> bool:
        """Count the octets that the engine keeps of a delivery's state. False: the connection keeps too many."""
        more = octets - self._states.get(delivery, 0)
        if more > 0:
            self._states[delivery] = octets
            self._states_kept += more
            self._keep(more)
        memory = self._connection.service.memory
        # twice: transactions with such states are refused first
        return self._states_kept <= MOST_STATES or memory.unread <= 2 * memory.most

    def settled(self, deliveries: Iterable[engine.Pointer]) -> None:
        """Discount held deliveries that are settled; links that were held back may resume."""
        for delivery in deliveries:
            self._unsettled -= self._buffers[delivery]
        self._go_on()

    def settled_one(self, delivery: engine.Pointer) -> None:
        """Discount one settled delivery, on the path of every message."""
        self._unsettled -= self._buffers[delivery]
        if self._connection.held_back:
            self._go_on()

    def _go_on(self) -> None:
        connection = self._connection
        if connection.held_back and not self._above_share:
            connection.feed_held_back()

    def hold_post(self, octets: int) -> None:
        """Count a post that waits for the store."""
        buffer = _buffer_octets(octets)
        self.posted += buffer
        if self.posted > self._most_posted:
            self._keep(self.posted - self._most_posted)
            self._most_posted = self.posted

    def release_post(self, octets: int) -> None:
        buffer = _buffer_octets(octets)
        self.posted -= buffer
        self._go_on()

    @property
    def has_any(self) -> bool:
        return bool(self.unread) or engine.transport_pending(self._connection.transport) > 0

    @property
    def over_share(self) -> bool:
        """Whether all connections together leave too many octets unread or unsettled, and this one has more than a fair
        share of them in the engine.
        """
        memory = self._connection.service.memory
        return memory.unread > memory.most and self._above_share

    @property
    def _above_share(self) -> bool:
        """Whether the engine keeps more than a fair share of octets of unsettled messages, in and out."""
        return self.posted + self._unsettled > self._connection.service.memory.fair_share

    @property
    def too_much_posted(self) -> bool:
        """Whether its posts alone are over the share. The store settles these; all other deliveries are settled by the
        peer's frames, for which reading must continue.
        """
        memory = self._connection.service.memory
        return memory.unread > memory.most and self.posted > memory.fair_share

    @property
    def too_much_unread(self) -> bool:
        unread = len(self.unread)
        if not unread:
            return False
        service, memory = self._connection.service, self._connection.service.memory
        return unread > min(service.bounds.unread_bytes, memory.share) or (
            memory.unread > memory.most and unread > memory.fair_share
        )

    def is_stuck(self, seconds: float) -> bool:
        """Whether too many octets are unread, and the peer has read none for so many seconds."""
        return self.too_much_unread and time.monotonic() - self._moved > seconds

    def write(self) -> None:
        connection = self._connection
        if self.frames.due:
            self._buffer_unsent()
        if self.unread and not self._write_unread():
            self._buffer_unsent()
            self._wait_for_room()
            return
        transport = connection.transport
        pending, peek, pop = engine.transport_pending, engine.transport_peek, engine.transport_pop
        room = engine.READ_ROOM
        while True:
            size = pending(transport)
            if size <= 0:
                if size < 0:
                    connection.close(CloseReason.PROTOCOL_ERROR)
                    return
                if self.handed:  # the remaining octets wait for the windows of the peer
                    self.handed = sum(map(engine.session_outgoing_bytes, connection.sessions))
                if self.writing:
                    self.writing = False
                    connection.watch_socket()
                if self._frames:
                    self._answer()
                return
            size = peek(transport, engine.write_buffer, min(size, room))
            try:
                sent = connection.socket.send(engine.write_view[:size])
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                connection.close(CloseReason.CLIENT_GONE)
                return
            if sent:
                self.frames.observe(engine.write_view[:sent])
                pop(transport, sent)
            if sent < size:
                self._moved = time.monotonic()
                self._wait_for_room()
                self._buffer_unsent()
                return

    def _wait_for_room(self) -> None:
        connection = self._connection
        if connection.open and not self.writing:
            self.writing = True
            connection.watch_socket()

    def _write_unread(self) -> bool:
        """Write the unread octets; whether the socket has accepted all."""
        connection = self._connection
        try:
            sent = connection.socket.send(self.unread)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            connection.close(CloseReason.CLIENT_GONE)
            return False
        self._moved = time.monotonic()
        del self.unread[:sent]
        connection.service.memory.unread -= sent
        if connection.paused and not self.too_much_unread:
            connection.service.loop.call_later(0, connection.resume)
        return not self.unread

    def _buffer_unsent(self) -> None:
        """Move the octets that the socket does not accept out of the engine."""
        connection = self._connection
        if not connection.open:
            return
        transport, taken, rewrites = connection.transport, bytearray(), self.frames.due
        size = engine.transport_pending(transport)
        while size > 0:
            size = engine.transport_peek(transport, engine.write_buffer, min(size, engine.READ_ROOM))
            if not rewrites:
                self.frames.observe(engine.write_view[:size])
            taken += engine.write_view[:size]
            engine.transport_pop(transport, size)
            size = engine.transport_pending(transport)
        # the frames are whole: all earlier octets were moved out of the engine, too
        self._add_unread(self.frames.rewrite_outgoing(bytes(taken)) if rewrites else taken)
        if size == 0:
            self._add_frames()

    def _add_unread(self, octets: bytes | bytearray) -> None:
        self.unread += octets
        self._connection.service.memory.unread += len(octets)

    def add_frame(self, about: object, frame: Callable[[], bytes]) -> None:
        """Have a frame written after all output of the engine; requests with the same subject share one frame."""
        self._frames[about] = frame
        self._connection.mark()

    def _answer(self) -> None:
        """Write the requested frames, as the engine has no output and the socket has accepted all."""
        self._add_frames()
        if self.unread and not self._write_unread() and self._connection.open:
            self.writing = True
            self._connection.watch_socket()

    def _add_frames(self) -> None:
        asked, self._frames = self._frames, {}
        self._add_unread(b"".join(frame() for frame in asked.values()))

    def lost(self) -> None:
        """Release all counted memory, as the connection is closed."""
        self._connection.service.memory.unread -= len(self.unread) + self._kept
        self.unread.clear()
        self._frames.clear()
        self._buffers.clear()
        self._unsettled = 0
        self._states.clear()
        self._kept = 0


class LayerOutput(Output):
    """Writes the output of a connection with a layer, of which the last octets may still have to be written."""

    __slots__ = ()

    def write(self) -> None:
        connection = self._connection
        sock = connection.socket
        assert isinstance(sock, Layer)
        if not sock.unsent or sock.flush():
            super().write()
        else:
            self._buffer_unsent()
        if connection.open and sock.unsent and not self.writing:
            self.writing = True
            connection.watch_socket()

    @property
    def has_any(self) -> bool:
        sock = self._connection.socket
        return (isinstance(sock, Layer) and sock.unsent) or super().has_any
