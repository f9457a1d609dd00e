"""Exit statuses of the service and its workers: whether another start may go better."""

from __future__ import annotations

from coordinator.process.listeners import PortInUse
from store.embedded.errors import DataFolderInUse, ServerFailed
from store.errors import Contended, StoreUnavailable

#: The store was away at the start, or another process had what the service needs: a later start may go better.
AWAY = 1
#: It would fail again: a setting, the log-in or the schema is wrong.
UNFIT = 2

#: of PostgreSQL's SQLSTATEs, the log-in, the database's name and the rights of its role
_OF_SETTINGS = ("28", "3D", "42")
#: What these say passes without a change of the settings: a service that is ending still has its port and its folder.
_PASSING = (ServerFailed, DataFolderInUse, PortInUse, Contended)


def status_of(error: Exception) -> int:
    """Of a service that this keeps from starting."""
    if isinstance(error, StoreUnavailable):
        return UNFIT if (error.sqlstate or "").startswith(_OF_SETTINGS) else AWAY
    return AWAY if isinstance(error, _PASSING) else UNFIT
