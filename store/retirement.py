"""Retire one message of a consumer group by hand: as if it were accepted, or to the dead letters (D11)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import Connection, delete, func, insert, select, text, update

from store import audit, channels, partitions
from store.audit import Action
from store.database import BY_INDEX
from store.errors import Contended, boundary
from store.ids import UuidV7
from store.keys import BY_KEY
from store.recovery import held
from store.tables import HELD, SCHEMA, entry, op
from store.views import STATE, THROUGH

#: The states of entries that can be retired by hand.
FREE: Final = ("ready", "scheduled")

#: An entry has the id of its half, or a later one, by which it is looked for where the first does not find it.
_BY_HALF: Final = "e.id = :half"
_LATER: Final = "e.id > :half"
_FIND: Final = f"""select e.id as entry_id, {STATE} as state, e.failures, e.available_at, t.txn_id as held_by
    from {SCHEMA}.consumer_group g {THROUGH} join {SCHEMA}.entry e on e.group_id = g.id
    left join lateral (select p.txn_id from {SCHEMA}.pending_retirement p
      where p.group_id = e.group_id and p.entry_id = e.id limit 1) t on e.lease = {HELD}
   where g.id = :group and e.half_id = :half and """


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """An entry of a message. ``state``: as the view ``entries`` has it; ``held_by``: the undecided transaction that has
    retired it.
    """

    entry_id: int
    state: str
    failures: int
    available_at: datetime | None
    held_by: UUID | None


def waiting(connection: Connection, group_id: int, half_id: int) -> Waiting | None:
    """Return the entry of a message in a consumer group; None: it has none there."""
    with boundary():
        connection.execute(BY_INDEX)
        for where in (_BY_HALF, _LATER):
            row = connection.execute(text(f"{_FIND}{where}"), {"group": group_id, "half": half_id}).first()
            if row is not None:
                break
        connection.rollback()
    return None if row is None else Waiting(**row._mapping)


def retire(
    connection: Connection, group_id: int, half_id: int, found: Waiting, *, failed: str | None, named: str
) -> None:
    """Retire an entry that :func:`waiting` has found in a state of :data:`FREE`; commits.

    ``failed``: the reason with which it goes to the dead letters, by way of an instance; None: an op ``accept`` ends
    it. ``named``: the consumer group, for the audit.

    An entry that an instance reads at that moment may still be delivered, and its retirement is then refused (D10).

    :raises Contended: others have it now, or have retired it.
    """
    partitions.make_ahead(connection)  # the service, which makes them, may have been stopped for weeks
    its = entry.c.group_id == group_id, entry.c.id == found.entry_id, entry.c.half_id == half_id
    with boundary():
        connection.execute(BY_KEY)
        # lock order: 5, skipping those that are locked
        free = select(entry.c.id).where(*its, ~held, entry.c.failed.is_(None)).with_for_update(skip_locked=True)
        if connection.scalar(free) is None:
            connection.rollback()
            raise Contended(f"message {half_id}: another has it just now; try again")
        if failed is None:
            connection.execute(delete(entry).where(*its))
            made = {"id": UUID(bytes=UuidV7().next()), "half_ids": [half_id], "group_ids": [group_id]}
            connection.execute(insert(op).values(decision="accept", **made))
        else:
            connection.execute(update(entry).where(*its).values(failed=failed))
            connection.execute(select(func.pg_notify(channels.DECIDED, "")))
        outcome = "accepted" if failed is None else "dead-letter"
        audit.note(connection, Action.RETIRE, str(half_id), {"group": named, "outcome": outcome})
        # A delayed entry may have blocked its message group (D3).
        connection.execute(select(func.pg_notify(channels.READY, str(group_id))))
        connection.commit()
