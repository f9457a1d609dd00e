"""Partitions by day, made ahead."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import Connection, insert, select, text

from store.database import connected
from store.errors import AlreadyDecided, AppendOnly, boundary
from store.ids import HalfIds, UuidV7, id_at
from store.partitions import Made, make_ahead, op_id_at
from store.tables import half, op

NOW = datetime(2027, 2, 27, 23, 59, tzinfo=UTC)
DAYS = ["20270227", "20270228", "20270301", "20270302"]


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


def test_today_and_three_days_are_made_once(database: Connection) -> None:
    made = make_ahead(database, now=NOW)
    assert made.created == tuple(f"{table}_{day}" for day in DAYS for table in ("half", "op"))
    assert made.in_default == ()
    assert make_ahead(database, now=NOW) == Made(created=(), in_default=())
    later = make_ahead(database, now=NOW + timedelta(minutes=1))
    assert later.created == ("half_20270303", "op_20270303")


def test_rows_go_to_the_partition_of_their_day(database: Connection) -> None:
    make_ahead(database, now=NOW)
    midnight = datetime(2027, 2, 28, tzinfo=UTC)
    before, moment = midnight - timedelta(milliseconds=1), midnight + timedelta(days=9)
    for table, add in (("half", _half), ("op", _op)):
        assert _where(database, table, add(database, before)) == f"coordinator.{table}_20270227"
        assert _where(database, table, add(database, midnight)) == f"coordinator.{table}_20270228"
        assert _where(database, table, add(database, moment)) == f"coordinator.{table}_default"


def test_ids_made_now_are_in_the_partition_of_today(database: Connection) -> None:
    make_ahead(database)
    half_id, op_id = HalfIds(5).next(), UUID(bytes=UuidV7().next())
    database.execute(insert(half).values(id=half_id, address_id=1, message=b""))
    database.execute(insert(op).values(id=op_id, decision="accept"))
    assert not _where(database, "half", half_id).endswith("_default")
    assert not _where(database, "op", op_id).endswith("_default")


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


def test_days_with_rows_in_the_default_partition_stay_there(database: Connection) -> None:
    half_id = _half(database, NOW)
    database.commit()
    made = make_ahead(database, now=NOW)
    assert made.in_default == ("half_20270227",)
    assert made.created[0] == "op_20270227"
    assert len(made.created) == 7
    assert _where(database, "half", half_id) == "coordinator.half_default"
    assert database.scalar(select(half.c.id)) == half_id


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
    assert sorted(len(each.created) for each in made) == [0, 0, 0, 8]


def test_the_others_write_meanwhile(database: Connection, database_url: str) -> None:
    make_ahead(database, now=NOW)
    # A batch under way: it holds its locks until it commits.
    _half(database, NOW)
    _op(database, NOW)
    with connected(database_url) as other:
        assert make_ahead(other, now=NOW + timedelta(days=1)).created == ("half_20270303", "op_20270303")
    database.commit()
