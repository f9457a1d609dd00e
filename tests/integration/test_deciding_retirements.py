"""Retirements in checkable transactions in the store: what decisions of rivals, recovery, purge and removal make of
their entries (rule H20).
"""

from __future__ import annotations

import random
import threading
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Connection, func, insert, select, update

from store import channels, purge, recovery, removal, undecided
from store.commit import parts
from store.commit.batch import Batch
from store.commit.checkable import Declared, Retired
from store.database import connected
from store.errors import AlreadyDecided, NotLeased
from store.ids import declared_at
from store.tables import HELD, SCHEMA, entry, pending_retirement, txn
from tests.fix_proxy import Proxy
from tests.fix_store import Rows
from tests.fix_store_driver import GROUP, ME, Post, Store, Truth

RIVALS = 16


def held(
    rows: Rows, txn_id: UUID, group: int, *, decision: str = "accept", holder: int | None = None, **more: Any
) -> int:
    """An entry that the transaction has retired; its id."""
    connection = rows.connection
    entry_id = rows.entry(group, lease=HELD)
    row = {"txn_id": txn_id, "group_id": group, "entry_id": entry_id, "half_id": entry_id, "decision": decision}
    row |= {"attempts": 0, "wait_ms": 0, "holder": holder}
    connection.execute(insert(pending_retirement).values({**row, **more}))
    connection.commit()
    return entry_id


def decide(connection: Connection, txn_id: UUID, decision: str) -> bool:
    won = connection.scalar(select(func.coordinator.decide(txn_id, decision, "")))
    connection.commit()
    return bool(won)


def left(connection: Connection) -> int:
    count = connection.scalar(select(func.count()).select_from(pending_retirement))
    connection.rollback()
    return int(count or 0)


def covered(rows: Rows) -> dict[str, list[int]]:
    """By decision: the halves of all ops."""
    found: dict[str, list[int]] = {}
    for each in rows.ops():
        found.setdefault(each.decision, []).extend(each.half_ids or ())
    return {decision: sorted(halves) for decision, halves in found.items()}


@pytest.mark.rule("H20", "H5")
def test_the_first_of_many_rivals_decides_about_retirements(
    database: Connection, database_url: str, rows: Rows
) -> None:
    """Each input is retired, or back once, as the one decision says."""
    orders, billing = rows.queue("orders"), rows.queue("billing")
    txns = [rows.checkable(ME, rows.address_of(orders)) for _ in range(10)]
    entries = {txn_id: [held(rows, txn_id, group) for group in (orders, billing, orders)] for txn_id in txns}
    ready = threading.Barrier(RIVALS)
    failed: list[BaseException] = []
    won: dict[UUID, str] = {}

    def rival(number: int) -> None:
        decision = random.Random(number).choice(("commit", "rollback"))
        try:
            with connected(database_url) as connection:
                for txn_id in txns:
                    ready.wait(30)
                    if decide(connection, txn_id, decision):
                        won[txn_id] = decision
        except Exception as error:  # noqa: BLE001 - told by the test
            failed.append(error)
            ready.abort()

    rivals = [threading.Thread(target=rival, args=(number,)) for number in range(RIVALS)]
    for each in rivals:
        each.start()
    for each in rivals:
        each.join()
    assert failed == []
    committed = sorted(each for txn_id in txns for each in entries[txn_id] if won[txn_id] == "commit")
    back = sorted(each for txn_id in txns for each in entries[txn_id] if won[txn_id] == "rollback")
    ops = covered(rows)
    assert (ops.get("commit", []), ops.get("modify", [])) == (committed, back)
    inputs = database.execute(
        select(entry.c.id, entry.c.lease, entry.c.attempts, entry.c.failures).where(entry.c.id.in_(committed + back))
    )
    assert sorted(tuple(row) for row in inputs) == [(each, 0, 1, 1) for each in back]
    database.rollback()
    assert left(database) == 0


@pytest.mark.rule("H20", "D5")
def test_a_commit_gives_back_what_failed_with_both_its_numbers(database: Connection, rows: Rows) -> None:
    """Attempts that a client may have seen, and of these the failures."""
    orders = rows.queue("orders")
    txn_id = rows.checkable(ME, rows.address_of(orders))
    number = held(rows, txn_id, orders, decision="modify", attempts=5, failures=2)
    assert decide(database, txn_id, "commit")
    numbers = select(entry.c.lease, entry.c.attempts, entry.c.failures).where(entry.c.id == number)
    assert tuple(database.execute(numbers).one()) == (0, 5, 2)


@pytest.mark.rule("H20", "H13")
def test_recovery_leaves_them_to_their_transactions(database: Connection, rows: Rows) -> None:
    """Those of the dead alone: what was rolled back and waited for the dead comes back."""
    orders = rows.queue("orders")
    alive, dead = rows.instance(), rows.instance()
    txn_id, kept = rows.checkable(dead), rows.checkable(alive)
    held(rows, txn_id, orders, holder=dead)
    held(rows, kept, orders, holder=alive)
    owed = rows.checkable(dead)
    held(rows, owed, orders, holder=dead, undo_failed="attempts used up: 1 of 1")
    assert decide(database, owed, "rollback")
    plain = rows.entry(orders, lease=dead)
    assert rows.entries(orders) == [(HELD, 0, None), (HELD, 0, None), (HELD, 0, None), (dead, 0, None)]
    given_up = recovery.end(database, dead)
    assert given_up.leases == 1
    assert rows.entries(orders) == [
        (HELD, 0, None),
        (HELD, 0, None),
        (0, 1, "attempts used up: 1 of 1"),
        (0, 1, None),
    ]
    holders = database.execute(select(pending_retirement.c.txn_id, pending_retirement.c.holder)).all()
    database.rollback()
    assert {tuple(row) for row in holders} == {(txn_id, None), (kept, alive)}
    assert plain > 0
    assert decide(database, txn_id, "rollback")
    assert rows.entries(orders)[0] == (0, 1, None)


@pytest.mark.rule("H20", "H16")
def test_purge_expiry_and_removal_leave_them_and_force_takes_them_out_of_the_decision(
    database: Connection, rows: Rows
) -> None:
    orders, other = rows.queue("orders"), rows.queue("other")
    txn_id = rows.checkable(ME)
    kept, gone = held(rows, txn_id, other), held(rows, txn_id, orders)
    purged = purge.purge(database, "orders")
    assert purged is not None
    assert (purged.purged, purged.held) == (0, 1)
    refused = removal.remove(database, "orders", force=False)
    assert refused is not None
    assert (refused.removed, refused.waiting) == (False, True)
    removed = removal.remove(database, "orders", force=True)
    assert removed is not None
    assert (removed.removed, removed.dropped) == (True, 1)
    assert decide(database, txn_id, "commit")
    assert covered(rows) == {"purge": [gone], "commit": [kept]}
    assert left(database) == 0


@pytest.mark.rule("H20", "H16")
def test_what_is_accepted_after_days_is_kept_from_then_on(database: Connection, rows: Rows) -> None:
    """Retention looks for it among the ops of these days."""
    orders = rows.queue("orders")
    txn_id = rows.checkable(ME)
    half_id = held(rows, txn_id, orders)
    declared = rows.now() - timedelta(days=2)
    database.execute(update(txn).where(txn.c.id == txn_id).values(declared_at=declared))
    database.commit()
    assert decide(database, txn_id, "commit")
    [accepted] = [each for each in rows.ops() if each.decision == "accept"]
    assert (accepted.half_ids, accepted.group_ids, accepted.txn_id) == ([half_id], [orders], txn_id)
    assert abs(declared_at(accepted.id.bytes) - rows.now()) < timedelta(hours=1)
    assert covered(rows)["commit"] == []


@pytest.mark.rule("H20", "H15")
def test_an_operator_decides_and_instances_are_told(database: Connection, database_url: str, rows: Rows) -> None:
    """Which group has something again, from which id on; and the instance that has a delivery in memory."""
    orders = rows.queue("orders")
    holder = rows.instance()
    txn_id, rolled_back = rows.checkable(ME), rows.checkable(ME)
    first = held(rows, txn_id, orders, decision="release", holder=holder)
    second = held(rows, rolled_back, orders)
    [listed, _] = undecided.all_undecided(database)
    assert (listed.txn_id, listed.retired) == (txn_id, 1)
    asked = undecided.outcome_of(database, txn_id)
    assert asked is not None
    assert asked.retired == 1
    with psycopg.connect(database_url, autocommit=True) as listening:
        listening.execute(f"listen {channels.READY}; listen {channels.DECIDED}".encode())
        undecided.commit(database, txn_id, "by the books")
        undecided.roll_back(database, rolled_back, "by the books")
        heard = {(each.channel, each.payload) for each in listening.notifies(timeout=30, stop_after=5)}
    assert heard == {
        (channels.READY, f"{orders}>{first:x}"),
        (channels.READY, f"{orders}>{second:x}"),
        (channels.DECIDED, txn_id.hex),
        (channels.DECIDED, ""),
    }
    assert rows.entries(orders) == [(0, 0, None), (0, 1, None)]


class Retire(Post):
    """Unit: retires an entry in a checkable transaction."""

    def __init__(self, store: Store, entry_id: int, *, txn_id: bytes | None = None, first: bool = True) -> None:
        super().__init__(store, txn_id=txn_id)
        self.ids = [entry_id]
        self.first = first

    def write(self, batch: Batch) -> None:
        self.written += 1
        rows = batch.check_back()
        retired = Retired(b"accept", "", 0, "", b"", 0, "", 0)
        rows.retire(self.txn_id, GROUP, self.ids[0], retired, first=self.first)
        if self.first:
            rows.declare(self.txn_id, Declared(b"client", 0, 1, b"shop", 6000, 30_000, 15, 4))
        else:
            rows.enlist(self.txn_id)


def posted(store: Store, count: int) -> list[int]:
    post = Post(store, count)
    store.add(post)
    store.settle()
    return post.ids


def leases(truth: Truth) -> list[int]:
    return [row[0] for row in truth.rows(f"select lease from {SCHEMA}.entry order by id")]


@pytest.mark.rule("H20")
def test_a_retirement_whose_reply_was_lost_is_written_once(cuttable: Store, proxy: Proxy, truth: Truth) -> None:
    store = cuttable
    first, second = posted(store, 2)
    store.add(Retire(store, first))  # the statement is known then
    store.settle()
    retire = Retire(store, second)
    with proxy.held("replies"):
        store.add(retire)
        store.loop.run_until(lambda: leases(truth) == [HELD, HELD])
        proxy.cut()
    store.settle()
    assert retire.heard == [None]
    assert len(truth.rows(f"select from {SCHEMA}.pending_retirement")) == 2


@pytest.mark.rule("H20", "D10")
def test_what_is_no_longer_leased_is_refused_alone(store: Store, truth: Truth) -> None:
    ids = posted(store, 4)
    truth.run(f"update {SCHEMA}.entry set lease = {ME + 1} where id = {ids[2]}")
    units = [Retire(store, each) for each in ids]
    store.add(*units)
    store.settle()
    assert [type(unit.heard[0]) for unit in units] == [type(None), type(None), NotLeased, type(None)]
    assert leases(truth) == [HELD, HELD, ME + 1, HELD]


@pytest.mark.rule("H20", "H5")
@pytest.mark.parametrize("first", [True, False])
def test_a_decision_under_way_is_waited_for_and_refuses_it(
    store: Store, truth: Truth, database_url: str, first: bool
) -> None:
    one, two = posted(store, 2)
    before = Retire(store, one)
    store.add(before)
    store.settle()
    late = Retire(store, two if first else one, txn_id=before.txn_id, first=first)
    with psycopg.connect(database_url) as rival:
        rival.execute(f"select {SCHEMA}.decide(%s, 'rollback', 'rival')".encode(), [UUID(bytes=before.txn_id)])
        store.add(late)
        store.loop.run_until(lambda: store.pausing == 1)
    store.settle()
    assert isinstance(late.heard[0], AlreadyDecided)
    # this instance has the first in memory: it is owed to it
    assert leases(truth) == [HELD, ME]
    assert truth.rows(f"select holder, rolled_back from {SCHEMA}.pending_retirement") == [(ME, True)]


class Commit(Post):
    """Unit: commits a checkable transaction that has posted nothing."""

    def write(self, batch: Batch) -> None:
        batch.check_back().decide(self.txn_id, b"commit", "")


@pytest.mark.rule("H20", "D7")
def test_a_commit_without_posts_leaves_the_schedule_alone(store: Store, truth: Truth, database_url: str) -> None:
    """A notice would cost each commit a lock over the whole database, and each instance a look."""
    retire = Retire(store, *posted(store, 1))
    store.add(retire)
    store.settle()
    commit = Commit(store, txn_id=retire.txn_id)
    with psycopg.connect(database_url, autocommit=True) as listening:
        listening.execute(f"listen {channels.DUE}; listen {channels.READY}".encode())
        store.add(commit)
        store.settle()
        truth.run(f"notify {channels.READY}, 'last'")
        heard = [each.payload for each in listening.notifies(timeout=30, stop_after=1)]
    assert (commit.heard, heard) == ([None], ["last"])
    assert leases(truth) == []


@pytest.mark.rule("H20", "H12")
def test_letting_go_reads_the_retirements_of_its_transaction_alone(database_url: str) -> None:
    """In the session of the batches, which makes one plan for all transactions."""
    count, each = 20_000, 4
    txns = f"(lpad(to_hex(i / {each}), 32, '0'))::uuid"
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            f"insert into {SCHEMA}.pending_retirement "
            "(txn_id, group_id, entry_id, half_id, decision, attempts, wait_ms, holder) "
            f"select {txns}, 1, i, i, 'accept', 0, 0, {ME} from generate_series(1, {count}) i".encode()
        )
        connection.execute(parts.SETUP.encode())
        blocks = []
        for number in (1, 2, 3):
            asked = f"select {SCHEMA}.let_go(array[{ME}], array[lpad(to_hex({number}), 32, '0')::uuid])"
            row = connection.execute(f"explain (analyze, buffers, format json) {asked}".encode()).fetchone()
            assert row is not None
            plan = row[0][0]["Plan"]
            blocks.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
        freed = connection.execute(
            f"select count(*) from {SCHEMA}.pending_retirement where holder is null".encode()
        ).fetchone()
    assert freed == (3 * each,)
    # the first has read the catalog
    assert blocks[-1] < 100


class Leave(Post):
    """Unit: the control link of a checkable transaction is gone, and with it what its instance had in memory."""

    def write(self, batch: Batch) -> None:
        rows = batch.check_back()
        rows.orphaned[self.txn_id] = 0
        rows.let_go.append(self.txn_id)


@pytest.mark.rule("H20", "H5")
def test_leaving_waits_for_a_decision_under_way_and_holds_nothing_that_it_needs(
    store: Store, truth: Truth, database_url: str
) -> None:
    """Both lock the transaction first: else each would wait for the other."""
    retire = Retire(store, *posted(store, 1))
    store.add(retire)
    store.settle()
    leave = Leave(store, txn_id=retire.txn_id)
    txn_id = [UUID(bytes=retire.txn_id)]
    with psycopg.connect(database_url) as rival:
        rival.execute(f"select from {SCHEMA}.txn where id = %s for update".encode(), txn_id)
        store.add(leave)
        store.loop.run_until(lambda: store.pausing == 1)
        rival.execute(f"select from {SCHEMA}.pending_retirement where txn_id = %s for update nowait".encode(), txn_id)
        rival.execute(f"select {SCHEMA}.decide(%s, 'rollback', 'rival')".encode(), txn_id)
    store.settle()
    assert leave.heard == [None]
    assert leases(truth) == [0]
