"""Temporary files of the tests are in memory where there is room for them.

A run makes and removes hundreds of stores, of a thousand files each: on a disk that takes a fifth of its processor
time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

_MEMORY = Path("/dev/shm")
#: More than all processes of a run have at once.
_ROOM = 8 << 30


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if "TMPDIR" in os.environ or not _has_room():  # of the user, or of the run that this process is of
        return
    for left in _MEMORY.glob("coordinator-tests-*-*"):  # by runs that were killed
        if not Path("/proc", left.name.split("-")[2]).exists():
            shutil.rmtree(left, ignore_errors=True)
    prefix = f"coordinator-tests-{os.getpid()}-"
    folder = tempfile.TemporaryDirectory(prefix=prefix, dir=_MEMORY, ignore_cleanup_errors=True)
    config.add_cleanup(folder.cleanup)
    Path(folder.name).chmod(0o1777)  # started by root, PostgreSQL runs as another user
    os.environ["TMPDIR"] = tempfile.tempdir = folder.name


def _has_room() -> bool:
    """Whether the folder has it, and files there may be run."""
    if not _MEMORY.is_dir():
        return False
    found = os.statvfs(_MEMORY)
    return found.f_bavail * found.f_frsize >= _ROOM and not found.f_flag & os.ST_NOEXEC
