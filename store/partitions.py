"""Partitions of ``half`` and ``op``, one a day (UTC), made ahead; retention drops whole days (H16).

Rows of a day without a partition go to the default one, so a late call loses nothing: it costs only that the day stays
in the default partition.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from store.ids import id_at
from store.tables import SCHEMA

DAYS_AHEAD = 3

# Several instances do this at once: one after the other.
_LOCK = 0x636F6F72_70617274  # "coorpart"


@dataclass(frozen=True, kw_only=True)
class Made:
    """``created``: names of new partitions; ``in_default``: those not made, as rows of their day are in the default."""

    created: tuple[str, ...]
    in_default: tuple[str, ...]


def make_ahead(connection: Connection, *, now: datetime | None = None, days: int = DAYS_AHEAD) -> Made:
    """Make the partitions of today and the next ``days`` days where they are not there; commits.

    Short locks only: nothing that writes or reads the other days waits for it.
    """
    today = (now or datetime.now(UTC)).astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    created, in_default = [], []
    connection.execute(text("set local lock_timeout = '5s'"))
    connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    for day in (today + timedelta(days=number) for number in range(days + 1)):
        end = day + timedelta(days=1)
        for table, first, last in (
            ("half", str(id_at(day)), str(id_at(end))),
            ("op", f"'{op_id_at(day)}'", f"'{op_id_at(end)}'"),
        ):
            name = f"{table}_{day:%Y%m%d}"
            if connection.scalar(text("select to_regclass(:name)"), {"name": f"{SCHEMA}.{name}"}) is not None:
                continue
            try:
                with connection.begin_nested():
                    # Attached afterwards: "create table ... partition of" would lock out all writers of the parent.
                    connection.execute(
                        text(f"create table {SCHEMA}.{name} (like {SCHEMA}.{table} including all excluding identity)")
                    )
                    connection.execute(
                        text(
                            f"alter table {SCHEMA}.{table} attach partition {SCHEMA}.{name} "
                            f"for values from ({first}) to ({last})"
                        )
                    )
            except IntegrityError:
                # The default partition has rows of this day; PostgreSQL refuses to tear them apart.
                in_default.append(name)
            else:
                created.append(name)
    connection.commit()
    return Made(created=tuple(created), in_default=tuple(in_default))


def op_id_at(moment: datetime) -> uuid.UUID:
    """The lowest UUIDv7 that can have been made at ``moment`` (aware)."""
    return uuid.UUID(int=int(moment.timestamp() * 1000) << 80)
