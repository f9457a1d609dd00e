"""Outcomes of deliveries outside transactions: those of one turn are gathered into few units of the group commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.group import deliveries
from coordinator.outcomes import ACCEPTED, RETURNED, Kind
from coordinator.transitions import DECIDED, DELIVERY, OUTCOME
from store.errors import NotLeased
from store.tables import PASSED_OVER

if TYPE_CHECKING:
    from coordinator.group.entries import Entry
    from coordinator.instance import Instance
    from coordinator.outcomes import Outcome
    from coordinator.transitions import DeliveryEvent
    from store.commit.batch import Batch
    from store.errors import StoreError

#: outcomes that one unit may have
MOST_OF_A_UNIT = 500


class Settlement:
    """Unit: outcomes of one turn, of one connection or several; the accepted ones share one op, with ``reason``."""

    __slots__ = ("_entries", "_instance", "_reason", "owner")

    def __init__(self, instance: Instance, entries: list[Entry], owner: object = None, reason: str = "") -> None:
        self.owner = owner
        self._instance = instance
        self._entries = entries
        self._reason = reason

    def write(self, batch: Batch) -> None:
        uuids = self._instance.uuids
        accepted = deliveries.write(batch, self._entries, uuids, bytes(16))
        if accepted:
            batch.op(uuids.next(), b"accept", reason=self._reason, covers=accepted)

    def durable(self) -> None:
        for entry in self._entries:
            link = entry.link
            returns = entry.outcome is not ACCEPTED
            try:
                deliveries.settle(entry)
                if returns:
                    entry.queue.returning -= 1
                    entry.queue.touch()
            except Exception:  # noqa: BLE001 - a defect costs the connection of this entry only
                self._instance.loop.contain(link)

    def refused(self, error: StoreError) -> None:
        if len(self._entries) > 1:  # one of them is refused: try each by itself
            for each in self._entries:
                self._instance.commit.add(Settlement(self._instance, [each], self.owner, self._reason))
            return
        entry = self._entries[0]
        if entry.outcome is not ACCEPTED:
            entry.queue.returning -= 1
        if isinstance(error, NotLeased):
            text = "the delivery was taken back before its outcome came; it will be delivered again"
        else:
            text = "the store could not apply the outcome; the message will be delivered again"
        if entry.link is not None:
            entry.link.unretired(entry, text)
            entry.outcome = RETURNED
        assert entry.outcome is not None
        entry.attempts = deliveries.attempts_after(entry, entry.outcome)
        # refused for another reason: the entry is still leased to this instance
        entry.queue.give_back(entry, leased=not isinstance(error, NotLeased))


class Settlements:
    """The outcomes of one turn."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self.gathered: list[Entry] = []
        self.passed_over: list[Entry] = []

    def pass_over(self, entry: Entry) -> None:
        """It is done with, and no consumer has had it: the selector of its subscription does not want it."""
        entry.state = DELIVERY[entry.state, OUTCOME]
        entry.outcome = ACCEPTED
        self.passed_over.append(entry)

    def add(
        self, entry: Entry, outcome: Outcome, event: DeliveryEvent = OUTCOME, *, behind_others: bool = False
    ) -> None:
        """An outcome outside transactions, applied with the others of this turn. It comes too late if another one is on
        its way to the store, or a transaction has retired the delivery. ``behind_others``: one that changes nothing in
        the store comes back with those that do, for their order.
        """
        before = entry.state
        after = entry.state = DELIVERY[before, event]
        if after is not DECIDED or before is DECIDED:
            return
        entry.outcome = outcome
        if outcome is ACCEPTED:
            self.gathered.append(entry)
        elif outcome.kind is Kind.RELEASED and not behind_others:  # the store has nothing to change
            deliveries.settle(entry)
        else:
            entry.queue.comes_back(entry)
            self.gathered.append(entry)

    def hand_over(self) -> None:
        """Hand the outcomes to the group commit: few as one unit, many by connection."""
        gathered, self.gathered = self.gathered, []
        passed_over, self.passed_over = self.passed_over, []
        commit = self._instance.commit
        self._hand_over(passed_over, None, PASSED_OVER)
        if len(gathered) <= MOST_OF_A_UNIT and not commit.crowded:
            self._hand_over(gathered, None)
            return
        by_owner: dict[object, list[Entry]] = {}
        for entry in gathered:
            link = entry.link
            by_owner.setdefault(None if link is None else link.connection, []).append(entry)
        for owner, entries in by_owner.items():
            self._hand_over(entries, owner)

    def _hand_over(self, entries: list[Entry], owner: object, reason: str = "") -> None:
        for start in range(0, len(entries), MOST_OF_A_UNIT):
            some = entries[start : start + MOST_OF_A_UNIT]
            self._instance.commit.add(Settlement(self._instance, some, owner, reason))
