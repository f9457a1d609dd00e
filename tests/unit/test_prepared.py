"""What a process does that is forked, is what it does that Python starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import prepared
from tests.fix_command import environment
from tests.fix_night import by_night

CASES = [
    ("--version",),
    ("transaction",),
    ("serve", "--listen", "nowhere"),
    ("address", "list", "--database-url", "postgresql://u:secret@/nowhere?host=/nowhere"),
]


@pytest.mark.parametrize("warned", [{}, by_night({"PYTHONWARNINGS": "error"})], ids=["", "warnings are errors"])
@pytest.mark.parametrize("arguments", CASES, ids=" ".join)
def test_a_forked_process_does_the_same(arguments: tuple[str, ...], warned: dict[str, str]) -> None:
    given = environment(COORDINATOR_STORE="of no setting", **warned)
    command = [sys.executable, "-m", "coordinator", *arguments]
    plain = subprocess.run(command, cwd=prepared.ROOT, env=given, capture_output=True, text=True, check=False)
    forked = prepared.run(arguments, given, timeout=60)
    assert (forked.returncode, forked.stdout, forked.stderr) == (plain.returncode, plain.stdout, plain.stderr)


def test_another_environment_of_python_is_of_a_process_that_python_starts() -> None:
    """It would be without effect in one that is forked."""
    with open(1, "wb", closefd=False) as file:
        process = prepared.started(["--version"], environment(PYTHONUTF8="0"), file.fileno(), file.fileno())
    assert (isinstance(process, prepared.Process), process.wait(60)) == (False, 0)
