"""What a watch has counted and found: in the store once, and of one checkpoint (R32, R33)."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, text

from spark.changes import read_sql
from spark.checkpoint import held
from store import figures, runs, watched
from store.watched import CannotWatch
from tests.fix_command import Command
from tests.fix_reports import finding, lost
from tests.fix_runs import a_batch, a_run, store_run
from tests.fix_store import Rows
from tests.plans import nodes

pytestmark = pytest.mark.rule("R33")

WATCH, OTHER = uuid4(), uuid4()


def _count(database: Connection, batch: watched.Batch, watch_id: UUID = WATCH) -> list[str]:
    return [each["kind"] for each in watched.count(database, watch_id, batch, "1.2.3")]


def _state(database: Connection) -> watched.WatchState:
    found = watched.state(database)
    assert found is not None
    return found


def test_a_batch_counts_once(database: Connection) -> None:
    first = a_batch(counts={"half": 3}, findings=[vars(lost(1)), vars(finding("overdue", txn_id=str(uuid4())))])
    assert _count(database, first) == ["lost-delivery", "overdue"]
    assert _count(database, first) == []
    assert _count(database, a_batch(1, 10, 20, counts={"half": 2, "op commit": 1})) == []
    found = _state(database)
    assert (found.batch, found.position) == (1, 20)
    assert found.counts == {"half": 5, "op commit": 1}
    assert found.findings == {("lost-delivery", "error"): 1, ("overdue", "error"): 1}


@pytest.mark.parametrize(
    ("watch_id", "batch"),
    [
        (WATCH, a_batch(2, 10, 20)),
        (WATCH, a_batch(1, 9, 20)),
        (WATCH, a_batch(0, 0, 11)),
        (OTHER, a_batch(1, 10, 20)),
    ],
    ids=["one is missing", "not where the last ended", "the last with another end", "of another checkpoint"],
)
def test_a_batch_that_is_not_the_next_is_refused(database: Connection, watch_id: UUID, batch: watched.Batch) -> None:
    _count(database, a_batch(counts={"half": 3}))
    with pytest.raises(CannotWatch, match=r"checkpoint"):
        _count(database, batch, watch_id)
    assert (_state(database).counts, _state(database).position) == ({"half": 3}, 10)


@pytest.mark.rule("R32")
def test_findings_are_a_run_that_is_added_to(database: Connection) -> None:
    """Each once, and when it was seen; runs of a reconciliation neither drop it nor are hidden by it."""
    one, two = lost(1), lost(2)
    _count(database, a_batch(findings=[vars(one), vars(one)]))
    for _ in range(2):
        watched.record(database, WATCH, [vars(one), vars(two)], "1.2.3")
    (stored,) = runs.runs(database)
    assert (stored.watch_id, stored.counts) == (WATCH, {("lost-delivery", "error"): 2})
    assert [(each.number, each.half_id) for each in runs.findings(database, stored)] == [(1, 1), (2, 2)]
    seen = database.scalars(text("select distinct seen_at from coordinator.findings")).all()
    assert seen == [one.seen_at]
    assert runs.last(database) is None
    own = store_run(database, [], a_run(), kept=1)
    last = runs.last(database)
    assert last is not None
    assert last.id == own
    assert {each.id for each in runs.runs(database)} == {own, stored.id}
    watched.forget(database)
    assert [each.id for each in runs.runs(database)] == [own]
    assert watched.state(database) is None


@pytest.mark.rule("R32")
def test_the_first_findings_are_kept_and_no_more(database: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "MOST_KEPT", 3)
    assert _count(database, a_batch(findings=[vars(lost(number)) for number in (1, 2)])) == ["lost-delivery"] * 2
    assert _count(database, a_batch(1, 10, 20, findings=[vars(lost(number)) for number in (3, 4)])) == ["lost-delivery"]
    (stored,) = runs.runs(database)
    assert [each.half_id for each in runs.findings(database, stored)] == [1, 2, 3]
    assert _state(database).findings == {("lost-delivery", "error"): 3}


def test_a_batch_whose_end_spark_has_not_noted_may_be_counted_already(database: Connection) -> None:
    """Spark repeats that one: it may be one behind, and no more."""
    watched.check(database, None, -1)
    _count(database, a_batch(counts={"half": 3}))
    for ended in (-1, 0):
        watched.check(database, WATCH, ended)
    _count(database, a_batch(1, 10, 20))
    for ended in (-1, 2):
        with pytest.raises(CannotWatch, match="one of them was restored"):
            watched.check(database, WATCH, ended)


def test_how_far_behind(database: Connection, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    _count(database, a_batch(until=figures.position(database)))
    now, _ = watched.record(database, WATCH, [], "1.2.3")
    assert (now.lag.rows, now.lag.more, now.lag.seconds) == (0, False, 0)
    database.execute(
        text(
            "insert into coordinator.half (id, address_id, message, posted_at)"
            " select :first + i, 1, '', now() - interval '90 s' from generate_series(1, 3) i"
        ),
        {"first": rows.half_ids.next()},
    )
    database.commit()
    lag = _state(database).lag
    assert (lag.rows, lag.more) == (3, False)
    assert lag.seconds >= 90
    monkeypatch.setattr(watched, "MOST_BEHIND", 2)
    assert (_state(database).lag.rows, _state(database).lag.more) == (2, True)
    monkeypatch.undo()
    _count(database, a_batch(1, _state(database).position, figures.position(database)))
    assert _state(database).lag.rows == 0
    # a row of another server, whose dump was restored here
    database.execute(
        text(
            "insert into coordinator.half (id, address_id, message, written_xid) values (:id, 1, '', '1099511627776')"
        ),
        {"id": rows.half_ids.next() + 10},
    )
    database.commit()
    assert _state(database).lag.rows == 0


def _retention(database: Connection, days_ago: int) -> None:
    database.execute(
        text(
            "insert into coordinator.retention (table_name, kept_from) values ('half', current_date - :ago)"
            " on conflict (table_name) do update set kept_from = excluded.kept_from"
        ),
        {"ago": days_ago},
    )
    database.commit()


def test_days_that_were_dropped_unread_are_told(database: Connection, rows: Rows) -> None:
    """Not those from before it began, nor those that it had counted whole."""

    def missed() -> object:
        return watched.record(database, WATCH, [], "1.2.3")[0].missed_before

    def not_up_to_date_for(days: int) -> None:
        database.execute(
            text("update coordinator.watch set up_to_date_at = now() - :days * interval '1 day'"), {"days": days}
        )
        database.commit()

    _retention(database, 9)
    assert missed() is None, "it begins with what is kept"
    _retention(database, 8)
    assert missed() is None, "all was counted since"
    not_up_to_date_for(5)
    _retention(database, 3)
    told = database.scalar(text("select current_date - 3"))
    assert missed() == told
    _retention(database, 2)
    assert missed() == told, "it is up to date again"
    not_up_to_date_for(5)
    rows.queue("orders")
    rows.entry(1)
    assert missed() == told, "nothing was dropped meanwhile, and there is something to count"
    _retention(database, 1)
    assert missed() == database.scalar(text("select current_date - 1"))


def _plan(database: Connection, sql: str) -> dict[str, Any]:
    for setting in ("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit"):
        database.execute(text(f"set local {setting} = off"))
    plan = database.scalar(text(f"explain (analyze, buffers, format json) {sql}".replace(":", "\\:")))
    database.rollback()
    found: dict[str, Any] = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]
    return found


def _blocks(plan: dict[str, Any]) -> int:
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def test_what_is_new_is_found_by_an_index_and_costs_itself(database: Connection, rows: Rows) -> None:
    """However much is older, in its day and in others."""
    rows.queue("orders")
    database.execute(
        text(
            "insert into coordinator.half (id, address_id, message, posted_at)"
            " select max(id) - i, 1, convert_to(repeat('x', 500), 'UTF8'), now() from generate_series(1, 30000) i,"
            " (select :first as id) h group by i"
        ),
        {"first": rows.entry(1)},
    )
    database.commit()
    since = figures.position(database)
    # as the server does, some time after the rows have come
    database.execute(
        text(
            "select brin_summarize_new_values(i.indexrelid) from pg_index i join pg_class c on c.oid = i.indexrelid"
            " join pg_am a on a.oid = c.relam where a.amname = 'brin' and c.relkind = 'i'"
        )
    )
    database.commit()
    rows.entry(1)
    until = figures.position(database)
    new = _plan(database, read_sql("half", since, until))
    scans = {(each.get("Relation Name", "")[:5], each["Node Type"]) for each in nodes(new)}
    assert {kind for name, kind in scans if name == "half_"} == {"Bitmap Heap Scan"}
    assert {kind for name, kind in scans if name.startswith("op_")} <= {"Index Scan", "Index Only Scan"}
    whole = _plan(database, read_sql("half", 0, until))
    assert _blocks(whole) > 2000
    # a range of 64 pages, and a few pages of each day's index
    assert _blocks(new) < 400


def _checkpoint(folder: Path, watch_id: UUID, offset: dict[str, object]) -> None:
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": str(watch_id)}), "utf-8")
    (folder / "offsets" / "0").write_text("\n".join(("v1", "{}", json.dumps(offset))), "utf-8")
    (folder / "commits" / "0").write_text("v1\n{}", "utf-8")


@pytest.fixture
def here(database: Connection) -> dict[str, Any]:
    """The offset of a checkpoint that is up to date."""
    at = watched.place(database)
    return {"system": at["system"], "database": at["database"], "xid": at["ended"]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"system": "7000000000000000001"},
            "is not of this store: it is of the database .* of server 7000000000000000001",
        ),
        ({"database": "another"}, "is not of this store: it is of the database another"),
        ({"xid": 1 << 40}, "is not of this store: it has counted up to SQL transaction 1099511627776, .* restored"),
        ({}, "the store knows nothing of this checkpoint; begin anew, in an empty folder"),
    ],
    ids=["another server", "another database", "ahead of the server", "unknown to the store"],
)
def test_a_checkpoint_of_another_store_is_refused(
    command: Command, database_url: str, here: dict[str, Any], tmp_path: Path, change: dict[str, object], says: str
) -> None:
    _checkpoint(tmp_path / "c", WATCH, {**here, **change})
    ran = command("watch", "--checkpoint", str(tmp_path / "c"), "--database-url", database_url)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.count("\n") == 1
    assert re.match(f"error: .*{says}", ran.stderr)


def test_a_store_that_another_checkpoint_counts_is_refused(
    command: Command, database: Connection, database_url: str, here: dict[str, Any], tmp_path: Path
) -> None:
    _count(database, a_batch(until=here["xid"]), OTHER)
    for folder in ("new", "old"):
        if folder == "old":
            _checkpoint(tmp_path / folder, WATCH, here)
        ran = command("watch", "--checkpoint", str(tmp_path / folder), "--database-url", database_url)
        assert ran.returncode == 2
        assert ran.stderr == (
            f"error: the store is watched from another checkpoint ({OTHER}); give its folder, or begin anew with --anew"
            " in an empty one\n"
        )
    _checkpoint(tmp_path / "own", OTHER, here)
    (tmp_path / "own" / "commits" / "5").write_text("v1\n{}", "utf-8")
    ran = command("watch", "--checkpoint", str(tmp_path / "own"), "--database-url", database_url)
    assert ran.returncode == 2
    assert "counted up to batch 0, and the checkpoint up to 5: one of them was restored" in ran.stderr
    ran = command("watch", "--anew", "--checkpoint", str(tmp_path / "own"), "--database-url", database_url)
    assert (ran.returncode, ran.stderr) == (
        2,
        f"error: --anew: checkpoint {tmp_path}/own has been begun; give an empty folder\n",
    )


@pytest.mark.parametrize("anew", [(), ("--anew",)])
def test_a_second_watch_on_one_checkpoint_is_refused(
    database: Connection, command: Command, database_url: str, tmp_path: Path, anew: tuple[str, ...]
) -> None:
    """At once; and with ``--anew`` it forgets nothing of what the first has counted."""
    with held(tmp_path):
        ran = command(
            "watch", "--checkpoint", str(tmp_path), "--database-url", database_url, *anew, JAVA_HOME="/nonexistent"
        )
    said = f"error: checkpoint {tmp_path}: another coordinator watch is running on it\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", said)
    assert list(tmp_path.iterdir()) == []
    with held(tmp_path):  # which the first has left
        pass


def test_what_cannot_be_watched_is_said_before_spark_starts(
    command: Command, database: Connection, database_url: str, tmp_path: Path
) -> None:
    def refused(folder: Path, *arguments: str) -> str:
        ran = command("watch", "--checkpoint", str(folder), "--database-url", database_url, *arguments)
        assert (ran.returncode, ran.stdout) == (2, "")
        return ran.stderr.strip()

    file = tmp_path / "file"
    file.write_text("x", "utf-8")
    assert refused(file) == f"error: checkpoint {file}: File exists"
    assert refused(tmp_path) == f"error: checkpoint {tmp_path}: it has other files, such as file; give its own"
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "metadata").write_text("{", "utf-8")
    assert refused(tmp_path / "torn") == f"error: checkpoint {tmp_path}/torn: its files are not as Spark writes them"
    assert "expected a number and m or g" in refused(tmp_path / "c", "--memory", "much")
    database.execute(text("update coordinator.alembic_version set version_num = '0009'"))
    database.commit()
    assert refused(tmp_path / "c") == (
        "error: the database holds a store of a development state (0009), which this version does not read: let its"
        " consumers empty it with the version that made it, then begin anew with an empty database"
    )


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of its own, with room for the name of a file and nothing in it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small disk needs the right to mount one")
    try:
        (folder / ".ballast").write_bytes(bytes(64 << 10))
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_is_said_before_spark_starts(command: Command, database_url: str, full_disk: Path) -> None:
    """Spark would take a minute to start, to try, and to fail."""
    ran = command("watch", "--checkpoint", str(full_disk), "--database-url", database_url, JAVA_HOME="/nonexistent")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"error: checkpoint {full_disk}: No space left on device\n"
    assert list(full_disk.iterdir()) == [full_disk / ".ballast"]
