"""A TLS socket reads and writes a connection with TLS like a plain socket (rule S2).

Python's ``ssl`` works on two buffers in memory (BIOs), and the socket stays ours. One system call reads many records,
and a record that the socket does not accept is kept here, one at most; with an ``SSLSocket`` each record is a call of
its own, and one that is half written has to be offered again octet for octet.
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
from links.layer import Layer

log = structlog.get_logger(__name__)

#: Octets read from the socket at once, from the least to the most: halved after each read that took more processor time
#: than this, and increased by the least after each other full read. A record without data may be costly, such as a
#: request for new keys, and cheap records before it do not announce that.
_LEAST_READ, _MOST_READ = 1 << 9, 1 << 16
_LONGEST_READ_SECONDS = 0.001
#: the most octets of one record
_RECORD_OCTETS = 1 << 14
#: The most octets that the socket has not accepted: a record, and answers of TLS to requests to renegotiate.
_MOST_UNSENT = 1 << 16

#: the error if the client sends no certificate, and ``tls.client_certificates`` requires one
_NOT_SHOWN = "peer did not return a certificate"


class TlsSocket(Layer):
    """A socket with TLS. ``distrusted`` is called, with the reason, when it ends because the client has no trusted
    certificate.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        super().__init__(sock)
        self._coming, self._going = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._coming, self._going, server_side=True)
        #: octets that the socket has not accepted
        self._unsent = b""
        self._read_octets = 1 << 12
        self._greeted = False
        self._shown: dict[str, Any] = {}
        self._over = False
        self.distrusted: Callable[[str], None] | None = None

    def certificate(self) -> dict[str, Any]:
        """Return the client's verified certificate; empty: it has sent none."""
        return self._shown

    @property
    def version(self) -> str | None:
        """The version of TLS, such as TLSv1.3; None before the handshake."""
        return self._tls.version()

    @property
    def unsent(self) -> bool:
        return bool(self._unsent)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Read decrypted octets; return how many. 0: the end, also if the peer violates the protocol.

        :raises BlockingIOError: no whole record was received.
        """
        if self._over:  # the end was sent, and further input is discarded
            return super().recv_into(buffer, nbytes)
        view = memoryview(buffer)
        room = nbytes or len(view)
        taken, ended = self._decrypt(view, room)
        if taken < room and not ended:
            try:
                # octets without room stay in the socket, as TLS would keep them
                octets = super().recv(min(self._read_octets, room - taken))
            except (BlockingIOError, InterruptedError):
                octets = None
            if octets is not None:
                more, ended = self._decrypt_new(octets, view[taken:], room - taken)
                taken += more
        if taken == room or (taken and ended):  # the buffers may have more, which the socket does not report
            self.must_read()
        if not self._flush_records():
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
        """Decrypt the octets just read, like :meth:`_decrypt`; empty: the end."""
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
        """Decrypt into ``view``; return how many octets, and whether the peer has ended."""
        taken = 0
        try:
            if not self._greeted:
                self._tls.do_handshake()
                self._greeted = True
                self._shown = self._tls.getpeercert() or {}  # not available after an error
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
        """Encrypt and send octets; return how many were at least encrypted."""
        if self._over or not self._greeted:
            raise OSError
        if self._unsent and not self._flush_records():
            raise BlockingIOError
        sent, broken = 0, ""
        with memoryview(data) as view:
            while sent < len(view) and not self._unsent and not broken:
                try:
                    sent += self._tls.write(view[sent : sent + _RECORD_OCTETS])
                except ssl.SSLError as error:
                    broken = _reason(error)
                self._flush_records()
        if broken:  # raised here: as the cause, the error of TLS would keep the data in memory
            raise OSError(broken)
        return sent

    def flush(self) -> bool:
        """Send the remaining octets; whether the socket has accepted all. An error is found by the next read."""
        return self._flush_records()

    def _flush_records(self) -> bool:
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
        """Send the end of TLS, then shut down the socket."""
        if self._greeted:
            with contextlib.suppress(ssl.SSLError):  # it requires the peer's end, which is not awaited
                self._tls.unwrap()
        self._flush_records()
        self._over = True
        super().shutdown(how)


def _reason(error: ssl.SSLError) -> str:
    """Return the reason of an error without names of OpenSSL's source files; for a certificate, its error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return (error.reason or type(error).__name__).lower().replace("_", " ")
