"""Remove an address, and what removed addresses and groups leave behind.

A group is deleted first, then its entries, piece by piece. Each batch that inserts an entry for the group locks the row
of the group, or of its address, so after the deletion no entry can be added. :func:`sweep` deletes what a crash leaves
in between. Dropped entries have an op ``purge``; names stay known as long as something may refer to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from sqlalchemy import Connection, delete, exists, func, insert, select, text

from store import audit, channels
from store.audit import Action
from store.database import LONGEST_WAIT
from store.errors import Locked, boundary
from store.ids import UuidV7, moment_of
from store.keys import BY_KEY, listed
from store.questions.consumer_groups import REMOVED
from store.reasons import ADDRESS_REMOVED
from store.tables import (
    SCHEMA,
    address,
    address_use,
    consumer_group,
    entry,
    half,
    message_group,
    op,
    pending,
    removed_address,
    removed_group,
    txn,
)
from store.views import pending_half

#: Entries of one SQL transaction: short locks, and an op of bounded size.
CHUNK = 1000

#: Unused addresses that are removed at one time.
MOST_UNUSED = 10_000

#: How long a name stays known at least.
NAMES_KEPT = timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class Removal:
    """The result of :func:`remove`.

    ``removed``: the address is deleted, with ``dropped`` entries, and ``rolled_back`` transactions that posted to it.
    Otherwise the reasons against it: ``groups``, named groups that last, ``waiting``, messages that are not consumed,
    and ``undecided``, messages of checkable transactions.
    """

    removed: bool
    dropped: int = 0
    rolled_back: int = 0
    waiting: bool = False
    undecided: bool = False
    groups: tuple[str, ...] = ()


def remove(
    connection: Connection, name: str, *, force: bool, unused: timedelta | None = None, chunk: int = CHUNK
) -> Removal | None:
    """Remove an address; commits. None: there is no such address.

    One with messages, or groups that last, is removed only with ``force``; with ``unused`` only one of which no use was
    noted for so long.

    It waits for batches that post to it now, and for decisions about messages at it, but with ``unused`` for nothing;
    later ones are refused, and its links end. Its halves stay until retention drops them; its dead letters have an
    address of their own.

    :raises Locked: it would wait for longer than 10 s, as for the long commit of an application (X2, X3), or with
        ``unused`` at all; nothing is removed.
    """
    at_once = unused is not None
    with boundary():
        connection.execute(LONGEST_WAIT)
        # lock order: 7
        found_id = select(address.c.id).where(address.c.name == name).with_for_update(nowait=at_once)
        address_id = connection.scalar(found_id)
        if address_id is None:
            connection.rollback()
            return None
        # lock order: 8
        found = connection.execute(
            select(consumer_group.c.id, consumer_group.c.name, consumer_group.c.instance_id)
            .where(consumer_group.c.address_id == address_id)
            .order_by(consumer_group.c.id)
            .with_for_update(nowait=at_once)
        ).all()
        groups = [row.id for row in found]
        lasting = tuple(row.name for row in found if row.name and row.instance_id is None)
        waiting = any(connection.scalar(select(exists().where(entry.c.group_id == group))) for group in groups)
        undecided = bool(connection.scalar(select(exists().where(pending_half.c.address_id == address_id))))
        used = unused is not None and connection.scalar(
            select(exists().where(address_use.c.address_id == address_id, address_use.c.used_at >= func.now() - unused))
        )
        if used or (not force and (waiting or lasting or undecided)):
            connection.rollback()
            return Removal(removed=False, waiting=waiting, undecided=undecided, groups=lasting)
        connection.execute(delete(address).where(address.c.id == address_id))
        if unused is None:
            audit.note(connection, Action.ADDRESS_REMOVE, name, {"force": force})
        connection.execute(select(func.pg_notify(channels.ADDRESS, name)))
        connection.commit()
        ids = UuidV7()
        dropped = sum(drop(connection, group, ids, chunk) for group in groups)
        return Removal(removed=True, dropped=dropped, rolled_back=_roll_back(connection, address_id))


def _roll_back(connection: Connection, address_id: int) -> int:
    """Roll back the checkable transactions that posted to a removed address, as they can no longer commit.

    Commits each. Skips those that others are deciding for long now. Returns how many. Do not call it while the address
    is locked: a post of the transaction locks both, in another order.
    """
    txns = connection.scalars(
        select(pending_half.c.txn_id).where(pending_half.c.address_id == address_id).distinct()
    ).all()
    connection.rollback()
    rolled_back = 0
    for txn_id in txns:
        try:
            with boundary():
                connection.execute(LONGEST_WAIT)
                done = connection.scalar(select(func.coordinator.decide(txn_id, "rollback", ADDRESS_REMOVED)))
                connection.commit()
                rolled_back += bool(done)
        except Locked:
            connection.rollback()
    return rolled_back


def remove_unused(connection: Connection, unused: timedelta, *, most: int = MOST_UNUSED) -> int:
    """Remove addresses that were made on use and have been ``unused`` for so long; commits each. Returns how many.

    They have neither messages nor groups that last. Such an address is made anew when it is used again.

    An instance notes a use before it relies on the address (:func:`store.questions.addresses.find`), so an address to
    which a link has just been attached is not removed. If its messages are kept for longer than ``unused``, its name
    stays as long.
    """
    limit = func.now() - func.greatest(unused, func.make_interval(0, 0, 0, 0, address.c.retention_hours))
    with boundary():
        names = connection.scalars(
            select(address.c.name)
            .outerjoin(address_use)
            .where(
                address.c.origin == "use",
                func.coalesce(address_use.c.used_at, address.c.created_at) < limit,
                ~exists().where(pending.c.address_id == address.c.id),
                ~exists().where(txn.c.address_id == address.c.id),
                ~exists().where(
                    consumer_group.c.address_id == address.c.id,
                    ((consumer_group.c.name != "") & consumer_group.c.instance_id.is_(None))
                    | exists().where(entry.c.group_id == consumer_group.c.id).correlate(consumer_group),
                ),
            )
            .order_by(address.c.id)
            .limit(most)
        ).all()
        connection.rollback()
    return sum(_remove_unused(connection, name, unused) for name in names)


def _remove_unused(connection: Connection, name: str, unused: timedelta) -> bool:
    try:
        removal = remove(connection, name, force=False, unused=unused)
    except Locked:  # it is used
        connection.rollback()
        return False
    return removal is not None and removal.removed


def sweep(connection: Connection, *, chunk: int = CHUNK) -> int:
    """Drop entries whose group was removed, and names that nothing refers to; commits each piece.

    Returns how many entries. It steps through the groups that have entries, by index: the cost grows with the number of
    groups, not of entries.
    """
    with boundary():
        ids = UuidV7()
        dropped = sum(drop(connection, group, ids, chunk) for group in orphaned_groups(connection))
        oldest = connection.scalar(select(func.min(half.c.id)))
        for removed, lasting in (
            (removed_address, removed_address.c.origin != "dynamic"),
            (removed_group, removed_group.c.lasting),
        ):
            old = removed.c.removed_at < func.now() - NAMES_KEPT
            if oldest is not None:
                old &= ~lasting | (removed.c.removed_at < moment_of(oldest))
            connection.execute(delete(removed).where(old))
        connection.commit()
    return dropped


def orphaned_groups(connection: Connection) -> list[int]:
    """Return the removed groups that still have entries."""
    found = connection.scalars(
        text(
            f"""with recursive filled(id) as (
                  (select group_id from {SCHEMA}.entry order by group_id limit 1)
                  union all
                  select (select e.group_id from {SCHEMA}.entry e where e.group_id > h.id order by e.group_id limit 1)
                    from filled h where h.id is not null)
                select id from filled h
                 where id is not null and not exists (select from {SCHEMA}.consumer_group g where g.id = h.id)"""
        )
    ).all()
    connection.rollback()
    return list(found)


def drop(connection: Connection, group_id: int, ids: UuidV7, chunk: int = CHUNK) -> int:
    """Drop the entries of a removed group, with an op ``purge`` for each piece; commits each. Returns how many."""
    dropped = 0
    while True:
        connection.execute(BY_KEY)
        # lock order: 5, skipping those that are locked
        picked = (
            select(entry.c.group_id, entry.c.id)
            .where(entry.c.group_id == group_id, ~exists().where(consumer_group.c.id == group_id))
            .order_by(entry.c.id)
            .limit(chunk)
            .with_for_update(skip_locked=True, of=entry)
            .cte("picked")
        )
        halves = connection.scalars(delete(entry).where(listed(picked)).returning(entry.c.half_id)).all()
        if not halves:
            connection.execute(delete(message_group).where(message_group.c.group_id == group_id))
            connection.commit()
            return dropped
        connection.execute(
            insert(op).values(
                id=UUID(bytes=ids.next()),
                decision="purge",
                reason=REMOVED,
                half_ids=halves,
                group_ids=[group_id] * len(halves),
            )
        )
        connection.commit()
        dropped += len(halves)
