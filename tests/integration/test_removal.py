"""What removed addresses and groups leave behind is swept."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import Connection, delete, func, insert, select, update

from store import removal
from store.tables import address, consumer_group, entry, removed_address, removed_group
from tests.fix_store import Rows


@pytest.mark.rule("R13")
def test_entries_whose_group_is_gone_are_swept(database: Connection, rows: Rows) -> None:
    orders, bills = rows.queue("orders"), rows.queue("bills")
    kept = [rows.entry(orders) for _ in range(3)]
    lost = [rows.entry(bills) for _ in range(5)]
    database.execute(delete(address).where(address.c.name == "bills"))
    database.commit()
    assert removal.orphaned_groups(database) == [bills]
    assert removal.sweep(database, chunk=2) == 5
    assert removal.orphaned_groups(database) == []
    assert list(database.scalars(select(entry.c.id))) == kept
    ops = rows.ops()
    assert [(each.decision, each.reason, set(each.group_ids)) for each in ops] == [("purge", "removed", {bills})] * 3
    assert sorted(half for each in ops for half in each.half_ids) == lost
    assert removal.sweep(database) == 0


def test_nothing_is_swept_of_a_group_that_is_there(database: Connection, rows: Rows) -> None:
    for name in ("a", "b"):
        group = rows.queue(name)
        rows.entry(group)
        rows.entry(group, failed="rejected")
    assert removal.sweep(database) == 0
    assert database.scalar(select(func.count()).select_from(entry)) == 4


def test_names_are_known_for_as_long_as_something_may_refer_to_them(database: Connection, rows: Rows) -> None:
    rows.entry(rows.queue("orders"))
    rows.queue("orders", group="audit")
    rows.queue("$dynamic/1", origin="dynamic", instance_id=1)
    rows.queue("old")
    database.execute(delete(address))
    known = sorted(database.scalars(select(removed_address.c.name)))
    assert known == ["$dynamic/1", "old", "orders"]
    assert database.scalars(select(removed_group.c.name).where(removed_group.c.lasting)).all() == ["audit"]
    database.commit()
    removal.sweep(database)
    assert sorted(database.scalars(select(removed_address.c.name))) == known
    # a day later the dynamic one is forgotten; the others are when there is no half of that time
    for table in (removed_address, removed_group):
        database.execute(update(table).values(removed_at=table.c.removed_at - timedelta(days=2)))
    database.execute(update(removed_address).where(removed_address.c.name == "orders").values(removed_at=func.now()))
    database.commit()
    removal.sweep(database)
    assert list(database.scalars(select(removed_address.c.name))) == ["orders"]
    assert list(database.scalars(select(removed_group.c.name))) == []


def test_an_address_with_messages_is_removed_by_force_only(database: Connection, rows: Rows) -> None:
    group = rows.queue("orders")
    rows.entry(group)
    assert removal.remove(database, "none", force=True) is None
    refused = removal.remove(database, "orders", force=False)
    assert refused is not None
    assert (refused.removed, refused.waiting) == (False, True)
    assert rows.entries(group) == [(0, 0, None)]
    done = removal.remove(database, "orders", force=True)
    assert done is not None
    assert (done.removed, done.dropped) == (True, 1)
    assert rows.entries(group) == []
    database.execute(insert(address).values(name="empty"))
    database.commit()
    done = removal.remove(database, "empty", force=False)
    assert done is not None
    assert done.removed
    assert database.scalar(select(func.count()).select_from(consumer_group)) == 0
