"""``coordinator watch`` as a process, and its stream in the tests' own Spark; what the store has of both."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import UUID

import psycopg

from spark.finding import Finding
from spark.watching import Batch
from tests.reconciling import post_and_retire
from tests.running_command import RunningCommand

#: What others write meanwhile, some 50 times a second.
POST_AND_RETIRE = post_and_retire(seconds=0.02)

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

    def add_findings(self, watch_id: UUID, findings: Sequence[Finding]) -> None:
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
