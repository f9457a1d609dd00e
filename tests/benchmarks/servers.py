"""The servers under load: the service itself, and any other that is measured beside it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from tests.benchmarks import generator, processes
from tests.benchmarks.generator import REPOSITORY, Load

_READY_SECONDS = 120.0
_STOP_SECONDS = 60.0


class ServerFailed(Exception):
    """A server did not start, or ended; the message has the last lines it wrote."""


class Server:
    """A process that listens on a port of the loopback interface, and the PostgreSQL that works for it."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path, postgres_pid_file: Path | None) -> None:
        self.name = name
        self.port = 0
        self._process = process
        self._log = log
        self._postgres_pid_file = postgres_pid_file

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def groups(self) -> processes.Groups:
        """:raises ServerFailed: when it runs no longer."""
        self.check()
        return processes.groups(self._process.pid, postmaster(self._postgres_pid_file))

    def snapshot(self) -> processes.Snapshot:
        return processes.snapshot(self.groups())

    def under_load(
        self, mode: str, *flags: str, port: int | None = None, program: generator.Program = generator.IN_C
    ) -> tuple[Load, processes.Cpu]:
        """What the generator saw, and what this server used meanwhile. ``port``: of a relay to it.

        :raises GeneratorFailed: see :func:`generator.run`.
        :raises ServerFailed: when it runs no longer.
        """
        snapshots: list[processes.Snapshot] = []

        def note() -> None:
            snapshots.append(self.snapshot())

        load = generator.run(mode, port or self.port, *flags, program=program, started=note, ended=note)
        return load, processes.cpu_between(*snapshots)

    def check(self) -> None:
        """:raises ServerFailed: when it runs no longer."""
        status = self._process.poll()
        if status is not None:
            raise ServerFailed(f"{self.name} ended with status {status}: {self.last_words()}")

    def last_words(self) -> str:
        lines = self._log.read_bytes()[-4000:].decode("utf-8", "replace").splitlines()[-5:]
        return " / ".join(lines) + f" (see {self._log})"

    def stop(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is not None:
                return
            self._process.send_signal(number)
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                continue


def start_service(*, data_dir: Path, log: Path, arguments: list[str], tree: Path = REPOSITORY) -> Server:
    """``coordinator serve`` of the packages in ``tree``, with an embedded PostgreSQL in ``data_dir``, on a free port.

    Its log says where it listens: ``{"event": "listening", "listen": ["amqp://127.0.0.1:..."]}``.
    """
    command = [sys.executable, "-m", "coordinator", "serve", "--listen", "amqp://127.0.0.1:0"]
    server = Server("service", _start([*command, "--data-dir", str(data_dir), *arguments], log, tree), log, None)
    try:
        for _ in _attempts(server):
            server.port = _listening_port(log)
            if server.port:
                return server
    except BaseException:
        server.stop()
        raise
    raise AssertionError("not reached")


def start_other(command: str, *, name: str, log: Path, preload: int, postgres_pid_file: Path | None) -> Server:
    """Start ``command`` with its ``{port}`` and ``{preload}`` filled in; ready is when the port takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    words = [word.replace("{port}", str(port)).replace("{preload}", str(preload)) for word in shlex.split(command)]
    server = Server(name, _start(words, log), log, postgres_pid_file)
    server.port = port
    try:
        for _ in _attempts(server):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
            except ConnectionRefusedError:
                continue
            return server
    except BaseException:
        server.stop()
        raise
    raise AssertionError("not reached")


def postmaster(pid_file: Path | None) -> int | None:
    """The process id in a ``postmaster.pid``, whose first line it is.

    :raises ServerFailed: when the file has none.
    """
    if pid_file is None:
        return None
    try:
        return int(pid_file.read_text(encoding="utf-8").split()[0])
    except (OSError, ValueError, IndexError):
        raise ServerFailed(f"{pid_file}: a postmaster.pid of a running PostgreSQL was expected") from None


def _start(command: list[str], log: Path, folder: Path = REPOSITORY) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # an interrupt is for the benchmark, which stops its servers itself
            )
        except OSError as error:
            raise ServerFailed(f"{command[0]} cannot be started: {error.strerror}") from None


def _attempts(server: Server) -> Iterator[None]:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        server.check()
        yield
        time.sleep(0.05)
    raise ServerFailed(f"{server.name} was not ready after {_READY_SECONDS:g} s: {server.last_words()}")


def _listening_port(log: Path) -> int:
    """0 as long as the log has no such event."""
    for line in log.read_text(errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and entry.get("event") == "listening":
            return urlsplit(str(entry["listen"][0])).port or 0
    return 0
