"""``coordinator reconcile --store``, and what a role of the database needs for it (rules R32, R34)."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from coordinator.commands.reconcile import _stored
from spark.period import Period
from store import runs
from store.database import connected
from tests.fix_command import ROOT, Command, environment
from tests.fix_night import by_night
from tests.fix_store_rows import NOW, StoreRows
from tests.reconciling import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from sqlalchemy import Connection


def _reconcile(out: Path, url: str, *more: str, **values: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "coordinator", "reconcile", "--out", str(out), "--database-url", url, *more],
        env=environment(**values),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def lossy(database_url: str) -> str:
    rows = StoreRows(seed=24).healthy(20)
    rows.committed([rows.address("shop")], NOW - timedelta(hours=1))
    rows.write(database_url)
    return database_url


@pytest.fixture
def reader(database_url: str) -> Iterator[str]:
    """A role that may read the store; in URLs: :func:`_as`."""
    role = f"reader_{os.getpid()}"
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"create role {role}".encode())
        connection.execute(f"grant usage on schema coordinator to {role}".encode())
        connection.execute(f"grant select on all tables in schema coordinator to {role}".encode())
        yield role
        connection.execute(f"drop owned by {role}".encode())
        connection.execute(f"drop role {role}".encode())


def _as(role: str, url: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}options=-crole%3D{role}"


@pytest.mark.rule("R31", "R32", "R34")
def test_a_run_is_stored_shown_repaired_and_repeated(
    spark: SparkSession, lossy: str, database: Connection, command: Command, tmp_path: Path
) -> None:
    """The second run takes the place of the first, and finds what the repair has left."""
    out = tmp_path / "out"
    found = _reconcile(out, lossy, "--store")
    assert found.returncode == 1, found.stderr
    assert found.stdout.splitlines() == [
        f"2 findings: 1 lost-delivery, 1 unbalanced; report: {out / 'report.html'}",
        "stored as run 1: coordinator findings show 1",
    ]
    (stored,) = runs.runs(database)
    assert [(each.kind, each.address) for each in runs.findings(database, stored)] == [
        ("lost-delivery", "shop"),
        ("unbalanced", "shop"),
    ]
    report = gzip.decompress(runs.report_of(database, stored.id) or b"").decode()
    assert "2 findings" in report
    assert 'href="findings' not in report  # its files are not where the console shows it
    dry = command("repair", "--run", "1", "--database-url", lossy)
    assert (dry.returncode, dry.stdout.count("would deliver ")) == (1, 1), dry.stderr
    done = command("repair", "--run", "1", "--apply", "--database-url", lossy)
    assert done.stdout.count("done: delivered again") == 1, done.stdout + done.stderr
    again = run(spark, lossy, out)
    assert _stored(lossy, again, Period(), out) == "stored as run 1: coordinator findings show 1"
    (repeated,) = runs.runs(database)
    assert (repeated.id, repeated.findings, repeated.seen_at > stored.seen_at) == (stored.id, 0, True)


@pytest.mark.rule("R32")
@pytest.mark.parametrize(
    ("granted", "says"),
    [
        by_night(
            "select on coordinator.run",
            "the database's role may not insert in coordinator.run; let its owner run: grant ",
        ),
        (
            "insert, update, delete on coordinator.run",
            "the database's role may not insert in coordinator.finding; let its owner run: grant ",
        ),
    ],
    ids=["none", "of one table"],
)
def test_a_role_that_only_reads_cannot_store(
    reader: str, database: Connection, database_url: str, tmp_path: Path, granted: str, says: str
) -> None:
    """It is said before Spark works."""
    database.exec_driver_sql(f"grant {granted} to {reader}")
    database.commit()
    ran = _reconcile(tmp_path / "out", _as(reader, database_url), "--store")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith(f"error: --store: {says}")
    assert not (tmp_path / "out" / "summary.json").exists()


@pytest.mark.night
@pytest.mark.rule("R32")
def test_a_store_that_only_reads_is_said(database_url: str, tmp_path: Path) -> None:
    read_only = f"{database_url}{'&' if '?' in database_url else '?'}options=-cdefault_transaction_read_only%3Don"
    ran = _reconcile(tmp_path / "out", read_only, "--store")
    assert (ran.returncode, ran.stderr[:45]) == (2, "error: --store: the database only reads: a st")


@pytest.mark.rule("R32")
def test_a_role_that_only_reads_reconciles_and_one_with_these_rights_stores(
    spark: SparkSession, reader: str, database: Connection, lossy: str, tmp_path: Path
) -> None:
    found = run(spark, _as(reader, lossy), tmp_path / "out")
    assert dict(found.findings.by_kind) == {"lost-delivery": 1, "unbalanced": 1}
    database.exec_driver_sql(
        f"grant select, insert, update, delete on coordinator.run, coordinator.finding to {reader}"
    )
    database.commit()
    of = runs.Run(since=None, until=None, books=(), seen_at=found.seen_at, version="1")
    with connected(_as(reader, lossy)) as connection:
        runs.check_rights(connection)
        assert runs.store(connection, of, []) == runs.store(connection, of, [])
