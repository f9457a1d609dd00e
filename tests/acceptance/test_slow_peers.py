"""2,000 peers at once that stop at some stage and stay: they hold a bounded amount of memory and no one else's time,
and are closed when theirs is up (rules S4, S5).
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.acceptance.engine_client import Client
from tests.acceptance.neighbour import neighbour
from tests.fix_certificates import Authority, key_of
from tests.fix_night import by_night
from tests.fix_service import PATIENCE, Service, TwoDoors, running, running_service
from tests.fix_users import PASSWORD, add_users
from tests.slow_peers import before_tls, slow_peers, stages, within_tls, within_websockets
from tests.wire.peer import Ended, Peer
from tests.wire.sasl import Login, ScramClient
from tests.wire.websocket import PATH, WebSocketPeer
from tests.workers import Worker

PEERS = 2_000
SECONDS = {"bounds.opening_seconds": "4", "limits.idle_timeout_seconds": "4"}
#: that many handshakes take seconds
LONGER = dict.fromkeys(SECONDS, "10")
#: octets for each of them, whatever it has said; TLS keeps a handshake besides
MOST_EACH, MOST_EACH_BEHIND_TLS = 64 * 1024, 128 * 1024
#: what one may leave unread or unsettled of messages is the least where so many share the bound
MEMORY = {"limits.memory_bytes": "64 MiB"}


@contextmanager
def all_of_them_end(service: Service, most_each: int, count: int = PEERS) -> Iterator[Worker]:
    """Afterwards the worker has no descriptor more than before, and has held no more than it may for each of them."""
    worker = Worker(service)
    before = worker.descriptors
    yield worker
    deadline = time.monotonic() + PATIENCE
    while worker.descriptors > before:
        assert time.monotonic() < deadline, f"{worker.descriptors - before} connections are there still"
        time.sleep(0.1)
    assert worker.peak < count * most_each


def _come_in(log_in: Callable[[], None]) -> None:
    """As a client that comes again when it was too slow itself."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            log_in()
            return
        except (Ended, ConnectionError):
            assert time.monotonic() < deadline


def _fill(service: Service) -> None:
    filler = Client(service.port, "filler")
    sender = filler.sender("full")
    for _ in range(200):
        filler.post(sender, "x" * 10_000, settled=True)
    assert filler.discharge(filler.declare(), fail=False).accepted
    filler.close()


@pytest.mark.rule("S4", "S5", "P4")
def test_two_thousand_slow_peers_beside_a_neighbour() -> None:
    """At each stage from no octet to deliveries that are never settled. A client that logs in meanwhile comes in."""
    with running_service({**SECONDS, **MEMORY}) as service:
        add_users(service, "alice")
        _fill(service)

        def log_in() -> None:
            login = Login(Peer(service.port))
            assert login.scram(ScramClient(user="alice", password=PASSWORD)).code == 0
            login.goes_on()
            login.peer.close_socket()

        with slow_peers() as peers, neighbour(service) as beside, all_of_them_end(service, MOST_EACH):
            peers.connect(service.port, stages("full"), PEERS)
            commits = beside.commits
            _come_in(log_in)
        assert beside.commits > commits


@pytest.mark.rule("S2", "S4", "S5")
def test_two_thousand_slow_peers_of_tls_beside_a_neighbour(ca: Authority) -> None:
    """In its handshake, behind it, and at the stages above within it."""
    server = ca.sign("slow", alternative="IP:127.0.0.1")
    settings = {"tls.certificate": str(server), "tls.key": str(key_of(server)), **LONGER, **MEMORY}
    context = ssl.create_default_context(cafile=str(ca.certificate))

    with running(lambda folder: TwoDoors(folder, settings)) as service:
        _fill(service)
        behind_tls = service.ports[1]

        def log_in() -> None:
            client = Peer(behind_tls)
            client.behind_tls(context)
            client.open()
            client.close_socket()

        with slow_peers() as peers, neighbour(service) as beside, all_of_them_end(service, MOST_EACH_BEHIND_TLS):
            peers.connect(behind_tls, before_tls(ca.certificate), PEERS // 4)
            peers.connect(behind_tls, within_tls("full"), PEERS - PEERS // 4, context)
            commits = beside.commits
            _come_in(log_in)
        assert beside.commits > commits


class _AlsoWebSockets(Service):
    @property
    def listens(self) -> list[str]:
        return [self.url, f"ws://127.0.0.1:0{PATH}"]


@pytest.mark.rule("S4", "S5", "S14")
@pytest.mark.parametrize("count", [PEERS // 2, by_night(PEERS)])
def test_slow_peers_of_websockets_beside_a_neighbour(count: int) -> None:
    """In the request, in frames, and at the stages above within messages."""
    with running(lambda folder: _AlsoWebSockets(folder, {**SECONDS, **MEMORY})) as service:
        _fill(service)
        port = service.ports[1]

        def log_in() -> None:
            client = WebSocketPeer(port)
            client.begin_websocket()
            client.open()
            client.close_socket()

        with slow_peers() as peers, neighbour(service) as beside, all_of_them_end(service, MOST_EACH, count):
            peers.connect(port, within_websockets("full"), count)
            commits = beside.commits
            _come_in(log_in)
        assert beside.commits > commits
