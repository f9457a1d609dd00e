"""Consumer groups for administration: find one, change its policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, func, select, update

from store import audit, channels
from store.audit import Action
from store.errors import boundary
from store.tables import address, consumer_group


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a group is looked for. ``group``: its id; None: the address has no such group."""

    topic: bool
    group: int | None


def find(connection: Connection, of: str, name: str) -> Place | None:
    """The group ``name`` of the address ``of``, ``''`` for the default one of a queue; None: no such address."""
    with boundary():
        found = connection.execute(
            select(address.c.routing, consumer_group.c.id)
            .outerjoin(consumer_group, (consumer_group.c.address_id == address.c.id) & (consumer_group.c.name == name))
            .where(address.c.name == of)
        ).one_or_none()
    return None if found is None else Place(topic=found.routing == "topic", group=found.id)


def change(connection: Connection, of: str, group: int, changes: Mapping[str, object]) -> bool:
    """Set policies that a group of the address ``of`` has of its own, by the names of their columns; None: as the
    address has it. Commits, and notifies all instances. False: the group was removed meanwhile.
    """
    with boundary():
        changed = update(consumer_group).where(consumer_group.c.id == group).values(**changes)
        name = connection.scalar(changed.returning(consumer_group.c.name))
        if name is not None:
            audit.note(connection, Action.GROUP_SET, of, {"group": name, **changes})
        connection.execute(select(func.pg_notify(channels.ADDRESS, of)))
        connection.commit()
    return name is not None
