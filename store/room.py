"""Whether a PostgreSQL server has what a service needs."""

from __future__ import annotations

from sqlalchemy import Connection, text

from store.database import Patience, connected
from store.embedded.programs import OLDEST_MAJOR
from store.errors import StoreError, StoreUnavailable, boundary

#: Connections of a worker: batch, queries, heartbeat, decisions.
PER_WORKER = 4
#: Connections for the watch, the maintenance, the metrics, and a command.
BESIDE = 4
#: how often a connection asks for its session once a second one is idle: of those that a pooler lends in turn
_TURNS = 3


def connections_needed(workers: int) -> int:
    return workers * PER_WORKER + BESIDE


def check_sessions(connection: Connection, url: str, patience: Patience) -> None:
    """:raises StoreError: when SQL transactions of one connection are in sessions of several."""
    ask = text("select pg_backend_pid()")
    with boundary(), connected(url, patience=patience) as other:
        mine = {connection.scalar(ask)}
        connection.rollback()
        # A pooler lends what was given back last, or another where someone has that; or each of them in turn.
        others = other.scalar(ask)
        mine.add(connection.scalar(ask))
        connection.rollback()
        other.rollback()
        for _ in range(_TURNS):
            mine.add(connection.scalar(ask))
            connection.rollback()
    if len(mine) > 1 or others in mine:
        raise StoreError(
            "a pooler in front of the server lends a session for each SQL transaction: it has to be in session mode"
        )


def check_room(connection: Connection, workers: int) -> None:
    """:raises StoreError: when the server is too old, or will never have as many connections as ``workers`` need.
    :raises StoreUnavailable: when others have too many of them now.
    """
    with boundary():
        found = connection.execute(
            text(
                "select current_setting('server_version_num')::int / 10000 as major, "
                "current_setting('max_connections')::int as most, "
                "current_setting('superuser_reserved_connections')::int "
                "  + coalesce(current_setting('reserved_connections', true)::int, 0) as reserved, "
                "(select count(*) from pg_stat_activity where backend_type = 'client backend' "
                "  and pid <> pg_backend_pid()) as used"
            )
        ).one()
        connection.rollback()
    if found.major < OLDEST_MAJOR:
        raise StoreError(f"the server is PostgreSQL {found.major}; {OLDEST_MAJOR} or newer is needed")
    needed = connections_needed(workers)
    left = found.most - found.reserved - found.used
    if left < needed:
        kind = StoreUnavailable if needed <= found.most - found.reserved else StoreError
        raise kind(
            f"{workers} workers need {needed} connections to the database and {left} are left: max_connections is "
            f"{found.most}, {found.reserved} are reserved, {found.used} in use; raise it, or set fewer workers"
        )
