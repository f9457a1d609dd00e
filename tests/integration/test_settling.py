"""Commits by owners of checkable transactions, as a part of the batch's statement: what it must find, and in which
order it locks; beside commits by the function, on a real PostgreSQL.
"""

from __future__ import annotations

import threading
from uuid import UUID

import psycopg
import pytest

from store.commit.terms import DeliveryTerms
from store.errors import StoreError
from store.tables import SCHEMA
from tests.fix_halves import Decide, Half, Settle, decisions_of, pending_of, post_halves, txns_of
from tests.fix_proxy import Proxy
from tests.fix_store_driver import GROUP, ME, Post, Store, Truth, Yield

pytestmark = pytest.mark.rule("H4")

_EACH_WAY = pytest.mark.parametrize("made", [Decide, Settle], ids=["by the function", "in the statement"])


@pytest.mark.parametrize("together", [False, True], ids=["one has its own row", "both are in the transaction's row"])
@pytest.mark.parametrize(
    ("made", "which"),
    [
        *((Decide, which) for which in ("too few", "another one", "none")),
        *((Settle, which) for which in ("too few", "one more", "another one", "none")),
    ],
)
def test_a_commit_of_other_halves_than_it_has_is_refused_alone(
    store: Store, truth: Truth, made: type[Decide], which: str, together: bool
) -> None:
    """A half that is left behind would be lost."""
    halves, others = post_halves(store, 2, together=together), post_halves(store)
    assert [half.own_row for half in halves] == [False, not together]
    stranger = Half(store, halves[0].txn_id)
    named = {"too few": halves[:1], "one more": [*halves, stranger], "another one": [halves[0], stranger], "none": []}
    wrong = made(store, halves[0].txn_id, b"commit", named[which])
    right = Settle(store, others[0].txn_id, b"commit", others)
    store.add(wrong, right)
    store.settle()
    assert right.heard == [None]
    assert isinstance(wrong.heard[0], StoreError)
    assert decisions_of(truth) == {others[0].txn_id: ("commit", 1)}
    assert pending_of(truth) == [half.ids[0] for half in halves]
    assert txns_of(truth) == [halves[0].txn_id]


def test_the_function_commits_what_there_is(store: Store, truth: Truth) -> None:
    halves = post_halves(store, 2)
    unit = Decide(store, halves[0].txn_id, b"commit", [*halves, Half(store, halves[0].txn_id)])
    store.add(unit)
    store.settle()
    assert unit.heard == [None]
    assert decisions_of(truth) == {unit.txn_id: ("commit", 2)}


def test_a_half_that_a_group_does_not_get_is_not_settled(store: Store, truth: Truth) -> None:
    """Its owner has it decided by the function; were it mistaken, the group would get the message."""
    halves = post_halves(store, terms=DeliveryTerms(priority=9))
    truth.run(f"update {SCHEMA}.pending set left_out = '{{{GROUP}}}'")
    unit = Settle(store, halves[0].txn_id, b"commit", halves)
    store.add(unit)
    store.settle()
    assert isinstance(unit.heard[0], StoreError)
    assert (truth.entries(), decisions_of(truth)) == ([], {})


@pytest.mark.rule("H5", "H3", "T8")
@pytest.mark.parametrize("beside", ["a half", "an entry given back", "another decision"])
@_EACH_WAY
def test_a_rival_at_this_instance_is_not_taken_for_the_batch(
    cuttable: Store, proxy: Proxy, truth: Truth, made: type[Decide], beside: str
) -> None:
    """Another connection of the producer group commits it with the same words, while the batch is lost unsent: what
    else was in the batch is sent again.
    """
    store = cuttable
    halves, others = post_halves(store), post_halves(store)
    decide = made(store, halves[0].txn_id, b"commit", halves)
    decide.reason = ""
    other: Post
    if beside == "a half":
        other = Half(store, store.uuids.next(), first=True)
    elif beside == "an entry given back":
        truth.run(f"insert into {SCHEMA}.entry (group_id, id, half_id, lease) values ({GROUP}, 5, 5, {ME})")
        other = Yield(store, 5)
    else:
        other = made(store, others[0].txn_id, b"commit", others)
    with proxy.held("requests"):
        store.add(decide, other)
        store.loop.run_for(0.2)
        by_rival = f"select {SCHEMA}.decide(%s, 'commit', '', {ME})"
        assert truth.rows(by_rival, UUID(bytes=halves[0].txn_id)) == [(True,)]
        proxy.cut()
    store.settle()
    assert other.heard == [None]
    if beside == "a half":
        assert other.ids[0] in truth.halves()
    elif beside == "an entry given back":
        assert truth.rows(f"select lease from {SCHEMA}.entry where id = 5") == [(0,)]
    else:
        assert decisions_of(truth)[others[0].txn_id] == ("commit", 1)


@_EACH_WAY
def test_all_of_a_batch_are_locked_in_the_order_of_ids(
    store: Store, truth: Truth, database_url: str, made: type[Decide]
) -> None:
    """A rival decides both while the batch rolls the first back and commits the second: neither waits for the other in
    a circle.
    """
    first, second = post_halves(store), post_halves(store)
    ids = [UUID(bytes=halves[0].txn_id) for halves in (first, second)]
    assert ids == sorted(ids)
    failed: list[Exception] = []
    all_of_them = f"select * from {SCHEMA}.decide_all(%s, %s, %s, null, '{{}}', '{{}}', '{{}}', null)".encode()
    with psycopg.connect(database_url) as holder, psycopg.connect(database_url, autocommit=True) as rival:
        holder.execute(f"select from {SCHEMA}.txn where id = %s for update".encode(), [ids[0]])

        def run() -> None:
            try:
                rival.execute(all_of_them, [ids, ["rollback"] * 2, ["rival"] * 2])
            except psycopg.Error as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        waits = "select from pg_stat_activity where wait_event_type = 'Lock' and position('decide_all' in query) > 0"
        while not truth.rows(waits):
            assert thread.is_alive()
        # the second comes first: the order of the units does not count
        store.add(made(store, second[0].txn_id, b"commit", second), Decide(store, first[0].txn_id, b"rollback"))
        store.loop.run_until(lambda: store.pausing == 1)
        holder.rollback()
        store.settle()
        thread.join()
    deadlocks = truth.rows("select deadlocks from pg_stat_database where datname = current_database()")
    assert (failed, deadlocks) == ([], [(0,)])
    assert sorted(decisions_of(truth)) == sorted(each.bytes for each in ids)


@pytest.mark.rule("H4")
def test_a_half_in_no_row_is_not_settled_with_those_in_the_row(store: Store, truth: Truth) -> None:
    """A transaction that has none with rows of their own gives what is missing there no entry."""
    (known,) = post_halves(store, 1, terms=DeliveryTerms(priority=9))
    stranger = Half(store, known.txn_id)
    stranger.own_row = False
    settle = Settle(store, known.txn_id, b"commit", [known, stranger])
    store.add(settle)
    store.settle()
    assert isinstance(settle.heard[0], StoreError)
    assert truth.entries() == []
