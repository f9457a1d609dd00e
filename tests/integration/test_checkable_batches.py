"""The group commit and checkable transactions, on a real PostgreSQL: no half without an undecided transaction, no
decision without its halves, however others decide meanwhile and however the wire fails.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg
import pytest

from store.commit.batch import Batch, Undecided
from store.commit.terms import ALONE, PLAIN, DeliveryTerms
from store.decisions import DECIDE
from store.errors import AddressGone, AlreadyDecided
from store.ids import id_at
from store.partitions import op_id_at
from store.spool import LARGE
from store.tables import SCHEMA
from tests.fix_halves import Decide, Half, Left, Settle, decisions_of, pending_of, post_halves, txns_of
from tests.fix_proxy import Proxy
from tests.fix_store_driver import GROUP, ME, Nothing, Store, Truth

#: Of a store and the halves of a transaction, the unit that commits it.
Commit = Callable[[Store, Sequence[Half]], Decide]


@pytest.fixture(params=[Decide, Settle], ids=["by the function", "in the statement"])
def commit(request: pytest.FixtureRequest) -> Commit:
    """A unit that commits the transaction of these halves, by either way."""
    made: type[Decide] = request.param
    return lambda store, halves: made(store, halves[0].txn_id, b"commit", halves)


class Listed(Nothing):
    """Unit: the row of a plain transaction that lives longer than a moment."""

    def write(self, batch: Batch) -> None:
        batch.register(self.txn_id, Undecided(b"client", 0, 1, 2, 3))


def _by_another(truth: Truth, txn_id: bytes, decision: str) -> None:
    assert truth.rows(f"select {SCHEMA}.decide(%s, %s, 'rival')", UUID(bytes=txn_id), decision) == [(True,)]


@pytest.mark.rule("H3", "H4")
def test_halves_wait_and_are_committed_with_new_ids(store: Store, truth: Truth, commit: Commit) -> None:
    halves = post_halves(store, 3)
    assert pending_of(truth) == [half.ids[0] for half in halves]
    assert truth.entries() == []
    decide = commit(store, halves)
    store.add(decide)
    store.settle()
    assert decide.heard == [None]
    rows = truth.rows(f"select id, half_id, available_at from {SCHEMA}.entry order by id")
    assert rows == [(entry, half.ids[0], None) for entry, half in zip(decide.entries, halves, strict=True)]
    assert decisions_of(truth) == {decide.txn_id: ("commit", 3)}
    assert (pending_of(truth), txns_of(truth)) == ([], [])


@pytest.mark.rule("H2", "H4")
def test_a_batch_with_halves_of_several_transactions_keeps_them_apart(store: Store, truth: Truth) -> None:
    """Each row has its own; and what others decide with them is in one statement."""
    txns = [store.uuids.next() for _ in range(4)]
    halves = [
        [Half(store, txn_id, first=not number, new=not number, terms=terms) for number in range(2)]
        for txn_id, terms in zip(txns, [PLAIN, PLAIN, DeliveryTerms(priority=9), PLAIN], strict=True)
    ]
    store.add(*itertools.chain(*halves))
    store.settle()
    in_rows = truth.rows(f"select id, half_ids, address_id from {SCHEMA}.txn order by id")
    ids = [[half.ids[0] for half in each] for each in halves]
    assert [(row[0].bytes, *row[1:]) for row in in_rows] == [
        (txn_id, None if number == 2 else ids[number], None if number == 2 else 1) for number, txn_id in enumerate(txns)
    ]
    for units in (
        [Settle(store, txns[0], b"commit", halves[0]), Settle(store, txns[1], b"commit", halves[1])],
        [Settle(store, txns[2], b"commit", halves[2]), Decide(store, txns[3], b"rollback")],
    ):
        before = sum(store.commit.sizes.counts)
        store.add(*units)
        store.settle()
        assert [unit.heard for unit in units] == [[None], [None]]
        assert sum(store.commit.sizes.counts) == before + 1
        assert all(unit.written == 1 for unit in units)
    delivered = truth.rows(f"select half_id, priority from {SCHEMA}.entry order by half_id")
    assert delivered == [(half, 9 if number == 2 else 4) for number in range(3) for half in ids[number]]
    assert (pending_of(truth), txns_of(truth)) == ([], [])


@pytest.mark.rule("H2", "T23")
def test_a_first_half_for_an_address_that_is_gone_is_refused(store: Store, truth: Truth) -> None:
    half = Half(store, store.uuids.next(), first=True, new=True, address=4711)
    store.add(half)
    store.settle()
    assert isinstance(half.heard[0], AddressGone)
    assert (truth.halves(), pending_of(truth), txns_of(truth)) == ([], [], [])


@pytest.mark.rule("H5")
def test_a_decision_that_comes_too_late_is_refused_alone(store: Store, truth: Truth, commit: Commit) -> None:
    posted = [post_halves(store, 2) for _ in range(8)]
    late = posted[3][0].txn_id
    _by_another(truth, late, "rollback")
    units = [commit(store, halves) for halves in posted]
    store.add(*units)
    store.settle()
    assert [unit.txn_id for unit in units if unit.heard != [None]] == [late]
    assert isinstance(units[3].heard[0], AlreadyDecided)
    assert decisions_of(truth) == {unit.txn_id: ("rollback" if unit.txn_id == late else "commit", 2) for unit in units}
    assert len(truth.entries()) == 14
    assert (pending_of(truth), txns_of(truth)) == ([], [])


@pytest.mark.rule("H3", "H5")
@pytest.mark.parametrize("decision", ["commit", "rollback"])
@pytest.mark.parametrize("first", [False, True], ids=["another half", "the first half, as far as is known"])
def test_no_half_comes_after_the_decision(store: Store, truth: Truth, decision: str, first: bool) -> None:
    """Even one that is written as if the row were not there yet: as it is while the first is on its way."""
    halves = post_halves(store)
    txn_id = halves[0].txn_id
    _by_another(truth, txn_id, decision)
    late = Half(store, txn_id, first=first)
    store.add(late)
    store.settle()
    assert isinstance(late.heard[0], AlreadyDecided)
    assert truth.halves() == [halves[0].ids[0]]
    assert (pending_of(truth), txns_of(truth)) == ([], [])


@pytest.mark.rule("H3", "H5")
@pytest.mark.parametrize("first", [False, True])
def test_a_decision_under_way_is_waited_for(store: Store, truth: Truth, database_url: str, first: bool) -> None:
    """What it has done is not seen by the batch's own snapshot."""
    halves = post_halves(store)
    txn_id = halves[0].txn_id
    late = Half(store, txn_id, first=first)
    with psycopg.connect(database_url) as rival:
        rival.execute(f"select {SCHEMA}.decide(%s, 'commit', 'rival')".encode(), [UUID(bytes=txn_id)])
        store.add(late)
        store.loop.run_until(lambda: store.pausing == 1)
        assert not late.heard
    store.settle()
    assert isinstance(late.heard[0], AlreadyDecided)
    assert truth.halves() == truth.entries() == [halves[0].ids[0]]
    assert (pending_of(truth), txns_of(truth)) == ([], [])


@pytest.mark.rule("H5", "T11")
@pytest.mark.parametrize("new", [False, True])
def test_a_question_before_the_first_half_refuses_it(store: Store, truth: Truth, new: bool) -> None:
    txn_id = store.uuids.next()
    truth.rows(
        f"insert into {SCHEMA}.op (id, decision, txn_id, reason, posted) values (%s, 'rollback', %s, 'asked', 0) "
        "returning 1",
        UUID(bytes=txn_id),
        UUID(bytes=txn_id),
    )
    half = Half(store, txn_id, first=True, new=new)
    store.add(half)
    store.settle()
    assert isinstance(half.heard[0], AlreadyDecided)
    assert (truth.halves(), pending_of(truth), txns_of(truth)) == ([], [], [])


@pytest.mark.rule("H5", "T11")
@pytest.mark.parametrize("listed", [False, True], ids=["its first row", "listed as a plain one"])
def test_a_question_under_way_is_waited_for(store: Store, truth: Truth, database_url: str, listed: bool) -> None:
    """Else the halves of a transaction that is rolled back would wait, and hold what it has retired."""
    txn_id = store.uuids.next()
    for _ in range(listed):
        store.add(Listed(store, txn_id=txn_id))
        store.settle()
    half = Half(store, txn_id, first=True, new=not listed)
    with psycopg.connect(database_url) as asking:
        asking.execute(f"prepare question (uuid, int4) as {DECIDE}".encode())
        asking.execute(f"execute question ('{UUID(bytes=txn_id)}', {ME})".encode())
        store.add(half)
        store.loop.run_until(lambda: truth.waiting_backends() == 1 or store.pausing == 1 or half.heard)
        assert not half.heard
    store.settle()
    assert isinstance(half.heard[0], AlreadyDecided)
    assert (truth.halves(), pending_of(truth)) == ([], [])


@pytest.mark.rule("H5")
def test_sixteen_rivals_and_the_batches_agree(store: Store, truth: Truth, database_url: str, commit: Commit) -> None:
    """Half of them commit, half roll back, in both orders, while the owner commits: each transaction has one decision,
    whole, and one alone is told that it won.
    """
    posted = [post_halves(store, 2) for _ in range(40)]
    units = [commit(store, halves) for halves in posted]
    failed: list[Exception] = []
    won: list[tuple[bytes, str]] = []

    def rival(number: int) -> None:
        decision = "commit" if number % 2 else "rollback"
        statement = f"select {SCHEMA}.decide(%s, '{decision}', 'rival')".encode()
        try:
            with psycopg.connect(database_url, autocommit=True) as connection:
                for halves in posted[:: 1 if number % 4 < 2 else -1]:
                    row = connection.execute(statement, [UUID(bytes=halves[0].txn_id)]).fetchone()
                    if row == (True,):
                        won.append((halves[0].txn_id, decision))
        except psycopg.Error as error:
            failed.append(error)

    rivals = [threading.Thread(target=rival, args=(number,)) for number in range(16)]
    for each in rivals:
        each.start()
    for unit in units:
        store.add(unit)
        store.loop.turn(0)
    store.settle()
    for each in rivals:
        each.join()
    assert failed == []
    winners = [*won, *((unit.txn_id, "commit") for unit in units if unit.heard == [None])]
    assert decisions_of(truth) == {txn_id: (decision, 2) for txn_id, decision in winners}
    assert len(winners) == len(posted)
    assert len(truth.entries()) == 2 * sum(decision == "commit" for _, decision in winners)
    assert (pending_of(truth), txns_of(truth)) == ([], [])


@pytest.mark.rule("H4", "H13", "T8")
@pytest.mark.parametrize("lost", ["replies", "requests"])
def test_a_decision_whose_reply_was_lost_is_written_once(
    cuttable: Store, proxy: Proxy, truth: Truth, lost: str, commit: Commit
) -> None:
    store = cuttable
    before, halves = post_halves(store), post_halves(store, 2, together=True)
    first, decide = commit(store, before), commit(store, halves)
    store.add(first)  # the statement is known then
    store.settle()
    with proxy.held(lost):
        store.add(decide)
        if lost == "replies":
            store.loop.run_until(lambda: len(truth.ops()) == 2)
        else:
            store.loop.run_for(0.2)
        proxy.cut()
    store.settle()
    assert decide.heard == [None]
    assert truth.entries() == [*first.entries, *decide.entries]
    assert decisions_of(truth) == {decide.txn_id: ("commit", 2), first.txn_id: ("commit", 1)}


@pytest.mark.rule("H5", "T8")
def test_of_two_rivals_with_the_same_decision_one_is_told_that_it_was_late(
    cuttable: Store, proxy: Proxy, truth: Truth
) -> None:
    """The look for a decision whose reply was lost finds that of the rival, and is not mistaken."""
    store = cuttable
    halves = post_halves(store)
    decide = Decide(store, halves[0].txn_id, b"rollback")
    with proxy.held("requests"):
        store.add(decide)
        store.loop.run_for(0.2)
        _by_another(truth, halves[0].txn_id, "rollback")
        proxy.cut()
    store.settle()
    assert isinstance(decide.heard[0], AlreadyDecided)


@pytest.mark.rule("H4")
def test_an_address_that_is_gone_refuses_posts_and_commits_alone(store: Store, truth: Truth, commit: Commit) -> None:
    kept, lost = post_halves(store), post_halves(store)
    truth.run(f"insert into {SCHEMA}.address (id, name) overriding system value values (2, 'gone')")
    there = Half(store, lost[0].txn_id, address=2)
    store.add(there)
    store.settle()
    assert there.heard == [None]
    truth.run(f"delete from {SCHEMA}.address where id = 2")
    late = Half(store, kept[0].txn_id, address=2)
    units = [commit(store, [*lost, there]), commit(store, kept)]
    store.add(late)
    store.settle()
    store.add(*units)
    store.settle()
    assert [type(unit.heard[0]) for unit in (late, *units)] == [AddressGone, AddressGone, type(None)]
    assert decisions_of(truth) == {kept[0].txn_id: ("commit", 1)}
    assert pending_of(truth) == [lost[0].ids[0], there.ids[0]]


@pytest.mark.rule("H4")
def test_entries_are_made_as_their_halves_say(store: Store, truth: Truth, commit: Commit) -> None:
    """For each group of the address; a message that is a group of its own is named by its new id."""
    truth.run(f"insert into {SCHEMA}.consumer_group (id, address_id, name) overriding system value values (90, 1, 'b')")
    txn_id = store.uuids.next()
    terms = [
        DeliveryTerms(expires=10**15, priority=9),
        DeliveryTerms(available=10**14),
        DeliveryTerms(message_group=-3),
        DeliveryTerms(message_group=ALONE),
    ]
    halves = [Half(store, txn_id, first=not number, terms=each) for number, each in enumerate(terms)]
    for half in halves:
        store.add(half)
        store.settle()
    unit = commit(store, halves)
    store.add(unit)
    store.settle()
    columns = "id, half_id, expires_at, available_at, priority, message_group, lease, attempts"
    rows = truth.rows(f"select group_id, {columns} from {SCHEMA}.entry order by group_id, id")
    since = datetime(2000, 1, 1, tzinfo=UTC)
    first, second, third, fourth = zip(unit.entries, (half.ids[0] for half in halves), strict=True)
    wanted = [
        (*first, since + timedelta(microseconds=10**15), None, 9, None, 0, 0),
        (*second, None, since + timedelta(microseconds=10**14), 4, None, 0, 0),
        (*third, None, None, 4, -3, 0, 0),
        (*fourth, None, None, 4, unit.entries[3], 0, 0),
    ]
    assert rows == [(group, *row) for group in sorted([GROUP, 90]) for row in wanted]


@pytest.mark.rule("H7", "T13", "T14")
def test_what_is_left_or_overdue_is_due_once_it_is_immune_no_longer(store: Store, truth: Truth) -> None:
    left, gone, overdue, foreign = (post_halves(store)[0].txn_id for _ in range(4))
    truth.run(f"update {SCHEMA}.txn set declared_at = now()")
    truth.run(f"update {SCHEMA}.txn set instance_id = {ME + 1} where id = '{foreign.hex()}'")
    store.add(
        Left(store, left, connection=4), Left(store, gone), Left(store, overdue, overdue=True), Left(store, foreign)
    )
    store.settle()
    rows = truth.rows(
        f"select id, connection, next_check_at - declared_at from {SCHEMA}.txn where check_immunity_ms = 6000"
    )
    found = {row[0].bytes: tuple(row[1:]) for row in rows}
    immune = timedelta(seconds=6)
    assert found == {left: (-4, immune), gone: (None, immune), overdue: (4, immune), foreign: (4, None)}


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
def test_the_day_of_a_decision_is_made_when_it_is_missing(store: Store, truth: Truth, commit: Commit) -> None:
    day = datetime.now(UTC) - timedelta(days=9)
    txn_id = op_id_at(day).bytes
    half = Half(store, txn_id, first=True)
    half.ids = [id_at(day)]
    store.add(half)
    store.settle()
    truth.run(f"drop table {SCHEMA}.op_{day:%Y%m%d}")
    decide = commit(store, [half])
    store.add(decide)
    store.settle()
    assert (half.heard, decide.heard) == ([None], [None])
    assert decisions_of(truth) == {txn_id: ("commit", 1)}


@pytest.mark.rule("H3")
def test_a_large_half_waits_as_well(store: Store, truth: Truth, commit: Commit) -> None:
    half = Half(store, store.uuids.next(), first=True, size=LARGE + 1)
    store.add(half)
    store.settle()
    decide = commit(store, [half])
    store.add(decide)
    store.settle()
    assert (half.heard, decide.heard) == ([None], [None])
    found = truth.rows(
        f"select e.group_id, length(h.message) from {SCHEMA}.entry e join {SCHEMA}.half h on h.id = half_id"
    )
    assert found == [(GROUP, LARGE + 1)]
