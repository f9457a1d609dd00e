"""``.ci/dist`` and ``.ci/deb`` make what is missing, and only that: what compiles and packs is a stand-in."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.rules import ROOT

_FOLDERS = ("coordinator", "links", "store", "spark", "alembic")
_FILES = ("setup.py", "setup.cfg", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
#: its last argument is where it writes, or what it reads
_UV = """
for last in "$@"; do :; done
case "$*" in
*"python find"*) [ ! -e "no-$last" ] && echo "$PWD/interpreter" ;;
"venv "*) mkdir -p "$last/bin" && cp interpreter "$last/bin/python" ;;
*--sdist*) mkdir -p dist && echo > dist/product-0.1.0.tar.gz ;;
*"build --wheel"*)
    tag=$(echo "$*" | sed 's/.*build.dist.3[.]\\([0-9]*\\).bin.*/cp3\\1/')
    echo "build $tag" >> calls
    to=build/dist/wheels-3.${tag#cp3}
    mkdir -p "$to" && echo > "$to/product-0.1.0-$tag-$tag-linux.whl" ;;
*auditwheel*) for each in "$@"; do case $each in *.whl) cp "$each" dist ;; esac; done ;;
esac
"""
#: of Proton; of deb its version
_PYTHON = """
case "$*" in
*"pip wheel"*)
    folder=$(echo "$*" | sed 's/.*--wheel-dir \\([^ ]*\\).*/\\1/')
    tag=$(echo "$folder" | sed 's/.*proton.3[.]\\([0-9]*\\)-.*/cp3\\1/')
    mkdir -p "$folder" && echo > "$folder/python_qpid_proton-1-$tag-$tag-linux.whl" ;;
*version_info*) echo 12 ;;
esac
"""
_DPKG_DEB = """
for last in "$@"; do :; done
echo half > "$last"
[ ! -e killed ] || kill -9 $PPID
echo package >> "$last"
"""


class Checkout:
    """A copy of what the scripts read; its system has a python3 that is 3.12."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in (".ci", "requirements", "examples/systemd"):
            shutil.copytree(ROOT / name, folder / name)
        for name in _FILES:
            shutil.copy(ROOT / name, folder / name)
        for name in _FOLDERS:
            (folder / name).mkdir()
            (folder / name / "module.py").write_text(name)
        self._make("interpreter", _PYTHON)
        self._make(".venv/bin/uv", _UV)
        self._make("system/python3", _PYTHON)
        self._make("system/dpkg-deb", _DPKG_DEB)
        self._make("system/dpkg", "echo amd64")
        self._make("system/getconf", f'case "$1" in PATH) echo "{folder}/system" ;; *) echo "glibc 2.36" ;; esac')

    def _make(self, name: str, body: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def run(self, script: str, *versions: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.folder}/system:/usr/bin:/bin"
        environment = {"PATH": path, "HOME": str(self.folder), "PYENV_ROOT": str(self.folder)}
        command = [str(self.folder / ".ci" / script), *versions]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def compiled(self) -> list[str]:
        """The versions since the last call, one for each time."""
        calls = self.folder / "calls"
        lines = calls.read_text().splitlines() if calls.exists() else []
        calls.unlink(missing_ok=True)
        return [line.removeprefix("build ") for line in lines]

    def wheels(self) -> list[Path]:
        return sorted((self.folder / "dist").glob("*.whl"))


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_wheels_are_made_once(checkout: Checkout) -> None:
    made = checkout.run("dist")
    assert made.returncode == 0, made.stderr
    assert checkout.compiled() == ["cp311", "cp312", "cp313"]
    assert len(checkout.wheels()) == 6
    again = checkout.run("dist", "3.12")
    assert (again.returncode, again.stdout, checkout.compiled()) == (0, "dist: up to date\n", [])
    (checkout.folder / "store/module.py").write_text("another")
    assert checkout.run("dist", "3.12").returncode == 0
    assert checkout.compiled() == ["cp312"]
    assert len(checkout.wheels()) == 2, "none is of other sources"
    assert checkout.run("dist").returncode == 0
    assert checkout.compiled() == ["cp311", "cp313"]


@pytest.mark.parametrize("kind", ["product", "python_qpid_proton"])
def test_a_wheel_that_was_moved_away_is_made_again(checkout: Checkout, kind: str) -> None:
    checkout.run("dist")
    checkout.compiled()
    (wheel,) = (checkout.folder / "dist").glob(f"{kind}-*-cp312-*.whl")
    wheel.unlink()
    assert checkout.run("dist").returncode == 0
    assert (checkout.compiled(), wheel.exists()) == (["cp312"], True)
    shutil.rmtree(checkout.folder / "dist")
    assert checkout.run("dist").returncode == 0
    assert checkout.compiled() == ["cp311", "cp312", "cp313"]


def test_a_version_that_was_left_out_is_looked_for_again(checkout: Checkout) -> None:
    absent = checkout.folder / "no-3.12"
    absent.touch()
    for _ in range(2):
        done = checkout.run("dist")
        assert (done.returncode, "CPython 3.12 is left out" in done.stderr) == (0, True)
    assert checkout.compiled() == ["cp311", "cp313"]
    absent.unlink()
    checkout.run("dist")
    assert checkout.compiled() == ["cp312"]


def test_a_package_compiles_for_the_system_s_python_alone(checkout: Checkout) -> None:
    checkout.run("dist", "3.11")
    checkout.compiled()
    made = checkout.run("deb")
    assert made.returncode == 0, made.stderr
    assert checkout.compiled() == ["cp312"]
    (package,) = (checkout.folder / "dist").glob("*.deb")
    before = package.stat().st_mtime_ns
    checkout.run("dist")
    assert checkout.run("deb").returncode == 0
    assert package.stat().st_mtime_ns == before, "it has no part of what was made since"


def test_a_package_whose_making_was_killed_is_made_again(checkout: Checkout) -> None:
    killed = checkout.folder / "killed"
    killed.touch()
    assert checkout.run("deb").returncode != 0
    assert not list((checkout.folder / "dist").glob("*.deb"))
    killed.unlink()
    assert checkout.run("deb").returncode == 0
    (package,) = (checkout.folder / "dist").glob("*.deb")
    assert package.read_text() == "half\npackage\n"
