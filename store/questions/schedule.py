"""The question about scheduled messages (rule D7): entries that are due get new ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from store import arrays
from store.asking import Query
from store.channels import READY
from store.questions.values import boolean
from store.tables import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from store.asking import Queries, Row
    from store.errors import StoreError


class Due(NamedTuple):
    """Entries of a consumer group that were due: the lowest of their new ids, and how many."""

    group: int
    lowest: int
    entries: int


class Promoted(NamedTuple):
    """``next_ms``: milliseconds until the next is due; None: there is none."""

    due: list[Due]
    next_ms: int | None


def _promoted(rows: list[Row]) -> Promoted:
    *groups, (_, _, _, next_ms) = rows
    return Promoted([Due(*row[:3]) for row in groups], next_ms)


#: new ids, whether other instances live and get a notice: gives entries that are due new ids, above all others. Rows:
#: the groups concerned, each with its lowest new id and how many; and one with group 0: in how many milliseconds the
#: next is due, null for never.
PROMOTE = Query(
    b"promote",
    f"""with due as (
          select group_id, id, available_at from {SCHEMA}.entry
           where available_at <= now() and lease = 0 and failed is null
           order by available_at limit cardinality($1::int8[]) for update skip locked),
        placed as (
          select d.group_id, d.id, f.id as new_id
            from (select group_id, id, row_number() over (order by available_at, id) as n from due) d
            join unnest($1::int8[]) with ordinality f(id, n) on f.n = d.n),
        promoted as (
          update {SCHEMA}.entry e set id = p.new_id, available_at = null from placed p
           where e.group_id = p.group_id and e.id = p.id returning e.group_id, e.id),
        told as (
          select pg_notify('{READY}', group_id::text) from promoted where $2::bool group by group_id)
        select group_id, min(id), count(*), null::int8 from promoted group by group_id
        union all
        select 0, 0, (select count(*) from told),
               (select (extract(epoch from min(available_at) - now()) * 1000)::int8
                  from {SCHEMA}.entry where available_at > now() and lease = 0 and failed is null)""",
    _promoted,
    again=False,
)


def promote(
    asked: Queries, ids: Sequence[int], promoted: Callable[[Promoted | StoreError], None], *, notify: bool
) -> None:
    """Give entries that are due these new ids, at most as many: they come after all others.

    ``notify``: other instances live.
    """
    asked.ask(PROMOTE, [arrays.int8(ids), boolean(notify)], promoted)
