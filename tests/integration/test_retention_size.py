"""Messages that take too much room are kept for less time (``store/retention.py``)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import Connection, insert, select, text, update

from store.ids import id_at
from store.partitions import DAYS_AHEAD, make_days, op_id_at
from store.retention import AGAIN_BY_SIZE, Policy, drop_old
from store.tables import address, consumer_group, entry, half, op, pending, retention

pytestmark = pytest.mark.rule("H16")

KIB = 1024
DAY = timedelta(days=1)


def policy(kib: int) -> Policy:
    return Policy(messages=timedelta(hours=72), decisions=30 * DAY, messages_bytes=kib * KIB)


class Store:
    """With messages of the last days, 800 KiB each day, for two addresses in turns. Each method commits."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.now = datetime.now(UTC)
        # the days of a template that was made before midnight end one day earlier
        make_days(connection, [(self.now + ahead * DAY).date() for ahead in range(DAYS_AHEAD + 1)])
        drop_old(connection, policy(0))
        connection.execute(text("delete from coordinator.retention"))
        self.groups = [self._address("plain", None), self._address("kept", 10_000)]
        self.ids: dict[int, list[int]] = {}
        for ago in (3, 2, 1, 0):
            at = self.now - ago * DAY
            make_days(connection, [at.date()])
            self.ids[ago] = [id_at(at) + number for number in range(8)]
            for number, half_id in enumerate(self.ids[ago]):
                message = {"message": random_octets(connection, 100 * KIB), "posted_at": at}
                to = self.groups[number % 2][0]
                connection.execute(insert(half).values(id=half_id, address_id=to, **message))
            connection.commit()

    def _address(self, name: str, hours: int | None) -> tuple[int, int]:
        made = insert(address).values(name=name, retention_hours=hours).returning(address.c.id)
        number = self.connection.scalar(made)
        group = insert(consumer_group).values(address_id=number, name="").returning(consumer_group.c.id)
        group_id = self.connection.scalar(group)
        assert number is not None
        assert group_id is not None
        return number, group_id

    def days(self) -> dict[int, int]:
        """How many are left, by how many days ago they were posted."""
        found = set(self.connection.scalars(select(half.c.id)))
        self.connection.rollback()
        return {ago: len(found.intersection(ids)) for ago, ids in self.ids.items()}

    def takes(self, ago: int) -> int:
        """KiB of the days from ``ago`` days ago on, those ahead too."""
        names = [f"half_{self.now - number * DAY:%Y%m%d}" for number in range(-DAYS_AHEAD, ago + 1)]
        sizes = text(
            "select sum(pg_total_relation_size('coordinator.' || name)) from unnest(cast(:names as text[])) name"
        )
        octets = self.connection.scalar(sizes, {"names": names})
        self.connection.rollback()
        return int(octets) // KIB + 1

    def wait(self) -> None:
        """It is looked at once an hour."""
        looked = update(retention).values(looked_at=retention.c.looked_at - AGAIN_BY_SIZE)
        self.connection.execute(looked)
        self.connection.commit()


def random_octets(connection: Connection, count: int) -> bytes:
    """They take as much room as they are."""
    made = text("select string_agg(uuid_send(gen_random_uuid()), '') from generate_series(1, :count)")
    octets = connection.scalar(made, {"count": count // 16})
    assert isinstance(octets, bytes)
    return octets


@pytest.fixture
def store(database: Connection) -> Store:
    return Store(database)


def test_days_that_do_not_fit_go_the_oldest_first(store: Store) -> None:
    """Also those that their address would keep; and no more than needed."""
    drop_old(store.connection, policy(0))
    assert store.days() == {3: 8, 2: 8, 1: 8, 0: 8}
    drop_old(store.connection, policy(100_000))
    assert store.days() == {3: 8, 2: 8, 1: 8, 0: 8}
    dropped = drop_old(store.connection, policy(store.takes(1)))
    assert store.days() == {3: 0, 2: 0, 1: 8, 0: 8}
    assert f"half_{store.now - 2 * DAY:%Y%m%d}" in dropped.emptied


def test_what_was_consumed_after_the_days_that_go_stays(store: Store) -> None:
    """As if messages were kept from the first day that fits on."""
    first, second, third, _ = store.ids[3][1::2]
    for half_id, at in ((first, store.now - 3 * DAY), (second, store.now - 2 * DAY), (third, store.now)):
        make_days(store.connection, [at.date()])
        covers = {"half_ids": [half_id], "group_ids": [store.groups[1][1]]}
        op_id = UUID(int=op_id_at(at).int + half_id % 1000)
        store.connection.execute(insert(op).values(id=op_id, decision="accept", decided_at=at, **covers))
    store.connection.commit()
    drop_old(store.connection, policy(store.takes(1)))
    assert store.days() == {3: 1, 2: 0, 1: 8, 0: 8}


def test_today_stays_however_large_it_is(store: Store) -> None:
    drop_old(store.connection, policy(1))
    assert store.days() == {3: 0, 2: 0, 1: 0, 0: 8}


def test_undelivered_and_undecided_ones_stay(store: Store) -> None:
    waiting, undecided = store.ids[3][0], store.ids[2][1]
    number, group = store.groups[0]
    store.connection.execute(insert(entry).values(group_id=group, id=waiting, half_id=waiting))
    txn = store.connection.scalar(text("select gen_random_uuid()"))
    store.connection.execute(insert(pending).values(txn_id=txn, half_id=undecided, address_id=number))
    store.connection.commit()
    drop_old(store.connection, policy(1))
    assert store.days() == {3: 1, 2: 1, 1: 0, 0: 8}


def test_it_is_looked_at_once_an_hour(store: Store) -> None:
    drop_old(store.connection, policy(store.takes(1)))
    drop_old(store.connection, policy(1))
    assert store.days() == {3: 0, 2: 0, 1: 8, 0: 8}
    store.wait()
    drop_old(store.connection, policy(1))
    assert store.days() == {3: 0, 2: 0, 1: 0, 0: 8}
