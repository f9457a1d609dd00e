"""TLS under fuzzing: records that no client sends, before, during and after the handshake.

Python's ``ssl`` makes the records of a client, and what is drawn from the case is done to them on their way to the
socket. The keys of two runs differ, so that a case that is replayed has the same done to other octets.
"""

from __future__ import annotations

import contextlib
import ssl
import struct
from collections.abc import Callable
from itertools import count, pairwise
from random import Random

from tests.fix_certificates import Authority, key_of
from tests.fuzz.cases import Case

#: Where records are changed: the first flight, the others of the handshake, those behind it; "inside": none, and
#: fuzzed frames are in records of any size.
STAGES = ("hello", "handshake", "records", "inside")

_HEADER = 5
_CHANGE_CIPHER, _ALERT, _HANDSHAKE, _FRAMES = 20, 21, 22, 23
_TYPES = (0, _CHANGE_CIPHER, _ALERT, _HANDSHAKE, _FRAMES, 24, 0x80, 255)
_VERSIONS = (0x0000, 0x0002, 0x0300, 0x0301, 0x0303, 0x0304, 0x7F1C, 0xFEFD, 0xFFFF)
_SIZES = (0, 1, 5, 0x3FFF, 0x4000, 0x4001, 0x4100, 0x4101, 0xFFFF)


def _record(kind: int, body: bytes, version: int = 0x0303) -> bytes:
    return struct.pack(">BHH", kind, version, len(body)) + body


#: such as a peer may send at some time, each alone
_ODD = (
    _record(_ALERT, b"\x01\x00"),
    _record(_ALERT, b"\x01\x5a"),
    _record(_ALERT, b"\x02\x28"),
    _record(_ALERT, b"\x01"),
    _record(_ALERT, b"\x01\x00" * 50),
    _record(_CHANGE_CIPHER, b"\x01"),
    _record(_CHANGE_CIPHER, b"\x02"),
    _record(_HANDSHAKE, b""),
    _record(_HANDSHAKE, b"\x00\x00\x00\x00"),
    _record(_HANDSHAKE, b"\x01\xff\xff\xff"),
    _record(_HANDSHAKE, b"\x18\x00\x00\x01\x01"),
    _record(_HANDSHAKE, b"\x0b\x00\x00\x03\x00\x00\x00"),
    _record(_HANDSHAKE, b"\x14\x00\x00\x0c" + bytes(12)),
    _record(_FRAMES, b""),
    _record(_FRAMES, b"AMQP\x00\x01\x00\x00"),
    _record(_FRAMES, bytes(0x4000)),
    _record(24, b"\x01\x40\x00"),  # a heartbeat that says it has more than it has
)


def _records(octets: bytes) -> list[bytes]:
    """Whole ones, as a client makes them."""
    found = []
    while octets:
        size = _HEADER + int.from_bytes(octets[3:5], "big")
        found.append(octets[:size])
        octets = octets[size:]
    return found


# What is done to one record of some.


def _flipped(random: Random, record: bytes) -> list[bytes]:
    octets = bytearray(record)
    for _ in range(random.choice((1, 1, 2, 8))):
        at = random.randrange(_HEADER, len(octets)) if len(octets) > _HEADER else 0
        octets[at] ^= 1 << random.randrange(8)
    return [bytes(octets)]


def _headed(random: Random, record: bytes) -> list[bytes]:
    if len(record) < _HEADER:  # cut before
        return [record]
    kind, version, size = struct.unpack(">BHH", record[:_HEADER])
    which = random.randrange(3)
    kind = random.choice(_TYPES) if which == 0 else kind
    version = random.choice(_VERSIONS) if which == 1 else version
    size = random.choice((*_SIZES, size - 1 & 0xFFFF, size + 1 & 0xFFFF)) if which == 2 else size
    return [struct.pack(">BHH", kind, version, size) + record[_HEADER:]]


def _cut(random: Random, record: bytes) -> list[bytes]:
    """Shorter; its size says so, or does not."""
    kept = record[: random.randrange(1, len(record) + 1)]
    if len(kept) > _HEADER and random.random() < 0.5:
        kept = kept[:3] + struct.pack(">H", len(kept) - _HEADER) + kept[_HEADER:]
    return [kept]


def _grown(random: Random, record: bytes) -> list[bytes]:
    body = record[_HEADER:]
    at = random.randrange(len(body) + 1)
    body = body[:at] + random.randbytes(random.choice((1, 2, 16, 1000))) + body[at:]
    return [record[:3] + struct.pack(">H", len(body)) + body]


def _split(random: Random, record: bytes) -> list[bytes]:
    """Of a handshake in plain text, that is as good as one."""
    body = record[_HEADER:]
    size = random.choice((1, 1, 7, 100))
    return [record[:3] + struct.pack(">H", len(piece)) + piece
            for piece in (body[at : at + size] for at in range(0, len(body), size))]  # fmt: skip


def _repeated(random: Random, record: bytes) -> list[bytes]:
    return [record] * random.choice((2, 2, 3, 50))


def _left_out(_random: Random, _record: bytes) -> list[bytes]:
    return []


def _beside(random: Random, record: bytes) -> list[bytes]:
    return [*[random.choice(_ODD)] * random.choice((1, 1, 1, 2, 100)), record]


def _behind(random: Random, record: bytes) -> list[bytes]:
    return [record, random.choice(_ODD)]


def _nonsense(random: Random, record: bytes) -> list[bytes]:
    return [random.randbytes(len(record))]


_CHANGES: tuple[Callable[[Random, bytes], list[bytes]], ...] = (
    _flipped, _flipped, _flipped, _headed, _headed, _cut, _grown, _split, _repeated, _left_out, _beside, _behind,
    _nonsense,
)  # fmt: skip


class Contexts:
    """Of clients of each version, with and without a certificate, which goes in plain text with TLS 1.2."""

    def __init__(self, ca: Authority) -> None:
        certificate = ca.sign("fuzz", "/CN=fuzz")
        self._contexts = []
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            for shown in (None, certificate):
                context = ssl.create_default_context(cafile=str(ca.certificate))
                context.minimum_version = context.maximum_version = version
                if shown is not None:
                    context.load_cert_chain(shown, key_of(shown))
                self._contexts.append(context)

    def drawn(self, random: Random) -> ssl.SSLContext:
        return random.choice(self._contexts)


def behind_tls(random: Random, case: Case) -> Case:
    """The same with TLS around it."""
    return case._replace(generator="tls", stage=random.choice(STAGES), records=random.getrandbits(32))


class Layer:
    """Between a case and its socket. ``there``: the handshake is done; ``over``: nothing more comes of it."""

    def __init__(self, case: Case, contexts: Contexts) -> None:
        self._random = Random(case.records)
        self._stage = case.stage
        self._coming, self._going = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = contexts.drawn(self._random)
        self._tls = context.wrap_bio(self._coming, self._going, server_hostname="127.0.0.1")
        self._flights = count()
        self.there = False
        self.over = False
        #: that went out
        self.records = 0

    def took(self, octets: bytes) -> tuple[bytes, bytes]:
        """From the socket: what the case gets of it, and what goes out for it."""
        self._coming.write(octets)
        came = b""
        try:
            if not self.there:
                self._tls.do_handshake()
                self.there = True
            while octets := self._tls.read(1 << 16):
                came += octets
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLError, OSError):
            self.over = True
        return came, self._flight()

    def _flight(self) -> bytes:
        octets = self._going.read()
        if not octets:
            return b""
        stage = "hello" if next(self._flights) == 0 else "handshake"
        return self._changed(_records(octets), changed=stage == self._stage)

    def out(self, octets: bytes) -> bytes:
        """What the case says, as it goes out."""
        random = self._random
        whole = self._stage != "inside" or random.random() < 0.5
        most = 1 << 14 if whole else random.choice((1, 7, 64, 1000))
        edges = [*range(0, len(octets), max(most, len(octets) // 50)), len(octets)]
        with contextlib.suppress(ssl.SSLError, OSError):  # it has said that it ends
            for start, end in pairwise(edges):
                self._tls.write(octets[start:end])
            if self._stage == "inside" and random.random() < 0.02:
                self._tls.unwrap()
        return self._changed(_records(self._going.read()), changed=self._stage == "records" and random.random() < 0.5)

    def _changed(self, found: list[bytes], *, changed: bool) -> bytes:
        random = self._random
        for _ in range(random.choice((1, 1, 2)) if changed else 0):
            if found:
                at = random.randrange(len(found))
                found[at : at + 1] = [record for record in random.choice(_CHANGES)(random, found[at]) if record]
        self.records += len(found)
        return b"".join(found)
