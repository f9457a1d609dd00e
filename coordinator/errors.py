"""Refusals are errors that are sent to the peer, with their AMQP conditions.

The conditions are those of the standard (part 2, section 2.8.15 to 2.8.19; part 4, section 4.5.8) and of the anonymous
relay extension.
"""

from __future__ import annotations

from enum import StrEnum


class Condition(StrEnum):
    """The conditions of AMQP errors that this service sends (part 2, section 2.8; part 4, section 4.5)."""

    INTERNAL_ERROR = "amqp:internal-error"
    NOT_FOUND = "amqp:not-found"
    UNAUTHORIZED_ACCESS = "amqp:unauthorized-access"
    DECODE_ERROR = "amqp:decode-error"
    RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
    NOT_ALLOWED = "amqp:not-allowed"
    INVALID_FIELD = "amqp:invalid-field"
    NOT_IMPLEMENTED = "amqp:not-implemented"
    PRECONDITION_FAILED = "amqp:precondition-failed"
    ILLEGAL_STATE = "amqp:illegal-state"
    RESOURCE_DELETED = "amqp:resource-deleted"
    RESOURCE_LOCKED = "amqp:resource-locked"
    FRAMING_ERROR = "amqp:connection:framing-error"
    FRAME_SIZE_TOO_SMALL = "amqp:frame-size-too-small"
    CONNECTION_FORCED = "amqp:connection:forced"
    MESSAGE_SIZE_EXCEEDED = "amqp:link:message-size-exceeded"
    TRANSFER_LIMIT_EXCEEDED = "amqp:link:transfer-limit-exceeded"
    STOLEN = "amqp:link:stolen"
    REDIRECT = "amqp:link:redirect"
    UNATTACHED_HANDLE = "amqp:session:unattached-handle"
    HANDLE_IN_USE = "amqp:session:handle-in-use"
    TXN_UNKNOWN_ID = "amqp:transaction:unknown-id"
    TXN_ROLLBACK = "amqp:transaction:rollback"
    TXN_TIMEOUT = "amqp:transaction:timeout"


class Refusal(Exception):
    """Refuses a request of the peer. ``description`` says what is wrong, and what was expected."""

    def __init__(self, condition: Condition, description: str) -> None:
        super().__init__(condition, description)
        self.condition = condition
        self.description = description

    def __str__(self) -> str:
        return f"{self.condition}: {self.description}"


class Redirect(Refusal):
    """Refuses a link whose address another service has, and sends its client there (part 2, section 2.8.18)."""

    def __init__(self, description: str, *, host: str, port: int, address: str) -> None:
        super().__init__(Condition.REDIRECT, description)
        self.host = host
        self.port = port
        self.address = address
