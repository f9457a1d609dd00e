"""Statements are planned once, perhaps while the tables are empty: consumers have kept up, and autovacuum has seen it.
The plan is kept while they grow, and must read by key even then.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Connection, delete, insert, text, update

from store import asking, dead_letters
from store.asking import Query
from store.commit import parts as statements
from store.commit.terms import DeliveryTerms
from store.purge import purge
from store.removal import remove, remove_unused
from store.repairs import Decide, Release, Requeue, Resume, State
from store.tables import HELD, SCHEMA, entry, pending_retirement
from tests.fix_loop import PATIENCE
from tests.fix_night import by_night
from tests.fix_postgres import clone
from tests.fix_store import Rows
from tests.fix_store_driver import all_queries
from tests.plans import planned
from tests.tables import all_cases

_LARGE = re.compile(r"(entry|half|op|txn|pending|message_group|consumer_group)(_|$)")
#: Parts that read what another has made.
_AFTER = {
    "concluded": "settled",
    "delivered": "unpended",
    "taken": "owed",
    "let_go": "orphaned",
    "replaced": "enlisted",
}
#: They read a partial index, which has no more rows than they look for, of this table; all else by key.
_OF_ALL = {b"postpone_exhausted": "txn", b"lease_failed": "entry", b"yield_failed": "entry"}
#: Among the groups of all addresses, once for an address or a group that is removed.
_SELDOM = {b"remove_address", b"remove_group"}
#: Rows of the tables that grow which were read, as these statistics count them.
_READ = (
    "select sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) from {statistics}"
    " where relname ~ '^(entry|pending|pending_retirement|txn|address|consumer_group)$'"
)
_EMPTIED = ("entry", "pending", "pending_retirement", "txn", "message_group")


#: The files of the tables are cut off, or long still: they stay so where something, a backup or a report, reads the
#: tables meanwhile.
FILES = ["short", by_night("long")]


@pytest.fixture(params=FILES)
def emptied(request: pytest.FixtureRequest, database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A store that had messages and transactions, and has none; PostgreSQL knows it."""
    with _emptied(database_url, request.param) as connection:
        yield connection


@pytest.fixture(scope="module", params=FILES)
def emptied_once(request: pytest.FixtureRequest, server_url: str, _template: str) -> Iterator[psycopg.Connection[Any]]:
    """One for all that is planned, and not executed."""
    with clone(server_url, _template) as url, _emptied(url, request.param) as connection:
        yield connection


@contextmanager
def _emptied(url: str, files: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as connection:
        for table in _EMPTIED:
            stays = f"autovacuum_enabled = off, vacuum_truncate = {files == 'short'}"
            connection.execute(f"alter table {SCHEMA}.{table} set ({stays})".encode())
        _insert(
            connection,
            "generate_series(1, 20000)",
            "entry (group_id, id, half_id) select 1, i, i",
            "half (id, address_id, message) select i, 1, 'x'",
            "pending (txn_id, half_id, address_id) select gen_random_uuid(), i, 1",
            "pending_retirement (txn_id, group_id, entry_id, half_id, decision, attempts, wait_ms)"
            " select gen_random_uuid(), 1, i, i, 'accept', 0, 0",
            "txn (id, instance_id, owner, posted, retired, declared_at, timeout_at)"
            " select gen_random_uuid(), 1, 'client', 0, 0, now(), now()",
            "message_group (group_id, key, instance_id) select 1, -i, 1",
        )
        for table in _EMPTIED:
            connection.execute(f"delete from {SCHEMA}.{table}".encode())
        wanted = dict.fromkeys(_EMPTIED, files == "long")
        deadline = time.monotonic() + PATIENCE
        while True:  # a file that another process has in its hands is not cut off
            connection.execute(b"vacuum analyze")
            pages = connection.execute(
                "select relname, relpages > 0 from pg_class where relname = any(%s) and reltuples = 0", [list(_EMPTIED)]
            ).fetchall()
            if dict(pages) == wanted or time.monotonic() > deadline:
                break
        assert dict(pages) == wanted
        yield connection


def _insert(connection: psycopg.Connection[Any], numbers: str, *made: str) -> None:
    """``made``: tables, columns, and what is in them, once for each ``i`` of ``numbers``."""
    for each in made:
        connection.execute(f"insert into {SCHEMA}.{each} from {numbers} i".encode())


def _not_by_key(connection: psycopg.Connection[Any], setup: str, sql: str) -> list[tuple[str, str]]:
    """Table and node of each scan of a large table in its generic plan that looks for no key."""
    connection.execute(b"reset all")
    return [
        (node["Relation Name"], node["Node Type"])
        for node in planned(connection, setup, sql)
        if _LARGE.match(str(node.get("Relation Name", "")))
        and node["Node Type"] != "ModifyTable"
        and not node.get("Index Cond")
    ]


@all_cases("part", statements.PARTS)
def test_each_part_of_a_batch_finds_its_rows_by_key(emptied_once: psycopg.Connection[Any], part: str) -> None:
    parts = [_AFTER[part], part] if part in _AFTER else [part]
    assert _not_by_key(emptied_once, statements.SETUP, statements.statement(parts, 7)) == []


@all_cases("query", [query for query in all_queries() if query.name not in _SELDOM])
def test_each_question_finds_its_rows_by_key(emptied_once: psycopg.Connection[Any], query: Query[Any]) -> None:
    """Also where it names the partitions of its days."""
    of_all = [(_OF_ALL[query.name], "Index Scan")] if query.name in _OF_ALL else []
    for sql in (query.sql, asking.of_days(query.sql, [datetime.now(UTC).date()])):
        assert _not_by_key(emptied_once, asking.SETUP, sql) == of_all


@pytest.mark.rule("X2")
@pytest.mark.parametrize("decision", ["commit", "rollback"])
@pytest.mark.parametrize("setup", ["", statements.SETUP], ids=["application", "worker"])
def test_a_decision_reads_what_it_decides(
    emptied: psycopg.Connection[Any], rows: Rows, database_url: str, setup: str, decision: str
) -> None:
    """Also in a session of an application, with the planner's own settings. It decides when PostgreSQL takes its plans
    for good, and later.
    """
    instance_id = rows.instance()
    group = rows.queue("orders")
    place = rows.address_of(group)
    few = [_checkable(rows, instance_id, place, group, retired=1) for _ in range(8)]
    decide = (
        f"select won from {SCHEMA}.decide_all(%s, '{{{decision}}}', '{{null}}', null, '{{}}', '{{}}', '{{}}', null)"
    )
    with psycopg.connect(database_url, autocommit=True) as session:
        session.execute(setup.encode())
        for txn_id in few:
            assert session.execute(decide.encode(), [[txn_id]]).fetchall() == [(True,)]
        others = rows.instance()
        _insert(
            emptied,
            "generate_series(1, 5000)",
            f"entry (group_id, id, half_id) select {group}, i, i",
            f"pending (txn_id, half_id, address_id) select gen_random_uuid(), i, {place}",
            "pending_retirement (txn_id, group_id, entry_id, half_id, decision, attempts, wait_ms, holder)"
            f" select gen_random_uuid(), {group}, i, i, 'accept', 0, 0, {others}",
            "txn (id, instance_id, owner, posted, retired, declared_at, timeout_at)"
            f" select gen_random_uuid(), {others}, 'client', 0, 0, now(), now()",
            "address (name) select i",
            "consumer_group (address_id, name) select i, i",
        )
        large = _checkable(rows, instance_id, place, group, retired=50)
        session.autocommit = False
        assert session.execute(decide.encode(), [[large]]).fetchall() == [(True,)]
        assert 0 < _rows_read(session) < 2000


def _rows_read(session: psycopg.Connection[Any]) -> int:
    """Rows of the tables that grow which its SQL transaction has read up to now."""
    found = session.execute(_READ.format(statistics="pg_stat_xact_user_tables").encode()).fetchone()
    assert found is not None
    return int(found[0])


def _checkable(rows: Rows, instance_id: int, address_id: int, group: int, *, retired: int) -> UUID:
    """An undecided transaction with as many halves as deliveries that it has retired."""
    txn_id = rows.checkable(instance_id, *[address_id] * retired, priority=4)
    for _ in range(retired):
        held = rows.entry(group, lease=HELD)
        values = {"txn_id": txn_id, "group_id": group, "entry_id": held, "half_id": held}
        outcome = {"decision": "accept", "attempts": 0, "wait_ms": 0}
        rows.connection.execute(insert(pending_retirement).values(**values, **outcome))
    rows.connection.commit()
    return txn_id


#: Messages that come before PostgreSQL notices, and how many of them a repair is about.
_MANY = 3000
_SOME = 100


def _purge(rows: Rows, _: int, halves: list[int]) -> None:
    done = purge(rows.connection, "orders", chunk=_SOME)
    assert done is not None
    assert done.purged == len(halves)


def _remove(rows: Rows, _: int, halves: list[int]) -> None:
    done = remove(rows.connection, "orders", force=True, chunk=_SOME)
    assert done is not None
    assert done.dropped == len(halves)


def _remove_unused(rows: Rows, _: int, halves: list[int]) -> None:
    made = f"select 'a' || i, 'use', now() - interval '9 hours' from generate_series(1, {_MANY}) i"
    rows.connection.execute(text(f"insert into {SCHEMA}.address (name, origin, created_at) {made}"))
    groups = f"select id, '' from {SCHEMA}.address where origin = 'use'"
    rows.connection.execute(text(f"insert into {SCHEMA}.consumer_group (address_id, name) {groups}"))
    rows.connection.commit()
    assert remove_unused(rows.connection, timedelta(hours=1), most=1) == 1


def _replay(rows: Rows, group: int, halves: list[int]) -> None:
    to = dead_letters.Goal(address_id=rows.address_of(rows.queue("others")), group=None, fifo=False)
    done = dead_letters.replay(rows.connection, group, None, lambda _: (to, DeliveryTerms()))
    assert len(done.ids) == len(halves)


def _release(rows: Rows, _: int, halves: list[int]) -> None:
    rows.connection.execute(update(entry).where(entry.c.id >= halves[-_SOME]).values(lease=30_000))
    rows.connection.commit()
    repairs = [Release(half_id, "orders", "") for half_id in halves[-_SOME:]]
    assert len(Release.apply_together(rows.connection, repairs, "run 1")) == _SOME
    assert {each.state for each in Release.examine_all(rows.connection, repairs).values()} == {State.DONE}


def _release_what_is_gone(rows: Rows, _: int, halves: list[int]) -> None:
    rows.connection.execute(delete(entry).where(entry.c.id < halves[_SOME]))
    rows.connection.commit()
    found = Release.examine_all(rows.connection, [Release(half_id, "orders", "") for half_id in halves[:_SOME]])
    assert {each.state for each in found.values()} == {State.DONE}


def _requeue(rows: Rows, _: int, halves: list[int]) -> None:
    repairs = [Requeue(half_id, "orders", "", lambda *_: pytest.fail("it waits")) for half_id in halves[-_SOME:]]
    assert {each.state for each in Requeue.examine_all(rows.connection, repairs).values()} == {State.DONE}


def _decide(rows: Rows, group: int, _: list[int]) -> None:
    txns = _many_checkable(rows)
    repairs = [Decide(txn_id, "rollback") for txn_id in txns]
    assert {each.state for each in Decide.examine_all(rows.connection, repairs).values()} == {State.CAN}
    assert len(Decide.apply_together(rows.connection, repairs, "run 1")) == _SOME


def _resume(rows: Rows, _: int, __: list[int]) -> None:
    txns, now = _many_checkable(rows), datetime.now(UTC)
    repairs = [Resume(txn_id, now) for txn_id in txns]
    assert {each.state for each in Resume.examine_all(rows.connection, repairs).values()} == {State.CAN}
    assert len(Resume.apply_together(rows.connection, repairs, "run 1")) == _SOME


def _many_checkable(rows: Rows) -> list[UUID]:
    """Some of many."""
    ids = [UUID(bytes=rows.txn_ids.next()) for _ in range(_MANY)]
    columns = "id, instance_id, owner, posted, retired, declared_at, timeout_at, producer_group, check_immunity_ms"
    checks = "check_interval_ms, most_checks, checks, next_check_at"
    values = "id, :me, 'client', 0, 0, now(), now(), 'shop', 6000, 30000, 15, 15, now()"
    rows.connection.execute(
        text(f"insert into {SCHEMA}.txn ({columns}, {checks}) select {values} from unnest(cast(:ids as uuid[])) id"),
        {"me": rows.instance(), "ids": ids},
    )
    rows.connection.commit()
    return ids[-_SOME:]


@pytest.mark.parametrize(
    "work",
    [_purge, _remove, _remove_unused, _replay, _release, _release_what_is_gone, _requeue, _decide, _resume],
    ids=lambda work: work.__name__[1:],
)
def test_a_command_reads_what_it_is_about(
    emptied: psycopg.Connection[Any], rows: Rows, work: Callable[[Rows, int, list[int]], None]
) -> None:
    """Its session has the planner's own settings; ``work`` is about all that waits, or some of it."""
    group = rows.queue("orders")
    halves = [rows.half_ids.next() for _ in range(_MANY)]
    _insert(
        emptied,
        f"unnest(array{halves})",
        f"half (id, address_id, message) select i, {rows.address_of(group)}, 'x'",
        f"entry (group_id, id, half_id) select {group}, i, i",
        "pending (txn_id, half_id, address_id) select gen_random_uuid(), i, 32000",
    )
    before = _all_read(rows.connection)
    work(rows, group, halves)
    assert _all_read(rows.connection) - before < 8 * _MANY


def _all_read(connection: Connection) -> int:
    """Rows of the tables that grow which the session, and those before it, have read."""
    connection.execute(text("select pg_stat_force_next_flush()"))
    connection.commit()
    found = connection.scalar(text(_READ.format(statistics="pg_stat_user_tables")))
    connection.commit()
    return int(found or 0)
