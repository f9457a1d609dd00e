"""Deliveries retired in a checkable transaction (rule H20), and the units that bring them to the store: there the
transaction holds their entries, whatever becomes of its client and of this instance, and its decision applies them.

As long as the transaction is open here, its retirements are in memory as those of any other: links keep their
deliveries, and what a rollback leaves to their consumers (T27) stays with them. A decision that another makes is told
by a notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import structlog

from coordinator.errors import Condition, Refusal
from coordinator.group import held
from coordinator.halves import Checked, enter
from coordinator.work import held_octets
from store.errors import AlreadyDecided, NotLeased

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coordinator.group.entries import Entry
    from store.commit.batch import Batch
    from store.errors import StoreError

log = structlog.get_logger(__name__)


class Holding(Checked, Protocol):
    """A checkable transaction, as these units see it."""

    @property
    def refused_work(self) -> bool: ...

    def entered(self) -> None:
        """Its row is in the store."""

    def on_its_way(self, unit: Hold, octets: int) -> None: ...


class Hold:
    """Unit: a delivery is retired, or another outcome replaces the one before."""

    __slots__ = ("_entry", "_txn")

    def __init__(self, txn: Holding, entry: Entry) -> None:
        self._txn = txn
        self._entry = entry

    @property
    def owner(self) -> object:
        return self._txn.owner

    def write(self, batch: Batch) -> None:
        txn, entry = self._txn, self._entry
        rows = batch.check_back()
        first = entry not in txn.halves.held
        retired = held.retired(entry)
        rows.retire(txn.id, entry.queue.group_id, entry.id, retired, first=first)
        batch.octets += len(retired.annotations)
        enter(txn, batch)

    def durable(self) -> None:
        txn, entry = self._txn, self._entry
        txn.entered()
        txn.halves.held[entry] = None
        if txn.halves.holding.pop(entry) and not txn.refused_work:
            hold(txn, entry)
        elif entry.link is not None and entry.outcome is not None and not entry.peer_settled:
            entry.link.enlisted(entry, txn.id, entry.outcome)
        txn.arrived()

    def refused(self, error: StoreError) -> None:
        txn = self._txn
        del txn.halves.holding[self._entry]
        text = "the store could not hold a delivery that was retired in it"
        refusal = Refusal(Condition.INTERNAL_ERROR, text)
        if isinstance(error, AlreadyDecided):
            refusal = Refusal(Condition.TXN_ROLLBACK, "the transaction is decided already, and not by this client")
        elif isinstance(error, NotLeased):
            text = "a delivery retired in it is no longer this connection's: it will be delivered again, or was removed"
            refusal = Refusal(Condition.TXN_ROLLBACK, text)
        txn.lacks(refusal)
        txn.arrived()


def hold(txn: Holding, entry: Entry) -> None:
    """Bring to the store that it is retired. While that is on its way, a later outcome waits."""
    holding = txn.halves.holding
    if entry in holding:
        holding[entry] = True
        return
    holding[entry] = False
    txn.on_its_way(Hold(txn, entry), held_octets(entry.outcome) if entry.outcome is not None else 0)


class Owed:
    """Unit: another has rolled the transaction back, and what its consumers have retired is this instance's again.
    ``then`` is called when it is, or cannot be.
    """

    __slots__ = ("_entries", "_keep", "_then", "_txn_id")

    owner: object = None

    def __init__(
        self, txn_id: bytes, entries: Sequence[Entry], keep: Callable[[Entry], None], then: Callable[[], None]
    ) -> None:
        """``keep``: makes the delivery what it was before it was retired."""
        self._txn_id = txn_id
        self._entries = entries
        self._keep = keep
        self._then = then

    def write(self, batch: Batch) -> None:
        batch.check_back().owed.append(self._txn_id)

    def durable(self) -> None:
        for entry in self._entries:
            self._keep(entry)
        self._then()

    def refused(self, error: StoreError) -> None:
        log.error("what was retired comes back when this instance ends", error=str(error), entries=len(self._entries))
        self._then()
