"""``coordinator watch`` as a process, and its stream in the tests' own Spark; what the store has of both."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import UUID

import psycopg

from spark.finding import Finding
from spark.watching import Batch
from tests.fix_command import PATIENCE_SECONDS, ROOT, environment

#: What ``tests.reconciling.Writer`` executes, some 50 times a second: three messages posted in a transaction, some
#: others retired by it.
POST_AND_RETIRE = """
with posted as (
  insert into coordinator.half (id, txn_id, address_id, message)
  select %(half)s + i, %(txn)s, 1, '\\x005375a0027b7d' from generate_series(1, 3) i),
 decided as (
  insert into coordinator.op (id, decision, txn_id, posted, half_ids, group_ids, instance_id)
  select %(txn)s, 'commit', %(txn)s, 3, array_agg(taken.half_id), array_agg(1), 1 from (
    select half_id from coordinator.entry where group_id = 1 order by id limit %(take)s for update skip locked) taken
  returning half_ids),
 gone as (
  delete from coordinator.entry e using decided d where e.group_id = 1 and e.id = any(d.half_ids))
insert into coordinator.entry (group_id, id, half_id, lease)
  select 1, %(half)s + i, %(half)s + i, 1 from generate_series(1, 3) i cross join pg_sleep(0.02)
"""

_SAYS = re.compile(r"\d+\.\d s: .+")


def in_store(url: str) -> dict[str, int]:
    """What there is to be counted."""
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "select 'half', count(*) from coordinator.half having count(*) > 0"
            " union all select 'op ' || decision, count(*) from coordinator.op group by decision"
            " union all select 'delivery ' || decision, sum(cardinality(half_ids))::int8 from coordinator.op"
            "  group by decision having sum(cardinality(half_ids)) > 0"
        ).fetchall()
    return dict(rows)


def counted(url: str) -> dict[str, int]:
    """What the watch has counted."""
    with psycopg.connect(url) as connection:
        row = connection.execute("select counts from coordinator.watch").fetchone()
    return {} if row is None else row[0]


class Stopped(Exception):
    """The stream was stopped by its test."""


class Told:
    """A ledger that keeps what it is told, and stops the stream when ``enough`` says so."""

    def __init__(self, enough: Callable[[Told], bool]) -> None:
        self._enough = enough
        self.batches: list[Batch] = []
        self.looks: list[Sequence[Finding]] = []
        self.ids: set[UUID] = set()

    def check(self) -> None:
        if self._enough(self):
            raise Stopped

    def wait(self) -> bool:
        return False

    def count(self, watch_id: UUID, batch: Batch) -> None:
        self.ids.add(watch_id)
        self.batches.append(batch)

    def look(self, watch_id: UUID, findings: Sequence[Finding]) -> None:
        self.ids.add(watch_id)
        self.looks.append(findings)
        self.check()

    def counts(self) -> dict[str, int]:
        """Of all batches, each once."""
        found: dict[str, int] = {}
        for batch in {each.number: each for each in self.batches}.values():
            for name, number in batch.counts.items():
                found[name] = found.get(name, 0) + number
        return found


class Watching:
    """A running ``coordinator watch``; its temporary files are below ``folder``, by which its processes are known."""

    def __init__(self, url: str, folder: Path, *arguments: str) -> None:
        self.temporary = folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "coordinator", "watch", "--checkpoint", str(folder / "checkpoint"), *arguments],
            env=environment(
                COORDINATOR_DATABASE_URL=url, TMPDIR=str(self.temporary), SPARK_LOCAL_DIRS=str(self.temporary)
            ),
            cwd=ROOT,
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
                try:
                    if os.fsencode(self.temporary) in (each / "environ").read_bytes():
                        found.append(int(each.name))
                except OSError:
                    pass
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

    def unexpected(self) -> list[str]:
        """Lines that are neither its own nor its last word."""
        return [line for line in self.lines if not _SAYS.fullmatch(line) and not line.startswith("error: ")]

    def __enter__(self) -> Watching:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.end(signal.SIGKILL)
