"""Queries of consumer groups: make, find and remove them, and delete the entries of removed ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from store.asking import Query, nothing
from store.channels import ADDRESS
from store.libpq import int4
from store.tables import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable

    from store.asking import Queries, Row
    from store.errors import StoreError

#: The reason of the op ``purge`` for entries of a group, or an address, that was removed.
REMOVED = "removed"


def _id(rows: list[Row]) -> int | None:
    return rows[0][0] if rows else None


def _subscription(rows: list[Row]) -> tuple[int, str] | None:
    return (rows[0][0], rows[0][1]) if rows else None


def _dropped(rows: list[Row]) -> tuple[int, bool]:
    return rows[0][0], rows[0][1]


def _from_rows(rows: list[Row]) -> bool:
    return bool(rows[0][0])


#: In place of a group's id: the address has the most groups that it may have.
_FULL = 0
#: In place of a group's id: a group of this name exists, and is about to be removed.
_ENDING = -1
#: In place of a group's id: the group is another user's.
_OTHERS = -2

#: address id, name, instance, most, user, owner (each may be ''): finds or makes a group; returns its id, or _FULL,
#: _ENDING, or _OTHERS; with an instance (not 0) a group that ends with its link. No row if another instance makes it at
#: the same time: run the query again.
MAKE = Query(
    b"make_group",
    f"""with room as (
          select count(*) < $4::int4 as left from (
            select from {SCHEMA}.consumer_group where address_id = $1::int4 and name <> '' limit $4::int4) g),
        made as (
          insert into {SCHEMA}.consumer_group (address_id, name, instance_id, owner)
          select $1::int4, $2::text, nullif($3::int4, 0), nullif($6::text, '') from room
           where room.left and not exists (
             select from {SCHEMA}.consumer_group where address_id = $1::int4 and name = $2::text)
              on conflict (address_id, name) do nothing
          returning id, address_id),
        told as (
          select pg_notify('{ADDRESS}', a.name) from made join {SCHEMA}.address a on a.id = made.address_id)
        select id, (select count(*) from told) from made
        union all
        select case when owner <> $5::text then {_OTHERS}
                    when $3::int4 = 0 and instance_id is not null then {_ENDING} else id end, 0
          from {SCHEMA}.consumer_group where address_id = $1::int4 and name = $2::text
        union all
        select {_FULL}, 0 from room where not room.left and not exists (
          select from {SCHEMA}.consumer_group where address_id = $1::int4 and name = $2::text)""",
    _id,
)

#: name, group, user: selects the first lasting subscription of this name, except those of other users, whose id is
#: above this group's, and its address
SUBSCRIPTION_OF = Query(
    b"find_subscription",
    f"""select g.id, a.name from {SCHEMA}.consumer_group g join {SCHEMA}.address a on a.id = g.address_id
         where g.name = $1::text and g.name <> '' and g.id > $2::int4 and a.routing = 'topic' and g.instance_id is null
           and coalesce(g.owner, $3::text) = $3::text
         order by g.id limit 1""",
    _subscription,
)

#: group, instance: removes a group; waits for no lock. A batch, or the long commit of an application (X2, X3), may lock
#: the group: then its row stays, as that of a group that ends with the instance. Returns whether it is removed.
REMOVE = Query(  # lock order: 8, skipping those that are locked
    b"remove_group",
    f"""with free as (
          select id from {SCHEMA}.consumer_group where id = $1::int4 and name <> '' for update skip locked),
        gone as (delete from {SCHEMA}.consumer_group g using free f where g.id = f.id returning g.address_id),
        told as (
          select pg_notify('{ADDRESS}', a.name) from gone g join {SCHEMA}.address a on a.id = g.address_id),
        ended as (
          update {SCHEMA}.consumer_group g set instance_id = $2::int4
           where g.id = $1::int4 and g.name <> '' and g.instance_id is distinct from $2::int4
             and not exists (select from free))
        select (select count(*) from told) > 0 or exists (select from free)
            or not exists (select from {SCHEMA}.consumer_group where id = $1::int4 and name <> '')""",
    _from_rows,
    must=True,
)

#: group: marks a lasting group that was removed later than it ended: its name is kept as that of a lasting one
REMEMBER = Query(
    b"remember_group",
    f"update {SCHEMA}.removed_group set lasting = true where id = $1::int4",
    nothing,
    must=True,
)

#: op id, group, instance: deletes a thousand of the entries that a removed group leaves behind, and skips those that
#: others lock, such as a batch that returns deliveries. Returns how many, and whether any are left
DROP_ENTRIES = Query(  # lock order: 5, skipping those that are locked
    b"drop_entries",
    f"""with removed as (
          select $2::int4 as id where not exists (select from {SCHEMA}.consumer_group where id = $2::int4)),
        claims as (delete from {SCHEMA}.message_group c using removed r where c.group_id = any(array[r.id])),
        picked as (
          select e.group_id, e.id from removed r join {SCHEMA}.entry e on e.group_id = any(array[r.id])
           order by e.id limit 1000 for update of e skip locked),
        dropped as (
          delete from {SCHEMA}.entry e using picked p
           where e.group_id = any(array[p.group_id]) and e.id = p.id
          returning e.half_id, e.group_id),
        decided as (
          insert into {SCHEMA}.op (id, decision, reason, half_ids, group_ids, instance_id)
          select $1::uuid, 'purge', '{REMOVED}', array_agg(half_id), array_agg(group_id), $3::int4 from dropped
          having count(*) > 0)
        select count(*), count(*) < (select count(*) from (
                 select from removed r cross join lateral (
                   select from {SCHEMA}.entry e where e.group_id = any(array[r.id]) limit 1001) e) there)
          from dropped""",
    _dropped,
    again=False,
)


def make(
    asked: Queries,
    address: int,
    name: str,
    instance: int,
    most: int,
    made: Callable[[int | StoreError | None], None],
    *,
    user: str | None = None,
    owned: bool = False,
) -> None:
    """Find or make a group of the address. ``made`` receives its id.

    None: another instance makes it at the same time, ask again. An answer for which :func:`is_full` is true: the group
    does not exist, and the address has ``most`` besides the default one (a few more if instances make some at the same
    time); :func:`is_ending`: it is about to be removed; :func:`is_others`: another user owns it. ``instance``: the
    group ends with a link of this instance; 0: it lasts. ``user``: who asks; ``owned``: a new group is that user's.
    """
    asking = (user or "").encode()
    owner = asking if owned else b""
    asked.ask(MAKE, [int4(address), name.encode(), int4(instance), int4(most), asking, owner], made)


def is_full(made: int | None) -> bool:
    """Whether :func:`make` made no group, as the address has the most that it may have."""
    return made == _FULL


def is_ending(made: int | StoreError | None) -> bool:
    """Whether :func:`make` found a group that was ended and is not removed yet: ask again later."""
    return made == _ENDING


def is_others(made: int | StoreError | None) -> bool:
    """Whether :func:`make` found a group that another user owns."""
    return made == _OTHERS


def subscription_of(
    asked: Queries,
    name: str,
    after: int,
    found: Callable[[tuple[int, str] | StoreError | None], None],
    *,
    user: str | None = None,
) -> None:
    """Find the next lasting subscription of this name: its group and its topic; None: there is no further one.

    ``after``: the group of the one found before, or 0: several topics may have one of a name. ``user``: subscriptions
    of other users are not found.
    """
    asked.ask(SUBSCRIPTION_OF, [name.encode(), int4(after), (user or "").encode()], found)


def remove(asked: Queries, group: int, instance: int, removed: Callable[[bool | StoreError], None]) -> None:
    """Remove a group that is not an address's default one; its entries stay.

    False: others write entries for it now; no link can join it any more, and it ends with the instance: ask again
    later.
    """
    asked.ask(REMOVE, [int4(group), int4(instance)], removed)


def remember(asked: Queries, group: int) -> None:
    """Mark a lasting group that was removed later than it ended."""
    asked.ask(REMEMBER, [int4(group)], lambda _: None)


def drop_entries(
    asked: Queries, op: bytes, group: int, instance: int, dropped: Callable[[tuple[int, bool] | StoreError], None]
) -> None:
    """Delete a thousand of the entries that a removed group leaves behind, with one op.

    ``dropped`` receives how many, and whether any are left; if it deleted none, others have locked them: ask again
    later.
    """
    asked.ask(DROP_ENTRIES, [op, int4(group), int4(instance)], dropped)
