"""A batch in doubt is known by what it wrote, and an instance that was given up writes nothing."""

from __future__ import annotations

import threading

import psycopg
import pytest
from sqlalchemy import Connection, select

from store import recovery
from store.commit.batch import Batch
from store.database import connected
from store.embedded.server import EmbeddedServer
from store.errors import AlreadyDecided
from store.tables import SCHEMA, heartbeat
from tests.fix_proxy import Proxy
from tests.fix_store import Rows
from tests.fix_store_driver import (
    ME,
    WAIT_FOR_STANDBY,
    Post,
    Retire,
    Store,
    Truth,
    Yield,
    let_commits_wait,
    running,
    truth_of,
)


class RollBack(Post):
    """Unit: the op of a transaction that is undone."""

    def write(self, batch: Batch) -> None:
        self.written += 1
        batch.op(self.txn_id, b"rollback", txn_id=self.txn_id, reason="link-lost", posted=1)


@pytest.mark.rule("T8", "H4", "H5")
@pytest.mark.parametrize("reason", ["instance-lost", "asked"])
def test_a_decision_of_another_is_not_taken_for_the_batch_in_doubt(
    cuttable: Store, proxy: Proxy, truth: Truth, reason: str
) -> None:
    """Lost on its way, and its first transactions rolled back by others meanwhile."""
    store = cuttable
    store.add(Post(store))
    store.settle()
    undone, rolled_back = Post(store, 2), RollBack(store)
    others = [Post(store, 2) for _ in range(5)]
    with proxy.held("requests"):
        store.add(rolled_back, undone, *others)
        store.loop.run_for(0.2)
        for unit in (undone, rolled_back):
            truth.run(
                f"insert into {SCHEMA}.op (id, decision, txn_id, reason, posted, instance_id) "
                f"values ('{unit.txn_id.hex()}', 'rollback', '{unit.txn_id.hex()}', '{reason}', 1, {ME})"
            )
        proxy.cut()
    store.settle()
    for unit in (undone, rolled_back):
        assert [type(each) for each in unit.heard] == [AlreadyDecided]
    assert all(unit.heard == [None] for unit in others)
    assert truth.halves() == sorted(id_ for unit in (store.heard[0], *others) for id_ in unit.ids)


@pytest.mark.rule("T8", "H4", "H5")
@pytest.mark.parametrize(("reason", "instance"), [("link-lost", "null"), ("asked", str(ME))])
def test_a_rollback_of_another_is_not_taken_for_our_own(
    cuttable: Store, proxy: Proxy, truth: Truth, reason: str, instance: str
) -> None:
    store = cuttable
    store.add(RollBack(store))
    store.settle()
    units = [RollBack(store), RollBack(store)]
    with proxy.held("requests"):
        store.add(*units)
        store.loop.run_for(0.2)
        txn_id = units[0].txn_id.hex()
        truth.run(
            f"insert into {SCHEMA}.op (id, decision, txn_id, reason, posted, instance_id) "
            f"values ('{txn_id}', 'rollback', '{txn_id}', '{reason}', 1, {instance})"
        )
        proxy.cut()
    store.settle()
    assert [type(each) for each in units[0].heard] == [AlreadyDecided]
    assert units[1].heard == [None]
    assert units[1].txn_id in truth.ops()


def test_a_batch_that_adds_no_row_is_not_repeated_either(cuttable: Store, proxy: Proxy, truth: Truth) -> None:
    store = cuttable
    first, post = Post(store), Post(store)
    store.add(first, post)
    store.settle()
    store.add(Yield(store, first.ids[0]))
    store.settle()
    lease = f"select lease from {SCHEMA}.entry where id = {post.ids[0]}"
    unit = Yield(store, post.ids[0])
    with proxy.held("replies"):
        store.add(unit)
        store.loop.run_until(lambda: truth.rows(lease) == [(0,)])
        truth.run(f"update {SCHEMA}.entry set lease = {ME}")  # loaded again, on another connection
        proxy.cut()
    store.settle()
    assert unit.heard == [None]
    assert truth.rows(lease) == [(ME,)]
    lost = Yield(store, post.ids[0])
    with proxy.held("requests"):
        store.add(lost)
        store.loop.run_for(0.2)
        proxy.cut()
    store.settle()
    assert lost.heard == [None]
    assert truth.rows(lease) == [(0,)]


@pytest.mark.rule("T11", "H13")
@pytest.mark.parametrize("kind", [Post, RollBack, Yield, Retire])
def test_an_instance_that_was_given_up_writes_nothing(store: Store, truth: Truth, kind: type[Post]) -> None:
    post = Post(store)
    store.add(post)
    store.settle()
    truth.run(f"update {SCHEMA}.instance set ended_at = now()")
    unit = kind(store, post.ids[0]) if kind in (Yield, Retire) else kind(store)
    store.add(unit)
    store.loop.run_until(lambda: store.fenced)
    store.loop.run_for(0.1)
    assert unit.heard == []
    assert truth.halves() == post.ids
    assert truth.ops() == {post.txn_id}
    assert truth.rows(f"select lease from {SCHEMA}.entry") == [(ME,)]


@pytest.mark.rule("T11", "H13")
def test_giving_up_waits_for_the_batch_under_way(store: Store, truth: Truth, database_url: str) -> None:
    """It would miss the leases that the batch writes, or call a transaction lost that is committed a moment later."""
    unit = Post(store)

    def give_up() -> None:
        with connected(database_url) as connection:
            recovery.end(connection, ME)

    with psycopg.connect(database_url) as blocker:
        blocker.execute(
            f"insert into {SCHEMA}.op (id, decision, txn_id, posted) values (%s, 'rollback', %s, 1)".encode(),
            (unit.txn_id.hex(), unit.txn_id.hex()),
        )
        store.add(unit)
        store.loop.run_until(lambda: truth.waiting_backends() == 1)
        giving_up = threading.Thread(target=give_up)
        giving_up.start()
        waiting = (
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        )
        store.loop.run_until(lambda: truth.rows(waiting) == [(2,)])
        assert truth.rows(f"select ended_at from {SCHEMA}.instance") == [(None,)]
        blocker.rollback()
    store.settle()
    giving_up.join()
    assert unit.heard == [None]
    assert truth.rows(f"select lease from {SCHEMA}.entry") == [(0,)]
    late = Post(store)
    store.add(late)
    store.loop.run_until(lambda: store.fenced)
    assert late.heard == []
    assert truth.halves() == unit.ids


@pytest.mark.rule("T8", "H4")
@pytest.mark.parametrize("how", ["pg_terminate_backend", "pg_cancel_backend"])
def test_a_commit_that_waits_for_its_standby_is_not_answered_because_it_is_seen(
    own_server: tuple[EmbeddedServer, str], how: str
) -> None:
    """The server process that waits is ended, or its wait is: its transaction can be seen from then on, and no standby
    has it. Of a wait that is cancelled the server says "committed", and that it may not be replicated.
    """
    _, url = own_server
    with truth_of(url) as truth, running(url) as store:
        store.add(Post(store))
        store.settle()
        let_commits_wait(truth, url)
        unit = Post(store)
        store.add(unit)
        store.loop.run_until(lambda: truth.rows(WAIT_FOR_STANDBY))
        assert unit.txn_id not in truth.ops()
        truth.run(f"select {how}(pid) from ({WAIT_FOR_STANDBY}) w")
        store.loop.run_until(lambda: unit.txn_id in truth.ops())
        store.loop.run_until(lambda: unit.heard or truth.rows(WAIT_FOR_STANDBY))
        store.loop.run_for(0.5)
        assert unit.heard == []
        truth.run("alter system reset synchronous_standby_names")
        truth.run("select pg_reload_conf()")
        store.settle()
        assert unit.heard == [None]
        assert unit.written == 1


@pytest.mark.rule("H5", "T11")
def test_a_question_about_one_of_them_waits_for_nothing_of_the_others(
    database: Connection, database_url: str, rows: Rows
) -> None:
    """It locks the row of the transaction, and then writes the op, as its function does: the same order."""
    dead = rows.instance()
    asked, _ = (rows.txn(dead) for _ in range(2))
    waits = "select 1 from pg_stat_activity where application_name = 'giving up' and wait_event_type = 'Lock'"
    beaten = database.scalar(select(heartbeat.c.beaten_at).where(heartbeat.c.instance_id == dead))
    database.rollback()
    found: list[recovery.GivenUp] = []

    def give_up() -> None:
        with connected(database_url, application_name="giving up") as connection:
            found.append(recovery.give_up_dead(connection, {dead: beaten}))

    thread = threading.Thread(target=give_up)
    with psycopg.connect(database_url) as asking, psycopg.connect(database_url) as look:
        asking.execute("select from coordinator.txn where id = %s for no key update", (asked,))
        thread.start()
        while not look.execute(waits).fetchone():
            assert thread.is_alive()
            look.rollback()
        asking.execute("set lock_timeout = '1ms'")
        asking.execute("select coordinator.ask(%s, 9)", (asked,))
    thread.join()
    assert found == [recovery.GivenUp(instances=(dead,), transactions=1)]
    assert sorted(op.reason for op in rows.ops()) == ["asked", "instance-lost"]
