"""Instances that give what is due its places (D7) do so one at a time, and in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from store.locks import ROW_OF
from store.questions.schedule import PROMOTE
from tests.fix_application import Application, post
from tests.fix_store import Rows

pytestmark = pytest.mark.rule("D7", "X2")

SECOND = 1000 << 22
LATER = 10**6 * SECOND


@pytest.fixture
def other(database_url: str) -> Iterator[Application]:
    connection: Application = psycopg.connect(database_url)
    yield connection
    connection.close()


def promote(instance: Application, first: int, stalled: int | None = None) -> int:
    """With two ids from ``first`` on; how many entries got them. ``stalled``: in seconds."""
    instance.execute(f"prepare promote as {PROMOTE.sql}")
    patience = "null" if stalled is None else stalled * SECOND
    statement = f"execute promote(array[{first}, {first + 1}], false, '-infinity', {patience})"
    rows: list[Any] = instance.execute(statement.encode()).fetchall()
    instance.execute("deallocate promote")
    return sum(row[2] for row in rows if row[0])


def test_one_instance_at_a_time_and_with_ids_above_the_last(
    application: Application, other: Application, rows: Rows
) -> None:
    group = rows.queue("orders")
    for number in range(9):
        post(application, "orders", str(number))
    application.commit()
    assert promote(application, LATER) == 2
    assert promote(other, LATER + 10) == 0, "another does so now"
    application.commit()
    assert promote(other, LATER + 1 - SECOND) == 0, "these ids were made before those that another has given"
    assert promote(other, LATER + 1) == 0
    assert promote(other, LATER + 2) == 2
    other.commit()
    assert promote(application, LATER + 3 - SECOND) == 0
    assert promote(application, LATER - 2 * SECOND) == 2, "the clock was set back"
    application.rollback()
    assert promote(other, LATER + 4) == 2
    other.commit()
    found = application.execute(
        "select convert_from(substr(m.message, 13), 'UTF8') from coordinator.entry e "
        "join coordinator.half m on m.id = e.half_id where e.group_id = %s and e.available_at is null order by e.id",
        [group],
    ).fetchall()
    assert [row[0] for row in found] == ["0", "1", "2", "3", "4", "5"]


def test_one_that_has_the_turn_and_gives_no_place_is_passed_over(
    application: Application, other: Application, rows: Rows
) -> None:
    """As a process that is stopped does."""
    rows.queue("orders")
    for number in range(8):
        post(application, "orders", str(number))
    application.commit()
    assert promote(application, LATER) == 2
    application.commit()
    application.execute(f"select {ROW_OF['places']} for update".encode())
    assert promote(other, LATER + 2 * SECOND) == 0
    assert promote(other, LATER + 2 * SECOND, stalled=2) == 0
    assert promote(other, LATER + 3 * SECOND, stalled=2) == 2
    assert promote(other, LATER + 4 * SECOND, stalled=2) == 0, "another has given places just now"
    assert promote(other, LATER + 4 * SECOND, stalled=0) == 2
