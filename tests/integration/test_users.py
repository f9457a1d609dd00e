"""Users by the command line: what is stored, and what a person is told (rules S1, S8)."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from coordinator.login import verifiers
from tests.fix_command import PATIENCE_SECONDS, ROOT, Command, environment

PASSWORD = "correct horse battery"


@pytest.fixture
def run(command: Command, database_url: str) -> Command:
    """Commands on the test's own store."""

    def on_store(*arguments: str) -> object:
        return command("user", *arguments, COORDINATOR_DATABASE_URL=database_url)

    return on_store  # type: ignore[return-value]


@pytest.fixture
def password_file(tmp_path: Path) -> str:
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\nnot this\n")
    return str(file)


def _stored(database: Connection) -> dict[tuple[str, str], tuple[bytes, int, bytes]]:
    rows = database.execute(
        text("select user_name, mechanism, salt, iterations, stored_key from coordinator.user_verifier")
    ).all()
    database.rollback()
    return {(row[0], row[1]): (row[2], row[3], row[4]) for row in rows}


@pytest.mark.rule("S1", "S8")
def test_a_user_is_made_changed_and_removed(run: Command, database: Connection, password_file: str) -> None:
    made = run("add", "alice", "--password-file", password_file)
    assert (made.returncode, made.stdout) == (0, "made the user alice\n")
    assert made.stderr.endswith("coordinator permission grant all '*' --role anonymous\n")
    assert run("add", "bob", "--without-password").stderr == run("remove", "bob").stderr == ""
    stored = _stored(database)
    assert set(stored) == {("alice", mechanism) for mechanism in verifiers.HASHES}
    for (_, mechanism), (salt, iterations, stored_key) in stored.items():
        assert iterations == verifiers.ITERATIONS
        assert verifiers.derived(mechanism, PASSWORD, salt, iterations).stored_key == stored_key
    assert len({salt for salt, _, _ in stored.values()}) == len(stored)
    assert run("add", "alice", "--password-file", password_file).stderr == "error: there is a user alice already\n"

    assert run("set", "alice", "--password-file", password_file).stdout == "alice: has a new password\n"
    changed = _stored(database)
    assert set(changed) == set(stored)
    assert not set(changed.values()) & set(stored.values())

    assert run("set", "alice", "--disable").stdout == "alice: disabled\n"
    (line,) = json.loads(run("list", "--json").stdout)
    assert line["name"] == "alice"
    assert line["disabled_at"]
    assert line["password_set_at"]
    assert run("set", "alice", "--disable").returncode == 0
    (again,) = json.loads(run("list", "--json").stdout)
    assert again["disabled_at"] == line["disabled_at"]
    assert run("set", "alice", "--enable").stdout == "alice: enabled\n"
    shown = run("list").stdout.splitlines()
    assert shown[0].split() == ["name", "disabled-at", "password-set-at", "created-at", "roles"]
    assert shown[1].split()[:2] == ["alice", "-"]

    removed = run("remove", "alice")
    assert removed.stdout == "removed the user alice\n"
    assert removed.stderr == ("There are no users and no permissions now: clients without a login may do everything.\n")
    assert _stored(database) == {}
    assert json.loads(run("list", "--json").stdout) == []


@pytest.mark.rule("S1")
@pytest.mark.parametrize("what", ["--password-file", "--disable", "--enable", "remove"])
def test_a_user_that_is_not_there(run: Command, password_file: str, what: str) -> None:
    more = [password_file] if what == "--password-file" else []
    done = run("remove", "bob") if what == "remove" else run("set", "bob", what, *more)
    assert (done.returncode, done.stderr) == (1, "error: there is no user bob\n")


@pytest.mark.rule("S1", "S7", "S8")
@pytest.mark.parametrize(
    ("name", "password", "said"),
    [
        ("", b"x", "this can be no name of a user: it is empty"),
        (" a", b"x", "this can be no name of a user: it begins or ends with a space"),
        ("a\u00a0", b"x", "this can be no name of a user: it begins or ends with a space"),
        ("a\nb", b"x", "this can be no name of a user: a control character"),
        ("n" * 129, b"x", "this can be no name of a user: longer than 128 octets"),
        ("alice", b"", "this can be no password: it is empty"),
        ("alice", b"\n", "this can be no password: it is empty"),
        ("alice", b"sevenof", "this can be no password: it has 7 characters, expected 8 at least"),
        ("alice", b"p" * 256, "this can be no password: longer than 255 octets"),
        ("alice", b"p\x07", "this can be no password: a control character"),
        ("alice", b"p\xff", "the first line is not UTF-8"),
    ],
)
def test_what_can_be_no_user(run: Command, tmp_path: Path, name: str, password: bytes, said: str) -> None:
    file = tmp_path / "password"
    file.write_bytes(password)
    done = run("add", name, "--password-file", str(file))
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert json.loads(run("list", "--json").stdout) == []


@pytest.mark.rule("S1", "S8")
def test_a_password_is_no_argument(run: Command, tmp_path: Path) -> None:
    assert "unexpected extra argument" in run("add", "alice", PASSWORD).stderr.lower()
    assert "No such file" in run("add", "alice", "--password-file", str(tmp_path / "none")).stderr


@pytest.mark.rule("S1", "S8")
@pytest.mark.parametrize(("second", "status"), [(PASSWORD, 0), ("another", 1)])
def test_the_password_is_asked_for_twice_and_not_shown(
    database_url: str, database: Connection, second: str, status: int
) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "coordinator", "user", "add", "alice"],
        cwd=ROOT,
        env=environment(COORDINATOR_DATABASE_URL=database_url),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    seen = _until(ours, b"Password: ")
    os.write(ours, f"{PASSWORD}\n".encode())
    seen += _until(ours, b"Once more: ")
    os.write(ours, f"{second}\n".encode())
    if status:
        seen += _until(ours, b"Password: ")  # it is asked for again
        process.kill()
        process.wait()
    else:
        assert process.wait(PATIENCE_SECONDS) == 0
        seen += _until(ours, b"made the user alice")
    os.close(ours)
    assert PASSWORD.encode() not in seen
    assert bool(_stored(database)) == (status == 0)


def _until(terminal: int, words: bytes) -> bytes:
    seen = b""
    while words not in seen:
        seen += os.read(terminal, 4096)
    return seen


@pytest.mark.rule("S1")
def test_without_a_terminal_it_says_what_to_give(run: Command) -> None:
    assert "give --password-file" in run("add", "alice").stderr
