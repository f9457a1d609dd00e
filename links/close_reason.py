"""Close reasons in the log say why a connection was closed: docs/how-to/watch-it-run.md explains each."""

from __future__ import annotations

from enum import StrEnum


class CloseReason(StrEnum):
    """The reason of a close; if several places close a connection, the first reason counts."""

    CLIENT_CLOSED = "client-closed"
    CLIENT_GONE = "client-gone"
    CLIENT_SILENT = "client-silent"
    CLIENT_READS_NOTHING = "client-reads-nothing"
    HOST_GONE = "host-gone"
    TLS_FAILED = "tls-failed"
    WEBSOCKET_FAILED = "websocket-failed"
    LOGIN_FAILED = "login-failed"
    USER_LOCKED_OUT = "user-locked-out"
    TOKEN_EXPIRED = "token-expired"  # noqa: S105 - a name
    NOT_OPENED = "not-opened"
    TOO_MANY_NOT_OPENED = "too-many-not-opened"
    TOO_MANY_CONNECTIONS = "too-many-connections"
    OPEN_REFUSED = "open-refused"
    SOLE_CONNECTION = "sole-connection"
    PROTOCOL_ERROR = "protocol-error"
    LIMIT_EXCEEDED = "limit-exceeded"
    NO_DATABASE_CONNECTION = "no-database-connection"
    BY_HAND = "by-hand"
    SERVICE_STOPS = "service-stops"
    INTERNAL_ERROR = "internal-error"


#: Reasons logged at the level of debugging: usual acts of clients, and those that another line reports for all.
USUAL = frozenset(
    (
        CloseReason.CLIENT_CLOSED,
        CloseReason.CLIENT_GONE,
        CloseReason.LOGIN_FAILED,
        CloseReason.NO_DATABASE_CONNECTION,
        CloseReason.SERVICE_STOPS,
    )
)
