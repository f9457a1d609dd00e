"""Values, performatives and messages made by a grammar: each is drawn from valid, edge and wrong values.

Most are valid, so that a case gets deep; a few fields in a hundred are of a wrong type.
"""

from __future__ import annotations

import dataclasses
import struct
import uuid
from collections.abc import Callable
from random import Random
from typing import Any

from tests.fuzz.cases import txn
from tests.wire import frames, messages, types
from tests.wire.frames import (
    Accepted,
    Coordinator,
    Declare,
    Declared,
    Discharge,
    Error,
    Modified,
    Received,
    Record,
    Rejected,
    Released,
    Source,
    Target,
    TransactionalState,
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
CONTAINERS = tuple(f"fuzz-{number}" for number in range(5))
LINKS = ("", "a", "b", "sub|1", "sub|2", "sub|global", "\0", "ü" * 40, "x" * 2000)

UINTS = (0, 1, 2, 3, 4, 5, 10, 255, 256, 1000, 65535, 65536, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)
_ULONGS = (*UINTS, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_LONGS = (0, 1, -1, 127, -128, 128, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63), 1_760_000_000_000)
_TEXTS = ("", "a", "fuzz-0", "äöü", "\0", "a\nb", "\U0001f600", "x" * 255, "y" * 256, "%s%n", "'; --", "ID:AMQP_UUID:x")
_SYMBOLS = ("", "a", "amqp:accepted:list", "amqp:rejected:list", "topic", "queue", "shared", "global", "never", "copy",
            "move", "link-detach", "session-end", "connection-close", "amqp:local-transactions", "x" * 256,
            "amqp:link:detach-forced", "sole-connection-for-container", "x-opt-not-a-thing")  # fmt: skip
_BINARIES = (b"", b"\0", b"tag", b"x" * 16, b"x" * 32, b"x" * 33, b"\xff" * 300)
TAGS = _BINARIES[1:5]
SELECTORS = (
    "a = 1", "a = 'x' OR b < 2.5", "JMSPriority > 4 AND JMSType LIKE 'x%'", "NOT (a IS NULL)", "a IN ('x', 'y')",
    "a BETWEEN 1 AND 2", "JMSMessageID = 'ID:x'", "\"odd name\" = TRUE", "a / 0 = 1", "1e400 = a", "(" * 200, "a = ",
    "''''", "9" * 5000 + " = a", "a = 0x" + "f" * 400, " ", "\0", "a LIKE '%" + "_%" * 200 + "'", "- - - - a = 1",
    "JMSXGroupSeq * 9223372036854775807 * JMSTimestamp > 1e308", "amqp.ttl > 0", "JMSCorrelationID <> 'x'",
)  # fmt: skip


class Grammar:
    """``any()``, ``record()``, ``message()`` and the others make one value, performative or message each."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._by_kind: dict[Any, Callable[[], Any]] = {
            bool: lambda: random.random() < 0.5,
            UByte: lambda: UByte(random.choice((0, 1, 2, 3, 4, 9, 127, 255))),
            UShort: lambda: UShort(random.choice((0, 1, 2, 3, 255, 1023, 1024, 65535))),
            UInt: lambda: UInt(self._edge(UINTS, 32)),
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
                lambda: struct.pack(">BI", random.choice((0xB0, 0xB1, 0xD0, 0xD1, 0xF0)), self._edge(UINTS, 32)),
                lambda: struct.pack(">BII", random.choice((0xD0, 0xD1, 0xF0)), 4, self._edge(UINTS, 32)),
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
            header = self.record(messages.Header, ttl=self._edge(UINTS, 32) if random.random() < 0.2 else None)
            found.append(self._encoded(header))
        if random.random() < 0.3:
            found.append(self.section(messages.DELIVERY_ANNOTATIONS, self.map(2)))
        if random.random() < 0.4:
            annotations = self.map(2)
            if random.random() < 0.1:
                later = Symbol(random.choice(("x-opt-delivery-time", "x-opt-delivery-delay")))
                annotations[later] = random.choice((Long(random.choice(_LONGS)), ULong(1), self.any(1)))
            found.append(self.section(messages.MESSAGE_ANNOTATIONS, annotations))
        if random.random() < 0.6:
            properties = self.record(messages.Properties, to=self.address())
            found.append(self._encoded(properties))
        if random.random() < 0.5:
            found.append(self.section(messages.APPLICATION_PROPERTIES, self.map(1)))
        body = random.random()
        if body < 0.4:
            found += [messages.data(random.choice(_BINARIES)) for _ in range(random.choice((1, 1, 2)))]
        elif body < 0.6:
            found += [self.section(messages.SEQUENCE, [self.any(2)])]
        elif body < 0.95:
            found.append(self.section(messages.VALUE, self.any(3)))
        if random.random() < 0.1:
            found.append(self.section(messages.FOOTER, self.map(1)))
        if random.random() < 0.1 and found:
            random.shuffle(found)
        octets = b"".join(found)
        if random.random() < 0.15 and octets:
            changed = bytearray(octets)
            for _ in range(random.choice((1, 2, 3))):
                changed[random.randrange(len(changed))] = random.randrange(256)
            octets = bytes(changed[: random.choice((len(changed), len(changed), random.randrange(len(changed) + 1)))])
        return octets

    def section(self, code: int, value: Any) -> bytes:
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

    def nonsense(self, channel: int) -> bytes:
        """A frame that holds no performative, or is no frame."""
        random = self._random
        which = random.randrange(4)
        if which == 0:
            return frame(self.octets(), channel=channel)
        if which == 1:
            descriptor = random.choice((ULong(random.randrange(0x10, 0x50)), Symbol("amqp:transfer:list"), self.any(1)))
            return frame(types.encode(Described(descriptor, self.any(3))), channel=channel)
        if which == 2:
            body = frame(None, channel=channel)
            return struct.pack(">IBB", 8, random.randrange(256), random.randrange(256)) + body[6:]
        return struct.pack(">IBBH", random.choice(UINTS), 2, 0, channel) + random.randbytes(random.randrange(20))


_Scalar = Callable[[Grammar, Random], Any]
_SCALARS: tuple[_Scalar, ...] = (
    lambda g, r: UByte(r.choice((0, 1, 255))),
    lambda g, r: UShort(r.choice((0, 1, 65535))),
    lambda g, r: UInt(r.choice(UINTS)),
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
