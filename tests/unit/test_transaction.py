"""The work of a transaction once it is decided, and what it and plain outcomes are in a batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.address.enqueue import Enqueue
from coordinator.checkable import CheckTerms
from coordinator.errors import Condition, Refusal
from coordinator.group.entries import Entry
from coordinator.in_store import make_checkable
from coordinator.outcomes import ACCEPTED
from coordinator.retirement import Settlement
from coordinator.transaction import Transaction
from coordinator.transitions import OUTCOME
from store.commit import terms as terms_module
from store.commit.batch import Batch
from store.commit.terms import PLAIN, DeliveryTerms
from store.ids import HalfIds, UuidV7
from store.spool import LARGE
from tests.fix_queue import Consumer, queue_of

URGENT = DeliveryTerms(priority=9)
LATER = DeliveryTerms(available=1)


@pytest.mark.rule("T8", "P17", "D7")
def test_each_kind_of_post_is_told_to_its_address_once_or_more() -> None:
    """Of plain ones the first is enough, which has the lowest id; a post with terms of its own is told by itself."""
    told: list[tuple[str, int, DeliveryTerms]] = []
    enqueue = SimpleNamespace(posted=lambda address, entry, half_id, terms: told.append((address, half_id, terms)))
    host = SimpleNamespace(enqueue=enqueue, instance=None, settlements=None)
    txn = Transaction(cast(Any, host), bytes(16), None, cast(Any, None), 60.0)
    posts = [("a", PLAIN), ("a", PLAIN), ("a", URGENT), ("a", LATER), ("a", PLAIN), ("b", PLAIN)]
    txn.posts = [(cast(Any, address), b"m", terms) for address, terms in posts]
    txn.half_ids = [1, 2, 3, 4, 5, 6]
    txn.entries = [None] * 6
    txn.apply_commit()
    assert told == [("a", 1, PLAIN), ("a", 3, URGENT), ("a", 4, LATER), ("b", 6, PLAIN)]


QUEUE = SimpleNamespace(group_id=7, consumers={}, name="q", is_shared=False)
ADDRESS = SimpleNamespace(id=5, queue=QUEUE, fans=False, groups=1, subscriptions=())


def _enqueue(*, peers: bool) -> Any:
    instance = SimpleNamespace(peers=peers, ids=HalfIds(1), uuids=UuidV7(), instance_id=3)
    return Enqueue(cast(Any, instance), cast(Any, None))


def _rows(batch: Batch) -> dict[str, Any]:
    return {name: getattr(batch, name) for name in Batch.__slots__}


@pytest.mark.rule("T8", "D10")
@pytest.mark.parametrize("peers", [False, True])
def test_posts_that_are_written_at_once_are_written_as_one_by_one(peers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QUEUE, "is_shared", peers)
    posts: Any = [(ADDRESS, b"m" * size, PLAIN) for size in (0, 1, LARGE)]
    together, apart = Batch(), Batch()
    enqueue = _enqueue(peers=peers)
    assert enqueue.write_columns(together, posts, [11, 12, 13], bytes(16))
    for (address, message, terms), half_id in zip(posts, [11, 12, 13], strict=True):
        apart.half(half_id, bytes(16), address.id, message)
        assert enqueue.write_entry(apart, address, half_id, message, terms) is None
    assert _rows(together) == _rows(apart)
    assert bool(together.wake) == peers


@pytest.mark.rule("T8", "D10")
@pytest.mark.parametrize(
    ("posts", "address"),
    [
        ([(ADDRESS, b"m", PLAIN), (SimpleNamespace(**vars(ADDRESS)), b"m", PLAIN)], {}),
        ([(ADDRESS, b"m", PLAIN), (ADDRESS, b"m", URGENT)], {}),
        ([(ADDRESS, b"m", LATER), (ADDRESS, b"m", PLAIN)], {}),
        ([(ADDRESS, b"m", PLAIN), (ADDRESS, bytes(LARGE + 1), PLAIN)], {}),
        ([(ADDRESS, b"m", PLAIN)] * 2, {"fans": True}),
        ([(ADDRESS, b"m", PLAIN)] * 2, {"queue": None}),
        ([(ADDRESS, b"m", PLAIN)] * 2, {"queue": SimpleNamespace(group_id=7, consumers={1: None})}),
    ],
    ids=["two addresses", "a priority", "later", "a large one", "several groups", "a topic", "a consumer"],
)
def test_which_posts_are_written_one_by_one(posts: Any, address: dict[str, Any], monkeypatch: Any) -> None:
    for name, value in address.items():
        monkeypatch.setattr(ADDRESS, name, value)
    batch = Batch()
    assert not _enqueue(peers=True).write_columns(batch, posts, [11, 12], bytes(16))
    assert _rows(batch) == _rows(Batch())


@pytest.mark.rule("T8")
def test_posts_that_were_written_at_once_are_told_to_their_address_once() -> None:
    """The first has the lowest id; and written again, one by one as a consumer has come, each is told as it is."""
    told: list[tuple[Any, object, int]] = []
    enqueue = _enqueue(peers=False)
    enqueue.posted = lambda address, entry, half_id, _terms: told.append((address, entry, half_id))
    host = SimpleNamespace(enqueue=enqueue, instance=enqueue._instance, settlements=None)
    txn = Transaction(cast(Any, host), bytes(16), None, cast(Any, None), 60.0)
    txn.posts = [(cast(Any, ADDRESS), b"m", PLAIN)] * 3
    txn.write_commit(Batch())
    txn.apply_commit()
    assert told == [(ADDRESS, None, txn.half_ids[0])]
    before = list(txn.half_ids)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QUEUE, "consumers", {1: None})
        patch.setattr(QUEUE, "reserve", lambda _size, _priority: True, raising=False)
        told.clear()
        txn.write_commit(Batch())
    txn.apply_commit()
    assert txn.half_ids == before
    assert [(half_id, type(entry)) for _, entry, half_id in told] == [(each, Entry) for each in before]


def _held(count: int) -> tuple[Any, Consumer, list[Entry]]:
    consumer = Consumer(1, count)
    queue = queue_of([consumer])
    entries = []
    for number in range(1, count + 1):
        assert queue.reserve(1, terms_module.DEFAULT)
        entries.append(Entry(queue, number, number, b"m", 0, 0, b""))
        queue.arrived(entries[-1])
    queue.pump()
    assert len(consumer.got) == count
    return queue, consumer, entries


@pytest.mark.rule("D10")
def test_what_is_accepted_counts_as_rows_of_its_batch() -> None:
    """Else the bound of a batch would not hold for retirements."""
    queue, _, entries = _held(3)
    for entry in entries:
        entry.met(OUTCOME)
        entry.outcome = ACCEPTED
    batch = Batch()
    instance = SimpleNamespace(uuids=UuidV7(), commit=None, loop=None)
    Settlement(cast(Any, instance), entries).write(batch)
    assert batch.rows >= 3
    assert batch.gone_ids == [1, 2, 3]
    assert set(batch.gone_groups) == {queue.group_id}


@pytest.mark.rule("D10")
def test_a_queue_is_looked_at_when_something_of_it_is_done() -> None:
    """A window that memory had closed may have room now, whatever its consumers have."""
    queue, _, entries = _held(1)
    queue.dirty = False
    queue.home.dirty.clear()
    entries[0].met(OUTCOME)
    queue.done_with(entries[0])
    assert queue.home.dirty == [queue]


@pytest.mark.rule("D10")
def test_what_was_done_while_a_range_was_read_does_not_come_again() -> None:
    """The range was read before its outcome was in the store."""
    queue, consumer, entries = _held(2)
    queue.holding = queue.normal.loading = True
    entries[0].met(OUTCOME)
    queue.done_with(entries[0])
    consumer.has = 10
    queue.changed(consumer)
    again = [Entry(queue, number, number, b"m", 0, 0, b"") for number in (1, 2, 3)]
    queue.loaded(queue.normal, again, complete=True, version=0, by_range=True)
    queue.pump()
    assert consumer.got == [1, 2, 3]


@pytest.mark.rule("S4", "T23")
def test_a_checkable_transaction_that_is_refused_holds_nothing_of_its_halves() -> None:
    """It may stay until its time is over, and the largest are refused so that memory becomes free."""
    memory = SimpleNamespace(transactions=0, most=1 << 30)
    instance = SimpleNamespace(memory=memory, commit=SimpleNamespace(add=lambda *_: None))
    control: Any = SimpleNamespace(number=1)
    txn = Transaction(cast(Any, SimpleNamespace(instance=instance)), bytes(16), None, control, 60.0)
    txn.began = 1.0
    in_store = make_checkable(txn, "shop", CheckTerms(0, 0, 1))
    for half_id in range(10):
        in_store.stored(half_id, cast(Any, ADDRESS), PLAIN, own_row=half_id > 5)
    assert memory.transactions > 0
    txn.refuse(Refusal(Condition.RESOURCE_LIMIT_EXCEEDED, "too much"))
    assert (txn.posts, in_store.ids, in_store.own_rows, memory.transactions) == ([], [], set(), 0)


def test_a_drain_waits_once_for_each_delivery_that_a_rollback_gives_back() -> None:
    """However often the transaction is told that it rolls back."""
    queue = queue_of([])
    txn: Any = SimpleNamespace(returning=[], retired=[SimpleNamespace(queue=queue)])
    Transaction.returns(txn)
    Transaction.returns(txn)
    assert queue.returning == 1
    Transaction.returned(txn)
    assert queue.returning == 0
