"""An instance dies while the commit of an application is long at work (X2, X3): what this holds waits until it is over,
and all else that the instance held comes back at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, insert, select, text

from store import recovery
from store.recovery import DeadInstances, GivenUp
from store.tables import HELD, address, consumer_group, entry, pending_retirement, txn
from tests.fix_store import Rows

pytestmark = pytest.mark.rule("X2", "X3")


@pytest.fixture
def beside(database: Connection, database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """An application in its commit; in ``database`` any wait for it is an error."""
    database.execute(text("set lock_timeout = '1ms'"))
    database.commit()
    with psycopg.connect(database_url) as connection:
        yield connection
        connection.rollback()


def _names(database: Connection) -> list[str]:
    names = list(database.scalars(select(address.c.name).order_by(address.c.name)))
    database.rollback()
    return names


@pytest.mark.parametrize(
    "holds",
    [
        "select from coordinator.address where name = '$dynamic/2' for key share",
        "select from coordinator.consumer_group g join coordinator.address a on a.id = g.address_id "
        "where a.name = '$dynamic/2' for key share of g",
    ],
    ids=["address", "group"],
)
def test_dynamic_addresses(database: Connection, rows: Rows, beside: psycopg.Connection[Any], holds: str) -> None:
    ended = rows.instance(ended_at=rows.now())
    for number in (1, 2, 3):
        rows.queue(f"$dynamic/{number}", origin="dynamic", instance_id=ended)
    beside.execute(holds.encode())
    held = rows.entry(rows.queue("orders"), lease=ended)
    assert recovery.recover(database) == GivenUp(leases=1, addresses=2, groups=2, owed=True)
    assert _names(database) == ["$dynamic/2", "orders"]
    assert database.scalar(select(entry.c.lease).where(entry.c.id == held)) == 0
    beside.rollback()
    assert recovery.give_up_dead(database, {}) == GivenUp(addresses=1, groups=1)
    assert _names(database) == ["orders"]


def test_subscriptions_that_end_with_their_links(
    database: Connection, rows: Rows, beside: psycopg.Connection[Any]
) -> None:
    ended = rows.instance(ended_at=rows.now())
    kept = rows.queue("news", group="kept", routing="topic")
    gone, held = (rows.queue("news", group=name, volatile=ended) for name in ("gone", "held"))
    beside.execute("select from coordinator.consumer_group where id = %s for key share", [held])
    assert recovery.recover(database) == GivenUp(groups=1, owed=True)
    assert list(database.scalars(select(consumer_group.c.id).order_by(consumer_group.c.id))) == [kept, held]
    assert gone not in (kept, held)
    beside.rollback()
    assert recovery.give_up_dead(database, {}) == GivenUp(groups=1)


def test_its_checkable_transactions(database: Connection, rows: Rows, beside: psycopg.Connection[Any]) -> None:
    """With what they have retired. Of the one that is rolled back meanwhile, that comes back."""
    dead = rows.instance()
    orders = rows.queue("orders")
    free, kept, undone = txns = [rows.checkable(dead, rows.address_of(orders)) for _ in range(3)]
    for each in txns:
        row = rows.entry(orders, lease=HELD)
        retired = {"txn_id": each, "group_id": orders, "entry_id": row, "half_id": row, "decision": "accept"}
        database.execute(insert(pending_retirement).values(attempts=0, wait_ms=0, holder=dead, **retired))
    database.commit()
    leased = rows.entry(orders, lease=dead)
    beside.execute("select from coordinator.txn where id = any(%s) for update", [[kept, undone]])
    beside.execute("select from coordinator.pending_retirement where txn_id = any(%s) for update", [[kept, undone]])

    def left() -> dict[object, tuple[object, object]]:
        found = select(pending_retirement.c.txn_id, pending_retirement.c.holder, txn.c.connection)
        joined = found.join(txn, txn.c.id == pending_retirement.c.txn_id, isouter=True)
        there = {row.txn_id: (row.holder, row.connection) for row in database.execute(joined)}
        database.rollback()
        return there

    beaten = database.scalar(text("select beaten_at from coordinator.heartbeat where instance_id = :i"), {"i": dead})
    database.rollback()
    assert recovery.give_up_dead(database, {dead: beaten}) == GivenUp(instances=(dead,), leases=1, owed=True)
    assert database.scalar(select(entry.c.lease).where(entry.c.id == leased)) == 0
    assert left() == {free: (None, None), kept: (dead, 1), undone: (dead, 1)}
    beside.execute("select coordinator.decide(%s, 'rollback', 'operator')", [undone])
    beside.commit()
    assert recovery.give_up_dead(database, {}) == GivenUp()
    assert left() == {free: (None, None), kept: (None, None)}
    assert sorted(rows.entries(orders)) == [(HELD, 0, None)] * 2 + [(0, 1, None)] * 2


def test_the_watch_goes_on_until_all_is_given_up(
    database: Connection,
    database_url: str,
    rows: Rows,
    beside: psycopg.Connection[Any],
    request: pytest.FixtureRequest,
) -> None:
    """Also with what was left before it began, or by a worker that gave up another."""
    ended = rows.instance(ended_at=rows.now())
    for number in (1, 2):
        rows.queue(f"$dynamic/{number}", origin="dynamic", instance_id=ended)
    beside.execute("select from coordinator.address where name = '$dynamic/1' for key share")
    request.addfinalizer((watch := DeadInstances(database_url)).close)
    assert [watch.check().given_up.addresses for _ in range(3)] == [1, 0, 0]
    beside.rollback()
    assert watch.check().given_up == GivenUp(addresses=1, groups=1)
    other = rows.instance()
    rows.queue("$dynamic/3", origin="dynamic", instance_id=other)
    assert watch.check().given_up == GivenUp()
    beside.execute("select from coordinator.address for key share")
    assert recovery.end(database, other).owed
    assert watch.check().given_up == GivenUp(owed=True)
    beside.rollback()
    assert watch.check().given_up == GivenUp(addresses=1, groups=1)
