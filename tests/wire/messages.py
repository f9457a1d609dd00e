"""Messages of the test client (part 3, section 3.2): made of their sections, and taken apart with the octets kept."""
# ruff: noqa: RUF009 - as in frames.py

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from tests.wire import types
from tests.wire.frames import Record, record, wire
from tests.wire.types import Described, Symbol, Timestamp, UByte, UInt, ULong

DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, APPLICATION_PROPERTIES = 0x71, 0x72, 0x74
DATA, SEQUENCE, VALUE, FOOTER = 0x75, 0x76, 0x77, 0x78


@dataclasses.dataclass(frozen=True, kw_only=True)
class Header(Record, code=0x70, name="header"):
    durable: bool | None = wire(bool)
    priority: int | None = wire(UByte)
    ttl: int | None = wire(UInt)
    first_acquirer: bool | None = wire(bool)
    delivery_count: int | None = wire(UInt)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Properties(Record, code=0x73, name="properties"):
    message_id: Any = wire()
    user_id: bytes | None = wire(bytes)
    to: str | None = wire(str)
    subject: str | None = wire(str)
    reply_to: str | None = wire(str)
    correlation_id: Any = wire()
    content_type: str | None = wire(Symbol)
    content_encoding: str | None = wire(Symbol)
    absolute_expiry_time: int | None = wire(Timestamp)
    creation_time: int | None = wire(Timestamp)
    group_id: str | None = wire(str)
    group_sequence: int | None = wire(UInt)
    reply_to_group_id: str | None = wire(str)


def section(code: int, value: Any, *, large: bool = False) -> bytes:
    return types.encode(Described(ULong(code), value), large=large)


def data(body: bytes) -> bytes:
    """The plainest message: one data section."""
    return section(DATA, body)


_SYMBOLS = {
    "amqp:header:list": 0x70, "amqp:delivery-annotations:map": 0x71, "amqp:message-annotations:map": 0x72,
    "amqp:properties:list": 0x73, "amqp:application-properties:map": 0x74, "amqp:data:binary": 0x75,
    "amqp:amqp-sequence:list": 0x76, "amqp:amqp-value:*": 0x77, "amqp:footer:map": 0x78,
}  # fmt: skip


class Section(NamedTuple):
    code: int
    value: Any
    octets: bytes


class Message:
    """What came in one delivery."""

    def __init__(self, octets: bytes) -> None:
        self.octets = octets
        self.sections: list[Section] = []
        at = 0
        while at < len(octets):
            value, end = types.decode(octets, at)
            code = _SYMBOLS.get(value.descriptor, value.descriptor)
            found = record(Described(ULong(code), value.value))
            content = found if isinstance(found, Record) else found.value
            self.sections.append(Section(code, content, octets[at:end]))
            at = end

    def _of(self, code: int) -> Any:
        return next((found.value for found in self.sections if found.code == code), None)

    @property
    def header(self) -> Header:
        found = self._of(Header.CODE)
        return found if isinstance(found, Header) else Header()

    @property
    def delivery_annotations(self) -> dict[Any, Any]:
        return self._of(DELIVERY_ANNOTATIONS) or {}

    @property
    def annotations(self) -> dict[Any, Any]:
        return self._of(MESSAGE_ANNOTATIONS) or {}

    @property
    def body(self) -> Any:
        return next((found.value for found in self.sections if found.code in (DATA, SEQUENCE, VALUE)), None)

    @property
    def bare(self) -> bytes:
        """Properties to body, and the footer, as they are: what may not change (section 3.2)."""
        return b"".join(found.octets for found in self.sections if found.code >= Properties.CODE)
