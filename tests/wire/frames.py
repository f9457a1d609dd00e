"""Performatives, states and termini as records (parts 2 to 5), and the frames they travel in.

A record that comes in is held against its definition: its fields are of their types, those that are mandatory are
there, and there are no others (rule P20, on every frame that any test reads). A record that goes out may be as wrong as
a test wants it.
"""

# ruff: noqa: RUF009 - a field's wire type is said where a default would stand

from __future__ import annotations

import dataclasses
import struct
from typing import Any, ClassVar, NamedTuple

from tests.wire import types
from tests.wire.types import Array, Described, Malformed, Raw, Symbol, UByte, UInt, ULong, UShort

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
AMQP, SASL = 0, 1

#: The roles of an attach and of a disposition.
SENDER, RECEIVER = False, True


def wire(kind: Any = object, *, mandatory: bool = False, many: bool = False) -> Any:
    """A field; ``kind``: its type on the wire, ``many``: one or an array of them (part 1, section 1.4)."""
    return dataclasses.field(default=None, metadata={"kind": kind, "mandatory": mandatory, "many": many})


_records: dict[int, type[Record]] = {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """A composite type: a described list. ``CODE`` is its descriptor, ``NAME`` the symbol that says the same."""

    CODE: ClassVar[int]
    NAME: ClassVar[str]

    def __init_subclass__(cls, *, code: int = 0, name: str = "", **others: Any) -> None:
        super().__init_subclass__(**others)
        cls.CODE = code
        cls.NAME = f"amqp:{name}:list"
        _records[code] = cls

    def described(self, *, symbolic: bool = False) -> Described:
        """As it goes out; ``symbolic``: with the symbol as its descriptor."""
        values = [_outgoing(getattr(self, each.name), each.metadata) for each in dataclasses.fields(self)]
        while values and values[-1] is None:
            values.pop()
        return Described(Symbol(self.NAME) if symbolic else ULong(self.CODE), values)

    def encoded(self, *, large: bool = False, symbolic: bool = False) -> bytes:
        return types.encode(self.described(symbolic=symbolic), large=large)


def _outgoing(value: Any, metadata: Any) -> Any:
    kind = metadata["kind"]
    if value is None or isinstance(value, Raw | Described):
        return value
    if isinstance(value, Record):
        return value.described()
    if metadata["many"] and isinstance(value, tuple):
        return types.symbols(*value)
    if isinstance(value, dict):
        return {
            Symbol(key) if type(key) is str else key: each.described() if isinstance(each, Record) else each
            for key, each in value.items()
        }
    if isinstance(kind, type) and type(value) in (int, str) and issubclass(kind, int | str) and kind is not bool:
        return kind(value)
    return value


def record(value: Any) -> Any:
    """A described list as its record; anything else as it is."""
    if not isinstance(value, Described) or not isinstance(value.descriptor, ULong):
        return value
    cls = _records.get(value.descriptor)
    if cls is None:
        return value
    fields = dataclasses.fields(cls)
    if not isinstance(value.value, list) or len(value.value) > len(fields):
        raise Malformed(f"{cls.__name__}: {value.value!r} is no list of at most {len(fields)} fields")
    found: dict[str, Any] = {}
    for position, each in enumerate(fields):
        given = value.value[position] if position < len(value.value) else None
        found[each.name] = _incoming(f"{cls.__name__}.{each.name}", given, each.metadata)
    return cls(**found)


def name_of(code: Any) -> str | None:
    """The symbol that says the same as this descriptor."""
    cls = _records.get(code) if isinstance(code, int) else None
    return None if cls is None else cls.NAME


def _incoming(place: str, value: Any, metadata: Any) -> Any:
    kind = metadata["kind"]
    if value is None:
        if metadata["mandatory"]:
            raise Malformed(f"{place} is mandatory and not there")
        return None
    if metadata["many"]:
        items = value.items if isinstance(value, Array) else [value]
        if not all(type(item) is kind for item in items):
            raise Malformed(f"{place}: {value!r} is no {kind.__name__}, nor an array of them")
        return tuple(items)
    value = record(value)
    if kind is not object and not isinstance(value, kind):
        raise Malformed(f"{place}: {value!r} is no {getattr(kind, '__name__', kind)}")
    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Error(Record, code=0x1D, name="error"):
    """Part 2, section 2.8.14."""

    condition: str = wire(Symbol, mandatory=True)
    description: str | None = wire(str)
    info: dict[Any, Any] | None = wire(dict)


# -- delivery states (part 3, section 3.4; part 4, section 4.5)


class State(Record):
    """What a disposition or a transfer says of a delivery."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Received(State, code=0x23, name="received"):
    section_number: int = wire(UInt, mandatory=True)
    section_offset: int = wire(ULong, mandatory=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Accepted(State, code=0x24, name="accepted"):
    pass


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rejected(State, code=0x25, name="rejected"):
    error: Error | None = wire(Error)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Released(State, code=0x26, name="released"):
    pass


@dataclasses.dataclass(frozen=True, kw_only=True)
class Modified(State, code=0x27, name="modified"):
    delivery_failed: bool | None = wire(bool)
    undeliverable_here: bool | None = wire(bool)
    message_annotations: dict[Any, Any] | None = wire(dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Declared(State, code=0x33, name="declared"):
    txn_id: bytes = wire(bytes, mandatory=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransactionalState(State, code=0x34, name="transactional-state"):
    txn_id: bytes = wire(bytes, mandatory=True)
    outcome: State | None = wire(State)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Declare(Record, code=0x31, name="declare"):
    global_id: Any = wire()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Discharge(Record, code=0x32, name="discharge"):
    txn_id: bytes = wire(bytes, mandatory=True)
    fail: bool | None = wire(bool)


# -- termini (part 3, section 3.5; part 4, section 4.5.1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source(Record, code=0x28, name="source"):
    address: str | None = wire(str)
    durable: int | None = wire(UInt)
    expiry_policy: str | None = wire(Symbol)
    timeout: int | None = wire(UInt)
    dynamic: bool | None = wire(bool)
    dynamic_node_properties: dict[Any, Any] | None = wire(dict)
    distribution_mode: str | None = wire(Symbol)
    filter: dict[Any, Any] | None = wire(dict)
    default_outcome: State | None = wire(State)
    outcomes: tuple[str, ...] | None = wire(Symbol, many=True)
    capabilities: tuple[str, ...] | None = wire(Symbol, many=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target(Record, code=0x29, name="target"):
    address: str | None = wire(str)
    durable: int | None = wire(UInt)
    expiry_policy: str | None = wire(Symbol)
    timeout: int | None = wire(UInt)
    dynamic: bool | None = wire(bool)
    dynamic_node_properties: dict[Any, Any] | None = wire(dict)
    capabilities: tuple[str, ...] | None = wire(Symbol, many=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Coordinator(Record, code=0x30, name="coordinator"):
    capabilities: tuple[str, ...] | None = wire(Symbol, many=True)


# -- performatives (part 2, section 2.7)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Open(Record, code=0x10, name="open"):
    container_id: str = wire(str, mandatory=True)
    hostname: str | None = wire(str)
    max_frame_size: int | None = wire(UInt)
    channel_max: int | None = wire(UShort)
    idle_time_out: int | None = wire(UInt)
    outgoing_locales: tuple[str, ...] | None = wire(Symbol, many=True)
    incoming_locales: tuple[str, ...] | None = wire(Symbol, many=True)
    offered_capabilities: tuple[str, ...] | None = wire(Symbol, many=True)
    desired_capabilities: tuple[str, ...] | None = wire(Symbol, many=True)
    properties: dict[Any, Any] | None = wire(dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Begin(Record, code=0x11, name="begin"):
    remote_channel: int | None = wire(UShort)
    next_outgoing_id: int = wire(UInt, mandatory=True)
    incoming_window: int = wire(UInt, mandatory=True)
    outgoing_window: int = wire(UInt, mandatory=True)
    handle_max: int | None = wire(UInt)
    offered_capabilities: tuple[str, ...] | None = wire(Symbol, many=True)
    desired_capabilities: tuple[str, ...] | None = wire(Symbol, many=True)
    properties: dict[Any, Any] | None = wire(dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attach(Record, code=0x12, name="attach"):
    name: str = wire(str, mandatory=True)
    handle: int = wire(UInt, mandatory=True)
    role: bool = wire(bool, mandatory=True)
    snd_settle_mode: int | None = wire(UByte)
    rcv_settle_mode: int | None = wire(UByte)
    source: Source | None = wire(Source)
    target: Target | Coordinator | None = wire((Target, Coordinator))
    unsettled: dict[Any, Any] | None = wire(dict)
    incomplete_unsettled: bool | None = wire(bool)
    initial_delivery_count: int | None = wire(UInt)
    max_message_size: int | None = wire(ULong)
    offered_capabilities: tuple[str, ...] | None = wire(Symbol, many=True)
    desired_capabilities: tuple[str, ...] | None = wire(Symbol, many=True)
    properties: dict[Any, Any] | None = wire(dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flow(Record, code=0x13, name="flow"):
    next_incoming_id: int | None = wire(UInt)
    incoming_window: int = wire(UInt, mandatory=True)
    next_outgoing_id: int = wire(UInt, mandatory=True)
    outgoing_window: int = wire(UInt, mandatory=True)
    handle: int | None = wire(UInt)
    delivery_count: int | None = wire(UInt)
    link_credit: int | None = wire(UInt)
    available: int | None = wire(UInt)
    drain: bool | None = wire(bool)
    echo: bool | None = wire(bool)
    properties: dict[Any, Any] | None = wire(dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transfer(Record, code=0x14, name="transfer"):
    handle: int = wire(UInt, mandatory=True)
    delivery_id: int | None = wire(UInt)
    delivery_tag: bytes | None = wire(bytes)
    message_format: int | None = wire(UInt)
    settled: bool | None = wire(bool)
    more: bool | None = wire(bool)
    rcv_settle_mode: int | None = wire(UByte)
    state: State | None = wire(State)
    resume: bool | None = wire(bool)
    aborted: bool | None = wire(bool)
    batchable: bool | None = wire(bool)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Disposition(Record, code=0x15, name="disposition"):
    role: bool = wire(bool, mandatory=True)
    first: int = wire(UInt, mandatory=True)
    last: int | None = wire(UInt)
    settled: bool | None = wire(bool)
    state: State | None = wire(State)
    batchable: bool | None = wire(bool)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Detach(Record, code=0x16, name="detach"):
    handle: int = wire(UInt, mandatory=True)
    closed: bool | None = wire(bool)
    error: Error | None = wire(Error)


@dataclasses.dataclass(frozen=True, kw_only=True)
class End(Record, code=0x17, name="end"):
    error: Error | None = wire(Error)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Close(Record, code=0x18, name="close"):
    error: Error | None = wire(Error)


# -- SASL (part 5, section 5.3.3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SaslMechanisms(Record, code=0x40, name="sasl-mechanisms"):
    sasl_server_mechanisms: tuple[str, ...] = wire(Symbol, mandatory=True, many=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SaslInit(Record, code=0x41, name="sasl-init"):
    mechanism: str = wire(Symbol, mandatory=True)
    initial_response: bytes | None = wire(bytes)
    hostname: str | None = wire(str)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SaslChallenge(Record, code=0x42, name="sasl-challenge"):
    challenge: bytes = wire(bytes, mandatory=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SaslResponse(Record, code=0x43, name="sasl-response"):
    response: bytes = wire(bytes, mandatory=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SaslOutcome(Record, code=0x44, name="sasl-outcome"):
    code: int = wire(UByte, mandatory=True)
    additional_data: bytes | None = wire(bytes)


# -- frames (part 2, section 2.3)


class Frame(NamedTuple):
    """``performative``: None in an empty frame, which only shows that the peer lives."""

    channel: int
    performative: Any
    payload: bytes = b""
    kind: int = AMQP


def frame(performative: Record | bytes | None, *, channel: int = 0, payload: bytes = b"", kind: int = AMQP) -> bytes:
    """The octets of a frame; ``performative`` may be encoded already (or be nonsense)."""
    body = b"" if performative is None else performative if isinstance(performative, bytes) else performative.encoded()
    return struct.pack(">IBBH", 8 + len(body) + len(payload), 2, kind, channel) + body + payload


def without(place: int, performative: Record, instead: object = None) -> bytes:
    """The performative with null, or with ``instead``, for one of its fields."""
    described = performative.described()
    described.value[place] = instead
    return types.encode(described)


def parse(octets: bytes) -> Frame:
    """A whole frame. Malformed where it breaks the standard."""
    size, offset, kind, channel = struct.unpack_from(">IBBH", octets)
    if size != len(octets) or offset < 2 or 4 * offset > size or kind not in (AMQP, SASL):
        raise Malformed(f"a frame header of size {size}, offset {offset}, type {kind}, with {len(octets)} octets")
    if 4 * offset == size:
        return Frame(channel, None, kind=kind)
    value, end = types.decode(octets, 4 * offset)
    performative = record(value)
    if not isinstance(performative, Record):
        raise Malformed(f"{value!r} is no performative")
    payload = octets[end:]
    if payload and not isinstance(performative, Transfer):
        raise Malformed(f"{len(payload)} octets behind a {type(performative).__name__}")
    return Frame(channel, performative, payload, kind)
