"""Query the state of the store for ``coordinator check``, and whether a server has what a service needs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import Connection, Row, case, func, select, text

from store import migrations
from store.database import Patience, connected
from store.embedded.programs import OLDEST_MAJOR
from store.embedded.running import runs_here
from store.errors import ONLY_READS, Locked, StoreError, StoreUnavailable, boundary, from_sqlstate
from store.heartbeat import CLOCK_SECONDS
from store.locks import HeldUp, held_up, standby_waited_for, standbys_that_may_lack
from store.partitions import FEWEST_AHEAD, days_ahead
from store.recovery import BEATING, READ_ONLY
from store.tables import SCHEMA, consumer_group, entry, heartbeat, instance, removed_group, retention, txn

#: A plain transaction that is undecided for longer than its limit and this has no instance that looks after it.
_LATE = timedelta(minutes=1)

#: Selects the most used sequence, if more than half of it is used up.
_USED_UP = text(
    "select sequencename as name, (100 * (last_value::numeric / max_value))::int4 as percent from pg_sequences"
    f" where schemaname = '{SCHEMA}' and not cycle and last_value > max_value / 2 order by 2 desc limit 1"
)

#: Counts the entries whose group does not exist. Steps through the groups of entries by key: entries are many, groups
#: are few. Those of a group that was just removed are being dropped, and the maintenance, every ten minutes, drops what
#: a crash has left of them.
_ORPHANS = text(
    f"""with recursive present(id) as (
      (select group_id from {entry.fullname} order by group_id limit 1)
      union all
      select (select e.group_id from {entry.fullname} e where e.group_id > present.id
               order by e.group_id limit 1) from present where present.id is not null)
    select count(*) from present p join {entry.fullname} e on e.group_id = p.id
     where not exists (select from {consumer_group.fullname} g where g.id = p.id)
       and not exists (select from {removed_group.fullname} r
                        where r.id = p.id and r.removed_at > now() - interval '15 minutes')"""
)

#: A batch that takes longer than this is reported: most take some milliseconds.
_LONG_SECONDS = 5
_BATCHES = "coordinator batch %"


@dataclass(frozen=True, kw_only=True)
class Health:
    """The state of the store that was found."""

    schema: str
    #: days after today that have their partitions; -1: not even today
    partitions_ahead: int
    #: True for a standby, or a database or role set to read only: no instance can write its heartbeat
    only_reads: bool
    instances_alive: int
    #: instances that are silent, and that no other instance has given up
    instances_silent: int
    undecided: int
    #: seconds since the oldest undecided transaction was declared; None: there is none
    oldest_undecided_seconds: float | None
    #: undecided past their limit
    overdue: int
    #: the living instance whose clock differs most from the database's, by how much it is ahead, and below 0 behind;
    #: None: all clocks agree within :data:`store.heartbeat.CLOCK_SECONDS`
    clock_ahead_instance: int | None
    clock_ahead_seconds: float | None
    #: number of entries whose group does not exist: they are never delivered
    orphans: int
    #: the most used sequence of ids that do not come again, once more than half of them are used; and how much is, in
    #: percent
    ids_running_out: str | None
    ids_used_percent: int | None
    #: how long a batch of the service has waited, for others' locks or over all its attempts; None: none does for
    #: longer than some seconds
    commit_waits_seconds: float | None
    #: the sessions that hold it up, by process and application
    held_up_by: str | None
    #: the synchronous standby that commits of the service wait for, and which are connected; None: none waits for long
    standby_waited_for: str | None
    #: standbys that may lack what was acknowledged last; None: there is none, or the role may not see it
    standbys_that_may_lack: str | None
    #: the error with which the database refuses it at each attempt, as where its disk is full
    commit_refused_with: str | None
    #: from which day on all messages, and all decisions, are there; None: none was ever dropped
    messages_kept_from: date | None
    decisions_kept_from: date | None
    #: of the database on disk, with what else is in it
    database_bytes: int
    #: free space on the disk of a server on this machine, in percent; None: it was not looked at, as the server may run
    #: elsewhere, in another container also, or does not tell
    free_percent: int | None
    #: the same in octets
    free_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class InstanceLine:
    """An instance in a list. ``host``: its machine, as it names it. Of its last heartbeat, None: there was none yet."""

    id: int
    host: str
    pid: int
    version: str
    started_at: datetime
    ended_at: datetime | None
    beaten_at: datetime | None
    #: whether it has beaten recently; None also: it has ended
    beats: bool | None
    commit_waits_seconds: float | None
    clock_ahead_seconds: float | None


def instances(connection: Connection, most: int) -> list[InstanceLine]:
    """Return the instances that have not ended, then the last that have; ``most`` at most."""
    query = select(
        *(instance.c[name] for name in ("id", "host", "pid", "version", "started_at", "ended_at")),
        *(heartbeat.c[name] for name in ("beaten_at", "commit_waits_seconds", "clock_ahead_seconds")),
        case((instance.c.ended_at.is_(None), BEATING)).label("beats"),
    )
    latest = query.select_from(instance.outerjoin(heartbeat)).order_by(
        instance.c.ended_at.is_not(None), instance.c.id.desc()
    )
    with boundary():
        rows = connection.execute(latest.limit(most)).all()
        connection.rollback()
    return [InstanceLine(**row._mapping) for row in rows]


def read(connection: Connection, data_dir: Path | None = None) -> Health:
    """Query the state of the store. ``data_dir``: of the embedded server, whose disk is looked at; None: the server is
    asked for it, which it answers a superuser.

    :raises SchemaMismatch: the database has no store of this version.
    :raises Locked: another session locks a table that is read; the text names it if a batch waits for it, too.
    """
    migrations.check(connection)
    waits = held_up(connection, _BATCHES, _LONG_SECONDS)
    try:
        return _health(connection, waits, data_dir)
    except Locked as error:
        by = f", as a batch of the service is: {waits.by}" if waits.by else ""
        raise Locked(f"{error}{by}", sqlstate=error.sqlstate) from None


def _health(connection: Connection, waits: HeldUp, data_dir: Path | None) -> Health:
    with boundary():
        living = connection.execute(
            select(heartbeat, BEATING.label("beating"))
            .select_from(instance.join(heartbeat))
            .where(instance.c.ended_at.is_(None))
        ).all()
        undecided = connection.execute(
            select(
                READ_ONLY,
                func.count().label("all"),
                func.extract("epoch", func.now() - func.min(txn.c.declared_at)).label("age"),
                func.count().filter(txn.c.timeout_at < func.now() - _LATE).label("overdue"),
            )
        ).one()
        orphans = connection.scalar(_ORPHANS)
        used = connection.execute(_USED_UP).one_or_none()
        kept = _kept_from(connection)
        octets = connection.scalar(text("select pg_database_size(current_database())"))
        folder = data_dir or _folder_here(connection)
        connection.rollback()
    beats = [each for each in living if each.beating]
    clock_instance, clock_seconds = _worst_clock(beats)
    commit_waits, refused_with = _longest_wait(beats)
    free, total = (None if folder is None else _room(folder)) or (None, None)
    return Health(
        schema=migrations.REVISIONS[-1],
        partitions_ahead=days_ahead(connection),
        only_reads=undecided.only_reads,
        instances_alive=len(beats),
        instances_silent=len(living) - len(beats),
        undecided=undecided.all,
        oldest_undecided_seconds=None if undecided.age is None else max(0.0, float(undecided.age)),
        overdue=undecided.overdue,
        clock_ahead_instance=clock_instance,
        clock_ahead_seconds=clock_seconds,
        orphans=int(orphans or 0),
        ids_running_out=used.name if used else None,
        ids_used_percent=used.percent if used else None,
        commit_waits_seconds=max((each for each in (waits.seconds, commit_waits) if each is not None), default=None),
        held_up_by=waits.by,
        standby_waited_for=standby_waited_for(connection, _LONG_SECONDS),
        standbys_that_may_lack=standbys_that_may_lack(connection),
        commit_refused_with=str(from_sqlstate(refused_with)) if refused_with else None,
        messages_kept_from=kept.get("half"),
        decisions_kept_from=kept.get("op"),
        database_bytes=octets or 0,
        free_percent=free * 100 // total if free is not None and total else None,
        free_bytes=free,
    )


def _kept_from(connection: Connection) -> dict[str, date]:
    """Return the day from which on all rows are kept, for each table of which some were dropped."""
    rows = connection.execute(select(retention.c.table_name, retention.c.kept_from))
    return {row.table_name: row.kept_from for row in rows}


def _worst_clock(beats: Sequence[Row[Any]]) -> tuple[int | None, float | None]:
    """Return the instance whose clock differs most from the database's, if notably, and how far it is ahead."""
    off = [(abs(each.clock_ahead_seconds or 0.0), each.instance_id, each.clock_ahead_seconds) for each in beats]
    most, instance_id, seconds = max(off, default=(0.0, None, None))
    return (instance_id, seconds) if most > CLOCK_SECONDS else (None, None)


def _longest_wait(beats: Sequence[Row[Any]]) -> tuple[float | None, str | None]:
    """Return how long the batch that waits longest has waited, if for long, and the SQLSTATE of its refusal."""
    waits = [(each.commit_waits_seconds or 0.0, each.commit_refused_with) for each in beats]
    seconds, refused_with = max(waits, default=(0.0, None), key=itemgetter(0))
    return (seconds, refused_with) if seconds >= _LONG_SECONDS else (None, None)


def wrong(found: Health, *, fewest_free: int, least_bytes: int) -> list[str]:
    """What needs an operator, a line each. Of the disk less must not be free than ``fewest_free`` percent, nor than
    ``least_bytes``, with less of which a service refuses posts.
    """
    lines = []
    if found.partitions_ahead < FEWEST_AHEAD:
        lines.append(f"partitions reach {found.partitions_ahead} days ahead only; soon nothing can be posted")
    if not found.instances_alive:
        why = f", or can say so: {from_sqlstate(ONLY_READS)}" if found.only_reads else ""
        lines.append(f"no instance is alive{why}")
    if found.instances_silent:
        lines.append(f"{found.instances_silent} instances are silent and were not given up")
    if found.overdue:
        lines.append(f"{found.overdue} transactions are undecided past their limit")
    if found.commit_waits_seconds is not None:
        by = f"; held up by {found.held_up_by}" if found.held_up_by else ""
        why = f"; {found.commit_refused_with}" if found.commit_refused_with else ""
        waits = f"{found.commit_waits_seconds:.0f} s"
        lines.append(f"a batch of the service waits for {waits}, and clients with it{by}{why}")
    if found.standby_waited_for is not None:
        lines.append(f"commits wait for a synchronous standby: {found.standby_waited_for}")
    if found.clock_ahead_seconds is not None:
        by = f"{abs(found.clock_ahead_seconds):.0f} s {'ahead of' if found.clock_ahead_seconds > 0 else 'behind'}"
        lines.append(f"the clock of instance {found.clock_ahead_instance} is {by} the database's; keep both by NTP")
    if found.orphans:
        lines.append(f"{found.orphans} entries belong to no consumer group: they are never delivered")
    if found.ids_running_out is not None:
        lines.append(f"{found.ids_used_percent} percent of the ids of {found.ids_running_out} are used up")
    if found.free_percent is not None and found.free_percent < fewest_free:
        lines.append(f"{found.free_percent} percent of the disk are free")
    if found.free_bytes is not None and found.free_bytes < least_bytes:
        lines.append(
            f"{found.free_bytes >> 20} MiB of the disk are free, less than limits.disk_free_bytes "
            f"({least_bytes >> 20} MiB): with an embedded server, posts are refused"
        )
    return lines


def _folder_here(connection: Connection) -> Path | None:
    """Return the data folder of a server that runs on this machine; None: it does not, or the role may not ask."""
    folder = connection.scalar(text("select setting from pg_settings where name = 'data_directory'"))
    server = connection.connection.driver_connection
    here = isinstance(server, psycopg.Connection) and folder and runs_here(server.fileno(), Path(folder))
    return Path(folder) if here else None


def _room(folder: Path) -> tuple[int, int] | None:
    """Return the free octets of the folder's disk, and its size; None: they are not known."""
    try:
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        usage = shutil.disk_usage(folder)
    except OSError:
        return None
    return usage.free, usage.total


# Whether a PostgreSQL server has what a service needs.

#: The number of a worker's connections: batch, queries, heartbeat, decisions.
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
