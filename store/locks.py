"""Lock tasks that one process at a time may do, by rows that only the owner of the store and its service can lock.

PostgreSQL gives its advisory locks to every role that may connect to the database: one that only posts in SQL could
keep the service from starting.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, text

from store.errors import Contended, boundary
from store.schema import SCHEMA

#: The names of the locks, and the task of each.
NAMES: Final = {
    "slots": "choose the slot of an instance's ids",
    "giving up": "give up instances that are dead",
    "days": "make the partitions of a day",
    "places": "give entries that are due their places",
    "notice": "give the notice of what applications commit",
}

#: The row of each lock, for a ``select ... for update``, or PL/pgSQL's ``perform``.
ROW_OF: Final = {name: f"from {SCHEMA}.lock l where l.name = '{name}'" for name in NAMES}


def take(connection: Connection, name: str) -> None:
    """Wait for the lock; the SQL transaction has it until its end.

    :raises Contended: another has it for longer than the connection waits for a lock.
    """
    connection.execute(text(f"select {ROW_OF[name]} for update"))


@contextmanager
def over_commits(connection: Connection, table: str, mode: str, *, at_once: bool = False) -> Iterator[bool]:
    """Lock a table during the block, over commits of ``connection``, by a second connection.

    A transaction with only such a lock delays neither vacuum nor readers of committed rows. False: with ``at_once``,
    another session has a conflicting lock.
    """
    with boundary(), connection.engine.connect() as beside:
        mine = True
        try:
            with boundary():
                beside.execute(text(f"lock table {SCHEMA}.{table} in {mode} mode{' nowait' if at_once else ''}"))
        except Contended:
            mine = False
        yield mine


# The sessions that block those of the coordinator, as PostgreSQL shows them.

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
#: The sessions of the service whose commit waits so; and the standbys that are connected, of those that the role sees.
_STANDBY = text(
    """select current_setting('synchronous_standby_names') as names,
              (select string_agg(format('%s (%s)', application_name, sync_state), ', ' order by application_name)
                 from pg_stat_replication where sync_state is not null) as connected
        where exists (select from pg_stat_activity
                       where datname = current_database() and application_name like 'coordinator %'
                         and wait_event = 'SyncRep'
                         and query_start < clock_timestamp() - make_interval(secs => :seconds))"""
)
#: Standbys, and not what reads logical changes: commits wait for those that are ``sync``, and for some of a quorum.
_MAY_LACK = text(
    """select string_agg(format('%s (%s)', r.application_name, r.sync_state), ', ' order by r.application_name)
         from pg_stat_replication r
        where r.state in ('streaming', 'catchup') and (r.sync_state <> 'sync' or r.state = 'catchup')
          and not exists (select from pg_replication_slots s where s.active_pid = r.pid and s.slot_type = 'logical')"""
)


@dataclass(frozen=True, kw_only=True)
class HeldUp:
    """What blocks a session.

    ``seconds``: of the statement that has run longest; None: no statement runs for long, or the role may not see it.
    ``of_what``: the tables, or kinds of lock, that it waits for. ``by``: the sessions that have locked them, by process
    and application; None: it waits for no lock.
    """

    seconds: float | None
    of_what: str | None
    by: str | None


def held_up(connection: Connection, session: str, seconds: float) -> HeldUp:
    """Query what blocks sessions with names like ``session`` that have run one statement for so many ``seconds``."""
    with boundary():
        row = connection.execute(_HELD_UP, {"session": session, "seconds": seconds}).one()
        connection.rollback()
    return HeldUp(seconds=None if row.seconds is None else float(row.seconds), of_what=row.of_what, by=row.by)


def waiting_for_standby(connection: Connection) -> int:
    """Count the database's sessions whose commit, with its locks, waits for a synchronous standby.

    Only those that the role may see are counted.
    """
    with boundary():
        found = connection.scalar(_WAIT_FOR_STANDBY)
        connection.rollback()
    return int(found or 0)


def standbys_that_may_lack(connection: Connection) -> str | None:
    """Return the standbys that may lack what was acknowledged last, by name and ``sync_state``: those that commits do
    not wait for, and each of a quorum, as they wait for some. None: there is none, or the role may not see it.
    """
    with boundary():
        found: str | None = connection.scalar(_MAY_LACK)
        connection.rollback()
    return found


def standby_waited_for(connection: Connection, seconds: float) -> str | None:
    """Return which synchronous standby a commit of the service has waited for, for so many ``seconds``; None: no commit
    has, or the role may not see it.
    """
    with boundary():
        row = connection.execute(_STANDBY, {"seconds": seconds}).one_or_none()
        connection.rollback()
    if row is None:
        return None
    return f"{row.names!r}, by synchronous_standby_names; connected: {row.connected or 'none'}"
