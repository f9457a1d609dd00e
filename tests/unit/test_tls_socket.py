"""TLS on a socket by itself: a handshake in memory, and what is left when it breaks (rule S2)."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress

import pytest

from links.tls import TlsSocket
from tests.fix_certificates import NONSENSE, Authority, key_of
from tests.wire.peer import PATIENCE


@pytest.fixture
def pair(ca: Authority) -> Iterator[tuple[TlsSocket, socket.socket]]:
    """The service's socket, and the client's in plain text; the handshake is done."""
    server = ca.sign("pair", alternative="IP:127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(server, key_of(server))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname(), PATIENCE)
        ours, _ = listener.accept()
    coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=str(ca.certificate)).wrap_bio(coming, going, server_hostname="127.0.0.1")
    with TlsSocket(ours, context) as service, theirs:
        while not service._greeted:
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
            theirs.sendall(going.read())
            with suppress(BlockingIOError):
                service.recv_into(bytearray(100))
            coming.write(theirs.recv(1 << 16))
        yield service, theirs


@pytest.mark.rule("S2", "S6")
@pytest.mark.parametrize("octets", [NONSENSE, b""], ids=["nonsense", "nothing"])
def test_what_waits_is_let_go_where_tls_is_broken(pair: tuple[TlsSocket, socket.socket], octets: bytes) -> None:
    """At once, while the error is looked at: TLS holds none of it."""
    service, theirs = pair
    waiting = bytearray(b"x" * 100)
    theirs.sendall(octets)
    theirs.shutdown(socket.SHUT_WR)
    while service.recv_into(bytearray(100)):
        pass
    try:
        while True:
            service.send(waiting)
    except OSError:
        waiting.clear()
