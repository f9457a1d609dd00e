"""The question about entries whose time has run out in the store (rule P12)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from store.asking import Query
from store.priorities import CONDITION, Rank
from store.questions.columns import FAILED_AND_WAITS
from store.questions.values import int4
from store.tables import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable

    from store.asking import Queries, Row
    from store.errors import StoreError


class Expired(NamedTuple):
    """How many entries were marked for the dead letters, and how many dropped."""

    marked: int
    dropped: int


def _expired(rows: list[Row]) -> Expired:
    return Expired(*rows[0])


#: op id, instance: drops expired entries that are not leased, with one op, or marks them for the dead letters. One that
#: holds up its message group is left until it is due, which the other instances are told.
EXPIRE = Query(
    b"expire",
    f"""with picked as (
          select e.group_id, e.id, coalesce(
                   (select coalesce(g.on_expiry, a.on_expiry) from {SCHEMA}.consumer_group g
                      join {SCHEMA}.address a on a.id = any(array[g.address_id])
                     where g.id = e.group_id), 'drop') as policy
            from {SCHEMA}.entry e
           where e.expires_at <= now() and e.lease = 0 and e.failed is null
             and not (e.message_group is not null and e.{FAILED_AND_WAITS})
             and not (e.{CONDITION[Rank.NORMAL]} and e.available_at is null
                      and exists (select from {SCHEMA}.consumer_group g join {SCHEMA}.group_read r
                                    on r.group_id = g.id and r.instance_id = g.holder
                                   where g.id = e.group_id and e.id <= r.read_through))
           limit 500 for update of e skip locked),
        marked as (
          update {SCHEMA}.entry e set failed = 'expired' from picked p
           where p.policy = 'dead-letter' and e.group_id = any(array[p.group_id]) and e.id = p.id returning 1),
        dropped as (
          delete from {SCHEMA}.entry e using picked p
           where p.policy = 'drop' and e.group_id = any(array[p.group_id]) and e.id = p.id
          returning e.half_id, e.group_id),
        decided as (
          insert into {SCHEMA}.op (id, decision, half_ids, group_ids, instance_id)
          select $1::uuid, 'expire', array_agg(half_id), array_agg(group_id), $2::int4 from dropped
          having count(*) > 0)
        select (select count(*) from marked), (select count(*) from dropped)""",
    _expired,
)


def expire(asked: Queries, op: bytes, instance: int, expired: Callable[[Expired | StoreError], None]) -> None:
    """Drop expired entries that are not leased, with one op, or mark them; some hundred at once."""
    asked.ask(EXPIRE, [op, int4(instance)], expired)
