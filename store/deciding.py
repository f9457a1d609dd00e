"""Transactions whose decision waits for the store: rows of the list of undecided transactions, written beside the batch
that is held up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from store import arrays
from store.tables import SCHEMA


class Deciding(NamedTuple):
    """Times in microseconds since 2000-01-01 UTC. ``new``: it is a plain one, which may have no row yet."""

    txn_id: bytes
    owner: bytes
    declared: int
    timeout: int
    posted: int
    retired: int
    #: when the decision was made that the store does not have yet
    since: int
    new: bool


#: parameters: instance, the columns of :class:`Deciding`. Those that are noted; a row that another has locked is not
NOTE = f"""with asked as materialized (
      select * from unnest($2::uuid[], $3::text[], $4::timestamptz[], $5::timestamptz[], $6::int4[], $7::int4[],
                           $8::timestamptz[], $9::bool[]) u(id, owner, declared, timeout, posted, retired, since, new)),
    free as materialized (
      select t.id from {SCHEMA}.txn t where t.id = any($2::uuid[]) order by t.id for update skip locked),
    noted as (
      update {SCHEMA}.txn t set deciding_since = a.since from asked a join free f on f.id = a.id where t.id = a.id
      returning t.id),
    entered as (
      insert into {SCHEMA}.txn (id, instance_id, owner, declared_at, timeout_at, posted, retired, deciding_since)
      select a.id, $1::int4, a.owner, a.declared, a.timeout, a.posted, a.retired, a.since
        from asked a join {SCHEMA}.instance i on i.id = $1::int4 and i.ended_at is null
       where a.new and not exists (select from {SCHEMA}.op o where o.id = a.id)
         and not exists (select from {SCHEMA}.txn t where t.id = a.id) order by a.id
    on conflict (id) do nothing returning id)
    select id from noted union all select id from entered"""


def columns(instance: bytes, rows: Sequence[Deciding]) -> list[bytes]:
    ids, owners, declared, timeouts, posted, retired, since, new = zip(*rows, strict=True)
    return [
        instance,
        arrays.uuid(ids),
        arrays.text(owners),
        arrays.timestamptz(declared),
        arrays.timestamptz(timeouts),
        arrays.int4(posted),
        arrays.int4(retired),
        arrays.timestamptz(since),
        arrays.boolean(new),
    ]
