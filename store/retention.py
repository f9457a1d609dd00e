"""Retention: messages and decisions are dropped a day at a time, when they have been kept long enough (H16).

**Decision.** A day is emptied by TRUNCATE of its partition, and the empty partition is dropped afterwards. TRUNCATE
locks that partition alone, so it waits only for readers of that very day. To detach a partition waits, even
``concurrently``, for all readers of the table, for as long as a dump or a reconciliation takes; by then the disk has
its room back. Rows of the day that must stay (undelivered, undecided, consumed not long ago, or of an address that
keeps its messages longer) are written anew into the emptied partition in the same SQL transaction. They are looked for
before the lock is taken, so the lock lasts for these few rows only; a day with many of them is kept whole until they
are few.

A half never becomes undelivered again, and halves never change: what was found before the lock is still true under it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from sqlalchemy import Connection, func, select, text
from sqlalchemy.dialects import postgresql

from store.errors import Contended, boundary
from store.ids import begin_of, id_at
from store.partitions import PARTITIONED, existing, op_id_at
from store.retention_size import shortened
from store.tables import (
    PARTITIONS_LOCK,
    SCHEMA,
    address,
    batch_mark,
    consumer_group,
    group_read,
    instance,
    retention,
    txn,
)

#: A day is kept whole if more rows than these must stay.
MOST_CARRIED_ROWS = 10_000
MOST_CARRIED_BYTES = 16 << 20

#: How long until rows that stayed are checked again; days that have just become old enough are checked at once.
AGAIN = timedelta(hours=6)
#: and where messages take too much room
AGAIN_BY_SIZE = timedelta(hours=1)

#: from the declare of a transaction to its decision
LONGEST_UNDECIDED = timedelta(days=3)
_LOCK_TIMEOUT = "200ms"
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How long messages are kept after they were consumed, unless their address says otherwise; and decisions.
    ``messages_bytes``: what messages may take; 0: no limit.
    """

    messages: timedelta
    decisions: timedelta
    messages_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """What :func:`drop_old` did, as names of partitions."""

    #: emptied, except for rows that must stay
    emptied: tuple[str, ...] = ()
    #: halves that stay in them
    carried: int = 0
    #: dropped altogether
    removed: tuple[str, ...] = ()
    #: the day, or all of the table, is being read: tried again later
    waiting: tuple[str, ...] = ()
    #: too many of their rows must stay
    whole: tuple[str, ...] = ()
    #: rows of instances that ended long ago
    instances: int = 0


def decisions_kept_since(connection: Connection) -> datetime | None:
    """The first day whose decisions are all there; None: nothing was ever dropped.

    The store does not know the outcome of transactions declared before it.
    """
    return _kept_since(connection, "op")


def messages_kept_since(connection: Connection) -> datetime | None:
    """The first day whose halves are all there; None: nothing was ever dropped. Of earlier days only halves are there
    that had to stay.
    """
    return _kept_since(connection, "half")


def _kept_since(connection: Connection, table: str) -> datetime | None:
    with boundary():
        day = connection.scalar(select(retention.c.kept_from).where(retention.c.table_name == table))
    return None if day is None else begin_of(day)


def drop_old(connection: Connection, policy: Policy) -> Dropped:
    """Drop what is old enough; commits, step by step. What cannot be locked at once is left for the next time."""
    with boundary(), _alone(connection) as mine:
        if not mine:
            return Dropped()
        now = connection.scalar(select(func.now()))
        assert now is not None
        connection.rollback()
        done = _Work(connection, policy, now)
        done.halves()
        done.ops()
        removed, waiting = _remove_empty(connection, now)
        instances = _forget_instances(connection, policy)
        _forget_marks(connection)
    return Dropped(
        emptied=tuple(done.emptied),
        carried=done.carried,
        removed=tuple(removed),
        waiting=(*done.waiting, *waiting),
        whole=tuple(done.whole),
        instances=instances,
    )


@contextmanager
def _alone(connection: Connection) -> Iterator[bool]:
    """One process at a time: several services may share the store."""
    key = {"key": PARTITIONS_LOCK + 1}
    mine = bool(connection.scalar(text("select pg_try_advisory_lock(:key)"), key))
    connection.commit()
    try:
        yield mine
    finally:
        connection.rollback()
        if mine:
            connection.execute(text("select pg_advisory_unlock(:key)"), key)
            connection.commit()


class _Work:
    def __init__(self, connection: Connection, policy: Policy, now: datetime) -> None:
        self._connection = connection
        self._policy = shortened(connection, policy, now)
        self._by_size = self._policy != policy
        self._now = now
        self.emptied: list[str] = []
        self.carried = 0
        self.waiting: list[str] = []
        self.whole: list[str] = []

    # -- halves

    def halves(self) -> None:
        connection = self._connection
        row = connection.execute(select(retention).where(retention.c.table_name == "half")).one_or_none()
        kept = self._address_hours()
        shortest = min([self._policy.messages, *kept.values()])
        end = self._day_before(shortest)
        connection.rollback()
        days = sorted(day for day in existing(connection)["half"] if day < end)
        if not days or (row is not None and self._looked(row.looked_at, shortest)):
            return
        self._find_kept(begin_of(end), kept)
        for day in days:
            self._empty_half(day, kept)
        connection.execute(text("drop table if exists pg_temp.staying"))
        connection.commit()
        at = _NEVER if self.waiting else self._now
        looked = postgresql.insert(retention).values(table_name="half", kept_from=days[0], looked_at=at)
        connection.execute(looked.on_conflict_do_update(index_elements=["table_name"], set_={"looked_at": at}))
        connection.commit()

    def _looked(self, before: datetime, age: timedelta) -> bool:
        """Whether the look at ``before`` was not long ago, and no day has become old enough since."""
        if self._by_size:
            return self._now < before + AGAIN_BY_SIZE
        return self._now < before + AGAIN and (before - age).astimezone(UTC).date() == self._day_before(age)

    def _day_before(self, age: timedelta) -> date:
        """The first day that is not old enough: it ended less than ``age`` ago."""
        return (self._now - age).astimezone(UTC).date()

    def _address_hours(self) -> dict[int, timedelta]:
        rows = self._connection.execute(
            select(address.c.id, address.c.retention_hours).where(address.c.retention_hours.is_not(None))
        )
        most = self._policy.messages if self._by_size else timedelta.max
        return {row.id: min(timedelta(hours=row.retention_hours), most) for row in rows}

    def _find_kept(self, end: datetime, kept: dict[int, timedelta]) -> None:
        """Collect the halves before ``end`` that are undelivered, undecided, or were consumed not long ago, in a table
        ``staying``.
        """
        longest = max([self._policy.messages, *kept.values()])
        connection = self._connection
        connection.execute(text("drop table if exists pg_temp.staying"))
        connection.execute(
            text(
                f"""create temporary table staying as
                    select half_id from {SCHEMA}.entry where half_id < :end
                    union
                    select half_id from {SCHEMA}.pending where half_id < :end
                    union
                    select u.half_id from {SCHEMA}.op o cross join lateral unnest(o.half_ids, o.group_ids)
                             as u(half_id, group_id)
                      left join {SCHEMA}.consumer_group g on g.id = u.group_id
                      left join {SCHEMA}.address a on a.id = g.address_id
                     where o.id >= :since and u.half_id < :end
                       and o.decided_at > now() - least(
                             coalesce(make_interval(hours => a.retention_hours), :messages), :most)"""
            ),
            # A transaction gets its id when it is declared, and may be decided much later: it may have a day without
            # work, a day until its time is over, and wait while the store is away.
            {
                "end": id_at(end),
                "since": op_id_at(self._now - longest - LONGEST_UNDECIDED),
                "messages": self._policy.messages,
                "most": longest,
            },
        )
        connection.execute(text("create index on pg_temp.staying (half_id)"))
        connection.execute(text("analyze pg_temp.staying"))
        connection.commit()

    def _empty_half(self, day: date, kept: dict[int, timedelta]) -> None:
        name = f"half_{day:%Y%m%d}"
        limit = begin_of(day + timedelta(days=1))
        default_stays = limit + self._policy.messages > self._now
        other = [number for number, age in kept.items() if (limit + age > self._now) is not default_stays]
        by_address = "h.address_id <> all(:other)" if default_stays else "h.address_id = any(:other)"
        stays = f"(h.id in (select half_id from pg_temp.staying) or {by_address})"
        parameters = {"other": other}
        connection = self._connection
        count, octets, total = connection.execute(
            text(
                f"select count(*) filter (where stays), sum(octets) filter (where stays), count(*) "
                f"from (select {stays} as stays, octet_length(h.message) as octets from {SCHEMA}.{name} h) found"
            ),
            parameters,
        ).one()
        connection.rollback()
        if count == total and count:
            return
        if count > MOST_CARRIED_ROWS or (octets or 0) > MOST_CARRIED_BYTES:
            self.whole.append(name)
            return
        self._mark("half", day)
        if not total:
            return
        carried = f"create temporary table carried on commit drop as select * from {SCHEMA}.{name} h where {stays}"
        again = f"insert into {SCHEMA}.{name} select * from pg_temp.carried"
        if self._empty(name, before=carried, after=again, parameters=parameters):
            self.carried += count

    # -- ops

    def ops(self) -> None:
        """A decision is kept at least as long as the halves of its day, and as a transaction of the day is
        undecided.
        """
        connection = self._connection
        messages = connection.scalar(select(retention.c.kept_from).where(retention.c.table_name == "half"))
        oldest = connection.scalar(select(func.min(txn.c.declared_at)))
        connection.rollback()
        there = existing(connection)
        end = self._day_before(self._policy.decisions)
        if oldest is not None:
            end = min(end, oldest.astimezone(UTC).date() - timedelta(days=1))
        for day in sorted(day for day in there["op"] if day < end):
            if day in there["half"] and (messages is None or day >= messages):
                break
            self._mark("op", day)
            name = f"op_{day:%Y%m%d}"
            if connection.scalar(text(f"select exists (select from {SCHEMA}.{name})")):
                connection.rollback()
                self._empty(name)
            connection.rollback()

    # -- both

    def _mark(self, table: str, day: date) -> None:
        """Write the date before anything is dropped: readers then know why rows are missing."""
        statement = postgresql.insert(retention).values(
            table_name=table, kept_from=day + timedelta(days=1), looked_at=_NEVER
        )
        kept_from = func.greatest(retention.c.kept_from, statement.excluded.kept_from)
        self._connection.execute(
            statement.on_conflict_do_update(index_elements=["table_name"], set_={"kept_from": kept_from})
        )
        self._connection.commit()

    def _empty(
        self, name: str, *, before: str = "", after: str = "", parameters: dict[str, list[int]] | None = None
    ) -> bool:
        """Truncate the partition, in one SQL transaction with ``before``, which runs before the lock, and ``after``."""
        connection = self._connection
        try:
            with boundary():
                if before:
                    connection.execute(text(before), parameters)
                connection.execute(text(f"set local lock_timeout = '{_LOCK_TIMEOUT}'"))
                connection.execute(text(f"truncate {SCHEMA}.{name}"))
                if after:
                    connection.execute(text(after))
                connection.commit()
        except Contended:
            connection.rollback()
            self.waiting.append(name)
            return False
        self.emptied.append(name)
        return True


def _remove_empty(connection: Connection, now: datetime) -> tuple[list[str], list[str]]:
    """Drop the empty partitions of dropped days. Returns those dropped and those left for later."""
    removed: list[str] = []
    waiting: list[str] = []
    for table in PARTITIONED:
        kept_from = connection.scalar(select(retention.c.kept_from).where(retention.c.table_name == table))
        names = connection.execute(
            text(
                "select c.relname, i.inhdetachpending from pg_class c left join pg_inherits i on i.inhrelid = c.oid "
                r"where c.relnamespace = cast(:schema as regnamespace) and c.relname ~ :name and c.relkind = 'r' "
                "order by i.inhdetachpending desc nulls last, c.relname"
            ),
            {"schema": SCHEMA, "name": rf"^{table}_\d{{8}}$"},
        ).all()
        connection.rollback()
        if kept_from is None:
            continue
        for name, pending in names:
            if date.fromisoformat(name.partition("_")[2]) >= kept_from:
                continue
            if connection.scalar(text(f"select exists (select from {SCHEMA}.{name})")):
                connection.rollback()
                continue
            connection.rollback()
            try:
                with boundary():
                    _remove(connection, table, name, pending)
                removed.append(name)
            except Contended:
                waiting.append(name)
                break  # PostgreSQL detaches one partition at a time
    return removed, waiting


def _remove(connection: Connection, table: str, name: str, pending: bool | None) -> None:
    """``pending``: whether its detaching was interrupted; None: it is no partition any more."""
    how = "" if pending is None else "finalize" if pending else "concurrently"
    connection.execution_options(isolation_level="AUTOCOMMIT")
    try:
        connection.execute(text(f"set lock_timeout = '{_LOCK_TIMEOUT}'"))
        if how:
            connection.execute(text(f"alter table {SCHEMA}.{table} detach partition {SCHEMA}.{name} {how}"))
        connection.execute(text(f"drop table {SCHEMA}.{name}"))
    finally:
        connection.execute(text("set lock_timeout = 0"))
        connection.rollback()
        connection.execution_options(isolation_level=connection.default_isolation_level)


def _forget_marks(connection: Connection) -> None:
    """Remove rows that do not count: how far groups were read, except the highest of the holder; and marks of batches,
    except the last of each living instance.
    """
    connection.execute(
        text(
            f"""delete from {group_read.fullname} r
                 where not exists (select from {consumer_group.fullname} g
                                    where g.id = r.group_id and g.holder = r.instance_id)
                    or exists (select from {group_read.fullname} n
                                where n.group_id = r.group_id and n.instance_id = r.instance_id
                                  and n.read_through > r.read_through)"""
        )
    )
    connection.execute(
        text(
            f"""delete from {batch_mark.fullname} m
                 where not exists (select from {instance.fullname} i where i.id = m.instance_id and i.ended_at is null)
                    or exists (select from {batch_mark.fullname} n
                                where n.instance_id = m.instance_id and n.number > m.number)"""
        )
    )
    connection.commit()


def _forget_instances(connection: Connection, policy: Policy) -> int:
    """Remove rows of instances that ended before the oldest decision that is kept."""
    gone = connection.execute(instance.delete().where(instance.c.ended_at < func.now() - policy.decisions))
    connection.commit()
    return int(gone.rowcount)
