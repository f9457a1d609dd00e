"""What retention clears away beside messages and decisions: partitions that are empty, marks that do not count any
more, and instances that ended long ago.
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import Final

from sqlalchemy import Connection, func, select, text

from store.errors import Contended, boundary
from store.partitions import PARTITIONED
from store.tables import SCHEMA, batch_mark, consumer_group, group_read, instance, retention

#: How long retention waits for a lock: others wait behind it meanwhile.
LOCK_TIMEOUT: Final = "200ms"


#: One object that others have made and that depends on a table, such as a view, or on the type of its rows.
_DEPENDENT: Final = text(
    "select pg_describe_object(d.classid, d.objid, d.objsubid) "
    "from pg_class t join pg_depend d on d.refclassid = 'pg_class'::regclass and d.refobjid = t.oid "
    "or d.refclassid = 'pg_type'::regclass and d.refobjid = t.reltype "
    "where t.oid = cast(:name as regclass) and d.deptype = 'n' "
    "and not exists (select from pg_constraint c where c.oid = d.objid and c.conrelid = t.oid) limit 1"
)


def remove_empty(connection: Connection) -> tuple[list[str], list[str], list[str]]:
    """Drop the empty partitions of dropped days. Returns those dropped, those left for later, and those that stay, each
    with what depends on it.
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
    """``pending``: whether its detaching was interrupted; None: it is no partition any more."""
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


def forget_instances(connection: Connection, kept: timedelta) -> int:
    """Remove rows of instances that ended before the oldest decision that is kept."""
    gone = connection.execute(instance.delete().where(instance.c.ended_at < func.now() - kept))
    connection.commit()
    return int(gone.rowcount)
