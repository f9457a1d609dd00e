"""The version of the schema: the database's, the one that this version needs, and the way between (``alembic/``)."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, text

from store import partitions
from store.database import connected
from store.errors import SchemaMismatch
from store.tables import SCHEMA

if TYPE_CHECKING:
    from alembic.config import Config

#: Of the schema, the oldest first: each is the version of the coordinator that has made it.
REVISIONS: Final = ("0.1",)

_HERE = Path(__file__).resolve().parent
#: in this package where it is installed, else beside it
_SCRIPTS = next(folder / "alembic" for folder in (_HERE, _HERE.parent) if (folder / "alembic" / "env.py").exists())

# Of the session: two services that start at once migrate one after the other.
_LOCK = 0x636F6F72_6D696772  # "coormigr"


def upgrade(url: str) -> str | None:
    """Bring the schema to the newest of :data:`REVISIONS`; nothing happens where it is there already. Return the
    revision that it had before; None: the database held no store.

    :raises SchemaMismatch: when the database is newer than this version knows or of a development state, or is to hold
        a new store, and not all of Unicode; nothing was changed.
    """
    with connected(url, application_name="coordinator migrate") as connection:
        _lock(connection)
        found = current(connection)
        _refuse_unknown(found)
        if found == REVISIONS[-1]:
            return found
        from alembic import command  # half a second, which most starts have no use for

        _refuse_encoding(connection, found)
        for statement in _finishing(connection):
            connection.execute(text(statement))
        connection.commit()
        command.upgrade(_config(connection), "head")
        connection.commit()
    return found


def script(url: str) -> str:
    """The SQL that ``coordinator migrate`` would run on the database, for its administrator: :func:`upgrade`, and the
    days of :func:`store.partitions.make_ahead`. Empty: :func:`upgrade` has nothing to do.

    :raises SchemaMismatch: as :func:`upgrade`.
    """
    with connected(url, application_name="coordinator migrate") as connection:
        found = current(connection)
        _refuse_unknown(found)
        if found == REVISIONS[-1]:
            return ""
        _refuse_encoding(connection, found)
        from alembic import command

        written = StringIO()
        written.writelines(f"{statement};\n" for statement in _finishing(connection))
        config = _config(connection)
        config.output_buffer = written
        command.upgrade(config, f"{found or 'base'}:head", sql=True)
        written.write(f"{partitions.MAKE_AHEAD};\n")
    return written.getvalue()


def behind(url: str) -> str | None:
    """The revision of a store that :func:`upgrade` would change; None: there is no such store."""
    with connected(url, application_name="coordinator migrate") as connection:
        found = current(connection)
    return found if found in REVISIONS[:-1] else None


def current(connection: Connection) -> str | None:
    """The revision of the database; None: it holds no store."""
    if connection.scalar(text("select to_regclass(:name)"), {"name": f"{SCHEMA}.alembic_version"}) is None:
        return None
    revision = connection.scalar(text(f"select version_num from {SCHEMA}.alembic_version"))
    return None if revision is None else str(revision)


def is_behind(url: str) -> bool:
    """Whether the database holds a store that :func:`upgrade` would change."""
    with connected(url, application_name="coordinator migrate") as connection:
        return current(connection) in REVISIONS[:-1]


def check(connection: Connection) -> None:
    """:raises SchemaMismatch: when the schema is not the one that this version was made for."""
    revision = current(connection)
    connection.rollback()
    _refuse_unknown(revision)
    if revision is None:
        raise SchemaMismatch("the database holds no store yet; run: coordinator migrate")
    if revision != REVISIONS[-1]:
        raise SchemaMismatch(
            f"database schema is at {revision}, this version needs {REVISIONS[-1]}; run: coordinator migrate"
        )


def _refuse_unknown(revision: str | None) -> None:
    if revision is None or revision in REVISIONS:
        return
    if revision.isdecimal():
        raise SchemaMismatch(
            f"the database holds a store of a development state ({revision}), which this version does not read: let"
            " its consumers empty it with the version that made it, then begin anew with an empty database"
        )
    raise SchemaMismatch(
        f"database schema is at {revision}, which this version does not know (it needs {REVISIONS[-1]}); use a newer"
        " coordinator"
    )


def _refuse_encoding(connection: Connection, revision: str | None) -> None:
    """Of a database that is to hold a new store; the first migration, which an administrator may run, asks again."""
    encoding = connection.scalar(text("show server_encoding"))
    if revision is None and encoding != "UTF8":
        raise SchemaMismatch(
            f"the encoding of the database is {encoding}, expected UTF8: create database ... encoding 'UTF8'"
            " template template0"
        )


def _lock(connection: Connection) -> None:
    """Held until the connection closes."""
    # lock order: a
    connection.execute(text("select pg_advisory_lock(:key)"), {"key": _LOCK})
    connection.commit()


def _finishing(connection: Connection) -> list[str]:
    """Statements that detach partitions whose detaching was interrupted. What changes a table leaves these as they are,
    and PostgreSQL detaches none that differs from its table.
    """
    interrupted = "select inhparent::regclass::text, inhrelid::regclass::text from pg_inherits i join pg_class c"
    interrupted += " on c.oid = i.inhparent where i.inhdetachpending and c.relnamespace = to_regnamespace(:schema)"
    found = connection.execute(text(interrupted), {"schema": SCHEMA})
    return [f"alter table {table} detach partition {name} finalize" for table, name in found.all()]


def _config(connection: Connection) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    config.attributes["connection"] = connection
    return config
