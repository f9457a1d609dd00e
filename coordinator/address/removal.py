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


#: between attempts, where a batch that returns deliveries to the group has locked them
_LOCKED_SECONDS = 0.2


def drop_entries(instance: Instance, groups: list[int]) -> None:
    """Delete the entries of removed groups, piece by piece. Where the store fails, its maintenance sweeps the rest."""
    if not groups:
        return

    def dropped(answer: tuple[int, bool] | StoreError) -> None:
        if isinstance(answer, StoreError):
            return
        count, left = answer
        instance.loop.call_later(
            _LOCKED_SECONDS if left and not count else 0,
            lambda: drop_entries(instance, groups if left else groups[1:]),
        )

    op = instance.uuids.next()
    consumer_groups.drop_entries(instance.queries, op, groups[0], instance.instance_id, dropped)
