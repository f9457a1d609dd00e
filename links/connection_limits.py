"""Connection limits bound a worker's connections of each host and each user, so that none displaces all others (S4)."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import TYPE_CHECKING

from coordinator.errors import Condition, Refusal
from coordinator.login.logins import origin_of_peer
from links.close_reason import CloseReason

if TYPE_CHECKING:
    from links.connection import Connection


class ConnectionLimits:
    """Counts each connection from :meth:`add` to :meth:`remove`. One user, or one host, may have many, but not displace
    all others; before the login a connection counts for its host only.
    """

    def __init__(self) -> None:
        self._from: Counter[str] = Counter()
        #: connections that are not open yet, by origin
        self._unopened: dict[str, dict[Connection, None]] = {}
        self._count_unopened = 0
        self._users: dict[str, set[Connection]] = {}

    def add(self, connection: Connection) -> tuple[Connection, CloseReason] | None:
        """Count a connection; return the one that is to be closed for it, and why. If too many are not open, that is a
        random one of the origin with the most, so that neither the first nor the last client can exclude all others.
        """
        limits, most = connection.service.limits, connection.service.bounds.connections_unopened
        origin = origin_of_peer(connection.peer)
        self._from[origin] += 1
        self._unopened.setdefault(origin, {})[connection] = None
        self._count_unopened += 1
        count = connection.service.memory.connections
        if count > 2 * limits.connections or self._from[origin] > 2 * limits.connections_per_address:
            return connection, CloseReason.TOO_MANY_CONNECTIONS  # far too many: close without an answer
        if self._count_unopened <= most:
            return None
        crowd = max(self._unopened.values(), key=len)
        return secrets.choice(list(crowd)), CloseReason.TOO_MANY_NOT_OPENED

    def admit(self, connection: Connection) -> Refusal | None:
        """Return the refusal of an open: there are too many connections in all, from its host, or of its user; else
        None.
        """
        self._is_not_unopened(connection)
        limits, user = connection.service.limits, connection.user
        own = len(self._users.get(user, ())) if user is not None else 0
        same_host = self._from[origin_of_peer(connection.peer)] - 1
        for has, most, whose, name in (
            (connection.service.memory.connections - 1, limits.connections, "", "connections"),
            (same_host, limits.connections_per_address, " from one host", "connections_per_address"),
            (own, limits.connections_per_user, " of one user", "connections_per_user"),
        ):
            if has >= most:
                text = f"a worker of this service has at most {most} connections{whose} (limits.{name})"
                return Refusal(Condition.RESOURCE_LIMIT_EXCEEDED, f"{text}: connect again later")
        if user is not None:
            self._users.setdefault(user, set()).add(connection)
        return None

    def remove(self, connection: Connection) -> None:
        self._is_not_unopened(connection)
        origin = origin_of_peer(connection.peer)
        self._from[origin] -= 1
        if not self._from[origin]:
            del self._from[origin]
        own = self._users.get(connection.user or "")
        if own is not None:
            own.discard(connection)
            if not own:
                del self._users[connection.user or ""]

    def _is_not_unopened(self, connection: Connection) -> None:
        origin = origin_of_peer(connection.peer)
        unopened = self._unopened.get(origin, {})
        if connection in unopened:
            del unopened[connection]
            self._count_unopened -= 1
            if not unopened:
                del self._unopened[origin]
