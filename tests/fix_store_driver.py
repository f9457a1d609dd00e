"""The group commit and the questions in a loop of their own; what units heard, and what the store really has."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import psycopg
import pytest

from store import heartbeat, libpq, questions
from store.asking import Queries, Query
from store.commit.batch import Batch
from store.commit.group_commit import GroupCommit, Limits
from store.commit.terms import PLAIN, Rank
from store.errors import StoreError
from store.ids import HalfIds, UuidV7, id_at
from store.libpq import SESSION_NAME
from store.questions import entries
from store.tables import SCHEMA
from tests.fix_loop import PATIENCE, EpollLoop
from tests.fix_proxy import Proxy

ME = 7
GROUP = 1


class Post:
    """Unit: a transaction with ``count`` messages; remembers what it heard."""

    def __init__(
        self, store: Store, count: int = 1, *, txn_id: bytes | None = None, size: int = 10, owner: object = None
    ) -> None:
        self.store = store
        self.owner = owner
        self.txn_id = txn_id or store.uuids.next()
        self.ids = [store.ids.next() for _ in range(count)]
        self.message = bytes(size)
        self.heard: list[StoreError | None] = []
        self.written = 0

    def write(self, batch: Batch) -> None:
        self.written += 1
        for half_id in self.ids:
            batch.half(half_id, self.txn_id, 1, self.message)
            batch.entry(1, GROUP, half_id, ME, PLAIN)
        batch.commit_ids.append(self.txn_id)
        batch.commit_posted.append(len(self.ids))

    def durable(self) -> None:
        self.heard.append(None)
        self.store.heard.append(self)

    def refused(self, error: StoreError) -> None:
        self.heard.append(error)
        self.store.heard.append(self)


class Retire(Post):
    """Unit: retires an entry, with an op of its own."""

    def __init__(self, store: Store, entry_id: int) -> None:
        super().__init__(store)
        self.ids = [entry_id]

    def write(self, batch: Batch) -> None:
        self.written += 1
        batch.gone(GROUP, self.ids[0])
        batch.op(self.txn_id, b"commit", posted=0, covers=[(self.ids[0], GROUP)])


class Yield(Post):
    """Unit: a held entry goes back to the store, which adds no row anywhere."""

    def __init__(self, store: Store, entry_id: int) -> None:
        super().__init__(store)
        self.ids = [entry_id]

    def write(self, batch: Batch) -> None:
        self.written += 1
        batch.yield_entry(GROUP, self.ids[0])


class Nothing(Post):
    """Unit without rows."""

    def write(self, batch: Batch) -> None:
        self.written += 1


class Store:
    """A group commit in a loop of its own, and what its units heard."""

    def __init__(self, url: str, limits: Limits | None = None) -> None:
        self.loop = EpollLoop()
        self.ids = HalfIds(ME)
        self.uuids = UuidV7()
        self.heard: list[Post] = []
        self.sent: list[int] = []
        self.fenced = False
        self.commit = GroupCommit(self.loop, url, ME, limits or Limits(), self._fence)
        self.loop.end_turn = self._end_turn

    def _end_turn(self) -> None:
        self.ids.advance()
        self.commit.kick()

    def _fence(self) -> None:
        self.fenced = True

    def add(self, *units: Post) -> None:
        for unit in units:
            self.commit.add(unit)

    @property
    def pausing(self) -> int:
        """Batches that wait for their next attempt."""
        return self.commit._rescue.pausing

    def settle(self) -> None:
        """Until every unit has heard."""
        self.loop.run_until(lambda: self.commit.idle)


@contextmanager
def running(url: str, limits: Limits | None = None) -> Iterator[Store]:
    store = Store(url, limits)
    store.commit.start()
    try:
        yield store
    finally:
        store.commit.close()
        store.loop.close()


class Truth:
    """What the store really has, seen past the wire under test."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)

    def rows(self, sql: str, *values: object) -> list[Any]:
        return self._connection.execute(sql.encode(), values).fetchall()

    def run(self, sql: str) -> None:
        self._connection.execute(sql.encode())

    def fill(self, count: int) -> None:
        """Messages in the queue, each with an entry."""
        first = id_at(datetime.now(UTC))
        numbers = f"from generate_series({first}, {first} + {count} - 1) i"
        self.run(f"insert into {SCHEMA}.half (id, address_id, message) select i, 1, 'm' {numbers}")
        self.run(f"insert into {SCHEMA}.entry (group_id, id, half_id) select {GROUP}, i, i {numbers}")

    def close(self) -> None:
        self._connection.close()

    def ops(self) -> set[bytes]:
        return {row[0].bytes for row in self.rows(f"select id from {SCHEMA}.op")}

    def halves(self) -> list[int]:
        return [row[0] for row in self.rows(f"select id from {SCHEMA}.half order by id")]

    def entries(self) -> list[int]:
        return [row[0] for row in self.rows(f"select id from {SCHEMA}.entry order by id")]

    def waiting_backends(self) -> int:
        found = self.rows(
            f"select count(*) from pg_stat_activity where {SESSION_NAME} = %s and wait_event_type = 'Lock'",
            f"coordinator batch {ME}",
        )
        return int(found[0][0])

    def kill_backends(self, name: str = f"coordinator batch {ME}") -> int:
        found = self.rows(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = %s", name
        )
        return int(found[0][0])


INSTANCE = (
    f"insert into {SCHEMA}.instance (id, slot, host, pid, process_start, version) overriding system value "
    f"values ({ME}, {ME}, 'here', 1, 1, '1')"
)
QUEUE = (
    f"insert into {SCHEMA}.address (id, name) overriding system value values (1, 'queue'); "
    f"insert into {SCHEMA}.consumer_group (id, address_id, name) overriding system value values ({GROUP}, 1, '')"
)


@contextmanager
def truth_of(url: str) -> Iterator[Truth]:
    """Of a migrated store, which gets an instance that lives and a queue."""
    truth = Truth(url)
    try:
        truth.run(INSTANCE)
        truth.run(QUEUE)
        yield truth
    finally:
        truth.close()


#: server processes whose commit waits for a standby
WAIT_FOR_STANDBY = "select pid from pg_stat_activity where wait_event = 'SyncRep'"


def let_commits_wait(truth: Truth, url: str) -> None:
    """From now on every commit waits for a standby, which is nowhere; those of ``truth`` do not.

    It is the checkpointer that tells the others to wait, some time after all have read the settings.
    """
    truth.run("set synchronous_commit = local")
    truth.run("alter system set synchronous_standby_names = 'nowhere'")
    truth.run("select pg_reload_conf()")

    def commit() -> None:
        with psycopg.connect(url) as other:
            other.execute(b"select pg_logical_emit_message(true, 'probe', '')")

    deadline = time.monotonic() + PATIENCE
    waited = False
    while not waited:
        assert time.monotonic() < deadline, "commits do not wait for the standby"
        committing = threading.Thread(target=commit)
        committing.start()
        while committing.is_alive():
            waited = bool(truth.rows(f"select pg_cancel_backend(pid) from ({WAIT_FOR_STANDBY}) w")) or waited
            time.sleep(0.01)


@pytest.fixture
def truth(database_url: str) -> Iterator[Truth]:
    with truth_of(database_url) as truth:
        yield truth


@pytest.fixture
def store(database_url: str, truth: Truth) -> Iterator[Store]:
    with running(database_url) as store:
        yield store


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many losses in a short time, and no growing pause after each."""
    monkeypatch.setattr(libpq, "LONGEST_RETRY_SECONDS", 0.005)


@pytest.fixture(params=[False, True], ids=["direct", "pooled"])
def pooled(request: pytest.FixtureRequest, proxy: Proxy) -> None:
    """Once directly, once through what takes the place of a pooler."""
    if request.param:
        proxy.pool()


@pytest.fixture
def cuttable(proxy: Proxy, truth: Truth) -> Iterator[Store]:
    """A store whose wire can be cut."""
    with running(proxy.url) as store:
        yield store


class Asking:
    """Questions in a loop of their own."""

    def __init__(self, url: str) -> None:
        self.loop = EpollLoop()
        self.notices: list[tuple[str, str]] = []
        self.connections = 0
        self.queries = Queries(self.loop, url, ME, lambda *notice: self.notices.append(notice), self._connected)
        self.answers: list[Any] = []

    def _connected(self) -> None:
        self.connections += 1

    def ask(self, verb: Callable[..., None], *arguments: object) -> None:
        verb(self.queries, *arguments, self.answers.append)

    def answered(self, count: int) -> Callable[[], bool]:
        return lambda: len(self.answers) == count

    def lease(self, most: int = 100) -> None:
        self.ask(entries.lease, Rank.NORMAL, GROUP, [0], most, 1 << 30, ME)


def beat_of(instance_id: int) -> str:
    """The heartbeat of an instance whose batch does not wait, as a statement without parameters."""
    values = {"$1": str(instance_id), "$2": "0", "$3": "''", "$4": "0"}
    return re.sub(r"\$\d", lambda found: values[found[0]], heartbeat._BEAT)


def all_queries() -> list[Query[Any]]:
    """Every question of the running service."""
    modules = [import_module(f"{questions.__name__}.{each.name}") for each in iter_modules(questions.__path__)]
    values = [value for module in modules for value in vars(module).values()]
    by_rank = [each for value in values if isinstance(value, dict) for each in value.values()]
    return [each for each in [*values, *by_rank] if isinstance(each, Query)]


@pytest.fixture
def asking(proxy: Proxy) -> Iterator[Asking]:
    asking = Asking(proxy.url)
    asking.queries.start()
    yield asking
    asking.queries.close()
    asking.loop.close()
