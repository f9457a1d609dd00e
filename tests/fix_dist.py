"""What ``make dist`` makes, made once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.prepared import ROOT


@pytest.fixture(scope="session")
def dist() -> Path:
    done = subprocess.run([ROOT / ".ci" / "dist"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return ROOT / "dist"
