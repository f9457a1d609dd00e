"""How many connections one host and one user may have, and how many may wait to be open (rule S4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from tests.fix_service import Service, running_service
from tests.fix_users import PASSWORD, add_users
from tests.wire.frames import AMQP_HEADER, Close, Open
from tests.wire.peer import Peer
from tests.wire.sasl import Login, ScramClient

_numbers = count(2)

#: Connects from a host.
Connect = Callable[[str], Peer]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    limits = {"limits.connections_per_address": "4", "limits.connections_per_user": "2"}
    with running_service({**limits, "bounds.connections_unopened": "6"}) as service:
        add_users(service, "alice", "bob")
        yield service


@pytest.fixture
def connect(service: Service) -> Iterator[Connect]:
    peers: list[Peer] = []

    def from_host(host: str) -> Peer:
        peers.append(Peer(service.port, host))
        return peers[-1]

    yield from_host
    for peer in peers:
        peer.close_socket()


@pytest.fixture
def hosts() -> tuple[str, str]:
    """All of these are this machine, and no other test's."""
    return f"127.0.0.{next(_numbers)}", f"127.0.0.{next(_numbers)}"


def _open(peer: Peer) -> None:
    peer.open()
    peer.begin()


def _refused(peer: Peer, setting: str) -> None:
    """Its open is answered with the reason."""
    peer.send_octets(AMQP_HEADER)
    assert peer.read_header() == AMQP_HEADER
    peer.send(Open(container_id="one too many"))
    error = peer.closed()
    assert error.condition == "amqp:resource-limit-exceeded"
    assert setting in (error.description or "")


def _gone(service: Service, peer: Peer) -> None:
    """Its connection has ended, and the service knows."""
    peer.send(Close())
    peer.rest()


@pytest.mark.rule("S4")
def test_one_host_has_so_many_connections(service: Service, connect: Connect, hosts: tuple[str, str]) -> None:
    """Those beyond are refused by the setting's name; another host's are not; one that goes makes room."""
    peers = [connect(hosts[0]) for _ in range(4)]
    for each in peers:
        _open(each)
    _refused(connect(hosts[0]), "limits.connections_per_address")
    _open(connect(hosts[1]))
    _gone(service, peers[0])
    _open(connect(hosts[0]))


@pytest.mark.rule("S4")
def test_one_user_has_so_many_connections(service: Service, connect: Connect, hosts: tuple[str, str]) -> None:
    """At whatever host; another user's, and those without a login, are others."""

    def logged_in(host: str, user: str) -> Peer:
        login = Login(connect(host))
        assert login.scram(ScramClient(user=user, password=PASSWORD)).code == 0
        return login.peer

    first, second = logged_in(hosts[0], "alice"), logged_in(hosts[1], "alice")
    for each in (first, second):
        _open(each)
    _refused(logged_in(hosts[1], "alice"), "limits.connections_per_user")
    _open(logged_in(hosts[1], "bob"))
    _open(connect(hosts[1]))
    _gone(service, second)
    _open(logged_in(hosts[0], "alice"))


@pytest.mark.rule("S4", "S5")
def test_of_those_that_are_not_open_one_of_the_host_that_has_the_most_is_closed(
    service: Service, connect: Connect, hosts: tuple[str, str]
) -> None:
    """However many a stranger makes, it takes the places of its own alone; and who opens is none of them any more."""
    seen = len(service.log_lines())
    patient = connect(hosts[1])
    patient.send_octets(AMQP_HEADER)
    assert patient.read_header() == AMQP_HEADER
    silent = [connect(hosts[0]) for _ in range(8)]

    def closed(line: dict[str, object]) -> bool:
        return line.get("reason") == "too-many-not-opened"

    service.wait_for(closed, since=seen)
    for each in silent:
        each.socket.setblocking(False)
    while sum(_is_closed(each) for each in silent) < 3:
        pass
    patient.send(Open(container_id="patient"))
    assert patient.wait(Open)
    patient.begin()
    while len(lines := [line for line in service.log_lines()[seen:] if closed(line)]) < 3:
        pass  # the log comes after the close
    assert [str(line["peer"]).startswith(f"{hosts[0]}:") for line in lines] == [True] * 3


def _is_closed(peer: Peer) -> bool:
    try:
        return peer.socket.recv(1) == b""
    except BlockingIOError:
        return False
