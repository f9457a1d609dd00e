"""The decoders by themselves: what a peer sends is decoded or refused, in time that its size accounts for.

Beside the messages and values of the grammar, and those broken, some large ones are made whose parts are as many and as
small as can be: what costs more than its octets shows there.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random

from coordinator.address.dead_letters import letter
from coordinator.codec import filters, selectors
from coordinator.errors import Refusal
from coordinator.login.password import Anonymous
from links import outgoing, states
from links.greeting import SASL_HEADER, Greeting
from spark import messages
from store.codec import encoding, message
from store.codec.encoding import DecodeError
from tests.fuzz.grammar import SELECTORS, Grammar
from tests.wire import types
from tests.wire.frames import SaslInit, frame

_PICKS = [messages.selector(source) for source in ("message-id", "property:a", "body:$", "body:$.a", "body:$[0][1].a")]
#: What the tags of the store begin with.
_TAGS = b"store:"
#: Seconds of processor time for one input.
MOST_SECONDS = 1.0
_WORDS = (*"()=<>+-*/',\" \n", "a", "JMSType", "JMSPriority", "amqp.to", "AND", "OR", "NOT", "BETWEEN", "IN", "LIKE",
          "ESCAPE", "IS", "NULL", "TRUE", "'x'", "'%_%'", "1", "0x7f", "1.5e3", "\0", "\u0663", "'\\'")  # fmt: skip


class Broken(AssertionError):
    """A decoder raised what it must not, or took too long. ``octets``: what it was given."""

    def __init__(self, what: str, octets: bytes) -> None:
        shown = octets if len(octets) <= 400 else octets[:200] + b"..." + octets[-100:]
        super().__init__(f"{what}: {len(octets)} octets: {shown!r}")
        self.octets = octets


class Decoders:
    """``play(count)`` gives that many inputs to each decoder that they are for."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._grammar = Grammar(random)
        #: seconds of the slowest
        self.worst = 0.0
        self._checks: tuple[tuple[Callable[[], bytes], Callable[[bytes], None]], ...] = (
            (self._grammar.message, self._message),
            (self._grammar.message, self._message),
            (self._value, self._decode),
            (self._grammar.control_message, self._message),
            (self._state, self._read_state),
            (lambda: types.encode(self._grammar.filter()), self._filter),
            (self._selector, self._select),
            (self._sql, self._read_sql),
            (self._unsettled, self._recover),
            (self._grammar.message, self._pick),
            (self._greeting, self._greet),
        )

    def play(self, count: int) -> None:
        random = self._random
        for number in range(count):
            make, check = random.choice(self._checks)
            octets = make()
            if random.random() < 0.5:
                octets = self._broken(octets)
            if number % 500 == 499:
                octets, check = self._large(1 << random.choice((14, 18))), self._message
            elif number % 500 == 249:  # of these the largest frame is the most
                octets, check = self._large(1 << 13), random.choice((self._decode, self._read_state, self._filter))
            start = time.thread_time()
            try:
                check(octets)
            except Broken:
                raise
            except Exception as error:
                raise Broken(f"{check.__name__}: {error!r}", octets) from error
            took = time.thread_time() - start
            self.worst = max(self.worst, took)
            if took > MOST_SECONDS:
                raise Broken(f"{check.__name__} took {took:.1f} s", octets)

    # -- inputs

    def _value(self) -> bytes:
        return types.encode(self._grammar.any(4), large=self._random.random() < 0.2)

    def _state(self) -> bytes:
        return types.encode([self._grammar.txn_id(), _described(self._grammar.outcome())])

    def _selector(self) -> bytes:
        random = self._random
        if random.random() < 0.3:
            return str(random.choice(SELECTORS)).encode()
        return " ".join(random.choice(_WORDS) for _ in range(random.choice((1, 3, 7, 15)))).encode()

    def _sql(self) -> bytes:
        random = self._random
        if random.random() < 0.9:
            return types.encode(self._selector().decode())
        unit = random.choice(("[", "]", "[[", "[a", "'", "''", '"', "(", "a.", "a-", "0x", "a (", "!="))
        return types.encode(random.choice(("", "'", "a = 1 ")) + unit * (8000 // len(unit)))

    def _unsettled(self) -> bytes:
        random, grammar = self._random, self._grammar
        tags = {random.choice((_TAGS, b"")) + b"%d" % random.randrange(99) for _ in range(random.choice((1, 3, 900)))}
        states = [_described(grammar.outcome()), grammar.any(1), None]
        return types.encode({tag: random.choice(states) for tag in tags})

    def _greeting(self) -> bytes:
        init = self._grammar.record(SaslInit, mechanism=self._random.choice(("ANONYMOUS", "PLAIN", "")))
        return SASL_HEADER + frame(init, kind=1) + b"AMQP\x00\x01\x00\x00more"

    def _broken(self, octets: bytes) -> bytes:
        random = self._random
        changed = bytearray(octets)
        for _ in range(random.choice((1, 1, 2, 5))):
            if changed:
                changed[random.randrange(len(changed))] = random.choice((random.randrange(256), 0xFF, 0x00, 0xF0, 0xD1))
        return bytes(changed[: random.randrange(len(changed) + 1)] if random.random() < 0.3 else changed)

    def _large(self, count: int) -> bytes:
        """``count`` of the smallest parts or some fewer, by themselves or in a section."""
        random = self._random
        value = random.choice(
            (
                lambda: struct.pack(">BII", 0xD0, count + 4, count) + b"\x40" * count,
                lambda: struct.pack(">BII", 0xD1, count + 4, count) + b"\x40" * count,
                lambda: struct.pack(">BII", 0xD1, 3 * count + 4, 2 * count) + b"\xa3\x00\x40" * count,
                lambda: struct.pack(">BIIB", 0xF0, count + 5, count, 0x50) + b"\x00" * count,
                lambda: struct.pack(">BIIB", 0xF0, 6, 0xFFFFFFFF, 0x40) + b"\x40",
                lambda: struct.pack(">BIIB", 0xF0, 2 * count + 5, count, 0xC0) + b"\x01\x00" * count,
                lambda: struct.pack(">BII", 0xD0, 4 * count + 4, count) + b"\xe0\x02\xff\x40" * count,
                lambda: b"\x00" * count,
                lambda: b"\x00\x53\x75\xa0\x00" * count,
                lambda: struct.pack(">BIIB", 0xF0, count, 1, 0xF0) * (count // 16),
                lambda: b"\xd0\x00\x00\x00\x09\x00\x00\x00\x01" * (count // 16),
            )
        )()
        section = random.choice(
            (b"", b"\x00\x53\x70", b"\x00\x53\x73", b"\x00\x53\x72", b"\x00\x53\x74", b"\x00\x53\x77")
        )
        return section + value

    # -- decoders

    def _decode(self, octets: bytes) -> None:
        for read in (encoding.decode, lambda given: encoding.scalar(given, 0)):
            with suppress(DecodeError):
                _, end = read(octets)
                assert 0 < end <= len(octets)
        with suppress(DecodeError):
            assert 0 < encoding.skip(octets, 0) <= len(octets)
        with suppress(DecodeError):
            encoding.pairs(octets, 0)

    def _message(self, octets: bytes) -> None:
        """What is taken is delivered, chosen by selectors, and buried, whatever is in it."""
        try:
            message.examine(octets)
        except DecodeError:
            return
        random = self._random
        annotations = encoding.encode_map([encoding.encode_symbol("x-opt-a") + encoding.encode_uint(1)])
        for attempts, left, added in ((0, None, b""), (random.randrange(1, 40_000), 5, annotations)):
            message.sections(message.outgoing(octets, attempts, left, added, acquired=random.random() < 0.5))
        prefix, start = letter(octets, annotations, [])
        message.sections(prefix + octets[start:])
        with suppress(DecodeError):
            message.to_of(octets)
        for selector in _SELECTING:
            assert selector.matches(octets, 1) in (True, False)

    def _read_state(self, octets: bytes) -> None:
        with suppress(DecodeError):
            _, outcome = states._fields(octets)
            if outcome is not None and outcome.annotations:
                message.merge_maps(outcome.annotations, outcome.annotations)

    def _read_sql(self, octets: bytes) -> None:
        with suppress(Refusal, DecodeError):
            filters.of_sql(octets)

    def _recover(self, octets: bytes) -> None:
        with suppress(DecodeError):
            found = states.recovered(octets, _TAGS)
            assert all(entry >= 0 and outcome is not None for entry, outcome in found.items())

    def _filter(self, octets: bytes) -> None:
        with suppress(Refusal, DecodeError):
            encoding.decode(outgoing.known(octets).answer() or b"\x40")

    def _pick(self, octets: bytes) -> None:
        """As a book's key is."""
        for pick in _PICKS:
            with suppress(DecodeError):
                pick(messages.Message(octets))

    def _select(self, octets: bytes) -> None:
        with suppress(Refusal):
            chosen = selectors.Selector(octets.decode("utf-8", "replace"))
            assert chosen.matches(self._grammar.message(), 1) in (True, False)

    def _greet(self, octets: bytes) -> None:
        greeting = Greeting(lambda: ["ANONYMOUS"], lambda _, say: Anonymous(say), lambda: None)
        at = 0
        while at < len(octets) and not greeting.done and not greeting.failed:
            size = self._random.choice((1, 3, len(octets)))
            greeting.take(octets[at : at + size])
            at += size


def _described(found: object) -> object:
    described = getattr(found, "described", None)
    return found if described is None else described()


_SELECTING = tuple(
    selectors.Selector(text)
    for text in (
        "JMSMessageID = 'ID:x' OR JMSCorrelationID = 'y' OR JMSType LIKE '%x%'",
        "JMSPriority + JMSTimestamp * JMSXGroupSeq - amqp.ttl / amqp.delivery_count > 3",
        "a = 1 OR \"amqp:accepted:list\" = 'x' OR JMSXUserID = 'u' OR JMSDeliveryMode = 'PERSISTENT'",
        "amqp.message_id IS NULL OR amqp.correlation_id = 7 OR amqp.content_type = 'z'",
    )
)
