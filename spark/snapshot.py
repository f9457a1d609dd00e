"""One view of the store for a whole run: a PostgreSQL snapshot, exported and held open by the driver (R1)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

import psycopg

from store.tables import SCHEMA


class StoreUnreadable(Exception):
    """The store cannot be reconciled: it is away, refuses us, or is not a store. The message has no password."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """``name`` is what ``SET TRANSACTION SNAPSHOT`` takes; ``taken_at`` is PostgreSQL's clock at that moment."""

    name: str
    taken_at: datetime


@contextmanager
def exported_snapshot(url: str) -> Iterator[Snapshot]:
    """Hold one snapshot of the database at ``url`` open until the block ends.

    Vacuum cannot pass it meanwhile: leave the block as soon as all has been read.

    :raises StoreUnreadable: no connection, or no tables of ours in it.
    """
    try:
        connection = psycopg.connect(url, application_name="coordinator reconcile", keepalives_idle=30)
    except psycopg.Error as error:
        raise StoreUnreadable(f"database: {_line(error)}") from None
    try:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        try:
            # a server that ends idle transactions must not end this one
            connection.execute("set local idle_in_transaction_session_timeout = 0")
            found = connection.execute(
                "select to_regclass(%s) is not null, pg_export_snapshot(), clock_timestamp()", (f"{SCHEMA}.half",)
            ).fetchone()
        except psycopg.Error as error:
            raise StoreUnreadable(f"database: {_line(error)}") from None
        if found is None or not found[0]:
            raise StoreUnreadable(
                f"database: there is no table {SCHEMA}.half in it; is it the coordinator's, and migrated?"
            )
        yield Snapshot(name=found[1], taken_at=found[2])
    finally:
        connection.close()


def _line(error: psycopg.Error) -> str:
    return " ".join(str(error).split())
