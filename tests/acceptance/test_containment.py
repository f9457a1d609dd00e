"""A defect of ours costs the one it belongs to: one production function fails for one client, a neighbour is served."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg
import pytest

from coordinator.address.directory import Directory
from coordinator.address.enqueue import Enqueue
from coordinator.bounds import Bounds
from coordinator.group import deliveries
from coordinator.group.queues import Queue
from coordinator.service import Service
from coordinator.transaction import Transaction
from links.connection import Connection
from links.output import Output
from links.reactor import Reactor
from store.tables import SCHEMA
from tests.acceptance.engine_client import PATIENCE, Client, Detached, Lost

INTERNAL_ERROR = "amqp:internal-error"


class Fault(Exception):
    """What nothing foresaw."""


@pytest.fixture
def port(service_and_port: tuple[Service, int]) -> int:
    return service_and_port[1]


@pytest.fixture
def victim(port: int) -> Iterator[Client]:
    client = Client(port, "victim")
    yield client
    client.socket.close()


@pytest.fixture
def neighbour(port: int) -> Iterator[Client]:
    client = Client(port, "neighbour")
    yield client
    client.close()


def served(client: Client) -> None:
    """All that a client does goes through the parts that failed for another."""
    address = f"orders-{id(client)}"  # another client's receiver takes nothing of it
    sender, receiver = client.sender(address), client.receiver(address, 10)
    txn = client.declare()
    client.post(sender, "m", txn=txn)
    assert client.discharge(txn, fail=False).accepted
    client.accept(client.receive(receiver))
    for link in (sender, receiver):
        link.close()


def fails_for(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, concerned: Any) -> None:
    """The function of a class or module raises, after it has done its work, where ``concerned(*arguments)``."""
    method = getattr(owner, name)

    def failing(*arguments: Any, **named: Any) -> Any:
        result = method(*arguments, **named)
        if concerned(*arguments):
            raise Fault
        return result

    monkeypatch.setattr(owner, name, failing)


def _stored(database_url: str) -> int:
    with psycopg.connect(database_url) as connection:
        row = connection.execute(f"select count(*) from {SCHEMA}.half".encode()).fetchone()
        assert row is not None
        return int(row[0])


@pytest.mark.rule("P14")
def test_an_answer_that_fails(victim: Client, neighbour: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    fails_for(monkeypatch, Transaction, "durable", lambda txn: txn.owner.container == "victim")
    sender = victim.sender("orders")
    txn = victim.declare()
    victim.post(sender, "m", txn=txn)
    victim.ask_discharge(txn, fail=False)
    with pytest.raises(Lost):
        victim.until(lambda: False)
    served(neighbour)


@pytest.mark.rule("P14", "T20")
def test_a_transaction_that_cannot_be_written_leaves_nothing(
    victim: Client, neighbour: Client, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    """Two of its three messages are in the batch by then."""
    fails_for(monkeypatch, Enqueue, "write_entry", lambda _enqueue, _batch, address, *_: address.name == "poison")
    good, poison = victim.sender("good"), victim.sender("poison")
    txn = victim.declare()
    for sender in (good, good, poison):
        victim.post(sender, "m", txn=txn)
    answer = victim.discharge(txn, fail=False)
    assert (answer.accepted, answer.condition) == (False, "amqp:transaction:rollback")
    assert _stored(database_url) == 0
    served(neighbour)
    served(victim)


@pytest.mark.rule("P14")
def test_an_answer_of_the_store_that_fails(victim: Client, neighbour: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    fails_for(monkeypatch, Directory, "_remember", lambda _directory, name, _row: name == "poison")
    with pytest.raises(Detached, match=INTERNAL_ERROR):
        victim.sender("poison")
    served(neighbour)
    served(victim)


@pytest.mark.rule("P14")
def test_a_queue_that_fails(victim: Client, neighbour: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    victim.receiver("poison", 10)
    fails_for(monkeypatch, Queue, "pump", lambda queue: queue.name == "poison")
    sender = neighbour.sender("poison")
    neighbour.post(sender, "m")
    with pytest.raises(Lost):
        victim.until(lambda: False)
    served(neighbour)


@pytest.mark.rule("P14", "T14")
@pytest.mark.parametrize("service_and_port", [{"transaction": {"timeout_seconds": 1}}], indirect=True)
def test_a_timer_that_fails(
    victim: Client, neighbour: Client, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two transactions whose time is up, the one that cannot be ended does not keep the other."""
    tried: list[str] = []
    abandon = Transaction.abandon

    def failing(txn: Any, *arguments: Any) -> None:
        tried.append(txn.owner.container)
        if txn.owner.container == "victim":
            raise Fault
        abandon(txn, *arguments)

    monkeypatch.setattr(Transaction, "abandon", failing)
    txns = []
    for client in (victim, neighbour):
        sender = client.sender("orders")
        txns.append(client.declare())
        client.outcome(client.post(sender, "m", txn=txns[-1]))
    timed_out = f"select count(*) from {SCHEMA}.op where id = %s and reason = 'timeout'"
    deadline = time.monotonic() + PATIENCE
    with psycopg.connect(database_url, autocommit=True) as connection:
        while connection.execute(timed_out.encode(), [uuid.UUID(bytes=txns[1])]).fetchone() != (1,):
            assert time.monotonic() < deadline
            neighbour.turn(0.05)
    assert neighbour.discharge(txns[1], fail=False).condition == "amqp:transaction:timeout"
    assert tried.index("victim") < tried.index("neighbour")
    served(neighbour)


@pytest.mark.rule("P14")
def test_a_settlement_that_fails(victim: Client, neighbour: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = victim.receiver("poison", 10)
    victim.post(victim.sender("poison"), "m")
    taken = victim.receive(receiver)
    fails_for(monkeypatch, deliveries, "settle", lambda entry: entry.queue.name == "poison")
    victim.accept(taken)
    with pytest.raises(Lost):
        victim.until(lambda: False)
    served(neighbour)


@pytest.mark.rule("P14", "S4")
def test_a_connection_that_cannot_even_be_closed_in_order(
    service_and_port: tuple[Service, int], victim: Client, neighbour: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory is given back, and its unsettled deliveries are delivered again."""
    memory = service_and_port[0].memory
    receiver = victim.receiver("orders", 10)
    victim.post(victim.sender("orders"), "m")
    victim.receive(receiver)
    assert memory.unread > 0
    fails_for(monkeypatch, Connection, "force_close", lambda connection, *_: connection.container == "victim")
    fails_for(monkeypatch, Transaction, "durable", lambda txn: txn.owner.container == "victim")
    victim.ask_discharge(victim.declare(), fail=False)
    with pytest.raises(Lost):
        victim.until(lambda: False)
    deadline = time.monotonic() + PATIENCE
    while memory.unread:  # its socket is closed a moment before
        assert time.monotonic() < deadline, memory.unread
        neighbour.turn(0.05)
    assert str(neighbour.receive(neighbour.receiver("orders", 10)).body) == "m"
    served(neighbour)


@pytest.mark.rule("P14")
def test_of_links_that_wait_for_room_one_fails(service_and_port: tuple[Service, int], neighbour: Client) -> None:
    service, _ = service_and_port
    called: list[int] = []

    def fail() -> None:
        raise Fault

    def hold_back() -> None:
        for number in range(20):  # they are called in any order
            service.hold_back(partial(called.append, number))
            service.hold_back(partial(fail))

    service.loop.call_later(0, hold_back)
    served(neighbour)
    assert sorted(called) == list(range(20))


@pytest.mark.rule("P4", "P14")
def test_of_peers_that_say_nothing_one_cannot_be_closed(
    service_and_port: tuple[Service, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are closed all the same."""
    service, port = service_and_port
    monkeypatch.setattr(service, "bounds", Bounds(opening_seconds=0.5))
    silent = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(3)]
    first = silent[0].getsockname()[1]
    fails_for(monkeypatch, Reactor, "close", lambda _reactor, connection: connection.peer.endswith(f":{first}"))
    for each in silent:
        assert each.recv(1) == b""
        each.close()


@pytest.mark.rule("P14")
def test_a_tick_that_fails(port: int, neighbour: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    fails_for(monkeypatch, Output, "is_stuck", lambda output, _seconds: output._connection.container == "victim")
    with pytest.raises(Lost):
        Client(port, "victim").until(lambda: False)
    served(neighbour)
