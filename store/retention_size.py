"""Messages that take too much room are kept for less time than they are else (rule H16).

The days that fit are kept, the last first; those before them count as old enough, whatever their addresses say. What is
undelivered or undecided stays, as always; and today is never dropped.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sqlalchemy import Connection, text

from store.ids import begin_of
from store.partitions import existing
from store.tables import SCHEMA

if TYPE_CHECKING:
    from store.retention import Policy

_SIZES = text(
    f"""select d, pg_total_relation_size(to_regclass('{SCHEMA}.half_' || to_char(d, 'YYYYMMDD')))
          from unnest(cast(:days as date[])) d order by d desc"""
)


def shortened(connection: Connection, policy: Policy, now: datetime) -> Policy:
    """The policy by which what is there takes ``policy.messages_bytes`` at most, or the same policy."""
    if not policy.messages_bytes:
        return policy
    rows = connection.execute(_SIZES, {"days": list(existing(connection)["half"])}).all()
    connection.rollback()
    taken = 0
    for day, octets in rows:
        taken += octets or 0  # none: another has just dropped it
        if taken > policy.messages_bytes:
            end = begin_of(min(day + timedelta(days=1), now.astimezone(UTC).date()))
            return replace(policy, messages=min(policy.messages, now - end))
    return policy
