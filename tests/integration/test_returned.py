"""What lost instances held is found by indexes, however many entries wait (D5)."""

from __future__ import annotations

import json
import threading
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, event, func, insert, select, text, update

from store import recovery
from store.database import connected
from store.tables import SCHEMA, consumer_group, entry, group_read, instance
from tests.fix_store import Rows, until_it_waits

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
    if int(database.scalar(text("show server_version_num"))) < 160_000:
        pytest.skip("there is no index of leases before PostgreSQL 16")
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
    before = database.execute(_COUNTED).one()
    assert recovery.return_all(database) == _READ + len(_LEASED)
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
    assert recovery.return_all(database) == _LEASED[-1]
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
    try:
        assert recovery.return_all(database) == queues * each
    finally:
        event.remove(database.engine, "before_cursor_execute", explain)
    assert removed == [0, 0]


@pytest.mark.rule("D5")
def test_statistics_of_an_emptied_queue_make_it_no_slower(database: Connection, rows: Rows) -> None:
    """PostgreSQL expects two entries, and each would be met with each that was lost."""
    lost, group = rows.instance(), rows.queue("orders")
    database.execute(insert(entry), [{"group_id": group, "id": i, "half_id": i} for i in range(1, 5_001)])
    database.execute(text("delete from coordinator.entry where id > 2"))
    database.execute(text("analyze coordinator.entry"))
    leased = [{"group_id": group, "id": i, "half_id": i, "lease": lost} for i in range(10_001, 11_001)]
    database.execute(insert(entry), leased)
    database.execute(text("update coordinator.instance set ended_at = now() where id = :lost"), {"lost": lost})
    before = database.execute(_COUNTED).one()
    assert recovery.return_all(database) == 1_000
    assert database.execute(_COUNTED).one().visited - before.visited < 5_000


@pytest.mark.rule("D5")
def test_each_comes_back_with_one_attempt_more_that_has_not_failed(database: Connection, rows: Rows) -> None:
    lost, other, living = rows.instance(), rows.instance(), rows.instance()
    orders = rows.queue("orders", max_attempts=3)
    letters = rows.queue("letters", origin="dead-letter", max_attempts=3)
    busy = rows.queue("busy")
    its = [
        # group, id, lease, attempts, failed; and what becomes of lease, attempts, acquired
        (orders, 1, 0, 0, None, (0, 1, True)),  # read by lost, which holds the group
        (orders, 2, lost, 1, None, (0, 2, True)),
        (orders, 3, lost, 2, None, (0, 3, True)),  # a crash fails nothing: it is no dead letter
        (orders, 4, lost, 7, None, (0, 8, True)),
        (orders, 5, lost, 0, "ttl-expired", (0, 0, False)),  # on its way to the dead letters: it was not sent
        (orders, 6, living, 0, None, (living, 0, False)),
        (orders, 7, -1, 0, None, (-1, 0, False)),  # a checkable transaction holds it
        (orders, 8, 0, 0, None, (0, 1, True)),
        (orders, 9, 0, 0, "ttl-expired", (0, 0, False)),
        (orders, 10, 0, 0, None, (0, 0, False)),  # not read; another, which is no holder, has read this far
        (letters, 1, lost, 9, None, (0, 10, True)),
        (letters, 2, lost, 32_767, None, (0, 32_767, True)),
        (letters, 8, 0, 0, None, (0, 0, False)),  # the range of another group
        (busy, 1, 0, 0, None, (0, 0, False)),  # its holder lives
        (busy, 2, other, 0, None, (0, 1, True)),
    ]
    names = ("group_id", "id", "lease", "attempts", "failed")
    database.execute(insert(entry), [{**dict(zip(names, each, strict=False)), "half_id": 1} for each in its])
    marks = [(orders, lost, 1), (orders, lost, 9), (orders, other, 10), (busy, living, 9), (letters, other, 9)]
    columns = ("group_id", "instance_id", "read_through")
    database.execute(insert(group_read), [dict(zip(columns, each, strict=True)) for each in marks])
    holders = {orders: lost, busy: living, letters: 0}
    for group, holder in holders.items():
        database.execute(update(consumer_group).where(consumer_group.c.id == group).values(holder=holder))
    database.execute(update(instance).where(instance.c.id.in_([lost, other])).values(ended_at=func.now()))
    database.commit()
    assert recovery.return_all(database) == 9
    wanted = select(entry.c.group_id, entry.c.id, entry.c.lease, entry.c.attempts, entry.c.acquired)
    found = database.execute(wanted.order_by(entry.c.group_id, entry.c.id)).all()
    assert [tuple(each) for each in found] == [(group, i, *becomes) for group, i, _, _, _, becomes in its]
    assert not database.scalar(select(func.max(entry.c.failures)))


@pytest.mark.rule("D5")
def test_what_a_repair_has_freed_meanwhile_is_not_freed_again(
    database: Connection, rows: Rows, database_url: str
) -> None:
    """Nor is it taken from an instance that lives, and has leased it since."""
    group, gone = rows.queue("orders"), rows.instance(ended_at=func.now())
    for _ in range(3):
        rows.entry(group, lease=gone)
    counts: list[int] = []

    def recover() -> None:
        with connected(database_url, application_name="recovery") as mine:
            counts.append(recovery.return_all(mine))
            mine.commit()

    with connected(database_url) as rival:
        rival.execute(select(entry.c.id).order_by(entry.c.id).limit(1).with_for_update())
        ids = rival.scalars(select(entry.c.id).order_by(entry.c.id)).all()
        waits = threading.Thread(target=recover)
        with connected(database_url) as repair:
            assert len(recovery.give_back_each(repair, [(group, ids[1]), (group, ids[2])])) == 2
            waits.start()
            until_it_waits(database, "recovery")
            repair.commit()
        living = rows.instance()
        rival.execute(update(entry).where(entry.c.id == ids[1]).values(lease=living))
        rival.commit()
        waits.join()
    assert counts == [1]
    assert rows.entries(group) == [(0, 1, None), (living, 1, None), (0, 1, None)]


def test_a_lease_touches_no_index(database: Connection, deep: tuple[int, int]) -> None:
    before = database.execute(_COUNTED).one()
    database.execute(text("update coordinator.entry set lease = 7 where id <= 1000"))
    after = database.execute(_COUNTED).one()
    assert (after.changed - before.changed, after.hot - before.hot) == (1000, 1000)
