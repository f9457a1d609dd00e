"""Queries of addresses: find them by name, make them, note their use, and remove them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from store import arrays
from store.asking import Query, nothing
from store.channels import ADDRESS
from store.libpq import int2, int4
from store.tables import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from store.asking import Queries, Row
    from store.errors import StoreError


class Own(NamedTuple):
    """The policies of a consumer group in place of the address's; None: the policy of the address applies. ``paused``:
    its consumers get nothing new.
    """

    on_expiry: str | None
    max_attempts: int | None
    retry: str | None
    paused: bool


class Stored(NamedTuple):
    """An address as stored, with its groups' policies."""

    id: int
    routing: str
    kind: str
    on_expiry: str
    max_attempts: int
    retry: str
    origin: str
    #: id of the default group; None: it is a topic
    group: int | None
    #: how many groups it has besides the default one
    groups: int
    #: for transactions whose first message was posted to it (H7); None: the settings decide
    check_immunity_ms: int | None
    check_interval_ms: int | None
    check_most: int | None
    #: the groups with policies of their own, by their ids
    own: Mapping[int, Own]


def _stored(columns: Sequence[object]) -> Stored:
    *address, own = columns
    policies = json.loads(own) if isinstance(own, str) else ()
    return Stored._make([*address, {group: Own(*values) for group, *values in policies}])


def _one(rows: list[Row]) -> Stored | None:
    return _stored(rows[0]) if rows else None


def _by_name(rows: list[Row]) -> dict[str, Stored]:
    return {name: _stored(rest) for name, *rest in rows}


def _unless_there(rows: list[Row]) -> list[int] | None:
    ids = [row[0] for row in rows]
    return None if None in ids else ids


def _from_rows(rows: list[Row]) -> bool:
    return bool(rows[0][0])


_ADDRESS = f"""a.id, a.routing, a.kind, a.on_expiry, a.max_attempts, a.retry, a.origin,
               (select g.id from {SCHEMA}.consumer_group g where g.address_id = a.id and g.name = ''),
               (select count(*) from {SCHEMA}.consumer_group g where g.address_id = a.id and g.name <> ''),
               a.check_immunity_ms, a.check_interval_ms, a.check_most,
               (select json_agg(json_build_array(g.id, g.on_expiry, g.max_attempts, g.retry,
                                                 g.paused_at is not null))::text
                  from {SCHEMA}.consumer_group g
                 where g.address_id = a.id
                   and (coalesce(g.on_expiry, g.max_attempts::text, g.retry) is not null or g.paused_at is not null))
          from {SCHEMA}.address a"""

#: name, seconds: selects the address, if it exists. Notes the use of one made on use, unless the last note is younger
#: than so many seconds. This and a removal (:func:`store.removal.remove_unused`) wait for each other.
FIND = Query(  # lock order: 7
    b"address",
    f"""with there as materialized (
          select id, origin, created_at from {SCHEMA}.address where name = $1::text for key share),
        noted as (
          insert into {SCHEMA}.address_use (address_id)
          select id from there t where t.origin = 'use' and t.created_at < now() - make_interval(secs => $2::int4)
             and not exists (select from {SCHEMA}.address_use u
                              where u.address_id = t.id and u.used_at >= now() - make_interval(secs => $2::int4))
          on conflict (address_id) do update set used_at = now())
        select {_ADDRESS} where a.id = (select id from there)""",
    _one,
)

#: ids: notes that these addresses are in use
NOTE_USES = Query(  # lock order: 7
    b"used",
    f"""insert into {SCHEMA}.address_use (address_id)
        select id from {SCHEMA}.address where id = any($1::int4[]) and origin = 'use' order by id for key share
        on conflict (address_id) do update set used_at = now()""",
    nothing,
)

#: names: selects the name of each that exists, and the columns of FIND
FIND_ALL = Query(
    b"addresses",
    f"select a.name, {_ADDRESS} where a.name = any($1::text[])",
    _by_name,
    must=True,
)

#: name, routing, kind, on_expiry, max_attempts, origin, instance (0: none), retention_hours (0: the settings decide),
#: retry: makes an address. Two instances may make it at once: one row wins. Returns whether it is this one.
MAKE = Query(
    b"make_address",
    f"""with made as (
          insert into {SCHEMA}.address
            (name, routing, kind, on_expiry, max_attempts, origin, instance_id, retention_hours, retry)
          values ($1::text, $2::text, $3::text, $4::text, $5::int2, $6::text, nullif($7::int4, 0), nullif($8::int4, 0),
                  $9::text)
          on conflict (name) do nothing returning id, name, routing),
        grouped as (
          insert into {SCHEMA}.consumer_group (address_id, name) select id, '' from made where routing = 'queue')
        select pg_notify('{ADDRESS}', name) from made""",
    bool,
)

#: name: removes a dynamic address with its groups, and waits for no lock: a batch, or the long commit of an application
#: (X2, X3), may lock some of these rows. Rows: the ids of the groups; one without an id: the address still exists.
#: Later queries drop their entries: only those see the entries of posts that were committed just before.
REMOVE_DYNAMIC = Query(  # lock order: 7, 8, skipping those that are locked
    b"remove_address",
    f"""with there as (select id from {SCHEMA}.address where name = $1::text and origin = 'dynamic'),
        free as (
          select a.id from {SCHEMA}.address a join there t on t.id = a.id for update of a skip locked),
        free_groups as (
          select g.id from free f join {SCHEMA}.consumer_group g on g.address_id = f.id for update of g skip locked),
        gone as (
          delete from {SCHEMA}.address a using free f
           where a.id = f.id and (select count(*) from free_groups) = (
             select count(*) from there t join {SCHEMA}.consumer_group g on g.address_id = t.id)
          returning a.id, a.name),
        told as (select pg_notify('{ADDRESS}', name) from gone)
        select g.id, (select count(*) from told) from gone join {SCHEMA}.consumer_group g on g.address_id = gone.id
        union all
        select null, 0 from there where not exists (select from gone)""",
    _unless_there,
    must=True,
)

#: name: selects whether an address or a group has it, so that dead letters of it may exist
HAS_CONSUMERS = Query(
    b"has_consumers",
    f"""select exists (select from {SCHEMA}.address where name = $1::text)
            or exists (select from {SCHEMA}.consumer_group where name = $1::text and name <> '')""",
    _from_rows,
)


def find(asked: Queries, name: str, seconds: int, found: Callable[[Stored | StoreError | None], None]) -> None:
    """Find the address of this name; None: it does not exist.

    Notes the use of one made on use, unless the last note is younger than so many ``seconds``.
    """
    asked.ask(FIND, [name.encode(), int4(seconds)], found)


def find_all(asked: Queries, names: Sequence[str], found: Callable[[dict[str, Stored] | StoreError], None]) -> None:
    """Find the addresses of these names that exist, by name."""
    asked.ask(FIND_ALL, [arrays.text([name.encode() for name in names])], found)


def note_uses(asked: Queries, ids: Sequence[int], noted: Callable[[StoreError | None], None]) -> None:
    """Note that these addresses are in use."""
    asked.ask(NOTE_USES, [arrays.int4(ids)], noted)


def make(
    asked: Queries,
    name: str,
    *,
    routing: str,
    kind: str,
    on_expiry: str,
    max_attempts: int,
    retry: str,
    retention_hours: int | None,
    origin: str,
    instance: int,
    made: Callable[[bool | StoreError], None],
) -> None:
    """Make the address, unless one of that name exists (then the answer is False).

    ``instance``: the instance with which it ends; 0: it stays.
    """
    parameters = [
        name.encode(),
        routing.encode(),
        kind.encode(),
        on_expiry.encode(),
        int2(max_attempts),
        origin.encode(),
        int4(instance),
        int4(retention_hours or 0),
        retry.encode(),
    ]
    asked.ask(MAKE, parameters, made)


def remove_dynamic(asked: Queries, name: str, removed: Callable[[list[int] | StoreError | None], None]) -> None:
    """Remove a dynamic address and its groups, whose ids are the answer; their entries stay.

    None: others write messages for it now, ask again later.
    """
    asked.ask(REMOVE_DYNAMIC, [name.encode()], removed)


def has_consumers(asked: Queries, name: str, answered: Callable[[bool | StoreError], None]) -> None:
    """Query whether an address or a group has this name, so that dead letters of it may exist."""
    asked.ask(HAS_CONSUMERS, [name.encode()], answered)
