"""The views that a person reads show each state of messages and transactions (H18)."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, and_, case, delete, func, insert, select, text, update

from store.commit import terms
from store.ids import moment_of
from store.recovery import held
from store.tables import DROPPING, consumer_group, entry, group_read, op, removed_address
from tests.fix_command import Command
from tests.fix_store import Rows
from tests.plans import nodes

pytestmark = pytest.mark.rule("H18")


def _view(connection: Connection, query: str, **values: object) -> list[tuple[Any, ...]]:
    found = [tuple(row) for row in connection.execute(text(query), values)]
    connection.rollback()
    return found


def _states(connection: Connection, half_id: int) -> list[tuple[Any, ...]]:
    query = "select address, consumer_group, state from coordinator.messages where half_id = :half order by 2"
    return _view(connection, query, half=half_id)


_ENTRY = st.fixed_dictionaries(
    {
        "lease": st.sampled_from([0, 0, 7]),
        "failed": st.sampled_from([None, None, "rejected"]),
        "priority": st.sampled_from([terms.DEFAULT, terms.DEFAULT, 0, 9]),
        "available_at": st.sampled_from([None, None, timedelta(hours=1), timedelta(hours=-1)]),
    }
)


@given(st.lists(_ENTRY, min_size=1, max_size=8), st.integers(0, 8), st.sampled_from([0, 1, 2]))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_entry_is_in_the_state_that_the_service_means(
    database: Connection, rows: Rows, entries: list[dict[str, Any]], read: int, holder: int
) -> None:
    """``read``: how many of them the holder, instance 1, has read."""
    database.execute(text("truncate coordinator.address, coordinator.group_read, coordinator.entry cascade"))
    group = rows.queue("orders")
    now = rows.now()
    ids = [
        rows.entry(group, **{**each, "available_at": each["available_at"] and now + each["available_at"]})
        for each in entries
    ]
    database.execute(update(consumer_group).values(holder=holder))
    for through in ids[:read]:
        database.execute(insert(group_read).values(group_id=group, instance_id=1, read_through=through))
    meant = case(
        (entry.c.failed.is_not(None), "failed"),
        (held, "inflight"),
        (and_(entry.c.available_at.is_not(None), entry.c.available_at > func.now()), "scheduled"),
        else_="ready",
    )
    expected = [tuple(row) for row in database.execute(select(entry.c.id, meant).order_by(entry.c.id))]
    database.commit()
    assert _view(database, "select entry_id, state from coordinator.entries order by 1") == expected
    states = [state for _, state in expected]
    counts = tuple(states.count(state) for state in ("ready", "inflight", "scheduled", "failed"))
    assert _view(database, "select ready, inflight, scheduled, failed from coordinator.groups") == [counts]
    assert _view(database, "select ready, inflight, scheduled, failed from coordinator.addresses") == [counts]


def test_a_message_goes_through_its_states(database: Connection, rows: Rows) -> None:
    group = rows.queue("orders", kind="transaction")
    txn_id = rows.checkable(rows.instance(), rows.address_of(group))
    (half_id,) = rows.pending(txn_id)
    assert _states(database, half_id) == [("orders", None, "pending")]
    assert _view(database, "select pending, ready from coordinator.addresses") == [(1, 0)]
    database.execute(text("select coordinator.decide(:txn, 'commit', '')"), {"txn": txn_id})
    database.execute(update(entry).values(available_at=None))
    database.commit()
    assert _states(database, half_id) == [("orders", "", "ready")]
    assert _view(database, "select pending, ready from coordinator.addresses") == [(0, 1)]
    database.execute(update(entry).values(lease=1))
    database.commit()
    assert _states(database, half_id) == [("orders", "", "inflight")]
    database.execute(update(entry).values(lease=0, available_at=rows.now() + timedelta(hours=1)))
    database.commit()
    assert _states(database, half_id) == [("orders", "", "scheduled")]
    database.execute(update(entry).values(failed="rejected"))
    database.commit()
    assert _states(database, half_id) == [("orders", "", "failed")]
    database.execute(delete(entry))
    database.commit()
    assert _states(database, half_id) == [("orders", "", "no-entry")]
    _end(database, rows, "accept", half_id, group)
    assert _states(database, half_id) == [("orders", "", "acked")]
    # Deleted: the day is dropped.
    database.execute(text(f"set local {DROPPING} = 'on'"))
    database.execute(text("truncate coordinator.half"))
    database.commit()
    assert _states(database, half_id) == []


def _end(database: Connection, rows: Rows, decision: str, half_id: int, group: int) -> None:
    number = UUID(bytes=rows.txn_ids.next())
    database.execute(insert(op).values(id=number, decision=decision, half_ids=[half_id], group_ids=[group]))
    database.commit()


@pytest.mark.parametrize(
    ("decision", "state"), [("expire", "expired"), ("dead-letter", "dead-lettered"), ("purge", "purged")]
)
def test_a_message_that_ends_otherwise(database: Connection, rows: Rows, decision: str, state: str) -> None:
    group = rows.queue("orders")
    half_id, other = rows.entry(group), rows.entry(group)
    database.execute(delete(entry).where(entry.c.half_id == half_id))
    for failed in ("reject", "modify", "release"):
        _end(database, rows, failed, other, group)
    _end(database, rows, decision, half_id, group)
    assert _states(database, half_id) == [("orders", "", state)]
    assert _states(database, other) == [("orders", "", "ready")]


def test_a_message_accepted_in_a_transaction(database: Connection, rows: Rows) -> None:
    group = rows.queue("orders")
    half_id = rows.entry(group)
    database.execute(delete(entry))
    txn_id = UUID(bytes=rows.txn_ids.next())
    row = {"id": txn_id, "txn_id": txn_id, "decision": "commit", "posted": 0}
    database.execute(insert(op).values(row | {"half_ids": [half_id], "group_ids": [group]}))
    database.commit()
    assert _states(database, half_id) == [("orders", "", "acked")]


def test_a_message_that_is_rolled_back_is_in_no_group(database: Connection, rows: Rows) -> None:
    group = rows.queue("orders")
    rows.queue("orders", group="billing")
    txn_id = rows.checkable(rows.instance(), rows.address_of(group))
    (half_id,) = rows.pending(txn_id)
    database.execute(text("select coordinator.decide(:txn, 'rollback', 'checked')"), {"txn": txn_id})
    database.commit()
    assert _states(database, half_id) == [("orders", None, "rolled-back")]


def test_a_message_has_a_state_in_each_group(database: Connection, rows: Rows) -> None:
    first, second = rows.queue("orders", group="billing"), rows.queue("orders", group="shipping")
    half_id = rows.entry(first, lease=1)
    database.execute(insert(entry).values(group_id=second, id=half_id, half_id=half_id))
    database.commit()
    assert _states(database, half_id) == [("orders", "billing", "inflight"), ("orders", "shipping", "ready")]


def test_a_message_whose_transaction_is_nowhere_and_one_whose_address_is_gone(database: Connection, rows: Rows) -> None:
    group = rows.queue("orders")
    lost = rows.entry(group, txn_id=UUID(bytes=rows.txn_ids.next()))
    assert _states(database, lost) == [("orders", None, "unknown")]
    orphan = rows.entry(group)
    database.execute(text("delete from coordinator.address"))
    database.commit()
    assert database.scalar(select(func.count()).select_from(removed_address)) == 1
    database.rollback()
    assert _states(database, orphan) == [("orders", None, "no-entry")]


def test_the_undecided_are_read(database: Connection, rows: Rows) -> None:
    orders, bills = rows.queue("orders"), rows.queue("bills")
    instance_id = rows.instance()
    plain = rows.txn(instance_id, owner="shop")
    addresses = (rows.address_of(orders), rows.address_of(bills), rows.address_of(bills))
    checkable = rows.checkable(instance_id, *addresses)
    query = "select txn_id, producer_group, posted, retired, addresses from coordinator.undecided order by 1"
    assert _view(database, query) == [(plain, None, 2, 1, []), (checkable, "shop", 3, 0, ["bills", "orders"])]
    assert _view(database, "select bool_and(age between '0' and '1 hour') from coordinator.undecided") == [(True,)]
    # Its op is there, and its row is not removed yet.
    rows.decision("commit", txn_id=plain)
    assert _view(database, "select txn_id from coordinator.undecided") == [(checkable,)]


def test_groups_by_command(command: Command, database_url: str, rows: Rows) -> None:
    billing, news = rows.queue("orders", group="billing"), rows.queue("news")
    first = rows.entry(billing, failed="rejected")
    rows.entry(billing, lease=4)
    only = rows.entry(news)
    done = command("group", "list", "--json", "--database-url", database_url)
    assert done.returncode == 0, done.stderr
    oldest = [datetime.fromisoformat(line["oldest_at"]) for line in _json(done)]
    assert oldest == [moment_of(only), moment_of(first)]
    shown = [tuple(line[name] for name in ("address", "group", "ready", "inflight", "failed")) for line in _json(done)]
    assert shown == [("news", "", 1, 0, 0), ("orders", "billing", 0, 1, 1)]
    done = command("group", "list", "news", "--database-url", database_url)
    assert [line.split()[:4] for line in done.stdout.splitlines()] == [
        ["address", "group", "volatile", "ready"],
        ["news", "(default)", "False", "1"],
    ]
    assert command("group", "list", "none", "--database-url", database_url).returncode == 1


def _json(done: Any) -> Any:
    return json.loads(done.stdout)


def test_an_address_shows_what_is_undecided(command: Command, database_url: str, rows: Rows) -> None:
    group = rows.queue("orders")
    rows.checkable(1, rows.address_of(group))
    (listed,) = _json(command("address", "list", "--json", "--database-url", database_url))
    shown = _json(command("address", "show", "orders", "--json", "--database-url", database_url))
    assert (listed["pending"], shown["pending"]) == (1, 1)
    counts = {"failed", "inflight", "ready", "scheduled", "more"}
    policies = {"max_attempts", "on_expiry", "own_policies", "retry"}
    paused = {"paused_at", "paused_by", "paused_for"}
    shows = {"address", "group", "volatile", "created_at", "oldest_at", "seek"} | counts | policies | paused
    assert [group.keys() for group in shown["groups"]] == [shows]


def test_undecided_messages_count_at_their_address_wherever_they_are_stored(
    command: Command, database_url: str, database: Connection, rows: Rows
) -> None:
    """In the transaction's row, with a row each, or both; the plan counts them once for all addresses."""
    own, mixed, in_row, _ = (rows.address_of(rows.queue(name)) for name in ("a-own", "b-mixed", "c-in-row", "d-none"))
    rows.checkable(1, own, own, own, priority=9)
    rows.checkable(1, mixed, mixed, own)
    for _ in range(2):
        rows.checkable(1, in_row)
    counted = "select address, pending from coordinator.addresses order by 1"
    assert _view(database, counted) == [("a-own", 4), ("b-mixed", 2), ("c-in-row", 2), ("d-none", 0)]
    one = "select pending from coordinator.addresses where address = 'b-mixed'"
    assert _view(database, one) == [(2,)]
    listed = _json(command("address", "list", "--json", "--database-url", database_url))
    assert [each["pending"] for each in listed] == [4, 2, 2, 0]


def test_undecided_messages_are_read_once_for_a_thousand_addresses(database: Connection, rows: Rows) -> None:
    rows.checkable(1, rows.address_of(rows.queue("orders")))
    more = "insert into coordinator.address (name) select 'more' || n from generate_series(1, 1000) n"
    database.execute(text(more))
    database.execute(text("analyze coordinator.address"))
    ((plan,),) = _view(database, "explain (analyze, format json) select sum(pending) from coordinator.addresses")
    scans = {node["Relation Name"]: node["Actual Loops"] for node in nodes(plan[0]["Plan"]) if "Relation Name" in node}
    assert (scans["txn"], scans["pending"]) == (1, 1)
