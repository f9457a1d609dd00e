"""The import contracts of ``setup.cfg``: kept by the project, and each refuses what it is there to refuse."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rules import ROOT

_PACKAGES = ("coordinator", "links", "store", "spark")


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [program, "--no-cache"],
        cwd=folder,
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_project_keeps_its_contracts() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The four packages and their contracts, to plant an import in."""
    folder = tmp_path_factory.mktemp("planted")
    for package in _PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "setup.cfg", folder)
    (folder / "coordinator/commands").mkdir(exist_ok=True)
    (folder / "coordinator/commands/__init__.py").touch()
    (folder / "coordinator/__main__.py").touch()
    return folder


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("store/planted.py", "import coordinator", "The store is the bottom"),
        ("store/planted.py", "import spark", "The store is the bottom"),
        ("coordinator/planted.py", "import links", "Data flows one way: links, coordinator, store"),
        ("coordinator/planted.py", "import proton.handlers", "Only links imports Proton"),
        ("coordinator/planted.py", "from cproton_ffi import lib", "Only links imports Proton"),
        ("spark/planted.py", "import cproton", "Only links imports Proton"),
        ("coordinator/planted.py", "import sqlalchemy.exc", "The rules import no SQL"),
        ("coordinator/planted.py", "from psycopg import pq", "The rules import no SQL"),
        ("coordinator/planted.py", "import coordinator.commands", "The rules do not know the command line"),
        ("coordinator/planted.py", "import spark", "Only commands import spark"),
        ("links/planted.py", "import spark", "Only commands import spark"),
        ("spark/planted.py", "import coordinator", "Of ours spark knows the tables and ids alone"),
        ("spark/planted.py", "import store", "Of ours spark knows the tables and ids alone"),
    ],
)
def test_a_planted_import_is_refused(copy: Path, module: str, line: str, contract: str) -> None:
    planted = copy / module
    planted.write_text(f"{line}\n")
    try:
        done = lint_imports(copy)
    finally:
        planted.unlink()
    assert done.returncode == 1
    assert f"{contract} BROKEN" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "lines"),
    [
        ("spark/planted.py", "import store.tables\nfrom store.ids import moment_of\n"),
        ("coordinator/commands/planted.py", "import links\nimport spark\nimport sqlalchemy\n"),
        ("links/planted.py", "import proton\nimport coordinator\n"),
    ],
)
def test_what_is_allowed_is_kept(copy: Path, module: str, lines: str) -> None:
    planted = copy / module
    planted.write_text(lines)
    try:
        done = lint_imports(copy)
    finally:
        planted.unlink()
    assert done.returncode == 0, done.stdout + done.stderr
