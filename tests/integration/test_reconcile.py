"""``coordinator reconcile`` on real PostgreSQL: periods, a store under load, and the command as its users have it."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from coordinator.__main__ import app
from spark.books.description import describe
from spark.output import OutputUnusable, output
from spark.period import BEGINNING, END, Period
from spark.read_back import SCHEMA
from spark.reconcile import STAGES
from store.ids import moment_of
from store.migrations import REVISIONS
from tests.fix_store_rows import NOW, StoreRows, encode_message
from tests.reconciling import Told, Writer, post_and_retire, run, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


ROOT = Path(__file__).parent.parent.parent


@pytest.mark.rule("R10", "R11", "R12", "R13", "R14", "R15", "R19")
def test_a_healthy_store_is_clean_over_any_period(spark: SparkSession, database_url: str, tmp_path: Path) -> None:
    rows = StoreRows(seed=21).healthy(400)
    rows.write(database_url)
    whole = run(spark, database_url, tmp_path / "all")
    assert whole.findings.by_kind == {}
    # At the very edge of a transaction that posted, of one that retired, of a plain post; and somewhere.
    transacted = next(row for row in rows.rows["half"][150:] if row["txn_id"])
    edges = sorted(
        (
            datetime.fromtimestamp(int(transacted["txn_id"].replace("-", "")[:12], 16) / 1000, UTC),
            moment_of(next(row["id"] for row in rows.rows["half"][200:] if not row["txn_id"])),
            NOW - timedelta(hours=2, minutes=7),
        )
    )
    parts = [
        run(spark, database_url, tmp_path / "part", Period(since=since, until=until))
        for since, until in pairwise((BEGINNING, *edges, END))
    ]
    assert [part.findings.by_kind for part in parts] == [{}] * 4
    # neighbours judge everything once
    for name in ("transactions", "transactions_committed", "posted", "committed", "expected", "accepted", "ready"):
        assert sum(part.metrics.totals[name] for part in parts) == whole.metrics.totals[name], name


def test_a_store_without_any_decision_is_read(spark: SparkSession, database_url: str, tmp_path: Path) -> None:
    rows = StoreRows()
    half = rows.half(rows.address("orders"), NOW - timedelta(hours=1))
    rows.entry(1, half)
    rows.write(database_url)
    found = run(spark, database_url, tmp_path / "out")
    assert (dict(found.findings.by_kind), found.metrics.totals["ready"]) == ({}, 1)


@pytest.mark.rule("R1", "R17", "R18")
def test_a_store_under_load_is_read_as_of_one_moment(spark: SparkSession, database_url: str, tmp_path: Path) -> None:
    rows = StoreRows()
    rows.address("orders")
    rows.write(database_url)
    with Writer(database_url, 2, post_and_retire()) as one, Writer(database_url, 3, post_and_retire()) as two:
        started = wait_for(300, one, two)
        result = run(spark, database_url, tmp_path / "out")
        ended = one.written + two.written
    assert ended > started, "nothing was written meanwhile: the test shows nothing"
    assert result.findings.by_kind == {}
    # All tables agree on how many transactions there were, and it was a moment within the run.
    totals, read = result.metrics.totals, result.rows_read
    assert started <= totals["transactions"] <= ended
    assert read["half"] == 3 * read["op"] == 3 * totals["transactions"] == totals["committed"] == totals["expected"]
    assert totals["accepted"] + read["entry"] == read["half"]


@pytest.mark.rule("R20", "R21", "R22", "R30", "R31")
def test_findings_are_written_in_every_form(spark: SparkSession, database_url: str, tmp_path: Path) -> None:
    rows = StoreRows(seed=22)
    orders = rows.address("orders")
    at = NOW - timedelta(hours=1)
    for key in ("A-1", "A-2"):
        _, halves = rows.committed([orders], at, messages=[encode_message(properties={"order": key}, body={})])
        rows.entry(1, halves[0])
    _, lost = rows.committed([orders], at, messages=[encode_message(properties={"order": "A-3"}, body={})])
    rows.write(database_url)
    book = tmp_path / "book.toml"
    book.write_text(
        """
        name = "shop"
        format = "parquet"
        addresses = ["orders", "elsewhere"]
        key = "id"
        message_key = "property:order"
        time = "at"
        committed_when = "true"
        options.path = "shop.parquet"
        """,
        encoding="utf-8",
    )
    spark.createDataFrame(
        [("A-1", at, Decimal(1)), ("A-3", at, Decimal(1)), ("A-4", at, Decimal(1))],
        "id string, at timestamp, x decimal(5,0)",
    ).write.parquet(str(tmp_path / "shop.parquet"))
    told = Told()
    out = tmp_path / "deep" / "out"
    result = run(spark, database_url, out, books=[describe(book)], told=told)
    expected = {"lost-delivery": 1, "lost-message": 1, "phantom-message": 1, "unbalanced": 1}
    assert dict(result.findings.by_kind) == expected
    assert sorted(path.name for path in out.iterdir()) == [
        "findings.csv",
        "findings.parquet",
        "report.html",
        "summary.json",
    ]
    table = pq.read_table(out / "findings.parquet")
    assert table.column_names == SCHEMA.names
    with (out / "findings.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["kind"] for line in lines] == table.column("kind").to_pylist() == sorted(expected)
    assert lines[0]["half_id"] == str(lost[0])
    assert {line["address"] for line in lines if line["kind"] == "lost-delivery"} == {"orders"}
    # the lost delivery is of the store alone, and the book knows its message
    keys = {line["kind"]: line["key"] for line in lines}
    assert keys == {"lost-delivery": "A-3", "lost-message": "A-4", "phantom-message": "A-2", "unbalanced": ""}
    assert "key A-4" in next(line["detail"] for line in lines if line["kind"] == "lost-message")
    assert "key A-2" in next(line["detail"] for line in lines if line["kind"] == "phantom-message")
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["findings"]["by_kind"] == expected
    assert summary["version"] == "1.2.3"
    assert summary["store"]["database"] in database_url
    assert summary["store"]["schema"] == REVISIONS[-1]
    assert summary["books"] == [{"name": "shop", "rows": 3, "messages": 3, "grace_seconds": 300.0}]
    assert told.warnings == ["book shop: the store knows no address 'elsewhere'; nothing was ever posted to it"]
    assert len(told.stages) == STAGES + 2
    assert told.counts == sorted(told.counts)


def test_an_output_folder_that_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputUnusable, match=r"output folder .*file: File exists"), output(tmp_path / "file"):
        pass
    with pytest.raises(OutputUnusable, match="Not a directory"), output(tmp_path / "file" / "out"):
        pass


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COORDINATOR_")}
    return subprocess.run(
        [sys.executable, "-m", "coordinator", "reconcile", *arguments],
        env={**kept, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def lossy_store(database_url: str) -> str:
    rows = StoreRows(seed=23).healthy(30)
    orders = rows.address("shop")
    rows.committed([orders], NOW - timedelta(hours=1))
    rows.write(database_url)
    return database_url


@pytest.mark.rule("R31")
def test_the_exit_status_says_that_nothing_was_found(lossy_store: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    period = ["--until", "2h", "--since", (NOW - timedelta(hours=4)).isoformat()]
    clean = command("--out", str(out), *period, "--book", "inbox", COORDINATOR_DATABASE_URL=lossy_store)
    assert clean.returncode == 0, clean.stderr
    # without a terminal a line for each stage, and nothing that only a terminal understands
    told = clean.stderr.splitlines()
    assert [line for line in told if not re.fullmatch(r"\d+\.\d s, [\d,]+ rows: [\w ]+", line)] == []
    assert len(told) == STAGES + 2 + 1
    assert clean.stdout.splitlines() == [f"0 findings; report: {out / 'report.html'}"]
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert (summary["clean"], [book["name"] for book in summary["books"]]) == (True, ["inbox"])


@pytest.mark.rule("R31", "R25")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--since", "soon"], "--since: 'soon' is no time; expected 2026-03-01"),
        (["--until", "2100-01-01"], "--until: no store has anything after 2093-"),
        (["--since", "2093-12-31"], "--since, --until: no store has anything before 2024-01-01 or after 2093-"),
        (["--until", "2023-12-31T23:59Z"], "--since, --until: no store has anything before 2024-01-01 or after 2093-"),
        (["--since", "0001-01-01T00:00+14:00"], "--since: '0001-01-01T00:00.14:00' is no time; expected 2026-03-01"),
        (["--since", "9999999999d"], "--since: '9999999999d' is no time; expected 2026-03-01"),
        (["--since", "1h", "--until", "2h"], "--since, --until: since (.*) must be before until"),
        (["--memory", "lots"], "--memory: 'lots'; expected"),
        (["--book", "none.toml"], "book none.toml: No such file"),
        (["--fail-on", "everything"], "--fail-on"),
        (["--database-url", "mysql://x"], "database_url"),
        (["--database-url", "postgresql://user:hunter2@127.0.0.1:1/x"], "127.0.0.1"),
        (["--data-dir", "/nonexistent/folder"], "/nonexistent/folder"),
    ],
)
@pytest.mark.usefixtures("handlers")
def test_what_cannot_run_says_why(tmp_path: Path, arguments: list[str], says: str) -> None:
    environment = {"COORDINATOR_DATABASE_URL": "postgresql://127.0.0.1:1/none"}
    ran = CliRunner().invoke(app, ["reconcile", "--out", str(tmp_path / "out"), *arguments], env=environment)
    assert (ran.exit_code, type(ran.exception)) == (2, SystemExit)
    assert re.search(says, ran.stderr), ran.stderr
    assert "Traceback" not in ran.stderr
    assert "hunter2" not in ran.stderr
    assert not (tmp_path / "out" / "summary.json").exists()


def test_a_database_without_a_store_is_said(empty_database_url: str, tmp_path: Path) -> None:
    ran = command("--out", str(tmp_path / "out"), COORDINATOR_DATABASE_URL=empty_database_url)
    assert ran.returncode == 2
    assert "coordinator migrate" in ran.stderr
