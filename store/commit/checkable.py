"""What a batch writes of checkable transactions: their halves, which wait in the store, and their decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from store import arrays

if TYPE_CHECKING:
    from collections.abc import Sequence

    from store.commit.terms import Terms


class Declared(NamedTuple):
    """The row of a checkable transaction. Times in microseconds since 2000-01-01 UTC."""

    owner: bytes
    declared: int
    timeout: int
    producer_group: bytes
    immunity_ms: int
    interval_ms: int
    most_checks: int
    #: number of the connection that declared it, at its instance
    connection: int


class CheckableRows:
    """Columns of one statement, as those of :class:`store.commit.batch.Batch`."""

    __slots__ = (
        "addresses",
        "decided_ids",
        "decisions",
        "declared",
        "enlisted",
        "entries",
        "halves",
        "left_out",
        "left_out_hi",
        "left_out_lo",
        "orphaned",
        "overdue",
        "owners",
        "pending_halves",
        "pending_txns",
        "reasons",
        "terms",
    )

    def __init__(self) -> None:
        self.pending_txns: list[bytes] = []
        self.pending_halves: list[int] = []
        self.addresses: list[int] = []
        self.terms: list[Terms] = []
        self.left_out: list[int] = []
        self.left_out_lo: list[int] = []
        self.left_out_hi: list[int] = []
        self.declared: dict[bytes, Declared] = {}
        self.enlisted: dict[bytes, None] = {}
        self.orphaned: list[bytes] = []
        self.overdue: list[bytes] = []
        self.decided_ids: list[bytes] = []
        self.decisions: list[bytes] = []
        self.reasons: list[bytes] = []
        self.owners: list[bytes] = []
        self.halves: list[int] = []
        self.entries: list[int] = []

    def pend(self, txn_id: bytes, half_id: int, address_id: int, terms: Terms, left_out: Sequence[int]) -> None:
        """A half waits for the decision. ``left_out``: groups that do not get it."""
        self.pending_txns.append(txn_id)
        self.pending_halves.append(half_id)
        self.addresses.append(address_id)
        self.terms.append(terms)
        self.left_out_lo.append(len(self.left_out) + 1)
        self.left_out += left_out
        self.left_out_hi.append(len(self.left_out))

    def declare(self, txn_id: bytes, declared: Declared) -> None:
        """The transaction has its first half. The batch is refused if it is decided already."""
        self.declared[txn_id] = declared

    def enlist(self, txn_id: bytes) -> None:
        """It has another half. The batch is refused if it is decided already."""
        self.enlisted[txn_id] = None

    def decide(
        self, txn_id: bytes, decision: bytes, reason: str, halves: Sequence[int] = (), entries: Sequence[int] = ()
    ) -> None:
        """The batch is refused if it is decided already. ``halves``: all of a transaction that commits; ``entries``:
        the ids of their entries.
        """
        self.decided_ids.append(txn_id)
        self.decisions.append(decision)
        self.reasons.append(reason.replace("\0", "").encode())
        self.owners += [txn_id] * len(halves)
        self.halves += halves
        self.entries += entries


def add_parts(rows: CheckableRows, names: list[str], parameters: list[bytes]) -> None:
    """The parts for which there are rows, and their parameters."""
    if rows.pending_halves:
        names.append("pending")
        parameters += (
            arrays.uuid(rows.pending_txns),
            arrays.int8(rows.pending_halves),
            arrays.int4(rows.addresses),
            arrays.timestamptz([each.expires for each in rows.terms]),
            arrays.timestamptz([each.available for each in rows.terms]),
            arrays.int2([each.priority for each in rows.terms]),
            arrays.int8([each.message_group for each in rows.terms]),
            arrays.int4(rows.left_out_lo),
            arrays.int4(rows.left_out_hi),
            arrays.int4(rows.left_out),
        )
    if rows.declared:
        names.append("declared")
        listed = rows.declared.values()
        parameters += (
            arrays.uuid(list(rows.declared)),
            arrays.text([each.owner for each in listed]),
            arrays.timestamptz([each.declared for each in listed]),
            arrays.timestamptz([each.timeout for each in listed]),
            arrays.text([each.producer_group for each in listed]),
            arrays.int4([each.immunity_ms for each in listed]),
            arrays.int4([each.interval_ms for each in listed]),
            arrays.int2([each.most_checks for each in listed]),
            arrays.int8([each.connection for each in listed]),
        )
    for name, ids in (("enlisted", list(rows.enlisted)), ("orphaned", rows.orphaned), ("overdue", rows.overdue)):
        if ids:
            names.append(name)
            parameters.append(arrays.uuid(ids))
    if rows.decided_ids:
        names.append("decided")
        parameters += (
            arrays.uuid(rows.decided_ids),
            arrays.text(rows.decisions),
            arrays.text(rows.reasons),
            arrays.uuid(rows.owners),
            arrays.int8(rows.halves),
            arrays.int8(rows.entries),
        )
