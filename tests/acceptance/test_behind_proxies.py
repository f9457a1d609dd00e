"""HAProxy before services, and PgBouncer before their database, set up as a page tells (F2, S4)."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from store.embedded.server import EmbeddedServer
from tests.fix_certificates import Authority
from tests.fix_packages import Daemon
from tests.fix_postgres import log_in
from tests.fix_proxies import HAProxy, PgBouncer, Proxied
from tests.fix_service import PATIENCE, Service, running
from tests.wire.messages import data
from tests.wire.peer import Ended, Peer
from tests.wire.queues import post

pytestmark = [pytest.mark.night, pytest.mark.rule("F2")]


def _peer(at: Daemon, ca: Authority) -> Peer:
    peer = Peer(at.port)
    peer.behind_tls(ssl.create_default_context(cafile=str(ca.certificate)))
    peer.open()
    return peer


def _serves(peer: Peer) -> bool:
    try:
        post(peer.begin(), "orders", b"x")
    except (Ended, OSError):
        return False
    return True


@pytest.fixture
def services(database_url: str, ca: Authority, tmp_path: Path) -> Iterator[tuple[Proxied, Proxied]]:
    def made(folder: Path) -> Proxied:
        return Proxied(folder, ca, database_url)

    with running(made) as one, running(made) as two:
        yield one, two


@pytest.fixture
def haproxy(services: tuple[Proxied, Proxied], ca: Authority, tmp_path: Path) -> Iterator[HAProxy]:
    haproxy = HAProxy(tmp_path, ca, *services)
    haproxy.start()
    yield haproxy
    haproxy.stop()


def test_a_service_that_is_lost_costs_its_clients_alone_a_connection(
    haproxy: HAProxy, services: tuple[Proxied, Proxied], ca: Authority
) -> None:
    peers = [_peer(haproxy, ca) for _ in range(4)]
    assert all(map(_serves, peers))
    one, two = services
    one.kill()
    assert [_serves(each) for each in peers].count(True) == 2
    # at once, before its check has failed
    assert all(_serves(_peer(haproxy, ca)) for _ in range(4))
    one.start()
    two.stop()
    _until(lambda: _serves(_peer(haproxy, ca)))
    assert all(_serves(_peer(haproxy, ca)) for _ in range(4))


def test_a_service_whose_database_went_away_with_its_pooler_comes_back(
    own_server: tuple[EmbeddedServer, str], open_folder: Path
) -> None:
    _, url = own_server
    with psycopg.connect(url) as connection:
        log_in(connection, "coordinator", "trust")  # PgBouncer is another user than the server asks for
    bouncer = PgBouncer(open_folder, url)
    bouncer.start()
    try:
        with running(lambda folder: Service(folder, {"database_url": bouncer.url})) as service:
            assert _commits(service)
            bouncer.restart()
            _until(lambda: _commits(service))
    finally:
        bouncer.stop()


def _commits(service: Service) -> bool:
    peer = Peer(service.port)
    peer.open()
    session = peer.begin()
    control = session.control()
    txn = control.declare()
    session.sender("orders").outcome(data(b"x"), txn=txn)
    control.commit(txn)
    peer.close_socket()
    return True


def _until(served: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        with suppress(AssertionError, OSError):
            if served():
                return
        assert time.monotonic() < deadline
        time.sleep(0.2)
