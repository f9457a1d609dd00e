"""List what consumer groups are to get later (D7): messages with a delivery time, and failed ones before a retry."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, text

from store.database import IN_ORDER
from store.errors import boundary
from store.ids import moment_of
from store.tables import SCHEMA

#: An entry ``e`` that the view ``entries`` has as ``scheduled``, but for those that are on their way to a consumer.
_LATER: Final = "e.available_at > now() and e.lease = 0 and e.failed is null"
#: Where retention has the message still, which it has while an entry waits.
_SIZED: Final = f"""cross join lateral (
     select octet_length(h.message) as octets from {SCHEMA}.half h where h.id = e.half_id offset 0) m"""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What a consumer group is to get later: how many ``messages``, of which ``retries`` have failed before; their
    ``octets``; when the first and the last of all is due.
    """

    address: str
    group: str
    messages: int
    #: beyond those that are counted; 0: there are some, None: there are none
    more: int | None
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


def groups(connection: Connection, *, after: tuple[str, str] | None = None, most: int | None = None) -> list[Schedule]:
    """Return the groups that are to get messages later, by address and name: those behind ``after``, and ``most`` at
    most. Of each so many messages are counted, the next ones.
    """
    of, name = after or ("", "")
    with boundary():
        connection.execute(IN_ORDER)
        ids = connection.scalars(_SOME_LATER, {"all": after is None, "of": of, "name": name, "most": most}).all()
        counted = max(_MOST_OF_MANY, _MOST_COUNTED // max(1, len(ids)))
        rows = connection.execute(_COUNTED, {"ids": ids, "most": counted}).all()
        connection.rollback()
    return [Schedule(**row._mapping) for row in rows]


#: the most messages that one question counts, where it is of few groups; and what it counts of each, of however many
_MOST_COUNTED: Final = 100_000
_MOST_OF_MANY: Final = 100
#: What a group ``g`` is to get later; and its order, which no index has but that of schedules: by the time alone
#: PostgreSQL would go through the messages of all groups.
_OF_GROUP: Final = f"from {SCHEMA}.entry e where e.group_id = any(array[g.id]) and {_LATER}"
_ORDER: Final = "e.group_id, e.available_at, e.id"
_SOME_LATER: Final = text(
    f"""select g.id from {SCHEMA}.consumer_group g join {SCHEMA}.address a on a.id = g.address_id
         where (:all or (a.name, g.name) > (cast(:of as text), cast(:name as text)))
           and (select true {_OF_GROUP} order by {_ORDER} limit 1)
         order by a.name, g.name limit :most"""
)
_COUNTED: Final = text(
    f"""select a.name as address, g.name as "group", c.*,
               (select e.available_at {_OF_GROUP} order by {_ORDER.replace(",", " desc,")} desc limit 1) as last_due
          from {SCHEMA}.consumer_group g join {SCHEMA}.address a on a.id = g.address_id
         cross join lateral (
           select count(*) filter (where n <= :most) as messages, case when max(n) > :most then 0 end as more,
                  count(*) filter (where e.failures > 0 and n <= :most) as retries,
                  sum(m.octets) filter (where n <= :most)::int8 as octets, min(e.available_at) as first_due
             from (select e.half_id, e.failures, e.available_at, row_number() over (order by {_ORDER}) as n
                     {_OF_GROUP} order by {_ORDER} limit :most + 1) e {_SIZED}) c
         where g.id = any(:ids) and c.messages > 0 order by a.name, g.name"""
)


def messages(
    connection: Connection, group: int, *, after: tuple[datetime, int] | None = None, most: int | None = None
) -> list[Later]:
    """Return what a group is to get later, the next one first: what follows ``after``, a time and the id of an entry,
    and ``most`` at most.
    """
    at, entry = after or (None, 0)
    behind = "" if after is None else "and (e.available_at, e.id) > (cast(:at as timestamptz), cast(:entry as int8))"
    with boundary():
        connection.execute(IN_ORDER)
        rows = connection.execute(
            text(
                f"""select e.id as entry, e.half_id as id, e.available_at as due, m.octets, e.failures, e.expires_at
                      from {SCHEMA}.entry e {_SIZED}
                     where e.group_id = any(array[cast(:group as int4)]) and {_LATER} {behind}
                     order by {_ORDER} limit :most"""
            ),
            {"group": group, "most": most} | ({} if after is None else {"at": at, "entry": entry}),
        ).all()
        connection.rollback()
    return [Later(**row._mapping, posted_at=moment_of(row.id)) for row in rows]
