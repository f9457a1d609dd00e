"""Units of the group commit that bring halves of checkable transactions to the store, and decide these."""

from __future__ import annotations

from collections.abc import Sequence

from store.commit.batch import Batch
from store.commit.checkable import Declared, Settled
from store.commit.terms import PLAIN, DeliveryTerms
from store.tables import SCHEMA
from tests.fix_store_driver import GROUP, Post, Store, Truth

ROW = Declared(b"client", 0, 1, b"shop", 6000, 30_000, 15, 4)


class Half(Post):
    """Unit: a half of a checkable transaction, with its row if it is the ``first``; ``new``: which is not there yet."""

    def __init__(
        self,
        store: Store,
        txn_id: bytes,
        *,
        first: bool = False,
        new: bool = False,
        address: int = 1,
        size: int = 10,
        terms: DeliveryTerms = PLAIN,
    ) -> None:
        super().__init__(store, txn_id=txn_id, size=size)
        self.first = first
        self.new = new
        self.address = address
        self.terms = terms
        #: it has a row in pending, and is not in the transaction's
        self.own_row = True

    def write(self, batch: Batch) -> None:
        self.written += 1
        batch.half(self.ids[0], self.txn_id, self.address, self.message)
        rows = batch.check_back()
        if self.first:
            rows.declare(self.txn_id, ROW, new=self.new)
        elif self.txn_id not in rows.declared:
            rows.enlist(self.txn_id)
        self.own_row = self.terms is not PLAIN or not rows.pend_in_row(self.txn_id, self.ids[0], self.address)
        if self.own_row:
            rows.pend(self.txn_id, self.ids[0], self.address, self.terms, [])


class Decide(Post):
    """Unit: the decision of a checkable transaction with these halves."""

    def __init__(self, store: Store, txn_id: bytes, decision: bytes, halves: Sequence[Half] = ()) -> None:
        super().__init__(store, txn_id=txn_id)
        self.decision = decision
        self.reason = "because"
        self.posted = halves
        self.halves = [half.ids[0] for half in halves]
        self.entries: list[int] = []

    def write(self, batch: Batch) -> None:
        self.written += 1
        self.entries = [self.store.ids.next() for _ in self.halves]
        batch.check_back().decide(self.txn_id, self.decision, self.reason, self.halves, self.entries)


class Settle(Decide):
    """Unit: the same of a commit, by the owner that knows all of it."""

    def __init__(self, store: Store, txn_id: bytes, decision: bytes, halves: Sequence[Half] = ()) -> None:
        assert decision == b"commit"
        super().__init__(store, txn_id, decision, halves)

    def write(self, batch: Batch) -> None:
        self.written += 1
        self.entries = [self.store.ids.next() for _ in self.halves]
        settled = Settled([], [], 1, GROUP, [], [])
        for half, half_id, entry_id in zip(self.posted, self.halves, self.entries, strict=True):
            (settled.pended if half.own_row else settled.halves).append(half_id)
            (settled.pended_entries if half.own_row else settled.entries).append(entry_id)
        batch.check_back().settle(self.txn_id, settled, {half.address for half in self.posted})


class Left(Post):
    """Unit: the control link of the transaction is gone, or its time is over. ``connection``: its number; 0: it is
    gone, too.
    """

    def __init__(self, store: Store, txn_id: bytes, *, connection: int = 0, overdue: bool = False) -> None:
        super().__init__(store, txn_id=txn_id)
        self.connection = connection
        self.overdue = overdue

    def write(self, batch: Batch) -> None:
        rows = batch.check_back()
        if self.overdue:
            rows.overdue.append(self.txn_id)
        else:
            rows.orphaned[self.txn_id] = self.connection


def post_halves(store: Store, count: int = 1, *, terms: DeliveryTerms = PLAIN, together: bool = False) -> list[Half]:
    """A transaction with so many durable halves, each from a batch of its own, or all ``together`` from one."""
    txn_id = store.uuids.next()
    halves = [Half(store, txn_id, first=not number, new=not number, terms=terms) for number in range(count)]
    for batch in [halves] if together else [[half] for half in halves]:
        store.add(*batch)
        store.settle()
    assert all(half.heard == [None] for half in halves)
    return halves


def decisions_of(truth: Truth) -> dict[bytes, tuple[str, int]]:
    rows = truth.rows(f"select id, decision, posted from {SCHEMA}.op where decision in ('commit', 'rollback')")
    return {row[0].bytes: tuple(row[1:]) for row in rows}


def pending_of(truth: Truth) -> list[int]:
    return [row[0] for row in truth.rows(f"select half_id from {SCHEMA}.pending_half order by half_id")]


def txns_of(truth: Truth) -> list[bytes]:
    return [row[0].bytes for row in truth.rows(f"select id from {SCHEMA}.txn order by id")]
