"""Who holds a consumer group whole: the only living instance that has consumers of it; of two at once, one knows."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import Connection

from store.channels import SHARE
from store.commit import parts as statements
from store.questions import entries
from store.retention import forget_marks
from store.tables import SCHEMA
from tests.fix_service import PATIENCE
from tests.fix_store import Rows

pytestmark = pytest.mark.rule("D10")

_WAITING = "select count(*) from pg_stat_activity where application_name like 'hold %' and wait_event_type = 'Lock'"


class Instance:
    """One that has consumers: it asks on a connection of its own."""

    def __init__(self, url: str, number: int, group: int) -> None:
        self.number, self._group = number, group
        self._store = psycopg.connect(url, autocommit=True, application_name=f"hold {number}")
        self._store.execute("set plan_cache_mode = force_generic_plan; set enable_seqscan = off")
        self._store.execute(f"prepare hold (int4, int4, text) as {entries.HOLD.sql}".encode())
        self._store.execute(f"prepare leave (int4, int4[]) as {entries.LEAVE.sql}".encode())
        self._store.execute(f"listen {SHARE}".encode())
        self.answer = -1

    def hold(self) -> int:
        row = self._store.execute(f"execute hold ({self._group}, {self.number}, null)".encode()).fetchone()
        assert row is not None
        self.answer = row[0]
        return self.answer

    def leave(self) -> None:
        self._store.execute(f"execute leave ({self.number}, array[{self._group}])".encode())

    def is_asked(self) -> bool:
        """Whether another has asked since the last look; it asks itself, too."""
        self._store.execute("select 1")
        return str(self._group) in [notice.payload for notice in self._store.notifies(timeout=0)]

    def close(self) -> None:
        self._store.close()


@pytest.fixture
def group(rows: Rows) -> int:
    return rows.queue("orders")


@pytest.fixture
def three(rows: Rows, group: int, database_url: str) -> Iterator[list[Instance]]:
    made = [Instance(database_url, rows.instance(), group) for _ in range(3)]
    yield made
    for each in made:
        each.close()


def _holder(database_url: str) -> int:
    with psycopg.connect(database_url) as store:
        row = store.execute(f"select holder from {SCHEMA}.consumer_group".encode()).fetchone()
    assert row is not None
    return int(row[0])


def _share(database_url: str) -> None:
    with psycopg.connect(database_url) as store:
        store.execute(f"update {SCHEMA}.consumer_group set holder = 0".encode())


def test_the_first_holds_it_and_is_asked_by_the_second(three: list[Instance], database_url: str) -> None:
    first, second, _ = three
    assert first.hold() == first.number
    assert first.hold() == first.number  # again, as where the answer was lost
    assert not first.is_asked()
    assert second.hold() == first.number
    assert first.is_asked()
    assert first.hold() == first.number  # it has not shared yet
    _share(database_url)
    assert second.hold() == first.hold() == 0
    assert not first.is_asked()


def test_it_is_held_again_when_the_others_have_no_consumers(three: list[Instance], database_url: str) -> None:
    first, second, third = three
    first.hold()
    second.hold()
    third.hold()
    _share(database_url)
    first.leave()
    assert second.hold() == third.hold() == 0
    third.leave()
    assert second.hold() == second.number


def test_an_instance_that_has_ended_neither_holds_nor_keeps_others_from_it(
    three: list[Instance], database: Connection, database_url: str
) -> None:
    first, second, _ = three
    first.hold()
    second.hold()
    _share(database_url)
    with psycopg.connect(database_url) as store:
        store.execute(f"update {SCHEMA}.instance set ended_at = now() where id = %s".encode(), [first.number])
    assert first.hold() == 0
    assert second.hold() == second.number
    forget_marks(database)
    marks = f"select instance_id, read_through from {SCHEMA}.group_read"
    with psycopg.connect(database_url) as store:
        assert store.execute(marks.encode()).fetchall() == [(second.number, 0)]


@pytest.mark.parametrize("begins", [0, 1], ids=["who was there is first", "who comes is first"])
@pytest.mark.parametrize("was_there", [True, False], ids=["one shares it", "none has it"])
def test_of_two_that_ask_at_once_both_know_who_holds_it(
    three: list[Instance], database_url: str, begins: int, was_there: bool
) -> None:
    """Both have looked at the store before the other was there; the row's lock decides."""
    first, second, third = three
    if was_there:
        third.hold()
        first.hold()
        _share(database_url)
        third.leave()
    order = [first, second]
    threads = [threading.Thread(target=each.hold) for each in (order[begins], order[1 - begins])]
    with psycopg.connect(database_url) as blocker, psycopg.connect(database_url, autocommit=True) as looker:
        blocker.execute(f"select from {SCHEMA}.consumer_group for update".encode())
        for number, thread in enumerate(threads, 1):
            thread.start()
            deadline = time.monotonic() + PATIENCE
            while looker.execute(_WAITING.encode()).fetchone() != (number,):
                assert time.monotonic() < deadline
        blocker.commit()
    for thread in threads:
        thread.join(PATIENCE)
    wanted = 0 if was_there and begins == 1 else order[begins].number
    assert (first.answer, second.answer, _holder(database_url)) == (wanted, wanted, wanted)


def test_who_comes_while_the_holder_shares_it_finds_that_it_is_free(three: list[Instance], database_url: str) -> None:
    """It has looked before the holder's batch is durable, and waits for that at the row of the group."""
    first, second, _ = three
    first.hold()
    thread = threading.Thread(target=second.hold)
    with psycopg.connect(database_url) as sharing, psycopg.connect(database_url, autocommit=True) as looker:
        sharing.execute(f"update {SCHEMA}.consumer_group set holder = 0".encode())
        thread.start()
        deadline = time.monotonic() + PATIENCE
        while looker.execute(_WAITING.encode()).fetchone() != (1,):
            assert time.monotonic() < deadline
        sharing.commit()
    thread.join(PATIENCE)
    assert (second.answer, _holder(database_url)) == (0, 0)
    assert first.hold() == 0


@pytest.mark.rule("D10")
def test_a_topic_s_message_in_the_batch_that_shares_a_group_has_an_entry_there(
    three: list[Instance], group: int, database_url: str
) -> None:
    """PostgreSQL leaves out of a lock what the statement has changed before."""
    holder = three[0]
    holder.hold()
    parts = ("fan", "shared")
    types = ", ".join(each for part in parts for each in statements.PARTS[part][1])
    with psycopg.connect(database_url) as store:
        store.execute(f"prepare batch ({types}) as {statements.statement(parts, holder.number)}".encode())
        row = store.execute(f"select address_id from {SCHEMA}.consumer_group where id = {group}".encode()).fetchone()
        assert row is not None
        fan = f"array[{row[0]}], array[5], '{{infinity}}', '{{-infinity}}', array[4], array[0]"
        store.execute(f"execute batch ({fan}, array[{group}])".encode())
        entries_there = store.execute(f"select group_id, id from {SCHEMA}.entry".encode()).fetchall()
    assert (entries_there, _holder(database_url)) == ([(group, 5)], 0)
