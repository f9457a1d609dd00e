"""The supervisor's child processes: started, spoken with by a socket pair, and ended.

Both sides say one JSON object a line. A child gets what it has to know in a file in memory: every user of the machine
could read a command line.
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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

_log: structlog.stdlib.BoundLogger = structlog.get_logger()

#: How many starts of a worker may fail in a row before the service ends.
MOST_FAILED_STARTS = 8
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
# Between attempts to start a process that could not be started at all.
_RETRY_SECONDS = 1.0


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
    """A process that runs this interpreter with ``arguments`` and the descriptor of the file in memory."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        arguments: Sequence[str],
        handed: Mapping[str, Any],
        listeners: Sequence[socket.socket],
    ) -> None:
        """``handed`` reaches it as JSON, with ``supervisor``, the descriptor of its end of the pair, and ``parent``."""
        #: Called by :meth:`read` with each object that the child says.
        self.heard: Callable[[Mapping[str, Any]], None] = lambda words: None
        self._selector = selector
        self._unread = b""
        self._pair, theirs = socket.socketpair()
        self._pair.setblocking(False)
        memory = os.memfd_create("handed", os.MFD_CLOEXEC)
        try:
            message = {**handed, "supervisor": theirs.fileno(), "parent": os.getpid()}
            os.write(memory, json.dumps(message).encode())
            self._process = subprocess.Popen(
                [sys.executable, *arguments, str(memory)],
                stdin=subprocess.DEVNULL,
                pass_fds=[memory, theirs.fileno(), *(each.fileno() for each in listeners)],
                # A terminal's Ctrl-C ends the supervisor, which then ends its children.
                start_new_session=True,
            )
        except BaseException:
            self._pair.close()
            raise
        finally:
            os.close(memory)
            theirs.close()
        selector.register(self._pair, selectors.EVENT_READ, self)

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit status once it has ended, and all that it said was read; None before."""
        status = self._process.poll()
        if status is not None:
            self.close()
        return status

    def tell(self, **words: object) -> None:
        # Lost where the child has ended, or has read none of the last thousand lines.
        with contextlib.suppress(OSError):
            self._pair.send(json.dumps(words).encode() + b"\n")

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
        self._process.send_signal(number)

    def wait(self, seconds: float) -> int:
        """Its exit status; :class:`subprocess.TimeoutExpired` if it still runs after ``seconds``."""
        return self._process.wait(seconds)

    def kill(self) -> None:
        """Send SIGKILL, and wait until it has ended."""
        self._process.kill()
        self._process.wait()
        self.close()

    def close(self) -> None:
        if self._pair.fileno() >= 0:
            self.read()
            self._silence()
            self._pair.close()

    def _silence(self) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self._pair)


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

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()
