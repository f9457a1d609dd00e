"""The version of the schema: the database's, the one that this version needs, and the way between (``alembic/``)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, text

from store.database import connected
from store.errors import SchemaMismatch
from store.tables import SCHEMA

if TYPE_CHECKING:
    from alembic.config import Config

#: The revision that this version needs. Revisions are numbered: the greater is the newer.
HEAD = "0042"
#: The oldest that there is.
FIRST = "0001"

# Of the session: two services that start at once migrate one after the other.
_LOCK = 0x636F6F72_6D696772  # "coormigr"


def upgrade(url: str, revision: str = HEAD) -> None:
    """Bring the schema to ``revision``; nothing happens where it is there already.

    :raises SchemaMismatch: when the database is newer than this version knows, or is to hold a new store, and not all
        of Unicode; nothing was changed.
    """
    with connected(url, application_name="coordinator migrate") as connection:
        _lock(connection)
        found = current(connection)
        _refuse_newer(found)
        if found == revision:
            return
        from alembic import command  # half a second, which most starts have no use for

        encoding = connection.scalar(text("show server_encoding"))
        if found is None and encoding != "UTF8":
            raise SchemaMismatch(
                f"the encoding of the database is {encoding}, expected UTF8: create database ... encoding 'UTF8'"
                " template template0"
            )
        _finish_detaching(connection)
        connection.commit()
        command.upgrade(_config(connection), revision)
        connection.commit()


def downgrade(url: str, revision: str = "base") -> None:
    """Take the schema back to ``revision``. ``base``: removes the store with all messages."""
    from alembic import command

    with connected(url, application_name="coordinator migrate") as connection:
        _lock(connection)
        _refuse_newer(current(connection))
        _finish_detaching(connection)
        connection.commit()
        command.downgrade(_config(connection), revision)
        connection.commit()


def current(connection: Connection) -> str | None:
    """The revision of the database; None: it holds no store."""
    if connection.scalar(text("select to_regclass(:name)"), {"name": f"{SCHEMA}.alembic_version"}) is None:
        return None
    revision = connection.scalar(text(f"select version_num from {SCHEMA}.alembic_version"))
    return None if revision is None else str(revision)


def check(connection: Connection) -> None:
    """:raises SchemaMismatch: when the schema is not the one that this version was made for."""
    revision = current(connection)
    connection.rollback()
    _refuse_newer(revision)
    if revision is None:
        raise SchemaMismatch("the database holds no store yet; run: coordinator migrate")
    if revision < HEAD:
        raise SchemaMismatch(f"database schema is at {revision}, this version needs {HEAD}; run: coordinator migrate")


def _refuse_newer(revision: str | None) -> None:
    if revision is not None and revision < FIRST:
        raise SchemaMismatch(f"database schema is at {revision!r}, which no version of the coordinator has made")
    if revision is not None and revision > HEAD:
        raise SchemaMismatch(
            f"database schema is at {revision}, newer than this version knows ({HEAD}); use a newer coordinator"
        )


def _lock(connection: Connection) -> None:
    """Held until the connection closes."""
    connection.execute(text("select pg_advisory_lock(:key)"), {"key": _LOCK})
    connection.commit()


def _finish_detaching(connection: Connection) -> None:
    """Detach partitions whose detaching was interrupted. What changes a table leaves these as they are, and PostgreSQL
    detaches none that differs from its table.
    """
    interrupted = "select inhparent::regclass::text, inhrelid::regclass::text from pg_inherits i join pg_class c"
    interrupted += " on c.oid = i.inhparent where i.inhdetachpending and c.relnamespace = to_regnamespace(:schema)"
    for table, name in connection.execute(text(interrupted), {"schema": SCHEMA}).all():
        connection.execute(text(f"alter table {table} detach partition {name} finalize"))


def _config(connection: Connection) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).resolve().parent.parent / "alembic"))
    config.attributes["connection"] = connection
    return config
