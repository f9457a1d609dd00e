"""The service as users run it: the process ``coordinator serve`` with a port and a data folder of its own."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import psycopg
import pytest

from store import migrations, partitions
from store.database import connected
from store.embedded.running import running_url
from store.embedded.server import EmbeddedServer
from tests import prepared
from tests.fix_command import environment
from tests.fix_postgres import signal_server

REPOSITORY = Path(__file__).resolve().parent.parent

#: Seconds to wait for events that must happen: far longer than they ever took, so that a busy machine fails no test.
PATIENCE = 120.0


#: What each connection waits for, and for how long it has done so.
_ACTIVITY = """
    select application_name, state, wait_event, pg_blocking_pids(pid), now() - query_start, left(query, 100)
      from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"""


def _parsed(text: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        line = json.loads(text)
        if isinstance(line, dict):
            return line
    return {"text": text.decode(errors="replace")}  # not a log line: a traceback, for example


_services: weakref.WeakSet[Service] = weakref.WeakSet()


def variable(name: str) -> str:
    """The environment variable of a setting, by its dotted name."""
    return f"COORDINATOR_{name.upper().replace('.', '__')}"


class Service:
    """One service. It can be stopped, killed, and started again on the same data folder and the same port."""

    def __init__(
        self, folder: Path, settings: Mapping[str, str], constants: Mapping[str, object] | None = None
    ) -> None:
        """``folder``: for its data. ``settings``: by dotted name, such as ``addresses.create``; ``bounds.`` and a name
        is one of :class:`coordinator.bounds.Bounds`. ``constants``: those of its modules that are not as in the
        sources, of timers that a test would wait for.
        """
        self.data_dir = folder / "data"
        self.port = 0
        self.ports: list[int] = []
        # A server of its own, unless one is given.
        self._store = {} if "database_url" in settings else {"COORDINATOR_DATA_DIR": str(self.data_dir)}
        bounds = {name for name in settings if name.startswith("bounds.")}
        self._settings = {variable(name): value for name, value in settings.items() if name not in bounds}
        smaller = {f"coordinator.bounds.USUAL.{name.partition('.')[2]}": json.loads(settings[name]) for name in bounds}
        others = {**(constants or {}), **smaller}
        self._constants = {prepared.CONSTANTS: json.dumps(others)} if others else {}
        self._process: prepared.Process | prepared.Plain | None = None
        self._lines: list[dict[str, Any]] = []
        self._news = threading.Condition()
        #: the pipe, -1 once all processes have closed it; and the begin of a line
        self._log, self._rest = -1, b""
        self._ended = False
        _services.add(self)

    @property
    def url(self) -> str:
        """Where clients connect, without a user: ``amqp://127.0.0.1:PORT``, or ``amqps`` where it has a certificate."""
        scheme = "amqps" if "COORDINATOR_TLS__CERTIFICATE" in self._settings else "amqp"
        return f"{scheme}://127.0.0.1:{self.port}"

    @property
    def listens(self) -> list[str]:
        """What it is told to listen on; :attr:`ports` has the port of each, once it runs."""
        return [self.url]

    @property
    def pid(self) -> int:
        """The process id of the supervisor."""
        assert self._process is not None, "the service is not running"
        return self._process.pid

    def start(self) -> None:
        """Start and wait until it listens. Raises ``AssertionError`` with its log when it ends before."""
        assert self._process is None, "the service runs already"
        if self._store and not self.data_dir.exists():
            subprocess.run(["cp", "--archive", _empty_store(), self.data_dir], check=True)
        self._ended = False
        seen = len(self._lines)
        self._log, theirs = os.pipe()
        os.set_blocking(self._log, False)
        with Path(os.devnull).open("wb") as nothing:
            arguments = ["serve", *(f"--listen={url}" for url in self.listens)]
            self._process = prepared.started(arguments, self.environment(), nothing.fileno(), theirs)
        os.close(theirs)
        threading.Thread(target=self._read, args=(self._log,), daemon=True).start()
        line = self.wait_for(lambda line: line.get("event") == "listening", since=seen)
        self.ports = [urlsplit(place).port or 0 for place in line["listen"]]
        assert len(self.ports) == len([url for url in self.listens if url.startswith(("amqp", "ws"))]), line
        self.port = self.ports[0]

    def stop(self) -> int:
        """Ask it to end (SIGTERM) and wait; the exit status."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill -9; the processes it started end with it."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start on the same data and port, after :meth:`kill` or :meth:`stop`."""
        self.start()

    def log_lines(self, since: int = 0) -> list[dict[str, Any]]:
        """What it has logged so far, over all its starts, from line number ``since`` on."""
        with self._news:
            self._catch_up()
            return self._lines[since:]

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool], *, since: int = 0) -> dict[str, Any]:
        """Wait for the first log line from number ``since`` on that is ``wanted``; return it."""
        with self._news:

            def found() -> bool:
                return self._ended or any(wanted(line) for line in self._lines[since:])

            self._news.wait_for(found, timeout=PATIENCE)
            for line in self._lines[since:]:
                if wanted(line):
                    return line
            log = "\n".join(map(str, self._lines[since:]))
            raise AssertionError(f"the line did not come; the service {'ended' if self._ended else 'runs'}:\n{log}")

    def cli(self, *arguments: str, status: int = 0) -> str:
        """The standard output of ``coordinator`` with ``arguments`` on the same store; fails on another exit status."""
        done = self.command(*arguments)
        assert done.returncode == status, f"{arguments} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """``coordinator`` with ``arguments`` on the same store, run to its end."""
        return prepared.run(arguments, self.environment(), timeout=5 * PATIENCE)

    def signal_database(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the embedded PostgreSQL; ignores those that end meanwhile."""
        started = [line for line in self.log_lines() if line.get("event") == "database started"]
        signal_server(int(started[-1]["pid"]), number)

    def environment(self) -> dict[str, str]:
        """For the processes started here: this repository's packages, the given settings, and no others."""
        return {**environment(), "PYTHONWARNINGS": "error", **self._store, **self._settings, **self._constants}

    def state(self) -> str:
        """What it said last, and what its PostgreSQL does: for the report of a test that fails."""
        said = [json.dumps(line) for line in self.log_lines()[-20:]]
        if self._process is None or "COORDINATOR_DATA_DIR" not in self._store:
            return "\n".join(said)
        try:
            with psycopg.connect(running_url(self.data_dir), connect_timeout=5) as store:
                rows = store.execute(_ACTIVITY).fetchall()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not hide the failure
            return "\n".join([*said, f"its PostgreSQL: {error}"])
        return "\n".join([*said, *map(str, rows)])

    def _end(self, signal_number: signal.Signals) -> int:
        process = self._process
        assert process is not None, "the service is not running"
        process.send_signal(signal_number)
        status = process.wait(timeout=PATIENCE)
        with self._news:  # the pipe is closed once all processes that it started have ended
            self._news.wait_for(lambda: self._ended, timeout=PATIENCE)
        self._process = None
        return status

    def _catch_up(self) -> None:
        """Take in what it has written to its log so far; the caller holds ``_news``."""
        with contextlib.suppress(BlockingIOError):
            while self._log >= 0:
                octets = os.read(self._log, 65536)
                if not octets:
                    self._log, self._ended = -1, True
                *lines, self._rest = (self._rest + octets).split(b"\n")
                self._lines += filter(self._kept, map(_parsed, lines))
                self._news.notify_all()

    def _kept(self, line: dict[str, Any]) -> bool:
        """Whether :meth:`log_lines` shows it."""
        return True

    def _read(self, log: int) -> None:
        news = select.poll()
        news.register(log)
        while self._log == log:
            news.poll()
            with self._news:
                self._catch_up()
        os.close(log)

    def discard(self) -> None:
        """Kill it if it still runs. Its PostgreSQL writes no checkpoint: its data are not needed any more."""
        if self._process is None:
            return
        self._process.kill()
        started = [line for line in self.log_lines() if line.get("event") == "database started"]
        if started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(started[-1]["pid"]), signal.SIGQUIT)
        self.kill()


class TwoDoors(Service):
    """In plain text at the first port, and behind TLS at the second."""

    @property
    def listens(self) -> list[str]:
        return [f"amqp://127.0.0.1:{self.port}", "amqps://127.0.0.1:0"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure comes with the state of the services that there are."""
    report = yield
    if report.failed:
        report.sections += [(f"service on port {each.port}", each.state()) for each in list(_services)]
    return report


@functools.cache
def _empty_store() -> Path:
    """A data folder with an empty store, made once a session: to copy it takes less time than to make another."""
    folder = Path(tempfile.mkdtemp(prefix="coordinator-template-"))
    folder.chmod(0o755)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    server = EmbeddedServer(folder / "data")
    try:
        url = server.start()
        migrations.upgrade(url)
        with connected(url) as connection:
            partitions.make_ahead(connection)
    finally:
        server.stop()
    # Files that are not on the disk yet take cp ten times as long.
    subprocess.run(["sync", "--file-system", folder], check=True)
    return folder / "data"


Made = TypeVar("Made", bound=Service)


@contextlib.contextmanager
def running_service(
    settings: Mapping[str, str] | None = None, constants: Mapping[str, object] | None = None
) -> Iterator[Service]:
    """A service with an empty store; removes its data at the end. ``settings`` and ``constants``: by dotted name."""
    with running(lambda folder: Service(folder, settings or {}, constants)) as service:
        yield service


@contextlib.contextmanager
def running(make: Callable[[Path], Made]) -> Iterator[Made]:
    """What ``make`` makes of a new folder, started; its folder is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="coordinator-service-"))
    folder.chmod(0o755)  # started by root, PostgreSQL runs as another user, which must be able to enter
    service = make(folder)
    try:
        service.start()
        yield service
    finally:
        service.discard()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def own_service(rules: None) -> Iterator[Service]:
    """For a test that kills it, or measures it."""
    with running_service() as service:
        yield service


@pytest.fixture(scope="module")
def service(rules: None) -> Iterator[Service]:
    """The service of a test module, whose tests each use addresses of their own."""
    with running_service() as service:
        yield service
