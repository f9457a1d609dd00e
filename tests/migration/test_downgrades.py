"""A store that an earlier version takes back, with what the later one has written into it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Connection, insert, text, update

from store import history, migrations, roles, users
from store.database import connected
from store.ids import TxnIds
from store.partitions import make_days, op_id_at
from store.retention import Dropped, Policy, drop_old
from store.tables import HELD, consumer_group, op, pending_retirement, seek
from tests.fix_halves import post_halves
from tests.fix_store import Rows
from tests.fix_store_driver import ME, Store, Truth

#: before policies of groups, retirements, seeks, retries on fifo addresses, check terms by address
EARLIER = "0005"


def _later(rows: Rows, connection: Connection) -> tuple[int, int]:
    """Rows that need the schemas from 0006 on: two entries of an address of kind fifo. One waits for its retry, the
    other a transaction has retired.
    """
    group = rows.queue("orders", kind="fifo", retry="ladder", check_most=3)
    waits = rows.entry(group, message_group=-1, acquired=True, available_at=rows.now() + timedelta(hours=1))
    retired = rows.entry(group, message_group=-2, lease=HELD)
    txn_id = rows.checkable(ME, rows.address_of(group))
    held = {"txn_id": txn_id, "group_id": group, "entry_id": retired, "half_id": retired, "decision": "accept"}
    connection.execute(insert(pending_retirement).values(**held, attempts=0, wait_ms=0))
    connection.execute(
        update(consumer_group).where(consumer_group.c.id == group).values(retry="ladder", max_attempts=3)
    )
    connection.execute(insert(seek).values(group_id=group, back=True, to_id=waits, position=waits))
    replayed = {"id": rows.txn_ids.next().hex(), "decision": "replay", "half_ids": [waits], "group_ids": [group]}
    connection.execute(insert(op).values(**replayed))
    connection.commit()
    return waits, retired


@pytest.mark.rule("F6")
def test_what_later_versions_have_written_is_delivered_by_an_earlier_one_and_after_it(
    database: Connection, database_url: str, rows: Rows
) -> None:
    waits, retired = _later(rows, database)
    database.close()
    migrations.downgrade(database_url, EARLIER)
    free = text("select id from coordinator.entry where lease = 0 and available_at is null order by id")
    with connected(database_url) as connection:
        assert migrations.current(connection) == EARLIER
        assert list(connection.scalars(free)) == [waits, retired]
        assert list(connection.scalars(text("select retry from coordinator.address where name = 'orders'"))) == [
            "immediate"
        ]
        assert connection.scalar(text("select count(*) from coordinator.pending")) == 1
        assert connection.scalar(text("select count(*) from coordinator.op where decision = 'replay'")) == 1
    migrations.upgrade(database_url)
    with connected(database_url) as connection:
        migrations.check(connection)
        assert connection.scalars(free).all() == [waits, retired]
        assert connection.scalar(text("select count(*) from coordinator.half")) == 3


@pytest.mark.rule("F6", "X2")
def test_what_applications_have_posted_stays(database: Connection, database_url: str, rows: Rows) -> None:
    """Before 0013 there is no function to post with; afterwards there is again."""
    rows.queue("orders")
    post = text("select coordinator.post('orders', 'tea')")
    database.execute(post)
    database.commit()
    database.close()
    due = text("select count(*) from coordinator.entry where lease = 0 and available_at <= now()")
    migrations.downgrade(database_url, "0012")
    with connected(database_url) as connection:
        assert connection.scalar(due) == 1
        assert connection.scalar(text("select count(*) from pg_proc where proname = 'post'")) == 0
    migrations.upgrade(database_url)
    with connected(database_url) as connection:
        connection.execute(post)
        connection.commit()
        assert connection.scalar(due) == 2


@pytest.mark.rule("X2")
def test_an_application_is_told_that_an_earlier_schema_has_no_such_function(
    database: Connection, database_url: str
) -> None:
    database.close()
    migrations.downgrade(database_url, "0012")
    call = b"select coordinator.post('orders', 'tea')"
    with psycopg.connect(database_url) as application:
        with pytest.raises(psycopg.errors.UndefinedFunction, match=r"coordinator\.post"):
            application.execute(call)
        application.rollback()
        migrations.upgrade(database_url)
        with pytest.raises(psycopg.Error, match="there is no address") as refused:
            application.execute(call)
    assert refused.value.sqlstate == "CO006"


@pytest.mark.rule("F6", "R35")
def test_what_an_earlier_version_has_dropped_is_archived_nowhere(database: Connection, database_url: str) -> None:
    database.close()
    migrations.downgrade(database_url, "0018")
    with connected(database_url) as connection:
        connection.execute(
            text("insert into coordinator.retention values ('half', '2026-01-05', now()), ('op', '2026-01-02', now())")
        )
        connection.commit()
    migrations.upgrade(database_url)
    from_ = text("select archived_from::text from coordinator.retention order by table_name")
    with connected(database_url) as connection:
        assert list(connection.scalars(from_)) == ["2026-01-05", "2026-01-02"]


@pytest.mark.rule("F6", "H2", "S9")
def test_halves_in_rows_have_rows_of_their_own_in_an_earlier_version(
    database: Connection, database_url: str, rows: Rows
) -> None:
    """Which commits them; and a role that reads these reads the view that has all, after the upgrade."""
    orders = rows.queue("orders")
    txn_id, other = rows.checkable(ME, *[rows.address_of(orders)] * 2), rows.checkable(ME, rows.address_of(orders))
    halves, waits = rows.pending(txn_id), rows.pending(other)
    role = f"reader_{secrets.token_hex(4)}"
    database.execute(text(f"create role {role}"))
    database.commit()
    database.close()
    migrations.downgrade(database_url, "0028")
    decide = text("select coordinator.decide(:txn, 'commit', '')")
    delivered = text("select half_id from coordinator.entry order by half_id")
    try:
        with connected(database_url) as connection:
            connection.execute(text(f"grant select on coordinator.pending to {role}"))
            assert (
                connection.scalars(text("select half_id from coordinator.pending order by 1")).all() == halves + waits
            )
            assert connection.scalar(decide, {"txn": txn_id}) is True
            assert connection.scalars(delivered).all() == halves
            connection.commit()
        migrations.upgrade(database_url)
        with connected(database_url) as connection:
            readable = text("select has_table_privilege(:role, 'coordinator.pending_half', 'select')")
            assert connection.scalar(readable, {"role": role}) is True
            assert connection.scalar(decide, {"txn": other}) is True
            assert connection.scalars(delivered).all() == halves + waits
            connection.execute(text(f"drop owned by {role}"))
            connection.commit()
    finally:
        with connected(database_url) as connection:
            connection.execute(text(f"drop role {role}"))
            connection.commit()


@pytest.mark.rule("F6", "H4", "X3")
def test_what_is_decided_while_an_earlier_version_waits_for_it_leaves_nothing_undecided(
    store: Store, truth: Truth, database_url: str
) -> None:
    """A discharge in SQL needs no service that serves."""
    halves = post_halves(store, 2, together=True)
    store.commit.close()
    with psycopg.connect(database_url) as session, ThreadPoolExecutor() as threads:
        session.execute("select coordinator.decide(%s, 'commit', '')", [UUID(bytes=halves[0].txn_id)])
        downgraded = threads.submit(migrations.downgrade, database_url, "0028")
        while not truth.rows("select from pg_stat_activity where wait_event_type = 'Lock'"):
            assert not downgraded.done()
        session.commit()
        downgraded.result()
    assert truth.rows("select half_id from coordinator.pending") == []
    assert len(truth.rows("select half_id from coordinator.entry")) == len(halves)


def _drop_old(connection: Connection, policy: Policy) -> Dropped:
    """Retention, also in a schema of before it had the table that it locks."""
    there = connection.scalar(text("select to_regclass('coordinator.lock')"))
    if there is None:
        connection.execute(text("create table coordinator.lock ()"))
    connection.commit()
    try:
        return drop_old(connection, policy)
    finally:
        if there is None:
            connection.execute(text("drop table coordinator.lock"))
            connection.commit()


@pytest.mark.rule("F6", "H16")
@pytest.mark.parametrize(
    ("interrupted_at", "change", "to"),
    [(migrations.HEAD, migrations.downgrade, "0031"), ("0031", migrations.upgrade, migrations.HEAD)],
)
def test_a_day_whose_removal_was_interrupted_is_removed_by_another_version(
    database: Connection, database_url: str, interrupted_at: str, change: Callable[[str, str], None], to: str
) -> None:
    """PostgreSQL does not alter a partition that is being detached with its table, and detaches none that differs."""
    day = datetime.now(UTC).date() - timedelta(days=50)
    name, policy = f"op_{day:%Y%m%d}", Policy(messages=timedelta(hours=72), decisions=timedelta(days=30))
    drop_old(database, policy)  # the day of tests that count from 1
    database.execute(text("delete from coordinator.retention"))
    make_days(database, [day])
    database.close()
    migrations.downgrade(database_url, interrupted_at)
    with connected(database_url) as connection, psycopg.connect(database_url) as reader:
        reader.execute(f"select 1 from coordinator.op where id >= '{op_id_at(datetime.now(UTC))}'".encode())
        assert name in _drop_old(connection, policy).waiting
    interrupted = text("select inhrelid::regclass::text from pg_inherits where inhdetachpending")
    with connected(database_url) as connection:
        assert list(connection.scalars(interrupted)) == [f"coordinator.{name}"]
    change(database_url, to)
    with connected(database_url) as connection:
        assert not list(connection.scalars(interrupted))
        assert name in _drop_old(connection, policy).removed


@pytest.mark.rule("F6", "S3")
def test_users_that_an_earlier_version_has_made_keep_what_they_had(database: Connection, database_url: str) -> None:
    """Their txn-ids and subscriptions say their names; those of users that are made later, their ids."""
    database.close()
    migrations.downgrade(database_url, "0038")
    with connected(database_url) as connection:
        connection.execute(text("insert into coordinator.user_account (name) values ('alice')"))
        connection.commit()
    migrations.upgrade(database_url)
    with connected(database_url) as connection:
        secret = connection.scalar(text("select secret from coordinator.store_identity"))
        txn_id = TxnIds(1, bytes(secret)).next("alice")
        assert history.genuine(connection, UUID(bytes=txn_id))
        users.add(connection, "bob", {})
        made = {each.name: each.id for each in users.list_all(connection)}
        assert made["alice"] == "alice"
        assert made["bob"] != "bob"
        group = "insert into coordinator.consumer_group (address_id, name, owner) select id, 'prices', :owner from made"
        at = "with made as (insert into coordinator.address (name, routing) values ('t', 'topic') returning id)"
        connection.execute(text(f"{at} {group}"), {"owner": made["bob"]})
        connection.commit()
    migrations.downgrade(database_url, "0038")
    with connected(database_url) as connection:
        assert connection.scalar(text("select owner from coordinator.consumer_group")) == "bob"


@pytest.mark.rule("F6", "S9")
def test_a_service_with_a_role_of_its_own_goes_on_over_the_upgrade(database: Connection, database_url: str) -> None:
    """It has the rights that it had, and those to what is new that its functions need by now."""
    role = f"service_{secrets.token_hex(4)}"
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute(f"create role {role}".encode())
        roles.grant(database, roles.SERVICE, role)
        database.close()
        migrations.downgrade(database_url, "0038")
        migrations.upgrade(database_url)
        may = "select has_table_privilege(%s, 'coordinator.lock', 'update')"
        assert owner.execute(may, [role]).fetchone() == (True,)
        owner.execute(f"drop role {role}".encode())
