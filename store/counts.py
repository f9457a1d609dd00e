"""Count the messages of consumer groups by state (H18): so many of each, the first in its line; estimate the rest.

A question costs what it counts, whatever waits. The views ``groups`` and ``addresses`` count all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sqlalchemy import Connection, text

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
    #: there are more than are counted: ``ready`` has the others, by PostgreSQL's estimate
    estimated: bool = False

    @property
    def all(self) -> int:
        return self.ready + self.inflight + self.scheduled + self.failed


class Line(NamedTuple):
    """The counts of a group, and the half of the first entry in its line; None: it has none."""

    counts: Counts
    first: int | None


def total(counts: Sequence[Counts]) -> Counts:
    """Return the sum of counts."""
    states = {state: sum(getattr(each, state) for each in counts) for state in STATES}
    return Counts(**states, estimated=any(each.estimated for each in counts))


def of_groups(connection: Connection, groups: Sequence[int], *, most: int | None = None) -> dict[int, Line]:
    """Count the entries of these groups. ``most``: of each; None: as many as :data:`MOST_COUNTED` leaves to each. A
    group that does not exist is left out.
    """
    each_most = most or max(MOST_OF_MANY, MOST_COUNTED // max(1, len(groups)))
    rows = connection.execute(_OF_GROUPS, {"groups": list(groups), "most": each_most}).all()
    found: dict[int, Line] = {}
    for row in rows:
        more = row.counted == each_most
        rest = max(0, estimate(connection, row.id) - each_most) if more else 0
        counts = Counts(
            ready=row.ready + rest, inflight=row.inflight, scheduled=row.scheduled, failed=row.failed, estimated=more
        )
        found[row.id] = Line(counts, row.first)
    return found


_OF_GROUPS = text(
    f"""select g.id, c.*,
               (select e.half_id from {SCHEMA}.entry e where e.group_id = g.id order by e.id limit 1) as first
          from {SCHEMA}.consumer_group g
          {THROUGH}
         cross join lateral (
           select count(*) as counted, {BY_STATE}
             from (select {STATE} as state from {SCHEMA}.entry e
                    where e.group_id = g.id order by e.id limit :most) e) c
         where g.id = any(:groups)"""
)


def estimate(connection: Connection, group: int) -> int:
    """Return how many entries the group has by PostgreSQL's statistics."""
    plan = connection.scalar(text(f"explain (format json) select from {SCHEMA}.entry where group_id = {int(group)}"))
    parsed = json.loads(plan) if isinstance(plan, str) else plan
    return int(parsed[0]["Plan"]["Plan Rows"]) if parsed else 0
