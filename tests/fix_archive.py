"""Days of a store that are old enough for the archive, and the archive."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, insert, select, text

from store.archive import days, restoring, writing
from store.archive.copies import check_files, folder_of, read_manifest
from store.ids import begin_of, id_at
from store.partitions import make_days, op_id_at
from store.retention import Dropped, Policy, drop_old
from store.tables import address, archived_day, consumer_group, entry, half, op

POLICY = Policy(messages=timedelta(hours=72), decisions=timedelta(days=8))
TODAY = datetime.now(UTC).date()
#: halves and ops of it may go
OLD = TODAY - timedelta(days=20)
NAME = OLD.isoformat()
HALF, OP = ("half", OLD), ("op", OLD)


class Old:
    """A store and its archive; each method commits."""

    def __init__(self, connection: Connection, root: Path) -> None:
        self.connection = connection
        self.root = root
        self._count = 0
        drop_old(connection, POLICY)  # the day of tests that count from 1
        connection.execute(text("delete from coordinator.retention"))
        self.address = self._one(insert(address).values(name="orders").returning(address.c.id))
        self.group = self._one(insert(consumer_group).values(address_id=self.address).returning(consumer_group.c.id))

    def _one(self, statement: Any) -> int:
        value = self.connection.scalar(statement)
        self.connection.commit()
        assert value is not None
        return int(value)

    def make(self, day: date = OLD, *, count: int = 3) -> list[int]:
        """Halves of a day that were consumed on it, two at a time, in transactions; their ids."""
        made = []
        for number in range(count):
            half_id = self.half(day, b"m%d" % number)
            self.op(day, "accept", [half_id], reason="why not" if number else None)
            made.append(half_id)
        txn_id = self.op(day, "commit", made[:2], posted=1)
        self.half(day, b"", txn_id=txn_id)
        return made

    def half(self, day: date, message: bytes = b"m", txn_id: UUID | None = None, *, waiting: bool = False) -> int:
        make_days(self.connection, [day])
        self._count += 1
        half_id = id_at(begin_of(day)) + self._count
        values = {"address_id": self.address, "txn_id": txn_id, "posted_at": begin_of(day)}
        self.connection.execute(insert(half).values(id=half_id, message=message, **values))
        if waiting:
            self.connection.execute(insert(entry).values(group_id=self.group, id=half_id, half_id=half_id))
        self.connection.commit()
        return half_id

    def op(
        self,
        day: date,
        decision: str,
        covers: list[int],
        *,
        posted: int | None = None,
        **more: Any,
    ) -> UUID:
        make_days(self.connection, [day])
        self._count += 1
        op_id = UUID(int=op_id_at(begin_of(day)).int + self._count)
        values = {"half_ids": covers, "group_ids": [self.group] * len(covers), "posted": posted, **more}
        at = begin_of(day) + timedelta(seconds=self._count)
        self.connection.execute(insert(op).values(id=op_id, decision=decision, decided_at=at, **values))
        self.connection.commit()
        return op_id

    def turn_on(self) -> None:
        days.turn_on(self.connection, self.root)

    def write(self, before: date | None = None) -> list[tuple[str, date]]:
        """What was archived."""
        done = []
        with writing.alone(self.connection):
            for table, day in writing.due(self.connection, POLICY, before):
                done.append((table, writing.write_day(self.connection, self.root, table, day).day))
        return done

    def drop(self) -> Dropped:
        days.run_retention_soon(self.connection)
        self.connection.commit()
        return drop_old(self.connection, POLICY)

    def restore(self, hold: timedelta = timedelta(hours=1)) -> dict[str, int]:
        """Bring the day ``OLD`` back; how many rows came back, by table."""
        with writing.alone(self.connection):
            return restoring.restore_day(self.connection, self.root, OLD, hold)

    def let_go(self) -> None:
        """The time is over for which restored days are held."""
        self.connection.execute(archived_day.update().values(held_until=text("now()")))
        self.connection.commit()

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """All of a table, in order."""
        found = [tuple(row) for row in self.connection.execute(text(f"select * from coordinator.{table} order by id"))]
        self.connection.rollback()
        return found

    def halves(self) -> list[int]:
        found = list(self.connection.scalars(select(half.c.id).order_by(half.c.id)))
        self.connection.rollback()
        return found

    def noted(self) -> dict[tuple[str, date], days.Copy]:
        found = days.copies(self.connection)
        self.connection.rollback()
        return found

    def archived(self, name: str) -> list[dict[str, Any]]:
        """All rows of the files of this name, of whole copies that the store has noted."""
        import pyarrow.parquet as pq

        found = []
        for (table, day), copy in sorted(self.noted().items()):
            folder = folder_of(self.root, table, day)
            manifest = read_manifest(self.root, table, day, copy.manifest)
            check_files(folder, manifest)
            if name in manifest.files:
                found += pq.read_table(folder / f"{name}.parquet").to_pylist()
        return found

    def names(self) -> set[str]:
        """All that is in the archive, as paths in it."""
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*")}


Change = Callable[[Old, date], None]


def changed(name: str) -> Change:
    """Changes an octet of a file of the copy of a day of ``half``."""

    def change(old: Old, day: date) -> None:
        path = folder_of(old.root, "half", day) / name
        content = path.read_bytes()
        path.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])

    return change


def without_manifest(old: Old, day: date) -> None:
    (folder_of(old.root, "half", day) / "manifest.json").unlink()


@pytest.fixture
def old(database: Connection, tmp_path: Path) -> Old:
    """A store whose archive is on."""
    found = Old(database, tmp_path / "archive")
    found.turn_on()
    return found
