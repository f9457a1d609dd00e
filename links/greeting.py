"""The first octets of a connection: protocol headers, and a SASL layer where the client wants one (rules P1, P14; part
2, section 2.2; part 5, section 5.3).

The SASL layer is ours, not Proton's. Proton 0.40 accepts frames of both types at any time: a ``sasl-response`` before
the exchange crashes the process in Cyrus, and an ``open`` is accepted before the client has authenticated. A transport
without Proton's SASL refuses every SASL frame.
"""

from __future__ import annotations

from coordinator.codec.encoding import DecodeError, Described, Symbol, decode

HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
#: how TLS begins: a handshake record, or AMQP's protocol id for it (part 5, section 5.2.1)
_TLS = (b"\x16\x03", b"AMQP\x02")

#: the largest SASL frame (part 5, section 5.3.1)
_LARGEST_FRAME = 512
_SASL = 1
_INIT = (0x41, "amqp:sasl-init:list")
#: ``sasl-mechanisms`` with ANONYMOUS alone, and ``sasl-outcome`` ok and auth, as frames
_MECHANISMS = b"\x00\x00\x00\x1c\x02\x01\x00\x00\x00\x53\x40\xc0\x0f\x01\xe0\x0c\x01\xa3\x09ANONYMOUS"
_OK, _AUTH = (b"\x00\x00\x00\x10\x02\x01\x00\x00\x00\x53\x44\xc0\x03\x01\x50" + code for code in (b"\x00", b"\x01"))


class Greeting:
    """``done``: all further octets are for the engine. ``failed``: the connection is to be closed."""

    __slots__ = ("_expects", "_octets", "done", "failed")

    def __init__(self) -> None:
        self._octets = b""
        self._expects = self._first_header
        self.done = False
        self.failed = False

    def take(self, octets: bytes) -> bytes:
        """Take the next octets of the peer; return the answer. :attr:`rest` then has the octets for the engine."""
        self._octets += octets
        answer = b""
        while not self.done and not self.failed:
            said = self._expects()
            if said is None:
                break  # incomplete
            answer += said
        return answer

    @property
    def rest(self) -> bytes:
        return self._octets if self.done else b""

    def _fail(self, answer: bytes) -> bytes:
        self.failed = True
        return answer

    def _first_header(self) -> bytes | None:
        octets = self._octets
        if octets.startswith(_TLS):  # Proton would give no answer
            return self._fail(HEADER)
        if octets.startswith(SASL_HEADER):
            self._octets = octets[8:]
            self._expects = self._init
            return SASL_HEADER + _MECHANISMS
        if any(header.startswith(octets) for header in (SASL_HEADER, *_TLS)):
            return None
        if octets.startswith(SASL_HEADER[:5]):  # another version
            return self._fail(SASL_HEADER)
        self.done = True  # AMQP's header; Proton answers any other with its own
        return b""

    def _init(self) -> bytes | None:
        octets = self._octets
        if len(octets) < 8:
            return None
        size = int.from_bytes(octets[:4], "big")
        start = 4 * octets[4]
        if not 8 <= start <= size <= _LARGEST_FRAME or octets[5] != _SASL:
            return self._fail(b"")
        if len(octets) < size:
            return None
        mechanism = _mechanism(octets[start:size])
        if mechanism is None:
            return self._fail(b"")
        if mechanism != "ANONYMOUS":
            return self._fail(_AUTH)
        self._octets = octets[size:]
        self._expects = self._second_header
        return _OK

    def _second_header(self) -> bytes | None:
        octets = self._octets
        if octets.startswith(HEADER):
            self.done = True
            return b""
        return None if HEADER.startswith(octets) else self._fail(HEADER)


def _mechanism(body: bytes) -> str | None:
    """The mechanism that a ``sasl-init`` asks for; None if the octets are something else."""
    try:
        found, end = decode(body)
    except DecodeError:
        return None
    if end != len(body) or not isinstance(found, Described) or found.descriptor not in _INIT:
        return None
    fields = found.value
    if type(fields) is not list or not fields or not isinstance(fields[0], Symbol):
        return None
    return fields[0]
