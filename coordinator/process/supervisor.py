"""The supervisor is the process that people start: it keeps the database and the workers alive, and stops them.

It has one thread, which sleeps until a signal, the end of a child, a child's message or a deadline. Once the service
runs, it never waits for the database: its children query the database for it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog

from coordinator import secret_file
from coordinator.process import certificates
from coordinator.process.children import (
    MOST_FAILED_STARTS,
    UNFIT,
    Child,
    Handed,
    Kept,
    Pause,
    Program,
    Programs,
    Supervising,
    status_of,
)
from coordinator.process.listeners import (
    CannotListen,
    TooOpen,
    check_metrics,
    listen,
    warn_of_open_ones,
    warn_without_users,
)
from coordinator.process.own_database import OwnDatabase
from coordinator.process.service_manager import READY, STOPPING, ServiceManager
from coordinator.secret_file import FileInvalid
from coordinator.settings import HTTP, Endpoint, Settings
from store import migrations, partitions
from store.database import ENDLESS, Patience, check_url, connected, place
from store.embedded.folder import default_data_dir
from store.embedded.programs import EmbeddedError, StartCancelled
from store.embedded.server import EmbeddedServer
from store.errors import StoreError
from store.health import check_room, check_sessions, connections_needed
from store.processes import gone

if TYPE_CHECKING:
    from coordinator.login.tokens import Keys

# Partitions of future days are created ahead.


def make_days(url: str, patience: Patience = ENDLESS) -> bool:
    """Create the partitions of future days, and log that. False: there are still too few."""
    with connected(url, application_name="coordinator maintenance", patience=patience) as connection:
        made = partitions.make_ahead(connection)
    if made.created:
        _log.info("partitions made", partitions=made.created)
    if made.few:
        _log.error("partitions are running out: soon nothing can be posted", days_ahead=made.ahead)
    return not made.few


_log: structlog.stdlib.BoundLogger = structlog.get_logger()

_GRACE_SECONDS = 10.0
_MAINTENANCE_SECONDS = 600.0
# The start itself has created the partitions.
_MAINTENANCE_DELAY_SECONDS = 30.0
# For the start only, when a signal ends the wait: another process may be migrating the schema.
_START_PATIENCE = Patience(statement_seconds=60.0, lock_seconds=60.0)


class Unfit(Exception):
    """The service cannot run with this configuration; the message says why."""


@dataclass(kw_only=True)
class _Worker:
    number: int
    child: Child | None = None
    ready: bool = False
    start_at: float = 0.0
    pause: Pause = field(default_factory=Pause)


class Supervisor:
    """Runs the service. ``run()`` lasts as long as the service; call it in the main thread, for signals and
    children.
    """

    def __init__(self, settings: Settings, programs: Programs) -> None:
        """``programs``: the main functions of its children."""
        self._settings = settings
        self._programs = programs
        self._manager = ServiceManager()
        self._stopping = False
        self._preparing = False
        self._tls: ssl.SSLContext | None = None
        #: whether a signal requires to load the certificates again
        self._reload = False
        self._status = 0
        self._selector = selectors.DefaultSelector()
        self._sockets: list[list[socket.socket]] = []
        self._places: list[Endpoint] = []
        self._workers: list[_Worker] = []
        #: the listening sockets of the metrics
        self._metrics: list[socket.socket] = []
        self._measuring: Kept | None = None
        #: reads the keys of the issuer of tokens, the last of which are those below
        self._issuer: Kept | None = None
        self._token_keys: Keys | None = None
        self._trace_headers: Mapping[str, str] = {}
        #: children that query the database, and may wait for it
        self._kept = [Kept("recovery", self._start_recovery)]
        self._maintenance: Child | None = None
        self._maintenance_at = time.monotonic() + _MAINTENANCE_DELAY_SECONDS
        #: None: the service uses a given server
        self._database: OwnDatabase | None = None
        #: the URLs of the service, and of maintenance; equal with a given server
        self._database_url = self._owner_url = ""
        self._announced = False

    def run(self) -> int:
        """Run the service; return the exit status: 0 stopped by a signal, 1 it could not start now, 2 it cannot run
        with this configuration. The log says why.
        """
        with self._signals():
            try:
                self._sockets, self._places = listen(self._settings.clients, self._settings.workers)
                if self._settings.has_tls:
                    self._tls = certificates.load(self._settings.tls)
                self._listen_for_metrics()
                self._read_token_keys()
                if self._settings.traces.headers is not None:
                    self._trace_headers = secret_file.headers("traces.headers", self._settings.traces.headers)
                self._workers = [_Worker(number=number) for number in range(self._settings.workers)]
                self._prepare_store()
                while not self._stopping:
                    self._turn([str(each) for each in self._places])
            except StartCancelled:
                pass
            except (Unfit, CannotListen, FileInvalid, TooOpen, EmbeddedError, StoreError) as error:
                _log.error("cannot start", reason=str(error))
                self._status = status_of(error)
            finally:
                self._stop()
        return self._status

    # -- the store

    def _prepare_store(self) -> None:
        given = self._settings.database_url
        if given is None:
            data_dir = self._settings.data_dir or default_data_dir()
            applications = self._settings.applications
            server = EmbeddedServer(
                data_dir,
                max_connections=2 * connections_needed(self._settings.workers),
                applications=None if applications is None else (applications.host, applications.port),
                cancelled=lambda: self._stopping,
            )
            self._database = OwnDatabase(server, self._settings.limits.disk_free_bytes)
            copies = self._settings.copy_before_migrating == "always"
            self._owner_url = self._database.start_to_migrate(copies=copies)
            if applications is not None:
                _log.info("applications may connect in SQL", listen=str(applications))
            with self._interruptible():
                self._database_url = self._database.prepare(self._owner_url)
        else:
            self._owner_url = self._database_url = check_url(given.get_secret_value())
            with self._interruptible(), connected(self._database_url, patience=_START_PATIENCE) as connection:
                migrations.check(connection)
                check_sessions(connection, self._database_url, _START_PATIENCE)
                check_room(connection, self._settings.workers)
            _log.info("database found", place=place(self._database_url))
        with self._interruptible():
            self._make_partitions()
            warn_without_users(self._settings, self._places, self._database_url, _START_PATIENCE)

    @property
    def _database_runs(self) -> bool:
        return self._database is None or self._database.runs

    def _make_partitions(self) -> None:
        try:
            make_days(self._database_url, _START_PATIENCE)
        except StoreError as error:
            _log.warning("partitions not made", reason=str(error))

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Make a signal end the enclosed wait for the database at the start, with :class:`StartCancelled`."""
        self._preparing = True
        try:
            if self._stopping:
                raise StartCancelled("told to stop")
            yield
        except Exception:
            # The signal cut a statement short, and the driver reports that as an error of its own.
            if self._stopping:
                raise StartCancelled("told to stop") from None
            raise
        finally:
            self._preparing = False

    def _tend_database(self, now: float) -> None:
        if self._database is None:
            return
        self._database.tend(now)
        if self._database.check_disk(now):
            for each in self._receivers_of_state():
                each.send(disk_low=self._database.disk_low)

    def _receivers_of_state(self) -> Iterator[Child | Kept]:
        """Yield the children to which changes of the service's state are sent."""
        for each in (*(worker.child for worker in self._workers), self._measuring):
            if each is not None:
                yield each

    # -- the workers

    def _turn(self, places: list[str]) -> None:
        now = time.monotonic()
        self._tend_database(now)
        for worker in self._workers:
            self._tend_worker(worker, now)
        if self._stopping:
            return
        if self._reload:
            self._reload = False
            self._reload_certificates()
        serving = all(worker.ready for worker in self._workers)
        if serving and not self._announced:
            self._announced = True
            _log.info("listening", listen=places, workers=len(self._workers), pid=os.getpid())
            self._manager.tell(READY)
            warn_of_open_ones(self._settings, self._places)
        for kept in self._kept:
            kept.tend(now)
        self._maintain(now)
        times = [worker.start_at for worker in self._workers if worker.child is None]
        times += [] if self._database is None else [self._database.next_at]
        times += [kept.next_at for kept in self._kept if kept.next_at is not None]
        times += [self._maintenance_at] if self._maintenance is None and self._database_runs else []
        # The end of a child interrupts the select.
        patience = max(0.0, min(times) - time.monotonic()) if times else None
        for key, _ in self._selector.select(patience):
            if isinstance(key.data, Child):
                key.data.read()
            else:
                with contextlib.suppress(BlockingIOError):
                    os.read(key.fd, 4096)

    def _reload_certificates(self) -> None:
        """Load the certificates again, for new connections. If the files cannot be used, the old certificates stay."""
        try:
            self._tls = certificates.load(self._settings.tls)
        except FileInvalid as error:
            _log.error("certificates not read again", reason=str(error))
            return
        for each in self._receivers_of_state():
            each.send(certificates=True)
        files = (self._settings.tls.certificate, self._settings.tls.key, self._settings.tls.client_ca)
        _log.info(
            "certificates read again",
            files=[str(each) for each in files if each is not None],
            settings="as at the start; changed ones need a restart",
        )

    def _tend_worker(self, worker: _Worker, now: float) -> None:
        if worker.child is None:
            if now >= worker.start_at:
                self._start(worker)
            return
        status = worker.child.poll()
        if status is None:
            return
        was_ready, worker.child, worker.ready = worker.ready, None, False
        if status == UNFIT:  # the worker has logged the reason
            self._give_in("stopping: a worker cannot work like this", worker)
            return
        pause = 0.0
        if not was_ready:
            pause = worker.pause.failed()
            if worker.pause.failures >= MOST_FAILED_STARTS:
                failures = worker.pause.failures
                self._give_in("stopping: a worker does not start", worker, failed_starts=failures, last_status=status)
                return
        _log.error("worker ended", worker=worker.number, status=status, again_in_seconds=pause)
        worker.start_at = now + pause
        if not pause:
            self._start(worker)

    def _give_in(self, why: str, worker: _Worker, **more: object) -> None:
        _log.error(why, worker=worker.number, **more)
        self._status = UNFIT
        self._stopping = True

    def _start(self, worker: _Worker) -> None:
        child = worker.child = self._spawn(
            f"coord-worker-{worker.number}",
            self._programs.worker,
            self._sockets[worker.number],
            number=worker.number,
        )
        if child is None:
            worker.start_at = time.monotonic() + worker.pause.failed()
            return

        def on_line(words: Mapping[str, Any]) -> None:
            if words.get("ready"):
                worker.ready = True
                worker.pause.served()
                _log.info("worker ready", worker=worker.number, pid=child.pid)
            if self._measuring is not None and "figures" in words:
                self._measuring.send(worker=worker.number, pid=child.pid, figures=words["figures"])
            self._ask_issuer(words)

        child.on_line = on_line

    def _spawn(
        self,
        name: str,
        program: Program,
        listeners: Sequence[socket.socket] = (),
        *,
        database_url: str | None = None,
        number: int = 0,
    ) -> Child | None:
        """Fork a child; None, and a line in the log: the system has no process or no descriptor left."""

        def run(supervising: Supervising) -> int:
            return program(
                Handed(
                    settings=self._settings,
                    database_url=database_url or self._database_url,
                    supervising=supervising,
                    listeners=listeners,
                    places=self._places,
                    data_dir=None if self._database is None else self._database.data_dir,
                    tls=self._tls,
                    number=number,
                    disk_low=self._database is not None and self._database.disk_low,
                    token_keys=self._token_keys,
                    trace_headers=self._trace_headers,
                )
            )

        try:
            return Child(self._selector, name, run, listeners)
        except OSError as error:
            _log.error("process not started", process=name, reason=error.strerror)
            return None

    # -- children that query the database

    def _start_recovery(self) -> Child | None:
        child = self._spawn("coord-recover", self._programs.recovery)
        if child is not None:
            child.on_line = self._kill_given_up
        return child

    def _listen_for_metrics(self) -> None:
        url = self._settings.metrics.listen
        if url is None:
            return
        (self._metrics,), places = listen([url], 1, HTTP)
        check_metrics(self._settings.metrics, places)
        self._measuring = Kept("metrics", self._start_metrics)
        self._kept.append(self._measuring)
        _log.info("metrics", listen=[str(each) for each in places])

    def _start_metrics(self) -> Child | None:
        child = self._spawn("coord-metrics", self._programs.metrics, self._metrics)
        if child is not None:
            child.on_line = self._ask_issuer
        return child

    # -- the keys of the issuer of tokens

    def _read_token_keys(self) -> None:
        settings = self._settings.tokens
        if settings.issuer is None:
            return
        if settings.keys is not None:
            from coordinator.login import tokens  # loaded by then: coordinator/commands/serve.py

            self._token_keys = tokens.read_file(settings.keys)
        self._issuer = Kept("the reader of the issuer's keys", self._start_issuer)
        self._kept.append(self._issuer)

    def _start_issuer(self) -> Child | None:
        child = self._spawn("coord-issuer", self._programs.token_keys)
        if child is not None:
            child.on_line = self._learn_token_keys
        return child

    def _learn_token_keys(self, words: Mapping[str, Any]) -> None:
        self._token_keys = words["token_keys"]
        for each in self._receivers_of_state():
            each.send(token_keys=self._token_keys)

    def _ask_issuer(self, words: Mapping[str, Any]) -> None:
        if self._issuer is not None and "wants_keys" in words:
            self._issuer.send(again=True)

    def _maintain(self, now: float) -> None:
        if self._maintenance is not None:
            if self._maintenance.poll() is None:
                return
            self._maintenance = None
        if now >= self._maintenance_at and self._database_runs:
            self._maintenance_at = now + _MAINTENANCE_SECONDS
            self._maintenance = self._spawn("coord-maintain", self._programs.maintenance, database_url=self._owner_url)

    def _kill_given_up(self, words: Mapping[str, Any]) -> None:
        """Kill workers whose instance was declared dead: they would accept connections and never answer."""
        for pid, start in words.get("ended", ()):
            for worker in self._workers:
                if worker.child is not None and worker.child.pid == pid and not gone(pid, start):
                    _log.error("worker killed: its instance was given up", worker=worker.number, pid=pid)
                    worker.child.send_signal(signal.SIGKILL)

    def _stop(self) -> None:
        """Stop all children, workers first: their unfinished work needs the database (F5)."""
        self._manager.tell(STOPPING)
        running = [worker.child for worker in self._workers if worker.child is not None]
        if running:
            _log.info("stopping", workers=len(running))
        for child in running:
            child.send_signal(signal.SIGTERM)
        for idle in (self._maintenance, *self._kept):
            if idle is not None:
                idle.kill()
        deadline = time.monotonic() + _GRACE_SECONDS
        for child in running:
            if not child.ends_within(max(0.0, deadline - time.monotonic())):
                _log.warning("worker killed: still there after the grace time", pid=child.pid)
            child.kill()
        for own in (*self._sockets, self._metrics):
            for each in own:
                each.close()
        if self._database is not None:
            self._database.stop()
        _log.info("stopped", status=self._status)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Handle signals: SIGTERM and SIGINT stop the service, once; SIGCHLD only wakes it. SIGHUP loads the
        certificates again, if there is TLS.
        """
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        os.set_blocking(write_end, False)
        self._selector.register(read_end, selectors.EVENT_READ)

        def stop(_number: int, _frame: object) -> None:
            self._stopping = True
            if self._preparing:
                raise StartCancelled("told to stop")

        def reload(_number: int, _frame: object) -> None:
            self._reload = True

        handlers: dict[signal.Signals, Callable[[int, object], None]] = {
            signal.SIGTERM: stop,
            signal.SIGINT: stop,
            signal.SIGCHLD: lambda _number, _frame: None,
        }
        if self._settings.has_tls:
            handlers[signal.SIGHUP] = reload
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        wakeup_before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._selector.unregister(read_end)
            self._selector.close()
            os.close(read_end)
            os.close(write_end)
