"""What one client does costs another nothing it would notice: a neighbour commits, and no instance is given up."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from store.embedded.running import running_url
from store.tables import SCHEMA
from tests.acceptance.neighbour import neighbour
from tests.benchmarks import neighbours
from tests.fix_service import PATIENCE, Service, running_service
from tests.wire.frames import SASL_HEADER, Accepted, Declare, Declared, Discharge, Target
from tests.wire.messages import data
from tests.wire.peer import Peer
from tests.wire.types import Symbol
from tests.workers import pid_of_worker


@pytest.fixture
def lone() -> Iterator[Service]:
    """A service whose every transaction is old enough for the store's list."""
    with running_service({"bounds.register_after_seconds": "0.05"}) as service:
        yield service


@pytest.mark.rule("S5", "H4")
def test_attacks() -> None:
    """For 20 s each with COORDINATOR_TEST_ATTACK_SECONDS=20; how long the neighbour waits is a benchmark's."""
    seconds = float(os.environ.get("COORDINATOR_TEST_ATTACK_SECONDS", "1"))
    with running_service() as service:
        for attack in neighbours.ATTACKS.values():
            with neighbour(service):
                assert attack(service, seconds, threading.Event())


def _count(service: Service, table: str) -> int:
    with psycopg.connect(running_url(service.data_dir)) as connection:
        row = connection.execute(f"select count(*) from {SCHEMA}.{table}".encode()).fetchone()
        assert row is not None
        return int(row[0])


@pytest.mark.rule("S5", "T35")
def test_many_undecided_transactions(lone: Service) -> None:
    """Empty ones are in no list; those with work are, many at a time, until they are decided."""
    peer = Peer(lone.port)
    peer.open()
    session = peer.begin()
    with neighbour(lone):
        ids = []
        for _ in range(4):
            control = session.control()
            sent = [control.request(Declare()) for _ in range(800)]
            states = [control.answer_to(number).state for number in sent]
            ids += [state.txn_id for state in states if isinstance(state, Declared)]
        assert len(ids) == 3200
        time.sleep(1.0)
        assert _count(lone, "txn") == 0
        sender = session.sender("work")
        for txn in ids:
            sender.post(data(b"x"), txn=txn, settled=True)
        _wait_for(lambda: _count(lone, "txn") == len(ids))
        sent = [control.request(Discharge(txn_id=txn, fail=number % 2 == 1)) for number, txn in enumerate(ids)]
        assert all(control.answer_to(number).state == Accepted() for number in sent)
        assert _count(lone, "txn") == 0
    peer.close_socket()


@pytest.mark.rule("S5", "D1")
def test_a_topic_with_many_subscriptions(lone: Service) -> None:
    """A message there is as many rows as there are subscriptions: a batch takes few of them."""
    groups, posts = 100, 300
    peer = Peer(lone.port)
    peer.open()
    session = peer.begin()
    wide = Target(address="wide", capabilities=(Symbol("topic"),))
    sender = session.sender(wide)
    with psycopg.connect(running_url(lone.data_dir)) as connection:
        connection.execute(
            f"insert into {SCHEMA}.consumer_group (address_id, name) "
            f"select id, 'g' || i from {SCHEMA}.address, generate_series(1, {groups}) i where name = 'wide'".encode()
        )
        connection.execute(b"select pg_notify('coordinator_address', 'wide')")
    with neighbour(lone):
        sent = [sender.post(data(b"x")) for _ in range(posts)]
        assert all(sender.answer_to(number).state == Accepted() for number in sent)
    with psycopg.connect(running_url(lone.data_dir)) as connection:
        row = connection.execute(
            f"select count(*) filter (where n > {groups + 2000}), sum(n) from (select count(*) as n "
            f"from {SCHEMA}.half join {SCHEMA}.entry e on e.half_id = half.id group by written_xid) b".encode()
        ).fetchone()
    assert row is not None
    assert row[0] == 0
    assert row[1] >= groups * posts
    peer.close_socket()


#: More than one turn may take, and fewer than wait in the kernel.
_NEW = 1000
#: Questions of one who is in already, one after the other, until all of these are answered: with 64 in a turn, 8.
_BESIDE = 9


@pytest.mark.rule("S5")
def test_many_who_connect_at_once() -> None:
    """They have all come when the worker takes the first."""
    with running_service({"bounds.connections_unopened": str(2 * _NEW)}) as service, contextlib.ExitStack() as sockets:
        peer = Peer(service.port)
        peer.open()
        session = peer.begin()
        pid = pid_of_worker(service)
        os.kill(pid, signal.SIGSTOP)
        try:
            for _ in range(_NEW):
                new = sockets.enter_context(socket.create_connection(("127.0.0.1", service.port), PATIENCE))
                new.sendall(SASL_HEADER)
        finally:
            os.kill(pid, signal.SIGCONT)
        done = 0
        answered = select.poll()  # their descriptors may be too high for select
        answered.register(new, select.POLLIN)
        while not answered.poll(0):
            session.sync()
            done += 1
        assert done > _BESIDE


def _wait_for(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
