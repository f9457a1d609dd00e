"""A worker that the database has no connection left for: its clients are told, so that they can go to another (F4).

Without a word they would wait: the store may be back in a moment after a restart, but not after it has run out of
connections, which only people change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from coordinator.errors import Condition, Refusal

if TYPE_CHECKING:
    from coordinator.service import Service
    from links.reactor import Reactor

log = structlog.get_logger(__name__)

#: A connection that is lost and made anew may meet the end of its predecessor.
PATIENCE_SECONDS = 5.0
_LOOK_SECONDS = 0.5

_REFUSAL = Refusal(
    Condition.RESOURCE_LIMIT_EXCEEDED,
    "the database has no connection left for this worker of the service: connect again later; its operator is to "
    "allow more connections, or to run fewer workers (the service's log says which limit it is)",
)


class Starving:
    """Looks at the worker's connections to the database again and again."""

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
