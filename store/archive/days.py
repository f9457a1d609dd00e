"""Read and write what the store knows of its archive: whether it is on, and which days have a copy of which rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, delete, func, select, text
from sqlalchemy.dialects.postgresql import insert

from store.archive.copies import ArchiveUnusable, Sum, check_root, make_root, read_manifest
from store.errors import boundary
from store.partitions import name_of
from store.tables import SCHEMA, archive, archived_day, retention, store_identity

#: The hash of a key, which is the same in all versions of PostgreSQL and on all machines.
_KEY_HASH: Final = {"half": "hashint8extended(id, 0)", "op": "uuid_hash_extended(id::uuid, 0)"}


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Identifies the rows of a partition: how many, and the sum of the hashes of their keys.

    Rows never change, so rows with equal keys are equal."""

    rows: int
    sum: int


@dataclass(frozen=True, kw_only=True)
class Copy:
    """An archived day.

    ``live``: the rows of its partition that the copy has; ``dropped``: retention has dropped the others;
    ``held_until``: retention does not drop it before."""

    table: str
    day: date
    rows: int
    manifest: str
    live: Keys
    dropped: bool
    held_until: datetime | None

    def held(self, now: datetime) -> bool:
        return self.held_until is not None and now < self.held_until


def store_id(connection: Connection) -> str:
    found = connection.scalar(select(store_identity.c.id))
    assert found is not None
    return str(found)


def folder(connection: Connection) -> Path | None:
    """Return the folder where days are archived before they are dropped; None: the archive is off."""
    found = connection.scalar(select(archive.c.folder))
    return None if found is None else Path(found)


def copies(connection: Connection) -> dict[tuple[str, date], Copy]:
    """Return all archived days."""
    return {(row.table_name, row.day): _copy(row) for row in connection.execute(select(archived_day))}


def dropped(connection: Connection, table: str, moment: datetime) -> date | None:
    """Return the day of ``moment`` (aware), if the store has dropped its rows and only the archive has them."""
    day = moment.astimezone(UTC).date()
    where = (archived_day.c.table_name == table, archived_day.c.day == day, archived_day.c.dropped)
    with boundary():
        return connection.scalar(select(archived_day.c.day).where(*where))


def _copy(row: Any) -> Copy:
    return Copy(
        table=row.table_name,
        day=row.day,
        rows=row.rows,
        manifest=row.manifest,
        live=Keys(rows=row.live_rows, sum=row.live_keys),
        dropped=row.dropped,
        held_until=row.held_until,
    )


def keys(connection: Connection, table: str, day: date, relation: str | None = None) -> Keys:
    """Return the keys of the partition of a day, or of another ``relation`` with its ids."""
    of = relation or f"{SCHEMA}.{name_of(table, day)}"
    row = connection.execute(text(f"select count(*), coalesce(bit_xor({_KEY_HASH[table]}), 0) from {of}")).one()
    return Keys(rows=row[0], sum=row[1])


def row_sum(columns: Mapping[str, str]) -> str:
    """Return SQL for the sum of rows with these columns, equal to :func:`store.archive.copies.summed` of a file."""
    octets = {
        "int8": "int8send({0})",
        "int4": "int4send({0})",
        "text": "convert_to({0}, 'UTF8')",
        "bytea": "{0}",
        "timestamptz": "int8send((extract(epoch from {0}) * 1000000)::int8)",
    }
    parts = []
    for name, kind in columns.items():
        value = octets[kind].format(name)
        known = rf"'\x01'::bytea || int4send(octet_length({value})) || {value}"
        parts.append(rf"case when {name} is null then '\x00'::bytea else {known} end")
    hashed = f"encode(substr(sha256({' || '.join(parts)}), 1, 8), 'hex')"
    return f"coalesce(bit_xor(('x' || {hashed})::bit(64)::int8), 0)"


def note(connection: Connection, table: str, day: date, *, manifest: str, copied: Sum, live: Keys) -> None:
    """Note that a day is archived, and have retention check at its next run. The caller commits."""
    values = {
        "rows": copied.rows,
        "manifest": manifest,
        "archived_at": func.now(),
        "live_rows": live.rows,
        "live_keys": live.sum,
    }
    statement = insert(archived_day).values(table_name=table, day=day, **values)
    connection.execute(statement.on_conflict_do_update(index_elements=["table_name", "day"], set_=values))
    run_retention_soon(connection)


def note_live(
    connection: Connection, table: str, day: date, live: Keys, *, dropped: bool, held_until: datetime | None = None
) -> None:
    """Note which rows of its copy the partition of an archived day has now. The caller commits."""
    connection.execute(
        archived_day.update()
        .where(archived_day.c.table_name == table, archived_day.c.day == day)
        .values(live_rows=live.rows, live_keys=live.sum, dropped=dropped, held_until=held_until)
    )


def run_retention_soon(connection: Connection) -> None:
    """Have retention check for days that may be dropped the next time it runs. The caller commits."""
    long_ago = datetime.now(UTC) - timedelta(days=365)
    connection.execute(retention.update().where(retention.c.table_name == "half").values(looked_at=long_ago))


def turn_on(connection: Connection, root: Path) -> None:
    """Turn the archive on: archive days in the folder ``root``, which is created, before they are dropped; commits.

    :raises ArchiveUnusable: the folder cannot be used, or lacks a dropped day.
    :raises StoreUnavailable: the role of this connection may not do this; nothing was created.
    """
    with boundary():
        for copy in copies(connection).values():
            if copy.dropped:
                read_manifest(root, copy.table, copy.day, copy.manifest)
        values = {"folder": str(root), "since": func.now()}
        statement = insert(archive).values(values)
        connection.execute(statement.on_conflict_do_update(index_elements=["singleton"], set_=values))
        try:
            make_root(root, store_id(connection))
        except ArchiveUnusable:
            connection.rollback()
            raise
        connection.commit()


def turn_off(connection: Connection) -> bool:
    """Turn the archive off, so that days are dropped without a copy; commits. Whether it was on."""
    with boundary():
        done = connection.execute(delete(archive))
        run_retention_soon(connection)
        connection.commit()
    return bool(done.rowcount)


def checked_root(connection: Connection, root: Path) -> Path:
    """Return ``root``, once it was checked to be the archive of this store.

    :raises ArchiveUnusable: it is not.
    """
    check_root(root, store_id(connection))
    return root
