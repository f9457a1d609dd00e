"""``python -m tests.benchmarks.watching``: ``coordinator watch`` over a store of some size, until it has caught up.

The store is that of ``tests.benchmarks.reconciliation``. For each batch it prints Spark's own times: to find its end
(``latestOffset``), to read, add up, judge and count it (``addBatch``), and the rest; and at the end the rows a second,
and that what is counted is what the store has.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import psycopg
from pyspark.sql import SparkSession

from spark.finding import Finding
from spark.java import running_java
from spark.session import running_session
from spark.watching import Batch, watch
from store import watched
from store.database import connected
from store.migrations import upgrade
from store.tables import SCHEMA
from tests.benchmarks.reconciliation import fill
from tests.watching import Stopped, Told, counted, in_store


class _Counts(Told):
    """Counts in the store, as the command does, and tells what each step took."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        super().__init__(lambda _: False)
        self._spark = spark
        self._url = url
        self._all = in_store(url)
        self._shown = -1
        self._began = time.perf_counter()
        self.counting = 0.0
        self.looking = 0.0

    def count(self, watch_id: UUID, batch: Batch) -> None:
        began = time.perf_counter()
        of = watched.Batch(number=batch.number, since=batch.since, until=batch.until, counts=batch.counts, findings=())
        with connected(self._url) as connection:
            watched.count(connection, watch_id, of, "bench")
        self.counting += time.perf_counter() - began

    def add_findings(self, watch_id: UUID, findings: Sequence[Finding]) -> None:
        began = time.perf_counter()
        with connected(self._url) as connection:
            now, _ = watched.record(connection, watch_id, [], "bench")
        self.looking += time.perf_counter() - began
        for query in self._spark.streams.active:
            for each in query.recentProgress:
                if each.batchId > self._shown and each.durationMs.get("addBatch"):
                    self._shown = each.batchId
                    at = time.perf_counter() - self._began
                    print(f"{at:.1f} s: batch {each.batchId}: {each.numInputRows:,} rows, {dict(each.durationMs)}")
        print(f"{time.perf_counter() - self._began:.1f} s: {sum(now.counts.values()):,} counted, {now.lag}", flush=True)
        if now.counts == self._all:
            raise Stopped


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database-url", required=True, help="an empty database; its store is made anew")
    parser.add_argument("--halves", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=100_000, help="the most of a batch, as of the command")
    parser.add_argument("--memory", default="1g", help="of Spark, as of the command")
    asked = parser.parse_args(arguments)
    with psycopg.connect(asked.database_url, autocommit=True) as connection:
        connection.execute(f"drop schema if exists {SCHEMA} cascade".encode())
    upgrade(asked.database_url)
    began = time.perf_counter()
    fill(asked.database_url, asked.halves)
    print(f"filled in {time.perf_counter() - began:.1f} s: {in_store(asked.database_url)}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="coordinator-watch-") as folder,
        running_java("local[*]", memory=asked.memory, brief=True) as java,
        running_session(java) as spark,
    ):
        ledger = _Counts(spark, asked.database_url)
        began = time.perf_counter()
        try:
            watch(
                spark,
                url=asked.database_url,
                checkpoint=Path(folder) / "checkpoint",
                every=1,
                rows=asked.rows,
                ledger=ledger,
            )
        except Stopped:
            took = time.perf_counter() - began
    rows = sum(counted(asked.database_url).values())
    print(
        f"{rows:,} rows in {took:.1f} s: {rows / took:,.0f} a second; {ledger.counting:.1f} s of it counted in the"
        f" store, {ledger.looking:.1f} s looked how far behind it is"
    )
    assert counted(asked.database_url) == in_store(asked.database_url)


if __name__ == "__main__":
    main()
