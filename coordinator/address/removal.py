"""What removed groups leave behind: their entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from store.errors import StoreError
from store.questions import consumer_groups

if TYPE_CHECKING:
    from coordinator.instance import Instance


def drop_entries(instance: Instance, groups: list[int]) -> None:
    """Delete the entries of removed groups, piece by piece. The maintenance of the store sweeps any that are left."""
    if not groups:
        return

    def dropped(count: int | StoreError) -> None:
        if not isinstance(count, StoreError):
            drop_entries(instance, groups if count else groups[1:])

    op = instance.uuids.next()
    consumer_groups.drop_entries(instance.queries, op, groups[0], instance.instance_id, dropped)
