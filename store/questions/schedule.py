"""Query scheduled messages (rule D7), and give new ids to entries that are due."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from store import arrays
from store.asking import Query
from store.channels import READY
from store.commit.terms import CONDITION, DEFAULT, Rank
from store.libpq import boolean, int4, int8
from store.questions.columns import FAILED_AND_WAITS
from store.tables import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from store.asking import Queries, Row
    from store.errors import StoreError


class Due(NamedTuple):
    """Entries of a consumer group, of one priority, that were due: the lowest of their ids now, and how many.

    ``key``: of their message group, in which they have kept their places; None: they have new ids.
    """

    group: int
    lowest: int
    entries: int
    priority: int = DEFAULT
    key: int | None = None


class Promoted(NamedTuple):
    """The result of a promotion.

    ``next_ms``: milliseconds until the next entry is due; None: no entry is scheduled. ``through``: the time, in
    microseconds since 2000, up to which no due entry is left. ``turn``: 0 if another instance promotes now, or has
    given higher ids; 2 if another has had the turn for too long.
    """

    due: list[Due]
    next_ms: int | None
    through: int
    turn: int = 1

    @property
    def refused(self) -> bool:
        return self.turn == 0

    @property
    def passed_over(self) -> bool:
        return self.turn == 2


def _promoted(rows: list[Row]) -> Promoted:
    *groups, (_, _, _, _, turn, next_ms, through) = rows
    return Promoted([Due._make(row[:5]) for row in groups], next_ms, through, turn)


#: new ids, whether other instances live and get a notice, the time above which to search, for how long another that has
#: the turn may have given none (in ids, null for ever): gives due entries new ids, above all others; failed deliveries
#: of a message group keep theirs. One instance at a time does so, and not with ids generated before those that another
#: has given just now, so that entries stay in the order in which they are due. Rows: the groups concerned, each with
#: its lowest new id and how many, by priority (and the key of a message group); and one with group 0: the turn, in how
#: many milliseconds the next is due (null: never), and the time up to which no due entry is left.
PROMOTE = Query(  # lock order: 5, skipping those that are locked
    b"promote",
    f"""with turn as materialized (
          select {SCHEMA}.may_promote(($1::int8[])[1], $4::int8) as mine),
        due as (
          select group_id, id, available_at, message_group is not null and {FAILED_AND_WAITS} as stays
            from {SCHEMA}.entry
           where available_at > $3::timestamptz and available_at <= now() and lease = 0 and failed is null
             and (select mine > 0 from turn)
           order by available_at limit cardinality($1::int8[]) for update skip locked),
        placed as (
          select d.group_id, d.id, case when d.stays then d.id else f.id end as new_id, d.stays
            from (select group_id, id, stays, row_number() over (order by available_at, id) as n from due) d
            join unnest($1::int8[]) with ordinality f(id, n) on f.n = d.n),
        promoted as (
          update {SCHEMA}.entry e set id = p.new_id, available_at = null from placed p
           where e.group_id = any(array[p.group_id]) and e.id = p.id
          returning e.group_id, e.id, e.priority, case when p.stays then e.message_group end as key),
        noted as (
          select setval('{SCHEMA}.promoted', max(new_id)) from placed where not stays having count(*) > 0),
        told as (
          select pg_notify('{READY}', group_id || coalesce('/' || to_hex(key), '>' || to_hex(min(id))))
            from promoted where $2::bool group by group_id, key)
        select group_id, min(id), count(*), priority, key, null::int8, null::int8
          from promoted group by group_id, priority, key
        union all
        select 0, 0, (select count(*) from told) + (select count(*) from noted), 0, (select mine from turn),
               (select (extract(epoch from min(available_at) - now()) * 1000)::int8
                  from {SCHEMA}.entry where available_at > now() and lease = 0 and failed is null),
               (select (extract(epoch from case when (select mine = 0 from turn)
                                                then greatest($3::timestamptz, timestamptz '2000-01-01 00:00Z')
                                                when count(*) < cardinality($1::int8[]) then now()
                                                else max(available_at) - interval '1 microsecond' end
                                           - timestamptz '2000-01-01 00:00Z') * 1000000)::int8 from due)""",
    _promoted,
    again=False,
)


def promote(
    asked: Queries,
    ids: Sequence[int],
    above: int,
    promoted: Callable[[Promoted | StoreError], None],
    *,
    notify: bool,
    stalled: int | None = None,
) -> None:
    """Give these new ids to entries that are due, at most as many, so that they follow all others.

    ``above``: only those due after this time, in microseconds since 2000. ``notify``: other instances live.
    ``stalled``: for how many milliseconds another that has the turn may have given no id; None: for ever.
    """
    patience = None if stalled is None else int8(stalled << 22)
    asked.ask(PROMOTE, [arrays.int8(ids), boolean(notify), int8(above), patience], promoted)


# The query that ends expired entries in the store (rule P12).


class Expired(NamedTuple):
    """The numbers of expired entries that were marked for the dead letters, and that were dropped."""

    marked: int
    dropped: int


def _expired(rows: list[Row]) -> Expired:
    return Expired(*rows[0])


#: op id, instance: drops expired entries that are not leased, with one op, or marks them for the dead letters. An entry
#: that blocks its message group is left until it is due, of which the other instances are notified.
EXPIRE = Query(  # lock order: 5, skipping those that are locked
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
    """Drop expired entries that are not leased, with one op, or mark them for the dead letters; some 500 at once."""
    asked.ask(EXPIRE, [op, int4(instance)], expired)
