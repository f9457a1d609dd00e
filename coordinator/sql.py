"""What an application calls in its own SQL transaction, for Python (X2 to X5).

Each function runs one statement on what it is given, commits nothing, and raises the errors of the driver, whose
SQLSTATE ``docs/how-to/post-from-sql.md`` and ``docs/how-to/discharge-from-sql.md`` explain. It takes a connection of
psycopg 3, or a session or connection of SQLAlchemy over psycopg 3; those whose names end in ``_async`` take an
asynchronous one of these. It imports neither of the two.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from uuid import UUID

from store.codec.message import examine
from store.commit.terms import LATEST_MS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence
    from datetime import timedelta

#: In milliseconds since 1970, a day after the latest time of a message: PostgreSQL has that, and clients send later
#: ones.
_LATER_MS = LATEST_MS + 86_400_000


class _Cursor(Protocol):
    def fetchone(self) -> Any: ...


class Psycopg(Protocol):
    """``psycopg.Connection``."""

    def execute(self, query: Any, params: Any = ...) -> _Cursor: ...


class AsyncPsycopg(Protocol):
    """``psycopg.AsyncConnection``."""

    def execute(self, query: Any, params: Any = ...) -> Awaitable[Any]: ...


class Alchemy(Protocol):
    """``sqlalchemy.Connection``."""

    def exec_driver_sql(self, statement: str, parameters: Any = ...) -> _Cursor: ...


class Session(Protocol):
    """``sqlalchemy.orm.Session``."""

    def get_bind(self) -> Any: ...

    def connection(self) -> Any: ...


class AsyncAlchemy(Protocol):
    """``sqlalchemy.ext.asyncio.AsyncConnection``."""

    def exec_driver_sql(self, statement: str, parameters: Any = ...) -> Awaitable[_Cursor]: ...


class AsyncSession(Protocol):
    """``sqlalchemy.ext.asyncio.AsyncSession``."""

    def get_bind(self) -> Any: ...

    def connection(self) -> Awaitable[Any]: ...


Connection: TypeAlias = Psycopg | Alchemy | Session
AsyncConnection: TypeAlias = AsyncPsycopg | AsyncAlchemy | AsyncSession

_Call: TypeAlias = "tuple[str, tuple[Any, ...]]"


def post(
    connection: Connection,
    address: str,
    body: object,
    *,
    properties: Mapping[str, object] | None = None,
    headers: Mapping[str, object] | None = None,
    group_id: str | None = None,
    delay: timedelta | None = None,
    deliver_at: datetime | None = None,
    ttl: timedelta | None = None,
    priority: int | None = None,
) -> None:
    """Post a message that is delivered when, and only if, the transaction commits (X2).

    :param body: a ``str`` (an amqp-value of type string), ``bytes`` (a section of data), or a ``dict`` or ``list`` of
        JSON (data of the content-type ``application/json``); at most 100 MiB.
    :param properties: of the message, by their AMQP names, such as ``message-id``.
    :param headers: application properties: texts, numbers, booleans and None.
    :param deliver_at: aware of its time zone.
    :raises ValueError: ``body`` is of no such type, or ``deliver_at`` has no time zone.
    """
    _run(connection, _post(address, body, properties, headers, group_id, delay, deliver_at, ttl, priority))


async def post_async(
    connection: AsyncConnection,
    address: str,
    body: object,
    *,
    properties: Mapping[str, object] | None = None,
    headers: Mapping[str, object] | None = None,
    group_id: str | None = None,
    delay: timedelta | None = None,
    deliver_at: datetime | None = None,
    ttl: timedelta | None = None,
    priority: int | None = None,
) -> None:
    """As :func:`post`."""
    await _run_async(connection, _post(address, body, properties, headers, group_id, delay, deliver_at, ttl, priority))


def post_message(connection: Connection, address: str, message: bytes) -> None:
    """As :func:`post`, for a message that is encoded already, byte for byte: all its sections. When it is delivered it
    says itself: header, ``x-opt-delivery-time`` and ``x-opt-delivery-delay``, ``absolute-expiry-time``, ``group-id``.

    :raises store.codec.encoding.DecodeError: the octets are no message.
    """
    _run(connection, _post_message(address, message))


async def post_message_async(connection: AsyncConnection, address: str, message: bytes) -> None:
    """As :func:`post_message`."""
    await _run_async(connection, _post_message(address, message))


def discharge(connection: Connection, txn_id: bytes | UUID, *, fail: bool = False) -> bool:
    """Have the commit of the transaction decide a checkable AMQP transaction (X3): commit it, or roll it back with
    ``fail``. ``txn_id``: 16 octets, as the client got them. False: it was decided so before.

    :raises ValueError: ``txn_id`` has another length.
    """
    return bool(_run(connection, _discharge(txn_id, fail)))


async def discharge_async(connection: AsyncConnection, txn_id: bytes | UUID, *, fail: bool = False) -> bool:
    """As :func:`discharge`."""
    return bool(await _run_async(connection, _discharge(txn_id, fail)))


def first_time(connection: Connection, consumer: str, message_id: str) -> bool:
    """Whether no committed transaction has asked the same before (X4). Both names have 1 to 1000 octets."""
    return bool(_run(connection, _first_time(consumer, message_id)))


async def first_time_async(connection: AsyncConnection, consumer: str, message_id: str) -> bool:
    """As :func:`first_time`."""
    return bool(await _run_async(connection, _first_time(consumer, message_id)))


def _post(
    address: str,
    body: object,
    properties: Mapping[str, object] | None,
    headers: Mapping[str, object] | None,
    group_id: str | None,
    delay: timedelta | None,
    deliver_at: datetime | None,
    ttl: timedelta | None,
    priority: int | None,
) -> _Call:
    if deliver_at is not None and deliver_at.tzinfo is None:
        raise ValueError(f"deliver_at is {deliver_at.isoformat()}, without a time zone")
    given: str | bytes
    if isinstance(body, str):
        kind, given = "text", body
    elif isinstance(body, bytes | bytearray | memoryview):
        kind, given = "bytea", bytes(body)
    elif isinstance(body, dict | list):
        kind, given = "jsonb", json.dumps(body)
    else:
        raise ValueError(f"the body is of type {type(body).__name__}; expected str, bytes, dict or list")
    sql = (
        f"select coordinator.post(%s::text, %s::{kind}, %s::jsonb, %s::jsonb, %s::text, %s::interval, "
        "%s::timestamptz, %s::interval, %s::int4)"
    )
    named = [None if each is None else json.dumps(dict(each)) for each in (properties, headers)]
    return sql, (address, given, *named, group_id, delay, deliver_at, ttl, priority)


def _post_message(address: str, message: bytes) -> _Call:
    facts = examine(message)
    sql = (
        "select coordinator.post_octets(%s::text, %s::bytea, "
        "greatest(to_timestamp(%s::float8 / 1000), clock_timestamp() + %s::float8 * interval '1 ms'), "
        "least(to_timestamp(%s::float8 / 1000), clock_timestamp() + %s::float8 * interval '1 ms'), %s::int4, %s::text)"
    )
    times = (facts.delivery_time_ms, facts.delivery_delay_ms or None)
    ends = (facts.absolute_expiry_ms or None, facts.ttl_ms or None)
    bounded = (None if each is None else min(each, _LATER_MS) for each in (*times, *ends))
    return sql, (address, message, *bounded, facts.priority, facts.group_id)


def _discharge(txn_id: bytes | UUID, fail: bool) -> _Call:
    txn = txn_id if isinstance(txn_id, UUID) else UUID(bytes=bytes(txn_id))
    return "select coordinator.discharge(%s::uuid, %s::bool)", (txn, fail)


def _first_time(consumer: str, message_id: str) -> _Call:
    return "select coordinator.first_time(%s::text, %s::text)", (consumer, message_id)


def _run(connection: Any, call: _Call) -> object:
    target = connection.connection() if hasattr(connection, "get_bind") else connection
    run = target.exec_driver_sql if hasattr(target, "exec_driver_sql") else target.execute
    row: Sequence[object] = run(*call).fetchone()
    return row[0]


async def _run_async(connection: Any, call: _Call) -> object:
    target = await connection.connection() if hasattr(connection, "get_bind") else connection
    row: Sequence[object]
    if hasattr(target, "exec_driver_sql"):
        row = (await target.exec_driver_sql(*call)).fetchone()
    else:
        row = await (await target.execute(*call)).fetchone()
    return row[0]
