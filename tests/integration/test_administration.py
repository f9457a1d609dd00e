"""Addresses, outcomes, undecided transactions and purge, on a real store."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from functools import partial
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID, uuid4

import psycopg
import pytest
from sqlalchemy import Connection, func, insert, text, update
from typer.testing import CliRunner

from coordinator.__main__ import app
from store import addresses, counts, dead_letters, undecided
from store.counts import Counts
from store.database import connected
from store.errors import (
    AddressExists,
    AlreadyDecided,
    AppendOnly,
    CannotCheck,
    CannotCommit,
    Conflict,
    NotUndecided,
    StoreUnavailable,
    boundary,
)
from store.purge import Purged, purge
from store.tables import consumer_group, group_read, txn
from tests.fix_store import Rows


def _add(connection: Connection, name: str, routing: str = "queue") -> None:
    addresses.add(connection, name=name, routing=routing, kind="normal", on_expiry="drop", max_attempts=5)


def test_a_queue_is_made_with_its_group_and_others_hear_of_it(database: Connection, database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as listener:
        listener.execute("listen coordinator_address")
        _add(database, "orders")
        heard = [notice.payload for notice in listener.notifies(timeout=10, stop_after=1)]
    assert heard == ["orders"]
    found = addresses.one_address(database, "orders")
    assert found is not None
    assert [group.group for group in found.groups] == [""]
    assert found.max_attempts == 5
    assert found.origin == "administration"


def test_a_topic_has_no_group_at_first(database: Connection) -> None:
    _add(database, "news", "topic")
    found = addresses.one_address(database, "news")
    assert found is not None
    assert found.groups == ()


def test_a_name_is_there_once(database: Connection) -> None:
    _add(database, "orders")
    with pytest.raises(AddressExists):
        _add(database, "orders", "topic")
    database.rollback()
    assert [line.routing for line in addresses.all_addresses(database)] == ["queue"]


def test_the_database_holds_what_an_address_is(database: Connection) -> None:
    with pytest.raises(Conflict, match="address_routing_check"):
        _add(database, "orders", "stack")


def _counts(line: Counts) -> Counts:
    """Of a line, nothing but its counts."""
    return Counts(**{each.name: getattr(line, each.name) for each in fields(Counts)})


@pytest.mark.rule("H18")
def test_messages_are_counted_by_state(database: Connection, rows: Rows) -> None:
    group = rows.queue("orders")
    other = rows.queue("orders", group="billing")
    later = rows.now() + timedelta(hours=1)
    earlier = rows.now() - timedelta(hours=1)
    for values in ({}, {"available_at": earlier}, {"lease": 7}, {"available_at": later}, {"failed": "x"}, {"lease": 7}):
        rows.entry(group, **values)
    rows.entry(other)
    rows.queue("empty")
    found = addresses.one_address(database, "orders")
    assert found is not None
    assert [_counts(group) for group in found.groups] == [
        Counts(ready=2, inflight=2, scheduled=1, failed=1),
        Counts(ready=1, inflight=0, scheduled=0, failed=0),
    ]
    assert _counts(found) == Counts(ready=3, inflight=2, scheduled=1, failed=1)
    lines = {line.name: line for line in addresses.all_addresses(database)}
    assert list(lines) == ["empty", "orders"]
    assert _counts(lines["orders"]) == _counts(found)
    assert lines["orders"].groups == 2
    assert _counts(lines["empty"]) == Counts(ready=0, inflight=0, scheduled=0, failed=0)


@pytest.fixture
def long_lines(database: Connection, rows: Rows) -> int:
    """Three groups with 20,000 messages each, two of them of one address, among ten small ones; one of the three."""
    groups = [rows.queue("long"), rows.queue("long", group="second"), rows.queue("%DLQ%long")]
    few = [rows.queue(f"few{number}") for number in range(10)]
    for group, count in (*((each, 20_000) for each in groups), *((each, 10) for each in few)):
        database.execute(
            text("insert into coordinator.entry (group_id, id, half_id) select :g, n, n from generate_series(1, :c) n"),
            {"g": group, "c": count},
        )
    database.execute(text("update coordinator.address set origin = 'dead-letter' where name like '%DLQ%long'"))
    database.execute(text("update coordinator.entry set lease = 7 where id <= 3"))
    database.commit()
    database.execute(text("analyze coordinator.entry"))
    database.commit()
    return groups[0]


@pytest.mark.rule("H18")
def test_so_many_messages_of_each_group_are_counted_and_the_others_estimated(
    database: Connection, database_url: str, rows: Rows, long_lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.entry(rows.queue("other"), failed="x")
    monkeypatch.setattr(counts, "MOST_COUNTED", 20)
    monkeypatch.setattr(counts, "MOST_OF_MANY", 4)
    (first, second), (other,) = addresses.all_groups(database, "long"), addresses.all_groups(database, "other")
    for each in (first, second):
        assert (each.inflight, each.counted) == (3, 10)
        assert each.more == pytest.approx(20_000, rel=0.1)
    assert _counts(other) == Counts(failed=1)
    found = addresses.one_address(database, "long")
    assert found is not None
    assert (found.counted, len(found.groups)) == (20, 2)
    assert found.more == pytest.approx(40_000, rel=0.1)
    listed = {line.name: line for line in addresses.all_addresses(database, most=3)}
    assert (listed["%DLQ%long"].counted, listed["few0"].counted) == (6, 6)
    (box,) = dead_letters.boxes(database)
    assert box.letters == 20
    assert box.more == pytest.approx(20_000, rel=0.1)
    told = partial(CliRunner().invoke, app, ["dead-letters", "list", "--database-url", database_url])
    printed = [line.split() for line in told().stdout.splitlines()]
    assert [line[:4] for line in printed] == [
        ["name", "letters", "more", "oldest"],
        ["%DLQ%long", "20", "about", str(box.more)],
    ]
    monkeypatch.setattr(counts, "MOST_COUNTED", 50_000)
    (box,) = dead_letters.boxes(database)
    assert (box.letters, box.more) == (20_000, None)
    assert told().stdout.split()[:3] == ["name", "letters", "oldest"]


@pytest.mark.rule("H18")
@pytest.mark.parametrize(
    ("ask", "arguments"), [("all_groups", ["long"]), ("all_addresses", []), ("one_address", ["long"])]
)
def test_no_more_is_read_of_long_lines_than_is_counted(
    database: Connection, long_lines: int, monkeypatch: pytest.MonkeyPatch, ask: str, arguments: list[str]
) -> None:
    """The planner takes groups for alike, and would read and sort all of them."""
    monkeypatch.setattr(counts, "MOST_COUNTED", 9000)
    monkeypatch.setattr(counts, "MOST_OF_MANY", 9000)
    read = text("select idx_tup_fetch + seq_tup_read from pg_stat_xact_user_tables where relname = 'entry'")
    before = database.scalar(read) or 0
    getattr(addresses, ask)(database, *arguments)
    assert 0 < (database.scalar(read) or 0) - before <= 30_000


def test_an_address_shows_its_first_groups(database: Connection, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        rows.queue("orders", group=f"g{number}")
    monkeypatch.setattr(addresses, "_MOST_GROUPS", 2)
    found = addresses.one_address(database, "orders")
    assert found is not None
    assert ([each.group for each in found.groups], found.more_groups) == (["g0", "g1"], 3)


def test_an_unknown_address(database: Connection) -> None:
    assert addresses.one_address(database, "none") is None
    assert purge(database, "none") is None


@pytest.mark.rule("H15")
def test_the_outcome_of_a_commit(database: Connection, rows: Rows) -> None:
    orders, bills = rows.queue("orders"), rows.queue("bills")
    retired = rows.entry(bills)
    txn_id = UUID(bytes=rows.txn_ids.next())
    rows.entry(orders, txn_id=txn_id)
    rows.entry(orders, txn_id=txn_id)
    rows.entry(rows.queue("others"), txn_id=uuid4())
    rows.decision("commit", txn_id=txn_id, posted=2, half_ids=[retired])
    outcome = undecided.outcome_of(database, txn_id)
    assert outcome is not None
    assert (outcome.outcome, outcome.reason, outcome.posted, outcome.retired) == ("commit", None, 2, 1)
    assert outcome.posted_to == ("orders",)
    assert outcome.retired_from == ("bills",)
    assert outcome.decided_at is not None
    assert outcome.declared_at <= outcome.decided_at


@pytest.mark.rule("H15")
def test_the_outcome_of_the_undecided_and_of_the_unknown(database: Connection, rows: Rows) -> None:
    txn_id = rows.txn(1)
    outcome = undecided.outcome_of(database, txn_id)
    assert outcome is not None
    assert (outcome.outcome, outcome.posted, outcome.retired, outcome.decided_at) == ("undecided", 2, 1, None)
    assert undecided.outcome_of(database, uuid4()) is None


@pytest.mark.rule("H15")
def test_the_view_says_the_same(database: Connection, rows: Rows) -> None:
    committed, rolled_back, open_ = rows.decision("commit"), rows.decision("rollback", posted=3), rows.txn(1)
    for txn_id in (committed, rolled_back, open_):
        seen = database.execute(text("select * from coordinator.outcome where txn_id = :id"), {"id": txn_id}).one()
        outcome = undecided.outcome_of(database, txn_id)
        assert outcome is not None
        assert (seen.outcome, seen.posted, seen.retired) == (outcome.outcome, outcome.posted, outcome.retired)


def test_undecided_ones_are_listed_oldest_first(database: Connection, rows: Rows) -> None:
    first, second, decided = rows.txn(1, owner="a"), rows.txn(2, owner="b"), rows.txn(3)
    rows.decision("commit", txn_id=decided)
    listed = undecided.all_undecided(database)
    assert [(line.txn_id, line.owner, line.instance_id) for line in listed] == [(first, "a", 1), (second, "b", 2)]
    assert listed[0].age_seconds >= 0
    database.execute(text("update coordinator.txn set declared_at = now() + interval '5 minutes'"))
    assert {line.age_seconds for line in undecided.all_undecided(database)} == {0}


@pytest.mark.rule("H5")
def test_a_rollback_by_hand_stands(database: Connection, rows: Rows) -> None:
    txn_id = rows.txn(4)
    outcome = undecided.roll_back(database, txn_id, "the client is gone")
    assert (outcome.outcome, outcome.reason, outcome.posted) == ("rollback", "the client is gone", 2)
    assert outcome.instance_id is None
    assert undecided.all_undecided(database) == []
    # The client's own commit comes too late.
    with pytest.raises(AlreadyDecided, match="is decided already"), boundary():
        rows.decision("commit", txn_id=txn_id)
    database.rollback()
    with pytest.raises(AlreadyDecided, match=r"decided already: rollback \(the client is gone\) at "):
        undecided.roll_back(database, txn_id, "again")


@pytest.mark.rule("H5")
def test_a_rollback_by_hand_comes_too_late(database: Connection, rows: Rows) -> None:
    txn_id = rows.txn(4)
    rows.decision("commit", txn_id=txn_id)
    for decide in (partial(undecided.roll_back, reason="x"), partial(undecided.commit, reason="x")):
        with pytest.raises(AlreadyDecided, match=f"{txn_id} is decided already: commit at "):
            decide(database, txn_id)
    assert [row.decision for row in rows.ops()] == ["commit"]


def test_a_plain_transaction_cannot_be_committed_by_hand(database: Connection, rows: Rows) -> None:
    txn_id = rows.txn(4)
    with pytest.raises(CannotCommit, match="its messages are not in the store before its client commits"):
        undecided.commit(database, txn_id, "x")
    assert rows.ops() == []


def test_what_is_not_undecided(database: Connection) -> None:
    txn_id = uuid4()
    for decide in (partial(undecided.roll_back, reason="x"), partial(undecided.commit, reason="x")):
        with pytest.raises(NotUndecided, match=f"no undecided transaction {txn_id}"):
            decide(database, txn_id)


def test_purge_takes_what_waits_and_nothing_else(database: Connection, rows: Rows) -> None:
    group, other = rows.queue("orders"), rows.queue("others")
    waiting = [rows.entry(group) for _ in range(5)] + [rows.entry(group, available_at=rows.now() + timedelta(hours=1))]
    rows.entry(group, lease=3)
    rows.entry(group, failed="rejected")
    rows.entry(other)
    assert purge(database, "orders", chunk=4) == Purged(purged=6, held=2)
    assert rows.entries(group) == [(3, 0, None), (0, 0, "rejected")]
    assert len(rows.entries(other)) == 1
    written = rows.ops()
    assert [row.decision for row in written] == ["purge", "purge"]
    assert sorted(half_id for row in written for half_id in row.half_ids) == waiting
    assert {group_id for row in written for group_id in row.group_ids} == {group}
    assert purge(database, "orders") == Purged(purged=0, held=2)


@pytest.mark.rule("H18")
def test_what_a_holder_has_read_is_of_normal_priority_and_due(database: Connection, rows: Rows) -> None:
    """It reads those by the range of their ids; others below it wait, and are purged as such."""
    group = rows.queue("orders")
    later = rows.now() + timedelta(hours=1)
    waiting = [rows.entry(group, **values) for values in ({"priority": 9}, {"priority": 0}, {"available_at": later})]
    rows.entry(group, failed="rejected")
    rows.entry(group, lease=1, priority=9)
    last = rows.entry(group)
    rows.entry(group)
    database.execute(update(consumer_group).where(consumer_group.c.id == group).values(holder=1))
    database.execute(insert(group_read).values(group_id=group, instance_id=1, read_through=last))
    database.commit()
    found = addresses.one_address(database, "orders")
    assert found is not None
    assert _counts(found) == Counts(ready=3, inflight=2, scheduled=1, failed=1)
    assert purge(database, "orders") == Purged(purged=4, held=3)
    assert {half_id for row in rows.ops() for half_id in row.half_ids} >= set(waiting)


@pytest.mark.rule("H6")
@pytest.mark.parametrize("table", ["half", "op"])
@pytest.mark.parametrize("statement", ["update coordinator.{} set id = id", "delete from coordinator.{}"])
def test_halves_and_ops_are_only_added(database: Connection, rows: Rows, table: str, statement: str) -> None:
    rows.entry(rows.queue("orders"))
    rows.decision("commit")
    with pytest.raises(AppendOnly), boundary():
        database.execute(text(statement.format(table)))


@pytest.mark.rule("S8")
def test_a_database_that_is_away_is_named_without_its_password() -> None:
    with (
        pytest.raises(StoreUnavailable, match=r"database at 127.0.0.1:1/shop: Connection refused") as caught,
        connected("postgresql://user:secret@127.0.0.1:1/shop"),
    ):
        pass
    assert "secret" not in str(caught.value)


def test_a_database_that_is_not_there_is_named(server_url: str) -> None:
    url = urlunsplit(urlsplit(server_url)._replace(path="/nowhere"))
    with pytest.raises(StoreUnavailable, match=r"/nowhere: there is no database of that name"), connected(url):
        pass


@pytest.mark.rule("H10")
def test_the_checks_of_an_undecided_one_are_resumed(database: Connection, rows: Rows) -> None:
    me, orders = rows.instance(), rows.queue("orders")
    txn_id = rows.checkable(me, rows.address_of(orders))
    database.execute(update(txn).values(checks=15, next_check_at=func.now() - timedelta(hours=1)))
    database.commit()
    (waiting,) = undecided.all_undecided(database)
    assert waiting.waits_seconds == pytest.approx(3600, abs=60)
    undecided.resume(database, txn_id)
    (resumed,) = undecided.all_undecided(database)
    assert (resumed.checks, resumed.most_checks) == (0, 15)
    assert resumed.next_check_at == pytest.approx(rows.now(), abs=timedelta(minutes=1))
    undecided.roll_back(database, txn_id, "enough")
    with pytest.raises(AlreadyDecided, match=r"rollback \(enough\)"):
        undecided.resume(database, txn_id)


@pytest.mark.rule("H10")
def test_one_that_its_client_still_holds_is_not_due_by_resuming_it(
    database: Connection, database_url: str, rows: Rows
) -> None:
    """The command says when it will be."""
    txn_id = rows.checkable(rows.instance(), rows.address_of(rows.queue("orders")))
    database.execute(update(txn).values(next_check_at=None))
    database.commit()
    done = CliRunner().invoke(app, ["transaction", "resume", str(txn_id), "--database-url", database_url])
    until = "once its client has left it, or its time is over"
    assert done.stdout == f"transaction {txn_id} is checked again from the first check on, {until}\n"
    (found,) = undecided.all_undecided(database)
    assert (found.next_check_at, found.waits_seconds) == (None, None)


@pytest.mark.rule("H10")
def test_what_cannot_be_resumed(database: Connection, rows: Rows) -> None:
    plain, unknown = rows.txn(rows.instance()), uuid4()
    with pytest.raises(CannotCheck, match=f"transaction {plain} is a plain one"):
        undecided.resume(database, plain)
    with pytest.raises(NotUndecided, match=f"no undecided transaction {unknown}"):
        undecided.resume(database, unknown)
