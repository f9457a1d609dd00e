"""TLS on a connection's socket (rule S2), which reads and writes as a plain one does.

Python's ``ssl`` works on two buffers in memory (BIOs), and the socket stays ours. One system call reads what many
records hold, and a record that the socket does not take is kept here, one at most; with an ``SSLSocket`` each record is
a call of its own, and one that is half written has to be offered again octet for octet.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

import structlog

from coordinator.login.logins import peer_of
from links.close_reason import CloseReason

log = structlog.get_logger(__name__)

#: Octets read from the socket at once: from the least to the most, half as many after each read that took the processor
#: longer than this, and the least more after each other that was full. A record may cost much and say nothing, such as
#: one that asks for new keys, and cheap ones before it say nothing of that.
_LEAST_READ, _MOST_READ = 1 << 9, 1 << 16
_LONGEST_READ_SECONDS = 0.001
#: and those of one record
_RECORD_OCTETS = 1 << 14
#: Octets that the socket has not taken: a record, and what TLS answers by itself, to one who asks to negotiate again.
_MOST_UNSENT = 1 << 16

#: by the client, where ``tls.client_certificates`` requires one
_NOT_SHOWN = "peer did not return a certificate"


class TlsSocket(socket.socket):
    """``must_read`` is called when it is to be read once more, though the socket itself may say nothing; ``must_write``
    when what was read leaves something to write; ``distrusted``, with the reason, when it ends as the client has shown
    no certificate to trust.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        super().__init__(sock.family, sock.type, sock.proto, fileno=sock.detach())
        self._coming, self._going = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._coming, self._going, server_side=True)
        #: octets that the socket has not taken
        self._unsent = b""
        self._read_octets = 1 << 12
        self._greeted = False
        self._shown: dict[str, Any] = {}
        self._over = False
        self.must_read: Callable[[], None] = _nothing
        self.must_write: Callable[[], None] = _nothing
        self.distrusted: Callable[[str], None] | None = None

    def certificate(self) -> dict[str, Any]:
        """Of the client, verified; empty: it has shown none."""
        return self._shown

    @property
    def unsent(self) -> bool:
        return bool(self._unsent)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """:raises BlockingIOError: no whole record is there; 0: the end, also where the peer breaks the protocol."""
        if self._over:  # its last words are said, and what comes is thrown away
            return super().recv_into(buffer, nbytes)
        view = memoryview(buffer)
        room = nbytes or len(view)
        taken, ended = self._decrypt(view, room)
        if taken < room and not ended:
            try:
                # what there is no room for, TLS would keep: it waits in the socket
                octets = super().recv(min(self._read_octets, room - taken))
            except (BlockingIOError, InterruptedError):
                octets = None
            if octets is not None:
                more, ended = self._decrypt_new(octets, view[taken:], room - taken)
                taken += more
        if taken == room or (taken and ended):  # there may be more, of which the socket does not know
            self.must_read()
        if not self.flush():
            if self._greeted and len(self._unsent) > _MOST_UNSENT:
                self._fails("it asks for answers, and reads none")
                return 0
            self.must_write()
        if not taken and not ended:
            raise BlockingIOError
        return taken

    def _fails(self, why: str) -> None:
        log.info("connection failed", reason=CloseReason.TLS_FAILED.value, peer=peer_of(self), why=f"TLS: {why}")

    def _decrypt_new(self, octets: bytes, view: memoryview, room: int) -> tuple[int, bool]:
        """As :meth:`_decrypt`, what was just read; none: the end."""
        if not octets:
            self._coming.write_eof()
            return self._decrypt(view, room)
        self._coming.write(octets)
        began = time.thread_time()
        found = self._decrypt(view, room)
        if time.thread_time() - began > _LONGEST_READ_SECONDS:
            self._read_octets = max(self._read_octets >> 1, _LEAST_READ)
        elif len(octets) == self._read_octets:
            self._read_octets = min(self._read_octets + _LEAST_READ, _MOST_READ)
        return found

    def _decrypt(self, view: memoryview, room: int) -> tuple[int, bool]:
        """How many octets were put into ``view``; and whether the peer says no more."""
        taken = 0
        try:
            if not self._greeted:
                self._tls.do_handshake()
                self._greeted = True
                self._shown = self._tls.getpeercert() or {}  # which it says no more behind an error
            while taken < room:
                size = int(self._tls.read(room - taken, view[taken:room]))
                if not size:
                    return taken, True
                taken += size
        except ssl.SSLWantReadError:
            return taken, False
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return taken, True
        except ssl.SSLError as error:
            why = _reason(error)
            self._fails(why)
            if self.distrusted is not None and (isinstance(error, ssl.SSLCertVerificationError) or why == _NOT_SHOWN):
                self.distrusted(why)
            return taken, True
        return taken, False

    def send(self, data: Any, flags: int = 0) -> int:
        """How much was taken: encrypted at least."""
        if self._over or not self._greeted:
            raise OSError
        if self._unsent and not self.flush():
            raise BlockingIOError
        sent, broken = 0, ""
        with memoryview(data) as view:
            while sent < len(view) and not self._unsent and not broken:
                try:
                    sent += self._tls.write(view[sent : sent + _RECORD_OCTETS])
                except ssl.SSLError as error:
                    broken = _reason(error)
                self.flush()
        if broken:  # raised here: with the error of TLS, it would hold what is to be sent
            raise OSError(broken)
        return sent

    def flush(self) -> bool:
        """Write what was left. Whether the socket has taken all; an error is seen by the next read."""
        if self._going.pending:
            self._unsent += self._going.read()
        if not self._unsent:
            return True
        try:
            sent = super().send(self._unsent)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:  # the peer is gone
            sent = len(self._unsent)
        self._unsent = self._unsent[sent:]
        return not self._unsent

    def shutdown(self, how: int) -> None:
        """Say the end as TLS does, too."""
        if self._greeted:
            with contextlib.suppress(ssl.SSLError):  # it wants the peer's end, which is not waited for
                self._tls.unwrap()
        self.flush()
        self._over = True
        self.must_write = self.must_read = _nothing
        super().shutdown(how)


def _nothing() -> None:
    pass


def _reason(error: ssl.SSLError) -> str:
    """Without names of OpenSSL's source files; of a certificate, what is wrong with it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return (error.reason or type(error).__name__).lower().replace("_", " ")
