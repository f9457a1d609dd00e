"""What removed groups leave behind: their entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from store.errors import StoreError
from store.questions import consumer_groups

if TYPE_CHECKING:
    from coordinator.instance import Instance


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
