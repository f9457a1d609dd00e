"""TLS on a socket by itself: a handshake in memory, what a read takes, and what is left when TLS breaks (rule S2)."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

import pytest

from links.tls import TlsSocket
from tests.fix_certificates import NONSENSE, Authority, key_of
from tests.wire.peer import PATIENCE

_RECORD = bytes(10_000)


class Pair(NamedTuple):
    """The service's socket, the client's in plain text, and what encrypts for it; the handshake is done."""

    service: TlsSocket
    theirs: socket.socket
    encrypted: Callable[[bytes], bytes]

    def send(self, octets: bytes) -> None:
        """Until all of it is there."""
        self.theirs.sendall(octets)
        while self._waiting() < len(octets):
            pass

    def taken(self, room: int) -> int:
        """How much a read takes from the socket."""
        before = self._waiting()
        with suppress(BlockingIOError):
            self.service.recv_into(bytearray(room))
        return before - self._waiting()

    def trusted(self) -> None:
        """Its reads have become large, by records that cost little; more of these wait."""
        self.send(b"".join(self.encrypted(_RECORD) for _ in range(15)))
        read = 0
        while read < 1 << 16:
            read += self.taken(1 << 18)

    def _waiting(self) -> int:
        try:
            return len(self.service.recv(1 << 20, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return 0


@pytest.fixture
def pair(ca: Authority) -> Iterator[Pair]:
    server = ca.sign("pair", alternative="IP:127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(server, key_of(server))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        theirs = socket.create_connection(listener.getsockname(), PATIENCE)
        ours, _ = listener.accept()
    # as the service has it
    ours.setblocking(False)
    coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=str(ca.certificate)).wrap_bio(coming, going, server_hostname="127.0.0.1")

    def encrypted(octets: bytes) -> bytes:
        client.write(octets)
        return going.read()

    with TlsSocket(ours, context) as service, theirs:
        while not service._greeted:
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
            theirs.sendall(going.read())
            with suppress(BlockingIOError):
                service.recv_into(bytearray(1 << 12))
            coming.write(theirs.recv(1 << 16))
        yield Pair(service, theirs, encrypted)


@pytest.mark.rule("S2", "S6")
@pytest.mark.parametrize("octets", [NONSENSE, b""], ids=["nonsense", "nothing"])
def test_what_waits_is_let_go_where_tls_is_broken(pair: Pair, octets: bytes) -> None:
    """At once, while the error is looked at: TLS holds none of it."""
    service, theirs, _ = pair
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


@pytest.mark.rule("S2", "S5")
def test_a_read_takes_more_only_after_many_that_cost_little(pair: Pair) -> None:
    """What follows may cost a thousand times as much, and is found out only when it is read."""
    pair.trusted()
    assert 0 < pair.taken(1 << 18) <= 1 << 14


@pytest.mark.rule("S2", "S5")
def test_a_read_takes_no_more_than_there_is_room_for(pair: Pair) -> None:
    """TLS would keep it, and all of it would be looked at in the next turn, whatever it costs."""
    pair.trusted()
    assert 0 < pair.taken(1 << 12) <= 1 << 12
