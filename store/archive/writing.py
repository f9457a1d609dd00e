"""Copy a day of a table into the archive: counted and summed in the database and, read back, in the files."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
from sqlalchemy import Connection, text

from store import locks, retention
from store.archive import days
from store.archive.copies import (
    FILES,
    MANIFEST,
    ArchiveUnusable,
    File,
    Manifest,
    Sum,
    arrow_schema,
    check_files,
    file_errors,
    file_of,
    folder_of,
    sha256_of,
    summed,
    sync,
)
from store.errors import boundary
from store.partitions import existing, name_of
from store.tables import SCHEMA

if TYPE_CHECKING:
    import pyarrow as pa

#: The most rows of a row group, and about the most octets of its messages: so much is in memory.
GROUP_ROWS: Final = 65_536
GROUP_BYTES: Final = 8 << 20

#: The suffix of a folder that is being written, or removed: it is never read.
_PARTIAL: Final = ".partial"
#: The suffix of a folder left from another life of the store, such as before a back-up was restored.
_ASIDE: Final = ".aside"

_NAMES: Final = f"""
  left join {SCHEMA}.address a on a.id = {{address}} left join {SCHEMA}.removed_address r on r.id = {{address}}"""
#: Selects the rows of each file, with the columns of :data:`store.archive.copies.FILES`; and their order.
_ROWS: Final = {
    "half": f"""select h.id, h.txn_id::text as txn_id, h.address_id, coalesce(a.name, r.name) as address, h.message,
                       h.posted_at, h.written_xid::text::int8 as written_xid
                  from {SCHEMA}.{{partition}} h {_NAMES.format(address="h.address_id")}""",
    "op": f"""select id::text as id, decision, (case when posted is null then txn_id else id end)::text as txn_id,
                     reason, posted, cardinality(half_ids) as deliveries, instance_id, decided_at,
                     written_xid::text::int8 as written_xid
                from {SCHEMA}.{{partition}}""",
    "delivery": f"""select u.half_id, u.group_id, coalesce(a.name, r.name) as address,
                           coalesce(g.name, n.name) as consumer_group, o.id::text as op_id, u.place::int4 as place,
                           o.decision, o.reason, o.decided_at
                      from {SCHEMA}.{{partition}} o
                     cross join lateral unnest(o.half_ids, o.group_ids) with ordinality u(half_id, group_id, place)
                      left join {SCHEMA}.consumer_group g on g.id = u.group_id
                      left join {SCHEMA}.removed_group n on n.id = u.group_id
                      {_NAMES.format(address="coalesce(g.address_id, n.address_id)")}""",
}
_ORDER: Final = {"half": "id", "op": "id", "delivery": "half_id, group_id, decided_at, op_id, place"}
_LATEST: Final = {"half": "posted_at", "op": "decided_at"}


@dataclass(frozen=True, kw_only=True)
class Written:
    """The result of :func:`write_day`: an archived day, with the rows and octets of its copy."""

    table: str
    day: date
    rows: int
    octets: int


@contextmanager
def alone(connection: Connection) -> Iterator[None]:
    """Prevent other processes from writing the archive of the store, or restoring from it, during the block.

    :raises ArchiveUnusable: another process does so now.
    """
    # lock order: c
    with boundary(), locks.over_commits(connection, "archived_day", "share update exclusive", at_once=True) as mine:
        if not mine:
            raise ArchiveUnusable("another process writes the archive, or restores from it")
        yield


def due(connection: Connection, policy: retention.Policy, before: date | None = None) -> list[tuple[str, date]]:
    """Return the days not archived yet, of those that retention drops by now; ``before``: of all that are older."""
    with boundary():
        if before is None:
            old = retention.old_enough(connection, policy)
        else:
            old = {table: [day for day in there if day < before] for table, there in existing(connection).items()}
        known = days.copies(connection)
        connection.rollback()
        found = []
        for table, those in sorted(old.items()):
            for day in sorted(those):
                copy = known.get((table, day))
                # a dropped day has only archived rows left, unless rows were added late: these stay
                if copy is not None and copy.dropped:
                    continue
                live = days.keys(connection, table, day)
                connection.rollback()
                if live.rows and (copy is None or live != copy.live):
                    found.append((table, day))
    return found


def write_day(connection: Connection, root: Path, table: str, day: date) -> Written:
    """Archive a day in the folder ``root``, and note it; commits. Call it in a block of :func:`alone`.

    :raises ArchiveUnusable: it cannot be written, or the rows that are read back are not those of the table.
    """
    name = name_of(table, day)
    with boundary(), file_errors(root):
        connection.rollback()
        connection.execution_options(isolation_level="REPEATABLE READ")
        try:
            # locked before the snapshot, so that the day is not emptied between the two
            # lock order: 10
            connection.execute(text(f"lock table {SCHEMA}.{name} in access share mode"))
            manifest = _in_place(connection, _Day(connection, root, table, day))
            encoded = manifest.encoded()
            copied = manifest.files[table].sum
            live = days.keys(connection, table, day)
            days.note(connection, table, day, manifest=hashlib.sha256(encoded).hexdigest(), copied=copied, live=live)
            connection.commit()
        finally:
            connection.rollback()
            connection.execution_options(isolation_level=connection.default_isolation_level)
    octets = sum(file.octets for file in manifest.files.values())
    return Written(table=table, day=day, rows=manifest.rows, octets=octets)


class _Day:
    """Reads a day in the database, in one snapshot; knows its folder in the archive."""

    def __init__(self, connection: Connection, root: Path, table: str, day: date) -> None:
        self.connection = connection
        self.root = root
        self.table = table
        self.day = day
        self.folder = folder_of(root, table, day)
        self.store = days.store_id(connection)
        self.sums = {name: self._sum(name) for name in FILES[table]}

    def rows(self, name: str) -> str:
        return _ROWS[name].format(partition=name_of(self.table, self.day))

    def _sum(self, name: str) -> Sum:
        values = days.row_sum(FILES[self.table][name])
        row = self.connection.execute(text(f"select count(*), {values} from ({self.rows(name)}) rows")).one()
        return Sum(rows=row[0], values=row[1])

    def manifest(self, files: Mapping[str, File]) -> Manifest:
        partition = name_of(self.table, self.day)
        first, last, latest = self.connection.execute(
            text(
                f"select (select id::text from {SCHEMA}.{partition} order by id limit 1),"
                f" (select id::text from {SCHEMA}.{partition} order by id desc limit 1),"
                f" (select max({_LATEST[self.table]}) from {SCHEMA}.{partition})"
            )
        ).one()
        schema = self.connection.scalar(text(f"select version_num from {SCHEMA}.alembic_version"))
        return Manifest(
            store=self.store,
            schema=str(schema),
            table=self.table,
            day=self.day,
            first=first,
            last=last,
            latest=None if latest is None else latest.astimezone(UTC),
            files=files,
        )


def _in_place(connection: Connection, day: _Day) -> Manifest:
    """Write a copy of the day, or find a whole one, under its final name. Returns its manifest."""
    partial = day.folder.with_name(day.folder.name + _PARTIAL)
    day.folder.parent.mkdir(mode=0o700, exist_ok=True)
    sync(day.root)
    shutil.rmtree(partial, ignore_errors=True)
    if day.folder.exists():
        noted = days.copies(connection).get((day.table, day.day))
        if noted is None:
            left = _left_over(day)
            if left is not None:
                return left
            day.folder.rename(_aside(day.folder))
        else:
            # the day is noted, and rows were added later: all of them are still in the table
            assert not noted.dropped
            day.folder.rename(partial)
            shutil.rmtree(partial)
    try:
        return _written(day, partial)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _left_over(day: _Day) -> Manifest | None:
    """Return the manifest of an existing copy, if it has the rows of the table, value by value.

    Such a copy is left by a run that was stopped before the store noted it.
    """
    path = day.folder / MANIFEST
    try:
        with file_errors(path):
            content = path.read_bytes()
        manifest = Manifest.decoded(path, content)
        if (manifest.store, manifest.table, manifest.day) != (day.store, day.table, day.day):
            return None
        check_files(day.folder, manifest)
        if _sums_of_files(day.table, day.folder) != day.sums:
            return None
    except ArchiveUnusable:
        return None
    if manifest.encoded() != content:
        return None
    sync(day.folder.parent)
    return manifest


def _sums_of_files(table: str, folder: Path) -> dict[str, Sum]:
    return {name: summed(file_of(folder, name), columns) for name, columns in FILES[table].items()}


def _aside(folder: Path) -> Path:
    """Return an unused name of a folder that is never read."""
    number = 1
    while (free := folder.with_name(f"{folder.name}{_ASIDE}-{number}")).exists():
        number += 1
    return free


def _written(day: _Day, partial: Path) -> Manifest:
    partial.mkdir(mode=0o700)
    files = {}
    for name, columns in FILES[day.table].items():
        path = file_of(partial, name)
        _write_file(day, name, path)
        found, expected = summed(path, columns), day.sums[name]
        if found != expected:
            raise ArchiveUnusable(
                f"{path}: read back, it has {found.rows} rows of sum {found.values}; the table has {expected.rows} of"
                f" sum {expected.values}"
            )
        octets, sha256 = path.stat().st_size, sha256_of(path)
        files[name] = File(rows=found.rows, values=found.values, octets=octets, sha256=sha256)
    manifest = day.manifest(files)
    with (partial / MANIFEST).open("xb") as file:
        file.write(manifest.encoded())
        file.flush()
        os.fsync(file.fileno())
    sync(partial)
    partial.rename(day.folder)
    sync(day.folder.parent)
    return manifest


def _write_file(day: _Day, name: str, path: Path) -> None:
    """Write the rows of a file as they are received, a row group at a time."""
    import pyarrow.parquet as pq

    schema = arrow_schema(FILES[day.table][name])
    with path.open("xb") as file:
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for batch in _batches(day, name, schema):
                writer.write_batch(batch)
        file.flush()
        os.fsync(file.fileno())


def _batches(day: _Day, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    kinds = FILES[day.table][name]
    large = list(kinds).index("message") if "message" in kinds else None
    group: list[tuple[Any, ...]] = []
    octets = 0

    def batch() -> pa.RecordBatch:
        columns = zip(*group, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    driver = day.connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    columns = ", ".join(kinds)
    statement = (
        f"copy (select {columns} from ({day.rows(name)}) rows order by {_ORDER[name]}) to stdout (format binary)"
    )
    with driver.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        copy.set_types(list(kinds.values()))
        for row in copy.rows():
            group.append(row)
            octets += len(row[large]) if large is not None else 0
            if len(group) >= GROUP_ROWS or octets >= GROUP_BYTES:
                yield batch()
                group.clear()
                octets = 0
        if group:
            yield batch()
