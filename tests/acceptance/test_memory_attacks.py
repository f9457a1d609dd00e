"""What clients can make a worker hold is bounded by ``limits.memory_bytes`` (rules S4, S5, F4), and others are served
meanwhile. Memory is the proportional set size.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import pytest

from tests.acceptance import attacks
from tests.acceptance.attacks import MIB, Attack, Memory, attacking, neighbour, serve_beside
from tests.fix_service import Service, running_service
from tests.wire.frames import Accepted, Declare, Declared, TransactionalState
from tests.wire.messages import data
from tests.wire.peer import Peer
from tests.wire.queues import condition

log = logging.getLogger(__name__)

_MOST = 64 * MIB
_SECONDS = 6.0


@pytest.fixture
def small_service() -> Iterator[Service]:
    with running_service({"limits.memory_bytes": str(_MOST)}) as service:
        yield service


@pytest.mark.rule("S4", "S5", "F4")
@pytest.mark.parametrize(
    "attack",
    [
        attacks.park_posts,
        attacks.leave_transactions_undecided,
        attacks.read_nothing,
        attacks.browse_and_settle_nothing,
        attacks.browse_through_a_closed_window,
        attacks.consume_and_settle_nothing,
    ],
)
def test_an_attack_on_memory(small_service: Service, attack: Attack) -> None:
    """Of four connections; what the worker grows by stays under the bound and a quarter."""
    neighbour(small_service.port)
    memory = Memory(small_service)
    with attacking(small_service, attack, each=4):
        served = serve_beside(small_service, memory, _SECONDS)
    neighbour(small_service.port)
    log.info(
        "%s: %d to %d MiB, neighbour served %d times", attack.__name__, memory.before / MIB, memory.peak / MIB, served
    )
    assert memory.peak - memory.before < 1.25 * _MOST
    assert not [line for line in small_service.log_lines() if line.get("event") in ("worker ended", "internal error")]


@pytest.mark.rule("S4", "T23")
def test_the_largest_transactions_are_refused(small_service: Service) -> None:
    """Beyond a quarter of the bound; they name the setting, and roll back. A small one beside them is committed."""
    peer = Peer(small_service.port)
    peer.open()
    session = peer.begin()
    control, sender = session.control(), session.sender("many")
    small, large = control.declare(), control.declare()
    answer = sender.outcome(data(b"small"), txn=small)
    assert answer == TransactionalState(txn_id=small, outcome=Accepted())
    for _ in range(16):
        answer = sender.outcome(data(bytes(MIB - 100)), txn=large)
        if answer.outcome != Accepted():
            break
    assert condition(answer.outcome) == "amqp:resource-limit-exceeded"
    assert "limits.memory_bytes" in answer.outcome.error.description
    control.commit(small)
    refused = control.discharge(large)
    assert condition(refused) == "amqp:transaction:rollback"
    assert "limits.memory_bytes" in refused.error.description
    # what it held is let go: another has room for as much
    other = control.declare()
    for _ in range(8):
        assert sender.outcome(data(bytes(MIB - 100)), txn=other).outcome == Accepted()
    control.roll_back(other)
    assert session.receiver("many").bodies() == [b"small"]
    peer.close_socket()


@pytest.mark.rule("S5")
def test_a_peer_that_reads_nothing_is_closed() -> None:
    """When it has left too much unread for the idle time; one that reads again in time goes on where it was."""
    with running_service({"limits.unread_bytes": "64 KiB", "limits.idle_timeout_seconds": "5"}) as service:
        with attacking(service, attacks.read_nothing):
            service.wait_for(lambda line: line.get("event") == "connection closed: its peer reads nothing")
        peer = Peer(service.port)
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.open(idle_time_out=None)
        session = peer.begin()
        control = session.control()
        numbers = [control.request(Declare(), delivery_tag=b"%d" % each) for each in range(900)]
        for number in numbers:
            assert isinstance(control.answer_to(number).state, Declared)
        peer.close_socket()
