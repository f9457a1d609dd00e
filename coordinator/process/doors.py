"""What is said at the start of those who may come in where clients connect (rule S1)."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from coordinator.login.offer import ANONYMOUS, offered
from coordinator.process.listeners import loopback
from coordinator.settings import Endpoint, Settings
from store import users
from store.database import Patience, connected

_log: structlog.stdlib.BoundLogger = structlog.get_logger()


def warn_of_open_ones(settings: Settings, places: Sequence[Endpoint]) -> None:
    """Others than this machine can connect there, without a login."""
    if settings.login.anonymous == "always" and not all(loopback(place.host) for place in places):
        _log.warning(
            "clients are not authenticated: every client that can connect may do everything",
            listen=[str(place) for place in places],
        )


def look_for_users(settings: Settings, places: Sequence[Endpoint], database_url: str, patience: Patience) -> None:
    """Where clients must log in and none can, say so."""
    closed = [str(place) for place in places if not _anonymous(settings, place)]
    if not closed:
        return
    with connected(database_url, patience=patience) as connection:
        if not users.any_enabled(connection):
            _log.warning("no client can log in, as there is no user: coordinator user add", listen=closed)


def _anonymous(settings: Settings, place: Endpoint) -> bool:
    return ANONYMOUS in offered(settings.login, loopback=loopback(place.host), tls=place.scheme == "amqps")
