"""How ``coordinator reconcile`` ends when it cannot run: with 2, a sentence, and nothing that looks whole (R31)."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from spark.output import OutputUnusable
from spark.read_back import ReportUnusable, read_report
from tests.fix_command import PATIENCE_SECONDS, ROOT, environment
from tests.fix_store_rows import NOW, StoreRows
from tests.reconciling import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.rule("R31")

_BROKEN = """
import sys
from coordinator.commands import {module}
def broken(*_, **__): raise RuntimeError("not foreseen")
{module}.{function} = broken
from coordinator.__main__ import main
sys.argv[0] = "coordinator"
main()
"""


@pytest.mark.parametrize(
    ("module", "function", "arguments"),
    [("reconcile", "_prepared", ["reconcile", "--out", "x"]), ("repair", "_by_store", ["repair", "x"])],
)
def test_a_defect_is_no_finding(tmp_path: Path, module: str, function: str, arguments: list[str]) -> None:
    """1 would mean that something was found."""
    url = ["--database-url", "postgresql://127.0.0.1:1/none"]
    ran = subprocess.run(
        [sys.executable, "-c", _BROKEN.format(module=module, function=function), *arguments, *url],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    *_, cause, last = ran.stderr.splitlines()
    assert (cause, last) == (
        "RuntimeError: not foreseen",
        "error: that is a defect of coordinator, and nothing that was found",
    )


@pytest.mark.rule("F6")
@pytest.mark.parametrize(("version", "says"), [("9.9", "schema is at 9.9"), ("0038", "development state (0038)")])
def test_a_store_of_another_schema_is_said_before_spark_works(
    database_url: str, tmp_path: Path, version: str, says: str
) -> None:
    """The Java that starts meanwhile ends without a word."""
    with psycopg.connect(database_url) as connection:
        connection.execute("update coordinator.alembic_version set version_num = %s", [version])
    ran = subprocess.run(
        [sys.executable, "-m", "coordinator", "reconcile", "--out", str(tmp_path / "out")],
        cwd=ROOT,
        env=environment(COORDINATOR_DATABASE_URL=database_url),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    (line,) = ran.stderr.splitlines()
    assert line.startswith("error: ")
    assert says in line
    assert list((tmp_path / "out").iterdir()) == []


@pytest.fixture
def full_disk() -> Iterator[Path]:
    """A folder with room for a few pages."""
    folder = Path(tempfile.mkdtemp(prefix="coordinator-disk-"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        folder.rmdir()
        pytest.skip("a small disk needs the right to mount one")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
        folder.rmdir()


def test_a_full_disk_leaves_nothing_that_looks_whole(
    spark: SparkSession, database_url: str, tmp_path: Path, full_disk: Path
) -> None:
    """Nor what an earlier run has left, beside the findings of this one. The findings fit, the report does not."""
    rows = StoreRows(seed=27).healthy(20)
    rows.committed([rows.address("shop")], NOW - timedelta(hours=1))
    rows.write(database_url)
    run(spark, database_url, tmp_path / "whole")
    (full_disk / "summary.json").write_bytes((tmp_path / "whole" / "summary.json").read_bytes())
    with pytest.raises(OutputUnusable, match=f"output folder {full_disk}: No space left on device"):
        run(spark, database_url, full_disk)
    assert (full_disk / "findings.parquet").stat().st_size > 0
    assert not list(full_disk.glob(".*.partial"))
    with pytest.raises(ReportUnusable, match=r"summary\.json: No such file"):
        read_report(full_disk)


def test_a_disk_without_any_room_gets_no_findings(spark: SparkSession, database_url: str, full_disk: Path) -> None:
    StoreRows(seed=27).healthy(20).write(database_url)
    with (full_disk / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
        while ballast.write(bytes(512)):
            pass
    with pytest.raises(OutputUnusable, match=f"output folder {full_disk}: No space left on device"):
        run(spark, database_url, full_disk)
    assert list(full_disk.iterdir()) == [full_disk / "ballast"]
