"""Children are processes that the supervisor forks, exchanges messages with by a socket pair, and ends."""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import resource
import selectors
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import structlog

from coordinator.process.listeners import PortInUse
from coordinator.settings import Endpoint, Settings
from store.embedded.programs import DataFolderInUse, ServerFailed
from store.errors import Contended, StoreUnavailable
from store.loop import Backoff
from store.processes import die_with_parent, name_process

if TYPE_CHECKING:
    from pathlib import Path

    from coordinator.login.tokens import Keys

# The supervisor passes data to a child, and is connected with it by a socket pair.


class Offered:
    """Sends lines to a process that may be slow to read: a line without room is dropped as a whole."""

    def __init__(self, pair: socket.socket) -> None:
        self._pair = pair
        #: the rest of a line whose beginning was sent
        self._rest = b""

    def offer(self, words: Mapping[str, object]) -> None:
        line = b"" if self._rest else json.dumps(words).encode() + b"\n"
        octets = self._rest + line
        # The line is also lost if the process has ended.
        with contextlib.suppress(OSError):
            self._rest = octets[self._pair.send(octets, socket.MSG_DONTWAIT) :]


class Supervising:
    """A child's socket to the supervisor. Both sides send one JSON object a line."""

    def __init__(self, pair: socket.socket) -> None:
        self._pair = pair
        self._unread = b""
        self._offered = Offered(pair)

    def fileno(self) -> int:
        return self._pair.fileno()

    def send(self, **words: object) -> None:
        self._pair.sendall(json.dumps(words).encode() + b"\n")

    def offer(self, **words: object) -> None:
        """Send without waiting: the line is lost if the supervisor has not read the previous ones."""
        self._offered.offer(words)

    def receive(self) -> list[Mapping[str, Any]]:
        """Return the supervisor's lines since the last call; wait for at least one. Empty: the supervisor has ended."""
        lines: list[bytes] = []
        while not lines:
            octets = self._pair.recv(65536)
            if not octets:
                return []
            *lines, self._unread = (self._unread + octets).split(b"\n")
        return [json.loads(line) for line in lines]


@dataclass(frozen=True, kw_only=True)
class Handed:
    """The data of a child. It inherits no descriptors but those of ``supervising`` and ``listeners``."""

    settings: Settings
    #: the URL of the server, embedded or given by the settings
    database_url: str
    supervising: Supervising
    #: listening sockets of one worker, or of the metrics
    listeners: Sequence[socket.socket] = ()
    #: the address of each listener
    places: Sequence[Endpoint] = ()
    #: of the embedded server; None: the server is the operator's own
    data_dir: Path | None = None
    #: the TLS context of `amqps` and `wss` listeners
    tls: ssl.SSLContext | None = None
    #: the worker's number, from 0
    number: int = 0
    #: the state at the child's start; the supervisor sends changes to workers and metrics
    disk_low: bool = False
    #: the public keys of the issuer of tokens; None: they are not known yet
    token_keys: Keys | None = None
    #: headers of requests to the collector of traces, which may be secret
    trace_headers: Mapping[str, str] = field(default_factory=dict, repr=False)


#: The main function of a child; returns its exit status.
Program = Callable[[Handed], int]


@dataclass(frozen=True, kw_only=True)
class Programs:
    """The programs of a supervisor's children, as the supervisor itself imports neither links nor commands."""

    worker: Program
    recovery: Program
    maintenance: Program
    metrics: Program
    token_keys: Program


# Exit statuses of the service and its workers say whether another start may succeed.

#: The store was unavailable at the start, or another process had a needed resource: a later start may succeed.
AWAY = 1
#: Another start would fail again: a setting, the log-in or the schema is wrong.
UNFIT = 2

#: classes of SQLSTATEs about the log-in, the database's name and the rights of its role
_OF_SETTINGS = ("28", "3D", "42")
#: Errors that pass without a change of the settings: a service that is ending still has its port and its folder.
_PASSING = (ServerFailed, DataFolderInUse, PortInUse, Contended)


def status_of(error: Exception) -> int:
    """Return the exit status of a service whose start this error prevents."""
    if isinstance(error, StoreUnavailable):
        return UNFIT if (error.sqlstate or "").startswith(_OF_SETTINGS) else AWAY
    return AWAY if isinstance(error, _PASSING) else UNFIT


_log: structlog.stdlib.BoundLogger = structlog.get_logger()

#: The number of failed starts of a worker in a row after which the service ends.
MOST_FAILED_STARTS = 8
_PAUSES = Backoff(first=0.1, longest=5.0)
# Seconds between attempts to fork.
_RETRY_SECONDS = 1.0
# Seconds between checks whether a stopped child has ended.
_LOOK_SECONDS = 0.005
# No process has more: see fs.nr_open.
_MOST_DESCRIPTORS = 1 << 20
# The signals for which the supervisor has handlers.
_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP)


class Pause:
    """Computes the wait before the next start of an ended process: longer after each failed start."""

    def __init__(self) -> None:
        self.failures = 0

    def served(self) -> None:
        """Note that the last start succeeded."""
        self.failures = 0

    def failed(self) -> float:
        """Count a failed start; return the seconds to wait."""
        self.failures += 1
        return _PAUSES.after(self.failures)


class Child:
    """A fork of this process that runs ``run``, and ends when this process does.

    Modules loaded by the supervisor are loaded in the child, in the same memory until one of them changes it: a child
    starts at once, and costs little. The supervisor has one thread, and no connection to the database when it forks.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        name: str,
        run: Callable[[Supervising], int],
        listeners: Sequence[socket.socket] = (),
    ) -> None:
        """``name``: of the process, at most 15 octets. ``run`` returns the exit status; ``listeners`` stay open in it.

        :raises OSError: the system has no process or no descriptor left.
        """
        #: Called by :meth:`read` with each object that the child sends.
        self.on_line: Callable[[Mapping[str, Any]], None] = lambda words: None
        self._selector = selector
        self._unread = b""
        self._status: int | None = None
        self._pair, theirs = socket.socketpair()
        self._pair.setblocking(False)
        self._offered = Offered(self._pair)
        supervisor = os.getpid()
        # A signal is for one of the two: the child blocks signals until it has handlers of its own.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        try:
            selector.register(self._pair, selectors.EVENT_READ, self)
            self.pid = os.fork()
            if self.pid == 0:
                _become(name, supervisor, functools.partial(run, Supervising(theirs)), [theirs, *listeners])
        except BaseException:
            self._silence()
            self._pair.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()

    def poll(self) -> int | None:
        """Return the exit status once the child has ended and all its lines were read, else None. A signal's is
        negative.
        """
        status = self._wait(os.WNOHANG)
        if status is not None:
            self.close()
        return status

    def send(self, **words: object) -> None:
        """Send an object; it is lost if the child has ended, or has not read the last thousand lines."""
        self._offered.offer(words)

    def read(self) -> None:
        """Read the child's lines, and call :attr:`on_line` with each."""
        try:
            octets = self._pair.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            octets = b""
        if not octets:
            self._silence()
            return
        *lines, self._unread = (self._unread + octets).split(b"\n")
        for line in lines:
            self.on_line(json.loads(line))

    def send_signal(self, number: signal.Signals) -> None:
        # A child that has ended keeps its process id until it is waited for.
        if self._wait(os.WNOHANG) is None:
            os.kill(self.pid, number)

    def ends_within(self, seconds: float) -> bool:
        """Wait for the child's end; whether it has ended in time."""
        deadline = time.monotonic() + seconds
        while self._wait(os.WNOHANG) is None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    def kill(self) -> None:
        """Send SIGKILL, and wait until the child has ended."""
        self.send_signal(signal.SIGKILL)
        self._wait(0)
        self.close()

    def _wait(self, options: int) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def close(self) -> None:
        if self._pair.fileno() >= 0:
            self.read()
            self._silence()
            self._pair.close()

    def _silence(self) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self._pair)


def _become(name: str, supervisor: int, run: Callable[[], int], kept: Sequence[socket.socket]) -> NoReturn:
    """Run the child from the fork to its end; never return into the supervisor's code.

    The supervisor's objects remain, while their descriptors are closed: the objects must not be collected later, as
    that would close new descriptors of the same numbers.
    """
    status = 1
    try:
        gc.freeze()
        signal.set_wakeup_fd(-1)
        for number in _HANDLED:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        # A terminal's Ctrl-C ends the supervisor, which then ends its children.
        os.setsid()
        die_with_parent(signal.SIGKILL, supervisor)
        name_process(name)
        _close_all_but({0, 1, 2, *(each.fileno() for each in kept)})
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.close(nothing)
        status = run()
    except BaseException:  # noqa: BLE001 - whatever it is, this process ends by it, and says so
        _log.critical("process ended by an error", exc_info=True)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception, SystemExit):
                stream.flush()
        os._exit(status)


def _close_all_but(kept: set[int]) -> None:
    """Close all descriptors but ``kept``, without opening one, as there may be none left."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = 0
    end = _MOST_DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, _MOST_DESCRIPTORS)
    for descriptor in (*sorted(kept), end):
        if low < descriptor:  # with an empty range, everything would be closed
            os.closerange(low, descriptor)
        low = descriptor + 1


class Kept:
    """Keeps a child running beside the workers: whenever it ends, it is started again after a pause."""

    def __init__(self, name: str, start: Callable[[], Child | None]) -> None:
        """``name``: for the log. ``start`` returns None if the system has no process left."""
        self._name = name
        self._start = start
        self._child: Child | None = None
        self._at = 0.0
        self._pause = Pause()

    @property
    def next_at(self) -> float | None:
        """The monotonic time of the next :meth:`tend`; None: when the running child ends."""
        return self._at if self._child is None else None

    def tend(self, now: float) -> None:
        if self._child is None:
            if now >= self._at:
                self._at = now + _RETRY_SECONDS
                self._child = self._start()
        elif (status := self._child.poll()) is not None:
            self._child = None
            pause = self._pause.failed()
            _log.error(f"{self._name} ended", status=status, again_in_seconds=pause)
            self._at = now + pause

    def send(self, **words: object) -> None:
        if self._child is not None:
            self._child.send(**words)

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()
