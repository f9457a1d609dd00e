"""``coordinator reconcile`` stopped at each of its stages, by Ctrl-C and by others (R31)."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from spark import reading
from spark.master import DATABASE_VARIABLE
from spark.output import output
from spark.period import Period
from spark.snapshot import StoreUnreadable, exported_snapshot
from spark.source import HalfOpReader, ReadOptions
from tests.fix_command import PATIENCE_SECONDS
from tests.fix_night import by_night
from tests.fix_store_rows import NOW, StoreRows
from tests.running_command import RunningCommand

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.rule("R31")

_PROGRESS = re.compile(r"\d+\.\d s, [\d,]+ rows: [a-z S]+")


@pytest.fixture
def lossy_store(database_url: str) -> str:
    rows = StoreRows(seed=23).healthy(30)
    rows.committed([rows.address("shop")], NOW - timedelta(hours=1))
    rows.write(database_url)
    return database_url


class Running(RunningCommand):
    """A run whose files are all below ``folder``."""

    def __init__(self, url: str, folder: Path, *arguments: str) -> None:
        self.out = folder / "out"
        self.out.mkdir()
        super().__init__(url, folder, "reconcile", "--out", str(self.out), *arguments)


@contextmanager
def _locked(url: str, table: str) -> Iterator[Callable[[], object]]:
    """No other session reads the table meanwhile; yields whether one waits for it."""
    with psycopg.connect(url) as connection, psycopg.connect(url, autocommit=True) as asking:
        connection.execute(f"lock table coordinator.{table} in access exclusive mode".encode())
        waiting = "select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        yield lambda: asking.execute(waiting).fetchone() is not None


def _assert_stopped(running: Running, number: signal.Signals, word: str) -> None:
    status, said, lines = running.end()
    assert (status, said, lines[-1]) == (128 + number, "", f"error: {word}")
    assert [line for line in lines[:-1] if not _PROGRESS.fullmatch(line)] == []
    assert running.others() == []
    assert list(running.temporary.iterdir()) == []
    assert not (running.out / "summary.json").exists()


def _pythons_of_spark(running: Running) -> list[bytes]:
    """The command lines of those that its Java has started."""
    lines = []
    for pid in running.others():
        with suppress(OSError):
            lines.append(Path(f"/proc/{pid}/cmdline").read_bytes())
    return [line for line in lines if b"pyspark" in line and b"python" in line.split(b"\0")[0]]


def _stop(running: Running, numbers: Sequence[signal.Signals]) -> None:
    """Of the whole group, as a terminal does."""
    for number in numbers:
        with suppress(ProcessLookupError):
            os.killpg(running.process.pid, number)


@pytest.mark.parametrize(
    ("stage", "numbers", "word"),
    [
        by_night("starting Spark", [signal.SIGINT], "interrupted"),
        ("adding up messages", [signal.SIGINT, signal.SIGINT], "interrupted"),
        by_night("writing the report", [signal.SIGTERM], "interrupted by SIGTERM"),
    ],
)
def test_what_is_stopped_leaves_nothing_behind(
    lossy_store: str, tmp_path: Path, stage: str, numbers: list[signal.Signals], word: str
) -> None:
    """One word, and no process and no file of Java, of Spark or with the URL is left; whatever Java does. A small
    store has had no Python but ours up to then: each that starts takes a second."""
    with Running(lossy_store, tmp_path) as running:
        # it cannot end by itself: the report waits for a reader
        os.mkfifo(running.out / ".report.html.partial")
        running.wait_for(lambda: running.told(stage) and running.others())
        assert _pythons_of_spark(running) == []
        if stage == "writing the report":
            for pid in running.others():
                os.kill(pid, signal.SIGSTOP)
        _stop(running, numbers)
        _assert_stopped(running, numbers[0], word)


@pytest.mark.night
def test_what_is_refused_while_java_starts_leaves_nothing_behind(lossy_store: str, tmp_path: Path) -> None:
    """Java starts before anything is looked at, and is not waited for."""
    with Running(lossy_store, tmp_path, "--book", str(tmp_path / "none.toml")) as running:
        status, said, lines = running.end()
        assert (status, said) == (2, "")
        assert [line.partition(": ")[2] for line in lines] == [
            f"book {tmp_path / 'none.toml'}: No such file or directory"
        ]
        assert running.others() == []
        assert list(running.temporary.iterdir()) == []


@pytest.mark.night
def test_a_run_that_waits_for_the_database_is_stopped(lossy_store: str, tmp_path: Path) -> None:
    with Running(lossy_store, tmp_path) as running, _locked(lossy_store, "address") as waited_for:
        running.wait_for(lambda: waited_for() and running.told("reading addresses"))
        _stop(running, [signal.SIGHUP])
        _assert_stopped(running, signal.SIGHUP, "interrupted by SIGHUP")


def test_a_table_that_the_driver_waits_for_holds_no_signal_up(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ADBC itself looks at none before the database has answered."""
    monkeypatch.setenv(DATABASE_VARIABLE, database_url)
    read = HalfOpReader(ReadOptions.parse({"table": "address", "columns": "id,name"})).whole
    interrupted, late = threading.Event(), threading.Event()

    def interrupt() -> None:
        while not waited_for():
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        if not interrupted.wait(PATIENCE_SECONDS):
            late.set()
            with psycopg.connect(database_url) as connection:
                connection.execute("select pg_cancel_backend(pid) from pg_stat_activity where wait_event_type = 'Lock'")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with _locked(database_url, "address") as waited_for:
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            reading._apart(read)
        interrupted.set()
        thread.join()
    signal.signal(signal.SIGINT, before)
    assert not late.is_set()


def test_a_session_that_the_database_ends_is_no_defect(spark: SparkSession, database_url: str, tmp_path: Path) -> None:
    """An administrator ended it, or the server went down, while the driver read a table."""
    with exported_snapshot(database_url) as snapshot:
        credentials = tmp_path / "url"
        credentials.touch(0o600)
        credentials.write_text(database_url, "utf-8")
        store = reading.Store(spark=spark, snapshot=snapshot, period=Period(), credentials=credentials, bytes=0)
        with _locked(database_url, "entry") as waited_for, ThreadPoolExecutor() as pool:
            read = pool.submit(store.table, "entry", "id,half_id")
            while not waited_for():
                time.sleep(0.01)
            with psycopg.connect(database_url) as ending:
                ending.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where wait_event_type = 'Lock' and datname = current_database()"
                )
            with pytest.raises(StoreUnreadable, match="terminating connection due to administrator command"):
                read.result()


@pytest.mark.night
def test_a_run_that_stores_its_findings_is_stopped(lossy_store: str, tmp_path: Path) -> None:
    """The report is whole then, and the store as it was."""
    with Running(lossy_store, tmp_path, "--store") as running, _locked(lossy_store, "finding") as waited_for:
        running.wait_for(waited_for)
        _stop(running, [signal.SIGINT])
        status, said, lines = running.end()
        assert (status, lines[-1]) == (130, "error: interrupted")
        assert said.startswith("2 findings: ")
        assert running.others() == []
        assert list(running.temporary.iterdir()) == []
    with psycopg.connect(lossy_store) as connection:
        assert connection.execute("select count(*) from coordinator.run").fetchone() == (0,)


def test_a_java_that_is_killed_is_no_finding(lossy_store: str, tmp_path: Path) -> None:
    """1 would mean that something was found; the machine's memory may have come to its end."""
    with Running(lossy_store, tmp_path) as running:
        with _locked(lossy_store, "address") as waited_for:
            running.wait_for(lambda: waited_for() and running.told("reading addresses"))
            for pid in running.others():
                os.kill(pid, signal.SIGKILL)
        status, said, lines = running.end()
        assert (status, said) == (2, "")
        assert lines[-1].startswith(
            "error: Spark: Java ended in the middle, with status -9: it was killed (SIGKILL), as"
        )
        assert lines[-1].endswith(
            "memory of the machine, or of the container, is used up: give that more, or Spark less (--memory)"
        )
        assert [line for line in lines[:-1] if not _PROGRESS.fullmatch(line)] == []
        assert list(running.temporary.iterdir()) == []


@pytest.mark.night
def test_a_folder_that_another_run_writes_into_is_refused(lossy_store: str, tmp_path: Path) -> None:
    """Before any work, and until the other one has ended, killed or not: else each removes what the other has made."""
    with Running(lossy_store, tmp_path) as running, _locked(lossy_store, "address") as waited_for:
        running.wait_for(lambda: waited_for() and running.told("reading addresses"))
        with RunningCommand(lossy_store, tmp_path, "reconcile", "--out", str(running.out)) as second:
            said = f"error: output folder {running.out}: another run writes here"
            assert second.end() == (2, "", [said])
        running.end(signal.SIGKILL)
        with output(running.out):
            assert list(running.out.iterdir()) == []
        # folders are left, and no file with the URL
        assert [each for each in running.temporary.iterdir() if each.is_file()] == []


@pytest.mark.parametrize(
    ("memory", "says"),
    [
        ("900000g", "Java ended while it started: .*(object heap|maximum heap|heap size).*"),
        by_night("100m", ".*System memory \\d+ must be at least .*"),
    ],
)
def test_memory_that_cannot_be_is_said_in_a_line(lossy_store: str, tmp_path: Path, memory: str, says: str) -> None:
    """What Java and Spark say themselves stands neither before it nor after."""
    with Running(lossy_store, tmp_path, "--memory", memory) as running:
        status, said, lines = running.end()
        assert (status, said) == (2, "")
        assert [line for line in lines[:-1] if not _PROGRESS.fullmatch(line)] == []
        assert re.fullmatch(f"error: Spark: {says}", lines[-1])
        assert list(running.temporary.iterdir()) == []
