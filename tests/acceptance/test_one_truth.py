"""A transaction is decided once, in the store: every instance gives the same answer, whatever happens (T11)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from store.embedded.running import running_url
from store.tables import SCHEMA
from tests.acceptance.engine_client import Client
from tests.fix_service import PATIENCE, Service, running_service
from tests.workers import pids_of_workers, worker_of

ROLLBACK = "amqp:transaction:rollback"

#: A commit that has written its op and waits: for a slow disk, say, or a standby.
_HELD_AFTER_ITS_OP = f"""
create function public.hold() returns trigger language plpgsql as $$
begin
  perform pg_advisory_xact_lock_shared(77);
  return null;
end $$;
create trigger hold after insert on {SCHEMA}.op for each statement
  when (current_setting('application_name') like 'coordinator batch%') execute function public.hold()
"""


@pytest.fixture
def two() -> Iterator[Service]:
    with running_service({"workers": "2"}) as service:
        yield service


@pytest.fixture
def store(two: Service) -> Iterator[psycopg.Connection]:
    with psycopg.connect(running_url(two.data_dir), autocommit=True) as connection:
        yield connection


#: Gives a client at the worker of that number.
At = Callable[[int], Client]


@pytest.fixture
def at(two: Service) -> Iterator[At]:
    """The kernel deals connections out: as many are made as it takes."""
    clients: list[Client] = []

    def connect(worker: int) -> Client:
        pids = pids_of_workers(two)
        deadline = time.monotonic() + PATIENCE
        while True:
            assert time.monotonic() < deadline, f"no connection went to worker {worker}"
            client = Client(two.port, f"client-{len(clients)}")
            clients.append(client)
            client.control  # noqa: B018 - the worker has accepted the connection when it answers
            if worker_of(client.socket, pids) == worker:
                return client

    yield connect
    for client in clients:
        client.cut()


def _wait(store: psycopg.Connection, question: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while store.execute(f"select {question}".encode()).fetchone() != (True,):
        assert time.monotonic() < deadline, question
        time.sleep(0.01)


_A_BATCH_WAITS = (
    "exists (select from pg_stat_activity where application_name like 'coordinator batch%' "
    "and wait_event_type = 'Lock')"
)


@pytest.mark.rule("T11", "T12")
@pytest.mark.parametrize("where", ["other worker", "same worker"])
@pytest.mark.parametrize("held", ["before its op", "after its op"])
def test_a_commit_that_is_held_up_and_asked_for_elsewhere_has_one_answer(
    two: Service, at: At, store: psycopg.Connection, where: str, held: str
) -> None:
    client = at(0)
    other = at(1 if where == "other worker" else 0)
    sender = client.sender("orders")
    txn = client.declare()
    client.post(sender, "m", txn=txn)
    with psycopg.connect(running_url(two.data_dir)) as blocker:
        if held == "after its op":
            store.execute(_HELD_AFTER_ITS_OP.encode())
            blocker.execute(b"select pg_advisory_xact_lock(77)")
        else:
            blocker.execute(f"lock table {SCHEMA}.half in exclusive mode".encode())
        client.ask_discharge(txn, fail=False)
        client.turn(0)
        _wait(store, _A_BATCH_WAITS)
        client.cut()
        asked = other.ask_discharge(txn, fail=False)
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            other.turn(0.05)
    first = other.answer_of(asked)
    if held == "after its op" or where == "same worker":
        assert first.accepted
    else:  # it was asked for before its commit had a place in the store
        assert first.condition == ROLLBACK
    _wait(store, f"not {_A_BATCH_WAITS}")
    again = other.discharge(txn, fail=False)
    assert (again.accepted, again.condition) == (first.accepted, first.condition)
    found = store.execute(
        f"select decision, (select count(*) from {SCHEMA}.half)::int from {SCHEMA}.op".encode()
    ).fetchall()
    assert found == [("commit", 1) if first.accepted else ("rollback", 0)]


@pytest.mark.rule("T11", "H13")
def test_a_worker_that_was_given_up_in_its_sleep_commits_nothing(
    two: Service, at: At, store: psycopg.Connection
) -> None:
    pids = pids_of_workers(two)
    client, other = at(0), at(1)
    sender = client.sender("orders")
    client.outcome(client.post(sender, "before"))
    txn, unasked = client.declare(), client.declare()
    for each in (txn, unasked):
        client.post(sender, "m", txn=each)
    seen = len(two.log_lines())
    os.kill(pids[0], signal.SIGSTOP)
    try:
        for each in (txn, unasked):
            client.ask_discharge(each, fail=False)
        client.turn(0)
        assert other.discharge(txn, fail=False).condition == ROLLBACK
        _wait(store, f"exists (select from {SCHEMA}.instance where ended_at is not null)")
    finally:
        os.kill(pids[0], signal.SIGCONT)
    two.wait_for(lambda line: line.get("event") == "worker ended" and line.get("worker") == 0, since=seen)
    for each in (txn, unasked):
        assert other.discharge(each, fail=False).condition == ROLLBACK
        assert other.discharge(each, fail=True).accepted
    assert store.execute(f"select count(*) from {SCHEMA}.half".encode()).fetchone() == (1,)
    assert store.execute(f"select distinct decision from {SCHEMA}.op".encode()).fetchall() == [("rollback",)]


@pytest.mark.rule("T11", "T12")
def test_an_undecided_transaction_asked_for_from_another_connection_is_rolled_back(
    at: At, store: psycopg.Connection
) -> None:
    client = at(0)
    sender = client.sender("orders")
    for worker in (0, 1):
        other = at(worker)
        txn = client.declare()
        client.post(sender, "m", txn=txn)
        refused = other.discharge(txn, fail=False)
        assert refused.condition == ROLLBACK
        assert other.discharge(txn, fail=True).accepted
        heard = client.discharge(txn, fail=False)
        assert heard.condition == ROLLBACK
        found = store.execute(f"select decision, reason from {SCHEMA}.op where id = %s".encode(), (txn.hex(),))
        assert found.fetchall() == [("rollback", "asked")]
    assert store.execute(f"select count(*) from {SCHEMA}.half".encode()).fetchone() == (0,)


@pytest.mark.rule("T11")
def test_retirements_that_the_store_refuses_are_remembered_as_rolled_back(at: At, store: psycopg.Connection) -> None:
    client = at(0)
    receiver = client.receiver("orders", 1)
    client.outcome(client.post(client.sender("orders"), "m"))
    taken = client.receive(receiver)
    txn = client.declare()
    client.retire(taken, txn)
    store.execute(f"update {SCHEMA}.entry set lease = 99".encode())
    assert client.discharge(txn, fail=False).condition == ROLLBACK
    found = store.execute(f"select decision, reason from {SCHEMA}.op where id = %s".encode(), (txn.hex(),))
    assert found.fetchall() == [("rollback", "store-refused")]
    assert client.discharge(txn, fail=False).condition == ROLLBACK
    assert client.discharge(txn, fail=True).accepted
