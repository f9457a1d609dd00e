"""A service that root starts gives up root where it is told to (rule S12)."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fix_command import Serve, answers

pytestmark = pytest.mark.rule("S12")

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
#: without a password and a home
OTHER = "nobody"
#: of the protocol header
HEADER = b"AMQP\x00\x01\x00\x00"


#: The folder, if any, that keeps other users from this Python.
CLOSED = [each for each in Path(sys.base_prefix).parents if not each.stat().st_mode & 1][:1]
closed = pytest.mark.skipif(not CLOSED, reason="any user can read this Python")
#: Shows this Python to all users, in a view of the file system of its own, and runs the command.
OPEN = """set -e
mount --bind "$1" "$2"; mount -t tmpfs -o mode=755 tmpfs "$3"; mkdir -p "$1"; mount --bind "$2" "$1"
shift 3; exec "$@"
"""
IN_THE_OPEN = "import os, sys; os.execvp('unshare', ['unshare', '--mount', 'sh', '-c', *sys.argv[1:]])"


@pytest.fixture
def readable(tmp_path: Path) -> tuple[str, ...]:
    """How Python runs the service so that every user can read it."""
    if not CLOSED:
        return "-m", "coordinator", "serve"
    if shutil.which("unshare") is None or subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("the file system cannot be shown in another way (unshare)")
    view = "sh", sys.base_prefix, str(tmp_path), str(CLOSED[0])
    return "-c", IN_THE_OPEN, OPEN, *view, sys.executable, "-m", "coordinator", "serve"


def _ids_of_family(pid: int) -> dict[int, dict[str, set[str]]]:
    """Of the user and of its groups (real, effective, saved and the file system's), by the process: this one and all
    that come from it, but for those of PostgreSQL that end meanwhile.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    said = dict(line.split(":", 1) for line in lines if line.startswith(("Uid", "Gid", "Groups", "CapEff", "CapPrm")))
    ids = {pid: {name: set(value.split()) for name, value in said.items()}}
    for child in children:
        ids |= _ids_of_family(int(child))
    return ids


@as_root
def test_all_its_processes_are_of_the_user(serve: Serve, open_folder: Path, readable: tuple[str, ...]) -> None:
    other = pwd.getpwnam(OTHER)
    folder = open_folder / "its own"
    folder.mkdir()
    os.chown(folder, other.pw_uid, other.pw_gid)
    service = serve("--data-dir", str(folder), "--workers", "2", script=readable, COORDINATOR_RUN_AS=OTHER)
    assert answers(service.listening()) == HEADER
    family = _ids_of_family(service.process.pid)
    assert len(family) > 4, "the supervisor, two workers, PostgreSQL and its processes"
    for pid, ids in family.items():
        assert ids["Uid"] == {str(other.pw_uid)}, pid
        assert ids["Gid"] == {str(other.pw_gid)}, pid
        assert "0" not in ids["Groups"], pid
        assert ids["CapEff"] == ids["CapPrm"] == {"0" * 16}, pid
    assert service.end() == 0
    assert {path.stat().st_uid for path in (folder, *folder.iterdir())} == {other.pw_uid}


@as_root
def test_root_is_told_that_it_need_not_be(serve: Serve, database_url: str) -> None:
    service = serve(COORDINATOR_DATABASE_URL=database_url)
    service.listening()
    assert service.values("it runs as root, and need not: run_as, or another user starts it", "level") == ["warning"]


def _refused(serve: Serve, user: str) -> str:
    service = serve(COORDINATOR_RUN_AS=user)
    assert service.end(None) == 2
    (line,) = service.lines
    return str(line["event"])


def test_a_user_that_is_not_there(serve: Serve) -> None:
    assert _refused(serve, "not-there") == "error: run_as: there is no such user of this system"


@as_root
@closed
def test_a_user_that_cannot_read_the_program(serve: Serve) -> None:
    assert (
        _refused(serve, OTHER) == f"error: run_as: {OTHER} cannot read {os.__file__}; install it where other users can"
    )
