"""How many connections a worker has of each host and of each user, so that none takes the place of all others (S4)."""

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
    """Counts each connection from :meth:`add` to :meth:`remove`. One user, or one host, may have many, but not the room
    of all others; before the login a connection counts for its host alone.
    """

    def __init__(self) -> None:
        self._from: Counter[str] = Counter()
        #: those that are not open yet, by where they come from
        self._unopened: dict[str, dict[Connection, None]] = {}
        self._count_unopened = 0
        self._users: dict[str, set[Connection]] = {}

    def add(self, connection: Connection) -> tuple[Connection, CloseReason] | None:
        """Return the connection that is to be closed for it, and why. Where too many are not open, that is one of those
        of the address that has the most, picked at random, so that neither who is first nor who is last keeps all
        others out.
        """
        limits, most = connection.service.limits, connection.service.bounds.connections_unopened
        origin = origin_of_peer(connection.peer)
        self._from[origin] += 1
        self._unopened.setdefault(origin, {})[connection] = None
        self._count_unopened += 1
        count = connection.service.memory.connections
        if count > 2 * limits.connections or self._from[origin] > 2 * limits.connections_per_address:
            return connection, CloseReason.TOO_MANY_CONNECTIONS  # far too many: closed without an answer
        if self._count_unopened <= most:
            return None
        crowd = max(self._unopened.values(), key=len)
        return secrets.choice(list(crowd)), CloseReason.TOO_MANY_NOT_OPENED

    def admit(self, connection: Connection) -> Refusal | None:
        """Why it may not be open: there are too many in all, from its host, or for its user."""
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
