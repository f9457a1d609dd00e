"""Instances that die: what they held comes back, what they had open is rolled back."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import date, datetime, timedelta

import psycopg
import pytest
from sqlalchemy import Connection, text

from store import locks, recovery, roles
from store.database import Patience, connected
from store.errors import Contended, StoreUnavailable, boundary
from store.locks import NAMES, ROW_OF
from store.partitions import make_days
from store.processes import gone, machine, start_ticks
from store.recovery import GivenUp
from store.retention import Dropped, Policy, drop_old
from tests.fix_night import by_night
from tests.fix_proxy import Proxy
from tests.fix_store import Rows

#: The advisory locks of earlier versions: "coorslot", "coorrecv", "coorpart" and the two after it, "coorprom",
#: "coornoti".
_ONCE = [int.from_bytes(name) for name in (b"coorslot", b"coorrecv", b"coorpart", b"coorparu", b"coorparv")]
_ONCE += [int.from_bytes(name) for name in (b"coorprom", b"coornoti")]


@pytest.fixture
def application(database: Connection) -> Iterator[Connection]:
    """A session with the rights of a role that posts in SQL."""
    database.execute(text("create role application_of_locks"))
    roles.grant_application(database, "application_of_locks")
    database.execute(text("set session authorization application_of_locks"))
    database.commit()
    yield database
    database.rollback()
    database.execute(text("reset session authorization"))
    database.execute(text("drop role application_of_locks"))
    database.commit()


def _give_up(connection: Connection, *silent: int) -> GivenUp:
    """As when the heartbeats of ``silent`` stand still."""
    return recovery.give_up_dead(connection, {id_: at for id_, at in _beats(connection).items() if id_ in silent})


def _beats(connection: Connection) -> dict[int, datetime]:
    beats = connection.execute(text("select instance_id, beaten_at from coordinator.heartbeat")).all()
    connection.rollback()
    return {row.instance_id: row.beaten_at for row in beats}


def test_registering(database: Connection, rows: Rows) -> None:
    first = recovery.register(database, "1.2")
    assert first.highest_id == 0
    assert len(first.store_id) == 8
    group = rows.queue("orders")
    rows.entry(group)
    highest = rows.entry(group)
    second = recovery.register(database, "1.2")
    assert second.instance_id > first.instance_id
    assert second.store_id == first.store_id
    assert second.highest_id == highest
    row = database.execute(text("select * from coordinator.instance where id = :i"), {"i": second.instance_id}).one()
    assert (row.host, row.pid, row.process_start) == (machine(), os.getpid(), start_ticks(os.getpid()))
    assert row.ended_at is None


def test_a_registration_that_is_cut_off_lets_go(database: Connection, proxy: Proxy) -> None:
    """The server does not see for long that its client is gone; others could not take a place meanwhile."""
    with (
        suppress(StoreUnavailable),
        connected(proxy.url, patience=Patience(statement_seconds=0.2)) as connection,
    ):
        connection.execute(text("lock table coordinator.instance"))
        proxy.cut_client_side()
    database.execute(text("set lock_timeout = '60s'"))
    database.commit()
    assert recovery.register(database, "1").slot == 0


def test_no_two_that_live_have_one_slot(database: Connection, rows: Rows) -> None:
    """However many came before: 1,024 instances later the number would be that of one that lives."""
    database.execute(text("alter sequence coordinator.instance_id_seq restart with 5"))
    first = recovery.register(database, "1")
    database.execute(text("alter sequence coordinator.instance_id_seq restart with 1029"))
    second = recovery.register(database, "1")
    assert (first.slot, second.slot) == (0, 1)
    assert (first.instance_id, second.instance_id) == (5, 1029)
    recovery.end(database, first.instance_id)
    assert recovery.register(database, "1").slot == 0


def test_with_all_slots_taken_no_instance_begins(database: Connection, rows: Rows) -> None:
    """The last two are for applications and for administration."""
    database.execute(
        text(
            "insert into coordinator.instance (slot, host, pid, process_start, version) "
            "select n, 'elsewhere', 1, 1, '1' from generate_series(0, 1021) n"
        )
    )
    database.commit()
    with pytest.raises(StoreUnavailable, match="1022 instances live in this store"):
        recovery.register(database, "1")


@pytest.mark.rule("P18")
def test_the_message_groups_of_a_dead_instance_are_free(database: Connection, rows: Rows) -> None:
    own = recovery.register(database, "1").instance_id
    dead, alive = rows.instance(), rows.instance()
    group = rows.queue("orders")
    for key, instance in enumerate((dead, alive, own)):
        database.execute(
            text("insert into coordinator.message_group values (:g, :k, :i)"), {"g": group, "k": key, "i": instance}
        )
    database.commit()
    _give_up(database, dead)
    left = database.execute(text("select key, instance_id from coordinator.message_group order by key")).all()
    assert [tuple(row) for row in left] == [(1, alive), (2, own)]


@pytest.mark.rule("D5", "H13")
def test_what_a_dead_instance_held_comes_back(database: Connection, database_url: str, rows: Rows) -> None:
    own = recovery.register(database, "1").instance_id
    dead, alive = rows.instance(), rows.instance()
    group = rows.queue("orders", max_attempts=3)
    for values in (
        {"lease": dead},
        {"lease": dead, "attempts": 1},
        {"lease": dead, "attempts": 2},
        {"lease": dead, "failed": "rejected"},
        {"lease": alive},
        {"lease": own},
        {},
    ):
        rows.entry(group, **values)
    with psycopg.connect(database_url, autocommit=True) as listener:
        listener.execute("listen coordinator_ready")
        given_up = _give_up(database, dead)
        heard = [notice.payload for notice in listener.notifies(timeout=10, stop_after=1)]
    assert given_up == GivenUp(instances=(dead,), leases=4)
    assert rows.entries(group) == [
        (0, 1, None),
        (0, 2, None),
        (0, 3, None),
        (0, 0, "rejected"),
        (alive, 0, None),
        (own, 0, None),
        (0, 0, None),
    ]
    assert heard == [""]
    assert not database.scalar(text("select max(failures) from coordinator.entry")), "a crash fails nothing"
    assert _give_up(database, dead) == GivenUp()


def test_dead_letters_are_tried_for_ever(database: Connection, rows: Rows) -> None:
    recovery.register(database, "1")
    dead = rows.instance()
    group = rows.queue("%DLQ%orders", origin="dead-letter", max_attempts=1)
    rows.entry(group, lease=dead, attempts=32767)
    _give_up(database, dead)
    assert rows.entries(group) == [(0, 32767, None)]


@pytest.mark.rule("H5", "H13")
def test_its_undecided_transactions_are_rolled_back(database: Connection, rows: Rows) -> None:
    recovery.register(database, "1")
    dead, alive = rows.instance(), rows.instance()
    lost, decided, kept = rows.txn(dead, posted=5), rows.txn(dead), rows.txn(alive)
    # It died between its commit and forgetting the transaction.
    rows.decision("commit", txn_id=decided, posted=2)
    given_up = _give_up(database, dead)
    assert given_up == GivenUp(instances=(dead,), transactions=1)
    written = {row.id: (row.decision, row.reason, row.posted) for row in rows.ops()}
    assert written == {lost: ("rollback", "instance-lost", 5), decided: ("commit", None, 2)}
    left = list(database.scalars(text("select id from coordinator.txn")))
    assert left == [kept]


def test_its_dynamic_addresses_and_subscriptions_go(database: Connection, rows: Rows) -> None:
    recovery.register(database, "1")
    dead, alive = rows.instance(), rows.instance()
    mine = rows.queue("$dynamic/1", origin="dynamic", instance_id=dead)
    other = rows.queue("$dynamic/2", origin="dynamic", instance_id=alive)
    volatile = rows.queue("news", group="sub", volatile=dead, routing="topic")
    durable = rows.queue("news", group="durable")
    halves = [rows.entry(group, lease=dead) for group in (mine, other, volatile, durable)]
    given_up = _give_up(database, dead)
    assert given_up == GivenUp(instances=(dead,), leases=2, addresses=1, groups=2)
    names = list(database.scalars(text("select name from coordinator.address order by name")))
    assert names == ["$dynamic/2", "news"]
    assert [rows.entries(group) for group in (mine, volatile)] == [[], []]
    assert [rows.entries(group) for group in (other, durable)] == [[(0, 1, None)], [(0, 1, None)]]
    purged = [(each.decision, each.reason, each.half_ids, each.group_ids) for each in rows.ops()]
    assert purged == [
        ("purge", "removed", [half], [group]) for group, half in ((mine, halves[0]), (volatile, halves[2]))
    ]


def test_a_reply_to_a_dead_address_waits_for_no_other_entry(
    database: Connection, database_url: str, rows: Rows
) -> None:
    """All entries are read when an instance is given up: a batch that posts to its dynamic address does not wait."""
    dead = rows.instance(ended_at=rows.now())
    rows.queue("$dynamic/1", origin="dynamic", instance_id=dead)
    held = rows.entry(rows.queue("orders"), lease=dead)
    waits = "select 1 from pg_stat_activity where application_name = 'giving up' and wait_event_type = 'Lock'"
    found: list[GivenUp] = []

    def recover() -> None:
        with connected(database_url, application_name="giving up") as connection:
            found.append(recovery.recover(connection))

    thread = threading.Thread(target=recover)
    with psycopg.connect(database_url) as other, psycopg.connect(database_url) as batch:
        other.execute("select from coordinator.entry where id = %s for update", (held,))
        thread.start()
        while not batch.execute(waits).fetchone():
            assert thread.is_alive()
            batch.rollback()
        batch.execute("set lock_timeout = '1ms'")
        there = "select name from coordinator.address where name = '$dynamic/1' for key share"
        assert batch.execute(there).fetchone() == ("$dynamic/1",)
        batch.rollback()
        other.rollback()
        thread.join()
    assert found == [GivenUp(leases=1, addresses=1, groups=1)]


def test_addresses_that_a_batch_held_go_with_the_next_look(database: Connection, database_url: str, rows: Rows) -> None:
    dead = rows.instance()
    rows.queue("$dynamic/1", origin="dynamic", instance_id=dead)
    group = rows.queue("orders")
    rows.entry(group, lease=dead)
    with psycopg.connect(database_url) as batch:
        batch.execute("select from coordinator.address where name = '$dynamic/1' for key share")
        database.execute(text("set lock_timeout = '1ms'"))
        database.commit()
        assert _give_up(database, dead) == GivenUp(instances=(dead,), leases=1, owed=True)
        assert rows.entries(group) == [(0, 1, None)]
    assert _give_up(database) == GivenUp(addresses=1, groups=1)


def test_a_process_of_this_machine_is_dead_when_it_is_gone(database: Connection, rows: Rows) -> None:
    recovery.register(database, "1")
    with subprocess.Popen(["sleep", "600"]) as process:
        start = start_ticks(process.pid)
        here = rows.instance(host=machine(), pid=process.pid, process_start=start)
        reused = rows.instance(host=machine(), pid=process.pid, process_start=1)
        elsewhere = rows.instance(host="another machine", pid=process.pid, process_start=1)
        assert _give_up(database).instances == (reused,)
        process.kill()
    assert _give_up(database).instances == (here,)
    assert _give_up(database).instances == ()
    assert elsewhere not in (here, reused)


def test_a_process_that_proc_does_not_show_is_alive_as_long_as_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    # As under hidepid=2 for another user's process: no /proc/PID, and kill(2) is not permitted.
    hidden, ended = 1_000_001, 1_000_002
    real = os.kill

    def kill(pid: int, number: int) -> None:
        if pid == hidden:
            raise PermissionError
        real(pid, number)

    monkeypatch.setattr(os, "kill", kill)
    assert not gone(hidden, 5)
    assert gone(ended, 5)


def test_one_whose_heart_beat_meanwhile_lives(database: Connection, rows: Rows) -> None:
    silent, beating = rows.instance(), rows.instance()
    seen = _beats(database)
    # By the value only: a clock may have been set back.
    database.execute(
        text("update coordinator.heartbeat set beaten_at = beaten_at - interval '1 hour' where instance_id = :i"),
        {"i": beating},
    )
    database.commit()
    assert recovery.give_up_dead(database, seen).instances == (silent,)


def test_a_start_waits_for_another_that_gives_up_but_not_for_ever(
    database: Connection, database_url: str, rows: Rows
) -> None:
    left = rows.txn(rows.instance(ended_at=rows.now()))
    with psycopg.connect(database_url) as other:
        other.execute(f"select {ROW_OF['giving up']} for update".encode())
        with (
            connected(database_url, patience=Patience(lock_seconds=0.2)) as impatient,
            pytest.raises(Contended),
        ):
            recovery.recover(impatient)
        threading.Timer(0.5, other.rollback).start()
        assert recovery.recover(database) == GivenUp(transactions=1)
    assert [row.id for row in rows.ops()] == [left]


@pytest.mark.rule("D5")
@pytest.mark.parametrize("how", ["given up", "recovered", "stopped"])
@pytest.mark.parametrize("what", ["a group whole", "a message group"])
def test_what_it_held_is_told_though_no_entry_comes_back(
    database: Connection, database_url: str, rows: Rows, how: str, what: str
) -> None:
    """Another instance that has looked into the group meanwhile found nothing, and would not look again."""
    recovery.register(database, "1")
    dead = rows.instance()
    group = rows.queue("orders")
    rows.entry(group)
    if what == "a group whole":
        held = "update coordinator.consumer_group set holder = :dead where id = :group"
    else:
        held = "insert into coordinator.message_group (group_id, key, instance_id) values (:group, -1, :dead)"
    database.execute(text(held), {"dead": dead, "group": group})
    if how == "recovered":
        database.execute(text("update coordinator.instance set ended_at = now() where id = :dead"), {"dead": dead})
    database.commit()
    with psycopg.connect(database_url, autocommit=True) as listener:
        listener.execute("listen coordinator_ready")
        if how == "given up":
            given_up = _give_up(database, dead)
        elif how == "recovered":
            given_up = recovery.recover(database)
        else:
            given_up = recovery.end(database, dead)
        heard = [notice.payload for notice in listener.notifies(timeout=10, stop_after=1)]
    assert (given_up.leases, heard) == (0, [""])
    assert _give_up(database) == GivenUp()


@pytest.mark.parametrize("place", ["", " - 127.0.0.1:5000"])
def test_what_is_still_under_way_for_a_dead_instance_is_ended_first(
    database: Connection, database_url: str, rows: Rows, place: str
) -> None:
    """``place``: what PgBouncer adds to a session's name (``application_name_add_host``)."""
    recovery.register(database, "1")
    dead = rows.instance()
    group = rows.queue("orders")
    with psycopg.connect(database_url, application_name=f"coordinator batch {dead}{place}") as batch:
        batch.execute(
            "insert into coordinator.entry (group_id, id, half_id, lease) values (%s, 1, 1, %s)", (group, dead)
        )
        _give_up(database, dead)
        with pytest.raises(psycopg.OperationalError):
            batch.commit()
        batch.close()
    assert rows.entries(group) == []


def test_what_was_left_in_the_name_of_an_ended_one_is_found_at_a_start(database: Connection, rows: Rows) -> None:
    own = recovery.register(database, "1").instance_id
    ended = rows.instance(ended_at=rows.now())
    group = rows.queue("orders")
    rows.entry(group, lease=ended)
    rows.entry(group, lease=own)
    lost = rows.txn(ended)
    assert _give_up(database) == GivenUp()
    assert recovery.recover(database) == GivenUp(leases=1, transactions=1)
    assert rows.entries(group) == [(0, 1, None), (own, 0, None)]
    assert [row.id for row in rows.ops()] == [lost]


def test_an_instance_that_ends_leaves_nothing(database: Connection, rows: Rows) -> None:
    own = recovery.register(database, "1").instance_id
    group = rows.queue("orders")
    rows.entry(group, lease=own)
    assert recovery.end(database, own).leases == 1
    assert rows.entries(group) == [(0, 1, None)]
    ended = database.scalar(text("select ended_at is not null from coordinator.instance where id = :i"), {"i": own})
    assert ended is True


def test_two_that_find_the_same_one_dead_give_it_up_once(database: Connection, database_url: str, rows: Rows) -> None:
    dead = rows.instance()
    group = rows.queue("orders")
    for _ in range(20):
        rows.entry(group, lease=dead)
    txn_id = rows.txn(dead)
    found: list[GivenUp] = []

    def give_up() -> None:
        with connected(database_url) as connection:
            found.append(_give_up(connection, dead))

    threads = [threading.Thread(target=give_up) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.leases for each in found) == [0, 0, 0, 20]
    assert set(rows.entries(group)) == {(0, 1, None)}
    assert [row.id for row in rows.ops()] == [txn_id]


@pytest.mark.rule("S9")
@pytest.mark.parametrize("name", NAMES)
def test_a_role_of_an_application_takes_no_lock_of_the_service(application: Connection, name: str) -> None:
    with pytest.raises(StoreUnavailable, match="42501"), boundary():
        locks.take(application, name)


@pytest.mark.rule("S9")
@pytest.mark.parametrize("mode", ["access share", by_night("share"), by_night("share update exclusive")])
@pytest.mark.parametrize("table", ["lock", "archived_day"])
def test_a_role_of_an_application_locks_none_of_its_tables(application: Connection, table: str, mode: str) -> None:
    with pytest.raises(StoreUnavailable, match="42501"), boundary():
        application.execute(text(f"lock table coordinator.{table} in {mode} mode"))


@pytest.mark.rule("S9", "X2")
def test_locks_that_every_role_can_take_hold_up_no_service(database: Connection, database_url: str) -> None:
    """PostgreSQL gives its advisory locks to all that may connect: what a service does by itself waits for none."""
    taken = "select objid from pg_locks where locktype = 'advisory'"
    asks = "select proname from pg_proc where pronamespace = 'coordinator'::regnamespace and prosrc ~ 'pg_advisory'"
    with psycopg.connect(database_url) as other:
        for key in _ONCE:
            other.execute("select pg_advisory_lock(%s)", [key])
        with connected(database_url, patience=Patience(lock_seconds=1)) as service:
            for _ in range(2):
                registered = recovery.register(service, "1")
            assert recovery.recover(service) == GivenUp()
            assert recovery.give_up_dead(service, {}) == GivenUp()
            recovery.end(service, registered.instance_id)
            assert make_days(service, [date(2030, 1, 1)]) == ["half_20300101", "op_20300101"]
            assert drop_old(service, Policy(messages=timedelta(hours=1), decisions=timedelta(hours=1))) != Dropped()
            assert service.scalars(text(asks)).all() == []
            assert len(service.scalars(text(taken)).all()) == len(_ONCE)
