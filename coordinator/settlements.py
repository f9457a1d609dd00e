"""Outcomes of deliveries outside transactions: those of one turn are gathered into few units of the group commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator import outcomes
from coordinator.group import deliveries
from coordinator.transitions import DECIDED, DELIVERY, OUTCOME
from store.errors import NotLeased

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
    """Unit: outcomes of one turn, of one connection or several; the accepted ones share one op."""

    __slots__ = ("_instance", "_items", "owner")

    def __init__(self, instance: Instance, items: list[tuple[Entry, Outcome]], owner: object = None) -> None:
        self.owner = owner
        self._instance = instance
        self._items = items

    def write(self, batch: Batch) -> None:
        accepted: list[tuple[int, int]] = []
        uuids = self._instance.uuids
        for entry, outcome in self._items:
            deliveries.write(batch, entry, outcome, accepted, uuids, bytes(16))
        if accepted:
            batch.op(uuids.next(), b"accept", covers=accepted)

    def durable(self) -> None:
        for entry, outcome in self._items:
            link = entry.link
            try:
                self._settle(entry, outcome)
            except Exception:  # noqa: BLE001 - a defect costs the connection of this entry only
                self._instance.loop.contain(link)

    def _settle(self, entry: Entry, outcome: Outcome) -> None:
        if entry.link is not None:
            entry.link.retired(entry, outcome)
        deliveries.settle(entry, outcome)
        if outcome is not outcomes.ACCEPTED:
            entry.queue.returning -= 1
            entry.queue.touch()

    def refused(self, error: StoreError) -> None:
        if len(self._items) > 1:  # one of them is refused: try each by itself
            for item in self._items:
                self._instance.commit.add(Settlement(self._instance, [item], self.owner))
            return
        entry, outcome = self._items[0]
        if outcome is not outcomes.ACCEPTED:
            entry.queue.returning -= 1
        if isinstance(error, NotLeased):
            text = "the delivery was taken back before its outcome came; it will be delivered again"
        else:
            text = "the store could not apply the outcome; the message will be delivered again"
        if entry.link is not None:
            entry.link.unretired(entry, text)
        # refused for another reason: the entry is still leased to this instance
        entry.queue.give_back(entry, leased=not isinstance(error, NotLeased))


class Settlements:
    """The outcomes of one turn."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._gathered: list[tuple[Entry, Outcome]] = []

    def add(self, entry: Entry, outcome: Outcome, event: DeliveryEvent = OUTCOME) -> None:
        """An outcome outside transactions, applied with the others of this turn. It comes too late if another one is on
        its way to the store, or a transaction has retired the delivery.
        """
        before = entry.state
        entry.state = DELIVERY[before, event]
        if entry.state is not DECIDED or before is DECIDED:
            return
        entry.outcome = outcome
        if outcome is outcomes.RELEASED:  # the store has nothing to change
            if entry.link is not None:
                entry.link.retired(entry, outcome)
            deliveries.settle(entry, outcome)
        else:
            if outcome is not outcomes.ACCEPTED:
                entry.queue.comes_back(entry)
            self._gathered.append((entry, outcome))

    def hand_over(self) -> bool:
        """Hand the outcomes to the group commit: few as one unit, many by connection. False: there were none."""
        gathered = self._gathered
        if not gathered:
            return False
        self._gathered = []
        commit = self._instance.commit
        if len(gathered) <= MOST_OF_A_UNIT and not commit.crowded:
            commit.add(Settlement(self._instance, gathered))
            return True
        by_owner: dict[object, list[tuple[Entry, Outcome]]] = {}
        for item in gathered:
            link = item[0].link
            by_owner.setdefault(None if link is None else link.connection, []).append(item)
        for owner, items in by_owner.items():
            for start in range(0, len(items), MOST_OF_A_UNIT):
                commit.add(Settlement(self._instance, items[start : start + MOST_OF_A_UNIT], owner))
        return True
