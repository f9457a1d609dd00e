"""Cases made by a grammar: whole performatives of the test client's kit, their fields drawn from valid, edge and wrong
values, on sessions and links that are there and that are not.

Each case opens a connection in order up to its stage and goes on from there. Most of what it says is in its place, so
that it gets deep; a few fields in a hundred are of a wrong type, or a frame is no performative at all.
"""

from __future__ import annotations

import dataclasses
import struct
import uuid
from collections.abc import Callable
from random import Random
from typing import Any

from tests.fuzz.cases import Case, txn
from tests.wire import frames, messages, types
from tests.wire.frames import (
    AMQP_HEADER,
    RECEIVER,
    SASL,
    SASL_HEADER,
    SENDER,
    Accepted,
    Attach,
    Begin,
    Close,
    Coordinator,
    Declare,
    Declared,
    Detach,
    Discharge,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Open,
    Received,
    Record,
    Rejected,
    Released,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Source,
    Target,
    TransactionalState,
    Transfer,
    frame,
)
from tests.wire.types import (
    Array,
    Byte,
    Char,
    Decimal,
    Described,
    Double,
    Float,
    Int,
    Long,
    Raw,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

#: few of each, so that what they leave in a store is bounded
QUEUES = tuple(f"fuzz-{number}" for number in range(6))
TOPICS = tuple(f"fuzz-topic-{number}" for number in range(2))
_ODD_ADDRESSES = (
    "",
    "fuzz-0::",
    "fuzz-0::group",
    "::",
    "%DLQ%fuzz-0",
    "$management",
    "a\nb",
    "\u2028",
    "x" * 300,
    "\0",
)
#: of few containers: what has a name on them is taken from one connection to the next, or lasts
_CONTAINERS = tuple(f"fuzz-{number}" for number in range(5))
_LINKS = ("", "a", "b", "sub|1", "sub|2", "sub|global", "\0", "ü" * 40, "x" * 2000)

_UINTS = (0, 1, 2, 3, 4, 5, 10, 255, 256, 1000, 65535, 65536, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)
_ULONGS = (*_UINTS, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_LONGS = (0, 1, -1, 127, -128, 128, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63), 1_760_000_000_000)
_TEXTS = ("", "a", "fuzz-0", "äöü", "\0", "a\nb", "\U0001f600", "x" * 255, "y" * 256, "%s%n", "'; --", "ID:AMQP_UUID:x")
_SYMBOLS = ("", "a", "amqp:accepted:list", "amqp:rejected:list", "topic", "queue", "shared", "global", "never", "copy",
            "move", "link-detach", "session-end", "connection-close", "amqp:local-transactions", "x" * 256,
            "amqp:link:detach-forced", "sole-connection-for-container", "x-opt-not-a-thing")  # fmt: skip
_BINARIES = (b"", b"\0", b"tag", b"x" * 16, b"x" * 32, b"x" * 33, b"\xff" * 300)
_TAGS = _BINARIES[1:5]
SELECTORS = (
    "a = 1", "a = 'x' OR b < 2.5", "JMSPriority > 4 AND JMSType LIKE 'x%'", "NOT (a IS NULL)", "a IN ('x', 'y')",
    "a BETWEEN 1 AND 2", "JMSMessageID = 'ID:x'", "\"odd name\" = TRUE", "a / 0 = 1", "1e400 = a", "(" * 200, "a = ",
    "''''", "9" * 5000 + " = a", "a = 0x" + "f" * 400, " ", "\0", "a LIKE '%" + "_%" * 200 + "'", "- - - - a = 1",
    "JMSXGroupSeq * 9223372036854775807 * JMSTimestamp > 1e308", "amqp.ttl > 0", "JMSCorrelationID <> 'x'",
)  # fmt: skip


class Grammar:
    """``case()`` makes the next one."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._by_kind: dict[Any, Callable[[], Any]] = {
            bool: lambda: random.random() < 0.5,
            UByte: lambda: UByte(random.choice((0, 1, 2, 3, 4, 9, 127, 255))),
            UShort: lambda: UShort(random.choice((0, 1, 2, 3, 255, 1023, 1024, 65535))),
            UInt: lambda: UInt(self._edge(_UINTS, 32)),
            ULong: lambda: ULong(self._edge(_ULONGS, 64)),
            Timestamp: lambda: Timestamp(random.choice(_LONGS)),
            str: lambda: random.choice(_TEXTS),
            Symbol: lambda: Symbol(random.choice(_SYMBOLS)),
            bytes: lambda: random.choice(_BINARIES),
            dict: lambda: self.map(2),
            object: lambda: self.any(2),
            Error: lambda: Error(condition=random.choice(_SYMBOLS), description=random.choice(_TEXTS)),
            Source: self.source,
            Target: self.target,
            frames.State: self.state,
            (Target, Coordinator): lambda: self.target() if random.random() < 0.6 else self.coordinator(),
        }

    def case(self) -> Case:
        return _Conversation(self, self._random).case()

    # -- values

    def _edge(self, values: tuple[int, ...], bits: int) -> int:
        random = self._random
        return random.choice(values) if random.random() < 0.8 else random.getrandbits(random.randrange(1, bits + 1))

    def any(self, deep: int) -> Any:
        """A value of any type, ``deep`` levels at most."""
        random = self._random
        which = random.randrange(26 if deep > 0 else 20)
        if which < 14:
            return random.choice(_SCALARS)(self, random)
        if which < 20:
            return random.choice((None, None, True, False, "text", Symbol("symbol"), b"octets", Int(7)))
        if which == 20:
            return [self.any(deep - 1) for _ in range(random.choice((0, 1, 2, 5)))]
        if which in (21, 22):
            return self.map(deep)
        if which == 23:
            descriptor = random.choice((ULong(random.randrange(0x10, 0x80)), Symbol(random.choice(_SYMBOLS)), UInt(1)))
            return Described(descriptor, self.any(deep - 1))
        if which == 24:
            return self.array()
        return Raw(self.octets())

    def array(self) -> Array:
        random = self._random
        count = random.choice((0, 1, 3))
        return random.choice(
            (
                Array(0xA3, [Symbol(random.choice(_SYMBOLS[:9])) for _ in range(count)]),
                Array(0x70, [UInt(0)] * count),
                Array(0x41, [True] * count),
                Array(0x45, [[]] * count),
                Array(0xA1, ["x"] * count, Symbol("described")),
                Array(0xC0, [[None]] * count, ULong(0x24)),
                Array(0x80, [ULong(0)] * count),
            )
        )

    def octets(self) -> bytes:
        """What may be no value at all; one is announced that is larger than what follows, often."""
        random = self._random
        return random.choice(
            (
                lambda: random.randbytes(random.randrange(1, 12)),
                lambda: bytes((random.choice((0xA0, 0xA1, 0xA3, 0xC0, 0xC1, 0xE0)), random.randrange(256))),
                lambda: struct.pack(">BI", random.choice((0xB0, 0xB1, 0xD0, 0xD1, 0xF0)), self._edge(_UINTS, 32)),
                lambda: struct.pack(">BII", random.choice((0xD0, 0xD1, 0xF0)), 4, self._edge(_UINTS, 32)),
                lambda: b"\x00" * random.randrange(1, 60),
                lambda: b"\xa1\x02\xff\xfe",
                lambda: b"\xa3\x01\xe4",
                lambda: b"\x73\xff\xff\xff\xff",
                lambda: b"\x56" + bytes((random.randrange(256),)),
                lambda: b"\xc1\x04\x02\x45\x40\x40",
                lambda: b"\xc1\x03\x01\x41\x40",
                lambda: b"\xd0\x00\x00\x00\x08\x00\x00\x00\x01\xc0\x01\x00" * random.choice((1, 30)),
            )
        )()

    def map(self, deep: int) -> dict[Any, Any]:
        random = self._random
        found: dict[Any, Any] = {}
        for _ in range(random.choice((0, 1, 1, 2, 4))):
            key = random.choice(
                (Symbol(random.choice(_SYMBOLS)), random.choice(_TEXTS), ULong(5), None, b"key", True, Timestamp(1))
            )
            found[key] = self.any(deep - 1)
        return found

    # -- composite types

    def record(self, kind: type[Record], **given: Any) -> Any:
        """A record of ``kind``, its other fields drawn; as it goes out."""
        random = self._random
        values: dict[str, Any] = {}
        wrong = 0.05 if random.random() < 0.1 else 0.0
        for each in dataclasses.fields(kind):
            metadata = each.metadata
            if wrong and random.random() < wrong:
                values[each.name] = Raw(types.encode(self.any(2))) if random.random() < 0.7 else None
            elif each.name in given:
                values[each.name] = given[each.name]
            elif not metadata["mandatory"] and random.random() < 0.6:
                values[each.name] = None
            elif metadata["many"]:
                values[each.name] = tuple(random.choice(_SYMBOLS[:15]) for _ in range(random.choice((0, 1, 2))))
            else:
                values[each.name] = self._by_kind.get(metadata["kind"], lambda: None)()
        return kind(**values)

    def address(self) -> str | None:
        random = self._random
        place = random.random()
        if place < 0.8:
            return random.choice(QUEUES)
        if place < 0.9:
            return random.choice(TOPICS)
        return None if place < 0.93 else random.choice(_ODD_ADDRESSES)

    def source(self) -> Source:
        random = self._random
        topic = random.random() < 0.2
        capabilities = (
            random.choice((("topic",), ("topic", "shared"), ("topic", "shared", "global"))) if topic else None
        )
        found = self.record(
            Source,
            address=random.choice(TOPICS) if topic else self.address(),
            dynamic=random.random() < 0.05,
            filter=self.filter() if random.random() < 0.3 else None,
            distribution_mode="copy" if random.random() < 0.2 else None,
            capabilities=capabilities,
            dynamic_node_properties=self.map(1) if random.random() < 0.1 else None,
        )
        assert isinstance(found, Source)
        return found

    def filter(self) -> dict[Any, Any]:
        random = self._random
        found: dict[Any, Any] = {}
        if random.random() < 0.8:
            descriptor = random.choice((Symbol("apache.org:selector-filter:string"), ULong(0x0000_468C_0000_0004)))
            selector = random.choice(SELECTORS) if random.random() < 0.9 else self.any(1)
            found[Symbol("jms-selector")] = Described(descriptor, selector)
        if random.random() < 0.3:
            found[Symbol("no-local")] = Described(Symbol("apache.org:no-local-filter:list"), self.any(1))
        if random.random() < 0.2:
            found[random.choice((Symbol("x"), "text", UInt(3), None))] = self.any(2)
        return found

    def target(self) -> Target:
        random = self._random
        found = self.record(
            Target,
            address=self.address() if random.random() < 0.8 else None,
            dynamic=random.random() < 0.05,
            capabilities=("topic",) if random.random() < 0.1 else None,
        )
        assert isinstance(found, Target)
        return found

    def coordinator(self) -> Coordinator:
        return Coordinator(capabilities=("amqp:local-transactions",) if self._random.random() < 0.5 else None)

    def txn_id(self) -> bytes:
        random = self._random
        if random.random() < 0.9:
            return txn(random.choice((0, 0, 0, 1, 1, 2, 3)))
        return random.choice((b"", b"x", b"x" * 16, b"\0" * 16, b"y" * 300))

    def state(self) -> Any:
        random = self._random
        if random.random() < 0.4:
            outcome = self.outcome() if random.random() < 0.8 else None
            return self.record(TransactionalState, txn_id=self.txn_id(), outcome=outcome)
        return self.outcome()

    def outcome(self) -> Any:
        random = self._random
        which = random.randrange(12)
        if which < 4:
            return Accepted()
        if which < 6:
            return Released()
        if which < 8:
            return self.record(Rejected)
        if which < 11:
            annotations = self.map(2) if random.random() < 0.7 else self.any(2)
            return self.record(Modified, message_annotations=annotations, delivery_failed=random.random() < 0.5)
        return random.choice(
            (lambda: self.record(Received), lambda: Declared(txn_id=txn(0)), lambda: Described(ULong(0x99), []),
             lambda: self.any(2), lambda: Described(Symbol("amqp:modified:list"), [None, None, self.any(1)]))
        )()  # fmt: skip

    # -- messages

    def message(self) -> bytes:
        """Sections, mostly in their order and of their types."""
        random = self._random
        if random.random() < 0.15:
            return messages.data(random.randbytes(random.choice((0, 1, 16, 100, 2000))))
        found: list[bytes] = []
        if random.random() < 0.5:
            header = self.record(messages.Header, ttl=self._edge(_UINTS, 32) if random.random() < 0.2 else None)
            found.append(self._encoded(header))
        if random.random() < 0.3:
            found.append(self._section(messages.DELIVERY_ANNOTATIONS, self.map(2)))
        if random.random() < 0.4:
            annotations = self.map(2)
            if random.random() < 0.1:
                later = Symbol(random.choice(("x-opt-delivery-time", "x-opt-delivery-delay")))
                annotations[later] = random.choice((Long(random.choice(_LONGS)), ULong(1), self.any(1)))
            found.append(self._section(messages.MESSAGE_ANNOTATIONS, annotations))
        if random.random() < 0.6:
            properties = self.record(messages.Properties, to=self.address())
            found.append(self._encoded(properties))
        if random.random() < 0.5:
            found.append(self._section(messages.APPLICATION_PROPERTIES, self.map(1)))
        body = random.random()
        if body < 0.4:
            found += [messages.data(random.choice(_BINARIES)) for _ in range(random.choice((1, 1, 2)))]
        elif body < 0.6:
            found += [self._section(messages.SEQUENCE, [self.any(2)])]
        elif body < 0.95:
            found.append(self._section(messages.VALUE, self.any(3)))
        if random.random() < 0.1:
            found.append(self._section(messages.FOOTER, self.map(1)))
        if random.random() < 0.1 and found:
            random.shuffle(found)
        octets = b"".join(found)
        if random.random() < 0.15 and octets:
            changed = bytearray(octets)
            for _ in range(random.choice((1, 2, 3))):
                changed[random.randrange(len(changed))] = random.randrange(256)
            octets = bytes(changed[: random.choice((len(changed), len(changed), random.randrange(len(changed) + 1)))])
        return octets

    def _section(self, code: int, value: Any) -> bytes:
        random = self._random
        if random.random() < 0.03:
            value = self.any(2)
        return messages.section(code, value, large=random.random() < 0.1)

    def _encoded(self, record: Any) -> bytes:
        random = self._random
        return bytes(record.encoded(large=random.random() < 0.1, symbolic=random.random() < 0.1))

    def control_message(self) -> bytes:
        random = self._random
        place = random.random()
        if place < 0.35:
            body = Declare().described()
        elif place < 0.4:
            body = self.record(Declare).described()
        elif place < 0.9:
            fail = random.choice((True, False, None)) if random.random() < 0.95 else self.any(1)
            body = self.record(Discharge, txn_id=self.txn_id(), fail=fail).described(symbolic=random.random() < 0.1)
        else:
            body = self.any(3)
        octets = messages.section(messages.VALUE, body, large=random.random() < 0.1)
        if random.random() < 0.05:
            return self.message()
        if random.random() < 0.05:
            octets = octets[: random.randrange(len(octets))]
        return octets


_Scalar = Callable[[Grammar, Random], Any]
_SCALARS: tuple[_Scalar, ...] = (
    lambda g, r: UByte(r.choice((0, 1, 255))),
    lambda g, r: UShort(r.choice((0, 1, 65535))),
    lambda g, r: UInt(r.choice(_UINTS)),
    lambda g, r: ULong(r.choice(_ULONGS)),
    lambda g, r: Byte(r.choice((0, -1, -128, 127))),
    lambda g, r: Short(r.choice((0, -1, -32768))),
    lambda g, r: Int(r.choice((0, -1, -(1 << 31), (1 << 31) - 1))),
    lambda g, r: Long(r.choice(_LONGS)),
    lambda g, r: Timestamp(r.choice(_LONGS)),
    lambda g, r: Float(r.choice((0.0, -1.5, float("inf"), float("nan")))),
    lambda g, r: Double(r.choice((0.0, 1e308, float("-inf"), float("nan")))),
    lambda g, r: Char(r.choice((0, 65, 0xD800, 0x10FFFF, 0x110000, 0xFFFFFFFF))),
    lambda g, r: Decimal(bytes(r.choice((4, 8, 16)))),
    lambda g, r: uuid.UUID(int=r.getrandbits(128)),
    lambda g, r: r.choice(_TEXTS),
    lambda g, r: Symbol(r.choice(_SYMBOLS)),
    lambda g, r: r.choice(_BINARIES),
    lambda g, r: None,
    lambda g, r: r.random() < 0.5,
)


@dataclasses.dataclass
class _Link:
    handle: int
    role: bool
    control: bool = False


class _Session:
    def __init__(self) -> None:
        self.links: list[_Link] = []
        self.deliveries = 0
        self.sent = 0
        self.handles = 0
        #: (link, delivery id) of a delivery whose last frame has not gone out
        self.partial: tuple[_Link, int] | None = None


_WINDOW = 1 << 20
_DECLARE = messages.section(messages.VALUE, Declare().described())

#: stage: how its frames are drawn, as weights of :attr:`_Conversation._kinds`
STAGES: dict[str, dict[str, float]] = {
    "header": {"open": 1},
    "sasl": {"open": 1},
    "open": {"open": 6, "begin": 2, "nonsense": 1},
    "begin": {"begin": 8, "end": 6, "attach": 3, "flow": 2},
    "attach": {"attach": 12, "detach": 5, "flow": 2, "post": 1},
    "control": {"control": 16, "post": 3, "disposition": 2, "flow": 1, "detach": 0.3, "attach": 0.5},
    "transfer": {"post": 16, "control": 3, "flow": 1, "detach": 0.3},
    "message": {"post": 12, "disposition": 6, "flow": 3},
    "flow": {"flow": 16, "post": 4, "disposition": 2},
    "disposition": {"disposition": 16, "post": 6, "control": 3, "flow": 3},
    "detach": {"detach": 8, "attach": 8, "end": 2, "begin": 2, "close": 0.5, "post": 5, "control": 3},
}
#: mixed into every stage
_EVERYWHERE: dict[str, float] = {"nonsense": 0.06, "empty": 0.3, "wrong place": 0.04}


class _Conversation:
    """One case in the making: what was said so far, so that the next frame can be in its place."""

    def __init__(self, grammar: Grammar, random: Random) -> None:
        self._grammar = grammar
        self._random = random
        self._sessions: dict[int, _Session] = {}
        self._names = 0
        shared = random.random() < 0.1
        self._container = random.choice(_CONTAINERS) if shared else f"alone-{random.getrandbits(48):x}"
        #: subscriptions that last are made by the few containers alone, so that their number is bounded
        self._lasting = shared
        self._writes: list[bytes] = []
        self._frames: list[int] = []
        self._pending: list[bytes] = []
        self._headers = 0
        self._kinds: dict[str, Callable[[], bytes]] = {
            "open": lambda: frame(self._grammar.record(Open, container_id=random.choice(_CONTAINERS))),
            "begin": self._begin,
            "attach": self._attach,
            "control": self._control,
            "post": self._post,
            "flow": self._flow,
            "disposition": self._disposition,
            "detach": self._detach,
            "end": self._end,
            "close": lambda: frame(self._grammar.record(Close)),
            "nonsense": self._nonsense,
            "empty": lambda: frame(None),
            "wrong place": self._wrong_place,
        }

    def case(self) -> Case:
        random = self._random
        stage = random.choices(tuple(STAGES), weights=(1, 2, 3, 4, 12, 20, 16, 14, 8, 16, 10))[0]
        self._opening(stage)
        if stage not in ("header", "sasl", "open"):
            self._in_order(stage)
        weights = {**_EVERYWHERE, **STAGES[stage]}
        kinds, shares = tuple(weights), tuple(weights.values())
        left = random.choice((2, 10, 30, 60, 90))
        if stage in ("header", "sasl", "open"):
            left = random.choice((1, 3, 8))
        while left > 0:
            many = min(left, random.choice((1, 2, 4, 8, 16)))
            for kind in random.choices(kinds, shares, k=many):
                self._pending.append(self._kinds[kind]())
            self._write()
            left -= many
        return Case("grammar", stage, self._writes, self._frames, abrupt=random.random() < 0.1)

    def _write(self) -> None:
        if self._pending:
            self._writes.append(b"".join(self._pending))
            self._frames.append(len(self._pending) - self._headers)
            self._pending = []
            self._headers = 0

    def _header(self, octets: bytes) -> None:
        self._pending.append(octets)
        self._headers += 1

    def _opening(self, stage: str) -> None:
        random = self._random
        grammar = self._grammar
        if stage == "header":
            self._header(
                random.choice(
                    (AMQP_HEADER, SASL_HEADER, b"AMQP\x02\x01\x00\x00", b"AMQP\x00\x00\x09\x01", random.randbytes(8),
                     AMQP_HEADER[: random.randrange(8)], b"\x16\x03\x01" + random.randbytes(20), b"GET / HTTP/1.1\r\n")
                )
            )  # fmt: skip
        if stage == "sasl" or random.random() < 0.2:
            self._header(SASL_HEADER)
            if stage == "sasl":
                for _ in range(random.choice((1, 1, 2))):
                    kind = random.choice((SaslInit, SaslInit, SaslInit, SaslResponse, SaslMechanisms, SaslOutcome))
                    given = {"mechanism": random.choice(("ANONYMOUS", "PLAIN", "EXTERNAL", "", "x" * 300))}
                    body = grammar.record(kind, **(given if kind is SaslInit else {}))
                    self._pending.append(frame(body, kind=SASL, channel=random.choice((0, 0, 0, 1))))
                if random.random() < 0.3:
                    self._write()
            else:
                self._pending.append(frame(SaslInit(mechanism="ANONYMOUS", initial_response=b""), kind=SASL))
        self._header(AMQP_HEADER)
        if stage != "open":
            self._pending.append(frame(Open(container_id=self._container, max_frame_size=random.choice(
                (None, 512, 4096, 65536)))))  # fmt: skip

    def _in_order(self, stage: str) -> None:
        """A session, and the links that most of the stage's frames are for."""
        self._session_frame(0)
        if stage == "begin":
            self._write()
            return
        grammar = self._grammar
        random = self._random
        outcomes = ("amqp:accepted:list", "amqp:rejected:list", "amqp:released:list", "amqp:modified:list")
        queue = random.choice(QUEUES)
        self._link(SENDER, Source(outcomes=outcomes), Coordinator(), control=True)
        self._write()
        if stage == "control":
            control = self._sessions[0].links[0]
            self._pending += [self._sent(control, _DECLARE) for _ in range(random.choice((0, 1, 3)))]
        if stage in ("transfer", "message", "disposition", "flow", "control", "detach"):
            self._write()
            self._link(SENDER, Source(outcomes=outcomes), Target(address=queue))
            self._link(SENDER, Source(outcomes=outcomes), Target())
            source = Source(
                address=random.choice((queue, queue, random.choice(TOPICS), *QUEUES)),
                filter=grammar.filter() if random.random() < 0.2 else None,
                distribution_mode="copy" if random.random() < 0.1 else None,
            )
            self._link(RECEIVER, source, Target())
            handle = self._sessions[0].links[-1].handle
            self._pending.append(
                frame(Flow(next_incoming_id=0, incoming_window=_WINDOW, next_outgoing_id=0, outgoing_window=_WINDOW,
                           handle=handle, delivery_count=0, link_credit=random.choice((1, 10, 1000))))
            )  # fmt: skip
        if stage in ("transfer", "disposition", "message") and random.random() < 0.5:
            control = self._sessions[0].links[0]
            self._pending += [self._sent(control, _DECLARE)]
        self._write()
        self._writes += [b"", b""]  # until the attaches are answered
        self._frames += [0, 0]

    def _session_frame(self, channel: int) -> None:
        self._sessions[channel] = _Session()
        self._pending.append(
            frame(Begin(next_outgoing_id=0, incoming_window=_WINDOW, outgoing_window=_WINDOW), channel=channel)
        )

    def _link(self, role: bool, source: Any, target: Any, *, control: bool = False) -> None:
        session = self._sessions[0]
        random = self._random
        link = _Link(session.handles, role, control)
        session.handles += 1
        session.links.append(link)
        self._names += 1
        self._pending.append(
            frame(Attach(name=f"link-{self._names}", handle=link.handle, role=role, source=source, target=target,
                         initial_delivery_count=0 if role is SENDER else None,
                         snd_settle_mode=random.choice((None, 0, 1, 2)), rcv_settle_mode=random.choice((None, 0, 1))))
        )  # fmt: skip

    # -- frames in their place, mostly

    def _session(self) -> tuple[int, _Session]:
        random = self._random
        if self._sessions and random.random() < 0.997:
            channel = random.choice(tuple(self._sessions))
            return channel, self._sessions[channel]
        return random.choice((0, 1, 2, 1023, 1024, 65535)), _Session()

    def _begin(self) -> bytes:
        random = self._random
        free = [channel for channel in range(6) if channel not in self._sessions]
        channel = free[0] if free and random.random() < 0.99 else random.choice((0, 1, 1023, 1024, 65535))
        self._sessions.setdefault(channel, _Session())
        windows = {"incoming_window": _WINDOW, "outgoing_window": _WINDOW, "next_outgoing_id": random.choice(_UINTS)}
        given = windows if random.random() < 0.8 else {}
        return frame(self._grammar.record(Begin, remote_channel=None, **given), channel=channel)

    def _end(self) -> bytes:
        channel, _ = self._session()
        if self._random.random() < 0.9:
            self._sessions.pop(channel, None)
        return frame(self._grammar.record(End), channel=channel)

    def _attach(self) -> bytes:
        random = self._random
        channel, session = self._session()
        self._names += 1
        role = random.random() < 0.5
        control = role is SENDER and random.random() < 0.3
        link = _Link(session.handles, role, control)
        if random.random() < 0.99:
            session.handles += 1
        else:
            link.handle = random.choice((0, 1, 1023, 1024, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF))
        session.links.append(link)
        grammar = self._grammar
        given: dict[str, Any] = {
            "name": f"link-{self._names}" if random.random() < 0.9 else random.choice(_LINKS),
            "handle": link.handle,
            "role": role,
            "snd_settle_mode": random.choice((None, 0, 1, 2)),
            "rcv_settle_mode": random.choice((None, 0, 1)),
            "initial_delivery_count": 0 if random.random() < 0.9 else random.choice(_UINTS),
            "unsettled": None if random.random() < 0.9 else grammar.map(1),
            "source": grammar.source(),
            "properties": self._properties() if random.random() < 0.3 else None,
        }
        if not self._lasting and given["source"].expiry_policy == "never":
            given["source"] = dataclasses.replace(given["source"], expiry_policy=None)
        given["target"] = grammar.coordinator() if control else grammar.target()
        return frame(grammar.record(Attach, **given), channel=channel)

    def _properties(self) -> dict[Any, Any]:
        random = self._random
        found = self._grammar.map(2)
        if random.random() < 0.5:
            key = random.choice(("coordinator:timeout-ms", "coordinator:on-refused-post", "x-opt-timeout"))
            found[Symbol(key)] = self._grammar.any(1)
        return found

    def _detach(self) -> bytes:
        random = self._random
        channel, session = self._session()
        handle = random.choice((0, 1, 5, 0xFFFFFFFF))
        if session.links and random.random() < 0.99:
            link = random.choice(session.links)
            handle = link.handle
            session.links.remove(link)
        return frame(self._grammar.record(Detach, handle=handle, closed=random.random() < 0.7), channel=channel)

    def _sender(self, session: _Session, *, control: bool) -> _Link | None:
        random = self._random
        wanted = [link for link in session.links if link.role is SENDER and link.control is control]
        if wanted and random.random() < 0.997:
            return random.choice(wanted)
        return random.choice(session.links) if session.links else None

    def _control(self) -> bytes:
        channel, session = self._session()
        link = self._sender(session, control=True)
        if link is None:
            return self._attach()
        settled = True if self._random.random() < 0.02 else None
        return self._sent(link, self._grammar.control_message(), channel, settled=settled)

    def _sent(self, link: _Link, message: bytes, channel: int = 0, **given: Any) -> bytes:
        session = self._sessions.get(channel) or _Session()
        number = session.deliveries
        session.deliveries += 1
        body = Transfer(handle=link.handle, delivery_id=number, delivery_tag=b"%d" % number, message_format=0, **given)
        return frame(body, channel=channel, payload=message)

    def _post(self) -> bytes:
        random = self._random
        grammar = self._grammar
        channel, session = self._session()
        if session.partial is not None and random.random() < 0.9:
            return self._continued(channel, session)
        link = self._sender(session, control=False)
        if link is None:
            return self._attach()
        state = grammar.record(TransactionalState, txn_id=grammar.txn_id(), outcome=None)
        if random.random() < 0.4:
            state = grammar.state() if random.random() < 0.05 else None
        more = random.random() < 0.1
        number = session.deliveries
        if random.random() < 0.997:
            session.deliveries += 1
        else:
            number = random.choice(_UINTS)
        if more:
            session.partial = (link, number)
        body = grammar.record(
            Transfer, handle=link.handle, delivery_id=number, delivery_tag=random.choice((b"%d" % number, *_TAGS)),
            settled=random.choice((None, False, True)), more=more, state=state, resume=None, aborted=None,
        )  # fmt: skip
        message = grammar.message()
        if more:
            message = message[: random.randrange(len(message) + 1)]
        return frame(body, channel=channel, payload=message)

    def _continued(self, channel: int, session: _Session) -> bytes:
        random = self._random
        assert session.partial is not None
        link, number = session.partial
        more = random.random() < 0.4
        if not more:
            session.partial = None
        body = self._grammar.record(
            Transfer, handle=link.handle, delivery_id=random.choice((None, number)), delivery_tag=None, state=None,
            settled=random.choice((None, None, True)), more=more, aborted=random.random() < 0.2, resume=None,
        )  # fmt: skip
        return frame(body, channel=channel, payload=random.choice((b"", random.randbytes(30), self._grammar.message())))

    def _flow(self) -> bytes:
        random = self._random
        channel, session = self._session()
        handle = None
        if session.links and random.random() < 0.85:
            handle = random.choice(session.links).handle
        elif random.random() < 0.02:
            handle = random.choice(_UINTS)
        given: dict[str, Any] = {"handle": handle}
        if random.random() < 0.8:
            given.update(next_incoming_id=0, incoming_window=_WINDOW, next_outgoing_id=session.deliveries,
                         outgoing_window=_WINDOW)  # fmt: skip
        if handle is not None:
            given.update(delivery_count=random.choice((0, 0, 1, 5, *_UINTS)),
                         link_credit=random.choice((0, 1, 10, 1000, *_UINTS)), drain=random.random() < 0.3)  # fmt: skip
        return frame(self._grammar.record(Flow, **given), channel=channel)

    def _disposition(self) -> bytes:
        random = self._random
        channel, _ = self._session()
        first = random.choice((0, 0, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, *_UINTS))
        body = self._grammar.record(
            Disposition,
            role=RECEIVER if random.random() < 0.9 else SENDER,
            first=first,
            last=random.choice((None, first, first + random.randrange(5) & 0xFFFFFFFF, first + (1 << 30) & 0xFFFFFFFF))
            if random.random() < 0.98
            else random.choice(_UINTS),
            settled=random.choice((None, False, True, True)),
            state=self._grammar.state() if random.random() < 0.95 else None,
        )
        return frame(body, channel=channel)

    # -- out of all places

    def _nonsense(self) -> bytes:
        random = self._random
        grammar = self._grammar
        channel, _ = self._session()
        which = random.randrange(4)
        if which == 0:
            return frame(grammar.octets(), channel=channel)
        if which == 1:
            descriptor = random.choice(
                (ULong(random.randrange(0x10, 0x50)), Symbol("amqp:transfer:list"), grammar.any(1))
            )
            return frame(types.encode(Described(descriptor, grammar.any(3))), channel=channel)
        if which == 2:
            body = frames.frame(None, channel=channel)
            return struct.pack(">IBB", 8, random.randrange(256), random.randrange(256)) + body[6:]
        return struct.pack(">IBBH", random.choice(_UINTS), 2, 0, channel) + random.randbytes(random.randrange(20))

    def _wrong_place(self) -> bytes:
        kind = self._random.choice((Open, SaslInit, SaslOutcome, Begin, Accepted, Source, Declare))
        channel, _ = self._session()
        return frame(self._grammar.record(kind), channel=channel, kind=self._random.choice((0, 0, 1)))
