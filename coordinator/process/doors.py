"""Who may come in where clients connect (S1), and where metrics are asked for (S11): said, or refused, at the start."""

from __future__ import annotations

import re
from collections.abc import Sequence

import structlog

from coordinator.login.logins import ANONYMOUS, offered
from coordinator.process.listeners import loopback
from coordinator.process.secret_files import FileInvalid, secret
from coordinator.settings import Endpoint, MetricsSettings, Settings
from store import users
from store.database import Patience, connected

#: what a header can carry (RFC 6750, section 2.1), and too much to be guessed
_SHORTEST_TOKEN = 16
_TOKEN = re.compile(rb"[A-Za-z0-9\-._~+/]{%d,}=*" % _SHORTEST_TOKEN)

_log: structlog.stdlib.BoundLogger = structlog.get_logger()


class TooOpen(Exception):
    """Others than this machine could read the metrics; says what is expected."""


def check_metrics(settings: MetricsSettings, places: Sequence[Endpoint]) -> None:
    """:raises TooOpen: where others than this machine can connect, without TLS or a token.
    :raises FileInvalid: the token cannot be used.
    """
    token(settings)
    if settings.anonymous == "always" or all(loopback(place.host) for place in places):
        return
    if not settings.has_tls or settings.token is None:
        raise TooOpen(
            f"metrics.listen: {settings.listen}: others than this machine can connect there, and metrics name addresses"
            " and groups; expected https:// and metrics.token, or metrics.anonymous: always"
        )


def token(settings: MetricsSettings) -> bytes | None:
    """What those who ask for metrics must show; None: nothing.

    :raises FileInvalid: no token is in the file, or other users may read it.
    """
    if settings.token is None:
        return None
    found = secret("metrics.token", settings.token).strip()
    if not _TOKEN.fullmatch(found):
        raise FileInvalid(
            f"metrics.token: {settings.token}: expected {_SHORTEST_TOKEN} or more letters, digits and -._~+/= in a line"
        )
    return found


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
