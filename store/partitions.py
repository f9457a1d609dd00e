"""Create the partitions of ``half`` and ``op`` ahead, one a day (UTC).

There is no default partition: adding a day would lock out all its readers and writers, and no day could be detached
while it is read. So days are created long before they are needed; a batch that still lacks the partition of one of its
rows creates it and is sent once more (:mod:`store.commit.group_commit`). Both call ``coordinator.make_day``.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

from sqlalchemy import Connection, text

from store.errors import Contended, boundary
from store.tables import SCHEMA

DAYS_AHEAD = 14
#: Days before today that also need partitions: for transactions declared then, and for slow clocks.
DAYS_BACK = 2
#: With fewer days ahead than these an operator must find out why.
FEWEST_AHEAD = 7

#: :func:`make_ahead` as a statement, for an administrator.
MAKE_AHEAD: Final = (
    f"do $$ begin perform {SCHEMA}.make_day((now() at time zone 'UTC')::date + n)"
    f" from generate_series(-{DAYS_BACK}, {DAYS_AHEAD}) n; end $$"
)

#: The tables that are partitioned by day.
PARTITIONED = ("half", "op")
_NAME = re.compile(r"(half|op)_(\d{8})")


@dataclass(frozen=True, kw_only=True)
class Made:
    """The created partitions. ``created``: their names; ``ahead``: days in a row after today that have partitions."""

    created: tuple[str, ...]
    ahead: int

    @property
    def few(self) -> bool:
        """Whether rows will soon find no partition."""
        return self.ahead < FEWEST_AHEAD


def make_ahead(connection: Connection, *, now: datetime | None = None, days: int = DAYS_AHEAD) -> Made:
    """Create the missing partitions of today, the ``days`` days after it and a few before it; commits.

    It takes short locks only: no reader or writer waits. A partition that others lock now is left for the next call.
    """
    today = (now or datetime.now(UTC)).astimezone(UTC).date()
    there = existing(connection)
    wanted = [today + timedelta(days=number) for number in (*range(days + 1), *range(-1, -DAYS_BACK - 1, -1))]
    missing = [day for day in wanted if not all(day in there[table] for table in PARTITIONED)]
    created: list[str] = []
    try:
        if missing:
            created = make_days(connection, missing)
    except Contended:
        connection.rollback()
    return Made(created=tuple(created), ahead=days_ahead(connection, now=now))


def make_days(connection: Connection, days: Sequence[date]) -> list[str]:
    """Create the missing partitions of ``days``, except days that retention has dropped; commits.

    Returns the names of the new partitions.

    :raises Contended: another process creates or drops partitions, and takes longer than the lock timeout.
    """
    with boundary():
        made = connection.scalars(
            text(f"select {SCHEMA}.make_day(d) from unnest(cast(:days as date[])) with ordinality u(d, n) order by n"),
            {"days": list(days)},
        ).all()
        connection.commit()
    return [name for names in made for name in names]


def existing(connection: Connection) -> dict[str, set[date]]:
    """Return the days that have a partition, by table."""
    with boundary():
        names = connection.scalars(
            text(
                "select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid "
                "where i.inhparent = any(array[:half, :op]::regclass[]) and not i.inhdetachpending"
            ),
            {table: f"{SCHEMA}.{table}" for table in PARTITIONED},
        ).all()
        connection.rollback()
    days: dict[str, set[date]] = {table: set() for table in PARTITIONED}
    for name in names:
        if found := _NAME.fullmatch(name):
            days[found[1]].add(date.fromisoformat(found[2]))
    return days


def days_ahead(connection: Connection, *, now: datetime | None = None) -> int:
    """Return how many days in a row after today have partitions; -1: not even today has."""
    today = (now or datetime.now(UTC)).astimezone(UTC).date()
    there = existing(connection)
    complete = set.intersection(*there.values())
    number = 0
    while today + timedelta(days=number) in complete:
        number += 1
    return number - 1


def name_of(table: str, day: date) -> str:
    """Return the name of the partition of a day."""
    return f"{table}_{day:%Y%m%d}"


def op_id_at(moment: datetime) -> uuid.UUID:
    """Return the lowest UUIDv7 that can have been generated at ``moment`` (aware)."""
    return uuid.UUID(int=int(moment.timestamp() * 1000) << 80)
