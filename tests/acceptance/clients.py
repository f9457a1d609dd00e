"""Runs a case of an acceptance program, which prints as one line of JSON what its client saw."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.fix_service import PATIENCE, REPOSITORY

Seen = dict[str, Any]
#: Runs the case of this name; what it saw.
Run = Callable[[str], Seen]


def run_case(
    *command: str | Path, cwd: Path = REPOSITORY, silent: bool = False, more: Mapping[str, str] | None = None
) -> Seen:
    """What the case saw, which must succeed; ``silent``: and write nothing to its standard error. ``more``: of the
    environment.
    """
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(more or {})},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (silent and done.stderr), done.stderr
    seen = json.loads(done.stdout)
    assert isinstance(seen, dict)
    return seen
