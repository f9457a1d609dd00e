"""``.ci/release-check`` in a clone of what it reads: what it runs are stand-ins that succeed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.rules import ROOT

_READ = (
    *(".ci/release-check", ".gitignore", "setup.cfg", "CHANGELOG.md", "README.md", "docs/README.md"),
    *("clients/python/pyproject.toml", "clients/java/pom.xml"),
)
_MAKE = """[ "$1" != dist ] || for python in 311 312 313; do
    echo > dist/amqp_transaction_coordinator-0.1.0-cp$python-linux.whl
    echo > dist/python_qpid_proton-0.40.0-cp$python-linux.whl
done"""


class Clone:
    """Committed, and with pages that say that it is released."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in _READ:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
        for page in ("README.md", "docs/README.md"):
            (folder / page).write_text("Version 0.1.\n")
        (folder / "dist").mkdir()
        self.has(**{"programs/make": _MAKE, "programs/mvn": "", ".venv/bin/uv": "", ".ci/bootstrap": ""})
        self._git("init", "--quiet")
        self.commit()

    def has(self, **programs: str) -> None:
        for name, body in programs.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"#!/bin/sh\n{body}\n")
            path.chmod(0o755)

    def commit(self) -> None:
        self._git("add", "--all")
        self._git(
            "-c", "user.name=a", "-c", "user.email=a@localhost", "commit", "--quiet", "--allow-empty", "-m", "all"
        )

    def _git(self, *arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=self.folder, check=True)

    def check(self) -> tuple[int, str]:
        """The status, and the last line."""
        environment = {"PATH": f"{self.folder}/programs:/usr/bin:/bin"}
        command = [str(self.folder / ".ci/release-check")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.splitlines()[-1]


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_what_holds_can_be_released(clone: Clone) -> None:
    assert clone.check() == (0, "yes: version 0.1.0 can be released: git tag -a v0.1.0")


@pytest.mark.parametrize(
    ("page", "says"),
    [("README.md", "**0.1, not released**"), ("docs/README.md", "Version 0.1, under work, nothing released")],
)
def test_a_page_that_says_that_nothing_is_released_is_found(clone: Clone, page: str, says: str) -> None:
    (clone.folder / page).write_text(f"{says}\n")
    clone.commit()
    assert clone.check() == (1, "no: version 0.1.0 is not to be released: pages")
    assert page in (clone.folder / "build/release/pages.log").read_text()


@pytest.mark.parametrize("program", [".venv/bin/uv", "programs/mvn"])
def test_a_client_library_that_cannot_be_built_is_found(clone: Clone, program: str) -> None:
    clone.has(**{program: "exit 1"})
    clone.commit()
    assert clone.check() == (1, "no: version 0.1.0 is not to be released: clients")
