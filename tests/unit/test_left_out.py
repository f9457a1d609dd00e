"""The summary of what a run left out, tried on a project of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.rules import ROOT

_TESTS = """
import pytest

@pytest.mark.skipif(True, reason="go is missing")
def test_one(): pass

@pytest.mark.parametrize("number", [1, 2])
def test_two(number): pytest.skip("tshark is missing")

def test_three(): pass
"""


def _run(tmp_path: Path, tests: str) -> str:
    (tmp_path / "test_it.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "setup.cfg"), "--rootdir", str(tmp_path)]
    command += ["-p", "tests.fix_left_out", "-p", "tests.fix_rules", "-p", "no:cacheprovider"]
    command += ["--rules-record", str(tmp_path / "rules.json"), str(tmp_path)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_each_reason_stands_once_with_its_files(tmp_path: Path) -> None:
    lines = _run(tmp_path, _TESTS).splitlines()
    at = next(number for number, line in enumerate(lines) if "not tested" in line)
    assert lines[at + 1 : at + 3] == [
        "1 test of test_it.py: go is missing",
        "2 tests of test_it.py: tshark is missing",
    ]
    assert sum("is missing" in line for line in lines) == 2


def test_a_run_that_left_out_nothing_says_nothing(tmp_path: Path) -> None:
    assert "not tested" not in _run(tmp_path, "def test_it(): pass\n")
