"""A command whose standard output cannot be written says so in a line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import prepared
from tests.fix_command import PATIENCE_SECONDS, environment
from tests.fix_store import Rows

FULL = Path("/dev/full")


@pytest.mark.parametrize(
    "arguments",
    ["transaction show {txn}", "transaction show {txn} --json", "dead-letters export orders", "--version"],
)
def test_a_disk_that_is_full(rows: Rows, database_url: str, tmp_path: Path, arguments: str) -> None:
    txn_id = rows.txn(rows.instance())
    box = rows.queue("%DLQ%orders", origin="dead-letter")
    for _ in range(100):
        rows.entry(box)
    said = tmp_path / "said"
    with FULL.open("wb") as full, said.open("wb") as stderr:
        process = prepared.started(
            arguments.format(txn=txn_id).split(),
            environment(COORDINATOR_DATABASE_URL=database_url),
            full.fileno(),
            stderr.fileno(),
        )
        status = process.wait(PATIENCE_SECONDS)
    assert (status, said.read_text()) == (2, "error: standard output: No space left on device\n")


@pytest.mark.parametrize("arguments", ["transaction show {txn}", "transaction show {txn} --json", "--version"])
def test_a_disk_that_is_full_for_errors_too(rows: Rows, database_url: str, arguments: str) -> None:
    """The status alone can say so."""
    txn_id = rows.txn(rows.instance())
    with FULL.open("wb") as full:
        process = prepared.started(
            arguments.format(txn=txn_id).split(),
            environment(COORDINATOR_DATABASE_URL=database_url),
            full.fileno(),
            full.fileno(),
        )
        assert process.wait(PATIENCE_SECONDS) == 2


def test_a_pipe_whose_reader_has_ended_is_no_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "coordinator", "--version"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.mark.parametrize("arguments", ["--version", "transaction list", "transaction list --json"])
def test_a_command_without_a_standard_output(database_url: str, arguments: str) -> None:
    closed = ["sh", "-c", f"exec {sys.executable} -m coordinator {arguments} >&-"]
    there = environment(COORDINATOR_DATABASE_URL=database_url)
    done = subprocess.run(closed, stderr=subprocess.PIPE, env=there, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
