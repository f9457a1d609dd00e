"""The process that people start: it keeps the database and the workers alive, and stops them.

It has one thread and sleeps; whatever happens wakes it: a signal, a child's end, a worker that is ready, a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

import structlog

from coordinator.listeners import CannotListen, listen
from coordinator.settings import Settings
from store import migrations, partitions, recovery
from store.database import check_url, connected, place
from store.embedded import EmbeddedError, EmbeddedServer, StartCancelled, default_data_dir
from store.errors import StoreError

_log: structlog.stdlib.BoundLogger = structlog.get_logger()

#: What a worker ends with when it cannot work like this and starting it again would not help: a setting, the schema.
STATUS_UNFIT = 2

#: Without links, the module that reads what :meth:`Supervisor._spawn` hands over.
WORKER = ("-m", "coordinator.commands.worker")

#: And the one that maintains the store.
MAINTENANCE = ("-m", "coordinator.commands.maintenance")

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
# Who lived this long did not die of its start.
_STEADY_SECONDS = 30.0
_GRACE_SECONDS = 10.0
_MAINTENANCE_SECONDS = 600.0
# After the start, which has made the partitions.
_MAINTENANCE_DELAY_SECONDS = 30.0
# How often we look for instances of other machines that are dead; a worker of ours is missed at once.
_LOST_SECONDS = 5.0


class Unfit(Exception):
    """The service cannot run like this; the message says why."""


@dataclass(kw_only=True)
class _Pause:
    """How long to wait before the next start of something that died."""

    seconds: float = _FIRST_PAUSE_SECONDS
    started_at: float = 0.0

    def next(self, now: float) -> float:
        if now - self.started_at >= _STEADY_SECONDS:
            self.seconds = _FIRST_PAUSE_SECONDS
        pause, self.seconds = self.seconds, min(self.seconds * 2, _LONGEST_PAUSE_SECONDS)
        return pause


@dataclass(kw_only=True)
class _Worker:
    number: int
    sockets: list[socket.socket]
    process: subprocess.Popen[bytes] | None = None
    # Read end; readable when the worker serves, or when it ended before.
    ready_pipe: int | None = None
    ready: bool = False
    start_at: float | None = 0.0
    pause: _Pause = field(default_factory=_Pause)


class Supervisor:
    """``run()`` from the start to the end of the service; in the main thread, as signals and children belong to it."""

    def __init__(self, settings: Settings, *, worker: Sequence[str] = WORKER) -> None:
        """``worker``: arguments of the interpreter that start a worker."""
        self._settings = settings
        self._worker_arguments = tuple(worker)
        self._stopping = False
        self._status = 0
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        self._embedded: EmbeddedServer | None = None
        self._embedded_start_at: float | None = None
        self._embedded_pause = _Pause()
        self._maintenance: subprocess.Popen[bytes] | None = None
        self._maintenance_at = time.monotonic() + _MAINTENANCE_DELAY_SECONDS
        self._lost_at = 0.0
        self._database_url = ""
        self._announced = False

    def run(self) -> int:
        """The service's exit status: 0 stopped when told to, 2 it cannot work like this (logged)."""
        with self._signals():
            try:
                sockets, places = listen(self._settings.listen, self._settings.workers)
                self._workers = [_Worker(number=number, sockets=own) for number, own in enumerate(sockets)]
                self._prepare_store()
                while not self._stopping:
                    self._turn([str(each) for each in places])
            except StartCancelled:
                pass
            except (Unfit, CannotListen, EmbeddedError, StoreError) as error:
                _log.error("cannot start", reason=str(error))
                self._status = STATUS_UNFIT
            finally:
                self._stop()
        return self._status

    # -- the store

    def _prepare_store(self) -> None:
        given = self._settings.database_url
        if given is None:
            data_dir = self._settings.data_dir or default_data_dir()
            self._embedded = EmbeddedServer(data_dir, cancelled=lambda: self._stopping)
            self._embedded_pause.started_at = time.monotonic()
            self._database_url = self._embedded.start()
            _log.info("database started", data_dir=str(data_dir), pid=self._embedded.pid)
            migrations.upgrade(self._database_url)
        else:
            self._database_url = check_url(given.get_secret_value())
            with connected(self._database_url) as connection:
                migrations.check(connection)
            _log.info("database found", place=place(self._database_url))
        self._make_partitions()

    def _make_partitions(self) -> None:
        try:
            with connected(self._database_url) as connection:
                made = partitions.make_ahead(connection)
        except StoreError as error:
            _log.warning("partitions not made", reason=str(error))
            return
        if made.created:
            _log.info("partitions made", partitions=made.created)
        if made.few:
            _log.error("partitions are running out: soon nothing can be posted", days_ahead=made.ahead)

    def _maintain(self, now: float) -> None:
        """In a process of its own: what it waits for in the database holds up nothing here."""
        if self._maintenance is not None:
            if self._maintenance.poll() is None:
                return
            self._maintenance = None
        if now < self._maintenance_at or self._embedded_start_at is not None:
            return
        self._maintenance_at = now + _MAINTENANCE_SECONDS
        handed = self._handed()
        try:
            self._maintenance = subprocess.Popen(
                [sys.executable, *MAINTENANCE, str(handed)],
                stdin=subprocess.DEVNULL,
                pass_fds=[handed],
                start_new_session=True,
            )
        finally:
            os.close(handed)

    def _give_up_lost(self) -> None:
        self._lost_at = time.monotonic() + _LOST_SECONDS
        if self._embedded_start_at is not None:
            return
        try:
            with connected(self._database_url) as connection:
                given_up = recovery.give_up_dead(connection, 0, recovery.STALE_SECONDS)
        except StoreError as error:
            _log.debug("no look for lost instances", reason=str(error))
            return
        if given_up.instances:
            _log.warning("instances given up", **asdict(given_up))

    def _watch_embedded(self, now: float) -> None:
        server = self._embedded
        if server is None:
            return
        if self._embedded_start_at is None:
            status = server.poll()
            if status is not None:
                pause = self._embedded_pause.next(now)
                _log.error("database ended", status=status, again_in_seconds=pause)
                self._embedded_start_at = now + pause
        elif now >= self._embedded_start_at:
            self._embedded_pause.started_at = now
            try:
                server.start()
            except StartCancelled:
                raise
            except EmbeddedError as error:
                pause = self._embedded_pause.next(now)
                _log.error("database not started", reason=str(error), again_in_seconds=pause)
                self._embedded_start_at = time.monotonic() + pause
            else:
                _log.info("database started", pid=server.pid)
                self._embedded_start_at = None

    # -- the workers

    def _turn(self, places: list[str]) -> None:
        now = time.monotonic()
        self._watch_embedded(now)
        for worker in self._workers:
            self._watch(worker, now)
        if self._stopping:
            return
        if not self._announced and all(worker.ready for worker in self._workers):
            self._announced = True
            _log.info("listening", listen=places, workers=len(self._workers), pid=os.getpid())
        self._maintain(now)
        if now >= self._lost_at:
            self._give_up_lost()
        times = [worker.start_at for worker in self._workers] + [
            self._embedded_start_at,
            self._lost_at,
            self._maintenance_at if self._maintenance is None and self._embedded_start_at is None else None,
        ]
        next_at = min(each for each in times if each is not None)
        for key, _ in self._selector.select(max(0.0, next_at - time.monotonic())):
            if isinstance(key.data, _Worker):
                self._read_ready(key.data)
            else:
                with contextlib.suppress(BlockingIOError):
                    os.read(key.fd, 4096)

    def _watch(self, worker: _Worker, now: float) -> None:
        if worker.process is not None:
            status = worker.process.poll()
            if status is None:
                return
            self._close_ready(worker)
            worker.process = None
            if status == STATUS_UNFIT:
                # It has logged the reason itself.
                _log.error("stopping: a worker cannot work like this", worker=worker.number)
                self._status = STATUS_UNFIT
                self._stopping = True
                return
            pause = worker.pause.next(now)
            _log.error("worker ended", worker=worker.number, status=status, again_in_seconds=pause)
            worker.start_at = now + pause
        elif worker.start_at is not None and now >= worker.start_at:
            worker.start_at = None
            worker.pause.started_at = now
            self._spawn(worker)

    def _spawn(self, worker: _Worker) -> None:
        read_end, write_end = os.pipe()
        handed = self._handed(
            listeners=[each.fileno() for each in worker.sockets], ready=write_end, number=worker.number
        )
        try:
            worker.process = subprocess.Popen(
                [sys.executable, *self._worker_arguments, str(handed)],
                stdin=subprocess.DEVNULL,
                pass_fds=[handed, write_end, *(each.fileno() for each in worker.sockets)],
                # A terminal's Ctrl-C is for the supervisor, which tells the workers.
                start_new_session=True,
            )
        finally:
            os.close(handed)
            os.close(write_end)
        os.set_blocking(read_end, False)
        worker.ready_pipe = read_end
        worker.ready = False
        self._selector.register(read_end, selectors.EVENT_READ, worker)

    def _handed(self, **more: object) -> int:
        """A file for a child: in memory and not on the command line, which everybody on the machine can read."""
        handed = os.memfd_create("settings", os.MFD_CLOEXEC)
        message = {
            "settings": self._settings.model_dump(mode="json", exclude={"database_url"}),
            "database_url": self._database_url,
            "parent": os.getpid(),
            **more,
        }
        os.write(handed, json.dumps(message).encode())
        return handed

    def _read_ready(self, worker: _Worker) -> None:
        if worker.ready_pipe is not None and os.read(worker.ready_pipe, 64):
            worker.ready = True
            _log.info("worker ready", worker=worker.number, pid=worker.process.pid if worker.process else None)
        # Else it ended before it was ready; SIGCHLD says so.
        self._close_ready(worker)

    def _close_ready(self, worker: _Worker) -> None:
        if worker.ready_pipe is not None:
            self._selector.unregister(worker.ready_pipe)
            os.close(worker.ready_pipe)
            worker.ready_pipe = None

    # -- the end

    def _stop(self) -> None:
        """Workers first: what they have in hand needs the database (F5)."""
        if self._maintenance is not None:
            self._maintenance.kill()
            self._maintenance.wait()
        running = [worker.process for worker in self._workers if worker.process is not None]
        if running:
            _log.info("stopping", workers=len(running))
        for process in running:
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_SECONDS
        for process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                _log.warning("worker killed: still there after the grace time", pid=process.pid)
                process.kill()
                process.wait()
        for worker in self._workers:
            self._close_ready(worker)
            for each in worker.sockets:
                each.close()
        if self._embedded is not None:
            self._embedded.stop()
        _log.info("stopped", status=self._status)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT stop the service, once; SIGCHLD only wakes it."""
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        os.set_blocking(write_end, False)
        self._selector.register(read_end, selectors.EVENT_READ)

        def stop(_number: int, _frame: object) -> None:
            self._stopping = True

        handlers = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGCHLD: lambda _number, _frame: None}
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
