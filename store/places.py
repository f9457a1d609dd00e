"""Where a consumer group can be moved to (rule H17): a message or a time, and since when messages are kept."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, func, select

from store import retention
from store.errors import AddressGone, boundary
from store.ids import id_at
from store.tables import address, consumer_group, half


@dataclass(frozen=True, kw_only=True)
class Group:
    """A consumer group that can be moved. ``retention_hours``: of its address, None: as the settings say."""

    id: int
    address_id: int
    fifo: bool
    retention_hours: int | None


def group(connection: Connection, group_id: int) -> Group:
    """A group that was just found.

    :raises AddressGone: it is removed meanwhile.
    """
    with boundary():
        found = connection.execute(
            select(address.c.id, address.c.kind, address.c.retention_hours)
            .join(consumer_group, consumer_group.c.address_id == address.c.id)
            .where(consumer_group.c.id == group_id)
        ).one_or_none()
        connection.rollback()
    if found is None:
        raise AddressGone("the consumer group was removed meanwhile")
    hours = found.retention_hours
    return Group(id=group_id, address_id=found.id, fifo=found.kind == "fifo", retention_hours=hours)


def has_message(connection: Connection, of: Group, half_id: int) -> bool:
    """Whether the store has this message of the group's address."""
    with boundary():
        found = connection.scalar(select(half.c.id).where(half.c.id == half_id, half.c.address_id == of.address_id))
        connection.rollback()
    return found is not None


def oldest(connection: Connection, of: Group, kept: timedelta) -> datetime | None:
    """From when on all messages of the group's address are there; None: none was ever dropped.

    ``kept``: how long they are kept, where the address does not say otherwise.
    """
    since = retention.messages_kept_since(connection)
    connection.rollback()
    if since is None:
        return None
    hours = of.retention_hours
    return min(since, now(connection) - (kept if hours is None else timedelta(hours=hours)))


def now(connection: Connection) -> datetime:
    """By the clock of the database."""
    with boundary():
        moment: datetime = connection.execute(select(func.now())).scalar_one()
        connection.rollback()
    return moment


def first_id(moment: datetime) -> int:
    """The lowest id of what was posted at ``moment`` (aware) or later."""
    return max(1, id_at(moment))
