"""Read the days that the store has dropped from its archive (R4).

The store lists these days, in the snapshot of the run: it has all rows of a day that is archived and not dropped yet.
Of a dropped day it has some rows: those that must stay (undelivered, undecided). Such a row is in the copy, too, and
counts once: the store's row is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Final

import psycopg
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from spark.ledger import declared_at, uuid_words
from spark.period import Period, uuid_at
from spark.schemas import TABLES, SourceTable
from spark.snapshot import Snapshot, read_error
from store.archive.copies import Manifest, check_files, check_root, file_of, folder_of, read_manifest
from store.ids import begin_of, id_at, moment_of
from store.tables import SCHEMA

_DROPPED: Final = f"select table_name, day, manifest from {SCHEMA}.archived_day where dropped order by day"
_SINCE: Final = f"select max(archived_from) from {SCHEMA}.retention"
_ONE_DAY: Final = timedelta(days=1)
#: The type of a key in Arrow, by table.
_KEY: Final = {"half": pa.int64(), "op": pa.string()}


@dataclass(frozen=True, kw_only=True)
class Archive:
    """Reads the dropped days of a store from the archive at ``root``.

    ``since``: the archive has every dropped day from this one on; None: all of them. ``kept``: the ids of rows of these
    days that the store has, by table.
    """

    root: Path
    since: datetime | None
    days: tuple[Manifest, ...]
    kept: dict[str, list[int] | list[str]]
    #: days whose files were checked
    _checked: set[tuple[str, date]] = field(default_factory=set)

    @property
    def bytes(self) -> int:
        """Return the size of all files."""
        return sum(file.octets for day in self.days for file in day.files.values())

    def moments(self, table: str) -> Iterator[datetime]:
        """Yield when the first and the last row of each day were written, by their ids."""
        for day in self.days:
            if day.table == table and day.first is not None and day.last is not None:
                for key in (day.first, day.last):
                    yield moment_of(int(key)) if table == "half" else declared_at(key)

    def table(self, spark: SparkSession, name: str, columns: Sequence[str], period: Period) -> DataFrame | None:
        """Return columns of ``half`` or ``op``, with the dropped rows that a run over ``period`` needs; None: no rows.

        An op becomes a row with its decision, if it has one, and a row for each delivery that it covers.

        :raises store.archive.copies.ArchiveUnusable: a file is not the one that was written.
        """
        days = [day for day in self.days if day.table == name and _is_read(day, period)]
        if not days:
            return None
        for day in days:
            if (name, day.day) not in self._checked:
                check_files(folder_of(self.root, name, day.day), day)
                self._checked.add((name, day.day))

        def rows(file: str) -> DataFrame:
            return spark.read.parquet(*(str(file_of(folder_of(self.root, name, day.day), file)) for day in days))

        needed = f.expr(period.read(name, moments="timestamp"))
        parts = [rows("half")] if name == "half" else [_decisions(rows("op")), _deliveries(rows("delivery"))]
        found = reduce(DataFrame.unionByName, [part.where(needed) for part in parts])
        if name == "op":
            # of a decision, how many deliveries it covers was needed to choose it
            found = found.withColumn("half_ids", f.when(f.col("group_ids").isNotNull(), f.col("half_ids")))
        if kept := self.kept[name]:
            ids = pa.table({"id": pa.array(kept, _KEY[name])})
            found = found.join(f.broadcast(spark.createDataFrame(ids)), "id", "left_anti")
        return found.withColumns(numbers_of(TABLES[name], columns)).select(*columns)


def numbers_of(table: SourceTable, columns: Iterable[str]) -> dict[str, Column]:
    """Return the numbers of UUIDs among these columns, made of the text."""
    of = {name: table.words[name] for name in columns if name in table.words}
    return {name: uuid_words(f.col(uuid))[place] for name, (uuid, place) in of.items()}


def _is_read(day: Manifest, period: Period) -> bool:
    since = period.read_from
    return begin_of(day.day + _ONE_DAY) > since or (
        day.table == "op" and day.latest is not None and day.latest >= since
    )


def _decisions(op: DataFrame) -> DataFrame:
    none = f.lit(None)
    return op.where("posted is not null").select(
        *("id", "decision", "reason", "posted", "decided_at"),
        f.when(f.col("deliveries").isNotNull(), f.array(f.lit(0).cast("long"))).alias("half_ids"),
        none.cast("array<int>").alias("group_ids"),
    )


def _deliveries(delivery: DataFrame) -> DataFrame:
    return delivery.select(
        f.col("op_id").alias("id"),
        *("decision", "reason"),
        f.lit(None).cast("int").alias("posted"),
        "decided_at",
        f.array("half_id").alias("half_ids"),
        f.array("group_id").alias("group_ids"),
    )


def open_archive(root: Path, snapshot: Snapshot) -> Archive:
    """Return the archive at ``root``, of the store and as of the moment of ``snapshot``.

    :raises store.archive.copies.ArchiveUnusable: it is another store's, or a day is missing.
    :raises spark.snapshot.StoreUnreadable: the database does not answer.
    """
    check_root(root, snapshot.store.id)
    with read_error():
        dropped = snapshot.connection.execute(_DROPPED.encode()).fetchall()
        since = snapshot.connection.execute(_SINCE.encode()).fetchone()
    days = tuple(read_manifest(root, table, day, sha256) for table, day, sha256 in dropped)
    with read_error():
        kept = {table: _kept(snapshot.connection, table, days) for table in _KEY}
    from_ = None if since is None else since[0]
    return Archive(root=root, since=None if from_ is None else begin_of(from_), days=days, kept=kept)


def _kept(connection: psycopg.Connection, table: str, days: Iterable[Manifest]) -> list[int] | list[str]:
    """Return the ids of the rows that the store still has of these days: few, as retention carries no more."""
    found = []
    for day in days:
        if day.table == table:
            low, high = (_id_at(table, begin_of(edge)) for edge in (day.day, day.day + _ONE_DAY))
            statement = f"select id{'::text' * (table == 'op')} from {SCHEMA}.{table} where id >= %s and id < %s"
            found += [row[0] for row in connection.execute(statement.encode(), (low, high))]
    return found


def _id_at(table: str, moment: datetime) -> int | str:
    return id_at(moment) if table == "half" else uuid_at(moment)


def with_archive(snapshot: Snapshot, archive: Archive | None) -> Snapshot:
    """``snapshot``, kept since the first day that is in the store or in the archive."""
    return snapshot if archive is None else replace(snapshot, kept_since=archive.since)
