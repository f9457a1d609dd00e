"""A WebSocket of a client, over a blocking socket: its request and its frames octet for octet, right or wrong."""

from __future__ import annotations

import os
import socket
import struct
from typing import NamedTuple

from tests.wire.peer import PATIENCE, Ended, Peer

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
PATH = "/amqp"
#: that of RFC 6455, section 1.3, and what a server makes of it
KEY, ACCEPT = "dGhlIHNhbXBsZSBub25jZQ==", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
_HEADERS = {
    "Host": "127.0.0.1",
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": KEY,
    "Sec-WebSocket-Protocol": "amqp",
}


class Message(NamedTuple):
    """A frame of the service."""

    opcode: int
    payload: bytes

    @property
    def code(self) -> int:
        """Of a close."""
        assert self.opcode == CLOSE, self
        return int.from_bytes(self.payload[:2], "big")


def request(path: str = PATH, method: str = "GET", **headers: str | None) -> bytes:
    """The octets of a request; ``headers`` by name, ``_`` for ``-``, replace what is usual. None: it is left out."""
    found = {**_HEADERS, **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in found.items() if value is not None)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def frame(opcode: int, payload: bytes = b"", *, last: bool = True, mask: bytes | None = b"\1\2\3\4") -> bytes:
    """``mask`` None: there is none, as in frames of a server."""
    size, masked = len(payload), 0 if mask is None else 0x80
    if size < 126:
        head = struct.pack(">BB", last << 7 | opcode, masked | size)
    elif size < 1 << 16:
        head = struct.pack(">BBH", last << 7 | opcode, masked | 126, size)
    else:
        head = struct.pack(">BBQ", last << 7 | opcode, masked | 127, size)
    if mask is None:
        return head + payload
    key = (mask * (size // 4 + 1))[:size]
    return head + mask + (int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")


class Client:
    """The client's side, which has read the service's answer to its request."""

    def __init__(self, sock: socket.socket, asked: bytes | None = None) -> None:
        self.socket = sock
        self._octets = b""
        sock.sendall(request() if asked is None else asked)
        self.head = self._until(b"\r\n\r\n").decode("latin-1")

    @property
    def status(self) -> int:
        return int(self.head.split()[1])

    def body(self) -> str:
        """The rest of an answer, up to the end of the connection."""
        while more := self.socket.recv(4096):
            self._octets += more
        return self._octets.decode()

    def read(self) -> Message:
        """The next frame of the service, none of which has a mask or is divided."""
        first, size = self._take(2)
        assert first & 0xF0 == 0x80
        size = int.from_bytes(self._take(2), "big") if size == 126 else size
        assert size < 1 << 14
        return Message(first & 0x0F, self._take(size))

    def ended(self) -> bool:
        """Whether the service ends here, with no octet more."""
        return not self._octets and self.socket.recv(1) == b""

    # -- as a socket of a Peer

    def sendall(self, octets: bytes) -> None:
        self.socket.sendall(frame(BINARY, octets, mask=os.urandom(4)))

    def recv(self, size: int) -> bytes:
        assert size >= 1 << 14
        message = self.read()
        return message.payload if message.opcode == BINARY else b""

    def close(self) -> None:
        self.socket.close()

    def _take(self, size: int) -> bytes:
        while len(self._octets) < size:
            self._more()
        taken, self._octets = self._octets[:size], self._octets[size:]
        return taken

    def _more(self) -> None:
        more = self.socket.recv(1 << 16)
        if not more:
            raise Ended(f"the service ended behind {self._octets!r}")
        self._octets += more

    def _until(self, end: bytes) -> bytes:
        while end not in self._octets:
            self._more()
        return self._take(self._octets.index(end) + len(end))


class WebSocketPeer(Peer):
    """A :class:`Peer` whose octets go in binary messages; ``web``: its WebSocket."""

    def begin_websocket(self, asked: bytes | None = None) -> Client:
        self.web = Client(self.socket, asked)
        assert self.web.status == 101, self.web.head
        self.socket = self.web  # type: ignore[assignment]
        return self.web


def connected(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), PATIENCE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
