"""Memory has its bounds, whatever clients ask for or leave undone. Sizes are resident octets of the worker."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.engine_client import Client
from tests.fix_night import by_night
from tests.fix_service import Service, running_service
from tests.wire.peer import Peer
from tests.wire.pipelined import EmptyTransactions

MIB = 1 << 20


class Memory:
    """Of the service's worker, beyond what it had when this was made."""

    def __init__(self, service: Service) -> None:
        line = service.wait_for(lambda line: line.get("event") == "worker ready")
        self._status = Path(f"/proc/{line['pid']}/status")
        self._before = self._resident("VmRSS")

    def _resident(self, name: str) -> int:
        for line in self._status.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
        raise AssertionError(name)

    @property
    def grown(self) -> int:
        return self._resident("VmRSS") - self._before


def _fill(client: Client, address: str, count: int, size: int) -> None:
    """Post in transactions of 100."""
    sender = client.sender(address)
    for start in range(0, count, 100):
        txn = client.declare()
        for number in range(start, min(start + 100, count)):
            client.post(sender, f"{number}".ljust(size, "x"), txn=txn, settled=True)
        assert client.discharge(txn, fail=False).accepted


@pytest.mark.rule("P5")
def test_a_consumer_with_much_credit_that_reads_nothing(own_service: Service) -> None:
    """200 MB wait for it; what is written to its socket and what is kept for its deliveries is bounded."""
    client = Client(own_service.port, "poster")
    _fill(client, "large", 400, 512 * 1024)
    memory = Memory(own_service)
    slow = Client(own_service.port, "slow")
    receiver = slow.receiver("large", 0)
    receiver.flow(100_000)
    slow.turn(0)
    for _ in range(20):  # the service has had its turns when it has answered another
        client.discharge(client.declare(), fail=False)
        client.post(client.sender("other"), "x")
    assert memory.grown < 64 * MIB
    # it goes on when it reads
    for number in range(100):
        taken = slow.receive(receiver)
        assert str(taken.body).rstrip("x") == str(number)
        slow.accept(taken)
    assert memory.grown < 64 * MIB
    slow.cut()
    client.close()


@pytest.mark.rule("P5")
def test_a_long_queue_is_read_through_a_small_window(own_service: Service) -> None:
    count = 50_000
    client = Client(own_service.port, "poster")
    memory = Memory(own_service)
    _fill(client, "long", count, 100)
    posted = memory.grown
    receiver = client.receiver("long", 200)
    for number in range(count):
        taken = client.receive(receiver)
        assert str(taken.body).rstrip("x") == str(number)
        client.accept(taken)
        if number % 100 == 99:
            receiver.flow(100)
    assert posted < 32 * MIB
    assert memory.grown < 32 * MIB
    client.close()


@pytest.mark.rule("T3", "T35")
@pytest.mark.parametrize("count", [60_000, by_night(300_000)])
def test_a_control_link_goes_on_for_ever(own_service: Service, count: int) -> None:
    """Many transactions on one link, and nothing is left of them: of 300,000 not 4 octets of each."""
    peer = Peer(own_service.port)
    peer.open()
    transactions = EmptyTransactions(peer.begin().control())
    transactions.run(10_000)
    memory = Memory(own_service)
    transactions.run(count)
    assert memory.grown < MIB
    peer.close_socket()


@pytest.mark.rule("P5", "P4")
def test_a_store_that_stands_still_stops_the_posters() -> None:
    """Posts wait in memory up to a bound; then nothing more is read, for longer than the idle time, and nothing is
    lost.
    """
    with running_service({"limits.idle_timeout_seconds": "2"}) as service:
        clients = [Client(service.port, f"poster-{number}") for number in range(8)]
        senders = {client: client.sender("waiting") for client in clients}
        assert clients[0].outcome(clients[0].post(senders[clients[0]], "first")) == 0x24
        memory = Memory(service)
        service.signal_database(signal.SIGSTOP)
        sent: list[tuple[Client, Any]] = []
        try:
            taken = time.monotonic()
            while time.monotonic() - taken < 3:
                for client, sender in senders.items():
                    if client.backlog < MIB:
                        sent.append((client, client.post(sender, "x" * (MIB - 100))))
                        taken = time.monotonic()
                    client.turn(0.01)
                assert len(sent) < 500
            grown = memory.grown
        finally:
            service.signal_database(signal.SIGCONT)
        for client, delivery in sent:
            assert client.outcome(delivery) == 0x24
        assert len(sent) > 64
        assert grown < 80 * MIB
        for client in clients:
            client.close()
