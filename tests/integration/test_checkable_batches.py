"""The group commit and checkable transactions, on a real PostgreSQL: no half without an undecided transaction, no
decision without its halves, however others decide meanwhile and however the wire fails.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg
import pytest

from store.commit.batch import Batch, Undecided
from store.commit.checkable import Declared
from store.commit.terms import PLAIN
from store.errors import AddressGone, AlreadyDecided
from store.ids import id_at
from store.partitions import op_id_at
from store.spool import LARGE
from store.tables import SCHEMA
from tests.fix_proxy import Proxy
from tests.fix_store_driver import GROUP, ME, Nothing, Post, Store, Truth

ROW = Declared(b"client", 0, 1, b"shop", 6000, 30_000, 15, 4)


class Half(Post):
    """Unit: a half of a checkable transaction, with its row if it is the ``first``."""

    def __init__(self, store: Store, txn_id: bytes, *, first: bool = False, address: int = 1, size: int = 10) -> None:
        super().__init__(store, txn_id=txn_id, size=size)
        self.first = first
        self.address = address

    def write(self, batch: Batch) -> None:
        self.written += 1
        batch.half(self.ids[0], self.txn_id, self.address, self.message)
        rows = batch.check_back()
        rows.pend(self.txn_id, self.ids[0], self.address, PLAIN, [])
        if self.first:
            rows.declare(self.txn_id, ROW)
        else:
            rows.enlist(self.txn_id)


class Decide(Post):
    """Unit: the decision of a checkable transaction with these halves."""

    def __init__(self, store: Store, txn_id: bytes, decision: bytes, halves: Sequence[Post] = ()) -> None:
        super().__init__(store, txn_id=txn_id)
        self.decision = decision
        self.halves = [half.ids[0] for half in halves]
        self.entries: list[int] = []

    def write(self, batch: Batch) -> None:
        self.written += 1
        self.entries = [self.store.ids.next() for _ in self.halves]
        batch.check_back().decide(self.txn_id, self.decision, "because", self.halves, self.entries)


class Left(Post):
    def __init__(self, store: Store, txn_id: bytes, *, overdue: bool = False) -> None:
        super().__init__(store, txn_id=txn_id)
        self.overdue = overdue

    def write(self, batch: Batch) -> None:
        rows = batch.check_back()
        (rows.overdue if self.overdue else rows.orphaned).append(self.txn_id)


class Listed(Nothing):
    """Unit: the row of a plain transaction that lives longer than a moment."""

    def write(self, batch: Batch) -> None:
        batch.register(self.txn_id, Undecided(b"client", 0, 1, 2, 3))


def _posted(store: Store, count: int = 1) -> list[Half]:
    """A transaction with so many durable halves."""
    txn_id = store.uuids.next()
    halves = []
    for number in range(count):
        halves.append(Half(store, txn_id, first=not number))
        store.add(halves[-1])
        store.settle()
    assert all(half.heard == [None] for half in halves)
    return halves


def _decided(truth: Truth) -> dict[bytes, tuple[str, int]]:
    rows = truth.rows(f"select id, decision, posted from {SCHEMA}.op where decision in ('commit', 'rollback')")
    return {row[0].bytes: tuple(row[1:]) for row in rows}


def _pending(truth: Truth) -> list[int]:
    return [row[0] for row in truth.rows(f"select half_id from {SCHEMA}.pending order by half_id")]


def _txns(truth: Truth) -> list[bytes]:
    return [row[0].bytes for row in truth.rows(f"select id from {SCHEMA}.txn order by id")]


def _by_another(truth: Truth, txn_id: bytes, decision: str) -> None:
    assert truth.rows(f"select {SCHEMA}.decide(%s, %s, 'rival')", UUID(bytes=txn_id), decision) == [(True,)]


@pytest.mark.rule("H3", "H4")
def test_halves_wait_and_are_committed_with_new_ids(store: Store, truth: Truth) -> None:
    halves = _posted(store, 3)
    assert _pending(truth) == [half.ids[0] for half in halves]
    assert truth.entries() == []
    decide = Decide(store, halves[0].txn_id, b"commit", halves)
    store.add(decide)
    store.settle()
    assert decide.heard == [None]
    rows = truth.rows(f"select id, half_id, available_at from {SCHEMA}.entry order by id")
    assert rows == [(entry, half.ids[0], None) for entry, half in zip(decide.entries, halves, strict=True)]
    assert _decided(truth) == {decide.txn_id: ("commit", 3)}
    assert (_pending(truth), _txns(truth)) == ([], [])


@pytest.mark.rule("H5")
def test_a_decision_that_comes_too_late_is_refused_alone(store: Store, truth: Truth) -> None:
    posted = [_posted(store, 2) for _ in range(8)]
    late = posted[3][0].txn_id
    _by_another(truth, late, "rollback")
    units = [Decide(store, halves[0].txn_id, b"commit", halves) for halves in posted]
    store.add(*units)
    store.settle()
    assert [unit.txn_id for unit in units if unit.heard != [None]] == [late]
    assert isinstance(units[3].heard[0], AlreadyDecided)
    assert _decided(truth) == {unit.txn_id: ("rollback" if unit.txn_id == late else "commit", 2) for unit in units}
    assert len(truth.entries()) == 14
    assert (_pending(truth), _txns(truth)) == ([], [])


@pytest.mark.rule("H3", "H5")
@pytest.mark.parametrize("decision", ["commit", "rollback"])
@pytest.mark.parametrize("first", [False, True], ids=["another half", "the first half, as far as is known"])
def test_no_half_comes_after_the_decision(store: Store, truth: Truth, decision: str, first: bool) -> None:
    """Even one that is written as if the row were not there yet: as it is while the first is on its way."""
    halves = _posted(store)
    txn_id = halves[0].txn_id
    _by_another(truth, txn_id, decision)
    late = Half(store, txn_id, first=first)
    store.add(late)
    store.settle()
    assert isinstance(late.heard[0], AlreadyDecided)
    assert truth.halves() == [halves[0].ids[0]]
    assert (_pending(truth), _txns(truth)) == ([], [])


@pytest.mark.rule("H3", "H5")
@pytest.mark.parametrize("first", [False, True])
def test_a_decision_under_way_is_waited_for(store: Store, truth: Truth, database_url: str, first: bool) -> None:
    """What it has done is not seen by the batch's own snapshot."""
    halves = _posted(store)
    txn_id = halves[0].txn_id
    late = Half(store, txn_id, first=first)
    with psycopg.connect(database_url) as rival:
        rival.execute(f"select {SCHEMA}.decide(%s, 'commit', 'rival')".encode(), [UUID(bytes=txn_id)])
        store.add(late)
        store.loop.run_until(lambda: truth.waiting_backends() == 1)
        assert not late.heard
    store.settle()
    assert isinstance(late.heard[0], AlreadyDecided)
    assert truth.halves() == truth.entries() == [halves[0].ids[0]]
    assert (_pending(truth), _txns(truth)) == ([], [])


@pytest.mark.rule("H5", "T11")
def test_a_question_before_the_first_half_refuses_it(store: Store, truth: Truth) -> None:
    txn_id = store.uuids.next()
    truth.rows(
        f"insert into {SCHEMA}.op (id, decision, txn_id, reason, posted) values (%s, 'rollback', %s, 'asked', 0) "
        "returning 1",
        UUID(bytes=txn_id),
        UUID(bytes=txn_id),
    )
    half = Half(store, txn_id, first=True)
    store.add(half)
    store.settle()
    assert isinstance(half.heard[0], AlreadyDecided)
    assert (truth.halves(), _pending(truth), _txns(truth)) == ([], [], [])


@pytest.mark.rule("H5")
def test_rivals_and_batches_agree(store: Store, truth: Truth, database_url: str) -> None:
    """Deciders in two threads beside the batches of the instance: each transaction has one decision, whole."""
    posted = [_posted(store, 2) for _ in range(40)]
    units = [Decide(store, halves[0].txn_id, b"commit", halves) for halves in posted]
    failed: list[Exception] = []

    def rival(step: int) -> None:
        try:
            with psycopg.connect(database_url, autocommit=True) as connection:
                for halves in posted[::step]:
                    decided = [UUID(bytes=halves[0].txn_id)]
                    connection.execute(f"select {SCHEMA}.decide(%s, 'rollback', 'rival')".encode(), decided)
        except psycopg.Error as error:
            failed.append(error)

    rivals = [threading.Thread(target=rival, args=(step,)) for step in (1, -1)]
    for each in rivals:
        each.start()
    for unit in units:
        store.add(unit)
        store.loop.turn(0)
    store.settle()
    for each in rivals:
        each.join()
    assert failed == []
    won = [unit for unit in units if unit.heard == [None]]
    assert _decided(truth) == {unit.txn_id: ("commit" if unit in won else "rollback", 2) for unit in units}
    assert len(truth.entries()) == 2 * len(won)
    assert (_pending(truth), _txns(truth)) == ([], [])


@pytest.mark.rule("H4", "H13", "T8")
@pytest.mark.parametrize("lost", ["replies", "requests"])
def test_a_decision_whose_reply_was_lost_is_written_once(
    cuttable: Store, proxy: Proxy, truth: Truth, lost: str
) -> None:
    store = cuttable
    before, halves = _posted(store), _posted(store, 2)
    store.add(Decide(store, before[0].txn_id, b"rollback"))  # the statement is known then
    store.settle()
    decide = Decide(store, halves[0].txn_id, b"commit", halves)
    with proxy.held(lost):
        store.add(decide)
        if lost == "replies":
            store.loop.run_until(lambda: len(truth.ops()) == 2)
        else:
            store.loop.run_for(0.2)
        proxy.cut()
    store.settle()
    assert decide.heard == [None]
    assert truth.entries() == decide.entries
    assert _decided(truth) == {decide.txn_id: ("commit", 2), before[0].txn_id: ("rollback", 1)}


@pytest.mark.rule("H5", "T8")
def test_of_two_rivals_with_the_same_decision_one_is_told_that_it_was_late(
    cuttable: Store, proxy: Proxy, truth: Truth
) -> None:
    """The look for a decision whose reply was lost finds that of the rival, and is not mistaken."""
    store = cuttable
    halves = _posted(store)
    decide = Decide(store, halves[0].txn_id, b"rollback")
    with proxy.held("requests"):
        store.add(decide)
        store.loop.run_for(0.2)
        _by_another(truth, halves[0].txn_id, "rollback")
        proxy.cut()
    store.settle()
    assert isinstance(decide.heard[0], AlreadyDecided)


@pytest.mark.rule("H4")
def test_an_address_that_is_gone_refuses_posts_and_commits_alone(store: Store, truth: Truth) -> None:
    kept, lost = _posted(store), _posted(store)
    truth.run(f"insert into {SCHEMA}.address (id, name) overriding system value values (2, 'gone')")
    there = Half(store, lost[0].txn_id, address=2)
    store.add(there)
    store.settle()
    assert there.heard == [None]
    truth.run(f"delete from {SCHEMA}.address where id = 2")
    late = Half(store, kept[0].txn_id, address=2)
    units = [Decide(store, lost[0].txn_id, b"commit", [*lost, there]), Decide(store, kept[0].txn_id, b"commit", kept)]
    store.add(late)
    store.settle()
    store.add(*units)
    store.settle()
    assert [type(unit.heard[0]) for unit in (late, *units)] == [AddressGone, AddressGone, type(None)]
    assert _decided(truth) == {kept[0].txn_id: ("commit", 1)}
    assert _pending(truth) == [lost[0].ids[0], there.ids[0]]


@pytest.mark.rule("H7", "T13", "T14")
def test_what_is_left_or_overdue_is_due_once_it_is_immune_no_longer(store: Store, truth: Truth) -> None:
    left, overdue, foreign = (_posted(store)[0].txn_id for _ in range(3))
    truth.run(f"update {SCHEMA}.txn set declared_at = now()")
    truth.run(f"update {SCHEMA}.txn set instance_id = {ME + 1} where id = '{foreign.hex()}'")
    store.add(Left(store, left), Left(store, overdue, overdue=True), Left(store, foreign))
    store.settle()
    rows = truth.rows(
        f"select id, connection, next_check_at - declared_at from {SCHEMA}.txn where check_immunity_ms = 6000"
    )
    found = {row[0].bytes: tuple(row[1:]) for row in rows}
    assert found == {left: (None, timedelta(seconds=6)), overdue: (4, timedelta(seconds=6)), foreign: (4, None)}


@pytest.mark.rule("H2")
def test_a_plain_transaction_that_is_listed_becomes_checkable(store: Store, truth: Truth) -> None:
    listed = Listed(store)
    store.add(listed)
    store.settle()
    half = Half(store, listed.txn_id, first=True)
    store.add(half)
    store.settle()
    row = truth.rows(f"select producer_group, check_immunity_ms, most_checks, connection from {SCHEMA}.txn")
    assert row == [("shop", 6000, 15, 4)]
    assert half.heard == [None]


@pytest.mark.rule("H4")
def test_the_day_of_a_decision_is_made_when_it_is_missing(store: Store, truth: Truth) -> None:
    day = datetime.now(UTC) - timedelta(days=9)
    txn_id = op_id_at(day).bytes
    half = Half(store, txn_id, first=True)
    half.ids = [id_at(day)]
    store.add(half)
    store.settle()
    truth.run(f"drop table {SCHEMA}.op_{day:%Y%m%d}")
    decide = Decide(store, txn_id, b"commit", [half])
    store.add(decide)
    store.settle()
    assert (half.heard, decide.heard) == ([None], [None])
    assert _decided(truth) == {txn_id: ("commit", 1)}


@pytest.mark.rule("H3")
def test_a_large_half_waits_as_well(store: Store, truth: Truth) -> None:
    half = Half(store, store.uuids.next(), first=True, size=LARGE + 1)
    store.add(half)
    store.settle()
    decide = Decide(store, half.txn_id, b"commit", [half])
    store.add(decide)
    store.settle()
    assert (half.heard, decide.heard) == ([None], [None])
    found = truth.rows(
        f"select e.group_id, length(h.message) from {SCHEMA}.entry e join {SCHEMA}.half h on h.id = half_id"
    )
    assert found == [(GROUP, LARGE + 1)]
