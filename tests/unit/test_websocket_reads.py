"""What one read of a WebSocket takes: a millisecond of frames, however small they are (rule S5)."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from links.upgrade import Door
from links.websocket import WebSocket
from tests.wire.websocket import BINARY, CONTINUATION, PATH, PING, PONG, frame, request

pytestmark = pytest.mark.rule("S5", "S14")

#: of a read of the service; and what it may take: each frame costs as much as thousands of its octets
_ROOM, _MOST_OCTETS, _MOST_FRAMES = 1 << 18, 1 << 15, 64


class Pair:
    """The service's side, and the client's socket; the request was answered. ``again``: the service's is to be read,
    though nothing more may come.
    """

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        self.theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 21)
        ours.setblocking(False)
        self.service = WebSocket(ours, Door(PATH, (), anonymous=True))
        self.service.must_read = self._note
        self.again = False
        self.theirs.sendall(request())
        assert self.read() == b""
        assert self.theirs.recv(4096).startswith(b"HTTP/1.1 101 ")

    def _note(self) -> None:
        self.again = True

    def read(self) -> bytes:
        buffer = bytearray(_ROOM)
        self.again = False
        try:
            size = self.service.recv_into(buffer, _ROOM)
        except BlockingIOError:
            return b""
        return bytes(buffer[:size])

    @property
    def waiting(self) -> int:
        """Octets in the socket."""
        return len(socket.socket.recv(self.service, 1 << 21, socket.MSG_PEEK))


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.service.close()
    pair.theirs.close()


def test_frames_of_an_octet_come_in_many_reads(pair: Pair) -> None:
    octets = bytes(number & 0xFF for number in range(1000))
    pair.theirs.sendall(b"".join(frame(BINARY, octets[at : at + 1]) for at in range(len(octets))))
    reads = [pair.read()]
    while pair.again:
        reads.append(pair.read())
    assert b"".join(reads) == octets
    assert max(map(len, reads)) <= _MOST_FRAMES


@pytest.mark.parametrize("empty", [frame(BINARY), frame(PING), frame(PONG), frame(BINARY) + frame(PING, b"x")])
def test_frames_without_an_octet_do_not_hold_up_others(pair: Pair, empty: bytes) -> None:
    pair.theirs.sendall(empty * 1000 + frame(BINARY, b"last"))
    reads = 1
    while not (octets := pair.read()):
        assert pair.again
        reads += 1
    assert octets == b"last"
    assert reads > 1000 // _MOST_FRAMES


def test_what_is_left_for_later_reads_is_little(pair: Pair) -> None:
    pair.theirs.sendall(frame(BINARY, b"", last=False) + frame(CONTINUATION, b"", last=False) * 20_000)
    before = pair.waiting
    assert pair.read() == b""
    assert before - pair.waiting <= _MOST_OCTETS


def test_what_is_left_comes_before_the_end(pair: Pair) -> None:
    pair.theirs.sendall(frame(BINARY, b"x") * 100)
    pair.theirs.shutdown(socket.SHUT_WR)
    octets = pair.read()
    while len(octets) < 100:
        assert pair.again
        octets += pair.read()
    assert octets == b"x" * 100
