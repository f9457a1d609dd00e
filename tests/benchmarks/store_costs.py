"""``python -m tests.benchmarks.store_costs``: what the store's statements cost, in microseconds, as its past grows.

* ``--days N``: with N days of partitions kept (each with a few rows): a load by lease, a look, a commit.
* ``--dead N``: with N entries consumed while a snapshot was held: a load by lease and by range.

Median of many, one connection, the embedded server; flushes to the disk, which hide everything else, are left out.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import psycopg

from store import migrations, partitions, queries
from store.asking import Queries, Query
from store.commit import group_commit
from store.commit.batch import Batch
from store.commit.group_commit import GroupCommit, Limits
from store.commit.parts import SETUP
from store.commit.terms import PLAIN
from store.database import connected
from store.embedded import EmbeddedServer
from store.errors import StoreError
from store.ids import HalfIds, UuidV7
from store.priorities import Rank
from store.tables import SCHEMA
from tests.fix_loop import EpollLoop

ME = 7
GROUP = 1
REPEATS = 1000


class Post:
    """Unit: a transaction with one message."""

    def __init__(self, ids: HalfIds, uuids: UuidV7) -> None:
        self._half_id = ids.next()
        self._txn_id = uuids.next()

    def write(self, batch: Batch) -> None:
        batch.half(self._half_id, self._txn_id, GROUP + 1, bytes(300))
        batch.entry(GROUP + 1, GROUP + 1, self._half_id, 0, PLAIN)
        batch.commit_ids.append(self._txn_id)
        batch.commit_posted.append(1)

    def durable(self) -> None:
        pass

    def refused(self, error: StoreError) -> None:
        raise error


class Bench:
    def __init__(self, url: str) -> None:
        self.url = url
        self.loop = EpollLoop()
        self.ids = HalfIds(ME)
        self.uuids = UuidV7()
        self.queries = Queries(self.loop, url, ME, lambda *_: None, lambda: None)
        setup = SETUP.replace("synchronous_commit = on", "synchronous_commit = off")
        with patch.object(group_commit, "SETUP", setup):
            self.commit = GroupCommit(self.loop, url, ME, Limits(), fenced=lambda: None)
        self.loop.end_turn = self.commit.kick
        self.queries.start()
        self.commit.start()

    def close(self) -> None:
        self.queries.close()
        self.commit.close()
        self.loop.close()

    def ask(self, query: Query, above: int, most: int, last: bytes) -> list[tuple[object, ...]]:
        answers: list[object] = []
        parameters = [GROUP.to_bytes(4, "big"), above.to_bytes(8, "big"), most.to_bytes(4, "big")]
        self.queries.ask(query, [*parameters, (1 << 20).to_bytes(8, "big"), last], answers.append)
        self.loop.run_until(lambda: bool(answers))
        found = answers[0]
        assert isinstance(found, list), found
        return found

    def post(self) -> None:
        self.commit.add(Post(self.ids, self.uuids))
        self.loop.run_until(lambda: self.commit.idle)


def median(what: Callable[[], object], repeats: int = REPEATS) -> float:
    for _ in range(20):
        what()
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        what()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e6


def prepare(url: str, days: int) -> None:
    """A store with a queue of ten entries of today, and ``days`` days gone by."""
    migrations.upgrade(url)
    with connected(url) as connection:
        partitions.make_ahead(connection, days=1)
        for ago in range(days):
            partitions.make_days(connection, [(datetime.now(UTC) - timedelta(days=ago)).date()])
    ids = HalfIds(1)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            f"insert into {SCHEMA}.instance (id, slot, host, pid, process_start, version) overriding system value "
            f"values ({ME}, {ME}, 'here', 1, 1, '1')".encode()
        )
        for number in (GROUP, GROUP + 1):
            connection.execute(
                f"insert into {SCHEMA}.address (id, name) overriding system value "
                f"values ({number}, 'q{number}')".encode()
            )
            connection.execute(
                f"insert into {SCHEMA}.consumer_group (id, address_id) overriding system value "
                f"values ({number}, {number})".encode()
            )
        for _ in range(10):
            number = ids.next()
            connection.execute(
                f"insert into {SCHEMA}.half (id, address_id, message) "
                f"values ({number}, 1, repeat('m', 300)::bytea)".encode()
            )
            connection.execute(
                f"insert into {SCHEMA}.entry (group_id, id, half_id) values ({GROUP}, {number}, {number})".encode()
            )


def by_days(bench: Bench) -> None:
    me = ME.to_bytes(4, "big")
    print(f"  browse of 10: {median(lambda: bench.ask(queries.BROWSE[Rank.NORMAL], 0, 10, bytes((0, 4)))):8.0f} us")
    last = 1 << 62
    print(f"  lease, none free: {median(lambda: bench.ask(queries.LEASE[Rank.NORMAL], last, 10, me)):8.0f} us")
    print(f"  commit of one: {median(bench.post, 300):8.0f} us")


def by_dead(bench: Bench, dead: int) -> None:
    me = ME.to_bytes(4, "big")
    bench.queries.ask(queries.HOLD, [GROUP.to_bytes(4, "big"), me], lambda _: None)
    first = bench.ids.last - (1 << 40)

    def both() -> None:
        lease = median(lambda: bench.ask(queries.LEASE[Rank.NORMAL], 1 << 62, 10, me), 100)
        whole = median(lambda: bench.ask(queries.LEASE[Rank.NORMAL], 0, 10, me), 10)
        read = median(lambda: bench.ask(queries.READ, 1 << 62, 10, me), 100)
        print(f"  lease from the low-water mark {lease:8.0f} us, from 0 {whole:8.0f} us; read {read:8.0f} us")

    both()
    with psycopg.connect(bench.url) as holder:
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select 1")
        with psycopg.connect(bench.url, autocommit=True) as connection:
            connection.execute(
                f"insert into {SCHEMA}.half (id, address_id, message) "
                f"select {first} + i, 1, 'm' from generate_series(1, {dead}) i".encode()
            )
            connection.execute(
                f"insert into {SCHEMA}.entry (group_id, id, half_id) "
                f"select {GROUP}, {first} + i, {first} + i from generate_series(1, {dead}) i".encode()
            )
        at = 0
        taken = []
        while rows := bench.ask(queries.READ, at, 100, me):
            began = time.perf_counter()
            bench.ask(queries.READ, at, 100, me)
            taken.append(time.perf_counter() - began)
            at = max(int(str(row[0])) for row in rows)
        edge = max(1, len(taken) // 20)
        print(
            f"  read of 100: {statistics.median(taken[:edge]) * 1e6:8.0f} us at first, "
            f"{statistics.median(taken[-edge:]) * 1e6:8.0f} us after {len(taken)} loads"
        )
        with psycopg.connect(bench.url, autocommit=True) as connection:
            connection.execute(f"delete from {SCHEMA}.entry where id > {first} and id <= {first + dead}".encode())
        both()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, action="append", default=[])
    parser.add_argument("--dead", type=int, action="append", default=[])
    asked = parser.parse_args()
    for name, number in [*(("days", days) for days in asked.days), *(("dead", dead) for dead in asked.dead)]:
        with tempfile.TemporaryDirectory(prefix="coordinator-bench-") as folder:
            Path(folder).chmod(0o755)
            server = EmbeddedServer(Path(folder) / "data")
            try:
                url = server.start()
                with psycopg.connect(url, autocommit=True) as connection:
                    connection.execute("alter role current_user set synchronous_commit = off")
                prepare(url, number if name == "days" else 4)
                bench = Bench(url)
                print(f"{number} {name}", flush=True)
                by_days(bench) if name == "days" else by_dead(bench, number)
                bench.close()
            finally:
                server.stop()


if __name__ == "__main__":
    main()
