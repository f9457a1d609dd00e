"""Drop messages and decisions a day at a time, when they have been kept long enough (H16).

**Decision.** A day is emptied by TRUNCATE of its partition, and the empty partition is dropped afterwards. TRUNCATE
locks that partition alone, so it waits only for readers of that very day. Detaching a partition waits, even
``concurrently``, for all readers of the table, for as long as a dump or a reconciliation takes; by then the disk space
is free already. Rows of the day that must stay (undelivered, undecided, consumed recently, or of an address that
keeps its messages longer) are written anew into the emptied partition in the same SQL transaction. They are selected
before the lock is taken, so the lock lasts for these few rows only; a day with many of them is kept whole until they
are few.

Meanwhile no half becomes undelivered again (:func:`kept`), and halves never change: what was selected before the lock
is still true under it.

While the archive is on, a day is dropped only if all rows of its partition are in its copy (R35). This is verified once
more under a lock that prevents further rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Final

from sqlalchemy import Connection, DateTime, bindparam, func, select, text
from sqlalchemy.dialects import postgresql

from store import locks
from store.archive import days as archive
from store.errors import Contended, boundary
from store.ids import LONGEST_UNDECIDED, begin_of, id_at
from store.partitions import PARTITIONED, existing, name_of, op_id_at
from store.tables import DROPPING, SCHEMA, address, batch_mark, consumer_group, group_read, instance, retention, txn

# Messages that exceed their disk limit are kept for a shorter time (rule H16).
#
# The latest days that fit are kept; those before them count as old enough, whatever their addresses' policies. What
# is undelivered or undecided stays, as always; and today is never dropped.

_SIZES = text(
    f"""select d, pg_total_relation_size(to_regclass('{SCHEMA}.half_' || to_char(d, 'YYYYMMDD')))
          from unnest(cast(:days as date[])) d order by d desc"""
)


def shortened(connection: Connection, policy: Policy, now: datetime) -> Policy:
    """Return the policy, shortened if necessary so that messages take ``policy.messages_bytes`` at most."""
    if not policy.messages_bytes:
        return policy
    rows = connection.execute(_SIZES, {"days": list(existing(connection)["half"])}).all()
    connection.rollback()
    taken = 0
    for day, octets in rows:
        taken += octets or 0  # None: another process has just dropped it
        if taken > policy.messages_bytes:
            end = begin_of(min(day + timedelta(days=1), now.astimezone(UTC).date()))
            return replace(policy, messages=min(policy.messages, now - end))
    return policy


# Retention also removes empty partitions, marks that no longer count, and instances that ended long ago.

#: How long retention waits for a lock: meanwhile others wait behind it.
LOCK_TIMEOUT: Final = "200ms"


#: Selects one object of others, such as a view, that depends on a table or on the type of its rows.
_DEPENDENT: Final = text(
    "select pg_describe_object(d.classid, d.objid, d.objsubid) "
    "from pg_class t join pg_depend d on d.refclassid = 'pg_class'::regclass and d.refobjid = t.oid "
    "or d.refclassid = 'pg_type'::regclass and d.refobjid = t.reltype "
    "where t.oid = cast(:name as regclass) and d.deptype = 'n' "
    "and not exists (select from pg_constraint c where c.oid = d.objid and c.conrelid = t.oid) limit 1"
)


def remove_empty(connection: Connection) -> tuple[list[str], list[str], list[str]]:
    """Drop the empty partitions of dropped days.

    Returns those dropped, those left for later, and those that stay, each with the object that depends on it.
    """
    removed: list[str] = []
    waiting: list[str] = []
    held: list[str] = []
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
            dependent = connection.scalar(_DEPENDENT, {"name": f"{SCHEMA}.{name}"})
            connection.rollback()
            if dependent is not None:
                held.append(f"{name}: {dependent}")
                continue
            try:
                with boundary():
                    _remove(connection, table, name, pending)
                removed.append(name)
            except Contended:
                waiting.append(name)
                break  # PostgreSQL detaches one partition at a time
    return removed, waiting, held


def _remove(connection: Connection, table: str, name: str, pending: bool | None) -> None:
    """Drop a partition. ``pending``: whether its detaching was interrupted; None: it is detached already."""
    how = "" if pending is None else "finalize" if pending else "concurrently"
    connection.execution_options(isolation_level="AUTOCOMMIT")
    try:
        connection.execute(text(f"set lock_timeout = '{LOCK_TIMEOUT}'"))
        if how:
            connection.execute(text(f"alter table {SCHEMA}.{table} detach partition {SCHEMA}.{name} {how}"))
        connection.execute(text(f"drop table {SCHEMA}.{name}"))
    finally:
        connection.execute(text("set lock_timeout = 0"))
        connection.rollback()
        connection.execution_options(isolation_level=connection.default_isolation_level)


def forget_marks(connection: Connection) -> None:
    """Remove rows that no longer count.

    These are the rows of how far groups were read, except the highest of the holder; those of who has consumers of a
    group, except living instances; and the marks of batches, except the last of each living instance.
    """
    connection.execute(
        text(
            f"""delete from {group_read.fullname} r
                 where case when r.read_through = 0
                            then not exists (select from {instance.fullname} i
                                              where i.id = r.instance_id and i.ended_at is null)
                            else not exists (select from {consumer_group.fullname} g
                                              where g.id = r.group_id and g.holder = r.instance_id)
                              or exists (select from {group_read.fullname} n
                                          where n.group_id = r.group_id and n.instance_id = r.instance_id
                                            and n.read_through > r.read_through) end"""
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


def forget_instances(connection: Connection, kept: timedelta) -> int:
    """Remove rows of instances that ended longer than ``kept`` ago, before the oldest decision. Returns how many."""
    gone = connection.execute(instance.delete().where(instance.c.ended_at < func.now() - kept))
    connection.commit()
    return int(gone.rowcount)


#: A day is kept whole if more rows than these must stay.
MOST_CARRIED_ROWS = 10_000
MOST_CARRIED_BYTES = 16 << 20

#: How long until rows that stayed are checked again; days that have just become old enough are checked at once.
AGAIN = timedelta(hours=6)
#: the same while messages exceed their disk limit
AGAIN_BY_SIZE = timedelta(hours=1)

_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How long messages are kept after they were consumed, and decisions after they were made.

    An address may have a time of its own. ``messages_bytes``: the disk space that messages may use; 0: no limit.
    """

    messages: timedelta
    decisions: timedelta
    messages_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """The result of :func:`drop_old`, as names of partitions."""

    #: emptied, except for rows that must stay
    emptied: tuple[str, ...] = ()
    #: halves that stay in them
    carried: int = 0
    #: partitions that were dropped
    removed: tuple[str, ...] = ()
    #: left for a later run, as the day, or the whole table, is being read
    waiting: tuple[str, ...] = ()
    #: kept whole, as too many of their rows must stay
    whole: tuple[str, ...] = ()
    #: kept, as the archive is on and does not have all of their rows
    unarchived: tuple[str, ...] = ()
    #: empty, and not dropped: an object of others, which is named, depends on it
    held: tuple[str, ...] = ()
    #: removed rows of instances that ended long ago
    instances: int = 0


def decisions_kept_since(connection: Connection) -> datetime | None:
    """Return the first day whose decisions are all kept; None: nothing was ever dropped.

    The store does not know the outcome of transactions declared before it.
    """
    return _kept_since(connection, "op")


def messages_kept_since(connection: Connection) -> datetime | None:
    """Return the first day whose halves are all kept; None: nothing was ever dropped.

    Of earlier days only those halves are kept that had to stay.
    """
    return _kept_since(connection, "half")


def _kept_since(connection: Connection, table: str) -> datetime | None:
    with boundary():
        day = connection.scalar(select(retention.c.kept_from).where(retention.c.table_name == table))
    return None if day is None else begin_of(day)


def drop_old(connection: Connection, policy: Policy) -> Dropped:
    """Drop what is old enough; commits step by step. What cannot be locked soon is left for the next run."""
    # one process at a time: several services may share the store
    # lock order: b
    with boundary(), locks.over_commits(connection, "lock", "share update exclusive", at_once=True) as mine:
        if not mine:
            return Dropped()
        now = connection.scalar(select(func.now()))
        assert now is not None
        connection.rollback()
        done = _Work(connection, policy, now)
        done.halves()
        done.ops()
        removed, waiting, held = remove_empty(connection)
        instances = forget_instances(connection, policy.decisions)
        forget_marks(connection)
    return Dropped(
        emptied=tuple(done.emptied),
        carried=done.carried,
        removed=tuple(removed),
        waiting=(*done.waiting, *waiting),
        whole=tuple(done.whole),
        unarchived=tuple(done.unarchived),
        held=tuple(held),
        instances=instances,
    )


@contextmanager
def kept(connection: Connection) -> Iterator[None]:
    """Prevent drops during the block, so that consumed messages can be delivered again.

    It waits for the end of a drop that is under way.
    """
    # lock order: b
    with locks.over_commits(connection, "lock", "share"):
        yield


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
        self.unarchived: list[str] = []
        self._archiving = archive.folder(connection) is not None
        self._copies = archive.copies(connection)
        connection.rollback()

    # -- halves

    def old_halves(self, kept: dict[int, timedelta]) -> list[date]:
        """Return the days of which halves may be dropped. ``kept``: the result of :meth:`address_hours`."""
        end = self._day_before(min([self._policy.messages, *kept.values()]))
        self._connection.rollback()
        return self._there("half", end)

    def _there(self, table: str, end: date) -> list[date]:
        return sorted(day for day in existing(self._connection)[table] if day < end and not self._held(table, day))

    def _held(self, table: str, day: date) -> bool:
        copy = self._copies.get((table, day))
        return copy is not None and copy.held(self._now)

    def halves(self) -> None:
        connection = self._connection
        row = connection.execute(select(retention).where(retention.c.table_name == "half")).one_or_none()
        kept = self.address_hours()
        shortest = min([self._policy.messages, *kept.values()])
        end = self._day_before(shortest)
        days = self.old_halves(kept)
        if not days or (row is not None and self._ran_recently(row.looked_at, shortest)):
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

    def _ran_recently(self, before: datetime, age: timedelta) -> bool:
        """Whether retention ran recently, at ``before``, and no further day has become old enough since."""
        if self._by_size:
            return self._now < before + AGAIN_BY_SIZE
        return self._now < before + AGAIN and (before - age).astimezone(UTC).date() == self._day_before(age)

    def _day_before(self, age: timedelta) -> date:
        """Return the first day that is not old enough: it ended less than ``age`` ago."""
        return (self._now - age).astimezone(UTC).date()

    def address_hours(self) -> dict[int, timedelta]:
        rows = self._connection.execute(
            select(address.c.id, address.c.retention_hours).where(address.c.retention_hours.is_not(None))
        )
        most = self._policy.messages if self._by_size else timedelta.max
        return {row.id: min(timedelta(hours=row.retention_hours), most) for row in rows}

    def _find_kept(self, end: datetime, kept: dict[int, timedelta]) -> None:
        """Collect the halves before ``end`` that must stay, in a temporary table ``staying``.

        They are undelivered, undecided, or were consumed recently.
        """
        longest = max([self._policy.messages, *kept.values()])
        connection = self._connection
        connection.execute(text("drop table if exists pg_temp.staying"))
        connection.execute(
            text(
                f"""create temporary table staying as
                    select half_id from {SCHEMA}.entry where half_id < :end
                    union
                    select half_id from {SCHEMA}.pending_half where half_id < :end
                    union
                    select u.half_id from {SCHEMA}.op o cross join lateral unnest(o.half_ids, o.group_ids)
                             as u(half_id, group_id)
                      left join {SCHEMA}.consumer_group g on g.id = u.group_id
                      left join {SCHEMA}.address a on a.id = g.address_id
                     where o.id >= :since and u.half_id < :end
                       and o.decided_at > now() - least(
                             coalesce(make_interval(hours => a.retention_hours), :messages), :most)"""
            ),
            # The id of a transaction is generated when it is declared; it may be decided much later.
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
        name = name_of("half", day)
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
        safe = not total or self._is_copied("half", day)
        if not safe and self._archiving:
            self.unarchived.append(name)
            return
        self._mark("half", day, archived=safe)
        if not total:
            return
        carried = f"create temporary table carried on commit drop as select * from {SCHEMA}.{name} h where {stays}"
        again = f"insert into {SCHEMA}.{name} select * from pg_temp.carried"
        if self._empty("half", day, copied=safe, before=carried, after=again, parameters=parameters):
            self.carried += count

    # -- ops

    def old_ops(self) -> list[date]:
        """Return the days of which ops may be dropped."""
        connection = self._connection
        oldest = connection.scalar(select(func.min(txn.c.declared_at)))
        connection.rollback()
        end = self._day_before(self._policy.decisions)
        if oldest is not None:
            end = min(end, oldest.astimezone(UTC).date() - timedelta(days=1))
        return self._there("op", end)

    def ops(self) -> None:
        """Drop the old ops.

        The ops of a day are kept while its halves are, while a transaction of the day is undecided, and while the
        decision of one is recent, however long ago that was declared.
        """
        connection = self._connection
        messages = connection.scalar(select(retention.c.kept_from).where(retention.c.table_name == "half"))
        connection.rollback()
        there = existing(connection)
        for day in self.old_ops():
            if day in there["half"] and (messages is None or day >= messages):
                break
            name = name_of("op", day)
            # not by written_xid: rows of a restored dump have the numbers of another server
            last = connection.scalar(text(f"select max(decided_at) from {SCHEMA}.{name}"))
            connection.rollback()
            if last is not None and last > self._now - self._policy.decisions:
                break
            safe = last is None or self._is_copied("op", day)
            if not safe and self._archiving:
                self.unarchived.append(name)
                break
            self._mark("op", day, archived=safe)
            if last is not None:
                self._empty("op", day, copied=safe)

    # -- both

    def _is_copied(self, table: str, day: date) -> bool:
        """Whether all rows of the day are archived."""
        copy = self._copies.get((table, day))
        same = copy is not None and archive.keys(self._connection, table, day) == copy.live
        self._connection.rollback()
        return same

    def _mark(self, table: str, day: date, *, archived: bool) -> None:
        """Write the date before anything is dropped, so that readers know why rows are missing."""
        end = day + timedelta(days=1)
        statement = postgresql.insert(retention).values(
            table_name=table, kept_from=end, looked_at=_NEVER, archived_from=None if archived else end
        )
        # null is ignored by PostgreSQL's greatest
        later = {
            name: func.greatest(retention.c[name], statement.excluded[name]) for name in ("kept_from", "archived_from")
        }
        self._connection.execute(statement.on_conflict_do_update(index_elements=["table_name"], set_=later))
        self._connection.commit()

    def _empty(
        self,
        table: str,
        day: date,
        *,
        copied: bool,
        before: str = "",
        after: str = "",
        parameters: dict[str, list[int]] | None = None,
    ) -> bool:
        """Truncate the partition, in one SQL transaction with ``before``, which runs before the lock, and ``after``.

        ``copied``: only if all of its rows are still archived. Whether it was truncated: False if a lock, or a new row,
        prevents it.
        """
        connection, name = self._connection, name_of(table, day)
        try:
            with boundary():
                if before:
                    connection.execute(text(before), parameters)
                connection.execute(text(f"set local lock_timeout = '{LOCK_TIMEOUT}'"))
                if copied:
                    # lock order: 10
                    connection.execute(text(f"lock table {SCHEMA}.{name} in share mode"))
                    if archive.keys(connection, table, day) != self._copies[table, day].live:
                        raise Contended("a row came while the day was dropped")
                connection.execute(text(f"set local {DROPPING} = 'on'"))
                connection.execute(text(f"truncate {SCHEMA}.{name}"))
                if after:
                    connection.execute(text(after))
                if copied:
                    archive.note_live(connection, table, day, archive.keys(connection, table, day), dropped=True)
                connection.commit()
        except Contended:
            connection.rollback()
            self.waiting.append(name)
            return False
        self.emptied.append(name)
        return True


def old_enough(connection: Connection, policy: Policy) -> dict[str, list[date]]:
    """Return the days, by table, of which :func:`drop_old` drops what need not stay."""
    with boundary():
        now = connection.scalar(select(func.now()))
        assert now is not None
        connection.rollback()
        work = _Work(connection, policy, now)
        return {"half": work.old_halves(work.address_hours()), "op": work.old_ops()}


# The inbox (X4), whose rows ``coordinator.first_time`` inserts, and the delivery-tags of producers (P22): here the old
# ones are deleted.

#: Rows of one SQL transaction: so few that no application waits for long.
CHUNK = 10_000


def forget(connection: Connection, age: timedelta, chunk: int = CHUNK) -> int:
    """Delete rows of the inbox older than ``age``, oldest first, ``chunk`` rows at a time; commits. Returns how many.

    A message that is delivered again later counts as delivered for the first time.
    """
    return _forget(connection, age, chunk, "inbox", "taken_at")


def forget_posted(connection: Connection, age: timedelta, chunk: int = CHUNK) -> int:
    """Delete delivery-tags of producers, like :func:`forget`. What comes under such a tag later is stored."""
    return _forget(connection, age, chunk, "posted", "posted_at")


def _forget(connection: Connection, age: timedelta, chunk: int, table: str, at: str) -> int:
    statement = text(
        f"""with old as materialized (
              select ctid, {at} from {SCHEMA}.{table}
               where {at} < now() - :age and {at} >= coalesce(:since, cast('-infinity' as timestamptz))
               order by {at} limit :chunk for update skip locked),
            gone as (delete from {SCHEMA}.{table} i using old where i.ctid = old.ctid)
            select count(*) as rows, max({at}) as last from old"""
    ).bindparams(bindparam("since", type_=DateTime(timezone=True)))
    forgotten = 0
    since: datetime | None = None  # deleted rows stay in the index as long as a snapshot is held
    with boundary():
        while True:
            done = connection.execute(statement, {"age": age, "chunk": chunk, "since": since}).one()
            connection.commit()
            forgotten += int(done.rows)
            if done.rows < chunk:
                return forgotten
            since = done.last
