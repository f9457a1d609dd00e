"""Count the messages of consumer groups by state (H18): so many of each, the first in its line; estimate the rest.

A question costs what it counts, whatever waits. The views ``groups`` and ``addresses`` count all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Row, TextClause, text

from store.database import AS_PLANNED, IN_ORDER
from store.tables import SCHEMA
from store.views import STATE, THROUGH

#: Each entry is in exactly one of these states, in the view ``entries``.
STATES: Final = ("ready", "inflight", "scheduled", "failed")
#: Counts of the entries with a column ``state``, by that.
BY_STATE: Final = ", ".join(f"count(*) filter (where state = '{state}') as {state}" for state in STATES)
#: the most entries that one question counts, where it is of few groups; and what it counts of each, of however many
MOST_COUNTED: Final = 1_000_000
MOST_OF_MANY: Final = 1000


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Messages of a group, or of all groups of an address, by state (H18)."""

    #: can be delivered now
    ready: int = 0
    #: held by an instance for its consumers
    inflight: int = 0
    #: to be delivered later
    scheduled: int = 0
    #: on their way to the dead letters
    failed: int = 0
    #: of any state, beyond those that are counted, by PostgreSQL's statistics, for which there may be 0; None: there
    #: are no more
    more: int | None = None

    @property
    def counted(self) -> int:
        return self.ready + self.inflight + self.scheduled + self.failed


class Line(NamedTuple):
    """The counts of a group, and the half of the first entry in its line; None: it has none."""

    counts: Counts
    first: int | None


class Statistics:
    """How many entries a group has by PostgreSQL's statistics, as its planner reckons: of the last ``analyze``."""

    def __init__(self, connection: Connection) -> None:
        found = connection.execute(_STATISTICS).one()
        entries: float = max(0.0, found.entries)
        parts = zip(found.common or (), found.parts or (), strict=True)
        self._known: dict[int, float] = {group: part * entries for group, part in parts}
        distinct = (found.distinct_groups if found.distinct_groups >= 0 else -found.distinct_groups * entries) or 1.0
        left = max(0.0, entries - sum(self._known.values()))
        self._other: float = left / max(1.0, distinct - len(self._known))

    def entries(self, group: int) -> float:
        return self._known.get(group, self._other)


_STATISTICS = text(
    f"""select c.reltuples::float8 * pg_relation_size(c.oid) / current_setting('block_size')::int8
                 / greatest(1, c.relpages) as entries,
               coalesce(s.n_distinct, 0)::float8 as distinct_groups,
               s.most_common_vals::text::int4[] as common, s.most_common_freqs::float8[] as parts
          from pg_class c
          left join pg_stats s on s.schemaname = '{SCHEMA}' and s.tablename = 'entry' and s.attname = 'group_id'
         where c.oid = '{SCHEMA}.entry'::regclass"""
)


def of_groups(connection: Connection, groups: Sequence[int]) -> dict[int, Line]:
    """Count the entries of these groups. A group that does not exist is left out."""
    counted = _counted(connection, _OF_GROUPS, groups, lambda group: [group])
    return {row.id: Line(counts, row.first) for row, counts in counted}


def of_addresses(connection: Connection, addresses: Sequence[int]) -> dict[int, tuple[Counts, int]]:
    """Count the entries of all groups of these addresses, and their groups. An address that does not exist is left
    out.
    """

    def groups(address: int) -> Iterable[int]:
        return connection.scalars(_GROUPS, {"address": address})

    return {row.id: (counts, row.groups) for row, counts in _counted(connection, _OF_ADDRESSES, addresses, groups)}


def _counted(
    connection: Connection, question: TextClause, ids: Sequence[int], groups: Callable[[int], Iterable[int]]
) -> Iterator[tuple[Row[Any], Counts]]:
    """Yield the answers, with their counts. ``groups``: of an id. No more entries are read than are counted."""
    most = max(MOST_OF_MANY, MOST_COUNTED // max(1, len(ids)))
    connection.execute(IN_ORDER)
    rows = connection.execute(question, {"ids": list(ids), "most": most}).all()
    connection.execute(AS_PLANNED)
    statistics = Statistics(connection) if any(row.counted == most for row in rows) else None
    for row in rows:
        more = None
        if statistics is not None and row.counted == most:
            more = max(0, round(sum(map(statistics.entries, groups(row.id)))) - most)
        yield row, Counts(**{state: getattr(row, state) for state in STATES}, more=more)


_OF_GROUPS = text(
    f"""select g.id, c.*,
               (select e.half_id from {SCHEMA}.entry e where e.group_id = g.id order by e.id limit 1) as first
          from {SCHEMA}.consumer_group g
          {THROUGH}
         cross join lateral (
           select count(*) as counted, {BY_STATE}
             from (select {STATE} as state from {SCHEMA}.entry e
                    where e.group_id = g.id order by e.id limit :most) e) c
         where g.id = any(:ids)"""
)
_OF_ADDRESSES = text(
    f"""select a.id, c.*,
               (select count(*) from {SCHEMA}.consumer_group g where g.address_id = a.id) as groups
          from {SCHEMA}.address a
         cross join lateral (
           select count(*) as counted, {BY_STATE}
             from (select w.state from {SCHEMA}.consumer_group g
                   {THROUGH}
                   cross join lateral (
                     select {STATE} as state from {SCHEMA}.entry e
                      where e.group_id = g.id order by e.id limit :most) w
                   where g.address_id = a.id limit :most) e) c
         where a.id = any(:ids)"""
)
_GROUPS = text(f"select id from {SCHEMA}.consumer_group where address_id = :address")
