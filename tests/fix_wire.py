"""The test client of ``tests/wire`` connected to the module's service, and questions to its store."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from store.embedded.running import running_url
from tests.fix_service import Service
from tests.wire.frames import AMQP_HEADER
from tests.wire.peer import PATIENCE, Ended, Peer, Session
from tests.workers import pids_of_workers, worker_of

#: Makes a new connection: a socket on which nothing was sent yet.
Dial = Callable[[], Peer]
#: Makes a session on a new connection.
Begin = Callable[..., Session]
BeginAt = Callable[[Service], Session]
#: A connection at the worker of that number, where both headers are sent and nothing else.
DialTo = Callable[[int], Peer]
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
def dial_to(service: Service) -> Iterator[DialTo]:
    """For a service of several workers."""
    peers: list[Peer] = []

    def connect(worker: int) -> Peer:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            pids = pids_of_workers(service)  # each time: a test before may have killed one
            peer = Peer(service.port)
            peers.append(peer)
            with suppress(Ended, OSError):  # the worker that was to answer has ended
                peer.send_octets(AMQP_HEADER)
                assert peer.read_header() == AMQP_HEADER  # the worker has it when it answers
                if worker_of(peer.socket, pids) == worker:
                    return peer
            peer.close_socket()
        raise AssertionError(f"no connection went to worker {worker} within {PATIENCE:g} s")

    yield connect
    for peer in peers:
        peer.close_socket()


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
