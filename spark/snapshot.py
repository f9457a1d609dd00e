"""Hold one PostgreSQL snapshot of the store for a whole run, exported and kept open by the driver (R1)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

import adbc_driver_manager
import psycopg

from spark.period import Period
from store.ids import begin_of
from store.schema import AS_READ, SCHEMA

#: The largest size of the large tables of a small store.
SMALL_BYTES: Final = 16 * 1024 * 1024
#: A run over a store up to this size, some 1,000,000 halves, is short: it uses more processor time with Java's second
#: compiler than without.
BRIEF_BYTES: Final = 192 * 1024 * 1024
_LARGE_TABLES: Final = ("half", "op", "entry")
_USUAL_PORT: Final = 5432
#: Whether it is a standby, and when the last commit was made that it has; null: it had none since it was started.
_REPLAYED: Final = b"select pg_is_in_recovery(), pg_last_xact_replay_timestamp()"


class StoreUnreadable(Exception):
    """The store cannot be reconciled: it is away, refuses the log-in, or is no store. The message has no password."""


@dataclass(frozen=True, kw_only=True)
class At:
    """Where a store is. ``credentials``: a file with the URL that is there for the tasks, too, wherever they run.
    ``place``: what an error names it by, where there are several."""

    url: str
    credentials: Path | None = None
    place: str = ""


@dataclass(frozen=True, kw_only=True)
class StoreName:
    """The names of a store: the database and its server, the store's own id, the revision of its schema."""

    database: str
    server: str
    id: str
    schema: str

    def __str__(self) -> str:
        return f"{self.server}/{self.database}"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """An exported snapshot: ``name`` is for ``SET TRANSACTION SNAPSHOT``. ``taken_at``: PostgreSQL's time then; of a
    standby, that of the last commit that it had from its primary: what came later is not seen, and not judged.
    """

    name: str
    taken_at: datetime
    store: StoreName
    #: The first day whose halves are all kept: retention has dropped earlier ones. None: nothing was dropped.
    kept_since: datetime | None = None
    #: The connection that holds it.
    connection: psycopg.Connection

    def kept(self, period: Period) -> Period:
        """Return the part of ``period`` that can be judged: retention has dropped the halves of earlier days (H16).

        :raises StoreUnreadable: there is no such part.
        """
        if self.kept_since is None or self.kept_since <= period.since:
            return period
        if self.kept_since >= period.until:
            raise StoreUnreadable(
                f"the messages of that period are not kept any more: they are kept since {self.kept_since.isoformat()}"
            )
        return replace(period, since=self.kept_since)


@contextmanager
def exported_snapshot(url: str) -> Iterator[Snapshot]:
    """Hold one snapshot of the database at ``url`` open until the block ends.

    It holds back vacuum: leave the block as soon as everything has been read.

    :raises StoreUnreadable: no connection, or no tables of ours in it.
    """
    try:
        connection = psycopg.connect(url, application_name="coordinator reconcile", keepalives_idle=30)
    except psycopg.Error as error:
        raise _unreadable(error) from None
    try:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        try:
            behind = _as_of(connection)
            # a snapshot is as old as the first statement of its transaction
            connection.commit()
            connection.execute(AS_READ)
            # a server that ends idle transactions must not end this one
            connection.execute("set local idle_in_transaction_session_timeout = 0")
            # Before the snapshot is taken: from here on retention drops no day.
            connection.execute(f"lock table {SCHEMA}.half, {SCHEMA}.op in access share mode".encode())
            found = connection.execute("select pg_export_snapshot(), clock_timestamp()").fetchone()
            kept_since = messages_kept_since(connection)
            store = _store_name(connection)
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            raise StoreUnreadable(
                f"database: there is no table {SCHEMA}.half in it; is it the coordinator's, and migrated?"
            ) from None
        except psycopg.Error as error:
            raise _unreadable(error) from None
        assert found is not None
        yield Snapshot(
            name=found[0], taken_at=behind or found[1], store=store, kept_since=kept_since, connection=connection
        )
    finally:
        connection.close()


def _as_of(connection: psycopg.Connection) -> datetime | None:
    """Return up to when a standby has what its primary has committed; None: it is no standby."""
    row = connection.execute(_REPLAYED).fetchone()
    assert row is not None
    if row[0] and row[1] is None:
        raise StoreUnreadable(
            "database: a standby that has had no commit of its primary since it was started: it cannot"
            " say as of when it is; run it again once the service has written something"
        )
    return row[1] if row[0] else None


def messages_kept_since(connection: psycopg.Connection) -> datetime | None:
    row = connection.execute(f"select kept_from from {SCHEMA}.retention where table_name = 'half'".encode()).fetchone()
    return None if row is None else begin_of(row[0])


def _store_name(connection: psycopg.Connection) -> StoreName:
    found = connection.execute(
        f"select i.id, v.version_num from {SCHEMA}.store_identity i, {SCHEMA}.alembic_version v".encode()
    ).fetchone()
    assert found is not None
    at = connection.info
    server = at.host if at.host.startswith("/") and at.port == _USUAL_PORT else f"{at.host}:{at.port}"
    return StoreName(database=at.dbname, server=server, id=found[0], schema=found[1])


def store_bytes(connection: psycopg.Connection) -> int:
    """Return the size of the store's large tables, without large messages."""
    trees = " union all ".join(f"select * from pg_partition_tree('{SCHEMA}.{name}')" for name in _LARGE_TABLES)
    row = connection.execute(
        f"select coalesce(sum(pg_relation_size(relid)), 0) from ({trees}) t where isleaf".encode()
    ).fetchone()
    assert row is not None
    return int(row[0])


def has_keys(connection: psycopg.Connection) -> bool:
    """Return whether halves and ops have their primary keys, so that no table has an id twice."""
    row = connection.execute(
        "select count(*) from pg_index where indisprimary and indisvalid"
        f" and indrelid in ('{SCHEMA}.half'::regclass, '{SCHEMA}.op'::regclass)".encode()
    ).fetchone()
    assert row is not None
    return int(row[0]) == 2


def is_brief(url: str) -> bool:
    """Return whether a run over the store at ``url`` is too short for Java's second compiler to pay off.

    True also if the store cannot be read."""
    try:
        with psycopg.connect(url, application_name="coordinator reconcile") as connection:
            return store_bytes(connection) <= BRIEF_BYTES
    except psycopg.Error:
        return True


@contextmanager
def read_error() -> Iterator[None]:
    """Convert the database's errors of the block, by either driver, to :class:`StoreUnreadable`."""
    try:
        yield
    except (psycopg.Error, adbc_driver_manager.Error) as error:
        raise _unreadable(error) from None


def _unreadable(error: Exception) -> StoreUnreadable:
    return StoreUnreadable(f"database: {' '.join(str(error).split())}")
