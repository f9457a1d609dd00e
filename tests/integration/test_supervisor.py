"""The service as processes: it starts whole or says why not, keeps its children alive, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import socket
import time
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection, text

from store.embedded.running import running_url
from store.embedded.server import EmbeddedServer
from store.locks import ROW_OF
from tests.fix_command import Command, Serve, Serving, alive, answers

HEADER = b"AMQP\x00\x01\x00\x00"


@pytest.fixture
def folder(open_folder: Path, request: pytest.FixtureRequest) -> Path:
    return open_folder / f"s-{str(request.node.name)[5:40]}"


def _gone(*pids: int) -> None:
    while any(alive(pid) for pid in pids):
        time.sleep(0.01)


@pytest.mark.parametrize("abstract", [False, True])
def test_the_service_manager_is_told_when_it_serves_and_stops(serve: Serve, folder: Path, abstract: bool) -> None:
    address = f"coordinator-{os.getpid()}-told" if abstract else f"{folder}-n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(60)
        manager.bind(f"\0{address}" if abstract else address)
        service = serve("--data-dir", str(folder), NOTIFY_SOCKET=f"@{address}" if abstract else address)
        # PostgreSQL, which can tell a service manager, too, is ready before.
        assert manager.recv(4096) == b"READY=1"
        place = service.listening()
        assert answers(place) == HEADER
        assert service.end() == 0
        assert manager.recv(4096) == b"STOPPING=1"


def test_a_service_manager_that_is_not_there_is_logged(serve: Serve, folder: Path) -> None:
    service = serve("--data-dir", str(folder), NOTIFY_SOCKET=f"{folder}-n")
    service.listening()
    assert service.end() == 0
    assert service.values("service manager not told", "reason") == ["No such file or directory"] * 2


def _refused(serving: Serving, status: int = 2) -> str:
    """The reason, in the log, of a service that did not start."""
    assert serving.end(None) == status
    (reason,) = serving.values("cannot start", "reason")
    assert serving.values("listening", "listen") == []
    return str(reason)


def test_it_starts_serves_and_stops(serve: Serve, folder: Path) -> None:
    service = serve("--data-dir", str(folder), "--workers", "2")
    place = service.listening()
    assert answers(place) == HEADER
    children = service.values("worker ready", "pid") + service.values("database started", "pid")
    assert len(children) == 3
    assert sorted(service.values("serving", "worker")) == [0, 1]
    url = running_url(folder)
    assert service.end() == 0
    assert service.values("worker killed: still there after the grace time", "pid") == []
    assert not any(alive(pid) for pid in children)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(place)
    # Again, on what is there.
    service = serve("--data-dir", str(folder))
    service.listening()
    assert running_url(folder) == url


@pytest.mark.rule("F5")
def test_ctrl_c_stops_it_too(serve: Serve, folder: Path) -> None:
    service = serve("--data-dir", str(folder))
    service.listening()
    assert service.end(signal.SIGINT) == 0


def test_kill_9_leaves_no_process_and_the_next_start_works(serve: Serve, folder: Path) -> None:
    service = serve("--data-dir", str(folder), "--workers", "2")
    place = service.listening()
    children = service.values("worker ready", "pid") + service.values("database started", "pid")
    service.end(signal.SIGKILL)
    # At once, on the same port.
    again = serve("--data-dir", str(folder), "--listen", f"amqp://127.0.0.1:{place[1]}")
    assert again.listening() == place
    _gone(*children)
    assert answers(place) == HEADER


def test_a_worker_that_dies_is_started_again_and_clients_wait(serve: Serve, folder: Path) -> None:
    service = serve("--data-dir", str(folder))
    place = service.listening()
    (pid,) = service.values("worker ready", "pid")
    os.kill(pid, signal.SIGKILL)
    assert service.until("worker ended")["status"] == -signal.SIGKILL
    # No process accepts now: the connection waits in the socket's queue.
    assert answers(place) == HEADER
    assert service.until("worker ready")["pid"] != pid


def test_the_database_that_dies_is_started_again(serve: Serve, folder: Path) -> None:
    service = serve("--data-dir", str(folder))
    service.listening()
    (pid,) = service.values("database started", "pid")
    os.kill(pid, signal.SIGKILL)
    service.until("database ended", status=-signal.SIGKILL)
    assert service.until("database started")["pid"] != pid
    with psycopg.connect(running_url(folder)) as connection:
        assert connection.execute("select count(*) from coordinator.store_identity").fetchone() == (1,)


@pytest.mark.rule("S8")
def test_a_given_database_and_its_password(serve: Serve, database_url: str) -> None:
    separator = "&" if "?" in database_url else "?"
    url = f"{database_url}{separator}password=hunter2"
    service = serve("--log-level", "debug", COORDINATOR_DATABASE_URL=url)
    assert answers(service.listening()) == HEADER
    for pid in (service.process.pid, *service.values("worker ready", "pid")):
        assert b"hunter2" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert service.end() == 0
    assert "hunter2" not in str(service.lines)


def test_a_port_in_use(serve: Serve, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        url = f"amqp://127.0.0.1:{other.getsockname()[1]}"
        reason = _refused(serve("--data-dir", str(folder), "--listen", url), status=1)
    assert reason == f"cannot listen on {url}: address in use by another process"


def test_the_port_of_another_coordinator(serve: Serve, folder: Path, database_url: str) -> None:
    first = serve("--data-dir", str(folder))
    place = first.listening()
    url = f"amqp://127.0.0.1:{place[1]}"
    reason = _refused(serve("--database-url", database_url, "--listen", url), status=1)
    assert reason == f"cannot listen on {url}: address in use by another process"
    assert answers(place) == HEADER


def test_a_host_that_is_none_of_ours(serve: Serve, folder: Path) -> None:
    # 192.0.2.0/24 is for documentation (RFC 5737).
    reason = _refused(serve("--data-dir", str(folder), "--listen", "amqp://192.0.2.1:0"))
    assert reason.startswith("cannot listen on amqp://192.0.2.1:0: ")


def test_a_data_folder_in_use(serve: Serve, folder: Path) -> None:
    first = serve("--data-dir", str(folder))
    place = first.listening()
    reason = _refused(serve("--data-dir", str(folder)), status=1)
    assert reason.startswith(f"data folder {folder} is in use by another coordinator (process {first.process.pid})")
    assert answers(place) == HEADER


def test_a_data_folder_that_is_none(serve: Serve, folder: Path) -> None:
    folder.write_text("a file")
    assert _refused(serve("--data-dir", str(folder))).startswith(f"data folder {folder} cannot be written: ")


def test_a_database_that_is_away(serve: Serve) -> None:
    reason = _refused(serve("--database-url", "postgresql://u:hunter2@127.0.0.1:1/shop"), status=1)
    assert reason == "database at 127.0.0.1:1/shop: Connection refused"


def test_a_database_without_a_store_is_migrated_by_command_only(
    serve: Serve, command: Command, empty_database_url: str
) -> None:
    assert "run: coordinator migrate" in _refused(serve("--database-url", empty_database_url))
    migrated = command("migrate", COORDINATOR_DATABASE_URL=empty_database_url)
    assert (migrated.returncode, migrated.stderr) == (0, "")
    serve("--database-url", empty_database_url).listening()


@pytest.mark.rule("F6")
def test_a_database_of_a_newer_version(serve: Serve, database_url: str, database: Connection) -> None:
    database.execute(text("update coordinator.alembic_version set version_num = '9.9'"))
    database.commit()
    assert "schema is at 9.9, which this version does not know" in _refused(serve("--database-url", database_url))


_OTHER_WORKER = """
import sys
from coordinator.process import logs, supervisor
from coordinator.process.children import Programs
from coordinator.settings import load

def watch(handed):
    while handed.supervising.receive():
        pass
    return 0

def work(handed):
    words = {"handed": handed}
    exec(sys.argv[2], words)
    return words["status"]

supervisor._GRACE_SECONDS = 0.2
supervisor.MOST_FAILED_STARTS = 6
settings = load({"listen": ["amqp://127.0.0.1:0"], "database_url": sys.argv[1]})
logs.configure(settings.log)
programs = Programs(worker=work, recovery=watch, maintenance=watch, metrics=watch, token_keys=watch)
sys.exit(supervisor.Supervisor(settings, programs).run())
"""


def test_a_worker_that_cannot_work_ends_the_service(database_url: str) -> None:
    service = Serving(["-c", _OTHER_WORKER, database_url, "status = 2"], {})
    service.until("stopping: a worker cannot work like this", worker=0)
    assert service.end(None) == 2


def test_a_worker_that_dies_at_its_start_is_started_ever_more_slowly_and_ends_the_service(database_url: str) -> None:
    service = Serving(["-c", _OTHER_WORKER, database_url, "status = 1"], {})
    assert service.until("stopping: a worker does not start", worker=0)["failed_starts"] == 6
    assert service.values("worker ended", "again_in_seconds") == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert service.end(None) == 2
    assert service.values("listening", "pid") == []


_READY = "handed.supervising.send(ready=True)\nstatus = 1"


def test_a_worker_that_fails_by_an_error_says_which(database_url: str) -> None:
    service = Serving(["-c", _OTHER_WORKER, database_url, "raise ValueError('a fault in the worker')"], {})
    assert "a fault in the worker" in service.until("process ended by an error")["traceback"]
    assert service.until("worker ended")["status"] == 1
    assert service.end() == 0


def test_a_worker_that_had_served_is_started_again_at_once(database_url: str) -> None:
    service = Serving(["-c", _OTHER_WORKER, database_url, _READY], {})
    pauses = [service.until("worker ended", status=1)["again_in_seconds"] for _ in range(10)]
    assert pauses == [0.0] * 10
    assert service.end() == 0


def test_a_worker_that_does_not_stop_is_killed(database_url: str) -> None:
    # Deaf before it says that it is ready: SIGTERM may come right after.
    stubborn = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + _READY + "\ntime.sleep(600)"
    service = Serving(["-c", _OTHER_WORKER, database_url, stubborn], {})
    service.listening()
    (pid,) = service.values("worker ready", "pid")
    assert service.end() == 0
    assert service.values("worker killed: still there after the grace time", "pid") == [pid]
    assert not alive(pid)


@pytest.mark.rule("S8")
def test_children_inherit_nothing_but_what_they_need(serve: Serve, folder: Path) -> None:
    """Above all not the socket of another worker: it would take connections that nothing answers."""
    service = serve("--data-dir", str(folder), "--workers", "2", COORDINATOR_METRICS__LISTEN="http://127.0.0.1:0")
    service.listening()
    supervisor = service.process.pid
    # Two workers, the watch, the metrics and PostgreSQL.
    while len(children := _children(supervisor)) < 5:
        time.sleep(0.01)
    (database,) = service.values("database started", "pid")
    # a core file would have messages and passwords in it
    limits = [Path(f"/proc/{pid}/limits").read_text("utf-8") for pid in {supervisor, *children}]
    assert [re.findall(r"Max core file size +(\w+) +(\w+)", each) for each in limits] == [[("0", "0")]] * len(limits)
    owners: dict[str, set[str]] = {}
    for pid in {supervisor, *children} - {database}:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        for each in Path(f"/proc/{pid}/fd").iterdir():
            if int(each.name) > 2:
                with contextlib.suppress(FileNotFoundError):
                    owners.setdefault(str(each.readlink()), set()).add(name)
    # What listens is the supervisor's too: it outlives a child that dies.
    shared = [
        sorted(names) for place, names in owners.items() if place.startswith(("socket:", "pipe:")) and len(names) > 1
    ]
    own = Path(f"/proc/{supervisor}/comm").read_text().strip()
    assert sorted(shared) == [sorted([child, own]) for child in ("coord-metrics", "coord-worker-0", "coord-worker-1")]


def _children(pid: int) -> set[int]:
    return {int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def test_a_shortage_of_descriptors_does_not_end_the_service(serve: Serve, database_url: str) -> None:
    service = serve("--database-url", database_url)
    place = service.listening()
    supervisor = service.process.pid
    while len(children := _children(supervisor)) < 2:
        time.sleep(0.01)
    limits = resource.prlimit(supervisor, resource.RLIMIT_NOFILE)
    resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (1, limits[1]))
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    assert service.until("process not started")["reason"]
    resource.prlimit(supervisor, resource.RLIMIT_NOFILE, limits)
    service.until("worker ready")
    assert answers(place) == HEADER


@pytest.mark.rule("F2")
def test_a_worker_that_stands_still_is_killed_and_replaced(serve: Serve, database_url: str) -> None:
    service = serve("--database-url", database_url)
    place = service.listening()
    (pid,) = service.values("worker ready", "pid")
    os.kill(pid, signal.SIGSTOP)
    assert service.until("instances given up")["instances"] == [1]
    assert service.until("worker killed: its instance was given up")["pid"] == pid
    assert service.until("worker ready")["pid"] != pid
    assert answers(place) == HEADER
    assert not alive(pid)


@pytest.mark.night
@pytest.mark.rule("F2")
def test_a_database_that_stood_still_makes_no_worker_dead(serve: Serve, folder: Path) -> None:
    service = serve("--data-dir", str(folder))
    place = service.listening()
    (pid,) = service.values("worker ready", "pid")
    (server,) = service.values("database started", "pid")
    backends = [server, *_children(server)]
    for each in backends:
        os.kill(each, signal.SIGSTOP)
    time.sleep(15)
    for each in reversed(backends):
        os.kill(each, signal.SIGCONT)
    # Longer than a look that has found it dead would take.
    time.sleep(5)
    assert answers(place) == HEADER
    assert service.end() == 0
    assert service.values("instances given up", "instances") == []
    assert service.values("worker ended", "worker") == []
    assert not alive(pid)


def test_a_lock_that_another_holds_stops_neither_a_restart_nor_the_end(serve: Serve, database_url: str) -> None:
    service = serve("--database-url", database_url)
    place = service.listening()
    (pid,) = service.values("worker ready", "pid")
    with psycopg.connect(database_url) as other:
        other.execute(f"select {ROW_OF['giving up']} for update".encode())
        os.kill(pid, signal.SIGKILL)
        service.until("worker ready")
        assert answers(place) == HEADER
        assert service.end() == 0


def test_a_start_that_waits_for_the_database_can_be_stopped(serve: Serve, database_url: str) -> None:
    waits = "select 1 from pg_locks where relation = 'coordinator.alembic_version'::regclass and not granted"
    with psycopg.connect(database_url) as other:
        other.execute("lock coordinator.alembic_version")
        service = serve("--database-url", database_url)
        while not other.execute(waits).fetchone():
            time.sleep(0.01)
        assert service.end() == 0


@pytest.mark.rule("F6")
def test_a_worker_that_meets_another_schema_ends_the_service(
    serve: Serve, database_url: str, database: Connection
) -> None:
    service = serve("--database-url", database_url)
    service.listening()
    (pid,) = service.values("worker ready", "pid")
    database.execute(text("update coordinator.alembic_version set version_num = '9.9'"))
    database.commit()
    os.kill(pid, signal.SIGKILL)
    assert "schema is at 9.9, which this version does not know" in service.until("cannot work")["reason"]
    assert service.end(None) == 2


def test_too_few_connections_are_said_at_the_start(serve: Serve, own_server: tuple[EmbeddedServer, str]) -> None:
    _, url = own_server
    reason = _refused(serve("--database-url", url, "--workers", "66"))
    assert re.match(r"66 workers need 268 connections to the database and 19\d are left: .*max_connections", reason)


def test_a_server_that_is_too_old_is_said_at_the_start(serve: Serve, database_url: str, database: Connection) -> None:
    """A function of the same name stands in for the older server: it is found before PostgreSQL's own."""
    name = database.execute(text("select current_database()")).scalar_one()
    for statement in (
        "create schema older",
        "create function older.current_setting(name text) returns text language sql as "
        "$$ select case name when 'server_version_num' then '140023' else pg_catalog.current_setting(name) end $$",
        f"alter database {name} set search_path = older, pg_catalog, public",
    ):
        database.execute(text(statement))
    database.commit()
    assert _refused(serve("--database-url", database_url)) == "the server is PostgreSQL 14; 15 or newer is needed"


def test_a_data_folder_beside_a_database_is_refused(command: Command, database_url: str) -> None:
    done = command("serve", "--database-url", database_url, "--data-dir", "/tmp/x")
    assert (done.returncode, "--data-dir: a database URL is given too" in done.stderr) == (2, True)


def test_reconcile_of_a_time_that_no_store_has(command: Command, database_url: str, tmp_path: Path) -> None:
    for period in (("--since", "1900-01-01", "--until", "1900-01-02"), ("--since", "2100-01-01")):
        done = command("reconcile", "--database-url", database_url, "--out", str(tmp_path / "out"), *period)
        assert (done.returncode, "no store has anything before 2024-01-01" in done.stderr) == (2, True)


def test_help_has_a_short_name_everywhere(command: Command) -> None:
    assert command("-h").returncode == command("address", "list", "-h").returncode == 0
