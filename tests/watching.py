"""``coordinator watch`` as a process, and its stream in the tests' own Spark; what the store has of both."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import UUID

import psycopg

from spark.finding import Finding
from spark.watching import Batch
from tests.running_command import RunningCommand

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


class Watching(RunningCommand):
    """A running ``coordinator watch``."""

    def __init__(self, url: str, folder: Path, *arguments: str) -> None:
        super().__init__(url, folder, "watch", "--checkpoint", str(folder / "checkpoint"), *arguments)

    def unexpected(self) -> list[str]:
        """Lines that are neither its own nor its last word."""
        return [line for line in self.lines if not _SAYS.fullmatch(line) and not line.startswith("error: ")]
