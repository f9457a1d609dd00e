"""Two workers on one port and one store."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from proton import Message

from store.embedded.running import running_url
from store.ids import id_at
from store.tables import SCHEMA
from tests.acceptance.engine_client import Client, Lost
from tests.acceptance.history import Consumer, History, Mover, Producer, Worker, decisions, left
from tests.fix_service import PATIENCE, Service, running_service
from tests.workers import pids_of_workers, worker_of


@pytest.fixture(scope="module")
def both() -> Iterator[Service]:
    """For tests that leave the workers alive."""
    with running_service({"workers": "2"}) as service:
        yield service


@pytest.fixture
def two() -> Iterator[Service]:
    """For tests that kill them."""
    with running_service({"workers": "2"}) as service:
        yield service


def _one_each(service: Service, pids: dict[int, int]) -> dict[int, Client]:
    """A client at each worker: the kernel deals connections out."""
    clients: dict[int, Client] = {}
    deadline = time.monotonic() + PATIENCE
    for attempt in itertools.count():
        assert time.monotonic() < deadline, f"all connections went to the workers {clients.keys()}"
        client = Client(service.port, f"client-{attempt}")
        client.control  # noqa: B018 - the worker has accepted the connection when it answers
        number = worker_of(client.socket, pids)
        if number is None or number in clients:
            client.close()
        else:
            clients[number] = client
        if len(clients) == 2:
            break
    return clients


def test_what_is_posted_at_one_is_delivered_at_the_other(both: Service) -> None:
    clients = _one_each(both, pids_of_workers(both))
    receiver = clients[1].receiver("one-by-one", 10)
    sender = clients[0].sender("one-by-one")
    # each only after the one before was taken: it is the notice that brings it, and no look at the store by chance
    for number in range(20):
        txn = clients[0].declare()
        clients[0].post(sender, f"m{number}", txn=txn)
        assert clients[0].discharge(txn, fail=False).accepted
        taken = clients[1].receive(receiver)
        assert taken.body == f"m{number}"
        clients[1].accept(taken)
        receiver.flow(1)
    for client in clients.values():
        client.close()


@pytest.mark.rule("T11")
def test_the_outcome_is_known_at_the_other(both: Service) -> None:
    clients = _one_each(both, pids_of_workers(both))
    sender = clients[0].sender("outcomes")
    txn = clients[0].declare()
    clients[0].post(sender, "m", txn=txn)
    assert clients[0].discharge(txn, fail=False).accepted
    assert clients[1].discharge(txn, fail=False).accepted
    assert clients[1].discharge(txn, fail=True).condition == "amqp:illegal-state"
    for client in clients.values():
        client.close()


@pytest.mark.rule("D5")
def test_what_a_slower_clock_has_stamped_comes_while_a_backlog_is_read(both: Service) -> None:
    """Ids tell the time of their instance: this one lies minutes before all that waits, and no notice names it."""
    clients = _one_each(both, pids_of_workers(both))
    sender, receiver = clients[0].sender("backlog"), clients[1].receiver("backlog", 10)
    posted = itertools.count()

    def go_on(count: int) -> set[object]:
        """So many more are posted, and as many taken: the backlog stays."""
        for _ in range(count):
            clients[0].post(sender, f"m{next(posted)}", settled=True)
        clients[0].turn(0)
        found: set[object] = set()
        for _ in range(count):
            taken = clients[1].receive(receiver)
            clients[1].accept(taken)
            receiver.flow(1)
            found.add(taken.body)
        return found

    for _ in range(100):
        assert clients[0].outcome(clients[0].post(sender, f"m{next(posted)}")) == 0x24
    go_on(50)
    late = id_at(datetime.now(UTC) - timedelta(minutes=3))
    with psycopg.connect(running_url(both.data_dir)) as store:
        store.execute(
            f"""with there as (
                  insert into {SCHEMA}.half (id, address_id, message)
                  select {late}, id, %s from {SCHEMA}.address where name = 'backlog' returning id, address_id)
                insert into {SCHEMA}.entry (group_id, id, half_id)
                select g.id, t.id, t.id from there t join {SCHEMA}.consumer_group g using (address_id)""".encode(),
            [Message(body="late").encode()],
        )
    deadline = time.monotonic() + PATIENCE
    while "late" not in go_on(5):
        assert time.monotonic() < deadline, "all that is newer goes first"
    for client in clients.values():
        client.close()


@pytest.mark.rule("D5", "H13")
def test_a_killed_worker_gives_back_what_it_held_and_the_other_goes_on(two: Service) -> None:
    pids = pids_of_workers(two)
    clients = _one_each(two, pids)
    dying, living = clients[0], clients[1]
    sender = living.sender("orders")
    for number in range(20):
        assert living.outcome(living.post(sender, f"m{number}")) == 0x24
    held = dying.receiver("orders", 10)
    taken = [dying.receive(held) for _ in range(10)]
    assert [each.body for each in taken] == [f"m{number}" for number in range(10)]
    txn = dying.declare()
    dying.retire(taken[0], txn)
    receiver = living.receiver("orders", 100)
    assert [living.receive(receiver).body for _ in range(10)] == [f"m{number}" for number in range(10, 20)]
    seen = len(two.log_lines())
    os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(Lost):
        dying.until(lambda: False)
    # the other goes on meanwhile
    again = living.declare()
    living.post(sender, "after", txn=again)
    assert living.discharge(again, fail=False).accepted
    back = [living.receive(receiver) for _ in range(11)]
    assert sorted(str(each.body) for each in back) == sorted(["after", *(f"m{number}" for number in range(10))])
    counts = {each.body: each.message.delivery_count for each in back}
    assert counts.pop("after") == 0
    assert set(counts.values()) == {1}
    assert pids_of_workers(two, seen, 1).keys() == {0}
    living.close()


@pytest.mark.rule("D5")
def test_competing_consumers_at_both_get_each_message_once(both: Service) -> None:
    count = 2000
    clients = _one_each(both, pids_of_workers(both))
    senders = {number: client.sender("competing") for number, client in clients.items()}
    got: Counter[str] = Counter()
    by: Counter[int] = Counter()
    lock = threading.Lock()

    def consume(number: int, client: Client) -> None:
        receiver = client.receiver("competing", 50)
        while True:
            taken = client.receive(receiver)
            with lock:
                if taken.body == "end":
                    client.accept(taken)
                    client.close()
                    return
                got[str(taken.body)] += 1
                by[number] += 1
            client.accept(taken)
            receiver.flow(1)

    consumers = [
        threading.Thread(target=consume, args=(number, Client(both.port, f"consumer-{number}")), daemon=True)
        for number in range(6)
    ]
    for thread in consumers:
        thread.start()
    for number in range(count):
        clients[number % 2].post(senders[number % 2], f"m{number}", settled=True)
    deadline = time.monotonic() + PATIENCE
    while len(got) < count:
        assert time.monotonic() < deadline, f"{len(got)} of {count}"
        for client in clients.values():
            client.turn(0.01)
    for _ in consumers:
        clients[0].post(senders[0], "end")
    clients[0].turn(0)
    for thread in consumers:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert set(got.values()) == {1}
    assert len(by) > 1
    for client in clients.values():
        client.close()


@pytest.mark.rule("T8", "T11", "H4", "H5", "H13")
def test_workers_killed_in_turn_under_load(two: Service) -> None:
    history = History()
    kinds: list[type[Worker]] = [Producer, Producer, Producer, Consumer, Consumer, Mover]
    load = [kind(history, lambda: two.port, f"{kind.__name__}-{n}", n) for n, kind in enumerate(kinds)]
    for worker in load:
        worker.start()
    for kill in range(8):
        time.sleep(0.5)
        pids = pids_of_workers(two)
        seen = len(two.log_lines())
        history.kills += 1
        ended = [line for line in two.log_lines() if line.get("event") == "worker ended" and line["status"] != -9]
        assert not ended, "\n".join(map(str, two.log_lines()))
        os.kill(pids[kill % 2], signal.SIGKILL)
        pids_of_workers(two, seen, 1)
    time.sleep(0.5)
    history.stopping = True
    for thread in load:
        thread.join(PATIENCE)
        assert not thread.is_alive(), thread.name
    client = Client(two.port, "end")
    for thread in load:
        thread.resolve(client)
    url = running_url(two.data_dir)
    there = left(client, url)
    client.close()
    found = history.violations(there, decisions(url))
    assert not found, "\n".join(found)
    with psycopg.connect(url) as connection:
        assert connection.execute(f"select count(*) from {SCHEMA}.txn".encode()).fetchone() == (0,)
