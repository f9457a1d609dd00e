"""The archive: days are copied, counted and summed before they are dropped."""

from __future__ import annotations

import os
import resource
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
from sqlalchemy import Connection, delete, event, insert, text

from store import retention
from store.archive import days, writing
from store.archive.copies import FILES, ArchiveUnusable, folder_of, summed
from store.errors import StoreUnavailable
from store.ids import begin_of
from store.tables import DROPPING, archived_day, entry, half
from tests.fix_archive import HALF, NAME, OLD, OP, TODAY, Old, changed, without_manifest

pytestmark = pytest.mark.rule("R35")


def test_a_day_is_archived_and_only_then_dropped(old: Old) -> None:
    made = old.make()
    before = {table: old.rows(table) for table in ("half", "op")}
    waits = old.drop()
    assert (waits.emptied, waits.unarchived) == ((), (f"half_{OLD:%Y%m%d}",))
    assert old.write() == [HALF, OP]
    assert {table: old.rows(table) for table in before} == before
    done = old.drop()
    assert set(done.emptied) == {f"half_{OLD:%Y%m%d}", f"op_{OLD:%Y%m%d}"}
    assert (old.rows("half"), old.rows("op")) == ([], [])
    halves = old.archived("half")
    assert [row["message"] for row in halves] == [row[3] for row in before["half"]] == [b"m0", b"m1", b"m2", b""]
    assert {row["address"] for row in halves} == {"orders"}
    deliveries = old.archived("delivery")
    assert [row["half_id"] for row in deliveries] == [made[0], made[0], made[1], made[1], made[2]]
    assert [row["decision"] for row in deliveries] == ["accept", "commit", "accept", "commit", "accept"]
    assert {(row["address"], row["consumer_group"]) for row in deliveries} == {("orders", "")}
    assert [(row["decision"], row["deliveries"]) for row in old.archived("op")] == [("accept", 1)] * 3 + [("commit", 2)]
    assert retention.messages_kept_since(old.connection) == begin_of(OLD + timedelta(days=1))
    # messages are in it
    assert old.root.stat().st_mode & 0o077 == 0
    assert old.write() == []


def test_days_wait_for_as_long_as_it_is_on(old: Old) -> None:
    old.make()
    assert old.drop().emptied == ()
    assert days.turn_off(old.connection)
    assert f"half_{OLD:%Y%m%d}" in old.drop().emptied
    assert not days.turn_off(old.connection)


def test_a_role_that_may_not_turn_it_on_leaves_no_folder(database: Connection, tmp_path: Path) -> None:
    for statement in (
        "create role reads_the_archive",
        "grant usage on schema coordinator to reads_the_archive",
        "grant select on all tables in schema coordinator to reads_the_archive",
        "set local role reads_the_archive",
    ):
        database.execute(text(statement))
    with pytest.raises(StoreUnavailable, match="lacks a permission"):
        days.turn_on(database, tmp_path / "archive")
    database.rollback()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_used_turns_nothing_on(database: Connection, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArchiveUnusable, match="no such file; expected the archive of store"):
        days.turn_on(database, tmp_path)
    database.commit()
    assert days.folder(database) is None


def test_days_that_are_kept_are_archived_when_asked_for(old: Old) -> None:
    young = TODAY - timedelta(days=1)
    old.make(young)
    assert old.write() == []
    assert old.write(TODAY) == [("half", young), ("op", young)]
    assert old.drop().emptied == ()
    assert len(old.rows("half")) == 4


def test_what_came_after_the_copy_is_copied_before_the_day_is_dropped(old: Old) -> None:
    old.make()
    old.write()
    late = old.half(OLD, b"late")
    done = old.drop()
    assert (done.emptied, done.unarchived) == ((), (f"half_{OLD:%Y%m%d}",))
    assert late in old.halves()
    assert old.write() == [HALF]
    assert f"half_{OLD:%Y%m%d}" in old.drop().emptied
    assert late in [row["id"] for row in old.archived("half")]


def test_what_comes_while_a_day_is_dropped_stays(old: Old, database_url: str) -> None:
    """Between the look at the partition and its lock."""
    old.make()
    old.write()
    came: list[str] = []

    @event.listens_for(old.connection, "before_cursor_execute")
    def _come(_c: object, _u: object, statement: str, *_: object) -> None:
        if statement.startswith("lock table coordinator.half_") and not came:
            came.append(statement)
            with psycopg.connect(database_url) as other:
                other.execute(
                    "insert into coordinator.half (id, address_id, message)"
                    " select max(id) + 1, 1, 'x' from coordinator.half"
                )

    assert f"half_{OLD:%Y%m%d}" in old.drop().waiting
    assert came
    assert len(old.rows("half")) == 5
    assert old.write() == [HALF]


def test_what_is_undelivered_stays_in_the_store_and_goes_without_another_copy(old: Old) -> None:
    old.make()
    waiting = [old.half(OLD, b"waits", waiting=True) for _ in range(2)]
    old.write()
    assert old.drop().carried == 2
    assert old.halves() == waiting
    assert set(waiting) < {row["id"] for row in old.archived("half")}
    assert (old.write(), old.drop().emptied) == ([], ())
    for half_id in waiting:
        old.connection.execute(delete(entry).where(entry.c.half_id == half_id))
        old.connection.commit()
        assert old.drop().emptied == (f"half_{OLD:%Y%m%d}",)
    assert old.halves() == []
    # and what comes then is of no copy
    assert old.noted()[HALF].rows == 6


def test_what_comes_to_a_dropped_day_stays_until_it_is_restored(old: Old) -> None:
    old.make()
    old.half(OLD, waiting=True)
    old.write()
    old.drop()
    late = old.half(OLD, b"late")
    old.connection.execute(delete(entry))
    old.connection.commit()
    assert old.write() == []
    assert old.drop().unarchived == (f"half_{OLD:%Y%m%d}",)
    assert late in old.halves()
    # then all of the day is there, and is copied anew
    old.restore()
    old.let_go()
    assert old.write() == [HALF]
    assert f"half_{OLD:%Y%m%d}" in old.drop().emptied
    assert [row["id"] for row in old.archived("half")][-1] == late
    assert len(old.archived("half")) == 6


def _forget(old: Old) -> None:
    """As if each run had been stopped before the store noted the copy."""
    old.connection.execute(delete(archived_day))
    old.connection.commit()


def test_a_copy_that_is_left_over_is_used_if_it_is_the_same(old: Old) -> None:
    old.make()
    old.write()
    _forget(old)
    path = folder_of(old.root, *HALF) / "half.parquet"
    left = path.stat().st_ino
    assert old.write() == [HALF, OP]
    assert path.stat().st_ino == left
    assert {path.name for path in (old.root / "half").iterdir()} == {NAME}


def _other_row(old: Old, day: date) -> None:
    """As many rows, with the same ids, and one of them another: a store that was put back, and went on otherwise."""
    partition = f"coordinator.half_{day:%Y%m%d}"
    for statement in (
        f"create temporary table others as select * from {partition}",
        f"set local {DROPPING} = 'on'",
        f"truncate {partition}",
        "update others set message = 'another' where message = 'm1'",
        "insert into coordinator.half select * from others",
    ):
        old.connection.execute(text(statement))
    old.connection.commit()


def _more(old: Old, day: date) -> None:
    old.half(day, b"more")


def test_a_copy_that_is_left_over_and_differs_is_put_aside(old: Old) -> None:
    differ = (_other_row, _more, changed("half.parquet"), changed("manifest.json"), without_manifest)
    those = [OLD + timedelta(days=number) for number in range(len(differ))]
    for day in those:
        old.make(day)
    old.write()
    _forget(old)
    for change, day in zip(differ, those, strict=True):
        change(old, day)
    live = {row[0]: bytes(row[3]) for row in old.rows("half")}
    assert set(old.write()) >= {("half", day) for day in those}
    old.drop()
    assert old.halves() == []
    assert {row["id"]: row["message"] for row in old.archived("half")} == live
    names = {path.name for path in (old.root / "half").iterdir()}
    assert names == {f"{day}{end}" for day in those for end in ("", ".aside-1")}


def test_what_is_read_back_otherwise_is_no_copy(old: Old, monkeypatch: pytest.MonkeyPatch) -> None:
    old.make()

    def lossy(*arguments: Any) -> Any:
        return (batch.slice(1) for batch in batches(*arguments))

    batches = writing._batches
    monkeypatch.setattr(writing, "_batches", lossy)
    with pytest.raises(ArchiveUnusable, match=r"half\.parquet: read back, it has 3 rows of sum .*; the table has 4 of"):
        old.write()
    assert old.noted() == {}
    assert old.names() == {"archive.json", "half"}


def test_rows_are_in_groups_that_fit_into_memory(old: Old, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "GROUP_ROWS", 2)
    monkeypatch.setattr(writing, "GROUP_BYTES", 5000)
    for octets in (1, 2, 3, 6000, 4):
        old.half(OLD, bytes(octets))
    old.write()
    with pq.ParquetFile(folder_of(old.root, *HALF) / "half.parquet") as file:
        groups = [file.read_row_group(number)["message"].to_pylist() for number in range(file.num_row_groups)]
    assert [[len(message) for message in group] for group in groups] == [[1, 2], [3, 6000], [4]]


def test_a_full_disk_leaves_nothing_that_looks_whole(old: Old) -> None:
    """A file may not grow any more, as on a disk that is full."""
    old.half(OLD, os.urandom(200_000))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(ArchiveUnusable, match=r"archive .*: File too large"):
            old.write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert old.names() == {"archive.json", "half"}
    assert old.drop().emptied == ()
    assert old.write() == [HALF]


def test_one_process_at_a_time(old: Old, database_url: str) -> None:
    with psycopg.connect(database_url) as other:
        other.execute("lock table coordinator.archived_day in share update exclusive mode")
        with pytest.raises(ArchiveUnusable, match="another process writes the archive"):
            old.write()


def test_the_sum_of_a_file_is_that_of_the_table(old: Old) -> None:
    """Of each kind of value, and of none."""
    old.connection.execute(insert(half).values(id=old.half(OLD) + 1, address_id=-1, message="ä".encode() * 200))
    old.connection.commit()
    old.op(OLD, "dead-letter", [1], reason="zu spät", instance_id=-7)
    old.op(OLD, "release", [])
    old.write()
    for table, files in FILES.items():
        for name, columns in files.items():
            path = folder_of(old.root, table, OLD) / f"{name}.parquet"
            read = pq.read_table(path)
            assert summed(path, columns).rows == len(read)
            pq.write_table(read.take(list(reversed(range(len(read))))), path)
            once = summed(path, columns)
            for column in {"address", "reason"}.intersection(columns):
                place = read.schema.get_field_index(column)
                other = read.set_column(place, column, [[*read[column].to_pylist()[:-1], "other"]])
                pq.write_table(other, path)
                assert summed(path, columns) != once
