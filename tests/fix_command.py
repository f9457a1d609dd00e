"""The command line as a process: commands that end, and a service that is read, killed and stopped."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from coordinator.settings import endpoint
from store.compiled import PURE_VARIABLE
from tests import prepared

ROOT = Path(__file__).resolve().parent.parent
#: No event takes this long: a test that waits longer fails instead of hanging.
PATIENCE_SECONDS = 60

Command = Callable[..., subprocess.CompletedProcess[str]]
Serve = Callable[..., "Serving"]


def environment(**more: str) -> dict[str, str]:
    """The environment of this process without settings of the service, but for which form of it runs."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("COORDINATOR_") or name == PURE_VARIABLE
    }
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


class Serving:
    """A running service; a thread reads its log."""

    def __init__(self, arguments: Sequence[str], more: Mapping[str, str]) -> None:
        self.lines: list[dict[str, Any]] = []
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue()
        log, theirs = os.pipe()
        self._log = os.fdopen(log, encoding="utf-8")
        try:
            self.process = self._started(arguments, environment(**more), theirs)
        finally:
            os.close(theirs)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @staticmethod
    def _started(arguments: Sequence[str], given: Mapping[str, str], stderr: int) -> prepared.Process | prepared.Plain:
        """One that is not ``python -m coordinator`` is none that is forked."""
        if tuple(arguments[:2]) == ("-m", "coordinator"):
            return prepared.started(arguments[2:], given, 1, stderr)
        command = [sys.executable, *arguments]
        return prepared.Plain(command, cwd=prepared.TREES[-1], env=given, stderr=stderr)

    def _read(self) -> None:
        for line in self._log:
            try:
                parsed = json.loads(line)
            except ValueError:
                parsed = {"event": line.rstrip()}
            self._queue.put(parsed)
        self._queue.put(None)

    def until(self, event: str, **wanted: object) -> dict[str, Any]:
        """Read the log up to the next line with this event and these values; return the line."""
        while True:
            line = self._queue.get(timeout=PATIENCE_SECONDS)
            assert line is not None, f"ended without {event!r}: {self.lines}"
            self.lines.append(line)
            if line["event"] == event and all(line.get(name) == value for name, value in wanted.items()):
                return line

    def listening(self) -> tuple[str, int]:
        """Wait until it listens; return where."""
        place = endpoint(self.until("listening")["listen"][0])
        return place.host, place.port

    def end(self, number: signal.Signals | None = signal.SIGTERM) -> int:
        """Send a signal (None: it ends by itself), wait for its end and read the rest of the log. The exit status."""
        if number is not None:
            self.process.send_signal(number)
        status = self.process.wait(PATIENCE_SECONDS)
        # A worker that survived it would keep the log open.
        self._reader.join(PATIENCE_SECONDS)
        assert not self._reader.is_alive(), "another process holds the log open"
        while (line := self._queue.get()) is not None:
            self.lines.append(line)
        self._log.close()
        return status

    def values(self, event: str, name: str) -> list[Any]:
        """The values of ``name`` in all lines of ``event`` that were read."""
        return [line[name] for line in self.lines if line["event"] == event]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts ``coordinator serve`` with these flags, on any free port; killed at the end of the test."""
    started = []

    def start(*arguments: str, script: Sequence[str] = ("-m", "coordinator", "serve"), **more: str) -> Serving:
        listen = [] if "--listen" in arguments else ["--listen", "amqp://127.0.0.1:0"]
        started.append(Serving([*script, *listen, *arguments], more))
        return started[-1]

    yield start
    for serving in started:
        if serving.process.poll() is None:
            serving.end(signal.SIGKILL)


@pytest.fixture
def command() -> Command:
    """Runs ``coordinator`` with these arguments and waits for its end."""

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return prepared.run(arguments, environment(**more), timeout=PATIENCE_SECONDS)

    return run


def answers(place: tuple[str, int]) -> bytes:
    """The service's answer to the AMQP 1.0 header (part 2, 2.2)."""
    with socket.create_connection(place, timeout=PATIENCE_SECONDS) as connection:
        connection.sendall(b"AMQP\x00\x01\x00\x00")
        return connection.recv(8)
