"""A worker for which the database has no connection left closes its clients, so that they can try another worker (F4).

Otherwise they would wait in vain. A restarted database is back in a moment; one that has run out of connections stays
so until an operator changes something.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from coordinator.errors import Condition, Refusal

if TYPE_CHECKING:
    from coordinator.service import Service
    from links.reactor import Reactor

log = structlog.get_logger(__name__)

#: A connection that is made anew may have to wait until the server has ended the one before.
PATIENCE_SECONDS = 5.0
_LOOK_SECONDS = 0.5

_REFUSAL = Refusal(
    Condition.RESOURCE_LIMIT_EXCEEDED,
    "the database has no connection left for this worker of the service: connect again later; its operator is to "
    "allow more connections, or to run fewer workers (the service's log says which limit it is)",
)


class Starving:
    """Looks at the worker's connections to the database every half second."""

    def __init__(self, reactor: Reactor, service: Service) -> None:
        self._reactor = reactor
        self._service = service
        self._look()

    def _look(self) -> None:
        self._reactor.call_later(_LOOK_SECONDS, self._look)
        starved = any(each.none_left(PATIENCE_SECONDS) for each in self._service.vital_connections)
        if starved == (self._service.starved is not None):
            return
        if not starved:
            self._service.starved = None
            log.info("the database has connections again: clients are served")
            return
        self._service.starved = _REFUSAL
        told = [each for each in self._reactor.connections if each.opened and not each.closing]
        log.error("the database has no connection left: clients are refused", clients=len(told))
        for connection in told:
            connection.force_close(_REFUSAL.condition, _REFUSAL.description)
