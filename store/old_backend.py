"""A server process whose reply was lost may still be at work: its effect is known only once it has ended."""

from __future__ import annotations

from collections.abc import Callable

import structlog
from psycopg import pq

from store.backend import BEGAN, NAME, Backend, without_place
from store.errors import StoreError
from store.libpq import Connection
from store.loop import Loop

log = structlog.get_logger(__name__)

_OUR_NAME = without_place("current_setting('application_name')")
_TERMINATE = (
    "select count(pg_terminate_backend(pid)) from pg_stat_activity "
    f"where pid = $1::int4 and {BEGAN} = $2::int8 and pid <> pg_backend_pid() "
    f"and {NAME} = {_OUR_NAME}"
)

LOOK_AGAIN_SECONDS = 0.05
_AFTER_ERROR_SECONDS = 1.0


class OldBackend:
    """Ends the server process of the lost ``connection``, over the new one."""

    def __init__(self, loop: Loop, connection: Connection) -> None:
        self._loop = loop
        self._connection = connection
        # A new connection that is lost, too, begins again: results of the earlier attempt do not count.
        self._attempt = 0

    def end(self, old: Backend, ended: Callable[[], None]) -> None:
        """Call it when the new connection is idle; ``ended()`` is called once the process ``old`` of ours is gone.

        Until then the connection may not be used for anything else. If it is lost meanwhile, call ``end`` again.
        """
        self._attempt += 1
        self._look(self._attempt, old, ended)

    def _look(self, attempt: int, old: Backend, ended: Callable[[], None]) -> None:
        if attempt != self._attempt or not self._connection.idle:
            return

        def looked(answer: list[pq.abc.PGresult] | StoreError) -> None:
            if isinstance(answer, StoreError):
                log.error("cannot end the process of a lost connection", error=str(answer))
                wait = _AFTER_ERROR_SECONDS
            elif answer[-1].get_value(0, 0) == bytes(8):
                ended()
                return
            else:
                wait = LOOK_AGAIN_SECONDS
            self._loop.call_later(wait, lambda: self._look(attempt, old, ended))

        self._connection.execute(b"terminate", _TERMINATE, old.parameters, looked)
