"""What goes out on a connection with TLS."""

from __future__ import annotations

from links.output import Output
from links.tls import TlsSocket


class TlsOutput(Output):
    """The last of what was encrypted may still have to be written."""

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
