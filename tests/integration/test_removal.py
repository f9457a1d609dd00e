"""What removed addresses and groups leave behind is swept."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, delete, func, insert, select, text, update
from typer.testing import CliRunner

from coordinator.__main__ import app
from store import addresses, removal
from store.questions import addresses as questions
from store.tables import address, consumer_group, entry, removed_address, removed_group
from tests.fix_store import Rows
from tests.fix_store_driver import ME, Asking


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


LONG = timedelta(days=7)


def _age(database: Connection, table: str, column: str, days: int) -> None:
    database.execute(text(f"update coordinator.{table} set {column} = {column} - interval '{days} days'"))
    database.commit()


def _names(database: Connection) -> set[str]:
    names = set(database.scalars(select(address.c.name)))
    database.rollback()
    return names


def test_addresses_made_on_use_go_when_they_are_unused_for_long(database: Connection, rows: Rows) -> None:
    for name in ("empty", "used"):
        rows.queue(name, origin="use")
    rows.queue("full", origin="use")
    rows.entry(rows.queue("full", group="x", volatile=rows.instance()))
    rows.queue("lasting", origin="use")
    rows.queue("lasting", group="audit")
    rows.queue("kept", origin="use", retention_hours=24 * 30)
    rows.queue("added")
    rows.queue("%DLQ%x", origin="dead-letter")
    _age(database, "address", "created_at", 8)
    rows.queue("new", origin="use")
    database.execute(text("insert into coordinator.address_use select id from coordinator.address where name = 'used'"))
    database.commit()
    everything = _names(database)
    assert removal.remove_unused(database, LONG) == 1
    assert _names(database) == everything - {"empty"}
    _age(database, "address_use", "used_at", 8)
    assert removal.remove_unused(database, LONG) == 1
    assert _names(database) == everything - {"empty", "used"}
    assert removal.remove_unused(database, timedelta(0), most=1) == 1
    _age(database, "address", "created_at", 30)
    assert removal.remove_unused(database, LONG) == 1
    assert _names(database) == {"full", "lasting", "added", "%DLQ%x"}


def test_an_address_that_administration_has_changed_stays(database: Connection, rows: Rows) -> None:
    rows.queue("orders", origin="use")
    assert addresses.change(database, "orders", {"retention_hours": None})
    _age(database, "address", "created_at", 8)
    assert removal.remove_unused(database, LONG) == 0


def test_an_address_that_is_used_just_then_is_not_removed(
    database: Connection, rows: Rows, asking: Asking, database_url: str
) -> None:
    """The instance notes the use before it relies on the address; who comes first holds the address's row."""
    for name in ("first", "second"):
        rows.queue(name, origin="use")
    _age(database, "address", "created_at", 8)
    asking.ask(questions.find, "first", 3600)
    asking.loop.run_until(asking.answered(1))
    assert asking.answers[0]
    removed = removal.remove(database, "first", force=False, unused=LONG)
    assert removed is not None
    assert not removed.removed
    with psycopg.connect(database_url) as remover:
        remover.execute(b"select from coordinator.address where name = 'second' for update")
        asking.ask(questions.find, "second", 3600)
        with psycopg.connect(database_url, autocommit=True) as other:
            waits = b"select exists (select from pg_stat_activity where wait_event_type = 'Lock' and datname = "
            asking.loop.run_until(lambda: other.execute(waits + b"current_database())").fetchone() == (True,))
        remover.execute(b"delete from coordinator.address where name = 'second'")
    asking.loop.run_until(asking.answered(2))
    assert asking.answers[1] is None


@pytest.fixture
def beside(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """An application whose commit is long at work: its locks are there until the test takes them back."""
    with psycopg.connect(database_url) as connection:
        yield connection
        connection.rollback()


@pytest.mark.rule("X2", "X3")
def test_unused_ones_that_a_commit_holds_are_left_for_the_next_time(
    database: Connection, rows: Rows, beside: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "LONGEST_WAIT", text("set local statement_timeout = '5s'"))  # any wait is an error
    for name in ("free", "group", "held"):
        rows.queue(name, origin="use")
    _age(database, "address", "created_at", 8)
    beside.execute("select from coordinator.address where name = 'held' for key share")
    beside.execute(
        "select from coordinator.consumer_group g join coordinator.address a on a.id = g.address_id "
        "where a.name = 'group' for key share of g"
    )
    assert removal.remove_unused(database, LONG) == 1
    assert _names(database) == {"group", "held"}
    beside.rollback()
    assert removal.remove_unused(database, LONG) == 2


@pytest.mark.rule("X2", "X3")
def test_the_command_gives_up_where_a_commit_is_long_at_work(
    database: Connection,
    database_url: str,
    rows: Rows,
    beside: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows.queue("orders")
    monkeypatch.setattr(removal, "LONGEST_WAIT", text("set local lock_timeout = '100ms'"))
    beside.execute("select from coordinator.address for key share")
    done = CliRunner().invoke(app, ["address", "remove", "orders", "--force", "--database-url", database_url])
    why = "error: 'orders': a transaction that posts there has been committing for 10 s; try again later\n"
    assert (done.exit_code, done.stderr) == (1, why)
    assert _names(database) == {"orders"}


@pytest.mark.rule("X3")
def test_a_transaction_that_another_decides_is_left_to_it(
    database: Connection, rows: Rows, beside: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = rows.address_of(rows.queue("orders"))
    decided, left = sorted(rows.checkable(ME, orders) for _ in range(2))
    monkeypatch.setattr(removal, "LONGEST_WAIT", text("set local lock_timeout = '100ms'"))
    beside.execute("select from coordinator.txn where id = %s for update", [left])
    assert removal.remove(database, "orders", force=True) == removal.Removal(removed=True, rolled_back=1)
    assert rows.pending(left)
    assert not rows.pending(decided)


def test_a_use_is_noted_once_in_a_while(database: Connection, rows: Rows, asking: Asking) -> None:
    rows.queue("orders", origin="use")
    _age(database, "address", "created_at", 8)
    noted = text("select xmin::text, used_at from coordinator.address_use")
    for _ in range(3):
        asking.ask(questions.find, "orders", 3600)
    asking.loop.run_until(asking.answered(3))
    first = database.execute(noted).all()
    assert len(first) == 1
    _age(database, "address_use", "used_at", 1)
    asking.ask(questions.find, "orders", 3600)
    asking.loop.run_until(asking.answered(4))
    assert database.execute(noted).all() != first
