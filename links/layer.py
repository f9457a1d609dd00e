"""A layer is a protocol between a connection and its socket: TLS, or WebSocket. It is used like the socket."""

from __future__ import annotations

import socket
from collections.abc import Callable


class Layer(socket.socket):
    """A socket with a layer. ``must_read`` is called when it has to be read again, though the socket may not be
    readable; ``must_write`` when a read has caused output.
    """

    def __init__(self, sock: socket.socket) -> None:
        """Take over the descriptor of ``sock``."""
        super().__init__(sock.family, sock.type, sock.proto, fileno=sock.detach())
        self.must_read: Callable[[], None] = _nothing
        self.must_write: Callable[[], None] = _nothing

    @property
    def unsent(self) -> bool:
        """Whether the layer has octets that the socket has not accepted."""
        return False

    def flush(self) -> bool:
        """Send the remaining octets; whether the socket has accepted all. An error is found by the next read."""
        return True

    def shutdown(self, how: int) -> None:
        """End the layer, then shut down the socket; further input is discarded."""
        self.must_write = self.must_read = _nothing
        super().shutdown(how)


def _nothing() -> None:
    pass
