"""Exit statuses of the service and its workers: whether another start may go better."""

from __future__ import annotations

from store.embedded.errors import ServerFailed
from store.errors import StoreUnavailable

#: The store was away at the start: a later one may find it.
AWAY = 1
#: It would fail again: a setting, the log-in or the schema is wrong.
UNFIT = 2

#: of PostgreSQL's SQLSTATEs, the log-in, the database's name and the rights of its role
_OF_SETTINGS = ("28", "3D", "42")


def status_of(error: Exception) -> int:
    """Of a service that this keeps from starting."""
    if isinstance(error, StoreUnavailable):
        return UNFIT if (error.sqlstate or "").startswith(_OF_SETTINGS) else AWAY
    return AWAY if isinstance(error, ServerFailed) else UNFIT
