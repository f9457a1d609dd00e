"""Entries that ended instances had leased go back to their groups, where others get them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Row,
    Select,
    SmallInteger,
    case,
    cast,
    delete,
    func,
    select,
    tuple_,
    update,
)

from store import channels, priorities
from store.tables import address, consumer_group, entry, group_read, instance, message_group

_LARGEST_COUNT = 32767


def give_back(connection: Connection, group_id: int, entry_id: int) -> list[int]:
    """Free one entry, if an instance that has ended, or was never there, leases it; with it all that such instances
    have of its message group, and their claim to this: what comes behind it must not come before it (P18). The halves
    of all that is freed; the transaction is the caller's.
    """
    live = select(instance.c.id).where(instance.c.ended_at.is_(None))
    its = (entry.c.group_id == group_id, entry.c.id == entry_id)
    key = connection.scalar(select(entry.c.message_group).where(*its))
    with_it = its if key is None else (entry.c.group_id == group_id, entry.c.message_group == key)
    freed = [row.half_id for row in return_entries(connection, live, *with_it, entry.c.lease > 0)]
    if freed:
        claim = (message_group.c.group_id == group_id, message_group.c.key == key)
        connection.execute(delete(message_group).where(*claim, message_group.c.instance_id.not_in(live)))
        connection.execute(select(func.pg_notify(channels.READY, "")))
    return freed


def give_back_each(connection: Connection, entries: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same of some entries without message groups, by their groups and ids. The groups and halves of all that is
    freed."""
    live = select(instance.c.id).where(instance.c.ended_at.is_(None))
    its = tuple_(entry.c.group_id, entry.c.id).in_(entries)
    freed = return_entries(connection, live, its, entry.c.lease > 0)
    if freed:
        connection.execute(select(func.pg_notify(channels.READY, "")))
    return [(row.group_id, row.half_id) for row in freed]


def return_entries(
    connection: Connection, live: Select[tuple[int]], *only: ColumnElement[bool]
) -> Sequence[Row[tuple[int, int]]]:
    """Free the entries that dead instances held for their consumers, not those that transactions hold; of these
    ``only`` such. Returns their groups and halves.
    """
    held_whole = consumer_group.c.holder.not_in(live) & (consumer_group.c.holder != 0)
    read = (
        select(func.max(group_read.c.read_through))
        .where(group_read.c.group_id == consumer_group.c.id, group_read.c.instance_id == consumer_group.c.holder)
        .scalar_subquery()
    )
    limits = (
        select(
            consumer_group.c.id,
            func.coalesce(consumer_group.c.max_attempts, address.c.max_attempts).label("max_attempts"),
            address.c.origin,
            case((held_whole, func.coalesce(read, 0)), else_=0).label("read_through"),
        )
        .join(address, address.c.id == consumer_group.c.address_id)
        # Not of addresses and groups that are deleted anyway.
        .where(~of_the_dead(consumer_group.c.instance_id, live), ~of_the_dead(address.c.instance_id, live))
        .subquery()
    )
    lost = (entry.c.lease.not_in(live) & (entry.c.lease > 0)) | (
        (entry.c.lease == 0)
        & (entry.c.id <= limits.c.read_through)
        & (entry.c.priority == priorities.DEFAULT)
        & entry.c.available_at.is_(None)
    )
    # It may have been sent: one failed delivery more (D5). An entry on its way to the dead letters was not. As it is
    # not known, this alone never reaches max_attempts: a backlog must survive any number of crashes.
    most = case((limits.c.origin == "dead-letter", _LARGEST_COUNT), else_=limits.c.max_attempts - 1)
    attempts = case(
        (
            entry.c.failed.is_(None),
            func.greatest(entry.c.attempts, func.least(cast(entry.c.attempts, Integer) + 1, most)),
        ),
        else_=entry.c.attempts,
    )
    # Entries whose group is gone have no max_attempts, and stay as they are.
    returned = connection.execute(
        update(entry)
        .where(lost, entry.c.group_id == limits.c.id, *only)
        .values(lease=0, attempts=cast(attempts, SmallInteger), acquired=entry.c.acquired | entry.c.failed.is_(None))
        .returning(entry.c.group_id, entry.c.half_id)
    )
    return returned.all()


def of_the_dead(owner: ColumnElement[int | None], live: Select[tuple[int]]) -> ColumnElement[bool]:
    """Whether it is an instance that is not among ``live``."""
    # Rows without an instance do not belong to a dead one: null is "not in" an empty list.
    return owner.is_not(None) & owner.not_in(live)
