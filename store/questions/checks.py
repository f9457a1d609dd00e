"""Queries of checks (rules H7 to H10): undecided transactions to be checked, and those whose checks are used up."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from store import arrays
from store.asking import Query, nothing
from store.libpq import int2, int4, int8
from store.questions.columns import MESSAGES
from store.tables import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from store.asking import Queries, Row
    from store.errors import StoreError

#: time during which only the instance of an open connection sends the first check of its transaction (H8)
PREFERRED_SECONDS = 2
#: a row that is written as due is visible to others within this time
LATE_SECONDS = 60
#: the most octets of a message that is read with others
SMALL = 1 << 16


class Wanted(NamedTuple):
    """The transactions wanted of one producer group: at most ``most`` that are due from ``low`` to ``high``.

    Times are in microseconds since 2000; ``high`` may be infinite.
    """

    most: int
    low: int
    high: int


class Due(NamedTuple):
    """A transaction that is to be checked now: no other instance checks it before an interval is over."""

    txn_id: bytes
    group: str
    #: with this one, which counts when it is sent
    checks: int
    #: Unix time
    declared_ms: int
    #: number of the connection at this instance that declared it, whose checker gets the first check; 0: it is closed,
    #: or at another instance, or this is a later check
    connection: int
    #: the first half, or without halves the first message that it has retired, and its address; 0 and ``''`` if it has
    #: no message
    half_id: int
    address: str
    halves: int
    #: deliveries that it has retired
    retired: int


class Sent(NamedTuple):
    """A check that a checker was sent; ``checks``: its number."""

    txn_id: bytes
    checks: int


class Exhausted(NamedTuple):
    """A transaction whose checks are used up; ``halves``: how many it has, by id of their address."""

    txn_id: bytes
    group: str
    checks: int
    halves: dict[int, int]
    #: of these addresses
    names: dict[int, str]


class Late(NamedTuple):
    """Transactions whose checks are used up. ``low``: no other was due before this time, in microseconds since 2000."""

    found: list[Exhausted]
    low: int


class Taken(NamedTuple):
    """Transactions to be checked now.

    ``next_ms``: milliseconds until a transaction of the groups is due; None: no transaction will be. ``lows``: by
    group, the time before which no wanted transaction is left, in microseconds since 2000.
    """

    due: list[Due]
    next_ms: int | None
    lows: dict[str, int]


def _taken(rows: list[Row]) -> Taken:
    due = [Due(*row[:-2]) for row in rows if row[0] is not None]
    groups = [row for row in rows if row[0] is None]
    nexts = [row[-2] for row in groups if row[-2] is not None]
    return Taken(due, min(nexts, default=None), {row[1]: row[-1] for row in groups})


#: the name of the address, also of one that was removed
_NAME = f"""coalesce((select name from {SCHEMA}.address where id = f.address_id),
                        (select name from {SCHEMA}.removed_address where id = f.address_id), '')"""

#: transactions whose checks are not used up
_UNCHECKED = "t.producer_group = w.producer_group and t.checks < t.most_checks"
_WITHIN = "t.next_check_at >= w.low and t.next_check_at <= least(now(), w.high)"

#: groups, how many of each, times from and to which to search, instance: puts off the next check of due transactions,
#: oldest first, and skips those that are being decided. Rows: each of them; and one for each group: in how many
#: milliseconds its next is due (null: never), and the time from which to search then. Rows of decided transactions stay
#: in the index while a snapshot is held: a search that began with the oldest would read all of them.
TAKE = Query(
    b"take_checks",
    f"""with wanted as (
          select * from unnest($1::text[], $2::int4[], $3::timestamptz[], $5::timestamptz[])
                          w(producer_group, most, low, high)),
        due as materialized (
          select d.id from wanted w cross join lateral (
            select t.id from {SCHEMA}.txn t
             where {_UNCHECKED} and {_WITHIN}
               and (t.connection is null or t.checks > 0 or t.instance_id = $4::int4
                    or t.next_check_at <= now() - interval '{PREFERRED_SECONDS} s')
             order by t.next_check_at limit w.most for no key update skip locked) d),
        taken as (
          update {SCHEMA}.txn t
             set next_check_at = now() + t.check_interval_ms * interval '1 ms'
            from due where t.id = any(array[due.id])
          returning t.id, t.producer_group, t.checks + 1 as checks, t.declared_at, t.instance_id, t.connection,
                    t.next_check_at)
        select uuid_send(k.id), k.producer_group, k.checks::int4, (extract(epoch from k.declared_at) * 1000)::int8,
               case when k.instance_id = $4::int4 and k.checks = 1 then coalesce(abs(k.connection), 0) else 0 end,
               coalesce(f.half_id, 0),
               {_NAME},
               (select count(*) from {SCHEMA}.pending_half p where p.txn_id = k.id),
               (select count(*) from {SCHEMA}.pending_retirement r where r.txn_id = k.id), null::int8, null::int8
          from taken k left join lateral (
            select m.half_id, m.address_id from (
              (select 0 as rank, p.half_id, p.address_id from {SCHEMA}.pending_half p where p.txn_id = k.id
                order by p.half_id limit 1)
              union all
              (select 1, r.half_id, (select g.address_id from {SCHEMA}.consumer_group g where g.id = r.group_id)
                 from {SCHEMA}.pending_retirement r where r.txn_id = k.id order by r.half_id limit 1)) m
             order by m.rank limit 1) f on true
        union all
        select null, w.producer_group, null, null, null, null, null, null, null,
               (extract(epoch from least(
                 (select min(k.next_check_at) from taken k where k.producer_group = w.producer_group),
                 (select t.next_check_at from {SCHEMA}.txn t
                   where {_UNCHECKED} and t.next_check_at > now() order by t.next_check_at limit 1)) - now())
                 * 1000)::int8,
               (extract(epoch from least(
                 now() - interval '{LATE_SECONDS} s',
                 (select t.next_check_at from {SCHEMA}.txn t
                   where {_UNCHECKED} and {_WITHIN}
                     and not exists (select from due where due.id = t.id)
                   order by t.next_check_at limit 1)) - timestamptz '2000-01-01 00:00Z') * 1000000)::int8
          from wanted w""",
    _taken,
    again=False,
)


def _halves(rows: list[Row]) -> dict[int, bytes | None]:
    return dict(rows)


#: name of the producer group, halves: selects their messages; null for one of more than SMALL octets
FIRST_HALVES = Query(
    b"first_halves",
    f"""select half_id, case when octet_length(message) <= {SMALL} then message end
          from (select $1::text as whose, unnest($2::int8[]) as half_id) {MESSAGES}""",
    _halves,
)

#: txn-id, checks: makes the check of this number, which was not sent, due; skips a transaction that is being decided
GIVE_BACK = Query(
    b"give_back_check",
    f"""update {SCHEMA}.txn set next_check_at = now()
         where id = any(array(select id from {SCHEMA}.txn where id = $1::uuid and checks = $2::int2 - 1
                                 for no key update skip locked))""",
    nothing,
)


def _still(rows: list[Row]) -> list[Sent]:
    return [Sent(*row) for row in rows]


#: a check that was sent long after it was taken has a full interval for its answer, too (H10)
_NEXT = """case when t.next_check_at < now() + t.check_interval_ms * interval '0.5 ms'
                then now() + t.check_interval_ms * interval '1 ms' else t.next_check_at end"""

#: txn-ids, checks of each: counts these checks, which were sent; run twice, it counts each once. Rows: those not
#: counted, as their transactions are being decided and may stay undecided
COUNT = Query(  # lock order: 3, skipping those that are locked
    b"count_checks",
    f"""with sent as materialized (select * from unnest($1::uuid[], $2::int2[]) s(id, checks)),
        free as materialized (
          select t.id from {SCHEMA}.txn t join sent s on t.id = any(array[s.id]) and t.checks = s.checks - 1
           order by s.id for no key update of t skip locked),
        counted as (
          update {SCHEMA}.txn t set checks = t.checks + 1, next_check_at = {_NEXT} from free f
           where t.id = any(array[f.id]))
        select uuid_send(s.id), s.checks
          from sent s join {SCHEMA}.txn t on t.id = any(array[s.id]) and t.checks = s.checks - 1
         where not exists (select from free f where f.id = s.id)""",
    _still,
)


def _exhausted(rows: list[Row]) -> Late:
    found: dict[bytes, Exhausted] = {}
    low = 0
    for txn_id, group, checks, address_id, name, number in rows:
        if txn_id is None:
            low = number
            continue
        each = found.setdefault(txn_id, Exhausted(txn_id, group, checks, {}, {}))
        if number:
            each.halves[address_id] = number
            each.names[address_id] = name
    return Late(list(found.values()), low)


_LAST = "t.checks >= t.most_checks and t.next_check_at >= $2::timestamptz and t.next_check_at <= now()"

#: how many at most, time from which to search: selects transactions whose last check has had no answer for an interval,
#: except those being decided. Rows: of each its halves by address, or one without any; and one with the time from which
#: to search next. As in TAKE, rows of decided ones stay in the index while a snapshot is held.
FIND_EXHAUSTED = Query(
    b"find_exhausted",
    f"""with late as materialized (
          select t.id, t.producer_group, t.checks from {SCHEMA}.txn t
           where {_LAST} order by t.next_check_at limit $1::int4 for no key update skip locked)
        select uuid_send(l.id), l.producer_group, l.checks::int4, coalesce(f.address_id, 0), {_NAME},
               coalesce(f.halves, 0)
          from late l left join lateral (
            select p.address_id, count(*) as halves
              from (select h.address_id from {SCHEMA}.pending_half h where h.txn_id = l.id offset 0) p
             group by p.address_id) f on true
        union all
        select null, null, null, null, null,
               (extract(epoch from least(
                 now() - interval '{LATE_SECONDS} s',
                 (select t.next_check_at from {SCHEMA}.txn t where {_LAST} order by t.next_check_at limit 1))
                 - timestamptz '2000-01-01 00:00Z') * 1000000)::int8""",
    _exhausted,
)


def _done(rows: list[Row]) -> bool:
    return bool(rows[0][0])


#: txn-id, ids of the copies, their address, addresses, annotations of each, instance: rolls it back, and keeps copies
#: of its halves. Returns whether it did.
EXHAUST = Query(
    b"exhaust",
    f"select {SCHEMA}.exhaust($1::uuid, $2::int8[], $3::int4, $4::int4[], $5::bytea[], $6::int4)",
    _done,
)

#: txn-id: puts off a transaction that cannot be rolled back now, so that others precede
POSTPONE = Query(
    b"postpone_exhausted",
    f"""update {SCHEMA}.txn set next_check_at = now() + check_interval_ms * interval '1 ms'
         where id = $1::uuid and checks >= most_checks""",
    nothing,
)


def take(
    asked: Queries,
    wanted: Mapping[str, Wanted],
    instance: int,
    taken: Callable[[Taken | StoreError], None],
) -> None:
    """Take the transactions that are due, by producer group; each is due again after its interval."""
    parameters = [
        arrays.text([group.encode() for group in wanted]),
        arrays.int4([each.most for each in wanted.values()]),
        arrays.timestamptz([each.low for each in wanted.values()]),
        int4(instance),
        arrays.timestamptz([each.high for each in wanted.values()]),
    ]
    asked.ask(TAKE, parameters, taken)


def first_halves(
    asked: Queries, group: str, ids: Sequence[int], found: Callable[[dict[int, bytes | None] | StoreError], None]
) -> None:
    """Read messages by half, for checks of a producer group.

    None stands for a message of more than :data:`SMALL` octets; one that the store has lost is missing.
    """
    asked.ask(FIRST_HALVES, [f"producer group {group}".encode(), arrays.int8(ids)], found)


def give_back(asked: Queries, due: Due) -> None:
    """Return a check that was not sent: another checker may get it now."""
    asked.ask(GIVE_BACK, [due.txn_id, int2(due.checks)], lambda _: None)


def count(asked: Queries, sent: Sequence[Sent], still: Callable[[list[Sent] | StoreError], None]) -> None:
    """Count checks that were sent. ``still`` receives those that could not be counted yet."""
    parameters = [arrays.uuid([each.txn_id for each in sent]), arrays.int2([each.checks for each in sent])]
    asked.ask(COUNT, parameters, still)


def find_exhausted(asked: Queries, most: int, low: int, found: Callable[[Late | StoreError], None]) -> None:
    """Find transactions whose last check has had no answer for an interval, at most ``most``, oldest first.

    Only those whose interval ended at ``low`` or later, in microseconds since 2000.
    """
    asked.ask(FIND_EXHAUSTED, [int4(most), int8(low)], found)


def exhaust(
    asked: Queries,
    txn_id: bytes,
    ids: Sequence[int],
    target: int,
    annotations: Mapping[int, bytes],
    instance: int,
    done: Callable[[bool | StoreError], None],
) -> None:
    """Roll a transaction back, and keep copies of its halves at the address ``target``, with these ``ids``.

    ``annotations``: encoded maps, by the address that the halves were posted to. False: the transaction was decided or
    has new halves, or the address was removed.
    """
    parameters = [
        txn_id,
        arrays.int8(ids),
        int4(target),
        arrays.int4(list(annotations)),
        arrays.bytea(list(annotations.values())),
        int4(instance),
    ]
    asked.ask(EXHAUST, parameters, done)


def postpone(asked: Queries, txn_id: bytes) -> None:
    """Put off a transaction that cannot be rolled back now: others precede, and it is tried again after an interval."""
    asked.ask(POSTPONE, [txn_id], lambda _: None)
