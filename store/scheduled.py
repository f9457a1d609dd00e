"""List what consumer groups are to get later (D7): messages with a delivery time, and failed ones before a retry."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, text

from store.database import BY_INDEX
from store.errors import boundary
from store.ids import moment_of
from store.tables import SCHEMA

#: An entry ``e`` that the view ``entries`` has as ``scheduled``, but for those that are on their way to a consumer.
_LATER: Final = "e.available_at > now() and e.lease = 0 and e.failed is null"
#: Where retention has the message still, which it has while an entry waits.
_SIZED: Final = f"""cross join lateral (
     select octet_length(h.message) as octets from {SCHEMA}.half h where h.id = e.half_id offset 0) m"""


@dataclass(frozen=True, kw_only=True)
class Group:
    """What a consumer group is to get later: how many ``messages``, of which ``retries`` have failed before; their
    ``octets``; when the first and the last of them is due.
    """

    address: str
    group: str
    messages: int
    retries: int
    octets: int
    first_due: datetime
    last_due: datetime


@dataclass(frozen=True, kw_only=True)
class Later:
    """A message that is to be delivered later. ``entry``: in its group, while everything else names it by ``id``;
    ``failures``: how often its delivery has failed.
    """

    entry: int
    id: int
    due: datetime
    posted_at: datetime
    octets: int
    failures: int
    expires_at: datetime | None


def groups(connection: Connection, *, after: tuple[str, str] | None = None, most: int | None = None) -> list[Group]:
    """Return the groups that are to get messages later, by address and name: those behind ``after``, and ``most`` at
    most. Reads all such entries.
    """
    of, name = after or ("", "")
    with boundary():
        connection.execute(BY_INDEX)
        rows = connection.execute(
            text(
                f"""select a.name as address, g.name as "group", count(*) as messages,
                           count(*) filter (where e.failures > 0) as retries, sum(m.octets)::int8 as octets,
                           min(e.available_at) as first_due, max(e.available_at) as last_due
                      from {SCHEMA}.entry e join {SCHEMA}.consumer_group g on g.id = e.group_id
                      join {SCHEMA}.address a on a.id = g.address_id {_SIZED}
                     where {_LATER} and (:all or (a.name, g.name) > (cast(:of as text), cast(:name as text)))
                     group by a.name, g.name order by a.name, g.name limit :most"""
            ),
            {"all": after is None, "of": of, "name": name, "most": most},
        ).all()
        connection.rollback()
    return [Group(**row._mapping) for row in rows]


def messages(
    connection: Connection, group: int, *, after: tuple[datetime, int] | None = None, most: int | None = None
) -> list[Later]:
    """Return what a group is to get later, the next one first: what follows ``after``, a time and the id of an entry,
    and ``most`` at most. Reads all such entries of the group.
    """
    at, entry = after or (None, 0)
    with boundary():
        connection.execute(BY_INDEX)
        rows = connection.execute(
            text(
                f"""select e.id as entry, e.half_id as id, e.available_at as due, m.octets, e.failures, e.expires_at
                      from {SCHEMA}.entry e {_SIZED}
                     where e.group_id = :group and {_LATER}
                       and (cast(:at as timestamptz) is null
                            or (e.available_at, e.id) > (cast(:at as timestamptz), cast(:entry as int8)))
                     order by e.available_at, e.id limit :most"""
            ),
            {"group": group, "at": at, "entry": entry, "most": most},
        ).all()
        connection.rollback()
    return [Later(**row._mapping, posted_at=moment_of(row.id)) for row in rows]
