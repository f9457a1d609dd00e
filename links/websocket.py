"""A WebSocket reads and writes AMQP in binary messages, like a plain socket or one with TLS (rule S14; AMQP WebSocket
Binding, section 2).

The messages' borders mean nothing: their octets are AMQP's, one after the other. What came of a message is passed on at
once, so that none is kept here, however long it is.
"""

from __future__ import annotations

import socket
import ssl
from typing import Any

import structlog
from wsproto.connection import Connection, ConnectionState
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage
from wsproto.frame_protocol import CloseReason as Code

from coordinator.login.logins import peer_of
from links.close_reason import CloseReason
from links.layer import Layer
from links.tls import TlsSocket
from links.upgrade import Door, Upgrade

log = structlog.get_logger(__name__)

#: The octets of a message of ours, with whose header it fills a record of TLS; clients take no more than 64 KiB, Qpid
#: JMS as it is set up.
_MESSAGE_OCTETS = (1 << 14) - 4
#: The most frames that one read takes: a millisecond's, as each costs what thousands of its octets do. The others of
#: the octets read so far wait for the next reads.
_MOST_FRAMES = 64
#: the most octets read from the socket at once
_MOST_READ = 1 << 15


class WebSocket(Layer):
    """A socket with a WebSocket, the service's side."""

    def __init__(self, sock: socket.socket, door: Door) -> None:
        super().__init__(sock)
        self._begin(door)

    def _begin(self, door: Door) -> None:
        #: the exchange of HTTP; None once it is complete
        self._upgrade: Upgrade | None = Upgrade(door)
        self._frames: Connection | None = None
        #: octets of a frame, or of an answer in HTTP, that the socket has not accepted
        self._begun: bytes | bytearray = b""
        #: The answer to the last ping, if it is still to be sent; those to earlier ones are left out (RFC 6455, section
        #: 5.5.3).
        self._pong: Pong | None = None
        #: whether frames may be left of the octets read so far
        self._behind = False
        #: whether the client has ended, or its end is its own fault
        self._ended = False
        #: whether a close frame was sent
        self._closed = False
        #: whether further input is discarded
        self._left = False

    @property
    def unsent(self) -> bool:
        return bool(self._begun) or self._pong is not None or super().unsent

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Read the octets of messages; return how many: up to 32 KiB, also above ``nbytes``, where frames were left. 0:
        the end, also if the peer violates the protocol.

        :raises BlockingIOError: there are none for now.
        """
        if self._left:
            return super().recv_into(buffer, nbytes)
        if self._ended:
            return 0
        was_behind = self._behind
        with memoryview(buffer) as view:
            octets = b""
            if not was_behind:
                size = super().recv_into(view, min(nbytes or len(view), _MOST_READ))
                if not size:
                    return 0
                octets = bytes(view[:size])
            taken, ended = self._take(octets, view)
        if self.unsent and not self.flush():
            self.must_write()
        if was_behind or self._behind or (taken and ended):  # the socket does not report what is left, nor TLS in it
            self.must_read()
        if not taken and not ended:
            raise BlockingIOError
        return taken

    def _take(self, octets: bytes, view: memoryview) -> tuple[int, bool]:
        """Take the octets of messages into ``view``, of what was left and of ``octets``; return how many, and whether
        the peer has ended.
        """
        if self._upgrade is not None:
            self._begun = self._upgrade.take(octets)
            if self._upgrade.refused:
                self._fails(self._upgrade.refused)
            if self._upgrade.connection is None:
                return 0, self._ended
            self._frames, octets, self._upgrade = self._upgrade.connection, self._upgrade.rest, None
        assert self._frames is not None
        taken = 0
        self._frames.receive_data(octets)
        self._behind = True
        for number, event in enumerate(self._frames.events(), 1):
            if isinstance(event, BytesMessage):
                end = taken + len(event.data)
                view[taken:end] = event.data
                taken = end
            elif isinstance(event, Ping):
                self._pong = event.response()
            elif isinstance(event, TextMessage):
                self._close(Code.UNSUPPORTED_DATA, "a text message, where AMQP has binary ones alone")
            elif isinstance(event, CloseConnection):
                if self._frames.state is ConnectionState.REMOTE_CLOSING:
                    self._close(event.code)
                else:
                    self._close(event.code, str(event.reason))
            if self._ended or number == _MOST_FRAMES:
                break
        else:
            self._behind = False
        return taken, self._ended

    def _close(self, code: int, why: str = "") -> None:
        """Send a close frame, as the last one. ``why``: what is wrong with the client's frames; empty: nothing."""
        assert self._frames is not None
        if why:
            self._fails(why)
        self._ended = self._closed = True
        self._pong = None
        self._begun += self._frames.send(CloseConnection(code, why or None))

    def _fails(self, why: str) -> None:
        self._ended = True
        log.info(
            "connection failed", reason=CloseReason.WEBSOCKET_FAILED.value, peer=peer_of(self), why=f"WebSocket: {why}"
        )

    def send(self, data: Any, flags: int = 0) -> int:
        """Send octets in messages; return how many were at least put into one."""
        if self._frames is None or self._closed:
            raise OSError
        if self.unsent and not self.flush():
            raise BlockingIOError
        sent = 0
        with memoryview(data) as view:
            while sent < len(view) and not self._begun:
                octets = bytes(view[sent : sent + _MESSAGE_OCTETS])
                self._begun = self._frames.send(BytesMessage(octets))
                sent += len(octets)
                self.flush()
        return sent

    def flush(self) -> bool:
        """Send the remaining octets; whether the socket has accepted all. An error is found by the next read."""
        while self._begun or self._pong is not None:
            if not self._begun and self._pong is not None:
                assert self._frames is not None
                self._begun, self._pong = self._frames.send(self._pong), None
            try:
                sent = super().send(self._begun)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError:  # the peer is gone
                self._begun, self._pong = b"", None
                break
            self._begun = self._begun[sent:]
        return super().flush()

    def shutdown(self, how: int) -> None:
        """Send the end of the WebSocket, then shut down the socket."""
        if self._frames is not None and not self._closed:
            self._close(Code.NORMAL_CLOSURE)
        self.flush()
        self._left = True
        super().shutdown(how)


class TlsWebSocket(WebSocket, TlsSocket):
    """A socket with a WebSocket behind TLS."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, door: Door) -> None:
        TlsSocket.__init__(self, sock, context)
        self._begin(door)
