"""Replays of dead letters beside all that may happen to these, to their addresses and to the store meanwhile (rule
D4).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from sqlalchemy import Connection, delete, func, select, text

from store import dead_letters, partitions, removal
from store.commit.terms import PLAIN, DeliveryTerms
from store.database import connected
from store.dead_letters import Decide, Goal, Replayed, Stored
from store.tables import SCHEMA, consumer_group, entry, half
from tests.fix_store import Rows

pytestmark = pytest.mark.rule("D4")


def _goal(rows: Rows, group: int, name: str = "") -> Goal:
    found = dead_letters.goal(rows.connection, name or "orders", "")
    rows.connection.rollback()
    assert found is not None
    assert found.group == group
    return found


def _boxed(rows: Rows, count: int) -> tuple[int, int, list[int]]:
    """The groups of an address and of its dead letters, and so many letters."""
    orders, box = rows.queue("orders"), rows.queue("%DLQ%orders", origin="dead-letter")
    return orders, box, [rows.entry(box) for _ in range(count)]


def _to(goal: Goal, meanwhile: Callable[[], object] = lambda: None) -> Decide:
    def decide(_: Stored) -> tuple[Goal, DeliveryTerms]:
        meanwhile()
        return goal, PLAIN

    return decide


def _count(connection: Connection, group: int) -> int:
    found = connection.scalar(select(func.count()).select_from(entry).where(entry.c.group_id == group))
    connection.rollback()
    return int(found or 0)


@contextmanager
def _impatient(database: Connection) -> Iterator[None]:
    """A wait for a lock is an error."""
    database.execute(text("set lock_timeout = '1ms'"))
    database.commit()
    yield
    database.execute(text("reset lock_timeout"))
    database.commit()


def test_it_waits_for_no_batch_that_has_letters(database: Connection, database_url: str, rows: Rows) -> None:
    """Nor do batches wait for it: what it looks at and may not take is not locked."""
    orders, box, (first, second, third) = _boxed(rows, 3)
    database.execute(text(f"update {SCHEMA}.entry set lease = 7 where id = {second}"))
    database.commit()
    goal = _goal(rows, orders)
    with psycopg.connect(database_url) as batch:
        batch.execute(f"delete from {SCHEMA}.entry where id = %s".encode(), [first])

        def retires() -> None:
            with psycopg.connect(database_url) as other:
                other.execute(b"set lock_timeout = '1ms'")
                other.execute(f"select from {SCHEMA}.entry where id = %s for update".encode(), [second])

        def decide(stored: Stored) -> tuple[Goal, DeliveryTerms] | str:
            retires()
            return goal, PLAIN

        with _impatient(database):
            done = dead_letters.replay(database, box, None, decide)
        batch.rollback()
    assert done == Replayed(ids=(third,), left=((first, "a consumer has it"), (second, "a consumer has it")))
    assert (_count(database, box), _count(database, orders)) == (2, 1)


@pytest.mark.parametrize("what", ["address", "group"])
def test_its_goal_is_removed_meanwhile(database: Connection, database_url: str, rows: Rows, what: str) -> None:
    """The letters stay, and say why."""
    orders, box, letters = _boxed(rows, 2)
    goal = _goal(rows, orders)

    def remove() -> None:
        with connected(database_url) as other:
            if what == "address":
                removal.remove(other, "orders", force=True)
            else:
                other.execute(delete(consumer_group).where(consumer_group.c.id == orders))
                other.commit()

    done = dead_letters.replay(database, box, None, _to(goal, remove))
    assert done.ids == ()
    assert [(number, "was removed meanwhile" in why) for number, why in done.left] == [(each, True) for each in letters]
    assert _count(database, box) == 2
    assert database.scalar(select(func.count()).select_from(half)) == 2


def test_the_service_was_stopped_for_weeks(database: Connection, rows: Rows) -> None:
    """No partition is left for today."""
    orders, box, letters = _boxed(rows, 1)
    goal = _goal(rows, orders)
    yesterday = letters[0] - (1 << 22) * 86_400_000
    today = datetime.now(UTC).date()
    database.execute(text(f"alter table {SCHEMA}.half disable trigger all"))
    database.execute(text(f"update {SCHEMA}.half set id = {yesterday}"))
    database.execute(text(f"update {SCHEMA}.entry set id = {yesterday}, half_id = {yesterday}"))
    for table in partitions.PARTITIONED:
        for day in (today, today + timedelta(days=1)):
            database.execute(text(f"drop table {SCHEMA}.{table}_{day:%Y%m%d}"))
    database.execute(text(f"alter table {SCHEMA}.half enable trigger all"))
    database.commit()
    assert dead_letters.replay(database, box, None, _to(goal)) == Replayed(ids=(yesterday,), left=())
    assert _count(database, orders) == 1


def test_letters_by_any_number_of_ids(database: Connection, rows: Rows) -> None:
    orders, box, letters = _boxed(rows, 3)
    others = [*range(1, 70_000), 0, -1, 1 << 63, 10**30, 5]
    done = dead_letters.replay(database, box, [*others, letters[2], letters[0]], _to(_goal(rows, orders)))
    assert done.ids == (letters[0], letters[2])
    assert done.left == tuple((each, "there is no such letter") for each in others[:-1])


def test_two_at_once(database: Connection, database_url: str, rows: Rows) -> None:
    """Each letter goes once."""
    orders, box, letters = _boxed(rows, 250)
    goal = _goal(rows, orders)
    done: list[Replayed] = []

    def replay() -> None:
        with connected(database_url) as other:
            done.append(dead_letters.replay(other, box, None, _to(goal)))

    threads = [threading.Thread(target=replay) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(number for each in done for number in each.ids) == letters
    assert (_count(database, box), _count(database, orders)) == (0, 250)
    assert database.scalar(select(func.count(func.distinct(half.c.id)))) == 500
