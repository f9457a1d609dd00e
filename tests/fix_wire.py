"""The test client of ``tests/wire`` connected to the module's service, and questions to its store."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from store.embedded import running_url
from tests.fix_service import Service
from tests.wire.peer import PATIENCE, Peer, Session

#: Makes a new connection: a socket on which nothing was sent yet.
Dial = Callable[[], Peer]
#: Makes a session on a new connection.
Begin = Callable[..., Session]
BeginAt = Callable[[Service], Session]
#: Reads rows of the service's store.
Ask = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def dial(service: Service) -> Iterator[Dial]:
    """Connections to the module's service, which must still be the same process when the test ends."""
    peers: list[Peer] = []
    since = len(service.log_lines())

    def connect() -> Peer:
        peers.append(Peer(service.port))
        return peers[-1]

    yield connect
    for peer in peers:
        peer.close_socket()
    last = Peer(service.port)
    last.open()
    last.close()
    lines = service.log_lines()[since:]
    if any(line.get("event") in ("worker ended", "internal error") for line in lines):
        raise AssertionError("the service failed in this test:\n" + "\n".join(map(str, lines)))


@pytest.fixture
def begin(dial: Dial) -> Begin:
    """A session on a connection of its own; ``fields`` are those of the open frame."""

    def session(**fields: Any) -> Session:
        peer = dial()
        peer.open(**fields)
        return peer.begin()

    return session


@pytest.fixture
def begin_at() -> Iterator[BeginAt]:
    """As ``begin``, but on a service of the test's own, which may end meanwhile."""
    peers: list[Peer] = []

    def session(service: Service) -> Session:
        peers.append(Peer(service.port))
        peers[-1].open()
        return peers[-1].begin()

    yield session
    for peer in peers:
        peer.close_socket()


@pytest.fixture
def address(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return re.sub(r"\W+", "-", request.node.nodeid.rpartition("::")[2])[:200]


@pytest.fixture
def ask(service: Service) -> Ask:
    """Query the store directly, not through the service."""

    def rows(statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(running_url(service.data_dir)) as connection:
            return connection.execute(statement.encode(), parameters or None).fetchall()

    return rows


def decided(ask: Ask, txn: bytes) -> tuple[Any, ...]:
    """Wait for the op of a transaction; return its decision and reason."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        rows = ask("select decision, reason from coordinator.op where id = encode(%s, 'hex')::uuid", txn)
        if rows:
            return rows[0]
        time.sleep(0.02)
    raise AssertionError(f"{txn.hex()} was not decided within {PATIENCE:g} s")
