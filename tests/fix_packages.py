"""Programs of Debian's packages: the system's, or else those of the packages, unpacked in ``build/packages``, as one
that is installed may begin to serve at once.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from typing import NamedTuple

import pytest

from tests.fix_clients import REPOSITORY, alone
from tests.fix_service import PATIENCE

_KEPT = REPOSITORY / "build" / "packages"


class Program(NamedTuple):
    """``environment``: for the libraries that were unpacked with it."""

    path: str
    environment: dict[str, str]


def program(name: str, *packages: str) -> Program:
    """``packages``: its own, and those of libraries that not every system has."""
    if found := shutil.which(name) or shutil.which(name, path="/usr/sbin"):
        return Program(found, dict(os.environ))
    folders = f"{_KEPT / 'usr' / 'sbin'}:{_KEPT / 'usr' / 'bin'}"
    _KEPT.mkdir(parents=True, exist_ok=True)
    with alone(_KEPT):
        if shutil.which(name, path=folders) is None:
            try:
                subprocess.run(["apt-get", "download", *packages], cwd=_KEPT, capture_output=True, check=True)
                for package in packages:
                    (file,) = _KEPT.glob(f"{package}_*.deb")
                    subprocess.run(["dpkg-deb", "--extract", file, _KEPT], check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                pytest.skip(f"{name} is needed (Debian: apt-get install {packages[0]}), and there is none: {error}")
    libraries = ":".join(str(each) for each in (_KEPT / "usr" / "lib").glob("*-linux-gnu"))
    unpacked = shutil.which(name, path=folders)
    assert unpacked is not None, f"{packages[0]} has no {name}"
    return Program(unpacked, {**os.environ, "LD_LIBRARY_PATH": libraries})


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class Daemon:
    """A program that listens on ``port``, over restarts. ``user``: that it runs as, if root starts it."""

    def __init__(self, of: Program, arguments: list[str], port: int, *, user: str | None = None) -> None:
        self.port = port
        self._of, self._arguments = of, arguments
        self._user = user if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """And wait until it listens."""
        command = [self._of.path, *self._arguments]
        self._process = subprocess.Popen(command, env=self._of.environment, user=self._user)
        deadline = time.monotonic() + PATIENCE
        while not self._listens():
            assert self._process.poll() is None, f"{self._of.path} ended with {self._process.returncode}"
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def _listens(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """At once: it cuts the connections that go through it."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(timeout=PATIENCE)

    def restart(self) -> None:
        self.stop()
        self.start()
