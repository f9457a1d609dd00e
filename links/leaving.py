"""Sockets of connections that have ended: each is kept until its peer has seen the end.

A socket that is closed with input unread is reset, and a reset may take our last words, the close and its reason, from
a peer that has not read them yet (RFC 1122, section 4.2.2.13). So the worker ends its own side only, and throws away
what the peer still sends, until the peer closes too or the time is up.
"""

from __future__ import annotations

import select
import socket
import time
from typing import TYPE_CHECKING

from links import engine

if TYPE_CHECKING:
    from store.loop import Loop

#: how long a peer may take to read our last words, and to close
LINGER_SECONDS = 5.0
#: sockets that are kept; further ones are closed at once
MOST_LEAVING = 256


class Leaving:
    """``take`` a socket that neither the loop nor a connection knows any more."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        #: by descriptor, the oldest first, and when its time is up
        self._sockets: dict[int, tuple[socket.socket, float]] = {}

    def take(self, sock: socket.socket) -> None:
        try:
            sock.shutdown(socket.SHUT_WR)
        except OSError:  # the peer is gone
            sock.close()
            return
        if len(self._sockets) >= MOST_LEAVING:
            sock.close()
            return
        if not self._sockets:
            self._loop.call_later(LINGER_SECONDS, self._look)
        self._sockets[sock.fileno()] = sock, time.monotonic() + LINGER_SECONDS
        self._loop.watch(sock.fileno(), select.EPOLLIN, lambda _: self._read(sock))

    def close(self) -> None:
        """All of them at once: the loop has ended."""
        for sock, _ in list(self._sockets.values()):
            self._close(sock)

    def _read(self, sock: socket.socket) -> None:
        try:
            size = sock.recv_into(engine.read_view)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            size = 0
        if size == 0:
            self._close(sock)

    def _close(self, sock: socket.socket) -> None:
        del self._sockets[sock.fileno()]
        self._loop.forget(sock.fileno())
        sock.close()

    def _look(self) -> None:
        now = time.monotonic()
        while self._sockets:
            sock, deadline = next(iter(self._sockets.values()))
            if deadline > now:
                self._loop.call_later(deadline - now, self._look)
                return
            self._close(sock)
