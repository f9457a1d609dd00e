"""Which sessions hold up one of the coordinator's, as PostgreSQL shows them."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, text

from store.errors import boundary

_HELD_UP = text(
    """with late as (select pid, query_start from pg_stat_activity
                      where datname = current_database() and application_name like :session
                        and state = 'active' and query_start < clock_timestamp() - make_interval(secs => :seconds))
       select (select extract(epoch from clock_timestamp() - min(query_start)) from late) as seconds,
              (select string_agg(distinct coalesce(l.relation::regclass::text, l.locktype), ', ')
                 from late join pg_locks l on l.pid = late.pid and not l.granted) as of_what,
              (select string_agg(distinct format('process %s (%s)', b.pid, b.application_name), ', ')
                 from late, unnest(pg_blocking_pids(late.pid)) blocker join pg_stat_activity b on b.pid = blocker)
              as by"""
)

_WAIT_FOR_STANDBY = text(
    "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'SyncRep'"
)


@dataclass(frozen=True, kw_only=True)
class HeldUp:
    """``seconds``: of the statement that has run for the longest; None: none does for long, or the role may not see
    it. ``of_what``: the tables, or kinds of lock, that are waited for. ``by``: the sessions that hold them, by process
    and application; None: it waits for no lock.
    """

    seconds: float | None
    of_what: str | None
    by: str | None


def held_up(connection: Connection, session: str, seconds: float) -> HeldUp:
    """What holds up sessions whose names are like this, which have been at one statement for so long."""
    with boundary():
        row = connection.execute(_HELD_UP, {"session": session, "seconds": seconds}).one()
        connection.rollback()
    return HeldUp(seconds=None if row.seconds is None else float(row.seconds), of_what=row.of_what, by=row.by)


def waiting_for_standby(connection: Connection) -> int:
    """Sessions of the database whose commit, with its locks, waits for a synchronous standby; as far as the role may
    see them.
    """
    with boundary():
        found = connection.scalar(_WAIT_FOR_STANDBY)
        connection.rollback()
    return int(found or 0)
