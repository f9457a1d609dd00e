"""Commits of many applications that post, or discharge, at once (X2, X3)."""

from __future__ import annotations

import threading
import time
from uuid import UUID

import psycopg
import pytest

from store import partitions
from store.application.outbox import TURN_LOCK
from store.database import connected
from store.embedded.server import EmbeddedServer
from store.ids import HalfIds, UuidV7
from tests.fix_application import Application, post, stored
from tests.fix_service import PATIENCE
from tests.fix_store import Rows
from tests.fix_store_driver import ME, WAIT_FOR_STANDBY, Truth, let_commits_wait

pytestmark = pytest.mark.rule("X2")


def make_queue(url: str, transactions: int = 0) -> list[UUID]:
    """A queue, and checkable transactions that have posted to it."""
    with connected(url) as connection:
        partitions.make_ahead(connection)
        rows = Rows(connection, HalfIds(0), UuidV7())
        address = rows.address_of(rows.queue("orders"))
        return [rows.checkable(ME, address) for _ in range(transactions)]


@pytest.mark.rule("X3")
def test_commits_share_a_flush_of_the_disk(own_server: tuple[EmbeddedServer, str]) -> None:
    """While the commit of one waits, for a standby, those of others do not wait for it: they wait beside it."""
    _, url = own_server
    transactions = make_queue(url, 3)
    truth = Truth(url)
    let_commits_wait(truth, url)

    def commit(txn_id: UUID | None) -> None:
        with psycopg.connect(url) as own:
            if txn_id is None:
                post(own, "orders", "tea")
            else:
                own.execute("select coordinator.discharge(%s)", [txn_id])

    applications = [threading.Thread(target=commit, args=[each]) for each in (*transactions, None, None, None)]
    for each in applications:
        each.start()
    deadline = time.monotonic() + PATIENCE
    while len(truth.rows(WAIT_FOR_STANDBY)) < len(applications):
        assert time.monotonic() < deadline, truth.rows("select wait_event_type, wait_event from pg_stat_activity")
        time.sleep(0.01)
    truth.run("alter system reset synchronous_standby_names")
    truth.run("select pg_reload_conf()")
    for each in applications:
        each.join()
    truth.close()


@pytest.mark.parametrize("statement", ["select", "savepoint before", "reset all"])
def test_serializable_transactions_that_post_beside_each_other_commit(database_url: str, statement: str) -> None:
    make_queue(database_url)
    beside: list[Application] = [psycopg.connect(database_url) for _ in range(3)]
    for number, each in enumerate(beside):
        each.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        for part in ("first", "second"):
            post(each, "orders", f"{part} of {number}")
            each.execute(statement.encode())
    for each in reversed(beside):
        each.commit()
    assert [b"first" in octets for octets in stored(beside[0])] == [True, False] * 3
    assert beside[0].execute("select count(*) from coordinator.outbox").fetchone() == (0,)
    for each in beside:
        each.close()


@pytest.mark.rule("X3")
def test_none_can_be_prepared_with_or_without_the_turn(own_server: tuple[EmbeddedServer, str]) -> None:
    """A prepared transaction would hold addresses and groups, or what it decides, for as long as it is forgotten."""
    server, url = own_server
    (txn_id,) = make_queue(url, 1)
    with psycopg.connect(url, autocommit=True) as store:
        store.execute("alter system set max_prepared_transactions = 5")
    server.stop()
    server.start()
    with psycopg.connect(url) as own, psycopg.connect(url, autocommit=True) as other:
        for _ in range(2):
            for call, given in (
                ("post(%s, 'tea')", "orders"),
                ("discharge(%s)", txn_id),
                ("discharge(%s, fail => true)", txn_id),
            ):
                own.execute(f"select coordinator.{call}".encode(), [given])
                with pytest.raises(psycopg.Error, match=r"cannot PREPARE a transaction that has executed .*NOTIFY"):
                    own.execute("prepare transaction 'one'")
                own.rollback()
            other.execute("select pg_advisory_lock(%s)", [TURN_LOCK])
