"""The store's list of undecided transactions: those older than a moment are entered, and removed once decided.

The group commit writes them, many at once, so that no number of transactions delays a commit or a question. A
transaction without work is not listed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

import structlog

from coordinator.group.entries import POSTGRES_EPOCH, now_micros
from store.commit.batch import Undecided
from store.ids import micros_of

if TYPE_CHECKING:
    from collections.abc import Sequence, Sized

    from store.commit.batch import Batch
    from store.errors import StoreError

log = structlog.get_logger(__name__)

#: transactions that are entered at once; the others follow with the next check
MOST_AT_ONCE = 500


class Named(Protocol):
    """A control link."""

    @property
    def named(self) -> bytes:
        """Its connection, as the list shows it."""


class Listed(Protocol):
    """What the list needs of a transaction."""

    registered: bool

    @property
    def id(self) -> bytes: ...

    @property
    def control(self) -> Named: ...

    @property
    def open(self) -> bool: ...

    @property
    def began(self) -> float: ...

    @property
    def timeout(self) -> float: ...

    @property
    def posted(self) -> int: ...

    @property
    def retired(self) -> Sized: ...

    @property
    def checkable(self) -> bool:
        """Its row is written with its first half."""


class Registration:
    """Unit: enters the transactions that are still undecided when it is written."""

    __slots__ = ("_txns",)

    owner: object = None

    def __init__(self, txns: Sequence[Listed]) -> None:
        self._txns = txns
        for txn in txns:
            txn.registered = True

    def write(self, batch: Batch) -> None:
        for txn in self._txns:
            if txn.open and not txn.checkable:
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
    """Unit: removes a registered transaction that another instance, or an operator, has decided."""

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
