"""The import contracts of ``setup.cfg``: kept by the project, and each refuses what it is there to refuse."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fix_night import by_night
from tests.rules import ROOT
from tests.tables import all_cases

_PACKAGES = ("coordinator", "links", "store", "spark")

_SPARK = "A reconciliation is built up: periods and columns, the source, frames, checks and books, the run"
_ROOMS = "Inside coordinator the service is put together from rules that do not know it"
_READS = "Of ours spark knows tables, ids, the codec and the archive's files alone"
_CODEC = "Values, messages and selectors know no queue and no transaction"
_ADDRESS = "Addresses: dead letters and subscriptions, entries of a message, the directory"
_ACYCLIC = "No two modules of coordinator, or of links, need each other"
_WIRE = "The reactor drives connections, a connection has links, and no link knows the connection it is on"
_VERBS = "The rules ask the store by its verbs: no question of their own, no octets, no columns"
_COMMIT = "The group commit is built up: terms and parts, the batch, the driver"


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
        by_night("store/planted.py", "import spark", "The store is the bottom"),
        ("coordinator/planted.py", "import links", "Data flows one way: links, coordinator, store"),
        ("coordinator/planted.py", "import proton.handlers", "Only links imports Proton"),
        by_night("coordinator/planted.py", "from cproton_ffi import lib", "Only links imports Proton"),
        by_night("spark/planted.py", "import cproton", "Only links imports Proton"),
        ("coordinator/planted.py", "import sqlalchemy.exc", "The rules import no SQL"),
        by_night("coordinator/planted.py", "from psycopg import pq", "The rules import no SQL"),
        ("coordinator/planted.py", "import coordinator.commands", "The rules do not know the command line"),
        ("coordinator/planted.py", "import spark", "Only commands import spark"),
        by_night("links/planted.py", "import spark", "Only commands import spark"),
        by_night(
            "spark/planted.py",
            "import coordinator",
            _READS,
        ),
        ("spark/planted.py", "import store", _READS),
        ("spark/ledger.py", "import spark.checks", _SPARK),
        ("spark/books/description.py", "import spark.books.rows", "A book is described, then opened, then compared"),
        ("coordinator/group/queues.py", "import coordinator.service", _ROOMS),
        ("store/codec/encoding.py", "import store.codec.message", _CODEC),
        ("store/codec/planted.py", "import psycopg", "The codec knows no SQL"),
        ("store/commit/parts.py", "import store.commit.batch", _COMMIT),
        ("coordinator/address/directory.py", "import coordinator.address.dead_letters", _ADDRESS),
        ("coordinator/errors.py", "import coordinator.posts", _ACYCLIC),
        by_night("links/outgoing.py", "import links.checking", _ACYCLIC),
        ("links/link.py", "import links.connection", _WIRE),
        ("links/planted.py", "import store.questions", "Links ask the store nothing past the rules"),
        ("coordinator/planted.py", "from store.questions import columns", _VERBS),
        by_night("coordinator/planted.py", "import store.arrays", _VERBS),
    ],
)
def test_a_planted_import_is_refused(copy: Path, module: str, line: str, contract: str) -> None:
    done = _planted(copy / module, line, copy)
    assert done.returncode == 1
    # a long name is broken over two lines
    assert f"{contract} BROKEN" in " ".join(done.stdout.split()), done.stdout + done.stderr


def _planted(module: Path, lines: str, copy: Path) -> subprocess.CompletedProcess[str]:
    """What the contracts say with ``lines`` at the end of ``module``, which need not be there."""
    before = module.read_text("utf-8") if module.exists() else None
    module.write_text(f"{before or ''}\n{lines}\n", "utf-8")
    try:
        return lint_imports(copy)
    finally:
        if before is None:
            module.unlink()
        else:
            module.write_text(before, "utf-8")


@all_cases(
    ("module", "lines"),
    [
        ("spark/planted.py", "import store.tables\nfrom store.ids import moment_of\n"),
        ("coordinator/commands/planted.py", "import links\nimport spark\nimport sqlalchemy\n"),
        ("links/planted.py", "import proton\nimport coordinator\n"),
    ],
)
def test_what_is_allowed_is_kept(copy: Path, module: str, lines: str) -> None:
    done = _planted(copy / module, lines, copy)
    assert done.returncode == 0, done.stdout + done.stderr
