"""``.ci/bootstrap`` on systems that lack something: the commands of the system are stand-ins that note their calls."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from store.compiled import MODULES
from tests.rules import ROOT

#: What the script itself needs, as it is here.
_REAL = ("sh", "cat", "cut", "dirname", "dpkg", "flock", "mkdir", "rm", "sed", "sha256sum", "sleep", "tr")
#: Enough for no required package to be missing; the interpreter passes every question and makes no virtual environment.
_WHOLE = {
    "python3.11": '[ "$1" = -m ] && exit 7 || exit 0',
    "cc": "",
    "pkg-config": "",
    "javac": "echo javac 17.0.1",
    "mvn": "",
    "openssl": "",
    "node": "",
    "npm": "",
}
_COMPILED = [f"{module.replace('.', '/')}.c" for module in MODULES]
_PYTHON_OF_RELEASE = {"bookworm": "python3.11", "jammy": "python3.11", "noble": "python3.12", "trixie": "python3.13"}


class System:
    """A clone of the project on a system with these commands alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._commands = folder / "bin"
        self._commands.mkdir()
        for name in _REAL:
            (self._commands / name).symlink_to(str(shutil.which(name)))
        (folder / ".ci").mkdir()
        shutil.copy(ROOT / ".ci/bootstrap", folder / ".ci")
        shutil.copytree(ROOT / "requirements", folder / "requirements")
        for name in ("setup.cfg", "pyproject.toml", "clients/python/pyproject.toml", "setup.py", *_COMPILED):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)

    def has(self, **commands: str) -> None:
        for name, body in commands.items():
            self._make(self._commands / name, body)

    def has_of_its_own(self, **commands: str) -> None:
        """Where the system's own programs are, and what comes first on the path are others."""
        own = self._folder / "own"
        own.mkdir()
        self.has(getconf=f"echo {own}")
        for name, body in commands.items():
            self._make(own / name, body)

    def has_venv(self, body: str = "") -> Path:
        """A virtual environment that takes every package; its folder."""
        (self._folder / ".venv/bin").mkdir(parents=True)
        self._make(self._folder / ".venv/bin/python", body)
        return self._folder / ".venv"

    def _make(self, path: Path, body: str) -> None:
        path.write_text(f'#!/bin/sh\necho "{path.name} $*" >> "{self._folder}/called"\n{body}\n')
        path.chmod(0o755)

    def changes(self, name: str) -> None:
        (self._folder / name).write_text("/* another */")

    def bootstrap(self, wanted: str) -> subprocess.CompletedProcess[str]:
        started = self.start(wanted)
        return subprocess.CompletedProcess([wanted], started.wait(), *started.communicate())

    def start(self, wanted: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self._folder / ".ci/bootstrap", wanted],
            env={"PATH": str(self._commands)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def called(self, name: str) -> list[str]:
        lines = (self._folder / "called").read_text().splitlines()
        return [line for line in lines if line.split()[0] == name]


@pytest.fixture
def system(tmp_path: Path) -> System:
    return System(tmp_path)


def _whole(**more: str) -> dict[str, Any]:
    return {**_WHOLE, **more}


@pytest.mark.parametrize("wanted", ["serve", "check", "test"])
def test_a_user_without_lists_of_apt_is_told_what_the_release_has(system: System, wanted: str) -> None:
    """A JDK, Maven and npm are asked for where tests need them, and only there."""
    system.has(id="echo 1000", **{"apt-cache": "exit 100"})
    done = system.bootstrap(wanted)
    assert done.returncode == 1
    release = next(
        line.partition("=")[2]
        for line in Path("/etc/os-release").read_text().splitlines()
        if "VERSION_CODENAME" in line
    )
    python = _PYTHON_OF_RELEASE[release]
    assert f"sudo apt-get install -y --no-install-recommends {python} {python}-venv {python}-dev " in done.stderr
    assert ("maven" in done.stderr) is (wanted == "test")
    assert ("jdk" in done.stderr) is (wanted == "test")


def test_root_gets_optional_packages_when_nothing_else_is_missing(system: System) -> None:
    policy = 'case $2 in golang-go) echo "  Candidate: 2:1.19~1" ;; cargo) echo "  Candidate: 0.66.0+ds1-1" ;; esac'
    # one of them cannot be installed, and stops nothing
    system.has(id="echo 0", **_whole(**{"apt-get": '[ "$5" != tshark ]', "apt-cache": policy}))
    done = system.bootstrap("test")
    assert done.returncode == 7, done.stderr  # it came as far as making the virtual environment
    update, *installed = system.called("apt-get")
    assert update == "apt-get update -qq"
    packages = [line.split()[-1] for line in installed]
    assert {"golang-go", "g++", "tshark"} <= set(packages)
    assert "cargo" not in packages  # too old
    assert "tshark is not installed" in done.stderr


@pytest.mark.parametrize(("user", "wanted"), [("0", "serve"), ("0", "check"), ("1000", "test")])
def test_no_other_user_is_asked_for_them(system: System, user: str, wanted: str) -> None:
    system.has(id=f"echo {user}", **_whole(**{"apt-get": "", "apt-cache": ""}))
    assert system.bootstrap(wanted).returncode == 7
    assert system.called("apt-get") == []


@pytest.mark.parametrize(
    ("own", "status"),
    [
        ({"python3.11": '[ "$1" = -m ] && exit 8 || exit 0'}, 8),
        ({"python3.11": "exit 1"}, 7),  # without its headers, say
        ({"python3": '[ "$1" = -m ] && exit 8 || exit 0'}, 7),  # an older one
        ({}, 7),
    ],
)
def test_of_two_pythons_of_a_version_the_system_s_own_is_used(system: System, own: dict[str, str], status: int) -> None:
    """It is compiled by a profile of what it does."""
    system.has(id="echo 1000", **_WHOLE)
    system.has_of_its_own(**own)
    assert system.bootstrap("serve").returncode == status


def test_a_python_in_a_folder_with_a_space_is_found(tmp_path: Path) -> None:
    (tmp_path / "my tools").mkdir()
    system = System(tmp_path / "my tools")
    system.has(id="echo 1000", **_WHOLE)
    done = system.bootstrap("serve")
    assert done.returncode == 7, done.stderr


def test_prometheus_is_unpacked_and_not_installed(system: System) -> None:
    """Installed it would be a server of the system, on a port that another program may want."""
    system.has(
        id="echo 0",
        **_whole(
            **{
                "apt-cache": 'case $2 in prometheus) echo "  Candidate: 2.42.0+ds-5" ;; esac',
                "apt-get": '[ "$1" != download ] || echo > prometheus_2.42_amd64.deb',
                "dpkg-deb": 'mkdir -p "$3/usr/bin"; cat "$2" > "$3/usr/bin/prometheus"',
            }
        ),
    )
    folder = system.has_venv() / "prometheus"
    assert system.bootstrap("test").returncode == 0
    assert system.called("dpkg-deb") == ["dpkg-deb --extract prometheus_2.42_amd64.deb ."]
    assert not [line for line in system.called("apt-get") if " install " in line and "prometheus" in line]
    assert [path.name for path in folder.iterdir()] == ["usr"]
    assert (folder / "usr/bin/prometheus").exists()


@pytest.mark.parametrize("offered", ["2.31.2+ds1-1", ""])
def test_an_old_prometheus_is_left_out(system: System, offered: str) -> None:
    policy = f'case $2 in prometheus) echo "  Candidate: {offered}" ;; esac'
    system.has(id="echo 0", **_whole(**{"apt-cache": policy, "apt-get": ""}))
    folder = system.has_venv() / "prometheus"
    assert system.bootstrap("test").returncode == 0
    assert not [line for line in system.called("apt-get") if "prometheus" in line]
    assert not folder.exists()


def test_a_prometheus_that_does_not_come_stops_nothing(system: System) -> None:
    policy = 'case $2 in prometheus) echo "  Candidate: 2.42.0" ;; esac'
    system.has(id="echo 0", **_whole(**{"apt-cache": policy, "apt-get": '[ "$1" != download ]', "dpkg-deb": ""}))
    system.has_venv()
    done = system.bootstrap("test")
    assert done.returncode == 0
    assert "prometheus is not there" in done.stderr


def test_two_at_once_make_it_once(system: System) -> None:
    """As in the two terminals of the README: the second waits for the first."""
    system.has(**_whole(id="echo 1000"))
    system.has_venv("sleep 0.1")
    both = [system.start("serve") for _ in range(2)]
    outputs = [each.communicate()[0] for each in both]
    assert [each.returncode for each in both] == [0, 0]
    assert sorted(map(bool, outputs)) == [False, True]


def test_the_compiled_part_is_made_again_when_it_has_changed(system: System) -> None:
    """And only then, and nothing else with it."""
    system.has(**_whole(id="echo 1000"))
    system.has_venv()
    for _ in range(2):
        assert system.bootstrap("check").returncode == 0
    before = system.called("python")
    system.changes(_COMPILED[0])
    for _ in range(2):
        assert system.bootstrap("check").returncode == 0
    (again,) = (line for line in system.called("python")[len(before) :] if " -m pip " in line)
    assert again.startswith("python -m pip install ")
    assert again.endswith(" --no-deps --no-build-isolation --editable . --editable clients/python")


@pytest.mark.parametrize("python", ["/nowhere/python3.11", str(shutil.which("false"))], ids=["gone", "another"])
def test_an_environment_whose_python_was_replaced_is_made_anew(system: System, python: str) -> None:
    """As by an upgrade of the system: its packages are for another Python, and its commands are not found."""
    system.has(**_whole(id="echo 1000"))
    venv = system.has_venv()
    assert system.bootstrap("serve").returncode == 0
    assert system.bootstrap("serve").stdout == ""
    (venv / "bin/python").unlink()
    (venv / "bin/python").symlink_to(python)
    assert system.bootstrap("serve").returncode == 7
    assert system.called("python3.11")[-1] == "python3.11 -m venv --clear .venv"
