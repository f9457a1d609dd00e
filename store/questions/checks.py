"""Questions about checks (rules H7 to H10): undecided transactions whose checkers are asked, and those that were asked
often enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from store import arrays
from store.asking import Query, nothing
from store.questions.values import boolean, int2, int4
from store.tables import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from store.asking import Queries, Row
    from store.errors import StoreError

#: so long a transaction whose connection is open is left to the instance of that connection (H8)
PREFERRED_SECONDS = 2


class Due(NamedTuple):
    """A transaction that is to be checked now, and was counted as checked."""

    txn_id: bytes
    group: str
    #: with this one
    checks: int
    #: Unix time
    declared_ms: int
    #: number of the connection at this instance that declared it; 0: it is gone, or at another instance
    connection: int
    #: the first half, and its address; 0 and ``''`` where there is none
    half_id: int
    address: str
    halves: int


class Taken(NamedTuple):
    """``next_ms``: milliseconds until a transaction of the groups is due; None: none is in sight."""

    due: list[Due]
    next_ms: int | None


def _taken(rows: list[Row]) -> Taken:
    *due, (*_, next_ms) = rows
    return Taken([Due(*row[:-1]) for row in due], next_ms)


#: groups, how many of each, instance: counts a check of transactions that are due, oldest first, and passes over those
#: that are being decided. Rows: each of them; and a last one: in how many milliseconds the next is due, null for never.
TAKE = Query(
    b"take_checks",
    f"""with wanted as (
          select * from unnest($1::text[], $2::int4[]) w(producer_group, most)),
        due as materialized (
          select d.id from wanted w cross join lateral (
            select t.id from {SCHEMA}.txn t
             where t.producer_group = w.producer_group and t.next_check_at <= now() and t.checks < t.most_checks
               and (t.connection is null or t.instance_id = $3::int4
                    or t.next_check_at <= now() - interval '{PREFERRED_SECONDS} s')
             order by t.next_check_at limit w.most for no key update skip locked) d),
        taken as (
          update {SCHEMA}.txn t
             set checks = t.checks + 1, next_check_at = now() + t.check_interval_ms * interval '1 ms'
            from due where t.id = due.id
          returning t.id, t.producer_group, t.checks, t.declared_at, t.instance_id, t.connection, t.next_check_at)
        select uuid_send(k.id), k.producer_group, k.checks::int4, (extract(epoch from k.declared_at) * 1000)::int8,
               case when k.instance_id = $3::int4 then coalesce(k.connection, 0) else 0 end,
               coalesce(f.half_id, 0),
               coalesce((select name from {SCHEMA}.address where id = f.address_id),
                        (select name from {SCHEMA}.removed_address where id = f.address_id), ''),
               (select count(*) from {SCHEMA}.pending p where p.txn_id = k.id), null::int8
          from taken k left join lateral (
            select p.half_id, p.address_id from {SCHEMA}.pending p where p.txn_id = k.id order by p.half_id limit 1) f
            on true
        union all
        select null, null, null, null, null, null, null, null,
               (extract(epoch from least(
                 (select min(next_check_at) from taken),
                 (select min(l.next_check_at) from wanted w cross join lateral (
                   select t.next_check_at from {SCHEMA}.txn t
                    where t.producer_group = w.producer_group and t.next_check_at > now() and t.checks < t.most_checks
                    order by t.next_check_at limit 1) l)) - now()) * 1000)::int8""",
    _taken,
    again=False,
)

#: txn-id, checks, at once: the check of this number was counted and not sent. Asked twice, this counts once
GIVE_BACK = Query(
    b"give_back_check",
    f"""update {SCHEMA}.txn
           set checks = checks - 1, next_check_at = case when $3::bool then now() else next_check_at end
         where id = $1::uuid and checks = $2::int2 and checks > 0""",
    nothing,
)


def take(asked: Queries, rooms: Mapping[str, int], instance: int, taken: Callable[[Taken | StoreError], None]) -> None:
    """Take transactions that are due, of each group in ``rooms`` as many as there is room for; they are counted."""
    groups = arrays.text([group.encode() for group in rooms])
    asked.ask(TAKE, [groups, arrays.int4(list(rooms.values())), int4(instance)], taken)


def give_back(asked: Queries, due: Due, *, at_once: bool) -> None:
    """The check was not sent and does not count. ``at_once``: another checker may have it now."""
    asked.ask(GIVE_BACK, [due.txn_id, int2(due.checks), boolean(at_once)], lambda _: None)
