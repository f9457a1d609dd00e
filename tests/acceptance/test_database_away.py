"""PostgreSQL killed, frozen, or stopped under load: nothing is acknowledged meanwhile, links stay, nothing is lost."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable

import psycopg
import pytest

from store.embedded.running import running_url
from store.embedded.server import EmbeddedServer
from tests.acceptance.engine_client import Client
from tests.acceptance.history import WORK, Consumer, History, Mover, Producer, Worker, decisions, left
from tests.fix_service import PATIENCE, Service, running_service


def _database_pid(service: Service, since: int = 0) -> int:
    return int(service.wait_for(lambda line: line.get("event") == "database started", since=since)["pid"])


def _start(history: History, service: Service) -> list[Worker]:
    kinds: list[type[Worker]] = [Producer, Producer, Consumer, Consumer, Mover]
    load = [kind(history, lambda: service.port, f"{kind.__name__}-{n}", n) for n, kind in enumerate(kinds)]
    for worker in load:
        worker.steady = True
        worker.start()
    return load


def _acknowledged(history: History) -> int:
    return sum(txn.answer is not None for txn in history.txns)


def _goes_on(history: History) -> None:
    """Commits are answered again."""
    before = _acknowledged(history)
    deadline = time.monotonic() + PATIENCE
    while _acknowledged(history) < before + 50:
        assert time.monotonic() < deadline, "it did not go on"
        assert not history.errors, history.errors
        time.sleep(0.01)


def _check(history: History, load: list[Worker], service: Service, url: str) -> None:
    history.stopping = True
    for thread in load:
        thread.join(PATIENCE)
        assert not thread.is_alive(), thread.name
    client = Client(service.port, "end")
    there = left(client, url)
    client.close()
    found = history.violations(there, decisions(url))
    assert not found, "\n".join(found)
    assert not [txn for txn in history.txns if txn.wish != "none" and txn.answer is None], "an answer was lost"
    ended = [line for line in service.log_lines() if line.get("event") == "worker ended"]
    assert not ended


@pytest.mark.rule("T8", "H4", "H13")
def test_the_embedded_server_is_killed_again_and_again(own_service: Service) -> None:
    service = own_service
    dice = random.Random(3)
    history = History()
    load = _start(history, service)
    pid = _database_pid(service)
    for _ in range(6):
        _goes_on(history)
        time.sleep(dice.uniform(0, 0.2))
        seen = len(service.log_lines())
        os.kill(pid, signal.SIGKILL)
        pid = _database_pid(service, seen)
    _goes_on(history)
    _check(history, load, service, running_url(service.data_dir))


@pytest.mark.rule("T8", "T35")
def test_the_server_is_frozen_for_a_while(own_service: Service) -> None:
    service = own_service
    history = History()
    history.foreign.add("frozen")
    load = _start(history, service)
    _goes_on(history)
    client = Client(service.port, "empty")
    client.discharge(client.declare(), fail=False)
    frozen = client.declare()
    sender = client.sender(WORK)
    service.signal_database(signal.SIGSTOP)
    try:
        time.sleep(0.5)  # answers that were on their way
        before = _acknowledged(history)
        # the links are up: what needs no store is answered
        assert client.discharge(client.declare(), fail=False).accepted
        client.post(sender, "frozen", txn=frozen)
        delivery = client.ask_discharge(frozen, fail=False)
        for _ in range(20):
            client.turn(0.1)
        assert not delivery.remote_state
        assert _acknowledged(history) - before <= sum(not (txn.posted or txn.retired) for txn in history.txns)
    finally:
        service.signal_database(signal.SIGCONT)
    assert client.answer_of(delivery).accepted
    _goes_on(history)
    client.close()
    _check(history, load, service, running_url(service.data_dir))


@pytest.mark.rule("T8", "H4", "H13")
@pytest.mark.parametrize("stop", ["fast", "immediate"])
def test_a_given_server_is_stopped_and_started(own_server: tuple[EmbeddedServer, str], stop: str) -> None:
    server, url = own_server
    ways: dict[str, Callable[[], None]] = {"fast": server.stop, "immediate": lambda: server.stop(grace_seconds=0)}
    with running_service({"database_url": url}) as service:
        history = History()
        load = _start(history, service)
        for _ in range(3):
            _goes_on(history)
            ways[stop]()
            before = _acknowledged(history)
            time.sleep(1.0)
            # one answer each may have been on its way to its client
            assert _acknowledged(history) - before <= len(load)
            server.start()
        _goes_on(history)
        _check(history, load, service, url)


def test_a_service_waits_for_addresses_too(own_service: Service) -> None:
    """An attach to a new address while the database is away is answered when it is back."""
    service = own_service
    client = Client(service.port, "attach")
    service.signal_database(signal.SIGSTOP)
    try:
        name = client._name()
        link = client._session.sender(name)
        link.target.address = "later"
        link.open()
        for _ in range(10):
            client.turn(0.1)
        assert not link.remote_target.address
    finally:
        service.signal_database(signal.SIGCONT)
    client.until(lambda: link.remote_target.address == "later", link)
    assert client.outcome(client.post(link, "first")) == 0x24
    client.close()
    with psycopg.connect(running_url(service.data_dir)) as connection:
        assert connection.execute(b"select count(*) from coordinator.half").fetchone() == (1,)
