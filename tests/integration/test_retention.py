"""Retention drops days that were kept long enough, and nothing that is still to be delivered."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Connection, func, insert, select, text

from spark.period import Period
from spark.snapshot import StoreUnreadable, exported_snapshot
from store import retention
from store.errors import NoPartition, boundary
from store.ids import id_at
from store.partitions import existing, make_ahead, make_days, op_id_at
from store.retention import Dropped, Policy, drop_old
from store.tables import address, consumer_group, entry, half, instance, op, pending, txn
from store.undecided import outcome_of

pytestmark = pytest.mark.rule("H16")

POLICY = Policy(messages=timedelta(hours=72), decisions=timedelta(days=30))
NOW = datetime.now(UTC)
#: long consumed; its day ended more than 72 hours ago
OLD = NOW - timedelta(days=10)
OLDER = NOW - timedelta(days=11)
ANCIENT = NOW - timedelta(days=40)


class Days:
    """A store with halves and ops of days gone by; each method commits."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._count = 0
        first = connection.scalar(text("select min(relname) from pg_class where relname ~ '^half_2024'"))
        assert first is not None
        drop_old(connection, POLICY)  # the day of tests that count from 1
        connection.execute(text("delete from coordinator.retention"))
        connection.commit()

    def address(self, name: str, **values: object) -> tuple[int, int]:
        """Its id, and that of its group."""
        number = self.connection.scalar(insert(address).values(name=name, **values).returning(address.c.id))
        group = self.connection.scalar(
            insert(consumer_group).values(address_id=number, name="").returning(consumer_group.c.id)
        )
        self.connection.commit()
        assert number is not None
        assert group is not None
        return number, group

    def half(self, at: datetime, *, to: tuple[int, int], waiting: bool = False) -> int:
        make_days(self.connection, [at.date()])
        self._count += 1
        half_id = id_at(at) + self._count
        self.connection.execute(insert(half).values(id=half_id, address_id=to[0], message=b"m", posted_at=at))
        if waiting:
            self.connection.execute(insert(entry).values(group_id=to[1], id=half_id, half_id=half_id))
        self.connection.commit()
        return half_id

    def accepted(
        self, halves: Sequence[int], *, to: tuple[int, int], at: datetime, declared_at: datetime | None = None
    ) -> UUID:
        begun = declared_at or at
        make_days(self.connection, [begun.date()])
        self._count += 1
        op_id = UUID(int=op_id_at(begun).int + self._count)
        covers = {"half_ids": list(halves), "group_ids": [to[1]] * len(halves)}
        self.connection.execute(insert(op).values(id=op_id, decision="accept", decided_at=at, **covers))
        self.connection.commit()
        return op_id

    def halves(self) -> list[int]:
        found = list(self.connection.scalars(select(half.c.id).order_by(half.c.id)))
        self.connection.rollback()
        return found

    def drop(self, policy: Policy = POLICY) -> Dropped:
        return drop_old(self.connection, policy)

    def there(self, at: datetime, table: str = "half") -> bool:
        return at.date() in existing(self.connection)[table]

    def again(self) -> None:
        """As if the last look were long ago."""
        self.connection.execute(text("update coordinator.retention set looked_at = looked_at - interval '1 day'"))
        self.connection.commit()


@pytest.fixture
def days(database: Connection) -> Days:
    return Days(database)


def test_days_that_are_old_enough_go_and_others_stay(days: Days) -> None:
    orders = days.address("orders")
    days.half(OLD, to=orders)
    young = days.half(NOW - timedelta(days=2), to=orders)
    name = f"half_{OLD:%Y%m%d}"
    assert days.drop() == Dropped(emptied=(name,), removed=(name,))
    assert days.halves() == [young]
    assert not days.there(OLD)
    assert days.there(NOW - timedelta(days=2))
    assert retention.messages_kept_since(days.connection) == datetime(
        OLD.year, OLD.month, OLD.day, tzinfo=UTC
    ) + timedelta(days=1)
    assert retention.decisions_kept_since(days.connection) is None


def test_the_day_that_ended_less_than_the_period_ago_stays(days: Days) -> None:
    orders = days.address("orders")
    # At its beginning it is older than 72 hours, at its end it is not.
    edge = (datetime.now(UTC) - timedelta(hours=72)).replace(hour=0, minute=0, second=0, microsecond=0)
    before = days.half(edge - timedelta(milliseconds=1), to=orders)
    stays = days.half(edge, to=orders)
    days.drop()
    assert before not in days.halves()
    assert days.halves() == [stays]


def test_what_is_undelivered_is_carried_whole(days: Days) -> None:
    orders = days.address("orders")
    gone = [days.half(OLD, to=orders) for _ in range(5)]
    waiting = days.half(OLD, to=orders, waiting=True)
    before = days.connection.execute(select(half).where(half.c.id == waiting)).one()
    done = days.drop()
    assert (done.carried, done.removed) == (1, ())
    assert days.halves() == [waiting]
    assert days.connection.execute(select(half).where(half.c.id == waiting)).one() == before
    assert gone
    # Consumed, it stays for the period, and goes then.
    days.connection.execute(entry.delete())
    days.connection.commit()
    days.accepted([waiting], to=orders, at=NOW)
    days.again()
    days.drop()
    assert days.halves() == [waiting]
    days.again()
    days.drop(Policy(messages=timedelta(microseconds=1), decisions=POLICY.decisions))
    assert days.halves() == []
    assert not days.there(OLD)


def test_what_was_consumed_not_long_ago_is_carried(days: Days) -> None:
    orders = days.address("orders")
    late, early = days.half(OLD, to=orders), days.half(OLD, to=orders)
    days.accepted([late], to=orders, at=NOW - timedelta(hours=60))  # the run of all tests has begun hours ago
    days.accepted([early], to=orders, at=NOW - timedelta(hours=73))
    # in a transaction that was declared two days before it was decided
    long = days.half(OLD, to=orders)
    decided = NOW - timedelta(hours=60)
    days.accepted([long], to=orders, at=decided, declared_at=decided - timedelta(days=2))
    assert days.drop().carried == 2
    assert days.halves() == [late, long]


def test_addresses_have_periods_of_their_own(days: Days) -> None:
    orders = days.address("orders")
    archive = days.address("archive", retention_hours=24 * 365)
    noise = days.address("noise", retention_hours=1)
    yesterday = NOW - timedelta(days=2)
    kept = days.half(OLD, to=archive)
    days.half(OLD, to=orders)
    young = days.half(yesterday, to=orders)
    days.half(yesterday, to=noise)
    days.drop()
    assert days.halves() == [kept, young]


def test_of_a_day_with_much_that_must_stay_nothing_goes(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MOST_CARRIED_ROWS", 3)
    orders = days.address("orders")
    waiting = [days.half(OLD, to=orders, waiting=True) for _ in range(4)]
    consumed = days.half(OLD, to=orders)
    assert days.drop().whole == (f"half_{OLD:%Y%m%d}",)
    assert days.halves() == [*waiting, consumed]


@pytest.mark.rule("T11")
def test_decisions_outlive_the_halves_of_their_day(days: Days) -> None:
    orders = days.address("orders")
    waiting = days.half(ANCIENT, to=orders, waiting=True)
    days.half(ANCIENT, to=orders)
    ancient = days.accepted([waiting], to=orders, at=ANCIENT)
    young = days.accepted([waiting], to=orders, at=OLD)
    days.half(OLD, to=orders)
    assert f"op_{ANCIENT:%Y%m%d}" in days.drop().emptied
    assert list(days.connection.scalars(select(op.c.id))) == [young]
    assert ancient != young
    assert days.halves() == [waiting]
    since = retention.decisions_kept_since(days.connection)
    assert since is not None
    assert ANCIENT < since <= OLD


def test_decisions_of_a_day_whose_halves_are_kept_whole_stay(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MOST_CARRIED_ROWS", 0)
    orders = days.address("orders")
    days.half(ANCIENT, to=orders, waiting=True)
    kept = days.half(ANCIENT, to=orders)
    decided = days.accepted([kept], to=orders, at=ANCIENT)
    days.drop()
    assert list(days.connection.scalars(select(op.c.id))) == [decided]


@pytest.mark.rule("H16")
@pytest.mark.parametrize("own_row", [False, True])
def test_what_is_undecided_is_carried_and_so_is_the_day_of_its_decision(days: Days, own_row: bool) -> None:
    orders = days.address("orders")
    waits = days.half(ANCIENT, to=orders)
    days.half(ANCIENT, to=orders)
    make_days(days.connection, [ANCIENT.date()])
    values = {"instance_id": 1, "owner": "c", "declared_at": ANCIENT, "timeout_at": NOW, "posted": 1, "retired": 0}
    txn_id = op_id_at(ANCIENT)
    in_row = {} if own_row else {"half_ids": [waits], "address_id": orders[0]}
    days.connection.execute(insert(txn).values(id=txn_id, producer_group="shop", **values, **in_row))
    if own_row:
        days.connection.execute(insert(pending).values(txn_id=txn_id, half_id=waits, address_id=orders[0]))
    days.connection.commit()
    days.accepted([], to=orders, at=ANCIENT)
    assert days.drop().carried == 1
    assert days.halves() == [waits]
    assert days.there(ANCIENT, "op")
    # Committed, it is undelivered.
    assert days.connection.scalar(select(func.coordinator.decide(txn_id, "commit", "")))
    days.connection.commit()
    days.again()
    days.drop()
    assert days.halves() == [waits]
    assert days.connection.scalar(select(entry.c.half_id)) == waits


@pytest.mark.rule("H15")
def test_a_decision_that_came_late_is_kept_as_long_as_others(days: Days) -> None:
    """From the decision on, not from the declare."""
    others = days.accepted([], to=days.address("orders"), at=ANCIENT + timedelta(seconds=1))
    values = {"instance_id": 1, "owner": "c", "declared_at": ANCIENT, "timeout_at": NOW, "posted": 0, "retired": 0}
    txn_id = op_id_at(ANCIENT)
    days.connection.execute(insert(txn).values(id=txn_id, producer_group="shop", **values))
    days.connection.commit()
    assert days.connection.scalar(select(func.coordinator.decide(txn_id, "rollback", "late")))
    days.connection.commit()
    days.drop()
    found = outcome_of(days.connection, txn_id)
    assert found is not None
    assert (found.outcome, found.reason) == ("rollback", "late")
    assert others in days.connection.scalars(select(op.c.id)).all()
    days.drop(Policy(messages=timedelta(0), decisions=timedelta(0)))
    assert outcome_of(days.connection, txn_id) is None


@pytest.mark.rule("H15")
def test_a_late_decision_is_kept_beside_those_of_another_server(days: Days) -> None:
    """A dump that is restored into a new server has the numbers of the old one, which are greater."""
    restored = op_id_at(ANCIENT)
    values = {"decision": "accept", "decided_at": ANCIENT, "half_ids": [], "group_ids": []}
    make_days(days.connection, [ANCIENT.date()])
    days.connection.execute(insert(op).values(id=restored, written_xid=text("'1099511627776'::xid8"), **values))
    days.connection.commit()
    late = days.accepted([], to=days.address("orders"), at=NOW, declared_at=ANCIENT)
    days.drop()
    assert set(days.connection.scalars(select(op.c.id))) == {restored, late}


def test_a_dropped_day_is_not_made_again(days: Days) -> None:
    orders = days.address("orders")
    half_id = days.half(OLD, to=orders)
    days.drop()
    assert make_days(days.connection, [OLD.date()]) == []
    with pytest.raises(NoPartition), boundary():
        days.connection.execute(insert(half).values(id=half_id, address_id=orders[0], message=b"m"))
    days.connection.rollback()


def test_a_long_reader_of_one_day_holds_up_no_other(days: Days, database_url: str) -> None:
    orders = days.address("orders")
    days.half(OLD, to=orders)
    read = days.half(OLDER, to=orders)
    with psycopg.connect(database_url) as reader:
        reader.execute(f"select 1 from coordinator.half_{OLDER:%Y%m%d}".encode())
        done = days.drop()
        assert done.emptied == (f"half_{OLD:%Y%m%d}",)
        assert f"half_{OLDER:%Y%m%d}" in done.waiting
        assert days.halves() == [read]
        # A partition that could not be locked holds up no other.
        reader.execute("set lock_timeout = '1ms'")
        assert reader.execute(b"select count(*) from coordinator.half").fetchone() == (1,)
    days.drop()
    assert days.halves() == []
    assert not days.there(OLDER)
    assert not days.there(OLD)


def test_a_reader_of_the_whole_table_puts_off_the_detaching_only(days: Days, database_url: str) -> None:
    orders = days.address("orders")
    days.half(OLD, to=orders)
    days.half(NOW, to=orders)
    with psycopg.connect(database_url) as reader:
        today = f"select 1 from coordinator.half where id >= {id_at(NOW)}"
        reader.execute(today.encode())
        done = days.drop()
        assert done.emptied == (f"half_{OLD:%Y%m%d}",)
        assert done.waiting == (f"half_{OLD:%Y%m%d}",)
        with psycopg.connect(database_url) as other:
            other.execute("set lock_timeout = '1ms'")
            assert other.execute(today.encode()).fetchone() == (1,)
        assert make_ahead(days.connection, now=NOW + timedelta(days=1)).ahead == 14
    days.again()
    assert days.drop().removed == (f"half_{OLD:%Y%m%d}",)


def test_two_services_do_it_once(days: Days, database_url: str) -> None:
    orders = days.address("orders")
    days.half(OLD, to=orders)
    with psycopg.connect(database_url) as other:
        other.execute("lock table coordinator.lock in share update exclusive mode")
        assert days.drop() == Dropped()
        other.rollback()  # and not some time after the block
    assert days.drop().emptied


def test_instances_that_ended_long_ago_go(days: Days) -> None:
    slots = itertools.count()

    def one(**ended: object) -> int:
        row = {"slot": next(slots), "host": "h", "pid": 1, "process_start": 1, "version": "1", **ended}
        number = days.connection.scalar(insert(instance).values(row).returning(instance.c.id))
        assert number is not None
        days.connection.commit()
        return int(number)

    alive, lately = one(), one(ended_at=func.now() - timedelta(days=29))
    one(ended_at=func.now() - timedelta(days=31))
    assert days.drop().instances == 1
    assert list(days.connection.scalars(select(instance.c.id).order_by(instance.c.id))) == [alive, lately]


@pytest.mark.rule("R1")
def test_a_reconciliation_sees_whole_days_only_and_none_goes_meanwhile(days: Days, database_url: str) -> None:
    orders = days.address("orders")
    days.half(OLDER, to=orders)
    days.drop()
    since = retention.messages_kept_since(days.connection)
    late = days.half(OLD, to=orders)
    with exported_snapshot(database_url) as snapshot:
        days.again()
        assert days.drop().waiting
        assert days.halves() == [late]
        assert snapshot.kept_since == since
        assert snapshot.kept_since is not None
        assert snapshot.kept(Period()).since == snapshot.kept_since
        lately = Period(since=NOW - timedelta(hours=1))
        assert snapshot.kept(lately) == lately
        with pytest.raises(StoreUnreadable, match="not kept any more"):
            snapshot.kept(Period(until=OLDER - timedelta(days=1)))
    days.drop()
    assert days.halves() == []


@pytest.mark.parametrize(
    ("made", "named"),
    [
        ("view public.theirs as select * from coordinator.{}", "rule _RETURN on view theirs"),
        ("function public.theirs(coordinator.{}) returns int return 1", "function theirs(coordinator.half_"),
        ("table public.theirs (kept coordinator.{})", "column kept of table theirs"),
    ],
)
def test_a_table_that_others_depend_on_stays_alone(days: Days, made: str, named: str) -> None:
    """It is named, and holds up no other day."""
    orders = days.address("orders")
    times = [OLD, OLD + timedelta(days=1)]
    for at in times:
        days.half(at, to=orders)
    first, second = (f"half_{at:%Y%m%d}" for at in times)
    days.connection.execute(text("create " + made.format(first)))
    days.connection.commit()
    done = days.drop()
    assert done.held[0].startswith(f"{first}: {named}")
    assert done == Dropped(emptied=(first, second), removed=(second,), held=done.held)
    assert days.drop() == Dropped(held=done.held)
    days.connection.execute(text(f"drop {made.partition(' ')[0]} public.theirs"))
    days.connection.commit()
    assert days.drop() == Dropped(removed=(first,))
