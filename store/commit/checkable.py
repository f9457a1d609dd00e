"""Collect the rows of checkable transactions in a batch.

These are their halves, which wait in the store, their retirements, whose entries they hold there, and their decisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from store import arrays

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from store.commit.terms import DeliveryTerms


#: the most halves in a transaction's row: PostgreSQL compresses rows above 2 kB, or moves their arrays elsewhere
MOST_IN_ROW = 100
#: the highest count of an entry's attempts or failures
LARGEST_COUNT = 32767
#: attempts of an entry that was delivered to no link
NEVER_HAD = -1


class Declared(NamedTuple):
    """The row of a checkable transaction. Times are in microseconds since 2000-01-01 UTC."""

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
    """A delivery that is retired in a checkable transaction: how a commit changes its entry.

    It also has the reason of the dead letter that a rollback may make of it, if its consumer is gone.
    """

    #: the decision of its op: ``accept``, ``reject``, ``modify``, or ``release``, which writes no op
    decision: bytes
    reason: str
    #: the new count of the entry, as is ``failures``
    attempts: int
    failed: str
    annotations: bytes
    #: pause before the next delivery
    wait_ms: int
    #: why it becomes a dead letter if one more delivery fails; empty: it does not
    undo_failed: str
    failures: int


class Settled(NamedTuple):
    """A transaction that its owner commits: its halves, and the ids of their entries."""

    #: the halves in the transaction's row, in its order; their queue, and its default group
    halves: list[int]
    entries: list[int]
    address: int
    group: int
    #: the halves that have rows of their own
    pended: list[int]
    pended_entries: list[int]

    @property
    def posted(self) -> int:
        return len(self.halves) + len(self.pended)


class CheckableRows:
    """Gathers the rows of checkable transactions as columns, as :class:`store.commit.batch.Batch` does the others."""

    __slots__ = (
        "addresses", "decided_ids", "decisions", "declared", "enlisted", "entries", "halves", "left_out", "left_out_hi",
        "left_out_lo", "let_go", "listed", "orphaned", "overdue", "owed", "owners", "pending_addresses",
        "pending_halves", "pending_txns", "reasons", "replaced", "retired", "row_address", "row_halves", "settled",
        "terms",
    )  # fmt: skip

    def __init__(self) -> None:
        self.pending_txns: list[bytes] = []
        self.pending_halves: list[int] = []
        self.pending_addresses: list[int] = []
        self.terms: list[DeliveryTerms] = []
        self.left_out: list[int] = []
        self.left_out_lo: list[int] = []
        self.left_out_hi: list[int] = []
        self.declared: dict[bytes, Declared] = {}
        #: transactions whose rows may be in the store already
        self.listed: dict[bytes, Declared] = {}
        self.enlisted: dict[bytes, None] = {}
        #: transactions whose control link is detached, with the number of the connection; 0: it is closed
        self.orphaned: dict[bytes, int] = {}
        self.overdue: list[bytes] = []
        self.decided_ids: list[bytes] = []
        self.decisions: list[bytes] = []
        self.reasons: list[bytes] = []
        self.owners: list[bytes] = []
        self.halves: list[int] = []
        self.entries: list[int] = []
        #: halves in the rows of ``declared``, and the one address of each of these transactions
        self.row_halves: dict[bytes, list[int]] = {}
        self.row_address: dict[bytes, int] = {}
        #: transactions that their owner commits
        self.settled: dict[bytes, Settled] = {}
        #: addresses that halves or commits of this batch post to; they must exist
        self.addresses: set[int] = set()
        #: by transaction, group and entry
        self.retired: dict[tuple[bytes, int, int], Retired] = {}
        self.replaced: dict[tuple[bytes, int, int], Retired] = {}
        #: transactions whose retired deliveries this instance no longer has in memory
        self.let_go: list[bytes] = []
        #: transactions that another process has rolled back
        self.owed: list[bytes] = []

    def pend(self, txn_id: bytes, half_id: int, address_id: int, terms: DeliveryTerms, left_out: Sequence[int]) -> None:
        """Add a half that waits for the decision in a row of its own. ``left_out``: groups that do not get it."""
        self.pending_txns.append(txn_id)
        self.pending_halves.append(half_id)
        self.pending_addresses.append(address_id)
        self.addresses.add(address_id)
        self.terms.append(terms)
        self.left_out_lo.append(len(self.left_out) + 1)
        self.left_out += left_out
        self.left_out_hi.append(len(self.left_out))

    def declare(self, txn_id: bytes, declared: Declared, *, new: bool = False) -> None:
        """Add the row of a transaction that has its first half. The batch is refused if it is decided already.

        ``new``: this instance has never sent the row to the store; then the statement costs less.
        """
        (self.declared if new else self.listed)[txn_id] = declared

    def pend_in_row(self, txn_id: bytes, half_id: int, address_id: int) -> bool:
        """Add a half of plain terms, for a queue with one group, to its transaction's row, where it can.

        False: the half needs a row of its own, as this batch does not add the transaction's row, or that row has halves
        of another address, or is full.
        """
        if txn_id not in self.declared or self.row_address.setdefault(txn_id, address_id) != address_id:
            return False
        halves = self.row_halves.setdefault(txn_id, [])
        if len(halves) >= MOST_IN_ROW:
            return False
        halves.append(half_id)
        self.addresses.add(address_id)
        return True

    def enlist(self, txn_id: bytes) -> None:
        """Note that the transaction has another half. The batch is refused if it is decided already."""
        self.enlisted[txn_id] = None

    def retire(self, txn_id: bytes, group_id: int, entry_id: int, retired: Retired, *, first: bool) -> None:
        """Let the transaction hold an entry that this instance has leased.

        The batch is refused if the instance has not leased it, or if the transaction is decided already. ``first``:
        False if the transaction holds the entry already, and its outcome is replaced.
        """
        (self.retired if first else self.replaced)[txn_id, group_id, entry_id] = retired

    def decide(
        self, txn_id: bytes, decision: bytes, reason: str, halves: Sequence[int] = (), entries: Sequence[int] = ()
    ) -> None:
        """Decide a transaction. The batch is refused if it is decided already.

        ``halves``: all of a transaction that commits; ``entries``: the ids of their entries.
        """
        self.decided_ids.append(txn_id)
        self.decisions.append(decision)
        self.reasons.append(arrays.octets_of(reason))
        if decision == b"commit" and not halves:  # it has none; an empty list would mean that they are not known
            halves = entries = (0,)
        self.owners += [txn_id] * len(halves)
        self.halves += halves
        self.entries += entries

    def settle(self, txn_id: bytes, settled: Settled, addresses: Iterable[int]) -> None:
        """Commit a transaction for its owner, if it has retired nothing and leaves out no group.

        It does what :meth:`decide` does, and costs less. ``addresses``: of the halves.
        """
        if not settled.posted:  # the SQL function verifies that it has no halves
            self.decide(txn_id, b"commit", "")
            return
        self.settled[txn_id] = settled
        self.addresses.update(addresses)

    @property
    def changed(self) -> set[bytes]:
        """Return the transactions whose rows this batch changes, where they exist."""
        return {*self.listed, *self.orphaned, *self.overdue, *self.decided_ids, *self.settled}

    @property
    def named(self) -> set[bytes]:
        """Return the transactions whose rows this batch locks."""
        return self.changed.union(self.declared, self.enlisted)

    def wanted(self) -> tuple[bytes, bytes, bytes]:
        """Return the transactions, decisions and reasons of the ops that this batch writes, as binary arrays."""
        settled = len(self.settled)
        return (
            arrays.uuid([*self.decided_ids, *self.settled]),
            arrays.text([*self.decisions, *[b"commit"] * settled]),
            arrays.text([*self.reasons, *[b""] * settled]),
        )


def add_parts(rows: CheckableRows, names: list[str], parameters: list[bytes]) -> None:
    """Add the parts for which there are rows, and their parameters."""
    if changed := rows.changed:
        names.append("free")
        parameters.append(arrays.uuid(sorted(changed)))
    _add_posted(rows, names, parameters)
    for name, ids in (
        ("enlisted", list(rows.enlisted)),
        ("orphaned", list(rows.orphaned)),
        ("overdue", rows.overdue),
        ("let_go", rows.let_go),
        ("owed", rows.owed),
    ):
        if ids:
            names.append(name)
            parameters.append(arrays.uuid(ids))
        if name == "orphaned" and ids:
            parameters.append(arrays.int8(list(rows.orphaned.values())))
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
    """Add the parts of halves, and of the rows of transactions that have their first half."""
    if rows.pending_halves:
        names.append("pending")
        expires, available, priorities, message_groups = map(list, zip(*rows.terms, strict=True))
        parameters += (
            arrays.uuid(rows.pending_txns),
            arrays.int8(rows.pending_halves),
            arrays.int4(rows.pending_addresses),
            arrays.timestamptz(expires),
            arrays.timestamptz(available),
            arrays.int2(priorities),
            arrays.int8(message_groups),
            arrays.int4(rows.left_out_lo),
            arrays.int4(rows.left_out_hi),
            arrays.int4(rows.left_out),
        )
    if rows.declared:
        names.append("declared")
        starts, ends, halves = _slices(rows.row_halves.get(txn_id, ()) for txn_id in rows.declared)
        addresses = arrays.int4([rows.row_address.get(txn_id, 0) for txn_id in rows.declared])
        parameters += (*_declared(rows.declared), starts, ends, addresses, halves)
    if rows.listed:
        names.append("listed")
        parameters += _declared(rows.listed)


def _slices(lists: Iterable[Sequence[int]]) -> tuple[bytes, bytes, bytes]:
    """Return where each list begins and ends in an array of all of them, and that array."""
    together: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    for each in lists:
        starts.append(len(together) + 1)
        together += each
        ends.append(len(together))
    return arrays.int4(starts), arrays.int4(ends), arrays.int8(together)


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
    """Let the SQL function decide all transactions if it decides any: rivals lock theirs in one order, too."""
    for txn_id, settled in rows.settled.items():
        halves, entries = (*settled.halves, *settled.pended), (*settled.entries, *settled.pended_entries)
        rows.decide(txn_id, b"commit", "", halves, entries)
    rows.settled = {}


def _add_settled(rows: CheckableRows, names: list[str], parameters: list[bytes]) -> None:
    """Add the parts of settled transactions. Rows are locked in the order of ids, as when several are decided."""
    names += ("settled", "concluded")
    listed = sorted(rows.settled.items())
    starts, ends, halves = _slices(settled.halves for _, settled in listed)
    entries: list[int] = []
    groups: list[int] = []
    owners: list[bytes] = []
    pended: list[int] = []
    pended_entries: list[int] = []
    for txn_id, settled in listed:
        entries += settled.entries
        groups += [settled.group] * len(settled.halves)
        owners += [txn_id] * len(settled.pended)
        pended += settled.pended
        pended_entries += settled.pended_entries
    parameters += (
        arrays.uuid([txn_id for txn_id, _ in listed]),
        arrays.int4([settled.posted for _, settled in listed]),
        starts,
        ends,
        halves,
        len(pended).to_bytes(8, "big"),
    )
    if entries:
        names.append("released")
        parameters += (arrays.int4(groups), arrays.int8(entries), halves)
    if pended:
        names += ("unpended", "delivered")
        parameters += (arrays.uuid(owners), arrays.int8(pended), arrays.int8(pended_entries))


def _keys(rows: Mapping[tuple[bytes, int, int], Retired]) -> tuple[bytes, bytes, bytes]:
    """Return the transactions, groups and entries of ``rows`` as binary arrays."""
    txns, groups, entries = zip(*rows, strict=True)
    return arrays.uuid(txns), arrays.int4(groups), arrays.int8(entries)


def _retired(rows: Mapping[tuple[bytes, int, int], Retired]) -> tuple[bytes, ...]:
    decisions, reasons, attempts, failed, annotations, waits, undo_failed, failures = zip(*rows.values(), strict=True)
    return (
        arrays.text(decisions),
        arrays.text([arrays.octets_of(each) for each in reasons]),
        arrays.int2([min(each, LARGEST_COUNT) for each in attempts]),
        arrays.text([arrays.octets_of(each) for each in failed]),
        arrays.bytea(annotations),
        arrays.int8(waits),
        arrays.text([arrays.octets_of(each) for each in undo_failed]),
        arrays.int2([min(each, LARGEST_COUNT) for each in failures]),
    )
