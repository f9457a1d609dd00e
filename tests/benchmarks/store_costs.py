"""``python -m tests.benchmarks.store_costs``: what the store's statements cost, in microseconds, as its past grows.

* ``--days N``: with N days of partitions kept (each with a few rows): a load by lease, a look, a commit.
* ``--dead N``: with N entries consumed while a snapshot was held: a load by lease and by range.
* ``--held SECONDS``: while a snapshot is held over the heartbeats of so long, and 100 messages of each kind a second:
  each statement of the hot path and those that run by the clock.
* ``--rows OCTETS``: PostgreSQL's processor time for messages of so many octets in a table that has a key and nothing
  else, one or several in a row: no store that is in it can take less.

The lower tenth of many, one connection, the embedded server; flushes to the disk, which hide everything else, are left
out.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psycopg

from store import dead_letters as dead_letters_module
from store import migrations, partitions
from store.asking import Queries
from store.commit import group_commit
from store.commit.batch import Batch
from store.commit.group_commit import GroupCommit, Limits
from store.commit.parts import SETUP
from store.commit.terms import PLAIN, STEPS, Rank
from store.database import connected
from store.embedded.server import EmbeddedServer
from store.errors import StoreError
from store.ids import HalfIds, UuidV7
from store.questions import entries, message_groups, schedule
from store.tables import SCHEMA
from tests.benchmarks.processes import cpu_seconds
from tests.fix_loop import EpollLoop
from tests.fix_store_driver import beat_of

ME = 7
GROUP = 1
REPEATS = 1000
#: of one load
OCTETS = 1 << 20
#: an id that no entry is above
BEHIND_ALL = 1 << 62
BEHIND_ALL_URGENT = [BEHIND_ALL] * STEPS[Rank.URGENT].number


class Post:
    """Unit: a transaction with one message."""

    owner: object = None

    def __init__(self, ids: HalfIds, uuids: UuidV7) -> None:
        self.half_id = ids.next()
        self._txn_id = uuids.next()

    def write(self, batch: Batch) -> None:
        batch.half(self.half_id, self._txn_id, GROUP + 1, bytes(300))
        batch.entry(GROUP + 1, GROUP + 1, self.half_id, 0, PLAIN)
        batch.commit_ids.append(self._txn_id)
        batch.commit_posted.append(1)

    def durable(self) -> None:
        pass

    def refused(self, error: StoreError) -> None:
        raise error


class Retire(Post):
    """Unit: the message of a post, accepted."""

    def __init__(self, post: Post, uuids: UuidV7) -> None:
        self.half_id = post.half_id
        self._op_id = uuids.next()

    def write(self, batch: Batch) -> None:
        batch.gone(GROUP + 1, self.half_id)
        batch.op(self._op_id, b"accept", covers=[(self.half_id, GROUP + 1)])


class GiveBack(Retire):
    """Unit: the message of a post, held and not decided."""

    def write(self, batch: Batch) -> None:
        batch.yield_entry(GROUP + 1, self.half_id, attempts=0)


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
        #: as the service remembers it
        self.promoted_through = -(1 << 63)
        self.loop.end_turn = self.commit.kick
        self.queries.start()
        self.commit.start()

    def close(self) -> None:
        self.queries.close()
        self.commit.close()
        self.loop.close()

    def ask(self, verb: Callable[..., None], *arguments: object) -> Any:
        answers: list[object] = []
        verb(self.queries, *arguments, answers.append)
        self.loop.run_until(lambda: bool(answers))
        assert not isinstance(answers[0], StoreError), answers[0]
        return answers[0]

    def lease(self, above: int, most: int) -> None:
        self.ask(entries.lease, Rank.NORMAL, GROUP, [above], most, OCTETS, ME)

    def read(self, above: int, most: int) -> entries.Loaded:
        loaded: entries.Loaded = self.ask(entries.read, GROUP, above, most, OCTETS, ME)
        return loaded

    def promote(self) -> None:
        answer = self.ask(partial(schedule.promote, notify=False), [self.ids.next()], self.promoted_through)
        self.promoted_through = answer.through

    def do(self, unit: Post) -> Post:
        self.commit.add(unit)
        self.loop.run_until(lambda: self.commit.idle)
        return unit

    def post(self) -> Post:
        return self.do(Post(self.ids, self.uuids))


def typical(what: Callable[[], object], repeats: int = REPEATS) -> float:
    """The tenth part takes less: what other processes of the machine take is left out."""
    for _ in range(20):
        what()
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        what()
        taken.append(time.perf_counter() - began)
    return statistics.quantiles(taken, n=10)[0] * 1e6


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
        for number in (GROUP, GROUP + 1, GROUP + 2):
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


def by_days(bench: Bench, _: int) -> None:
    browse = typical(lambda: bench.ask(entries.browse, Rank.NORMAL, GROUP, (4, 0), 10, OCTETS))
    print(f"  browse of 10: {browse:8.0f} us")
    print(f"  lease, none free: {typical(lambda: bench.lease(BEHIND_ALL, 10)):8.0f} us")
    print(f"  commit of one: {typical(bench.post, 300):8.0f} us")


def by_dead(bench: Bench, dead: int) -> None:
    entries.hold(bench.queries, GROUP, ME, None, lambda _: None)
    first = bench.ids.last - (1 << 40)

    def both() -> None:
        lease = typical(lambda: bench.lease(BEHIND_ALL, 10), 100)
        whole = typical(lambda: bench.lease(0, 10), 10)
        read = typical(lambda: bench.read(BEHIND_ALL, 10), 100)
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
        while rows := bench.read(at, 100).rows:
            began = time.perf_counter()
            bench.read(at, 100)
            taken.append(time.perf_counter() - began)
            at = max(row[0] for row in rows)
        edge = max(1, len(taken) // 20)
        print(
            f"  read of 100: {statistics.median(taken[:edge]) * 1e6:8.0f} us at first, "
            f"{statistics.median(taken[-edge:]) * 1e6:8.0f} us after {len(taken)} loads"
        )
        with psycopg.connect(bench.url, autocommit=True) as connection:
            connection.execute(f"delete from {SCHEMA}.entry where id > {first} and id <= {first + dead}".encode())
        both()


#: key of a message group; groups of one message have keys above 0
KEY = -5
FIFO = GROUP + 2
SECONDS_OF_A_BEAT = 2
A_SECOND = 100


def hot_path(bench: Bench) -> dict[str, float]:
    """What each statement takes: those of the batch, the loads, those that run by the clock."""
    ten = (10, OCTETS, ME)
    posts = iter([bench.post() for _ in range(240)])
    others = iter([bench.post() for _ in range(240)])
    what: dict[str, tuple[Callable[[], object], int]] = {
        "post": (bench.post, 200),
        "retire": (lambda: bench.do(Retire(next(posts), bench.uuids)), 200),
        "give back": (lambda: bench.do(GiveBack(next(others), bench.uuids)), 200),
        "lease": (lambda: bench.lease(BEHIND_ALL, 10), 200),
        "lease urgent": (lambda: bench.ask(entries.lease, Rank.URGENT, GROUP, BEHIND_ALL_URGENT, *ten), 50),
        "read": (lambda: bench.read(BEHIND_ALL, 10), 200),
        "fifo lease": (lambda: bench.ask(message_groups.lease, FIFO, [KEY], [BEHIND_ALL], *ten), 50),
        "fifo scan": (lambda: bench.ask(message_groups.scan, FIFO, -(1 << 63), 200, 100, ME), 50),
        "promote": (bench.promote, 50),
        "expire": (lambda: bench.ask(schedule.expire, bench.uuids.next(), ME), 50),
        "failed": (lambda: bench.ask(dead_letters_module.lease_failed, ME), 50),
    }
    return {name: typical(each, repeats) for name, (each, repeats) in what.items()}


def leave_dead(connection: psycopg.Connection, first: int, seconds: int) -> None:
    """What so many seconds leave behind: entries of each kind, posted and consumed, and beats."""
    count = seconds * A_SECOND
    columns = "group_id, id, half_id, priority, message_group, available_at, expires_at, failed"
    for number, values in enumerate(
        (
            f"{GROUP}, n, n, 4, null::int8, null::timestamptz, null::timestamptz, null",
            f"{GROUP}, n, n, 6, null, null, null, null",
            f"{FIFO}, n, n, 4, {KEY}, null, null, null",
            f"{FIFO}, n, n, 4, n, null, null, null",
            f"{GROUP}, n, n, 4, null, now(), null, null",
            f"{GROUP}, n, n, 4, null, null, now(), null",
            f"{GROUP}, n, n, 4, null, null, null, 'max-attempts'",
        )
    ):
        start = first + number * count
        connection.execute(
            f"insert into {SCHEMA}.entry ({columns}) select {values} "
            f"from generate_series({start + 1}::int8, {start + count}) n".encode()
        )
        connection.execute(f"delete from {SCHEMA}.entry where id > {start} and id <= {start + count}".encode())
    beat = beat_of(ME).encode()
    for _ in range(seconds // SECONDS_OF_A_BEAT):
        connection.execute(beat)


def by_held(bench: Bench, seconds: int) -> None:
    before = hot_path(bench)
    with psycopg.connect(bench.url) as holder, psycopg.connect(bench.url, autocommit=True) as connection:
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select 1")
        leave_dead(connection, bench.ids.last - (1 << 44), seconds)
        after = hot_path(bench)
    for name, took in before.items():
        print(f"  {name:12} {took:8.0f} us, held {after[name]:8.0f} us: {after[name] / took:6.2f}")


def by_rows(bench: Bench, octets: int) -> None:
    with psycopg.connect(bench.url, autocommit=True) as connection:
        pid = connection.info.backend_pid
        connection.execute("create schema floor")
        for messages in (1, 10):
            for batch in (10, 50, 200, 1000):
                connection.execute("create table floor.held (id int8 primary key, octets bytea storage plain)")
                body, rows = bytes(messages * octets), batch // messages
                turns = 100_000 // batch
                for turn in range(turns):
                    if turn == turns // 2:
                        before = cpu_seconds(pid)
                    values = (list(range(turn * rows, (turn + 1) * rows)), [body] * rows)
                    connection.execute(
                        "insert into floor.held select * from unnest(%b::int8[], %b::bytea[])", values, prepare=True
                    )
                each = (cpu_seconds(pid) - before) * 1e6 / (batch * (turns - turns // 2))
                print(f"  {messages:3} in a row, {batch:5} in a batch: {each:6.2f} us a message", flush=True)
                connection.execute("drop table floor.held")
        connection.execute("drop schema floor")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, action="append", default=[])
    parser.add_argument("--dead", type=int, action="append", default=[])
    parser.add_argument("--held", type=int, action="append", default=[])
    parser.add_argument("--rows", type=int, action="append", default=[])
    asked = parser.parse_args()
    kinds = {"days": by_days, "dead": by_dead, "held": by_held, "rows": by_rows}
    for name, number in [(kind, number) for kind in kinds for number in getattr(asked, kind)]:
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
                kinds[name](bench, number)
                bench.close()
            finally:
                server.stop()


if __name__ == "__main__":
    main()
