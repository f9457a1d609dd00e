"""Listeners are sockets that the supervisor binds, one for each worker, all on the same port (``SO_REUSEPORT``)."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
from collections.abc import Sequence

import structlog

from coordinator.login.logins import ANONYMOUS, offered
from coordinator.secret_file import FileInvalid, secret
from coordinator.settings import AMQP, Endpoint, MetricsSettings, Settings, endpoint
from store import users
from store.database import Patience, connected

#: So many clients that connect at once wait in the kernel instead of being refused.
BACKLOG = 4096

_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class CannotListen(Exception):
    """The process cannot listen on an address; the message names it and says why."""


class PortInUse(CannotListen):
    """Another process listens on the address."""


def listen(
    urls: Sequence[str], workers: int, schemes: tuple[str, ...] = AMQP
) -> tuple[list[list[socket.socket]], list[Endpoint]]:
    """Return the sockets of each worker, and where they listen (with the number that port 0 became).

    A host with several addresses (``localhost``) is bound on all of them that this machine has.

    :raises CannotListen: a port is taken, perhaps by another coordinator, or a host is not an address of this machine.
    """
    sockets: list[list[socket.socket]] = [[] for _ in range(workers)]
    places: list[Endpoint] = []
    try:
        for url in urls:
            wanted = endpoint(url, schemes)
            for family, host, port in _bindable(url, wanted):
                place = wanted.model_copy(update={"host": host, "port": port})
                for own in sockets:
                    own.append(_listening(family, place))
                places.append(place)
    except BaseException:
        for own in sockets:
            for each in own:
                each.close()
        raise
    return sockets, places


def loopback(host: str) -> bool:
    """Whether only this machine can connect to the address."""
    return ipaddress.ip_address(host).is_loopback


def _bindable(url: str, wanted: Endpoint) -> list[tuple[socket.AddressFamily, str, int]]:
    """Return the addresses of ``url`` that can be bound; tried without ``SO_REUSEPORT``, which would share a used
    port.
    """
    try:
        found = socket.getaddrinfo(wanted.host, wanted.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise CannotListen(f"cannot listen on {url}: {error.strerror}") from None
    result: list[tuple[socket.AddressFamily, str, int]] = []
    absent: OSError | None = None
    port = wanted.port
    for family, _, _, _, address in found:
        host = str(address[0])
        probe = None
        try:
            probe = socket.socket(family, socket.SOCK_STREAM)
            _prepare(probe, family)
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            if error.errno in _ABSENT:
                absent = error
                continue
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(f"cannot listen on {url}: address in use by another process") from None
            raise CannotListen(f"cannot listen on {url}: {error.strerror}") from None
        else:
            port = probe.getsockname()[1]
            result.append((family, host, port))
        finally:
            if probe is not None:
                probe.close()
    if not result:
        reason = "no address found" if absent is None else absent.strerror
        raise CannotListen(f"cannot listen on {url}: {reason}")
    return result


def _listening(family: socket.AddressFamily, place: Endpoint) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        _prepare(made, family)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind((place.host, place.port))
        made.listen(BACKLOG)
        made.setblocking(False)
    except OSError as error:
        made.close()
        kind = PortInUse if error.errno == errno.EADDRINUSE else CannotListen
        raise kind(f"cannot listen on {place}: {error.strerror}") from None
    return made


def _prepare(made: socket.socket, family: socket.AddressFamily) -> None:
    # Allows the port of a service that has just ended.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)


# Access without a login is logged at the start for clients (S1), and refused for metrics (S11).

#: the characters of a header's token (RFC 6750, section 2.1), and a length that cannot be guessed
_SHORTEST_TOKEN = 16
_TOKEN = re.compile(rb"[A-Za-z0-9\-._~+/]{%d,}=*" % _SHORTEST_TOKEN)
#: a name of the audit
_OPERATOR = re.compile(rb"[A-Za-z0-9._@-]{1,64}")

_log: structlog.stdlib.BoundLogger = structlog.get_logger()


class TooOpen(Exception):
    """Other machines could read the metrics; the message says what is expected."""


def check_metrics(settings: MetricsSettings, places: Sequence[Endpoint]) -> None:
    """Check the access to the metrics.

    :raises TooOpen: other machines can connect without TLS or a token.
    :raises FileInvalid: a token cannot be used.
    """
    metrics_token(settings)
    operators(settings)
    if settings.anonymous == "always" or all(loopback(place.host) for place in places):
        return
    if not settings.has_tls or settings.token is None:
        raise TooOpen(
            f"metrics.listen: {settings.listen}: others than this machine can connect there, and metrics name addresses"
            " and groups; expected https:// and metrics.token, or metrics.anonymous: always"
        )


def metrics_token(settings: MetricsSettings) -> bytes | None:
    """Return the token that requests for metrics must have; None: they need none.

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


def operators(settings: MetricsSettings) -> dict[bytes, str]:
    """Return the names of those who may act by the API, by their tokens.

    :raises FileInvalid: a line is none of a name and a token, or other users may read the file.
    """
    if settings.operators is None:
        return {}
    found = {}
    lines = secret("metrics.operators", settings.operators).splitlines()
    for number, line in enumerate(lines, 1):
        name, _, token = line.strip().partition(b" ")
        if not _OPERATOR.fullmatch(name) or not _TOKEN.fullmatch(token.strip()):
            raise FileInvalid(
                f"metrics.operators: {settings.operators}: line {number}: expected NAME TOKEN, the name of"
                f" letters, digits and ._@-, the token of {_SHORTEST_TOKEN} or more letters, digits and -._~+/="
            )
        found[token.strip()] = name.decode()
    return found


def warn_of_open_ones(settings: Settings, places: Sequence[Endpoint]) -> None:
    """Log a warning if other machines can connect without a login."""
    if settings.login.anonymous == "always" and not all(loopback(place.host) for place in places):
        _log.warning(
            "clients are not authenticated: every client that can connect may do everything",
            listen=[str(place) for place in places],
        )


def warn_without_users(settings: Settings, places: Sequence[Endpoint], database_url: str, patience: Patience) -> None:
    """Log a warning if clients must log in, and there is no enabled user."""
    closed = [str(place) for place in places if not _anonymous(settings, place)]
    if not closed or settings.tokens.issuer is not None:  # who logs in by a token need not be in the store
        return
    with connected(database_url, patience=patience) as connection:
        if not users.any_enabled(connection):
            _log.warning("no client can log in, as there is no user: coordinator user add", listen=closed)


def _anonymous(settings: Settings, place: Endpoint) -> bool:
    return ANONYMOUS in offered(settings.login, loopback=loopback(place.host), tls=place.has_tls)
