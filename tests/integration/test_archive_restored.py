"""Days come back from the archive as they were; what is damaged does not; kills lose nothing; and the command."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from typer.testing import CliRunner

from coordinator.__main__ import app
from store.archive import days
from store.archive.copies import ArchiveUnusable, folder_of
from tests.fix_archive import NAME, OLD, Change, Old, changed, without_manifest
from tests.fix_command import ROOT, environment

pytestmark = pytest.mark.rule("R35")


def test_a_restored_day_is_as_it_was_and_stays_for_a_time(old: Old) -> None:
    old.make()
    old.op(OLD, "accept", [])
    old.op(OLD, "rollback", [], posted=3)
    old.half(OLD, b"waits", waiting=True)
    before = {table: old.rows(table) for table in ("half", "op")}
    old.write()
    old.drop()
    assert len(old.rows("half")) == 1
    assert old.restore() == {"half": 4, "op": 6}
    assert {table: old.rows(table) for table in before} == before
    assert old.drop().emptied == ()
    with pytest.raises(ArchiveUnusable, match=f"{NAME} is not dropped"):
        old.restore()
    # nothing has to be written for it to go
    old.let_go()
    assert old.write() == []
    assert set(old.drop().emptied) == {f"half_{OLD:%Y%m%d}", f"op_{OLD:%Y%m%d}"}
    assert len(old.rows("half")) == 1


@pytest.mark.rule("S9")
def test_a_restored_day_has_the_rights_of_its_table(old: Old) -> None:
    """A service that owns nothing reads it; ``pg_monitor`` is a role that every server has."""
    old.make()
    old.write()
    old.drop()
    old.connection.exec_driver_sql(f"drop table if exists coordinator.half_{OLD:%Y%m%d}, coordinator.op_{OLD:%Y%m%d}")
    old.connection.exec_driver_sql("grant select on coordinator.half, coordinator.op to pg_monitor")
    old.connection.commit()
    old.restore()
    for table in ("half", "op"):
        asked = f"select has_table_privilege('pg_monitor', 'coordinator.{table}_{OLD:%Y%m%d}', 'select')"
        assert old.connection.exec_driver_sql(asked).scalar()
        old.connection.commit()
        with pytest.raises(DBAPIError, match="append"):
            old.connection.exec_driver_sql(f"truncate coordinator.{table}_{OLD:%Y%m%d}")
        old.connection.rollback()


def _of_another(old: Old, _: date) -> None:
    (old.root / "archive.json").write_text(json.dumps({"format": 1, "store": "0badcafe"}))


def _cut(old: Old, day: date) -> None:
    path = folder_of(old.root, "op", day) / "delivery.parquet"
    path.write_bytes(path.read_bytes()[:-1])


def _gone(old: Old, day: date) -> None:
    shutil.rmtree(folder_of(old.root, "op", day))


DAMAGES: list[tuple[Change, str]] = [
    (_of_another, r"archive\.json: the archive of store 0badcafe, and this is store [0-9a-f]{8}"),
    (changed("half.parquet"), rf"half/{NAME}/half\.parquet: changed; its SHA-256 is \w+, expected \w+"),
    (changed("manifest.json"), rf"half/{NAME}/manifest\.json: changed; its SHA-256 is \w+, expected \w+"),
    (without_manifest, rf"half/{NAME}/manifest\.json: No such file or directory"),
    (_cut, rf"op/{NAME}/delivery\.parquet: changed; it has \d+ octets, expected \d+"),
    (_gone, rf"op/{NAME}/manifest\.json: No such file or directory"),
]


def test_of_a_damaged_archive_nothing_is_restored(old: Old, tmp_path: Path) -> None:
    old.make()
    old.write()
    old.drop()
    whole = old.root
    for number, (damage, says) in enumerate(DAMAGES):
        old.root = tmp_path / str(number)
        shutil.copytree(whole, old.root)
        damage(old, OLD)
        with pytest.raises(ArchiveUnusable, match=says):
            old.restore()
        old.connection.rollback()
    assert (old.rows("half"), old.rows("op")) == ([], [])


def test_a_folder_that_lacks_dropped_days_is_no_archive(old: Old, tmp_path: Path) -> None:
    old.make()
    old.write()
    old.drop()
    with pytest.raises(ArchiveUnusable, match=r"elsewhere/half/.*/manifest\.json: No such file"):
        days.turn_on(old.connection, tmp_path / "elsewhere")
    old.root.rename(tmp_path / "moved")
    days.turn_on(old.connection, tmp_path / "moved")
    assert days.folder(old.connection) == tmp_path / "moved"


def test_killed_at_any_step_and_run_again_it_loses_nothing(old: Old, database_url: str) -> None:
    assert (old.address, old.group) == (1, 1)
    done = subprocess.run(
        [sys.executable, "-m", "tests.archiving", database_url, str(old.root)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    points = [json.loads(line) for line in done.stdout.splitlines()]
    assert [point["killed"] for point in points] == [True] * (len(points) - 1) + [False]
    assert len(points) > 20
    halves, deliveries = old.archived("half"), old.archived("delivery")
    assert (old.rows("half"), old.rows("op")) == ([], [])
    for point in points:
        made = point["made"]
        of_day = [row["message"] for row in halves if made[0] <= row["id"] < made[0] + 100]
        assert (point["day"], of_day) == (point["day"], [b"m0", b"m1", b"m2", b""])
        assert [row["half_id"] for row in deliveries if row["half_id"] in made] == sorted([*made, *made[:2]])
    assert len(halves) == 4 * len(points)
    whole = {f"{table}/{point['day']}" for table in ("half", "op") for point in points}
    assert {name for name in old.names() if name.count("/") == 1} == whole


def test_the_command_archives_drops_and_restores(database: Connection, database_url: str, tmp_path: Path) -> None:
    old = Old(database, tmp_path / "archive")
    made = old.make()
    settings = tmp_path / "settings.toml"
    settings.write_text(f'database_url = "{database_url}"\n[retention]\ndecisions_hours = {8 * 24}\n', "utf-8")

    def run(*arguments: str) -> tuple[int, str]:
        command = arguments if arguments[0] == "message" else ("archive", *arguments)
        done = CliRunner().invoke(app, [*command, "--config", str(settings)])
        return done.exit_code, done.output

    assert run("write") == (1, "error: the archive is off; coordinator archive on FOLDER turns it on\n")
    assert run("on", str(old.root))[0] == 0
    status, said = run("write")
    assert (status, f"archived half of {NAME}: 4 rows" in said, f"dropped op_{OLD:%Y%m%d}" in said) == (0, True, True)
    assert old.halves() == []
    assert run("write") == (0, "no day is due to be archived\n")
    status, said = run("message", "show", str(made[0]), "--no-archive")
    assert (status, f"coordinator archive restore {NAME}" in said) == (1, True)
    assert run("restore", "yesterday") == (2, "error: DAY: 'yesterday' is no day; expected 2026-11-01\n")
    assert run("restore", "2024-02-01") == (2, "error: 2024-02-01 is not archived\n")
    assert run("restore", NAME)[0] == 0
    assert old.halves()[:3] == made
    assert run("message", "show", str(made[0]))[0] == 0
    _of_another(old, OLD)
    status, said = run("write")
    assert (status, "archive.json: the archive of store 0badcafe" in said) == (2, True)
    assert run("write", "--before", "2093-01-01")[0] == 2
    assert run("off") == (0, "the archive is off\n")
