"""Delete the entries that wait at an address, but not those that an instance holds or that have failed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select

from store import audit, channels
from store.audit import Action
from store.database import BY_INDEX
from store.errors import boundary
from store.ids import UuidV7
from store.keys import BY_KEY, listed
from store.recovery import held
from store.tables import address, consumer_group, entry, op

#: Entries deleted in one SQL transaction, so that locks are short and an op is of bounded size.
CHUNK = 1000


@dataclass(frozen=True, kw_only=True)
class PurgeRest:
    """``until``: the id of the last entry that was there when the purge began."""

    until: int


@dataclass(frozen=True, kw_only=True)
class Purged:
    """``purged``: entries deleted; ``held``: entries left, as an instance holds them or they have failed;
    ``finished``: False: its time was over before all were looked at, and ``held`` is 0; then ``next`` has the ``until``
    with which another purge goes on.
    """

    purged: int
    held: int
    finished: bool = True
    next: PurgeRest | None = None


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Entries that a purge would delete, and those it would leave; ``more``: others were not looked at."""

    free: int
    held: int
    more: bool


def waiting(connection: Connection, name: str, most: int) -> Waiting | None:
    """Count the entries at an address, in all its groups, up to ``most``; None: there is no such address."""
    with boundary():
        address_id = connection.scalar(select(address.c.id).where(address.c.name == name))
        if address_id is None:
            return None
        connection.execute(BY_INDEX)
        groups = select(consumer_group.c.id).where(consumer_group.c.address_id == address_id)
        looked = select(_free.label("free")).where(entry.c.group_id.in_(groups)).limit(most + 1).subquery()
        free = func.count().filter(looked.c.free)
        found = connection.execute(select(free.label("free"), func.count().label("all")).select_from(looked)).one()
        connection.rollback()
    return Waiting(free=min(found.free, most), held=found.all - found.free, more=found.all > most)


class _TimeIsOver(Exception):
    pass


def purge(
    connection: Connection, name: str, *, chunk: int = CHUNK, until: int | None = None, seconds: float | None = None
) -> Purged | None:
    """Delete the waiting entries of all groups of an address, delayed ones too. Commits after each chunk.

    ``until``: of the :class:`PurgeRest` of another purge, which this one goes on with. ``seconds``: after so long no
    chunk begins but the first; None: no limit.

    The halves stay until retention drops them; an op ``purge`` covers them. Entries made meanwhile are not touched. An
    entry that an instance reads at that moment may still be delivered, and its retirement is then refused (D10).
    None: there is no such address.
    """
    with boundary():
        address_id = connection.scalar(select(address.c.id).where(address.c.name == name))
        if address_id is None:
            return None
        groups = list(connection.scalars(select(consumer_group.c.id).where(consumer_group.c.address_id == address_id)))
        newest = select(func.max(entry.c.id)).where(entry.c.group_id.in_(groups))
        last = (connection.scalar(newest) or 0) if until is None else until
        connection.rollback()
        ids = UuidV7()
        purged, end = 0, inf if seconds is None else time.monotonic() + seconds

        def begin() -> None:
            if purged and time.monotonic() > end:
                raise _TimeIsOver

        def note(gone: int) -> None:
            nonlocal purged
            if not purged:
                audit.note(connection, Action.PURGE, name)
            purged += gone

        try:
            for group in groups:
                throw_away(connection, group, ids, chunk, only=entry.c.id <= last, before_each=begin, after_each=note)
        except _TimeIsOver:
            connection.rollback()
            return Purged(purged=purged, held=0, finished=False, next=PurgeRest(until=last))
        held = connection.scalar(select(func.count()).select_from(entry).where(entry.c.group_id.in_(groups), ~_free))
        connection.rollback()
    return Purged(purged=purged, held=int(held or 0))


_free = ~held & entry.c.failed.is_(None)


def throw_away(
    connection: Connection,
    group_id: int,
    ids: UuidV7,
    chunk: int,
    *,
    only: ColumnElement[bool] | None = None,
    reason: str | None = None,
    before_each: Callable[[], None] = lambda: None,
    after_each: Callable[[int], None] = lambda _: None,
) -> int:
    """Delete the waiting entries of a group that are there now, with an op ``purge`` for each chunk; commits each, and
    notifies all instances.

    ``only``: of them those of which it is true; ``before_each``, ``after_each``: called in the SQL transaction of each
    chunk, the latter with how many it deletes. Returns how many.
    """
    free = _free if only is None else _free & only
    last = connection.scalar(select(func.max(entry.c.id)).where(entry.c.group_id == group_id))
    connection.rollback()
    above, purged = 0, 0
    while last is not None:
        before_each()
        connection.execute(BY_KEY)
        # lock order: 5, skipping those that are locked
        picked = (
            select(entry.c.group_id, entry.c.id)
            .where(entry.c.group_id == group_id, entry.c.id > above, entry.c.id <= last, free)
            .order_by(entry.c.id)
            .limit(chunk)
            .with_for_update(skip_locked=True)
            .cte("picked")
        )
        gone = connection.execute(delete(entry).where(listed(picked)).returning(entry.c.id, entry.c.half_id)).all()
        if not gone:
            connection.rollback()
            break
        connection.execute(
            insert(op).values(
                id=UUID(bytes=ids.next()),
                decision="purge",
                reason=reason,
                half_ids=[row.half_id for row in gone],
                group_ids=[group_id] * len(gone),
            )
        )
        after_each(len(gone))
        # A delayed entry may have blocked its message group (D3).
        connection.execute(select(func.pg_notify(channels.READY, str(group_id))))
        connection.commit()
        # The next chunk begins above the rows just deleted.
        above = max(row.id for row in gone)
        purged += len(gone)
    return purged
