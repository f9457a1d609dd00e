"""What removed groups leave behind: their entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from store.errors import StoreError
from store.questions import consumer_groups

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.instance import Instance
    from store.commit.batch import Batch


class Before:
    """Unit without rows: what was decided of the deliveries of a removed address or group goes to the store before they
    are removed there. A batch that finds an entry gone would be refused, with all that others have in it.
    """

    __slots__ = ("_then", "owner")

    def __init__(self, then: Callable[[], None], owner: object = None) -> None:
        """``owner``: the connection of what was decided."""
        self._then = then
        self.owner = owner

    def write(self, batch: Batch) -> None:
        pass

    def durable(self) -> None:
        self._then()

    def refused(self, error: StoreError) -> None:
        self._then()


def remove_behind(instance: Instance, remove: Callable[[], None], owner: object = None) -> None:
    """Call ``remove`` once the store has what was decided before, in this turn too."""
    instance.loop.call_later(0, lambda: instance.commit.add(Before(remove, owner)))


def drop_entries(instance: Instance, groups: list[int]) -> None:
    """Delete the entries of removed groups, piece by piece. The maintenance of the store sweeps any that are left."""
    if not groups:
        return

    def dropped(count: int | StoreError) -> None:
        if not isinstance(count, StoreError):
            drop_entries(instance, groups if count else groups[1:])

    op = instance.uuids.next()
    consumer_groups.drop_entries(instance.queries, op, groups[0], instance.instance_id, dropped)
