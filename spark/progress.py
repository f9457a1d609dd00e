"""Show the progress of a run (R31): a bar with the stage, its tasks and the rows so far; without a terminal, a line for
each stage."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Final, Protocol

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

_POLL_SECONDS: Final = 0.5


class Steps(Protocol):
    """Receives the progress of a run."""

    def stage(self, name: str) -> None:
        """Called when a new stage begins."""

    def rows(self, count: int) -> None:
        """Called with the ``count`` of rows so far, in all."""

    def warn(self, text: str) -> None:
        """Show a message to the user at once."""


class ProgressBar(AbstractContextManager["ProgressBar"]):
    """Shows :class:`Steps` on standard error. ``stages`` is the number of stages."""

    def __init__(self, stages: int) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description:<28}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[rows]:>14,} rows"),
            TextColumn("{task.fields[tasks]:<14}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bar = self._progress.add_task("starting Spark", total=stages + 1, rows=0, tasks="")

        self._began = time.monotonic()
        self._rows = 0

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        self._line("starting Spark")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    @contextmanager
    def watching(self, spark: SparkSession) -> Iterator[None]:
        """Show the tasks of Spark's running jobs during the block."""
        if self._progress.disable:
            yield
            return
        stopped = threading.Event()
        watcher = threading.Thread(target=self._poll, args=(spark, stopped), name="progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            stopped.set()
            watcher.join()

    def _poll(self, spark: SparkSession, stopped: threading.Event) -> None:
        tracker = spark.sparkContext.statusTracker()
        while not stopped.wait(_POLL_SECONDS):
            done = total = 0
            try:
                for number in tracker.getActiveStageIds():
                    stage = tracker.getStageInfo(number)
                    if stage is not None:
                        done += stage.numCompletedTasks
                        total += stage.numTasks
            except Py4JError:
                # Java has ended; the run itself says so
                return
            self._progress.update(self._bar, tasks=f"{done}/{total} tasks" if total else "")

    def stage(self, name: str) -> None:
        self._progress.update(self._bar, description=name, advance=1, tasks="")
        self._line(name)

    def _line(self, stage: str) -> None:
        if self._progress.disable:
            sys.stderr.write(f"{time.monotonic() - self._began:.1f} s, {self._rows:,} rows: {stage}\n")
            sys.stderr.flush()

    def rows(self, count: int) -> None:
        self._rows = count
        self._progress.update(self._bar, rows=count)

    def warn(self, text: str) -> None:
        self._progress.console.print(f"warning: {text}", markup=False, highlight=False, soft_wrap=True)
