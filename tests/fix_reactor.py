"""A worker's reactor in this process, on a store of its own: for tests that look into it, or make it fail."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from sqlalchemy import Connection as StoreConnection

from coordinator.address.addresses import AddressPolicy
from coordinator.service import Service
from coordinator.settings import Settings
from links.close_reason import CloseReason
from links.connection import Connection
from links.reactor import Reactor
from store import recovery


@pytest.fixture
def service_and_port(
    database_url: str, database: StoreConnection, request: pytest.FixtureRequest
) -> Iterator[tuple[Service, int]]:
    """A worker's reactor in a thread of this process, so that its functions can be made to fail; a test may give
    settings."""
    registration = recovery.register(database, "1")
    reactor = Reactor()
    settings = Settings(**getattr(request, "param", {}))
    service = Service(
        reactor, settings, AddressPolicy(settings.addresses), database_url, registration, fenced=reactor.stop
    )
    reactor.end_turn = service.end_turn
    service.start()
    listener = socket.create_server(("127.0.0.1", 0))
    reactor.listen(listener, lambda sock: Connection(reactor, service, sock, ["ANONYMOUS"]))
    thread = threading.Thread(target=reactor.run)
    thread.start()
    try:
        yield service, listener.getsockname()[1]
        assert thread.is_alive(), "the worker has ended"
    finally:
        reactor.stop()
        thread.join()
        for connection in list(reactor.connections):
            reactor.close(connection, CloseReason.SERVICE_STOPS)
        reactor.leaving.close()
        service.close()
        listener.close()
