"""What clients can make a worker hold is bounded by ``limits.memory_bytes`` (rules S4, S5, F4), and others are served
meanwhile. Memory is the proportional set size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.acceptance import attacks
from tests.acceptance.attacks import MIB, Attack, Memory, attacking, neighbour, serve_beside
from tests.fix_service import Service, running_service
from tests.wire.frames import Accepted, TransactionalState
from tests.wire.messages import data
from tests.wire.peer import Peer
from tests.wire.queues import condition

_MOST = 64 * MIB
_SECONDS = 6.0


@pytest.fixture
def small_service() -> Iterator[Service]:
    with running_service({"limits.memory_bytes": str(_MOST)}) as service:
        yield service


@pytest.mark.rule("S4", "S5", "F4")
@pytest.mark.parametrize("attack", [attacks.park_posts, attacks.leave_transactions_undecided])
def test_an_attack_on_memory(
    small_service: Service, attack: Attack, record_property: Callable[[str, object], None]
) -> None:
    """Of four connections; what the worker grows by stays under the bound and a quarter."""
    neighbour(small_service.port)
    memory = Memory(small_service)
    with attacking(small_service, attack, each=4):
        served = serve_beside(small_service, memory, _SECONDS)
    neighbour(small_service.port)
    record_property("MiB", f"{memory.before / MIB:.0f} to {memory.peak / MIB:.0f}")
    record_property("served", served)
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
