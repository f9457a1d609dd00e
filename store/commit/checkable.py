"""What a batch writes of checkable transactions: their halves, which wait in the store, the entries of what they have
retired, which they hold there, and their decisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from store import arrays

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from store.commit.terms import Terms


#: the most failed deliveries that an entry counts
LARGEST_COUNT = 32767


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


class Retired(NamedTuple):
    """What a commit makes of a delivery that is retired in a checkable transaction; and a rollback, if its consumer is
    gone.
    """

    #: of its op: ``accept``, ``reject``, ``modify``, or ``release``, which has none
    decision: bytes
    reason: str
    #: of the entry from then on
    attempts: int
    failed: str
    annotations: bytes
    #: before the next delivery
    wait_ms: int
    #: why it is a dead letter after one failed delivery more; empty: it is none
    undo_failed: str


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
        "let_go",
        "listed",
        "orphaned",
        "overdue",
        "owed",
        "owners",
        "pending_halves",
        "pending_txns",
        "reasons",
        "replaced",
        "retired",
        "settled",
        "settled_addresses",
        "settled_entries",
        "settled_halves",
        "settled_owners",
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
        #: those whose rows may be in the store already
        self.listed: dict[bytes, Declared] = {}
        self.enlisted: dict[bytes, None] = {}
        self.orphaned: list[bytes] = []
        self.overdue: list[bytes] = []
        self.decided_ids: list[bytes] = []
        self.decisions: list[bytes] = []
        self.reasons: list[bytes] = []
        self.owners: list[bytes] = []
        self.halves: list[int] = []
        self.entries: list[int] = []
        #: transactions that their owner commits, and how many halves each has
        self.settled: dict[bytes, int] = {}
        self.settled_owners: list[bytes] = []
        self.settled_halves: list[int] = []
        self.settled_entries: list[int] = []
        self.settled_addresses: set[int] = set()
        #: by transaction, group and entry
        self.retired: dict[tuple[bytes, int, int], Retired] = {}
        self.replaced: dict[tuple[bytes, int, int], Retired] = {}
        #: transactions of whose retirements this instance has nothing in memory any more
        self.let_go: list[bytes] = []
        #: those that another process has rolled back
        self.owed: list[bytes] = []

    def pend(self, txn_id: bytes, half_id: int, address_id: int, terms: Terms, left_out: Sequence[int]) -> None:
        """A half waits for the decision. ``left_out``: groups that do not get it."""
        self.pending_txns.append(txn_id)
        self.pending_halves.append(half_id)
        self.addresses.append(address_id)
        self.terms.append(terms)
        self.left_out_lo.append(len(self.left_out) + 1)
        self.left_out += left_out
        self.left_out_hi.append(len(self.left_out))

    def declare(self, txn_id: bytes, declared: Declared, *, new: bool = False) -> None:
        """The transaction has its first half. The batch is refused if it is decided already. ``new``: this instance has
        never sent its row to the store, which costs less.
        """
        (self.declared if new else self.listed)[txn_id] = declared

    def enlist(self, txn_id: bytes) -> None:
        """It has another half. The batch is refused if it is decided already."""
        self.enlisted[txn_id] = None

    def retire(self, txn_id: bytes, group_id: int, entry_id: int, retired: Retired, *, first: bool) -> None:
        """The transaction holds an entry that this instance has leased. The batch is refused if it has not, or if the
        transaction is decided already. ``first``: False where it holds the entry, and another outcome comes.
        """
        (self.retired if first else self.replaced)[txn_id, group_id, entry_id] = retired

    def decide(
        self, txn_id: bytes, decision: bytes, reason: str, halves: Sequence[int] = (), entries: Sequence[int] = ()
    ) -> None:
        """The batch is refused if it is decided already. ``halves``: all of a transaction that commits; ``entries``:
        the ids of their entries.
        """
        self.decided_ids.append(txn_id)
        self.decisions.append(decision)
        self.reasons.append(arrays.octets_of(reason))
        if decision == b"commit" and not halves:  # none, which is not the same as not known
            halves = entries = (0,)
        self.owners += [txn_id] * len(halves)
        self.halves += halves
        self.entries += entries

    def settle(self, txn_id: bytes, halves: Sequence[int], entries: Sequence[int], addresses: Iterable[int]) -> None:
        """As :meth:`decide`, for a commit by the owner that has retired nothing and leaves out no group: it costs less.
        ``addresses``: of the halves.
        """
        if not halves:  # that it has none is left to the function to see
            self.decide(txn_id, b"commit", "")
            return
        self.settled[txn_id] = len(halves)
        self.settled_owners += [txn_id] * len(halves)
        self.settled_halves += halves
        self.settled_entries += entries
        self.settled_addresses.update(addresses)

    @property
    def changed(self) -> set[bytes]:
        """Transactions whose rows change, where they are there."""
        return {*self.listed, *self.orphaned, *self.overdue, *self.decided_ids, *self.settled}

    @property
    def named(self) -> set[bytes]:
        """Transactions whose rows are locked."""
        return self.changed.union(self.declared, self.enlisted)

    def wanted(self) -> tuple[bytes, bytes, bytes]:
        """Transactions, decisions and reasons of the ops that this batch writes."""
        settled = len(self.settled)
        return (
            arrays.uuid([*self.decided_ids, *self.settled]),
            arrays.text([*self.decisions, *[b"commit"] * settled]),
            arrays.text([*self.reasons, *[b""] * settled]),
        )


def add_parts(rows: CheckableRows, names: list[str], parameters: list[bytes]) -> None:
    """The parts for which there are rows, and their parameters."""
    if changed := rows.changed:
        names.append("free")
        parameters.append(arrays.uuid(sorted(changed)))
    _add_posted(rows, names, parameters)
    for name, ids in (
        ("enlisted", list(rows.enlisted)),
        ("orphaned", rows.orphaned),
        ("overdue", rows.overdue),
        ("let_go", rows.let_go),
        ("owed", rows.owed),
    ):
        if ids:
            names.append(name)
            parameters.append(arrays.uuid(ids))
    if rows.owed:
        names.append("taken")
    if rows.retired:
        names += ("holding", "retiring")
        parameters += _keys(rows.retired)[1:]
        parameters += (*_keys(rows.retired), *_retired(rows.retired))
    if rows.replaced:
        names.append("replaced")
        parameters += (*_keys(rows.replaced), *_retired(rows.replaced))
    if rows.settled and not rows.decided_ids:
        _add_settled(rows, names, parameters)
    if rows.decided_ids:
        _hand_over_settled(rows)
        names.append("decided")
        parameters += (
            arrays.uuid(rows.decided_ids),
            arrays.text(rows.decisions),
            arrays.text(rows.reasons),
            arrays.uuid(rows.owners),
            arrays.int8(rows.halves),
            arrays.int8(rows.entries),
        )


def _add_posted(rows: CheckableRows, names: list[str], parameters: list[bytes]) -> None:
    """Halves, and the rows of transactions whose first they are."""
    if rows.pending_halves:
        names.append("pending")
        expires, available, priorities, message_groups = map(list, zip(*rows.terms, strict=True))
        parameters += (
            arrays.uuid(rows.pending_txns),
            arrays.int8(rows.pending_halves),
            arrays.int4(rows.addresses),
            arrays.timestamptz(expires),
            arrays.timestamptz(available),
            arrays.int2(priorities),
            arrays.int8(message_groups),
            arrays.int4(rows.left_out_lo),
            arrays.int4(rows.left_out_hi),
            arrays.int4(rows.left_out),
        )
    for name, declared in (("declared", rows.declared), ("listed", rows.listed)):
        if declared:
            names.append(name)
            parameters += _declared(declared)


def _declared(rows: Mapping[bytes, Declared]) -> tuple[bytes, ...]:
    owners, declared, timeouts, groups, immunities, intervals, most, connections = map(
        list, zip(*rows.values(), strict=True)
    )
    return (
        arrays.uuid(list(rows)),
        arrays.text(owners),
        arrays.timestamptz(declared),
        arrays.timestamptz(timeouts),
        arrays.text(groups),
        arrays.int4(immunities),
        arrays.int4(intervals),
        arrays.int2(most),
        arrays.int8(connections),
    )


def _hand_over_settled(rows: CheckableRows) -> None:
    """Where the function decides others, it decides all: rivals lock all of theirs in one order, too."""
    for txn_id in rows.settled:
        rows.decided_ids.append(txn_id)
        rows.decisions.append(b"commit")
        rows.reasons.append(b"")
    rows.owners += rows.settled_owners
    rows.halves += rows.settled_halves
    rows.entries += rows.settled_entries
    rows.settled, rows.settled_owners, rows.settled_halves, rows.settled_entries = {}, [], [], []


def _add_settled(rows: CheckableRows, names: list[str], parameters: list[bytes]) -> None:
    """Their rows are locked in the order of ids, as when several are decided."""
    names += ("settled", "concluded", "still_there", "unpended", "delivered")
    listed = sorted(rows.settled.items())
    parameters += (
        arrays.uuid([txn_id for txn_id, _ in listed]),
        arrays.int4([posted for _, posted in listed]),
        arrays.int4([*rows.settled_addresses]),
        arrays.uuid(rows.settled_owners),
        arrays.int8(rows.settled_halves),
        arrays.int8(rows.settled_entries),
    )


def _keys(rows: Mapping[tuple[bytes, int, int], Retired]) -> tuple[bytes, bytes, bytes]:
    """Transactions, groups and entries."""
    txns, groups, entries = zip(*rows, strict=True)
    return arrays.uuid(txns), arrays.int4(groups), arrays.int8(entries)


def _retired(rows: Mapping[tuple[bytes, int, int], Retired]) -> tuple[bytes, ...]:
    decisions, reasons, attempts, failed, annotations, waits, undo_failed = zip(*rows.values(), strict=True)
    return (
        arrays.text(decisions),
        arrays.text([arrays.octets_of(each) for each in reasons]),
        arrays.int2([min(each, LARGEST_COUNT) for each in attempts]),
        arrays.text([arrays.octets_of(each) for each in failed]),
        arrays.bytea(annotations),
        arrays.int8(waits),
        arrays.text([arrays.octets_of(each) for each in undo_failed]),
    )
