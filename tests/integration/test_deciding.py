"""Checkable transactions are decided by one function of the store, for all: the first decision wins, whole."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from sqlalchemy import Connection, func, select

from store import channels, recovery, removal, undecided
from store.database import connected
from store.errors import AddressGone, AlreadyDecided, CannotCommit, Conflict, NotUndecided, boundary
from store.ids import UuidV7, declared_at
from store.tables import SCHEMA, address, entry, txn
from store.views import pending_half
from tests.fix_store import Rows

ME = 7


def _decide(connection: Connection, txn_id: UUID, decision: str, reason: str = "", instance: int | None = None) -> bool:
    with boundary():
        won = connection.scalar(select(func.coordinator.decide(txn_id, decision, reason, instance)))
        connection.commit()
    assert won is not None
    return bool(won)


def _decide_all(
    url: str, decisions: Sequence[tuple[UUID, str]], given: Sequence[tuple[UUID, int, int]] = ()
) -> dict[UUID, bool]:
    """``given``: transaction, half, id of its entries."""
    with psycopg.connect(url) as other:
        columns: list[Any] = [[txn_id for txn_id, _ in decisions], [decision for _, decision in decisions]]
        columns += [["because"] * len(decisions), ME]
        columns += [[row[number] for row in given] for number in range(3)]
        found = other.execute(
            f"select * from {SCHEMA}.decide_all(%s::uuid[], %s, %s, %s, %s::uuid[], %s::int8[], %s::int8[], "
            "null)".encode(),
            columns,
        ).fetchall()
    return dict(found)


def _entries(connection: Connection, *columns: Any) -> list[Any]:
    found = connection.execute(select(*columns).order_by(entry.c.group_id, entry.c.half_id)).all()
    connection.rollback()
    return [tuple(row) for row in found]


def _left(connection: Connection) -> tuple[int, int]:
    """Rows of undecided transactions, and of their halves."""
    counts = [connection.scalar(select(func.count()).select_from(table)) for table in (txn, pending_half)]
    connection.rollback()
    return int(counts[0] or 0), int(counts[1] or 0)


@pytest.mark.rule("H4", "H6")
def test_a_commit_makes_entries_for_each_group_of_the_address_and_one_op(database: Connection, rows: Rows) -> None:
    orders, first, second = rows.queue("orders"), rows.queue("prices", group="a"), rows.queue("prices", group="b")
    other = rows.checkable(ME, rows.address_of(orders))
    txn_id = rows.checkable(ME, rows.address_of(orders), rows.address_of(first))
    halves = rows.pending(txn_id)
    assert _decide(database, txn_id, "commit", "checked", ME)
    columns = (entry.c.group_id, entry.c.half_id, entry.c.lease, entry.c.priority, entry.c.message_group)
    assert _entries(database, *columns) == [
        (orders, halves[0], 0, 4, None),
        (first, halves[1], 0, 4, None),
        (second, halves[1], 0, 4, None),
    ]
    [written] = rows.ops()
    assert (written.id, written.decision, written.reason, written.posted, written.instance_id) == (
        txn_id, "commit", "checked", 2, ME,
    )  # fmt: skip
    assert rows.pending(txn_id) == []
    assert _left(database) == (1, 1)
    assert rows.pending(other) != []


@pytest.mark.rule("H6")
def test_a_rollback_adds_an_op_and_no_entry(database: Connection, rows: Rows) -> None:
    orders = rows.queue("orders")
    txn_id = rows.checkable(ME, rows.address_of(orders), rows.address_of(orders))
    assert _decide(database, txn_id, "rollback")
    assert _entries(database, entry.c.id) == []
    assert [(each.decision, each.reason, each.posted) for each in rows.ops()] == [("rollback", None, 2)]
    assert _left(database) == (0, 0)


@pytest.mark.rule("H5", "T11")
def test_the_first_of_many_rivals_wins(database: Connection, database_url: str, rows: Rows) -> None:
    orders = rows.queue("orders")
    address_id = rows.address_of(orders)
    txns = [rows.checkable(ME, address_id, address_id) for _ in range(12)]
    ready = threading.Barrier(16)
    won: list[tuple[UUID, str, str]] = []
    failed: list[BaseException] = []

    def rival(number: int) -> None:
        decision = random.Random(number).choice(("commit", "rollback"))
        try:
            with connected(database_url) as connection:
                for txn_id in txns:
                    ready.wait(30)
                    if _decide(connection, txn_id, decision, f"rival {number}"):
                        won.append((txn_id, decision, f"rival {number}"))
        except Exception as error:  # noqa: BLE001 - told by the test
            failed.append(error)
            ready.abort()

    rivals = [threading.Thread(target=rival, args=(number,)) for number in range(16)]
    for each in rivals:
        each.start()
    for each in rivals:
        each.join()
    assert failed == []
    assert sorted(won) == sorted((each.id, each.decision, each.reason) for each in rows.ops())
    assert sorted(txn_id for txn_id, _, _ in won) == txns
    committed = sum(decision == "commit" for _, decision, _ in won)
    assert len(_entries(database, entry.c.id)) == 2 * committed
    assert _left(database) == (0, 0)


@pytest.mark.rule("H3", "H4")
def test_a_decision_waits_for_a_post_under_way(database: Connection, database_url: str, rows: Rows) -> None:
    orders = rows.queue("orders")
    address_id = rows.address_of(orders)
    txn_id = rows.checkable(ME, address_id)
    posted = rows.entry(orders)
    database.execute(entry.delete())
    database.commit()
    decided: list[bool] = []

    def decide() -> None:
        with connected(database_url, application_name="deciding") as connection:
            decided.append(_decide(connection, txn_id, "commit"))

    deciding = threading.Thread(target=decide)
    with psycopg.connect(database_url) as post:
        post.execute(f"select from {SCHEMA}.txn where id = %s for key share".encode(), [txn_id])
        values = (txn_id, posted, address_id)
        post.execute(f"insert into {SCHEMA}.pending (txn_id, half_id, address_id) values (%s, %s, %s)".encode(), values)
        deciding.start()
        waits = "select from pg_stat_activity where application_name = 'deciding' and wait_event_type = 'Lock'"
        with psycopg.connect(database_url, autocommit=True) as seen:
            while not seen.execute(waits.encode()).fetchall():
                pass
    deciding.join()
    assert decided == [True]
    assert posted in [row[0] for row in _entries(database, entry.c.half_id)]
    assert [each.posted for each in rows.ops()] == [2]


@pytest.mark.rule("H4")
def test_without_new_ids_the_schedule_has_to_give_them(database: Connection, database_url: str, rows: Rows) -> None:
    """An id below those that the holder of the group has read would count as read."""
    orders = rows.queue("orders")
    later = rows.now() + timedelta(hours=1)
    txns = [
        rows.checkable(ME, rows.address_of(orders), available_at=available_at, message_group=1, priority=9)
        for available_at in (None, rows.now() - timedelta(hours=1), later)
    ]
    halves = [rows.pending(txn_id)[0] for txn_id in txns]
    with psycopg.connect(database_url, autocommit=True) as listening:
        listening.execute(f"listen {channels.DUE}".encode())
        assert all(_decide(database, txn_id, "commit") for txn_id in txns)
        assert {notice.channel for notice in listening.notifies(timeout=30, stop_after=1)} == {channels.DUE}
    decided = {each.id: each.decided_at for each in rows.ops()}
    found = _entries(database, entry.c.id, entry.c.available_at, entry.c.message_group, entry.c.priority)
    assert found == [
        (halves[0], decided[txns[0]], halves[0], 9),
        (halves[1], decided[txns[1]], halves[1], 9),
        (halves[2], later, halves[2], 9),
    ]


@pytest.mark.rule("H4")
def test_an_instance_gives_the_ids_of_the_entries(database: Connection, database_url: str, rows: Rows) -> None:
    orders = rows.queue("orders")
    address_id = rows.address_of(orders)
    earlier, later = rows.now() - timedelta(hours=1), rows.now() + timedelta(hours=1)
    plain = rows.checkable(ME, address_id, address_id, message_group=-5, expires_at=later)
    alone = rows.checkable(ME, address_id, message_group=1, available_at=earlier)
    scheduled = rows.checkable(ME, address_id, available_at=later)
    given, expected = [], []
    for txn_id, key, available_at, expires_at in (
        (plain, -5, None, later), (alone, None, earlier, None), (scheduled, None, later, None),
    ):  # fmt: skip
        for half_id in rows.pending(txn_id):
            entry_id = rows.half_ids.next()
            given.append((txn_id, half_id, entry_id))
            expected.append((half_id, entry_id, entry_id if txn_id == alone else key, available_at, expires_at))
    decisions = [(scheduled, "commit"), (plain, "commit"), (alone, "commit")]
    assert _decide_all(database_url, decisions, given) == {plain: True, alone: True, scheduled: True}
    columns = (entry.c.half_id, entry.c.id, entry.c.message_group, entry.c.available_at, entry.c.expires_at)
    assert _entries(database, *columns) == expected


@pytest.mark.rule("H4")
@pytest.mark.parametrize("which", [0, 1], ids=["that in the transaction's row", "the one with its own row"])
def test_ids_for_some_halves_of_a_transaction_are_refused(
    database: Connection, database_url: str, rows: Rows, which: int
) -> None:
    """A half that is left out of the commit would be lost."""
    orders = rows.queue("orders")
    txn_id = rows.checkable(ME, rows.address_of(orders), rows.address_of(orders))
    known = rows.pending(txn_id)[which]
    with pytest.raises(psycopg.errors.DataException, match="left out"):
        _decide_all(database_url, [(txn_id, "commit")], [(txn_id, known, rows.half_ids.next())])
    assert rows.ops() == []
    assert len(rows.pending(txn_id)) == 2


@pytest.mark.rule("H5")
def test_several_are_decided_at_once_and_each_by_itself(database: Connection, database_url: str, rows: Rows) -> None:
    orders = rows.queue("orders")
    address_id = rows.address_of(orders)
    committed, rolled_back, late = (rows.checkable(ME, address_id) for _ in range(3))
    plain, unknown = rows.txn(ME), UUID(bytes=UuidV7().next())
    [half_id] = rows.pending(committed)
    assert _decide(database, late, "rollback", "earlier")
    decisions = [(unknown, "commit"), (late, "commit"), (rolled_back, "rollback"), (plain, "commit")]
    won = _decide_all(database_url, [*decisions, (committed, "commit")])
    assert won == {committed: True, rolled_back: True, late: False, plain: False, unknown: False}
    found = {each.id: (each.decision, each.reason) for each in rows.ops()}
    assert found == {
        committed: ("commit", "because"), rolled_back: ("rollback", "because"), late: ("rollback", "earlier"),
    }  # fmt: skip
    assert _entries(database, entry.c.half_id) == [(half_id,)]
    assert _left(database) == (1, 0)


@pytest.mark.rule("H5")
def test_what_was_decided_by_a_question_before_its_first_half_came_stays_so(database: Connection, rows: Rows) -> None:
    orders = rows.queue("orders")
    txn_id = rows.checkable(ME, rows.address_of(orders))
    rows.decision("rollback", txn_id=txn_id)
    assert not _decide(database, txn_id, "commit")
    assert _entries(database, entry.c.id) == []
    assert _left(database) == (0, 0)


@pytest.mark.rule("P16")
def test_groups_that_are_left_out_get_an_op_instead(database: Connection, rows: Rows) -> None:
    own, other = rows.queue("prices", group="own", routing="topic"), rows.queue("prices", group="other")
    txn_id = rows.checkable(ME, rows.address_of(own), left_out=[own])
    [half_id] = rows.pending(txn_id)
    assert _decide(database, txn_id, "commit", "", ME)
    assert _entries(database, entry.c.group_id, entry.c.half_id) == [(other, half_id)]
    [left_out] = [each for each in rows.ops() if each.id != txn_id]
    assert (left_out.decision, left_out.reason, left_out.half_ids, left_out.group_ids) == (
        "accept", "no-local", [half_id], [own],
    )  # fmt: skip
    assert abs(declared_at(left_out.id.bytes) - rows.now()) < timedelta(hours=1)
    assert left_out.id.version == 7


@pytest.mark.rule("H4")
@pytest.mark.parametrize("first", ["orders", "gone"], ids=["of a half with its own row", "of that in the row"])
def test_an_address_that_is_gone_refuses_the_commit_alone(database: Connection, rows: Rows, first: str) -> None:
    queues = {name: rows.address_of(rows.queue(name)) for name in ("orders", "gone")}
    txn_id = rows.checkable(ME, queues.pop(first), *queues.values())
    database.execute(address.delete().where(address.c.name == "gone"))
    database.commit()
    with pytest.raises(AddressGone):
        _decide(database, txn_id, "commit")
    database.rollback()
    assert rows.ops() == []
    assert len(rows.pending(txn_id)) == 2
    with pytest.raises(CannotCommit, match="an address that it posted to was removed; it can be rolled back"):
        undecided.commit(database, txn_id, "x")
    assert _decide(database, txn_id, "rollback")
    assert _left(database) == (0, 0)


@pytest.mark.rule("H13", "H16")
@pytest.mark.parametrize("last", [False, True], ids=["in the transaction's row", "in its own"])
def test_an_address_with_undecided_messages_is_removed_by_force_only(
    database: Connection, rows: Rows, last: bool
) -> None:
    orders, other = rows.queue("orders", origin="use"), rows.queue("other")
    both = [rows.address_of(orders), rows.address_of(other)]
    lost = rows.checkable(ME, *(reversed(both) if last else both))
    kept = rows.checkable(ME, rows.address_of(other))
    refused = removal.remove(database, "orders", force=False)
    assert refused == removal.Removal(removed=False, undecided=True)
    assert removal.remove_unused(database, timedelta(0)) == 0
    assert _left(database) == (2, 3)
    done = removal.remove(database, "orders", force=True)
    assert done == removal.Removal(removed=True, rolled_back=1)
    outcome = undecided.outcome_of(database, lost)
    assert outcome is not None
    assert (outcome.outcome, outcome.reason) == ("rollback", "address-removed")
    assert len(rows.pending(kept)) == 1
    assert _left(database) == (1, 1)


@pytest.mark.rule("H5", "H15")
@pytest.mark.parametrize(("decide", "wanted"), [(undecided.commit, "commit"), (undecided.roll_back, "rollback")])
def test_an_operator_decides_either_way(database: Connection, rows: Rows, decide: Any, wanted: str) -> None:
    orders = rows.queue("orders")
    txn_id = rows.checkable(ME, rows.address_of(orders), rows.address_of(orders))
    [listed] = undecided.all_undecided(database)
    assert (listed.txn_id, listed.producer_group, listed.checks, listed.posted) == (txn_id, "shop", 0, 2)
    asked = undecided.outcome_of(database, txn_id)
    assert asked is not None
    assert (asked.outcome, asked.posted) == ("undecided", 2)
    viewed = f"select outcome, posted from {SCHEMA}.outcome"
    assert database.exec_driver_sql(viewed).all() == [("undecided", 2)]
    outcome = decide(database, txn_id, "as the books say")
    assert (outcome.outcome, outcome.reason, outcome.posted) == (wanted, "as the books say", 2)
    assert outcome.instance_id is None
    assert len(_entries(database, entry.c.id)) == (2 if wanted == "commit" else 0)
    with pytest.raises(AlreadyDecided, match=rf"decided already: {wanted} \(as the books say\) at "):
        decide(database, txn_id, "again")
    with pytest.raises(NotUndecided):
        decide(database, uuid4(), "none")


@pytest.mark.rule("H5", "H16")
def test_a_transaction_becomes_checkable_while_an_operator_rolls_it_back(
    database: Connection, database_url: str, rows: Rows
) -> None:
    """Nothing of its first half is left that would keep its address and its message for ever."""
    orders = rows.address_of(rows.queue("orders"))
    txn_id = rows.checkable(ME, orders)
    database.execute(txn.update().values(producer_group=None))
    database.commit()
    done: list[undecided.Outcome] = []

    def resolve() -> None:
        with connected(database_url, application_name="resolving") as other:
            done.append(undecided.roll_back(other, txn_id, "enough"))

    resolving = threading.Thread(target=resolve)
    with connected(database_url) as posting:
        posting.execute(txn.update().values(producer_group="shop"))
        resolving.start()
        waits = "select from pg_stat_activity where application_name = 'resolving' and wait_event_type = 'Lock'"
        while not database.exec_driver_sql(waits).all():
            database.rollback()
            assert resolving.is_alive()
        posting.commit()
    resolving.join()
    database.rollback()
    assert [(each.outcome, each.posted) for each in done] == [("rollback", 1)]
    assert _left(database) == (0, 0)


@pytest.mark.rule("H7", "H13")
def test_a_dead_instance_leaves_checkable_transactions_undecided(
    database: Connection, database_url: str, rows: Rows
) -> None:
    recovery.register(database, "1")
    dead, alive = rows.instance(), rows.instance()
    orders = rows.address_of(rows.queue("orders"))
    young, old, lost_before, other = (rows.checkable(each, orders) for each in (dead, dead, dead, alive))
    now = rows.now()
    for txn_id, values in (
        (old, {"declared_at": now - timedelta(minutes=1)}),
        (lost_before, {"connection": None, "next_check_at": now + timedelta(hours=1)}),
        (other, {"next_check_at": now + timedelta(hours=1)}),
    ):
        database.execute(txn.update().where(txn.c.id == txn_id).values(values))
    database.commit()
    with connected(database_url) as connection:
        given_up = recovery.give_up_dead(connection, recovery_beats(database, dead))
    assert given_up.transactions == 0
    assert rows.ops() == []
    found = {row.id: row for row in database.execute(select(txn))}
    assert [found[txn_id].connection for txn_id in (young, old, lost_before, other)] == [None, None, None, 1]
    assert found[young].next_check_at == found[young].declared_at + timedelta(seconds=6)
    assert now < found[old].next_check_at < now + timedelta(minutes=1)
    assert found[lost_before].next_check_at == found[other].next_check_at == now + timedelta(hours=1)
    assert _left(database) == (4, 4)


def recovery_beats(connection: Connection, instance_id: int) -> dict[int, Any]:
    """As if the instance's heart stood still."""
    beats = {row.id: row.beaten_at for row in connection.execute(recovery.LIVING)}
    connection.rollback()
    return {instance_id: beats[instance_id]}


@pytest.mark.rule("H5")
def test_no_other_op_is_a_decision(database: Connection, rows: Rows) -> None:
    txn_id = rows.checkable(ME, rows.address_of(rows.queue("orders")))
    with pytest.raises(Conflict, match="op_decision_check"):
        _decide(database, txn_id, "accept")
    database.rollback()
    assert _left(database) == (1, 1)
