"""Rows of checkable transactions that others hold locked, as an application's commit does that is long at work: the
group commit waits for none of them, and what needs none goes on at once (X3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest

from store.commit import parts
from store.commit.batch import Batch
from store.errors import AlreadyDecided
from store.tables import SCHEMA
from tests.fix_halves import Decide, Half, Left, Settle, decisions_of, post_halves
from tests.fix_store_driver import Post, Store, Truth

pytestmark = pytest.mark.rule("X3")


@pytest.fixture(autouse=True)
def _no_wait_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever waits for a lock waits for it without end."""
    monkeypatch.setattr(parts, "_IN_PIECES", "")


@contextmanager
def at_work(url: str, txns: Sequence[bytes], *, decide: bool = False) -> Iterator[psycopg.Connection[Any]]:
    """Inside the block, another has the transactions locked, and perhaps rolled back; it commits at the end."""
    with psycopg.connect(url) as other:
        ids = [UUID(bytes=each) for each in txns]
        other.execute(f"select from {SCHEMA}.txn where id = any(%s) for update".encode(), [ids])
        for each in ids if decide else ():
            other.execute(f"select {SCHEMA}.decide(%s, 'rollback', 'rival')".encode(), [each])
        yield other


def _sent(store: Store) -> list[list[Post]]:
    """The units of each batch that is sent from now on."""
    batches: list[list[Post]] = []
    send = store.commit._send

    def sending(batch: Batch) -> None:
        batches.append([unit for unit in batch.units if isinstance(unit, Post)])
        send(batch)

    store.commit._send = sending  # type: ignore[method-assign]
    return batches


@pytest.mark.parametrize("made", [Decide, Settle], ids=["by the function", "in the statement"])
def test_a_neighbour_is_in_the_next_batch_whatever_many_wait_for(
    store: Store, truth: Truth, database_url: str, made: type[Decide]
) -> None:
    posted = [post_halves(store) for _ in range(10)]
    rivals = [made(store, halves[0].txn_id, b"commit", halves) for halves in posted]
    later = [Post(store) for _ in rivals]
    neighbours = [Post(store) for _ in rivals]
    for number, units in enumerate(zip(rivals, later, strict=True)):
        for unit in units:
            unit.owner = number
        neighbours[number].owner = f"neighbour {number}"
    batches = _sent(store)
    store.heard.clear()
    with at_work(database_url, [unit.txn_id for unit in rivals]):
        for three in zip(rivals, neighbours, later, strict=True):
            store.add(*three)
        store.loop.run_until(lambda: len(store.heard) == len(neighbours))
        assert store.heard == neighbours
        assert [len(units) for units in batches[:2]] == [30, 10]
    store.settle()
    assert all(unit.heard == [None] for unit in (*rivals, *later))
    for rival, behind in zip(rivals, later, strict=True):
        assert store.heard.index(rival) < store.heard.index(behind)
    assert {decisions_of(truth)[unit.txn_id] for unit in rivals} == {("commit", 1)}


def test_no_unit_waits_whatever_it_needs(store: Store, truth: Truth, database_url: str) -> None:
    """Of a batch with all that needs such rows each is held up by itself, and refused as another has decided."""
    first, *others = [post_halves(store)[0].txn_id for _ in range(6)]
    units = [
        Half(store, first, first=True),
        Half(store, others[0]),
        Left(store, others[1]),
        Left(store, others[2], overdue=True),
        Decide(store, others[3], b"commit"),
        Decide(store, others[4], b"rollback"),
    ]
    neighbour = Post(store, owner="neighbour")
    store.heard.clear()
    for unit in units:
        unit.owner = unit
    with at_work(database_url, [first, *others], decide=True):
        store.add(*units, neighbour)
        store.loop.run_until(lambda: bool(neighbour.heard))
        assert store.heard == [neighbour]
    store.settle()
    assert neighbour.heard == [None]
    told = [unit.heard[0] for unit in units]
    assert [isinstance(each, AlreadyDecided) for each in told] == [True, True, False, False, True, True]
    assert {decisions_of(truth)[each] for each in (first, *others)} == {("rollback", 1)}


def test_a_connection_that_is_lost_while_locks_are_looked_for(
    store: Store, truth: Truth, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is sent again, and each unit gets one answer."""
    (half,) = post_halves(store)
    rival = Decide(store, half.txn_id, b"rollback")
    rival.owner = "rival"
    neighbour = Post(store, owner="neighbour")
    lost: list[int] = []
    execute = store.commit.connection.execute

    def cut(name: bytes, *given: Any) -> None:
        execute(name, *given)
        if name == b"locked" and not lost:
            lost.append(1)
            store.commit.connection.drop("cut")

    monkeypatch.setattr(store.commit.connection, "execute", cut)
    with at_work(database_url, [half.txn_id]):
        store.add(rival, neighbour)
        store.loop.run_until(lambda: bool(neighbour.heard))
    store.settle()
    assert lost == [1]
    assert [neighbour.heard, rival.heard] == [[None], [None]]
    assert truth.entries() == neighbour.ids
