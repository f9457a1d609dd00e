"""What loads cost while an old snapshot is held: the live rows count, not those that were consumed meanwhile.

A snapshot keeps each consumed row in the indexes. Counted are the pages that a statement looks at.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from store import asking
from store.asking import Query
from store.commit.terms import STEPS, Rank
from store.questions import checks, entries, message_groups, schedule
from store.tables import SCHEMA

GROUP = 1
KEY = -5
#: consumed while the snapshot is held, and the highest of their ids
DEAD = 5000
LAST = 1 << 40
#: pages of a load that finds nothing, with room: the dead rows fill hundreds
FEW = 40


@pytest.fixture
def held(database_url: str) -> Iterator[psycopg.Connection]:
    """A connection, while another holds a snapshot from before rows of each kind were consumed."""
    columns = "group_id, id, half_id, priority, message_group, available_at"
    with psycopg.connect(database_url) as holder, psycopg.connect(database_url, autocommit=True) as connection:
        holder.execute(b"set transaction isolation level repeatable read")
        holder.execute(b"select 1")
        connection.execute(f"insert into {SCHEMA}.address (id, name) overriding system value values (1, 'a')".encode())
        connection.execute(
            f"insert into {SCHEMA}.consumer_group (id, address_id) overriding system value values ({GROUP}, 1)".encode()
        )
        for number, values in enumerate(
            (
                "9, null::int8, null::timestamptz",
                "5, null, null",
                "0, null, null",
                f"4, {KEY}, null",
                "4, null, now()",
                "4, null, null",
            )
        ):
            first = LAST - (number + 1) * DEAD
            connection.execute(
                f"insert into {SCHEMA}.entry ({columns}) select {GROUP}, n, n, {values} "
                f"from generate_series({first + 1}::int8, {first + DEAD}) n".encode()
            )
        connection.execute(f"delete from {SCHEMA}.entry".encode())
        connection.execute(
            f"insert into {SCHEMA}.txn (id, instance_id, owner, declared_at, timeout_at, posted, retired, checks, "
            "next_check_at, most_checks, producer_group) select md5(n::text)::uuid, 1, '', now(), now(), 1, 0, 15, "
            f"now() - interval '1 h' - n * interval '1 ms', 15, 'shop' from generate_series(1, {DEAD}) n".encode()
        )
        connection.execute(f"delete from {SCHEMA}.txn".encode())
        connection.execute(asking.SETUP.encode())
        yield connection


def _pages(connection: psycopg.Connection, query: Query[object], parameters: str) -> int:
    connection.execute(f"prepare asked as {query.sql}".encode())
    pages = 0
    for _ in range(2):  # the first looks into the catalogue too
        plan = connection.execute(f"explain (analyze, buffers, format json) execute asked ({parameters})".encode())
        row = plan.fetchone()
        assert row is not None
        top = row[0][0]["Plan"]
        pages = top["Shared Hit Blocks"] + top["Shared Read Blocks"]
    connection.execute(b"deallocate asked")
    return int(pages)


@pytest.mark.parametrize("rank", list(Rank), ids=str)
def test_a_load_by_priority_looks_above_the_mark_of_each(held: psycopg.Connection, rank: Rank) -> None:
    def pages(mark: int) -> int:
        marks = [mark] * STEPS[rank].number
        return _pages(held, entries.LEASE[rank], f"{GROUP}, array{marks}, 10, 100000, 7")  # type: ignore[arg-type]

    assert pages(LAST) < FEW < pages(0)


def test_a_message_group_is_read_above_its_mark(held: psycopg.Connection) -> None:
    def pages(mark: int) -> int:
        parameters = f"{GROUP}, array[{KEY}], 10, 100000, 7, array[{mark}]"
        return _pages(held, message_groups.LEASE, parameters)  # type: ignore[arg-type]

    assert pages(LAST) < FEW < pages(0)


def test_the_schedule_looks_behind_what_it_has_promoted(held: psycopg.Connection) -> None:
    def pages(above: str) -> int:
        return _pages(held, schedule.PROMOTE, f"array[1], false, {above}, null")  # type: ignore[arg-type]

    assert pages("now()") < FEW < pages("'-infinity'")


@pytest.mark.rule("H12")
def test_what_was_checked_often_enough_is_looked_for_from_the_mark_on(held: psycopg.Connection) -> None:
    def pages(low: str) -> int:
        return _pages(held, checks.FIND_EXHAUSTED, f"20, {low}")  # type: ignore[arg-type]

    assert pages("now() - interval '1 minute'") < FEW < pages("'-infinity'")
