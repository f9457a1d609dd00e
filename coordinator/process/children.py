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
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import structlog

from coordinator.process.supervising import Offered, Supervising
from store.processes import die_with_parent, name_process

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
