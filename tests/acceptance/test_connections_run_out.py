"""The database has no connection left for the service: the log says which limit it is, and clients hear so (F4, S4)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest

from store.embedded.server import EmbeddedServer
from tests.fix_command import Serve
from tests.fix_postgres import log_in
from tests.fix_service import running_service
from tests.wire.frames import Accepted
from tests.wire.messages import data
from tests.wire.peer import Peer

_ENOUGH = 50


class Limited:
    """A migrated server, and a user of it that may have a number of connections only."""

    def __init__(self, url: str) -> None:
        self.url = url.replace(f"//{urlsplit(url).username}@", "//few@")
        self._owner = psycopg.connect(url, autocommit=True)
        log_in(self._owner, "few", "trust")
        self._run(f"create role few login connection limit {_ENOUGH} in role {urlsplit(url).username}")

    def _run(self, sql: str) -> None:
        self._owner.execute(sql.encode())

    def allow(self, most: int) -> None:
        self._run(f"alter role few connection limit {most}")

    def end(self, name: str) -> None:
        self._run(f"select pg_terminate_backend(pid) from pg_stat_activity where application_name ~ '^{name} '")

    def close(self) -> None:
        self._owner.close()


@pytest.fixture
def limited(own_server: tuple[EmbeddedServer, str]) -> Iterator[Limited]:
    limited = Limited(own_server[1])
    yield limited
    limited.close()


def _refused(port: int) -> str:
    """The description of the error with which a new connection is closed."""
    peer = Peer(port)
    peer.open()
    error = peer.closed()
    peer.close_socket()
    assert error.condition == "amqp:resource-limit-exceeded"
    return str(error.description)


@pytest.mark.rule("S4", "F4")
def test_clients_hear_that_the_database_has_no_connection_left(limited: Limited) -> None:
    with running_service({"database_url": limited.url}) as service:
        peer = Peer(service.port)
        peer.open()
        session = peer.begin()
        assert session.sender("q").outcome(data(b"before")) == Accepted()
        limited.allow(1)
        limited.end("coordinator (batch|queries)")
        reason = service.wait_for(lambda line: line.get("event") == "database away" and "LIMIT" in line["why"])["why"]
        assert reason == "the user may have no more connections: its CONNECTION LIMIT (SQLSTATE 53300)"
        error = peer.closed()
        assert error.condition == "amqp:resource-limit-exceeded"
        assert error.description == _refused(service.port)
        assert "allow more connections" in str(error.description)
        peer.close_socket()
        limited.allow(_ENOUGH)
        service.wait_for(lambda line: line.get("event") == "the database can be used again: clients are served")
        peer = Peer(service.port)
        peer.open()
        assert peer.begin().receiver("q").bodies() == [b"before"]
        peer.close_socket()


@pytest.mark.rule("F4")
def test_it_listens_when_every_worker_has_its_connections(limited: Limited, serve: Serve) -> None:
    limited.allow(2)
    service = serve("--database-url", limited.url)
    service.until("the database has no connection left: clients are refused")
    assert service.values("worker ready", "pid") == []
    assert service.values("listening", "listen") == []
    said = [line for line in service.lines if line["event"] == "database away"]
    assert len(said) <= 4, "once for each of the worker's connections, and not at each attempt"
    assert all(re.search("CONNECTION LIMIT", line["why"]) for line in said)
    limited.allow(_ENOUGH)
    service.listening()
