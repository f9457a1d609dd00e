"""Questions that look for messages name the partitions of the days they need."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any, TypeVar

import pytest
from sqlalchemy import Connection, func, insert, select, text

from store import arrays, asking
from store.asking import Queries, Query
from store.commit.terms import Rank
from store.errors import StoreError
from store.ids import id_at
from store.libpq import int2, int4, int8
from store.partitions import make_days
from store.questions import entries
from store.recovery import held
from store.retention import Policy, drop_old
from store.tables import entry, half
from tests.fix_loop import EpollLoop
from tests.fix_store import Rows
from tests.fix_store_driver import INSTANCE, ME, all_queries

T = TypeVar("T")
NOW = datetime.now(UTC)


@pytest.fixture(autouse=True)
def _today(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run may go over midnight after it has read this file."""
    monkeypatch.setattr(f"{__name__}.NOW", datetime.now(UTC))


class Asking:
    """Asks, and waits for the answer; remembers the statements that were sent."""

    def __init__(self, url: str) -> None:
        self.loop = EpollLoop()
        self.queries = Queries(self.loop, url, ME, lambda *_: None, lambda: None)
        self.sent: list[str] = []
        connection = self.queries.connection
        execute = connection.execute

        def recorded(name: bytes, *rest: object) -> None:
            if not self.sent or self.sent[-1] != name.decode():
                self.sent.append(name.decode())
            execute(name, *rest)  # type: ignore[arg-type]

        connection.execute = recorded  # type: ignore[method-assign,assignment]
        self.queries.start()

    def ask(self, query: Query[T], *parameters: bytes) -> T | StoreError:
        answers: list[T | StoreError] = []
        self.queries.ask(query, parameters, answers.append)
        self.loop.run_until(lambda: bool(answers))
        return answers[0]

    def read(self, query: Query[Any], group: int, above: int = 0, most: int = 100) -> list[int] | StoreError:
        """The halves of the entries it brings."""
        last = int2(4) if query in entries.BROWSE.values() else int4(ME)
        behind = arrays.int8([above]) if query in entries.LEASE.values() else int8(above)
        found = self.ask(query, int4(group), behind, int4(most), int8(1 << 20), last)
        if isinstance(found, entries.Loaded):
            found = found.rows
        return found if isinstance(found, StoreError) else [row[1] for row in found]


@pytest.fixture
def asked(database_url: str) -> Iterator[Asking]:
    asked = Asking(database_url)
    yield asked
    asked.queries.close()
    asked.loop.close()


def _fill(rows: Rows, group: int, *days_ago: int) -> list[int]:
    ids = []
    for place, ago in enumerate(days_ago):
        at = NOW - timedelta(days=ago)
        make_days(rows.connection, [at.date()])
        half_id = id_at(at) + place
        rows.connection.execute(insert(half).values(id=half_id, address_id=1, message=b"m"))
        rows.connection.execute(insert(entry).values(group_id=group, id=half_id, half_id=half_id))
        ids.append(half_id)
    rows.connection.commit()
    return sorted(ids)


def _day(days_ago: int) -> date:
    return (NOW - timedelta(days=days_ago)).date()


def _name(query: Query[Any], *days_ago: int) -> str:
    return "_".join([query.name.decode(), *(f"{_day(ago):%Y%m%d}" for ago in sorted(days_ago, reverse=True))])


LOADS = [entries.LEASE[Rank.NORMAL], entries.BROWSE[Rank.NORMAL]]


@pytest.mark.parametrize("query", LOADS, ids=lambda query: query.name.decode())
def test_today_is_asked_alone(asked: Asking, rows: Rows, query: Query[Any]) -> None:
    group = rows.queue("orders")
    ids = _fill(rows, group, 0, 0)
    assert asked.read(query, group) == ids
    assert asked.sent == [_name(query, 0)]


@pytest.mark.parametrize("query", LOADS, ids=lambda query: query.name.decode())
def test_other_days_are_found_and_remembered(asked: Asking, rows: Rows, query: Query[Any]) -> None:
    group, other = rows.queue("orders"), rows.queue("bills")
    ids = _fill(rows, group, 5, 0, 0)
    assert asked.read(query, group) == ids
    assert asked.sent == [_name(query, 0), _name(query, 5, 0)]
    asked.sent.clear()
    later = _fill(rows, group, 1)
    rows.connection.execute(text("update coordinator.entry set lease = 0"))
    rows.connection.commit()
    assert asked.read(query, group) == sorted([*ids, *later])
    assert asked.sent == [_name(query, 5, 0), _name(query, 5, 1, 0)]
    asked.sent.clear()
    assert asked.read(query, other) == []
    assert asked.sent == [_name(query, 0)]


def test_what_is_known_is_forgotten_by_and_by(asked: Asking, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "REMEMBERED_SECONDS", 0.5)
    query = entries.BROWSE[Rank.NORMAL]
    group = rows.queue("orders")
    ids = _fill(rows, group, 5)
    assert asked.read(query, group) == ids
    time.sleep(0.5)
    asked.sent.clear()
    assert asked.read(query, group) == ids
    assert asked.sent == [_name(query, 0), _name(query, 5, 0)]


def test_a_backlog_of_many_days_is_read_day_by_day_or_as_a_whole(asked: Asking, rows: Rows) -> None:
    query = entries.BROWSE[Rank.NORMAL]
    group = rows.queue("orders")
    ids = _fill(rows, group, *range(9))
    found: list[int] = []
    while True:
        page = asked.read(query, group, above=max(found, default=0), most=2)
        assert isinstance(page, list)
        if not page:
            break
        found += page
    assert found == ids
    assert query.name.decode() not in asked.sent, "never all partitions"
    assert asked.read(query, group) == ids
    assert asked.sent[-1] == query.name.decode()


def test_a_day_that_is_not_there_is_no_error(asked: Asking, rows: Rows) -> None:
    group = rows.queue("orders")
    ids = _fill(rows, group, 1)
    rows.connection.execute(text(f"drop table coordinator.half_{_day(0):%Y%m%d}"))
    rows.connection.commit()
    assert asked.read(entries.LEASE[Rank.NORMAL], group) == ids


def test_a_piece_is_looked_for_in_its_own_day(asked: Asking, rows: Rows) -> None:
    group = rows.queue("orders")
    (half_id,) = _fill(rows, group, 6)
    found = asked.ask(entries.PIECE, int8(half_id), int4(0), int4(10))
    assert found == b"m"
    assert asked.sent == [_name(entries.PIECE, 6)]


def test_statements_are_bounded(asked: Asking, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "MOST_STATEMENTS", 3)
    group = rows.queue("orders")
    for ago in range(8):
        (half_id,) = _fill(rows, group, ago)
        found = asked.ask(entries.PIECE, int8(half_id), int4(0), int4(10))
        assert found == b"m"
    (prepared,) = asked.ask(Query(b"count", "select count(*) from pg_prepared_statements", list))  # type: ignore[misc]
    assert prepared[0] <= 5


def test_each_names_its_days_and_no_other_partition(database: Connection, rows: Rows) -> None:
    rows.queue("orders")
    by_day = [query for query in all_queries() if query.by_day]
    assert len(by_day) == 10
    for query in by_day:
        plan = "\n".join(
            database.scalars(
                text("explain (generic_plan) " + asking.of_days(query.sql, [_day(1), _day(0)]).replace(":", r"\:"))
            )
        )
        database.rollback()
        for ago in (1, 0):
            assert f"half_{_day(ago):%Y%m%d}_pkey" in plan
        assert plan.count("half_") % 2 == 0
        assert f"{_day(2):%Y%m%d}" not in plan


def test_a_load_by_the_holder_changes_no_row(asked: Asking, rows: Rows) -> None:
    """Of a row that is changed by each load an old snapshot keeps all versions, and each load walks through them."""
    group = rows.queue("orders")
    ids = _fill(rows, group, 0, 0, 0)
    rows.connection.execute(text(INSTANCE))
    rows.connection.commit()
    assert asked.ask(entries.HOLD, int4(group), int4(ME), b"amqp://here") == entries.Holder(ME)
    read = entries.READ

    def versions() -> object:
        found = rows.connection.execute(
            text("select xmin::text, ctid::text from coordinator.consumer_group where id = :id"), {"id": group}
        ).one()
        rows.connection.rollback()
        return tuple(found)

    def marks() -> list[int]:
        through = text("select read_through from coordinator.group_read where read_through > 0 order by 1")
        found = rows.connection.scalars(through).all()
        rows.connection.rollback()
        return list(found)

    before = versions()
    assert asked.read(read, group, most=1) == ids[:1]
    assert asked.read(read, group, above=ids[0]) == ids[1:]
    assert marks() == [ids[0], ids[2]]
    assert asked.read(read, group) == ids
    assert asked.read(read, group, above=ids[2]) == []
    assert marks() == [ids[0], ids[2]]
    assert versions() == before
    # The highest counts, and is what is left in the end.
    assert [lease for lease, _, _ in rows.entries(group)] == [0, 0, 0]
    assert rows.connection.scalar(select(func.count()).select_from(entry).where(held)) == 3
    drop_old(rows.connection, Policy(messages=timedelta(days=3), decisions=timedelta(days=30)))
    assert marks() == [ids[2]]
    asked.ask(entries.UNREAD, int4(group), int4(ME))
    assert marks() == []
    assert rows.connection.scalar(select(func.count()).select_from(entry).where(held)) == 0
