"""Octets on their way to one peer: written to its socket as far as the socket takes them; the rest is kept and counted.

The engine does not say how much it has to write, so what a socket does not take is moved out of the engine to here.
While a peer leaves too much unread, its connection is not read either: each frame it sends could add an answer.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog

from links import engine
from links.close_reason import CloseReason
from links.frames import SentFrames
from links.tls import TlsSocket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from links.connection import Connection

log = structlog.get_logger(__name__)

#: Octets of messages that may wait to be written on one connection, over all its sessions.
MOST_HANDED = 4 << 20
#: Octets of states that the engine may keep for a connection while all together keep too much.
MOST_STATES = 1 << 18

#: Octets of Proton's record of a delivery, beside the buffer of its message.
_BESIDES = 1500


def _buffer_octets(octets: int) -> int:
    """Proton doubles a buffer until the message fits."""
    return _BESIDES + (1 << octets.bit_length())


class Output:
    """``writing``: the socket takes no more for now."""

    __slots__ = (
        "_asked", "_buffers", "_connection", "_kept", "_most_posted", "_moved", "_states", "_states_kept", "_unsettled",
        "frames", "handed", "posted", "put_off", "unread", "writing",
    )  # fmt: skip

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.writing = False
        #: taken out of the engine, and not by the socket yet
        self.unread = bytearray()
        self.frames = SentFrames(connection.service.bounds.handle_max)
        #: each makes a frame that the engine cannot be asked for, once the engine has nothing to write; by what it is
        #: about, so that a peer that asks again before it is answered takes no more memory
        self._asked: dict[object, Callable[[], bytes]] = {}
        #: when the socket last took something
        self._moved = 0.0
        #: octets of messages handed to the engine since it last had nothing to write
        self.handed = 0
        #: transactions whose posts were answered in this turn, and which were not discharged since. Where nothing else
        #: is to be written, what their discharges decide is waited for: a write for each batch, and not one more.
        self.put_off: set[object] = set()
        #: octets of posts that the store has not answered
        self.posted = 0
        #: Proton keeps buffers for the connection's next messages. By pointer, those of deliveries to the peer, as
        #: Proton uses the same pointers again; the largest sum of posts so far; and the sum of both
        self._buffers: dict[engine.Pointer, int] = {}
        #: the sum of the buffers of deliveries to the peer that are not settled
        self._unsettled = 0
        self._most_posted = 0
        #: what Proton keeps of large states, by pointer, and the sum
        self._states: dict[engine.Pointer, int] = {}
        self._states_kept = 0
        self._kept = 0

    def hold(self, delivery: engine.Pointer, octets: int) -> bool:
        """A message of so many octets is in the engine until it is settled. Proton reuses buffers; False: it needed a
        larger one, and the connection is over its share now.
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
        """What the engine keeps of it."""
        return self._buffers[delivery]

    def _keep(self, octets: int) -> None:
        self._kept += octets
        self._connection.service.memory.unread += octets

    def hold_state(self, delivery: engine.Pointer, octets: int) -> bool:
        """The engine keeps so much of what the peer has said of a delivery. False: the connection keeps too much."""
        more = octets - self._states.get(delivery, 0)
        if more > 0:
            self._states[delivery] = octets
            self._states_kept += more
            self._keep(more)
        memory = self._connection.service.memory
        # twice: where they are part of a transaction, that is refused first
        return self._states_kept <= MOST_STATES or memory.unread <= 2 * memory.most

    def settled(self, deliveries: Iterable[engine.Pointer]) -> None:
        """These were held, and are settled: links that were held back may go on."""
        for delivery in deliveries:
            self._unsettled -= self._buffers[delivery]
        self._go_on()

    def settled_one(self, delivery: engine.Pointer) -> None:
        """The same for one, on the path of every message."""
        self._unsettled -= self._buffers[delivery]
        if self._connection.held_back:
            self._go_on()

    def _go_on(self) -> None:
        connection = self._connection
        if connection.held_back and not self._above_share:
            connection.go_on_held_back()

    def hold_post(self, octets: int) -> None:
        """As :meth:`hold`, for a post that waits for the store."""
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
        """All connections together leave too much unread or unsettled, and this one has more than a fair share of it in
        the engine.
        """
        memory = self._connection.service.memory
        return memory.unread > memory.most and self._above_share

    @property
    def _above_share(self) -> bool:
        """Whether the engine keeps more than a fair share of messages, in and out, until they are settled."""
        return self.posted + self._unsettled > self._connection.service.memory.fair_share

    @property
    def too_much_posted(self) -> bool:
        """The same for its posts alone, which the store settles. The rest is settled only by what the peer sends, so
        for its sake reading must go on.
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
        """Whether too much is unread, and the peer has read nothing for so many seconds."""
        return self.too_much_unread and time.monotonic() - self._moved > seconds

    def write(self) -> None:
        connection = self._connection
        if self.frames.due:
            self._set_aside()
        if self.unread and not self._write_unread():
            self._set_aside()
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
                if self.handed:  # the rest waits for the windows of the peer
                    self.handed = sum(map(engine.session_outgoing_bytes, connection.sessions))
                if self.writing:
                    self.writing = False
                    connection.watch_socket()
                if self._asked:
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
                self._set_aside()
                return

    def _wait_for_room(self) -> None:
        connection = self._connection
        if connection.open and not self.writing:
            self.writing = True
            connection.watch_socket()

    def _write_unread(self) -> bool:
        """Whether the socket has taken all of it."""
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

    def _set_aside(self) -> None:
        """Move out of the engine what the socket does not take."""
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
        # what was begun is whole: all before was taken out of the engine, too
        self._add_unread(self.frames.rewrite_outgoing(bytes(taken)) if rewrites else taken)
        if size == 0:
            self._add_asked()

    def _add_unread(self, octets: bytes | bytearray) -> None:
        self.unread += octets
        self._connection.service.memory.unread += len(octets)

    def ask(self, about: object, frame: Callable[[], bytes]) -> None:
        """Write the frame, behind all that the engine has to write: one for all that ask about the same until then."""
        self._asked[about] = frame
        self._connection.mark()

    def _answer(self) -> None:
        """The engine has nothing to write, and the socket has taken all."""
        self._add_asked()
        if self.unread and not self._write_unread() and self._connection.open:
            self.writing = True
            self._connection.watch_socket()

    def _add_asked(self) -> None:
        asked, self._asked = self._asked, {}
        self._add_unread(b"".join(frame() for frame in asked.values()))

    def lost(self) -> None:
        """The connection is closed, and its part of the engine freed."""
        self._connection.service.memory.unread -= len(self.unread) + self._kept
        self.unread.clear()
        self._asked.clear()
        self._buffers.clear()
        self._unsettled = 0
        self._states.clear()
        self._kept = 0


class TlsOutput(Output):
    """Output of a connection with TLS: the last of what was encrypted may still have to be written."""

    __slots__ = ()

    def write(self) -> None:
        connection = self._connection
        sock = connection.socket
        assert isinstance(sock, TlsSocket)
        if not sock.unsent or sock.flush():
            super().write()
        else:
            self._set_aside()
        if connection.open and sock.unsent and not self.writing:
            self.writing = True
            connection.watch_socket()

    @property
    def has_any(self) -> bool:
        sock = self._connection.socket
        return (isinstance(sock, TlsSocket) and sock.unsent) or super().has_any
