"""What removed groups leave behind: their entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from store import queries

if TYPE_CHECKING:
    from coordinator.instance import Instance
    from store.asking import Row
    from store.errors import StoreError


def drop_entries(instance: Instance, groups: list[int]) -> None:
    """Delete the entries of groups that are removed, piece by piece; what is left for any reason is swept by the
    maintenance of the store.
    """
    if not groups:
        return

    def dropped(rows: list[Row] | StoreError) -> None:
        if isinstance(rows, list):
            drop_entries(instance, groups if rows[0][0] else groups[1:])

    parameters = [instance.uuids.next(), groups[0].to_bytes(4, "big"), instance.lease_octets]
    instance.queries.ask(queries.DROP_ENTRIES, parameters, dropped)
