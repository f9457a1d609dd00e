"""Subscriptions and dynamic nodes end while SQL transactions of applications that post to them are open, or are long at
work in their commits: nothing of the service waits, and what has ended gets no message more (X2, X3).
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator

import psycopg
import pytest

from store.embedded.running import running_url
from tests.acceptance.subscribers import begin, lasting, poster
from tests.fix_application import Application, committing, neighbour_goes_on
from tests.fix_application import post as post_in_sql
from tests.fix_service import PATIENCE, Service, running_service
from tests.fix_wire import Ask, DialTo
from tests.wire.checkable import accept, in_group
from tests.wire.frames import Accepted, Source
from tests.wire.links import Receiver
from tests.wire.messages import data
from tests.wire.peer import Session
from tests.wire.queues import post
from tests.workers import pids_of_workers

pytestmark = pytest.mark.rule("X2", "X3")

GROUPS = """select g.name from coordinator.consumer_group g join coordinator.address a on a.id = g.address_id
             where a.name = %s"""
ADDRESSES = "select from coordinator.address where name = %s"
WITHOUT_GROUP = """select from coordinator.entry e
                    where not exists (select from coordinator.consumer_group g where g.id = e.group_id)"""


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """Two workers: a client that comes again may come to the other."""
    with running_service({"workers": "2"}) as service:
        yield service


def _wait(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _dynamic(session: Session) -> tuple[Receiver, str]:
    owner = session.receiver(Source(dynamic=True))
    assert isinstance(owner.answer.source, Source)
    name = owner.answer.source.address
    assert isinstance(name, str)
    return owner, name


def test_nothing_waits_for_one_that_is_open(service: Service, dial_to: DialTo, address: str, ask: Ask) -> None:
    """And what has ended is removed at once."""
    sender = poster(dial_to, address)
    session = begin(dial_to, 0, "c")
    subscription = lasting(session, address, "news")
    owner, dynamic = _dynamic(session)
    control = in_group(begin(dial_to, 1, "d"))
    txn = control.declare()
    accept(control.session.sender(dynamic), b"1", txn)
    assert sender.outcome(data(b"1")) == Accepted()
    with psycopg.connect(running_url(service.data_dir)) as application:
        application.execute("select coordinator.discharge(%s)", [uuid.UUID(bytes=txn)])
        post_in_sql(application, address, "sql")
        assert (subscription.detach().error, owner.detach().error) == (None, None)
        _wait(lambda: not ask(GROUPS, address) and not ask(ADDRESSES, dynamic))
        assert application.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
        application.rollback()


@pytest.mark.parametrize("again", [0, 1], ids=["at the same worker", "at the other"])
def test_a_subscription_ends_beside_a_commit(
    service: Service, dial_to: DialTo, address: str, ask: Ask, beside: Application, chain: None, again: int
) -> None:
    sender, control = poster(dial_to, address), in_group(begin(dial_to, 0, "d"))
    subscription = lasting(begin(dial_to, 0, "c"), address, "news")
    other = lasting(begin(dial_to, 0, "e"), address, "news")
    returning = begin(dial_to, again, "c")
    txn = control.declare()
    accept(control.session.sender(address), b"in the transaction", txn)
    with committing(service, beside, txn) as ended:
        assert subscription.detach().error is None
        neighbour_goes_on(begin(dial_to, 0, "n"), address)
        assert sender.outcome(data(b"later")) == Accepted()
        assert other.take().body == b"later"
        assert lasting(returning, address, "news").error == "amqp:resource-locked"
        assert (len(ask(GROUPS, address)), ended) == (2, [])
    assert ended == [None]
    assert other.take().body == b"in the transaction"
    _wait(lambda: len(ask(GROUPS, address)) == 1 and not ask(WITHOUT_GROUP))
    anew = lasting(returning, address, "news")
    assert sender.outcome(data(b"new")) == Accepted()
    assert anew.take().body == b"new"
    _wait(lambda: ask("select lasting from coordinator.removed_group order by id desc limit 1") == [(True,)])


def test_a_dynamic_node_ends_beside_a_commit(
    service: Service, dial_to: DialTo, address: str, ask: Ask, beside: Application, chain: None
) -> None:
    control = in_group(begin(dial_to, 0, "d"))
    owner, dynamic = _dynamic(begin(dial_to, 0, "c"))
    txn = control.declare()
    accept(control.session.sender(dynamic), b"1", txn)
    with committing(service, beside, txn) as ended:
        assert owner.detach().error is None
        neighbour = begin(dial_to, 0, "n")
        neighbour_goes_on(neighbour, address)
        assert neighbour.receiver(dynamic).error == "amqp:not-found"
        assert (len(ask(ADDRESSES, dynamic)), ended) == (1, [])
    assert ended == [None]
    _wait(lambda: not ask(ADDRESSES, dynamic) and not ask(WITHOUT_GROUP))


@pytest.mark.rule("D5")
def test_a_worker_is_killed_beside_a_commit(
    service: Service, dial_to: DialTo, address: str, ask: Ask, beside: Application, chain: None
) -> None:
    """It had declared the transaction, and a message: the other gets this at once, and what the commit does not hold is
    removed.
    """
    control = in_group(begin(dial_to, 0, "d"))
    _, free = _dynamic(control.session)
    _, held = _dynamic(control.session)
    txn = control.declare()
    accept(control.session.sender(held), b"1", txn)
    neighbour = begin(dial_to, 1, "n")
    post(control.session, address, b"delivered once")
    assert control.session.receiver(address, credit=1).take().body == b"delivered once"
    pids = pids_of_workers(service)
    with committing(service, beside, txn) as ended:
        os.kill(pids[0], signal.SIGKILL)
        again = neighbour.receiver(address, credit=1).take()
        assert (again.body, again.message.header.delivery_count) == (b"delivered once", 1)
        _wait(lambda: not ask(ADDRESSES, free))
        neighbour_goes_on(neighbour, address)
        assert (len(ask(ADDRESSES, held)), ended) == (1, [])
    assert ended == [None]
    _wait(lambda: not ask(ADDRESSES, held) and not ask(WITHOUT_GROUP))


@pytest.mark.rule("D5")
def test_nothing_is_left_of_a_dynamic_node_whose_entries_are_locked(
    service: Service, dial_to: DialTo, ask: Ask
) -> None:
    """As they are while others return deliveries."""
    session = begin(dial_to, 0, "c")
    owner, dynamic = _dynamic(session)
    sender = session.sender(dynamic)
    for body in (b"1", b"2"):
        assert sender.outcome(data(body)) == Accepted()
    owner.credit(1)
    owner.take()
    with psycopg.connect(running_url(service.data_dir)) as batch:
        locked = """select from coordinator.entry e join coordinator.consumer_group g on g.id = e.group_id
                      join coordinator.address a on a.id = g.address_id where a.name = %s order by e.id desc limit 1
                       for update of e"""
        assert batch.execute(locked, [dynamic]).rowcount == 1
        halves = [half for (half,) in ask("select id from coordinator.half order by id desc limit 2")]
        session.peer.close()
        _wait(lambda: len(ask(WITHOUT_GROUP)) == 1)
    _wait(lambda: not ask(WITHOUT_GROUP))
    by_whom = "select count(*) from coordinator.op where decision = 'purge' and half_ids && %s and instance_id is null"
    assert ask(by_whom, halves) == [(0,)], "the maintenance has swept it"
