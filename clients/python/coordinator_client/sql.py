"""What an application calls in its own SQL transaction, in the PostgreSQL of the store (X2 to X5).

Each function runs one statement on what it is given, commits nothing, and raises the errors of the driver, whose
SQLSTATE ``docs/how-to/post-from-sql.md`` and ``docs/how-to/discharge-from-sql.md`` explain. It takes a connection of
psycopg 3, or a session or connection of SQLAlchemy over psycopg 3; those whose names end in ``_async`` take an
asynchronous one of these. This module imports neither of the two.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence
    from datetime import timedelta

#: In milliseconds since 1970, a day after the latest time of a message. Clients send later times than PostgreSQL has.
_LATEST_MS = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp()) * 1000


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
    _run(connection, _post(address, body, _Terms(properties, headers, group_id, delay, deliver_at, ttl, priority)))


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
    terms = _Terms(properties, headers, group_id, delay, deliver_at, ttl, priority)
    await _run_async(connection, _post(address, body, terms))


def post_many(
    connection: Connection,
    address: str,
    bodies: Sequence[object],
    *,
    properties: Mapping[str, object] | None = None,
    headers: Mapping[str, object] | None = None,
    group_id: str | None = None,
    delay: timedelta | None = None,
    deliver_at: datetime | None = None,
    ttl: timedelta | None = None,
    priority: int | None = None,
) -> None:
    """As :func:`post`, for many messages in one statement, in the order of their bodies, which are of one type. What
    else is given holds for each.

    :raises ValueError: as :func:`post`, or the bodies are of several types, or ``bodies`` is itself one.
    """
    terms = _Terms(properties, headers, group_id, delay, deliver_at, ttl, priority)
    _run(connection, _post_many(address, bodies, terms))


async def post_many_async(
    connection: AsyncConnection,
    address: str,
    bodies: Sequence[object],
    *,
    properties: Mapping[str, object] | None = None,
    headers: Mapping[str, object] | None = None,
    group_id: str | None = None,
    delay: timedelta | None = None,
    deliver_at: datetime | None = None,
    ttl: timedelta | None = None,
    priority: int | None = None,
) -> None:
    """As :func:`post_many`."""
    terms = _Terms(properties, headers, group_id, delay, deliver_at, ttl, priority)
    await _run_async(connection, _post_many(address, bodies, terms))


def post_message(connection: Connection, address: str, message: bytes) -> None:
    """As :func:`post`, for a message that is encoded already, byte for byte: all its sections. When it is delivered it
    says itself: header, ``x-opt-delivery-time`` and ``x-opt-delivery-delay``, ``absolute-expiry-time``, ``group-id``.
    Qpid Proton reads that: install the extra ``amqp``. What is no message the database refuses (22023).
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


def outcome(connection: Connection, txn_id: bytes | UUID) -> str | None:
    """What became of a transaction: ``commit``, ``rollback`` or ``undecided`` (H15). None: the store has nothing of it,
    as it never had work, is too young, or retention has dropped it.

    :raises ValueError: ``txn_id`` has another length than 16 octets.
    """
    return _named(_run(connection, _outcome(txn_id)))


async def outcome_async(connection: AsyncConnection, txn_id: bytes | UUID) -> str | None:
    """As :func:`outcome`."""
    return _named(await _run_async(connection, _outcome(txn_id)))


class _Terms(NamedTuple):
    properties: Mapping[str, object] | None
    headers: Mapping[str, object] | None
    group_id: str | None
    delay: timedelta | None
    deliver_at: datetime | None
    ttl: timedelta | None
    priority: int | None


def _post(address: str, body: object, terms: _Terms) -> _Call:
    kind, given = _encoded(body)
    return _call(f"coordinator.post(%s::text, %s::{kind}", address, given, terms)


def _post_many(address: str, bodies: Sequence[object], terms: _Terms) -> _Call:
    if isinstance(bodies, str | bytes | bytearray | memoryview | dict):  # each of its letters would be a body
        raise ValueError(f"bodies is of type {type(bodies).__name__}; expected a list of bodies")
    encoded = [_encoded(body) for body in bodies]
    kinds = {kind for kind, _ in encoded} or {"text"}
    if len(kinds) > 1:
        raise ValueError(f"the bodies are of several types ({', '.join(sorted(kinds))}), one was expected")
    return _call(
        f"coordinator.post_many(%s::text, %s::{kinds.pop()}[]", address, [given for _, given in encoded], terms
    )


def _encoded(body: object) -> tuple[str, str | bytes]:
    """Return the type in SQL, and the value."""
    if isinstance(body, str):
        return "text", body
    if isinstance(body, bytes | bytearray | memoryview):
        return "bytea", bytes(body)
    if isinstance(body, dict | list):
        return "jsonb", json.dumps(body)
    raise ValueError(f"the body is of type {type(body).__name__}; expected str, bytes, dict or list")


def _call(called: str, address: str, given: object, terms: _Terms) -> _Call:
    if terms.deliver_at is not None and terms.deliver_at.tzinfo is None:
        raise ValueError(f"deliver_at is {terms.deliver_at.isoformat()}, without a time zone")
    sql = f"select {called}, %s::jsonb, %s::jsonb, %s::text, %s::interval, %s::timestamptz, %s::interval, %s::int4)"
    named = [None if each is None else json.dumps(dict(each)) for each in terms[:2]]
    return sql, (address, given, *named, *terms[2:])


def _post_message(address: str, message: bytes) -> _Call:
    from proton import Message

    decoded: Any = Message()
    decoded.decode(message)
    annotations = decoded.annotations or {}
    sql = (
        "select coordinator.post_octets(%s::text, %s::bytea, "
        "greatest(to_timestamp(%s::float8 / 1000), clock_timestamp() + %s::float8 * interval '1 ms'), "
        "least(to_timestamp(%s::float8 / 1000), clock_timestamp() + %s::float8 * interval '1 ms'), %s::int4, %s::text)"
    )
    times = [annotations.get(name) for name in ("x-opt-delivery-time", "x-opt-delivery-delay")]
    ends = [round(seconds * 1000) or None for seconds in (decoded.expiry_time, decoded.ttl)]
    bounded = [None if each is None else min(int(each), _LATEST_MS) for each in (*times, *ends)]
    return sql, (address, message, *bounded, int(decoded.priority), decoded.group_id)


def _discharge(txn_id: bytes | UUID, fail: bool) -> _Call:
    return "select coordinator.discharge(%s::uuid, %s::bool)", (_uuid(txn_id), fail)


def _first_time(consumer: str, message_id: str) -> _Call:
    return "select coordinator.first_time(%s::text, %s::text)", (consumer, message_id)


def _outcome(txn_id: bytes | UUID) -> _Call:
    return "select (select outcome from coordinator.outcome where txn_id = %s::uuid)", (_uuid(txn_id),)


def _uuid(txn_id: bytes | UUID) -> UUID:
    return txn_id if isinstance(txn_id, UUID) else UUID(bytes=bytes(txn_id))


def _named(value: Any) -> str | None:
    return None if value is None else str(value)


def _run(connection: Any, call: _Call) -> Any:
    target = connection.connection() if hasattr(connection, "get_bind") else connection
    run = target.exec_driver_sql if hasattr(target, "exec_driver_sql") else target.execute
    return run(*call).fetchone()[0]


async def _run_async(connection: Any, call: _Call) -> Any:
    target = await connection.connection() if hasattr(connection, "get_bind") else connection
    if hasattr(target, "exec_driver_sql"):
        return (await target.exec_driver_sql(*call)).fetchone()[0]
    return (await (await target.execute(*call)).fetchone())[0]
