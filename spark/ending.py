"""Java, and the Python workers that it has started, end with us: in whatever stage, and however a run is stopped.

Java has a session of its own (:func:`spark.session.open_session`), so that a Ctrl-C reaches us alone; all that it
starts stays in that session, and is known by it. Its files, and Spark's, are in folders that are ours to remove.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

#: What asks a run to end: a Ctrl-C, a service manager, a terminal that is closed.
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN_SECONDS: Final = 0.01
_LOCAL_DIRS: Final = "SPARK_LOCAL_DIRS"


@contextmanager
def folders() -> Iterator[Path]:
    """A folder for Java's temporary files; Spark's are in it, unless it is elsewhere than others, or in one of each of
    the user's ``SPARK_LOCAL_DIRS``, which names ours during the block. All are removed after it.
    """
    given, usual, place = os.environ.get(_LOCAL_DIRS), tempfile.gettempdir(), _place_for_code()
    with ExitStack() as stack:
        own = _folder(stack, place)
        there = (
            [own] if not given and place == usual else [_folder(stack, each) for each in (given or usual).split(",")]
        )
        os.environ[_LOCAL_DIRS] = ",".join(map(str, there))
        try:
            yield own
        finally:
            if given is None:
                del os.environ[_LOCAL_DIRS]
            else:
                os.environ[_LOCAL_DIRS] = given


def _place_for_code() -> str:
    """Where Java may load code from: it unpacks some of its own (what Parquet files are compressed by) among its
    temporary files."""
    usual = tempfile.gettempdir()
    caches = os.environ.get("XDG_CACHE_HOME") or str(Path(os.environ.get("HOME", "/"), ".cache"))
    for place in (usual, "/var/tmp", caches):  # noqa: S108 - a folder of our own is made in it
        if os.access(place, os.W_OK) and not os.statvfs(place).f_flag & os.ST_NOEXEC:
            return place
    return usual


def _folder(stack: ExitStack, parent: str) -> Path:
    made = tempfile.mkdtemp(prefix="coordinator-spark-", dir=parent)
    stack.callback(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


class Stopping:
    """Handlers of :data:`SIGNALS` that end Java before the caller's own is called: whatever waits for Java then waits
    no longer. ``stopped``: whether one came. Children that were there before are not Java's, and stay.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._others = leaders()
        self._before: dict[signal.Signals, Callable[[int, FrameType | None], Any]] = {}
        for number in SIGNALS:
            before = signal.getsignal(number)
            # what is ignored, or ends the process without a word, stays so
            if callable(before):
                self._before[number] = before

    def install(self) -> None:
        for number in self._before:
            signal.signal(number, self._stop)

    def remove(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def end_java(self) -> None:
        """End Java, and all that it has started."""
        end_java(self._others)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stopped = True
        self.end_java()
        self._before[signal.Signals(number)](number, frame)


def end_java(spared: Collection[int] = ()) -> None:
    """End all processes of each session that one of our children leads, as no process can refuse, but for those of the
    leaders ``spared``. They are started by one another: none is left when none is found.
    """
    while True:
        sessions = leaders().difference(spared)
        found = [each.pid for each in _processes() if each.session in sessions and each.alive]
        if not found:
            return
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_AGAIN_SECONDS)


def leaders() -> set[int]:
    """Our children that lead a session."""
    return {each.pid for each in _processes() if each.parent == os.getpid() and each.session == each.pid}


class _Process(NamedTuple):
    pid: int
    parent: int
    session: int
    alive: bool


def _processes() -> Iterator[_Process]:
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            with suppress(OSError):
                # after the name, which may have anything in it: state, parent, process group, session
                state, parent, _, session = (each / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[:4]
                yield _Process(int(each.name), int(parent), int(session), state not in ("Z", "X"))
