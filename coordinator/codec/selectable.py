"""A stored message as selectors see it, by the names of the JMS mapping, of AMQP's fields, and of its properties."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

from store.codec.encoding import DecodeError, pairs, scalar, skip
from store.codec.message import APPLICATION_PROPERTIES, HEADER, PROPERTIES, fields_of, sections

#: the most work of one evaluation: octets of the strings compared, for LIKE times the characters of the pattern
MOST_WORK = 1 << 22

Evaluate = Callable[["View"], object]


class TooMuchWork(Exception):
    """The evaluation has cost as much as it may."""


class View:
    """A message as selectors see it; its sections are decoded when first asked for."""

    __slots__ = (
        "_application",
        "_decoded",
        "_header",
        "_message",
        "_properties",
        "_properties_at",
        "_work",
        "attempts",
    )

    def __init__(self, message: bytes, attempts: int) -> None:
        self._message = message
        self.attempts = attempts
        self._header: list[object] | None = None
        self._properties: list[object] = []
        self._properties_at = -1
        #: encoded keys and values
        self._application: dict[object, bytes] = {}
        self._decoded: dict[str, object] = {}
        self._work = 0

    def spend(self, octets: int) -> None:
        """Count the work of looking at so many octets."""
        self._work += octets
        if self._work > MOST_WORK:
            raise TooMuchWork

    def _read(self) -> list[object]:
        header: list[object] = []
        self._header = header
        message = self._message
        try:
            for code, _, value, _ in sections(message, APPLICATION_PROPERTIES):
                if code == HEADER:
                    self._header = header = fields_of(message, value, HEADER)
                elif code == PROPERTIES:
                    self._properties = fields_of(message, value, PROPERTIES)
                    self._properties_at = value
                elif code == APPLICATION_PROPERTIES:
                    self._application = {key: pair for key, pair in pairs(message, value) if isinstance(key, str)}
        except DecodeError:
            pass  # sections that cannot be read count as missing
        return header

    def header(self, index: int) -> object:
        fields = self._header
        if fields is None:
            fields = self._read()
        return fields[index] if len(fields) > index else None

    def property(self, index: int) -> object:
        if self._header is None:
            self._read()
        fields = self._properties
        return fields[index] if len(fields) > index else None

    def application(self, name: str) -> object:
        if self._header is None:
            self._read()
        pair = self._application.get(name)
        if pair is None:
            return None
        if name not in self._decoded:
            self.spend(len(pair))
            found: object = (
                None  # a value that cannot be read, or that no property may have (section 3.2.5), counts as missing
            )
            with suppress(DecodeError):
                found = scalar(pair, skip(pair, 0))[0]
            self._decoded[name] = found
        return self._decoded[name]

    def is_uuid(self, index: int) -> bool:
        """Whether the property, octets once decoded, is a uuid."""
        at = self._properties_at
        at += 3 if self._message[at] == 0xC0 else 9
        for _ in range(index):
            at = skip(self._message, at)
        return self._message[at] == 0x98


_HEADER_FIELDS = ("durable", "priority", "ttl", "first_acquirer", "delivery_count")
_PROPERTY_FIELDS = (
    "message_id", "user_id", "to", "subject", "reply_to", "correlation_id", "content_type", "content_encoding",
    "absolute_expiry_time", "creation_time", "group_id", "group_sequence", "reply_to_group_id",
)  # fmt: skip
_MESSAGE_ID, _USER_ID, _SUBJECT, _CORRELATION_ID = 0, 1, 3, 5
_CREATION_TIME, _GROUP_ID, _GROUP_SEQUENCE = 9, 10, 11
_DEFAULT_PRIORITY = 4
#: prefix that Qpid JMS puts before string ids that look like its own forms of other types
_ESCAPED_IDS = ("ID:AMQP_BINARY:", "ID:AMQP_UUID:", "ID:AMQP_ULONG:", "ID:AMQP_STRING:", "ID:AMQP_NO_PREFIX:")


def _id(view: View, index: int) -> str | None:
    """A message-id or correlation-id as Qpid JMS shows it; None if there is none."""
    found = view.property(index)
    if type(found) is int:
        return f"ID:AMQP_ULONG:{found}"
    if isinstance(found, bytes):
        return f"ID:AMQP_UUID:{UUID(bytes=found)}" if view.is_uuid(index) else f"ID:AMQP_BINARY:{found.hex().upper()}"
    return None


def _message_id(view: View) -> object:
    found = view.property(_MESSAGE_ID)
    if not isinstance(found, str):
        return _id(view, _MESSAGE_ID)
    if found.startswith(_ESCAPED_IDS):
        return f"ID:AMQP_STRING:{found}"
    return found if found.startswith("ID:") else f"ID:AMQP_NO_PREFIX:{found}"


def _correlation_id(view: View) -> object:
    found = view.property(_CORRELATION_ID)
    if not isinstance(found, str):
        return _id(view, _CORRELATION_ID)
    return f"ID:AMQP_STRING:{found}" if found.startswith(_ESCAPED_IDS) else found


def _priority(view: View) -> object:
    found = view.header(1)
    return min(found, 9) if type(found) is int else _DEFAULT_PRIORITY


def _user_id(view: View) -> object:
    found = view.property(_USER_ID)
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else None


JMS_FIELDS: dict[str, Evaluate] = {
    "JMSMessageID": _message_id,
    "JMSCorrelationID": _correlation_id,
    "JMSType": lambda view: view.property(_SUBJECT),
    "JMSPriority": _priority,
    "JMSDeliveryMode": lambda view: "PERSISTENT" if view.header(0) is True else "NON_PERSISTENT",
    "JMSTimestamp": lambda view: view.property(_CREATION_TIME),
    "JMSXUserID": _user_id,
    "JMSXGroupID": lambda view: view.property(_GROUP_ID),
    "JMSXGroupSeq": lambda view: view.property(_GROUP_SEQUENCE),
    "JMSXDeliveryCount": lambda view: view.attempts + 1,
}
NOT_SELECTABLE = frozenset(("JMSDestination", "JMSReplyTo", "JMSExpiration", "JMSRedelivered", "JMSDeliveryTime"))


def _field(index: int, read: Callable[[View, int], object]) -> Evaluate:
    return lambda view: read(view, index)


AMQP_FIELDS: dict[str, Evaluate] = {
    **{f"amqp.{name}": _field(index, View.header) for index, name in enumerate(_HEADER_FIELDS)},
    **{f"amqp.{name}": _field(index, View.property) for index, name in enumerate(_PROPERTY_FIELDS)},
}
