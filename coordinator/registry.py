"""The registry keeps an instance's undecided transactions: it declares them, finds them for the connections that may
use them, and rolls them back at their timeout or if they hold too much (rules T10 to T14, S4).
"""

from __future__ import annotations

import time
from contextlib import suppress
from heapq import heapify, heappop
from itertools import takewhile
from typing import TYPE_CHECKING

import structlog

from coordinator.checkable import terms
from coordinator.errors import Condition, Refusal
from coordinator.group.entries import POSTGRES_EPOCH, now_micros
from coordinator.transaction import Transaction
from coordinator.transitions import ACTIVE, TxnEvent
from store.clock import CLOCK
from store.commit.batch import Undecided
from store.ids import TxnIds, micros_of
from store.reasons import TIMEOUT
from store.spool import Room

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coordinator.address.directory import Directory
    from coordinator.address.enqueue import Enqueue
    from coordinator.control import Control
    from coordinator.instance import Instance
    from coordinator.retirement import Settlements
    from coordinator.settings import Settings
    from store.commit.batch import Batch
    from store.decisions import Decisions
    from store.errors import StoreError

log = structlog.get_logger(__name__)

SWEEP_SECONDS = 0.25
#: seconds after its declare at which a transaction without work is forgotten: decisions are kept by the day of the
#: declare, and a later decision could be removed with its day
UNUSED_SECONDS = 24 * 3600.0
#: how many transactions rolled back by their timeout are remembered, so that late work gets the right error
MOST_TIMED_OUT = 10_000
#: how many transactions are entered in the store's list at once; the others follow with the next sweep
MOST_AT_ONCE = 500


class Registry:
    """Holds the undecided transactions of one instance, by txn-id."""

    def __init__(
        self,
        instance: Instance,
        settings: Settings,
        directory: Directory,
        enqueue: Enqueue,
        settlements: Settlements,
        decisions: Decisions,
        secret: bytes,
    ) -> None:
        """``secret``: the store's key, by which txn-ids of this store are recognized."""
        self.instance = instance
        self.directory = directory
        self.enqueue = enqueue
        self.settlements = settlements
        self.decisions = decisions
        #: how checkable transactions are checked, unless their clients ask for another immunity (H7)
        self.check_terms = terms(settings.check)
        self._ids = TxnIds(instance.instance_id, secret)
        self.txns: dict[bytes, Transaction] = {}
        #: the transactions that have work, and so a time limit (T14)
        self.working: dict[bytes, Transaction] = {}
        #: the number of undecided transactions of each connection
        self._undecided: dict[object, int] = {}
        self._unused_seconds = _unused_seconds(settings)
        self._timed_out: dict[bytes, Refusal] = {}
        #: room for the files of large messages
        self.spool_room = Room(settings.limits.spool_bytes, self._make_spool_room)

    def declare(self, owner: object, control: Control, timeout: float, user: str | None = None) -> Transaction:
        """Begin a transaction. ``user``: its user; None: a client without a login.

        :raises Refusal: the connection has too many undecided transactions already (S4).
        """
        undecided = self._undecided.get(owner, 0)
        memory = self.instance.memory
        most, now = self.instance.bounds.transactions_per_connection, ""
        if len(self.txns) >= memory.most_transactions and memory.fair_transactions < most:
            most, now = memory.fair_transactions, " now, its fair share of limits.memory_bytes"
        if undecided >= most:
            raise Refusal(
                Condition.RESOURCE_LIMIT_EXCEEDED,
                f"a connection has at most {most} undecided transactions{now}: discharge some first",
            )
        self._undecided[owner] = undecided + 1
        txn = Transaction(self, self._ids.next(user), owner, control, timeout)
        self.txns[txn.id] = txn
        return txn

    def refuse_largest(self) -> None:
        """Refuse the largest undecided transactions, which then drop their messages, as all hold too much memory. Their
        connections are still read: without their discharges no memory would become free.
        """
        enough = 3 * self.instance.memory.most // 4
        refusal = Refusal(
            Condition.RESOURCE_LIMIT_EXCEEDED,
            "undecided transactions hold too much memory, and this is among the largest (limits.memory_bytes)",
        )
        self._refuse_undecided(lambda txn: txn.counted, lambda: self.instance.memory.transactions > enough, refusal)

    def _make_spool_room(self, octets: int) -> None:
        """Refuse the undecided transactions with the most octets in files, as large messages fill their disk space."""
        refusal = Refusal(
            Condition.RESOURCE_LIMIT_EXCEEDED,
            "large messages hold too much of the disk, and this transaction has among the most (limits.spool_bytes)",
        )
        self._refuse_undecided(lambda txn: txn.spooled, lambda: self.spool_room.short_of(octets), refusal)

    def _refuse_undecided(
        self, held: Callable[[Transaction], int], too_much: Callable[[], bool], refusal: Refusal
    ) -> None:
        """Refuse transactions, the greatest by ``held`` first, until ``too_much`` is false."""
        largest = [
            (-held(txn), number, txn) for number, txn in enumerate(self.working.values()) if txn.open and held(txn)
        ]
        heapify(largest)  # only a few of many are needed
        while largest and too_much():
            _, _, txn = heappop(largest)
            log.warning(
                "transaction refused: it holds too much",
                peer=str(txn.owner),
                octets=txn.octets,
                description=refusal.description,
            )
            txn.refuse(refusal)

    def began(self, txn: Transaction) -> None:
        """Start the time limit of a transaction, which has its first work."""
        self.working[txn.id] = txn

    def genuine(self, txn_id: bytes, user: str | None) -> bool:
        """Whether an instance of this store made the txn-id (T10), for this user (S3)."""
        return self._ids.genuine(txn_id, user)

    def find(self, txn_id: bytes, owner: object) -> Transaction | None:
        """Return the undecided transaction; None if this connection did not declare it (T12)."""
        txn = self.txns.get(txn_id)
        if txn is not None and txn.owner is owner and (txn.state is ACTIVE or txn.open):
            return txn
        return None

    def for_work(self, txn_id: bytes, owner: object) -> Transaction | None:
        """Return the transaction like :meth:`find`; None also if it is discharged, so that no work may begin in it."""
        txn = self.txns.get(txn_id)
        if txn is not None and txn.owner is owner and (txn.state is ACTIVE or not txn.discharged):
            return txn
        return None

    def refuse_incomplete(self, txn_id: bytes, owner: object) -> None:
        """Refuse the transaction of work that its link or session did not complete (T22, T26): a post cut off by the
        end of its session, or a post or a retirement received after the end of its link or session.
        """
        txn = self.for_work(txn_id, owner)
        if txn is not None:
            text = "a post, or a retirement, of it had not come before the end of its link or session"
            txn.refuse(Refusal(Condition.ILLEGAL_STATE, text))

    def unknown(self, txn_id: bytes, user: str | None) -> Refusal:
        """Return the refusal of work in a transaction that is not open: it timed out (T14), which is reported to its
        ``user`` alone (S3), or it is unknown.
        """
        timed_out = self._timed_out.get(txn_id)
        if timed_out is not None and self.genuine(txn_id, user):
            return timed_out
        return Refusal(
            Condition.TXN_UNKNOWN_ID, f"no transaction {txn_id.hex()} is open on this connection; declare one first"
        )

    def forget(self, txn: Transaction) -> None:
        """Remove a transaction that is decided, or left undecided to the store."""
        if self.txns.pop(txn.id, None) is None:
            return
        self.working.pop(txn.id, None)
        undecided = self._undecided.pop(txn.owner) - 1
        if undecided:
            self._undecided[txn.owner] = undecided

    def unlist(self, txn_id: bytes) -> None:
        """Remove a transaction from the store's list, as another instance or an operator has decided it."""
        self.instance.commit.add(Removal(txn_id))

    def decided(self, payload: str) -> None:
        """Handle a NOTIFY that another has decided this transaction, which may have deliveries in memory here."""
        with suppress(ValueError):
            txn = self.txns.get(bytes.fromhex(payload))
            if txn is not None and txn.in_store is not None:
                txn.in_store.query_decision()

    def query_held(self) -> None:
        """Query the decisions of transactions that hold deliveries: a NOTIFY of one may have been lost."""
        for txn in list(self.working.values()):
            if txn.in_store is not None:
                txn.in_store.query_decision()

    def sweep(self) -> None:
        """Roll back transactions that have timed out (T14); register those that are older than a moment."""
        self.instance.loop.call_later(SWEEP_SECONDS, self.sweep)
        now = time.monotonic()
        register_after = self.instance.bounds.register_after_seconds
        unknown: list[Transaction] = []
        for txn in list(self.working.values()):
            age = now - txn.began
            if not txn.open:
                continue
            if txn.in_store is not None and not txn.refused_work:
                if age >= txn.timeout:
                    txn.in_store.time_over()
            elif age >= txn.timeout:
                self._time_out(txn, timed_out(txn.timeout))
            elif age >= register_after and not txn.registered and not txn.empty and len(unknown) < MOST_AT_ONCE:
                unknown.append(txn)
        if unknown:
            self.instance.commit.add(Registration(unknown))
        for txn in self._unused():
            self._time_out(txn, unused(self._unused_seconds))

    def _unused(self) -> list[Transaction]:
        """Return transactions without work whose declare is too long ago. Ids grow with time: the oldest are first."""
        latest = (CLOCK.now() - self._unused_seconds) * 1e6
        old = takewhile(lambda txn: micros_of(txn.id) <= latest, self.txns.values())
        return [txn for txn in old if not txn.began]

    def _time_out(self, txn: Transaction, refusal: Refusal) -> None:
        self._remember_timeout(txn, refusal)
        event = TxnEvent.TIMEOUT if txn.in_store is None or txn.refused_work else TxnEvent.CONTROL_LOST
        try:
            txn.abandon(event, TIMEOUT, refusal)
        except Exception:  # noqa: BLE001 - a defect costs this transaction only
            self.instance.loop.contain(txn)

    def _remember_timeout(self, txn: Transaction, refusal: Refusal) -> None:
        self._timed_out[txn.id] = refusal
        if len(self._timed_out) > MOST_TIMED_OUT:
            self._timed_out.pop(next(iter(self._timed_out)))


def _unused_seconds(settings: Settings) -> float:
    """Return the seconds after which an unused transaction is forgotten: at most half as long as decisions are kept."""
    return min(UNUSED_SECONDS, settings.retention.decisions_hours * 3600 / 2)


def timed_out(limit: float) -> Refusal:
    return Refusal(
        Condition.TXN_TIMEOUT, f"the transaction was rolled back: its first work was more than {limit:g} s ago"
    )


def unused(limit: float) -> Refusal:
    return Refusal(
        Condition.TXN_TIMEOUT,
        f"the transaction was rolled back: there was no work in it for {limit:g} s after its declare; declare another",
    )


# The store's list of undecided transactions has those that are older than a moment, until they are decided. The group
# commit writes the list, many rows at once, so that no number of transactions delays a commit or a query. A transaction
# without work is not listed, and the row of a checkable one is written with its first half.


class Registration:
    """Unit: enters in the store's list those of the transactions that are still undecided when it is written."""

    __slots__ = ("_txns",)

    owner: object = None

    def __init__(self, txns: Sequence[Transaction]) -> None:
        self._txns = txns
        for txn in txns:
            txn.registered = True

    def write(self, batch: Batch) -> None:
        for txn in self._txns:
            if txn.open and txn.in_store is None:
                row = Undecided(
                    owner=txn.control.named,
                    declared=micros_of(txn.id) - POSTGRES_EPOCH * 1_000_000,
                    timeout=now_micros() + int((txn.began + txn.timeout - time.monotonic()) * 1e6),
                    posted=txn.posted,
                    retired=len(txn.retired),
                )
                batch.register(txn.id, row)

    def durable(self) -> None:
        pass

    def refused(self, error: StoreError) -> None:
        log.error(
            "undecided transactions were not entered in the store's list", error=str(error), count=len(self._txns)
        )


class Removal:
    """Unit: removes from the store's list a transaction that another instance, or an operator, has decided."""

    __slots__ = ("_txn_id",)

    owner: object = None

    def __init__(self, txn_id: bytes) -> None:
        self._txn_id = txn_id

    def write(self, batch: Batch) -> None:
        batch.forget(self._txn_id)

    def durable(self) -> None:
        pass

    def refused(self, error: StoreError) -> None:
        log.error("a decided transaction stays in the store's list", error=str(error))
