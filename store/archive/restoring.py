"""Restore a day from the archive: its rows are in the store again, as they were (R35)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Final

import psycopg
from sqlalchemy import Connection, text

from store import locks
from store.archive import days
from store.archive.copies import FILES, ArchiveUnusable, check_files, file_of, folder_of, read_manifest, rows_in
from store.archive.days import Copy
from store.database import LONGEST_WAIT
from store.errors import boundary
from store.partitions import name_of
from store.tables import SCHEMA

#: Copies rows from the temporary tables ``restored_<file>`` into the partition. Existing rows stay unchanged.
_INSERT: Final = {
    "half": """insert into {partition} (id, txn_id, address_id, message, posted_at, written_xid)
               select id, txn_id::uuid, address_id, message, posted_at, written_xid::text::xid8
                 from pg_temp.restored_half on conflict do nothing""",
    "op": """insert into {partition} (id, decision, txn_id, reason, posted, half_ids, group_ids, instance_id,
                                      decided_at, written_xid)
             select o.id::uuid, o.decision, case when o.posted is null then o.txn_id::uuid end, o.reason, o.posted,
                    case when o.deliveries is not null then coalesce(d.half_ids, '{{}}') end,
                    case when o.deliveries is not null then coalesce(d.group_ids, '{{}}') end,
                    o.instance_id, o.decided_at, o.written_xid::text::xid8
               from pg_temp.restored_op o
               left join (select op_id, array_agg(half_id order by place) as half_ids,
                                 array_agg(group_id order by place) as group_ids
                            from pg_temp.restored_delivery group by op_id) d on d.op_id = o.id
             on conflict do nothing""",
}


def restore_day(connection: Connection, root: Path, day: date, hold: timedelta) -> dict[str, int]:
    """Restore the halves and ops of a day from the folder ``root``, to be kept for ``hold``; commits.

    Returns how many rows were restored, by table. Call it in a block of :func:`store.archive.writing.alone`.

    :raises ArchiveUnusable: the day is not archived, not dropped, or its copy is not whole.
    """
    with boundary():
        days.checked_root(connection, root)
        known = days.copies(connection)
        connection.rollback()
        found = [copy for table in FILES if (copy := known.get((table, day))) is not None]
        if not found:
            raise ArchiveUnusable(f"{day.isoformat()} is not archived")
        if not any(copy.dropped for copy in found):
            raise ArchiveUnusable(f"{day.isoformat()} is not dropped: all its rows are in the store")
        # all copies are checked before anything is written
        for copy in found:
            check_files(folder_of(root, copy.table, day), read_manifest(root, copy.table, day, copy.manifest))
        return {copy.table: _restore(connection, root, copy, hold) for copy in found if copy.dropped}


def _restore(connection: Connection, root: Path, copy: Copy, hold: timedelta) -> int:
    _make_partition(connection, copy)
    for name, columns in FILES[copy.table].items():
        typed = ", ".join(f"{column} {kind}" for column, kind in columns.items())
        connection.execute(text(f"create temporary table restored_{name} ({typed}) on commit drop"))
        _load(connection, name, columns, file_of(folder_of(root, copy.table, copy.day), name))
    partition = f"{SCHEMA}.{name_of(copy.table, copy.day)}"
    connection.execute(LONGEST_WAIT)
    # lock order: 10
    connection.execute(text(f"lock table {partition} in share mode"))
    restored = connection.execute(text(_INSERT[copy.table].format(partition=partition))).rowcount
    until = connection.scalar(text("select now() + :hold"), {"hold": hold})
    assert isinstance(until, datetime)
    # without rows that were added to the day after it was dropped, which have no copy
    live = days.keys(connection, copy.table, copy.day, f"pg_temp.restored_{copy.table}")
    days.note_live(connection, copy.table, copy.day, live, dropped=False, held_until=until)
    connection.commit()
    return int(restored)


def _load(connection: Connection, name: str, columns: Mapping[str, str], path: Path) -> None:
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    with (
        driver.cursor() as cursor,
        cursor.copy(f"copy pg_temp.restored_{name} from stdin (format binary)".encode()) as to,
    ):
        to.set_types(list(columns.values()))
        for row in rows_in(path):
            to.write_row(row)


def _make_partition(connection: Connection, copy: Copy) -> None:
    """Create the partition of a day that retention has dropped, which the function ``make_day`` does not; commits."""
    name = f"{SCHEMA}.{name_of(copy.table, copy.day)}"
    # lock order: 1
    locks.take(connection, "days")
    if connection.scalar(text("select to_regclass(:name)"), {"name": name}) is None:
        made = text(f"select {SCHEMA}.make_partition(:parent, :day)")
        connection.execute(made, {"parent": copy.table, "day": copy.day})
    connection.commit()
