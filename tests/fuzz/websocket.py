"""WebSockets under fuzzing: requests that no client sends, and frames around those of AMQP that are wrong or odd."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random

from tests.fuzz.cases import Case
from tests.wire.websocket import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, frame, request

#: What is changed: the request, or frames behind a right one; "inside": nothing, and fuzzed frames of AMQP are in
#: messages, and fragments, of any size.
STAGES = ("request", "frames", "inside")

_END = b"\r\n\r\n"
#: what a frame may say that it has
_SIZES = (0, 1, 125, 126, 127, 0xFFFF, 0x10000, 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)

# The request.

_LINES = (
    b"Content-Length: 5", b"Content-Length: 0", b"Content-Length: -1", b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: identity, chunked", b"Host: elsewhere", b"Host:", b"Origin: http://elsewhere",
    b"Origin: null", b"Origin:", b"Connection: close", b"Connection: keep-alive, Upgrade", b"Upgrade: h2c",
    b"Upgrade: websocket, h2c", b"Sec-WebSocket-Key: x", b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    b"Sec-WebSocket-Version: 8, 13", b"Sec-WebSocket-Version: 12", b"Sec-WebSocket-Protocol: mqtt",
    b"Sec-WebSocket-Protocol: ,,amqp,,", b"Sec-WebSocket-Protocol: amqp;q=1", b"Sec-WebSocket-Protocol: \xff",
    b"Sec-WebSocket-Extensions: permessage-deflate", b"Sec-WebSocket-Extensions: ,;=\"", b"Expect: 100-continue",
    b" folded", b"no colon", b": no name", b"A\x00B: c", b"A: \x00\r", b"A : b", b"A:" + b"b" * 4000,
    b"A: b\r\n" * 120 + b"A: b", b"\xe2\x82\xac: b",
)  # fmt: skip
_FIRST = (
    b"GET / HTTP/1.1", b"GET /amqp HTTP/1.0", b"GET /amqp HTTP/2.0", b"GET /amqp", b"GET  /amqp HTTP/1.1",
    b"GET http://127.0.0.1/amqp HTTP/1.1", b"GET /amqp?" + b"x" * 3000 + b" HTTP/1.1", b"GET /amqp#x HTTP/1.1",
    b"GET /%61mqp HTTP/1.1", b"GET \xff HTTP/1.1", b"POST /amqp HTTP/1.1", b"get /amqp HTTP/1.1", b"GET * HTTP/1.1",
    b"PRI * HTTP/2.0", b"\x16\x03\x01\x02\x00", b"AMQP\x00\x01\x00\x00", b"",
)  # fmt: skip


def _another_first(random: Random, lines: list[bytes]) -> bytes:
    return b"\r\n".join([random.choice(_FIRST), *lines[1:]]) + _END


def _another_line(random: Random, lines: list[bytes]) -> bytes:
    """Beside the right ones or instead of one; sometimes many."""
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        at = random.randrange(1, len(lines) + 1)
        lines[at : at + random.randrange(2)] = [random.choice(_LINES)]
    return b"\r\n".join(lines) + _END


def _line_left_out(random: Random, lines: list[bytes]) -> bytes:
    del lines[random.randrange(len(lines))]
    return b"\r\n".join(lines) + _END


def _lines_repeated(random: Random, lines: list[bytes]) -> bytes:
    at = random.randrange(len(lines))
    lines[at : at + 1] = [lines[at]] * random.choice((2, 2, 50, 300))
    return b"\r\n".join(lines) + _END


def _other_ends(random: Random, lines: list[bytes]) -> bytes:
    return random.choice((b"\n", b"\r", b"\n\r", b"\r\r\n", b"\r\n ")).join(lines) + random.choice((_END, b"\n\n"))


def _flipped_octets(random: Random, lines: list[bytes]) -> bytes:
    return _flip(random, b"\r\n".join(lines) + _END)


def _cut_request(random: Random, lines: list[bytes]) -> bytes:
    octets = b"\r\n".join(lines) + _END
    return octets[: random.randrange(len(octets))]


def _something_behind(random: Random, lines: list[bytes]) -> bytes:
    """As a proxy would take for another request, or in the same packet."""
    octets = b"\r\n".join(lines) + _END
    return octets + random.choice((octets, b"GET / HTTP/1.1\r\n\r\n", b"".join(_odd(random, 3)), random.randbytes(300)))


_CHANGED_REQUESTS: tuple[Callable[[Random, list[bytes]], bytes], ...] = (
    _another_first, _another_line, _another_line, _another_line, _line_left_out, _lines_repeated, _other_ends,
    _flipped_octets, _cut_request, _something_behind,
)  # fmt: skip


# The frames.


def _flip(random: Random, octets: bytes) -> bytes:
    changed = bytearray(octets)
    for _ in range(random.choice((1, 1, 2, 8))):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _odd(random: Random, count: int) -> list[bytes]:
    """Such as a peer may send at some time, or never, each alone."""
    found = []
    for _ in range(count):
        opcode = random.choice((CONTINUATION, TEXT, BINARY, CLOSE, CLOSE, PING, PING, PONG, 3, 7, 11, 15))
        size = random.choice((0, 0, 1, 2, 3, 124, 125, 126, 127, 1000, 70_000))
        payload = random.choice((bytes(size), random.randbytes(size), b"x" * size))
        if opcode == CLOSE and random.random() < 0.7:
            code = random.choice((0, 999, 1000, 1001, 1004, 1005, 1006, 1015, 2999, 3000, 4999, 5000, 65535))
            payload = code.to_bytes(2, "big") + payload[: random.choice((0, 1, 123, 124))]
        found.append(frame(opcode, payload, last=random.random() < 0.8, mask=_mask(random)))
    return found


def _mask(random: Random) -> bytes | None:
    return random.choice((b"\0\0\0\0", b"\xff" * 4, random.randbytes(4), random.randbytes(4), None))


def _right(random: Random, payload: bytes) -> bytes:
    return frame(BINARY, payload, mask=random.randbytes(4))


def _flipped(random: Random, payload: bytes) -> list[bytes]:
    return [_flip(random, _right(random, payload))]


def _headed(random: Random, payload: bytes) -> list[bytes]:
    return [bytes((random.randrange(256),)) + _right(random, payload)[1:]]


def _sized(random: Random, payload: bytes) -> list[bytes]:
    """It says another size, or says its own in more octets than it needs."""
    length, octets = random.choice(((126, 2), (127, 8)))
    size = random.choice((*_SIZES, len(payload), len(payload) - 1, len(payload) + 1)) % (1 << 8 * octets)
    return [bytes((0x80 | BINARY, 0x80 | length)) + size.to_bytes(octets, "big") + bytes(4) + payload]


def _without_mask(_random: Random, payload: bytes) -> list[bytes]:
    return [frame(BINARY, payload, mask=None)]


def _cut(random: Random, payload: bytes) -> list[bytes]:
    octets = _right(random, payload)
    return [octets[: random.randrange(len(octets))]]


def _in_fragments(random: Random, payload: bytes) -> list[bytes]:
    """Right ones, some out of order."""
    size = max(random.choice((1, 3, 50, 1000)), len(payload) // 50)
    pieces = [payload[at : at + size] for at in range(0, len(payload), size)] or [b""]
    found = [frame(CONTINUATION, piece, last=False, mask=random.randbytes(4)) for piece in pieces[1:-1]]
    if len(pieces) > 1:
        found.append(frame(CONTINUATION, pieces[-1], mask=random.randbytes(4)))
    found.insert(0, frame(BINARY, pieces[0], last=len(pieces) == 1, mask=random.randbytes(4)))
    if random.random() < 0.3:
        random.shuffle(found)
    return found


def _beside(random: Random, payload: bytes) -> list[bytes]:
    return [*_odd(random, random.choice((1, 1, 2, 100))), _right(random, payload)]


def _among(random: Random, payload: bytes) -> list[bytes]:
    found = _in_fragments(random, payload)
    at = random.randrange(len(found))
    return [*found[:at], *_odd(random, 1), *found[at:]]


def _nonsense(random: Random, payload: bytes) -> list[bytes]:
    return [random.randbytes(len(payload) + 2)]


_CHANGES: tuple[Callable[[Random, bytes], list[bytes]], ...] = (
    _flipped, _flipped, _headed, _sized, _without_mask, _cut, _in_fragments, _beside, _beside, _among, _nonsense,
)  # fmt: skip


def in_websocket(random: Random, case: Case) -> Case:
    """The same with a WebSocket around it."""
    return case._replace(generator="websocket", stage=random.choice(STAGES), records=random.getrandbits(32))


class Layer:
    """Between a case and its socket. ``there``: the request was accepted; ``over``: nothing more comes of it."""

    def __init__(self, case: Case) -> None:
        assert case.records is not None
        self._random = Random(case.records)
        self._stage = case.stage
        self._asked = False
        self._heard = b""
        self.there = False
        self.over = False
        #: that went out
        self.records = 0

    def took(self, octets: bytes) -> tuple[bytes, bytes]:
        """From the socket: what the case gets of it, and what goes out for it."""
        self._heard += octets
        if not self._asked:
            self._asked = True
            self.records += 1
            return b"", self._request()
        if not self.there and not self.over and _END in self._heard:
            head, _, self._heard = self._heard.partition(_END)
            self.there = head.startswith(b"HTTP/1.1 101 ")
            self.over = not self.there
        return self._messages() if self.there else b"", b""

    def _request(self) -> bytes:
        octets = request()
        if self._stage != "request":
            return octets
        return self._random.choice(_CHANGED_REQUESTS)(self._random, octets.removesuffix(_END).split(b"\r\n"))

    def _messages(self) -> bytes:
        """What is in the service's frames, none of which has a mask, or 64 KiB."""
        came = b""
        while len(self._heard) >= 2:
            size, begin = self._heard[1], 2
            if size == 126:
                size, begin = int.from_bytes(self._heard[2:4], "big"), 4
            if len(self._heard) < begin + size:
                break
            opcode, payload = self._heard[0] & 0x0F, self._heard[begin : begin + size]
            self._heard = self._heard[begin + size :]
            came += payload if opcode == BINARY else b""
            self.over = self.over or opcode == CLOSE
        return came

    def out(self, octets: bytes) -> bytes:
        """What the case says, as it goes out."""
        random = self._random
        if self._stage == "frames" and random.random() < 0.5:
            found = random.choice(_CHANGES)(random, octets)
        elif self._stage == "inside" and random.random() < 0.5:
            edges = sorted({0, len(octets), *(random.randrange(len(octets) + 1) for _ in range(random.randrange(9)))})
            found = [_right(random, octets[start:end]) for start, end in pairwise(edges)]
        else:
            found = [_right(random, octets)]
        self.records += len(found)
        return b"".join(found)
