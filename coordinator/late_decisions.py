"""Transactions whose decision has waited for the store for longer than a moment are in its list of undecided ones, too:
a lock that others hold, or a slow disk, keeps their clients waiting.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from coordinator.group.entries import now_micros
from coordinator.registration import MOST_AT_ONCE, Listed, Removal, row_of
from store.deciding import Deciding
from store.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coordinator.instance import Instance
    from store.decisions import Decisions

#: so long after the store could not take them it is asked again
_AGAIN_SECONDS = 5.0


class LateDecisions:
    """``undecided``: whether the transaction of this id is still in memory."""

    def __init__(self, instance: Instance, decisions: Decisions, undecided: Callable[[bytes], bool]) -> None:
        self._instance = instance
        self._decisions = decisions
        self._undecided = undecided
        #: when each was first seen here
        self._since: dict[bytes, int] = {}
        #: those that the store was told of
        self._noted: set[bytes] = set()
        self._asking = False
        self._not_before = 0.0

    def look(self, deciding: Sequence[Listed]) -> None:
        """``deciding``: those whose decisions are on their way to the store."""
        now, before = now_micros(), self._since
        self._since = {txn.id: before.get(txn.id, now) for txn in deciding}
        if self._asking or not deciding or time.monotonic() < self._not_before:
            return
        latest = now - int(self._instance.transaction_limits.register_after_seconds * 1e6)
        late = [txn for txn in deciding if self._since[txn.id] <= latest and txn.id not in self._noted]
        if late:
            self._note(late[:MOST_AT_ONCE])

    def _note(self, late: Sequence[Listed]) -> None:
        self._asking = True
        rows = [Deciding(txn.id, *row_of(txn), since=self._since[txn.id], new=not txn.checkable) for txn in late]
        self._noted.update(row.txn_id for row in rows)

        def noted(listed: set[bytes] | StoreError) -> None:
            self._asking = False
            if isinstance(listed, StoreError):
                self._not_before = time.monotonic() + _AGAIN_SECONDS
                listed = set()
            # the batch itself has the row of one in its hands now and then
            self._noted.difference_update(row.txn_id for row in rows if row.txn_id not in listed)
            for row in rows:
                if row.new and not self._undecided(row.txn_id):
                    self._instance.commit.add(Removal(row.txn_id))

        self._decisions.note(rows, noted)

    def forget(self, txn: Listed) -> None:
        """It is decided; a checkable one may be left, undecided."""
        if txn.id in self._noted:
            self._noted.discard(txn.id)
            if not txn.checkable:
                self._instance.commit.add(Removal(txn.id))
