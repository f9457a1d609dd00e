"""Define what queries of entries share: the conditions that select entries, and the columns of the answer."""

from __future__ import annotations

from store import asking
from store.spool import HEAD, LARGE

#: microseconds since 2000, 0 for never
_EXPIRES = "coalesce((extract(epoch from expires_at - timestamptz '2000-01-01 00:00Z') * 1000000)::int8, 0)"

AVAILABLE = "failed is null and available_at is null"
DELIVERABLE = f"lease = 0 and {AVAILABLE} and (expires_at is null or expires_at > now())"

#: A failed delivery that is delayed (a message that was never delivered is not acquired). On an address of kind fifo it
#: keeps its place, and later entries of its message group wait as well (D3).
FAILED_AND_WAITS = "available_at is not null and acquired"

#: Of a large message, the columns are its beginning and its length.
_IS_LARGE = f"octet_length(message) > {LARGE}"
SIZE = f"case when {_IS_LARGE} then {HEAD} else octet_length(message) end"
MESSAGE = f"case when {_IS_LARGE} then substring(message from 1 for {HEAD}) else message end"
WHOLE = f"case when {_IS_LARGE} then octet_length(message) else 0 end"

#: The columns of an answer's row: those of the entry, and its message.
ENTRY = (
    f"id, half_id, {MESSAGE}, attempts, {_EXPIRES}, coalesce(annotations, ''), acquired, priority, {WHOLE}, failures"
)
MESSAGES = f"p cross join lateral ({asking.FROM_ALL_PARTITIONS}) h"
PICKED = "id, half_id, attempts, expires_at, annotations, acquired, priority, failures"
