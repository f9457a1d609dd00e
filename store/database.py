"""Connections for everything that is not on the path of a message: SQLAlchemy Core over psycopg, synchronous."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.pool import NullPool

from store.errors import StoreError, StoreUnavailable, boundary


class DatabaseUrlInvalid(StoreError):
    """What was given as the database's URL is not one. The text itself is never repeated: it may hold a password."""


def check_url(url: str) -> str:
    """``url`` again, when libpq can read it: ``postgresql://user@host:port/database?parameter=value``.

    :raises DatabaseUrlInvalid: without repeating any part of it.
    """
    if not url.startswith(("postgresql://", "postgres://")):
        raise DatabaseUrlInvalid("the database URL must begin with postgresql://")
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise DatabaseUrlInvalid(
            "the database URL cannot be read; expected postgresql://user:password@host:port/database, "
            "with % and other special characters written as %25 and so on"
        ) from None
    return url


def place(url: str) -> str:
    """Where ``url`` leads, fit for a log: host, port and database; never a user's secret."""
    parts = conninfo_to_dict(check_url(url))
    host = str(parts.get("host") or parts.get("hostaddr") or "localhost")
    return f"{host}:{parts.get('port') or 5432}/{parts.get('dbname') or parts.get('user') or ''}"


def engine(url: str, *, application_name: str = "coordinator") -> Engine:
    """An engine without a pool: administration connects, asks and goes. libpq itself reads ``url``, all of it."""
    check_url(url)

    def connect() -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(url, application_name=application_name, connect_timeout=10)

    return create_engine("postgresql+psycopg://", creator=connect, poolclass=NullPool)


@contextmanager
def connected(url: str, *, application_name: str = "coordinator") -> Iterator[Connection]:
    """One connection; the caller commits. Driver errors become those of :mod:`store.errors`.

    :raises StoreUnavailable: when the database is away, naming the place.
    """
    try:
        with boundary():
            connection = engine(url, application_name=application_name).connect()
    except StoreUnavailable as error:
        raise StoreUnavailable(f"database at {place(url)}: {error}", sqlstate=error.sqlstate) from None
    with connection, boundary():
        yield connection
