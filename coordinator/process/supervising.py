"""What the supervisor hands to a child, and the child's socket to it."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.process.listeners import PortInUse
from coordinator.settings import Endpoint, Settings
from store.embedded.errors import DataFolderInUse, ServerFailed
from store.errors import Contended, StoreUnavailable


class Offered:
    """Lines to a process that may be slow to read: what it has no room for is dropped, a whole line or none."""

    def __init__(self, pair: socket.socket) -> None:
        self._pair = pair
        #: of a line whose beginning was sent
        self._rest = b""

    def offer(self, words: Mapping[str, object]) -> None:
        line = b"" if self._rest else json.dumps(words).encode() + b"\n"
        octets = self._rest + line
        # Lost where the process has ended, too.
        with contextlib.suppress(OSError):
            self._rest = octets[self._pair.send(octets, socket.MSG_DONTWAIT) :]


class Supervising:
    """The socket to the supervisor. Both sides say one JSON object a line."""

    def __init__(self, pair: socket.socket) -> None:
        self._pair = pair
        self._unread = b""
        self._offered = Offered(pair)

    def fileno(self) -> int:
        return self._pair.fileno()

    def tell(self, **words: object) -> None:
        self._pair.sendall(json.dumps(words).encode() + b"\n")

    def offer(self, **words: object) -> None:
        """Tell without waiting: it is lost where the supervisor has not read what came before."""
        self._offered.offer(words)

    def hear(self) -> list[Mapping[str, Any]]:
        """What the supervisor has said since the last call; waits until it says something. Empty: the supervisor has
        ended.
        """
        lines: list[bytes] = []
        while not lines:
            octets = self._pair.recv(65536)
            if not octets:
                return []
            *lines, self._unread = (self._unread + octets).split(b"\n")
        return [json.loads(line) for line in lines]


@dataclass(frozen=True, kw_only=True)
class Handed:
    """What a child has to know. It inherits no descriptors but those of ``supervising`` and ``listeners``."""

    settings: Settings
    #: of the server, whether the service has started it or was given it
    database_url: str
    supervising: Supervising
    #: sockets that listen: those of one worker, or of the metrics
    listeners: Sequence[socket.socket] = ()
    #: where each of them listens
    places: Sequence[Endpoint] = ()
    #: for those that are `amqps`
    tls: ssl.SSLContext | None = None
    #: the worker's, from 0
    number: int = 0
    #: when the child started; a worker and the metrics are told of changes
    disk_low: bool = False


#: What a child runs; returns its exit status.
Program = Callable[[Handed], int]


@dataclass(frozen=True, kw_only=True)
class Programs:
    """The children of a supervisor, which itself imports neither links nor commands."""

    worker: Program
    recovery: Program
    maintenance: Program
    metrics: Program


# Exit statuses of the service and its workers: whether another start may go better.

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
