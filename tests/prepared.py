"""Processes of ``coordinator`` that need not import its packages: for tests, which start a thousand of them.

A process without threads, :func:`_serve`, imports them once and forks for each that a test asks for. That one gets the
arguments, environment and descriptors of its own and runs ``coordinator/__main__.py`` from its beginning, as
``python -m coordinator`` does; it saves half a second of processor time, and twice that on a busy machine.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import typer.main

from store.compiled import PURE_VARIABLE

ROOT = Path(__file__).resolve().parent.parent
_TREE = "COORDINATOR_TEST_TREE"
#: Where the packages are that run: the sources, or what .ci/build has made of them.
TREES = [Path(os.environ.get(_TREE, ROOT)).resolve()]
assert (TREES[0] / "coordinator").is_dir(), f"{_TREE}: no packages are in {TREES[0]}"
_PACKAGES = ("coordinator", "links", "store")
#: of a request: arguments and environment
_MOST_OCTETS = 1 << 17
#: What is read when Python starts or a module is imported, and so cannot be another in a process that is forked.
_OF_PYTHON = ("PYTHON", "LC_", "LANG", "LD_", PURE_VARIABLE)
_WARNINGS = "PYTHONWARNINGS"
_PATH = "PYTHONPATH"
#: of the environment: constants of modules that are others in this process, by dotted names; a test waits for timers
CONSTANTS = "COORDINATOR_TEST_CONSTANTS"

Plain = subprocess.Popen[bytes]


class Process:
    """A process that was started so; as far as tests need it, :class:`subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = threading.Event()

    def end(self, status: int) -> None:
        self.returncode = status
        self._ended.set()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """:raises subprocess.TimeoutExpired: it has not ended within ``timeout`` seconds."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(["coordinator"], timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing happens to one that has ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):  # its end is not told yet
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Starter:
    def __init__(self, tree: Path) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._one = threading.Lock()
        self._processes: dict[int, Process] = {}
        self._started: Process | None = None
        self._answered = threading.Semaphore(0)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.prepared", str(theirs.fileno())],
                cwd=tree,
                env={**os.environ, _PATH: str(ROOT), _TREE: str(tree)},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        threading.Thread(target=self._read, daemon=True).start()

    def start(self, request: bytes, files: list[int]) -> Process:
        with self._one:
            socket.send_fds(self._socket, [request], files)
            self._answered.acquire()
            assert self._started is not None, "the process from which others are forked has ended"
            return self._started

    def _read(self) -> None:
        with suppress(ConnectionResetError):  # it has ended before it read all that it was sent
            while answer := self._socket.recv(100):
                pid, status = json.loads(answer)
                if status is None:
                    self._started = self._processes[pid] = Process(pid)
                    self._answered.release()
                else:
                    self._processes.pop(pid).end(status)
        self._started = None
        self._answered.release()


_starter = functools.cache(_Starter)


@contextmanager
def packages_of(tree: Path) -> Iterator[None]:
    """All that is started meanwhile has the packages in this folder."""
    TREES.append(tree)
    try:
        yield
    finally:
        TREES.pop()


def _can_be(environment: Mapping[str, str]) -> bool:
    """Whether a process with this environment can be one that is forked."""
    special = {name for name in {*environment, *os.environ} if name.startswith(_OF_PYTHON)}
    same = all(environment.get(name) == os.environ.get(name) for name in special - {_WARNINGS, _PATH})
    paths = (None, str(ROOT), os.environ.get(_PATH))
    return same and environment.get(_WARNINGS) in (None, "error") and environment.get(_PATH) in paths


def started(arguments: Sequence[str], environment: Mapping[str, str], stdout: int, stderr: int) -> Process | Plain:
    """``coordinator`` with ``arguments``, in the folder of this repository, without input. ``stdout``, ``stderr``:
    descriptors, which stay the caller's.
    """
    request = json.dumps([list(arguments), dict(environment)]).encode()
    if not _can_be(environment) or len(request) > _MOST_OCTETS:
        assert CONSTANTS not in environment, "only a process that is forked has other constants"
        command = [sys.executable, "-m", "coordinator", *arguments]
        return Plain(command, cwd=TREES[-1], env=environment, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
    with Path(os.devnull).open("rb") as nothing:
        return _starter(TREES[-1]).start(request, [nothing.fileno(), stdout, stderr])


def run(
    arguments: Sequence[str], environment: Mapping[str, str], *, timeout: float
) -> subprocess.CompletedProcess[str]:
    """:func:`started`, and waited for: its exit status and all that it has printed.

    :raises subprocess.TimeoutExpired: it has not ended within ``timeout`` seconds; it is killed.
    """
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        process = started(arguments, environment, stdout.fileno(), stderr.fileno())
        try:
            status = process.wait(timeout)
        finally:
            process.kill()
            process.wait()
        said = []
        for file in (stdout, stderr):
            file.seek(0)
            said.append(file.read().decode())
    return subprocess.CompletedProcess(["coordinator", *arguments], status, *said)


# -- the process from which the others are forked


def _serve(own: socket.socket) -> None:
    """Fork for each request, and tell of each that has ended, until the test process has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the test process ends this one
    selector = selectors.DefaultSelector()
    selector.register(own, selectors.EVENT_READ)
    children: dict[int, int] = {}  # pid by its descriptor
    while True:
        for key, _ in selector.select():
            if key.fileobj is not own:
                pid = children.pop(key.fd)
                selector.unregister(key.fd)
                os.close(key.fd)
                own.send(json.dumps([pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]).encode())
                continue
            request, files, _, _ = socket.recv_fds(own, _MOST_OCTETS, 3)
            if not request:
                return
            if (pid := os.fork()) == 0:
                selector.close()
                for each in (own.detach(), *children):
                    os.close(each)
                _become(json.loads(request), files)
            for each in files:
                os.close(each)
            descriptor = os.pidfd_open(pid)
            children[descriptor] = pid
            selector.register(descriptor, selectors.EVENT_READ)
            own.send(json.dumps([pid, None]).encode())


def _become(request: tuple[list[str], dict[str, str]], files: list[int]) -> NoReturn:
    """Be ``python -m coordinator`` from its beginning to its end, which is that of Python."""
    arguments, environment = request
    for number, descriptor in enumerate(files):
        os.dup2(descriptor, number)
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, value in json.loads(environment.pop(CONSTANTS, "{}")).items():
        holder, _, constant = name.rpartition(".")
        found = vars(pkgutil.resolve_name(holder))  # of a module, or of what never changes otherwise
        assert constant in found, name
        found[constant] = value
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    if environment.get(_WARNINGS) == "error":
        warnings.simplefilter("error")
    sys.argv = ["coordinator", *arguments]
    runpy.run_module("coordinator", run_name="__main__", alter_sys=True)
    sys.exit()


def _main() -> None:
    own = socket.socket(fileno=int(sys.argv[1]))
    importlib.import_module("alembic.command")
    for package in _PACKAGES:
        path = importlib.import_module(package).__path__
        for found in pkgutil.walk_packages(path, f"{package}."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)
    # Typer looks at the parameters of all commands before it runs one: most of what a short command does.
    typers, name = vars(typer.main), "get_params_from_function"
    typers[name] = functools.cache(typers[name])
    typer.main.get_command(runpy.run_module("coordinator.__main__", run_name="looked at")["app"])
    gc.collect()
    gc.freeze()
    _serve(own)


if __name__ == "__main__":
    _main()
