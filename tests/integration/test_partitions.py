"""Partitions by day, made ahead."""

from __future__ import annotations

import re
import threading
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Connection, insert, text

from store.database import connected
from store.errors import AlreadyDecided, AppendOnly, NoPartition, boundary
from store.ids import HalfIds, UuidV7, id_at
from store.partitions import DAYS_AHEAD, DAYS_BACK, Made, days_ahead, make_ahead, op_id_at
from store.tables import half, op

#: No test makes partitions of this time before.
NOW = datetime(2027, 2, 27, 23, 59, tzinfo=UTC)
DAYS = ["20270227", "20270228", "20270301", "20270302", "20270226", "20270225"]


def _where(connection: Connection, table: str, key: object) -> str:
    query = text(f"select tableoid::regclass::text from coordinator.{table} where id = :id")
    return str(connection.scalar(query, {"id": key}))


def _half(connection: Connection, moment: datetime) -> int:
    half_id = id_at(moment)
    connection.execute(insert(half).values(id=half_id, address_id=1, message=b"x" * 5000))
    return half_id


def _op(connection: Connection, moment: datetime) -> UUID:
    op_id = op_id_at(moment)
    connection.execute(insert(op).values(id=op_id, decision="accept"))
    return op_id


def test_today_and_the_days_around_it_are_made_once(database: Connection) -> None:
    made = make_ahead(database, now=NOW, days=3)
    assert made == Made(created=tuple(f"{table}_{day}" for day in DAYS for table in ("half", "op")), ahead=3)
    assert made.few
    assert make_ahead(database, now=NOW, days=3) == Made(created=(), ahead=3)
    later = make_ahead(database, now=NOW + timedelta(minutes=1), days=3)
    assert later.created == ("half_20270303", "op_20270303")


def test_two_weeks_are_made_ahead(database: Connection) -> None:
    made = make_ahead(database, now=NOW)
    assert made.ahead == DAYS_AHEAD == 14
    assert not made.few
    assert len(made.created) == 2 * (DAYS_AHEAD + 1 + DAYS_BACK)


def test_days_ahead_end_at_the_first_that_is_missing(database: Connection) -> None:
    assert days_ahead(database, now=NOW) == -1
    make_ahead(database, now=NOW, days=0)
    assert days_ahead(database, now=NOW) == 0
    make_ahead(database, now=NOW + timedelta(days=9), days=3)
    assert days_ahead(database, now=NOW) == 0


def test_rows_go_to_the_partition_of_their_day(database: Connection) -> None:
    make_ahead(database, now=NOW)
    midnight = datetime(2027, 2, 28, tzinfo=UTC)
    for table, add in (("half", _half), ("op", _op)):
        before = add(database, midnight - timedelta(milliseconds=1))
        assert _where(database, table, before) == f"coordinator.{table}_20270227"
        assert _where(database, table, add(database, midnight)) == f"coordinator.{table}_20270228"
        database.commit()
        with pytest.raises(NoPartition), boundary():
            add(database, midnight + timedelta(days=20))
        database.rollback()


def test_ids_made_now_are_in_the_partition_of_today(database: Connection) -> None:
    make_ahead(database)
    half_id, op_id = HalfIds(5).next(), UUID(bytes=UuidV7().next())
    database.execute(insert(half).values(id=half_id, address_id=1, message=b""))
    database.execute(insert(op).values(id=op_id, decision="accept"))
    database.commit()
    assert days_ahead(database) == DAYS_AHEAD


def test_a_partition_holds_what_its_table_holds(database: Connection) -> None:
    make_ahead(database, now=NOW)
    _half(database, NOW)
    op_id = _op(database, NOW)
    database.commit()
    for table in ("half", "op"):
        with pytest.raises(AppendOnly), boundary():
            database.execute(text(f"delete from coordinator.{table}_20270227"))
        database.rollback()
    with pytest.raises(AlreadyDecided), boundary():
        database.execute(insert(op).values(id=op_id, decision="accept"))
    database.rollback()
    storage = database.scalar(
        text(
            "select attstorage::text from pg_attribute "
            "where attrelid = 'coordinator.half_20270227'::regclass and attname = 'message'"
        )
    )
    assert storage == "e"


def test_several_instances_at_once(database_url: str) -> None:
    made: list[Made] = []

    def make() -> None:
        with connected(database_url) as connection:
            made.append(make_ahead(connection, now=NOW))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = sorted(name for each in made for name in each.created)
    assert len(names) == len(set(names)) == 2 * (DAYS_AHEAD + 1 + DAYS_BACK)
    assert [each.ahead for each in made] == [DAYS_AHEAD] * 4


def test_readers_and_writers_go_on_meanwhile(database: Connection, database_url: str) -> None:
    make_ahead(database, now=NOW)
    # A batch under way and a reader of all days: they hold their locks until they end.
    _half(database, NOW)
    _op(database, NOW)
    with psycopg.connect(database_url) as reader, connected(database_url) as other:
        reader.execute("select count(*) from coordinator.half, coordinator.op")
        assert make_ahead(other, now=NOW + timedelta(days=1)).created == ("half_20270314", "op_20270314")
        # And one that comes now does not wait behind it.
        reader.execute("set lock_timeout = '1ms'")
        assert reader.execute("select count(*) from coordinator.half").fetchone() == (0,)
    database.commit()


def test_what_is_locked_by_another_is_left_for_later(database: Connection, database_url: str) -> None:
    make_ahead(database, now=NOW)
    with connected(database_url) as other:
        other.execute(text("lock table coordinator.half in share update exclusive mode"))  # a vacuum, say
        made = make_ahead(database, now=NOW + timedelta(days=1))
        assert (made.created, made.ahead) == ((), DAYS_AHEAD - 1)
        other.rollback()
    assert make_ahead(database, now=NOW + timedelta(days=1)).ahead == DAYS_AHEAD


@pytest.mark.rule("S9", "H16")
@pytest.mark.parametrize("table", ["half", "op"])
@pytest.mark.parametrize("day", ["", "_20270227"])
def test_the_owner_does_not_truncate_halves_and_ops_by_mistake(database: Connection, table: str, day: str) -> None:
    """Retention does, of days that are dropped."""
    make_ahead(database, now=NOW)
    add = {"half": _half, "op": _op}[table]
    add(database, NOW)
    database.commit()
    for rest in ("", " cascade"):
        with pytest.raises(AppendOnly), boundary():
            database.execute(text(f"truncate coordinator.{table}{day}{rest}"))
        database.rollback()
    assert database.scalar(text(f"select count(*) from coordinator.{table}")) == 1


@pytest.mark.rule("H5")
def test_decisions_are_looked_up_in_the_partitions_of_their_days_alone(database: Connection) -> None:
    """Of others the plan has nothing to begin with, as bounds of the ids are parameters."""
    make_ahead(database, now=NOW, days=5)
    ids = [op_id_at(NOW + timedelta(days=days)) for days in (2, 1)]
    asked = text("select coordinator.any_decided(:ids, 0)")
    assert database.scalar(asked, {"ids": ids}) is False
    body = str(database.scalar(text("select prosrc from pg_proc where proname = 'any_decided'")))
    query = re.search(r"exists \((.+)\);", body, re.DOTALL)
    assert query is not None
    numbered = query[1]
    for number, name in enumerate(("txns", "lowest", "highest"), 1):
        numbered = re.sub(rf"\b{name}\b", f"${number}", numbered)
    database.execute(text("set plan_cache_mode = force_generic_plan"))
    database.execute(text(f"prepare looked (uuid[], uuid, uuid) as {numbered}"))
    given = f"'{{{ids[0]},{ids[1]}}}', '{ids[1]}', '{ids[0]}'"
    plan = "\n".join(database.scalars(text(f"explain execute looked ({given})")))
    assert set(re.findall(r" on (op_\d+)", plan)) == {"op_20270228", "op_20270301"}
    database.execute(insert(op).values(id=ids[0], decision="accept"))
    assert database.scalar(asked, {"ids": ids}) is True
    assert database.scalar(asked, {"ids": ids[1:]}) is False
