"""Commands of ``coordinator`` as processes that tests look at while they run, and stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests import prepared
from tests.fix_command import PATIENCE_SECONDS, environment


class RunningCommand:
    """A running ``coordinator``, with ``arguments``, on the store at ``url``; its temporary files are below ``folder``,
    by which its processes are known.
    """

    def __init__(self, url: str, folder: Path, *arguments: str) -> None:
        self.temporary = folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "coordinator", *arguments],
            env=environment(
                COORDINATOR_DATABASE_URL=url,
                TMPDIR=str(self.temporary),
                SPARK_LOCAL_DIRS=str(self.temporary),
            ),
            cwd=prepared.TREES[-1],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def others(self) -> list[int]:
        """Its processes beside itself."""
        found = []
        for each in Path("/proc").iterdir():
            if each.name.isdecimal() and int(each.name) != self.process.pid:
                with suppress(OSError):
                    if os.fsencode(self.temporary) in (each / "environ").read_bytes():
                        found.append(int(each.name))
        return found

    def told(self, text: str) -> bool:
        return any(text in line for line in self.lines)

    def wait_for(self, there: Callable[[], object]) -> None:
        limit = time.monotonic() + 5 * PATIENCE_SECONDS
        while not there():
            assert self.process.poll() is None, self.lines
            assert time.monotonic() < limit, self.lines
            time.sleep(0.01)

    def end(self, number: signal.Signals | None = None) -> tuple[int, str, list[str]]:
        """Send a signal (None: it ends by itself) and wait for its end; its status, what it said, and on standard
        error."""
        if number is not None:
            self.process.send_signal(number)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        said = self.process.stdout.read()
        status = self.process.wait(5 * PATIENCE_SECONDS)
        self._reader.join()
        self.process.stdout.close()
        self.process.stderr.close()
        return status, said, self.lines

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.end(signal.SIGKILL)
