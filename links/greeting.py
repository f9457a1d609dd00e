"""The greeting exchanges protocol headers, and runs a SASL layer if the client wants one, or must have one (rules P1,
P14, S1; part 2, section 2.2; part 5, section 5.3).

The SASL layer is ours, not Proton's. Proton 0.40 accepts frames of both types at any time: a ``sasl-response`` before
the exchange crashes the process in Cyrus, and an ``open`` is accepted before the client has authenticated. A transport
without Proton's SASL refuses every SASL frame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from coordinator.login.logins import ANONYMOUS, OAUTHBEARER, XOAUTH2
from coordinator.login.password import REFUSED, Challenge, Exchange, Outcome, Reply
from store.codec.encoding import DecodeError, decode, encode_binary, encode_list, encode_symbol
from store.codec.values import Described, Symbol

HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
#: the begin of TLS: a handshake record, or AMQP's protocol id for it (part 5, section 5.2.1)
_TLS = (b"\x16\x03", b"AMQP\x02")

#: the largest SASL frame (part 5, section 5.3.1); and with a token, which no mechanism divides: how many there are in
#: memory is bounded by ``connections_unopened``
_LARGEST_FRAME = 512
_LARGEST_WITH_TOKEN = 16 * 1024
_SASL = 1
_MECHANISMS, _CHALLENGE, _OUTCOME = 0x40, 0x42, 0x44
_INIT = (0x41, "amqp:sasl-init:list")
_RESPONSE = (0x43, "amqp:sasl-response:list")
_BY_TOKEN = frozenset((OAUTHBEARER, XOAUTH2))


class Greeting:
    """Handles the first octets of a connection. ``done``: all further octets are for the engine. ``failed``: the
    connection must be closed. ``waiting``: an answer is on its way, and until then no octets are accepted.
    """

    __slots__ = (
        "_answer", "_begin", "_exchange", "_expects", "_largest", "_mechanisms", "_octets", "_offered", "_proceed",
        "_taking", "done", "failed", "user", "waiting",
    )  # fmt: skip

    def __init__(
        self, offered: Callable[[], Sequence[str]], begin: Callable[[str, Reply], Exchange], proceed: Callable[[], None]
    ) -> None:
        """``offered``: the mechanisms, the best first. ``begin`` creates the exchange of one of them. ``proceed`` is
        called when an answer that :meth:`take` had to wait for is available: call it with no octets, to get it.
        """
        self._offered = offered
        self._mechanisms: Sequence[str] = ()
        self._largest = _LARGEST_FRAME
        self._begin = begin
        self._proceed = proceed
        self._octets = b""
        self._answer = b""
        self._expects = self._first_header
        self._taking = False
        self._exchange: Exchange | None = None
        self.done = False
        self.failed = False
        self.waiting = False
        #: the user of the login; None: the client has none
        self.user: str | None = None

    def take(self, octets: bytes) -> bytes:
        """Handle the next octets of the peer; return the answer. :attr:`rest` then has the octets for the engine."""
        self._octets += octets
        self._taking = True
        while not self.done and not self.failed and not self.waiting and self._expects():
            pass
        self._taking = False
        answer, self._answer = self._answer, b""
        return answer

    @property
    def rest(self) -> bytes:
        return self._octets if self.done else b""

    def _fail(self, answer: bytes) -> bool:
        self._answer += answer
        self.failed = True
        return True

    # Each of these handles the octets expected next, and returns False while they are incomplete.

    def _first_header(self) -> bool:
        octets = self._octets
        self._mechanisms = self._offered()
        if octets.startswith(_TLS):  # Proton would give no answer
            return self._fail(HEADER)
        if octets.startswith(SASL_HEADER):
            self._octets = octets[8:]
            self._expects = self._init
            if not _BY_TOKEN.isdisjoint(self._mechanisms):
                self._largest = _LARGEST_WITH_TOKEN
            names = b"".join(encode_symbol(each)[1:] for each in self._mechanisms)
            count = len(self._mechanisms)
            array = struct.pack(">BBBB", 0xE0, len(names) + 2, count, 0xA3) + names
            self._answer += SASL_HEADER + _frame(_MECHANISMS, array)
            return True
        if any(header.startswith(octets) for header in (SASL_HEADER, *_TLS)):
            return False
        if octets.startswith(SASL_HEADER[:5]):  # another version
            return self._fail(SASL_HEADER)
        if ANONYMOUS not in self._mechanisms:  # part 5, section 5.3.2: the client must authenticate
            return False if HEADER.startswith(octets) and octets != HEADER else self._fail(SASL_HEADER)
        self.done = True  # AMQP's header; Proton answers any other with its own
        return True

    def _init(self) -> bool:
        fields = self._fields(_INIT)
        if fields is None:
            return False
        mechanism, response = fields[0], fields[1] if len(fields) > 1 else None
        if not isinstance(mechanism, Symbol) or not isinstance(response, bytes | None):
            return self._fail(b"")
        if mechanism not in _BY_TOKEN:
            self._largest = _LARGEST_FRAME
        if mechanism not in self._mechanisms or len(response or b"") > self._largest:
            return self._fail(_outcome(REFUSED))
        self._exchange = self._begin(mechanism, self._reply)
        return self._respond(self._exchange, response)

    def _response(self) -> bool:
        fields = self._fields(_RESPONSE)
        if fields is None:
            return False
        response = fields[0]
        if not isinstance(response, bytes):
            return self._fail(b"")
        assert self._exchange is not None
        return self._respond(self._exchange, response)

    def _respond(self, exchange: Exchange, response: bytes | None) -> bool:
        self.waiting = True
        exchange.take(response)
        return True

    def _reply(self, said: Challenge | Outcome) -> None:
        """Handle the exchange's answer, at once or later."""
        self.waiting = False
        if isinstance(said, Challenge):
            self._answer += _frame(_CHALLENGE, encode_binary(said.octets))
            self._expects = self._response
        else:
            self._answer += _outcome(said)
            self._expects = self._second_header
            self.failed = bool(said.code)
            self.user = said.user
        if not self._taking:
            self._proceed()

    def _second_header(self) -> bool:
        octets = self._octets
        if octets.startswith(HEADER):
            self.done = True
            return True
        return False if HEADER.startswith(octets) else self._fail(HEADER)

    def _fields(self, wanted: tuple[int, str]) -> list[object] | None:
        """Return the fields of the next frame, a ``wanted`` one; None: it is incomplete, or the greeting has failed."""
        octets = self._octets
        if len(octets) < 8:
            return None
        size = int.from_bytes(octets[:4], "big")
        start = 4 * octets[4]
        if not 8 <= start <= size or octets[5] != _SASL:
            self._fail(b"")
            return None
        if size > self._largest:  # no user has such a name, password or token: answered before it is decoded
            self._fail(_outcome(REFUSED))
            return None
        if len(octets) < size:
            return None
        self._octets = octets[size:]
        fields = _read(octets[start:size], wanted)
        if fields is None:
            self._fail(b"")
        return fields


def _read(body: bytes, wanted: tuple[int, str]) -> list[object] | None:
    """Return the fields of a performative; None if the octets are something else."""
    try:
        found, end = decode(body)
    except DecodeError:
        return None
    if end != len(body) or not isinstance(found, Described) or found.descriptor not in wanted:
        return None
    fields = found.value
    return fields if type(fields) is list and fields else None


def _frame(performative: int, *fields: bytes) -> bytes:
    body = struct.pack(">BBB", 0x00, 0x53, performative) + encode_list(list(fields))
    return struct.pack(">IBBH", 8 + len(body), 2, _SASL, 0) + body


def _outcome(said: Outcome) -> bytes:
    fields = [struct.pack(">BB", 0x50, said.code)]
    if said.data is not None:
        fields.append(encode_binary(said.data))
    return _frame(_OUTCOME, *fields)
