"""The supervisor's child processes: forked, spoken with by a socket pair, and ended."""

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
from dataclasses import dataclass
from typing import Any, NoReturn

import structlog

from coordinator.process.listeners import PortInUse
from coordinator.settings import Endpoint, Settings
from store.embedded.programs import DataFolderInUse, ServerFailed
from store.errors import Contended, StoreUnavailable
from store.processes import die_with_parent, name_process

# What the supervisor hands to a child, and the child's socket to it.


class Offered:
    """Lines to a process that may be slow to read: what it has no room for is dropped, a whole line or none."""

    def __init__(self, pair: socket.socket) -> None:
        self._pair = pair
        #: of a line whose beginning was sent
        self._rest = b""

    def offer(self, words: Mapping[str, object]) -> None:
        line = b"" if self._rest else json.dumps(words).encode() + b"\n"
        octets = self._rest + line
        # Lost where the process has ended, too.
        with contextlib.suppress(OSError):
            self._rest = octets[self._pair.send(octets, socket.MSG_DONTWAIT) :]


class Supervising:
    """The socket to the supervisor. Both sides say one JSON object a line."""

    def __init__(self, pair: socket.socket) -> None:
        self._pair = pair
        self._unread = b""
        self._offered = Offered(pair)

    def fileno(self) -> int:
        return self._pair.fileno()

    def tell(self, **words: object) -> None:
        self._pair.sendall(json.dumps(words).encode() + b"\n")

    def offer(self, **words: object) -> None:
        """Tell without waiting: it is lost where the supervisor has not read what came before."""
        self._offered.offer(words)

    def hear(self) -> list[Mapping[str, Any]]:
        """What the supervisor has said since the last call; waits until it says something. Empty: the supervisor has
        ended.
        """
        lines: list[bytes] = []
        while not lines:
            octets = self._pair.recv(65536)
            if not octets:
                return []
            *lines, self._unread = (self._unread + octets).split(b"\n")
        return [json.loads(line) for line in lines]


@dataclass(frozen=True, kw_only=True)
class Handed:
    """What a child has to know. It inherits no descriptors but those of ``supervising`` and ``listeners``."""

    settings: Settings
    #: of the server, whether the service has started it or was given it
    database_url: str
    supervising: Supervising
    #: sockets that listen: those of one worker, or of the metrics
    listeners: Sequence[socket.socket] = ()
    #: where each of them listens
    places: Sequence[Endpoint] = ()
    #: for those that are `amqps`
    tls: ssl.SSLContext | None = None
    #: the worker's, from 0
    number: int = 0
    #: when the child started; a worker and the metrics are told of changes
    disk_low: bool = False


#: What a child runs; returns its exit status.
Program = Callable[[Handed], int]


@dataclass(frozen=True, kw_only=True)
class Programs:
    """The children of a supervisor, which itself imports neither links nor commands."""

    worker: Program
    recovery: Program
    maintenance: Program
    metrics: Program


# Exit statuses of the service and its workers: whether another start may go better.

#: The store was away at the start, or another process had what the service needs: a later start may go better.
AWAY = 1
#: It would fail again: a setting, the log-in or the schema is wrong.
UNFIT = 2

#: of PostgreSQL's SQLSTATEs, the log-in, the database's name and the rights of its role
_OF_SETTINGS = ("28", "3D", "42")
#: What these say passes without a change of the settings: a service that is ending still has its port and its folder.
_PASSING = (ServerFailed, DataFolderInUse, PortInUse, Contended)


def status_of(error: Exception) -> int:
    """Of a service that this keeps from starting."""
    if isinstance(error, StoreUnavailable):
        return UNFIT if (error.sqlstate or "").startswith(_OF_SETTINGS) else AWAY
    return AWAY if isinstance(error, _PASSING) else UNFIT


_log: structlog.stdlib.BoundLogger = structlog.get_logger()

#: How many starts of a worker may fail in a row before the service ends.
MOST_FAILED_STARTS = 8
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
# Between attempts to start a process that could not be started at all.
_RETRY_SECONDS = 1.0
# Between two looks whether a child that was told to end has ended.
_LOOK_SECONDS = 0.005
# No process has more: see fs.nr_open.
_MOST_DESCRIPTORS = 1 << 20
# The signals for which the supervisor has handlers.
_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP)


class Pause:
    """How long to wait before the next start of a process that ended: longer after each start that failed."""

    def __init__(self) -> None:
        self.failures = 0

    def served(self) -> None:
        """The last start succeeded."""
        self.failures = 0

    def failed(self) -> float:
        """The last start failed. Returns the seconds to wait."""
        self.failures += 1
        return float(min(_FIRST_PAUSE_SECONDS * 2 ** min(self.failures - 1, 10), _LONGEST_PAUSE_SECONDS))


class Child:
    """A fork of this process that runs ``run``, and ends when this process does.

    What the supervisor has loaded is loaded in the child, in the same memory until one of them changes it: a child is
    there at once, and costs little. The supervisor has one thread, and no connection to the database when it forks.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        name: str,
        run: Callable[[Supervising], int],
        listeners: Sequence[socket.socket] = (),
    ) -> None:
        """``name``: of the process, at most 15 octets. ``run`` gives the exit status; ``listeners`` is what it keeps
        open. Raises ``OSError``: the system has no process or no descriptor left.
        """
        #: Called by :meth:`read` with each object that the child says.
        self.heard: Callable[[Mapping[str, Any]], None] = lambda words: None
        self._selector = selector
        self._unread = b""
        self._status: int | None = None
        self._pair, theirs = socket.socketpair()
        self._pair.setblocking(False)
        self._offered = Offered(self._pair)
        supervisor = os.getpid()
        # A signal is for one of the two: the child takes none before it has handlers of its own.
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
        """Its exit status once it has ended, and all that it said was read; None before. A signal's is negative."""
        status = self._wait(os.WNOHANG)
        if status is not None:
            self.close()
        return status

    def tell(self, **words: object) -> None:
        """It is lost where the child has ended, or has read none of the last thousand lines."""
        self._offered.offer(words)

    def read(self) -> None:
        """Read what it has said, and call :attr:`heard`."""
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
            self.heard(json.loads(line))

    def send_signal(self, number: signal.Signals) -> None:
        # A child that has ended keeps its process id until it is waited for.
        if self._wait(os.WNOHANG) is None:
            os.kill(self.pid, number)

    def ends_within(self, seconds: float) -> bool:
        """Wait for its end; whether it came."""
        deadline = time.monotonic() + seconds
        while self._wait(os.WNOHANG) is None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    def kill(self) -> None:
        """Send SIGKILL, and wait until it has ended."""
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
    """The child, from the fork to its end; it never returns into the supervisor's code.

    The supervisor's objects stay as they are, and their descriptors are closed beneath them: none may be collected
    later, as it would close a descriptor of that number once more.
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
    """It needs no descriptor, as there may be none left."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = 0
    end = _MOST_DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, _MOST_DESCRIPTORS)
    for descriptor in (*sorted(kept), end):
        if low < descriptor:  # with an empty range, everything would be closed
            os.closerange(low, descriptor)
        low = descriptor + 1


class Kept:
    """A child that the service always has beside its workers: whenever it ends it is started again, after a pause."""

    def __init__(self, name: str, start: Callable[[], Child | None]) -> None:
        """``name``: for the log. ``start`` gives None when the system has no process left."""
        self._name = name
        self._start = start
        self._child: Child | None = None
        self._at = 0.0
        self._pause = Pause()

    @property
    def next_at(self) -> float | None:
        """When to call :meth:`tend`, by the monotonic clock; None: when the child, which runs, ends."""
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

    def tell(self, **words: object) -> None:
        if self._child is not None:
            self._child.tell(**words)

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()
