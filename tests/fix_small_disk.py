"""A disk that is soon full."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def small_disk() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="coordinator-disk-"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400m,mode=755", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        folder.rmdir()
        pytest.skip("a small disk needs the right to mount one")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
        folder.rmdir()
