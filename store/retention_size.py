"""Messages that take too much room are kept for less time than they are else (rule H16).

The days that fit are kept, the last first; those before them count as old enough, whatever their addresses say. What is
undelivered or undecided stays, as always; and today is never dropped.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING

from sqlalchemy import Connection, text

from store.tables import SCHEMA

if TYPE_CHECKING:
    from store.retention import Policy

_SIZES = text(
    r"select relname, pg_total_relation_size(oid) as octets from pg_class "
    r"where relnamespace = cast(:schema as regnamespace) and relname ~ '^half_\d{8}$' and relkind = 'r' "
    "order by relname desc"
)


def shortened(connection: Connection, policy: Policy, now: datetime) -> Policy:
    """The policy by which what is there takes ``policy.messages_bytes`` at most, or the same policy."""
    if not policy.messages_bytes:
        return policy
    rows = connection.execute(_SIZES, {"schema": SCHEMA}).all()
    connection.rollback()
    taken = 0
    for name, octets in rows:
        taken += octets
        if taken > policy.messages_bytes:
            day = date.fromisoformat(name.partition("_")[2])
            end = datetime.combine(min(day + timedelta(days=1), now.astimezone(UTC).date()), time(), UTC)
            return replace(policy, messages=min(policy.messages, now - end))
    return policy
