"""Queries of the message groups of a fifo address (rule P18): find, claim, read and release them.

A message group is named by its key, below 0; a message without group-id is a group of its own and has a key above 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from store import arrays
from store.asking import Query, nothing
from store.channels import READY
from store.commit.parameters import MOST_KEYS_WOKEN, notice
from store.libpq import int4, int8
from store.questions.columns import DELIVERABLE, ENTRY, FAILED_AND_WAITS, MESSAGES, SIZE
from store.tables import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from store.asking import Queries, Row
    from store.errors import StoreError
    from store.questions.entries import LoadedRow


#: The line of queries of a consumer group: an earlier query must not release a group that is claimed anew.
_LINE = "message groups"


class Scanned(NamedTuple):
    """The result of a scan. ``keys``: claimed for the instance. ``more``: others may follow the key ``at``."""

    keys: list[int]
    at: int
    more: bool


class Leased(NamedTuple):
    """Leased entries of message groups.

    ``rows``: entries; the last column is the key of the group. ``found``: by key, how many entries were found.
    ``waiting``: by key, the id of the first entry that is delayed: no later entry is among the rows.
    """

    rows: list[LoadedRow]
    found: dict[int, int]
    waiting: dict[int, int]


def _scanned(rows: list[Row]) -> Scanned:
    keys = [key for claimed, key, _ in rows if claimed]
    ((at, more),) = [(key, more) for claimed, key, more in rows if not claimed]
    return Scanned(keys, at, more)


def _keys(rows: list[Row]) -> list[int]:
    return [row[0] for row in rows]


def _leased(rows: list[Row]) -> Leased:
    found: dict[int, int] = {}
    waiting: dict[int, int] = {}
    while rows and rows[-1][0] is None:
        row = rows.pop()
        found[row[-1]] = row[1]
        if row[4] is not None:
            waiting[row[-1]] = row[4]
    return Leased(rows, found, waiting)


#: Entries of a message group that can be delivered, and those that block all later ones.
_IN_ORDER = (
    "group_id = $1::int4 and message_group = k and lease = 0 and failed is null "
    f"and ({DELIVERABLE} or {FAILED_AND_WAITS})"
)
#: Scalar subquery: the planner turns EXISTS into a join over the whole consumer group.
_FIRST = (
    f"(select case when available_at is null then id end from {SCHEMA}.entry where {_IN_ORDER} order by id limit 1)"
)
#: True if a transaction holds an entry of the message group that no consumer of this instance (``{0}``) has: the other
#: entries wait, to be delivered after it.
_WAITS = f"""(select true from {SCHEMA}.pending_retirement r where r.group_id = $1::int4
                and r.message_group = k and r.holder is distinct from {{0}}::int4 limit 1)"""
_CLAIMED = f"(select c.key from {SCHEMA}.message_group c where c.group_id = $1::int4 and c.key = k)"

#: group, key after which to search, most keys to read, most to claim, instance: claims message groups of a fifo
#: address with entries to deliver and no claim. Rows: (0, the key after which to continue, whether others may follow);
#: then (1, key, false) for each claimed group. A group of a single message (its key is above 0) needs no claim.
SCAN = Query(
    b"scan_groups",
    f"""with recursive keys(k, n) as (
          (select message_group, 1 from {SCHEMA}.entry where group_id = $1::int4 and message_group > $2::int8
            order by message_group limit 1)
          union all
          select (select e.message_group from {SCHEMA}.entry e where e.group_id = $1::int4 and e.message_group > keys.k
                   order by e.message_group limit 1), n + 1
            from keys where k is not null and n < $3::int4),
        unclaimed as materialized (
          select k from keys where k is not null and {_CLAIMED} is null),
        free as materialized (
          select k from unclaimed where {_FIRST} is not null and {_WAITS.format("$5")} is null
           order by k limit $4::int4),
        claimed as (
          insert into {SCHEMA}.message_group (group_id, key, instance_id)
          select $1::int4, k, $5::int4 from free where k < 0 on conflict do nothing returning key)
        select 0, coalesce(case when (select count(*) from free) < $4::int4 then (select max(k) from keys)
                                else (select max(k) from free) end, 0),
               (select count(k) from keys) = $3::int4 or (select count(*) from free) = $4::int4
        union all select 1, key, false from claimed union all select 1, k, false from free where k > 0""",
    _scanned,
    again=False,
    line=_LINE,
)

#: group, keys, instance: claims the message groups that have entries to deliver and no claim; returns their keys
CLAIM = Query(
    b"claim_groups",
    f"""with wanted as materialized (
          select k from unnest($2::int8[]) u(k) where {_FIRST} is not null and {_WAITS.format("$3")} is null)
        insert into {SCHEMA}.message_group (group_id, key, instance_id)
        select $1::int4, k, $3::int4 from wanted on conflict do nothing returning key""",
    _keys,
    again=False,
    line=_LINE,
)

#: group, keys, instance, notice: releases these claims; a notice that is not empty is sent to the other instances
RELEASE = Query(
    b"release_groups",
    f"""with gone as (
          delete from {SCHEMA}.message_group
           where group_id = $1::int4 and key = any($2::int8[]) and instance_id = $3::int4 returning 1)
        select count(*), case when $4::text <> '' then pg_notify('{READY}', $4::text) end from gone""",
    nothing,
    must=True,
    line=_LINE,
)

#: group, keys, instance: releases all claims of the instance except these
FORGET = Query(
    b"forget_groups",
    f"""delete from {SCHEMA}.message_group
         where group_id = $1::int4 and instance_id = $3::int4 and key <> all($2::int8[])""",
    nothing,
    must=True,
    line=_LINE,
)

#: group, keys, most entries of each, most bytes, lease, ids above which to read (one for each key): leases entries of
#: claimed message groups, each from its first entry above on. Run only after the claim is committed: then all entries
#: that the previous instance returned are visible. Rows: an entry and its key; then one per key: id null, half_id =
#: number found, expires_at = the id of the first that is delayed, behind which no entry is leased.
LEASE = Query(
    b"lease_groups",
    f"""with picked as materialized (
          select e.* from unnest($2::int8[], $6::int8[]) u(k, above) cross join lateral (
            select group_id, id, half_id, message_group, available_at is not null as waits from {SCHEMA}.entry
             where {_IN_ORDER} and id > above order by id limit $3::int4) e
           where {_WAITS.format("$5")} is null),
        placed as materialized (
          select *, bool_or(waits) over (partition by message_group order by id) as held_up from picked),
        first as materialized (
          select * from placed where not held_up),
        sized as materialized (
          select group_id, id, message, sum({SIZE}) over (order by message_group, id) - {SIZE} as before
            from first {MESSAGES}),
        leased as (
          update {SCHEMA}.entry e set lease = $5::int4 from sized s
           where e.group_id = any(array[s.group_id]) and e.id = s.id and e.lease = 0 and s.before < $4::int8
          returning e.id, e.half_id, e.attempts, e.expires_at, e.annotations, s.message, e.acquired, e.priority,
                    e.failures, e.message_group)
        select {ENTRY}, message_group from leased
        union all
        select null, count(*) filter (where not held_up), null, null, min(id) filter (where waits), null, null, null,
               null, null, message_group
          from placed group by message_group
         order by id""",
    _leased,
    again=False,
    line=_LINE,
)


def scan(
    asked: Queries,
    group: int,
    behind: int,
    most_scanned: int,
    most: int,
    instance: int,
    scanned: Callable[[Scanned | StoreError], None],
) -> None:
    """Claim message groups that have entries to deliver and no claim: of the next keys after one, at most so many."""
    asked.ask(SCAN, [int4(group), int8(behind), int4(most_scanned), int4(most), int4(instance)], scanned)


def claim(
    asked: Queries, group: int, keys: Sequence[int], instance: int, claimed: Callable[[list[int] | StoreError], None]
) -> None:
    """Claim those of these message groups that have entries to deliver and no claim; their keys."""
    asked.ask(CLAIM, [int4(group), arrays.int8(keys), int4(instance)], claimed)


def release(asked: Queries, group: int, keys: Sequence[int], instance: int, *, notify: bool) -> None:
    """Give up these claims. ``notify``: other instances live, and may want them."""
    for start in range(0, len(keys), MOST_KEYS_WOKEN):
        part = keys[start : start + MOST_KEYS_WOKEN]
        told = notice({}, {(group, key) for key in part}) if notify else b""
        asked.ask(RELEASE, [int4(group), arrays.int8(part), int4(instance), told], lambda _: None)


def forget(
    asked: Queries, group: int, kept: Sequence[int], instance: int, forgotten: Callable[[StoreError | None], None]
) -> None:
    """Give up all claims of the instance but these."""
    asked.ask(FORGET, [int4(group), arrays.int8(kept), int4(instance)], forgotten)


def lease(
    asked: Queries,
    group: int,
    keys: Sequence[int],
    above: Sequence[int],
    each: int,
    octets: int,
    instance: int,
    leased: Callable[[Leased | StoreError], None],
) -> None:
    """Lease the first entries of message groups that are claimed, of each above an id: so many of each, and so many
    octets, at most.
    """
    parameters = [int4(group), arrays.int8(keys), int4(each), int8(octets), int4(instance), arrays.int8(above)]
    asked.ask(LEASE, parameters, leased)
