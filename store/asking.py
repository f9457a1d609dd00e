"""Who asks the questions: one after the other, on a connection of their own.

Answers come by callback, in order. A question whose connection was lost is asked again where that does no harm
(``Query.again``), once the server process that was at work on it is gone: else it could take effect later than
questions that were asked after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from psycopg import pq
from psycopg.adapt import Transformer

from store.errors import StoreError, StoreUnavailable
from store.libpq import Connection
from store.loop import Loop
from store.old_backend import OldBackend

log = structlog.get_logger(__name__)

#: Values as psycopg loads them: int, str, bool, bytes, None. Queries cast what would become anything else.
Row = tuple[Any, ...]
Callback = Callable[[list[Row] | StoreError], None]


@dataclass(frozen=True, slots=True)
class Query:
    """``sql`` with binary parameters ``$1``…; rows come back in binary format."""

    name: bytes
    sql: str
    #: May be asked again when its connection was lost meanwhile; otherwise the asker hears StoreUnavailable, once
    #: nothing more can come of it.
    again: bool = True


#: The holder of a claim hears here that another connection wants its place; the payload is its instance and number.
SOLE_CHANNEL = "coordinator_sole"

#: A plan is made once a connection, perhaps for tables that were never analysed: whatever reads and sorts a whole group
#: (a bitmap, a hash) looks cheap then, and would be kept.
SETUP = (
    "set plan_cache_mode = force_generic_plan; set enable_seqscan = off; set enable_bitmapscan = off; "
    "set enable_hashjoin = off; set enable_mergejoin = off; set jit = off; set work_mem = '32MB'; "
    f"listen coordinator_ready; listen coordinator_address; listen {SOLE_CHANNEL}"
)


class Queries:
    """``notified(channel, payload)`` hears of other instances; ``connected()`` of each new connection (notices may
    have been missed).
    """

    def __init__(
        self,
        loop: Loop,
        url: str,
        instance_id: int,
        notified: Callable[[str, str], None],
        connected: Callable[[], None],
    ) -> None:
        self._waiting: deque[tuple[Query, Sequence[bytes | None], Callback]] = deque()
        self._busy = False
        self._backend = 0
        #: a question was under way when the connection was lost: its server process may be at work on it still
        self._doubtful = False
        #: askers whose question is not asked again
        self._in_doubt: list[Callback] = []
        self._notified = notified
        self._told = connected
        self._connection = Connection(loop, url, f"queries {instance_id}", SETUP, self)
        self._old_backend = OldBackend(loop, self._connection)

    def start(self) -> None:
        self._connection.start()

    def close(self) -> None:
        self._connection.close()

    @property
    def connection(self) -> Connection:
        return self._connection

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def ask(self, query: Query, parameters: Sequence[bytes | None], callback: Callback) -> None:
        self._waiting.append((query, parameters, callback))
        self._kick()

    def _kick(self) -> None:
        if self._waiting and not self._busy and not self._doubtful and self._connection.idle:
            self._busy = True
            self._backend = self._connection.backend_pid
            query, parameters, _ = self._waiting[0]
            self._connection.execute(query.name, query.sql, parameters, self._answered)

    def _answered(self, answer: list[pq.abc.PGresult] | StoreError) -> None:
        self._busy = False
        query, _, callback = self._waiting.popleft()
        if isinstance(answer, StoreError):
            log.error("query refused", query=query.name.decode(), error=str(answer))
            self._kick()
            callback(answer)
            return
        result = answer[-1]
        loader = Transformer()
        loader.set_pgresult(result)
        rows: list[Row] = loader.load_rows(0, result.ntuples, tuple)
        self._kick()
        callback(rows)

    def connected(self) -> None:
        if self._doubtful:
            self._old_backend.end(self._backend, self._settled)
        else:
            self._settled()

    def _settled(self) -> None:
        self._doubtful = False
        in_doubt, self._in_doubt = self._in_doubt, []
        self._told()
        self._kick()
        for callback in in_doubt:
            callback(StoreUnavailable("the connection was lost while the question was under way"))

    def lost(self) -> None:
        if self._busy:
            self._busy = False
            self._doubtful = True
            query, _, callback = self._waiting[0]
            if not query.again:
                self._waiting.popleft()
                self._in_doubt.append(callback)

    def notified(self, channel: str, payload: str) -> None:
        self._notified(channel, payload)
