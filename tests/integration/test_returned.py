"""What lost instances held is found by indexes, however many entries wait (D5)."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, event, insert, select, text

from store import returned
from store.tables import SCHEMA, entry, group_read, instance
from tests.fix_store import Rows

_WAITING = 50_000
_LEASED = range(20_000, 20_010)
_READ = 7
_COUNTED = text(
    "select seq_tup_read + idx_tup_fetch as visited, n_tup_upd as changed, n_tup_hot_upd as hot "
    "from pg_stat_xact_user_tables where relid = 'coordinator.entry'::regclass"
)


@pytest.fixture
def deep(database: Connection, rows: Rows) -> tuple[int, int]:
    """A group of many entries, and an instance that is lost: it had leased some, and held the group as far as some.
    PostgreSQL has no statistics, as when they have just come.
    """
    lost = rows.instance()
    group = rows.queue("orders")
    waiting = [{"group_id": group, "id": i, "half_id": i} for i in range(1, _WAITING + 1)]
    database.execute(insert(entry), waiting)
    database.execute(text("select brin_summarize_new_values('coordinator.entry_lease_idx')"))
    database.execute(
        text("update coordinator.entry set lease = :lost where id = any(:ids)"), {"lost": lost, "ids": list(_LEASED)}
    )
    database.execute(insert(group_read).values(group_id=group, instance_id=lost, read_through=_READ))
    database.execute(text("update coordinator.consumer_group set holder = :lost"), {"lost": lost})
    database.execute(text("update coordinator.instance set ended_at = now() where id = :lost"), {"lost": lost})
    database.commit()
    return group, lost


@pytest.mark.rule("D5")
@pytest.mark.parametrize("analyzed", [False, True])
def test_what_waits_is_not_read_for_what_is_lost(
    database: Connection, rows: Rows, deep: tuple[int, int], analyzed: bool
) -> None:
    group, _ = deep
    if analyzed:
        database.execute(text("analyze coordinator.entry"))
        # as dear as a key's entries look to be where there are millions
        database.execute(text("set random_page_cost = 100"))
        database.commit()
    live = select(instance.c.id).where(instance.c.ended_at.is_(None))
    before = database.execute(_COUNTED).one()
    assert returned.return_all(database, live) == _READ + len(_LEASED)
    # those of a range of the BRIN index or two, and of each its new version and once more by its key
    assert database.execute(_COUNTED).one().visited - before.visited < _WAITING / 3
    database.commit()
    counted = [number for number, (_, attempts, _) in enumerate(rows.entries(group), start=1) if attempts]
    assert counted == [*range(1, _READ + 1), *_LEASED]
    assert {lease for lease, _, _ in rows.entries(group)} == {0}


@pytest.mark.rule("D5")
def test_what_was_leased_and_read_by_the_range_counts_once(
    database: Connection, rows: Rows, deep: tuple[int, int]
) -> None:
    group, _ = deep
    database.execute(text("update coordinator.group_read set read_through = :last"), {"last": _LEASED[-1]})
    database.commit()
    live = select(instance.c.id).where(instance.c.ended_at.is_(None))
    assert returned.return_all(database, live) == _LEASED[-1]
    assert database.scalar(text("show enable_seqscan")) == "on", "for what follows in the transaction"
    database.commit()
    assert rows.entries(group)[: _LEASED[-1] + 1] == [(0, 1, None)] * _LEASED[-1] + [(0, 0, None)]


@pytest.mark.rule("D5")
def test_each_of_many_groups_is_looked_into_by_itself(database: Connection, rows: Rows) -> None:
    """PostgreSQL has no statistics: entries and groups are not met all with all."""
    lost = rows.instance()
    queues, each = 300, 20
    groups = [rows.queue(f"orders-{number}") for number in range(queues)]
    waiting = [
        {"group_id": group, "id": i, "half_id": i, "lease": lost if i % each == 0 else 0}
        for number, group in enumerate(groups)
        for i in range(number * each + 1, number * each + each + 1)
    ]
    database.execute(insert(entry), waiting)
    read = [{"group_id": group, "instance_id": lost, "read_through": queues * each} for group in groups]
    database.execute(insert(group_read), read)
    database.execute(text("update coordinator.consumer_group set holder = :lost"), {"lost": lost})
    database.execute(text("update coordinator.instance set ended_at = now() where id = :lost"), {"lost": lost})
    database.commit()
    removed: list[int] = []

    def explain(_: object, cursor: psycopg.Cursor, statement: str, values: Any, *more: object) -> None:
        if f"{SCHEMA}.entry" in statement:
            with cursor.connection.cursor() as another, cursor.connection.transaction(force_rollback=True):
                another.execute(f"explain (analyze, format json) {statement}", values)
                plan = another.fetchone()
            removed.append(json.dumps(plan).count("Rows Removed by Join Filter"))

    event.listen(database.engine, "before_cursor_execute", explain)
    live = select(instance.c.id).where(instance.c.ended_at.is_(None))
    try:
        assert returned.return_all(database, live) == queues * each
    finally:
        event.remove(database.engine, "before_cursor_execute", explain)
    assert removed == [0, 0, 0]


def test_a_lease_touches_no_index(database: Connection, deep: tuple[int, int]) -> None:
    before = database.execute(_COUNTED).one()
    database.execute(text("update coordinator.entry set lease = 7 where id <= 1000"))
    after = database.execute(_COUNTED).one()
    assert (after.changed - before.changed, after.hot - before.hot) == (1000, 1000)
