"""Read the store's tables as frames, all in one snapshot; the driver itself reads a small store."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from spark.archived import Archive
from spark.directory import Directory
from spark.ledger import declared_at
from spark.period import Period
from spark.snapshot import SMALL_BYTES, Snapshot, read_error
from spark.source import FORMAT, HalfOpReader, ReadOptions
from store.ids import moment_of
from store.tables import SCHEMA


@contextmanager
def credentials_file(url: str) -> Iterator[Path]:
    """Create a file of mode 0600 with the database's URL, for the tasks on this machine.

    It exists in memory only, until the block or this process ends, however that ends."""
    descriptor = os.memfd_create("coordinator")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, 0o600)
        file.write(url)
        file.flush()
        yield Path(f"/proc/{os.getpid()}/fd/{descriptor}")


@contextmanager
def credentials_of_tasks(spark: SparkSession, url: str, given: Path | None) -> Iterator[Path | None]:
    """Provide the file from which tasks read the database's URL: the given one, or a new one for tasks on this machine.

    None: tasks on other machines, which have the URL in their environment."""
    if given is not None or not str(spark.sparkContext.master).startswith("local"):
        yield given
        return
    with credentials_file(url) as path:
        yield path


@dataclass(frozen=True, kw_only=True)
class Store:
    """Reads the store's tables in one snapshot.

    ``credentials`` is the file with the URL for the tasks; None: they read it from their environment. ``bytes``: size
    of its large tables. ``archive``: the days that it has dropped."""

    spark: SparkSession
    snapshot: Snapshot
    period: Period
    credentials: Path | None
    bytes: int
    archive: Archive | None = None

    @property
    def small(self) -> bool:
        """Return whether the driver reads the store itself, which takes less time than starting tasks."""
        return self.bytes <= SMALL_BYTES

    def table(self, name: str, columns: str) -> tuple[DataFrame, int | None]:
        """Return columns of a table, with the rows that a run over the period needs.

        Also returns the number of these rows for a small store without archived ones, else None.

        :raises store.archive.copies.ArchiveUnusable: the archive has lost something.
        :raises spark.snapshot.StoreUnreadable: the database ends while a small store is read.
        """
        live, known = self._live(name, columns)
        archived = None
        if self.archive is not None and name in ("half", "op"):
            archived = self.archive.table(self.spark, name, columns.split(","), self.period)
        return (live, known) if archived is None else (live.unionByName(archived), None)

    def _live(self, name: str, columns: str) -> tuple[DataFrame, int | None]:
        options = self._options(name, columns)
        if self.small:
            with read_error():
                rows = _apart(HalfOpReader(ReadOptions.parse(options)).whole)
            if not rows.num_rows:  # PySpark cannot take columns of times that have no chunk
                rows = rows.schema.empty_table()
            return self.spark.createDataFrame(rows).coalesce(1), rows.num_rows
        return self.spark.read.format(FORMAT).options(**options).load(), None

    def _options(self, name: str, columns: str) -> dict[str, str]:
        options = {
            "table": name,
            "columns": columns,
            "snapshot": self.snapshot.name,
            "since": self.period.since.isoformat(),
            "until": self.period.until.isoformat(),
            "reach": str(self.period.reach.total_seconds()),
        }
        if self.credentials is not None:
            options["credentials"] = str(self.credentials)
        return options

    def extent(self) -> timedelta:
        """Return the time, about, from the first to the last half or op in the period.

        :raises spark.snapshot.StoreUnreadable: the database does not answer.
        """
        moments: list[datetime] = []
        with read_error():
            for table, column, moment in (("half", "t.id", moment_of), ("op", "t.id::text", declared_at)):
                for order in ("", " desc"):
                    # ordered by the column, not by an expression of it, which would read all rows
                    row = self.snapshot.connection.execute(
                        f"select {column} from {SCHEMA}.{table} t order by t.id{order} limit 1".encode()
                    ).fetchone()
                    if row is not None:
                        moments.append(moment(row[0]))
                if self.archive is not None:
                    moments += self.archive.moments(table)
        if not moments:
            return timedelta(0)
        first, last = max(min(moments), self.period.since), min(max(moments), self.period.until)
        return max(last - first, timedelta(0))


def _apart(read: Callable[[], pa.Table]) -> pa.Table:
    """Call ``read`` in a thread of its own, and return its result: ADBC waits for the database and ignores signals."""
    done: Future[pa.Table] = Future()

    def work() -> None:
        try:
            done.set_result(read())
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            done.set_exception(error)

    threading.Thread(target=work, name="reading", daemon=True).start()
    return done.result()


def local(spark: SparkSession, columns: Mapping[str, pa.DataType], rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """Create a frame of a few rows in the driver."""
    return spark.createDataFrame(pa.Table.from_pylist([dict(row) for row in rows], pa.schema(list(columns.items()))))


def receivers(spark: SparkSession, directory: Directory) -> DataFrame:
    """Create a frame of the receivers: ``address_id, group_id, receives_from`` (:class:`spark.directory.Receiver`)."""
    columns = {"address_id": pa.int32(), "group_id": pa.int32(), "receives_from": pa.timestamp("us", "UTC")}
    return local(spark, columns, map(vars, directory.receivers.values()))
