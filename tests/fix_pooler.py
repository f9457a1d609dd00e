"""A pooler before PostgreSQL that lends a session of the server for one SQL transaction, as PgBouncer in transaction
mode does.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from tests.fix_proxy import Proxy

_LENGTH = struct.Struct(">i")
_SESSION_ENDS = b"X"
#: of what asks the server for an answer: a simple query, and the end of an extended one
_ASKS = (b"Q", b"S")
_READY, _IDLE = b"Z", b"I"


def _octets(wire: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        if not (more := wire.recv(count - len(found))):
            raise ConnectionError("closed")
        found += more
    return found


def _startup(wire: socket.socket) -> bytes:
    size = _octets(wire, 4)
    return size + _octets(wire, _LENGTH.unpack(size)[0] - 4)


def _message(wire: socket.socket) -> tuple[bytes, bytes]:
    """Its kind, and the whole."""
    head = _octets(wire, 5)
    return head[:1], head + _octets(wire, _LENGTH.unpack_from(head, 1)[0] - 4)


class Pooler:
    """Listens on 127.0.0.1; :attr:`url` connects through it to the server of ``url``."""

    def __init__(self, url: str) -> None:
        #: sessions are lent in turn (``server_round_robin``)
        self.in_turn = False
        #: makes the URL, and knows the place of the server; its own listener is not used
        self._way = Proxy(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        old, new = (each.getsockname()[1] for each in (self._way._listener, self._listener))
        self.url = self._way.url.replace(f":{old}/", f":{new}/")
        #: sessions that no client has now; the one that was given back last is lent first, or last
        self._free: list[socket.socket] = []
        self._wires: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._wires.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            startup = _startup(client)
            server, welcome = self._session(startup)
            self._free.append(server)
            client.sendall(welcome)
            lent = None
            while True:
                kind, message = _message(client)
                if kind == _SESSION_ENDS:
                    break
                lent = lent or self._take(startup)
                lent.sendall(message)
                if kind in _ASKS and self._answers(lent, client) == _IDLE:
                    self._free.append(lent)
                    lent = None
        client.close()

    def _take(self, startup: bytes) -> socket.socket:
        with contextlib.suppress(IndexError):
            return self._free.pop(0 if self.in_turn else -1)
        return self._session(startup)[0]

    def _session(self, startup: bytes) -> tuple[socket.socket, bytes]:
        """A new one, and how the server begins it."""
        server = socket.socket(socket.AF_UNIX if isinstance(self._way._upstream, str) else socket.AF_INET)
        server.connect(self._way._upstream)
        self._wires.append(server)
        server.sendall(startup)
        welcome = b""
        kind = b""
        while kind != _READY:
            kind, message = _message(server)
            welcome += message
        return server, welcome

    def _answers(self, server: socket.socket, client: socket.socket) -> bytes:
        """Pass on until the server is ready; whether it is in an SQL transaction."""
        kind = b""
        while kind != _READY:
            kind, message = _message(server)
            client.sendall(message)
        return message[-1:]

    def close(self) -> None:
        self._way.close()
        for each in (self._listener, *self._wires):
            each.close()


@pytest.fixture
def pooler(database_url: str) -> Iterator[Pooler]:
    """Before the server of :func:`database_url`."""
    pooler = Pooler(database_url)
    try:
        yield pooler
    finally:
        pooler.close()
