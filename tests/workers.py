"""The workers of a running service: which processes they are, which connection each has, and what each takes.

Workers come and go while a test looks at them: what ``/proc`` says of one that ends meanwhile is missing, and no fault.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.fix_command import alive
from tests.fix_service import PATIENCE, Service


def pid_of_worker(service: Service, since: int = 0) -> int:
    """The first worker that became ready after log line ``since``; waits for it."""
    return int(service.wait_for(lambda line: line.get("event") == "worker ready", since=since)["pid"])


def pids_of_workers(service: Service, since: int = 0, count: int = 2) -> dict[int, int]:
    """The pid of each worker by its number: ``count`` that live and became ready after log line ``since``; waits."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        ready = [line for line in service.log_lines()[since:] if line.get("event") == "worker ready"]
        last = {int(line["worker"]): int(line["pid"]) for line in ready}
        found = {number: pid for number, pid in last.items() if alive(pid)}
        if len(found) >= count:
            return found
        time.sleep(0.01)
    raise AssertionError(f"{count} workers were not ready within {PATIENCE:g} s: {service.log_lines()[since:]}")


def worker_of(sock: socket.socket, pids: dict[int, int]) -> int | None:
    """The number of the worker among ``pids`` that has the other end of the connection; None: none has it now."""
    port = sock.getsockname()[1]
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{fields[9]}]" for fields in rows if int(fields[2].split(":")[1], 16) == port}
    for number, pid in pids.items():
        if sockets.intersection(open_files(pid)):
            return number
    return None


def open_files(pid: int) -> Iterator[str]:
    """What the process's descriptors stand for; without those that it closes meanwhile, and none once it has ended."""
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                yield str(descriptor.readlink())


class Worker:
    """The service's worker, and the most memory it takes beyond what it had when this was made."""

    def __init__(self, service: Service) -> None:
        ready = [line for line in service.log_lines() if line.get("event") == "worker ready"]
        self.pid = int(ready[-1]["pid"])
        self._files_before = 0
        self._files_before = self.files
        self._before = self._resident("VmRSS")
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")  # the peak counts from here on

    def _resident(self, name: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
        raise AssertionError(name)

    @property
    def peak(self) -> int:
        return self._resident("VmHWM") - self._before

    @property
    def descriptors(self) -> int:
        return sum(1 for _ in open_files(self.pid))

    @property
    def files(self) -> int:
        """Unnamed files it has opened since."""
        return sum(name.endswith("(deleted)") for name in open_files(self.pid)) - self._files_before
