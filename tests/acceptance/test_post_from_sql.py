"""Messages that applications post in their own SQL transactions (X2), as clients get them from a service."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest
from psycopg.types.json import Jsonb

from store.embedded.running import running_url
from store.locks import ROW_OF
from tests.fix_application import Application, post
from tests.fix_service import PATIENCE, Service, running_service
from tests.fix_wire import Ask, Begin, BeginAt
from tests.wire.frames import Accepted, Source
from tests.wire.links import Delivery, Receiver
from tests.wire.messages import APPLICATION_PROPERTIES, VALUE, Properties, data, section
from tests.wire.queues import browse
from tests.wire.queues import post as post_over_the_wire
from tests.wire.types import Symbol

pytestmark = pytest.mark.rule("X2")

#: Of a commit that takes long: older than what a look of the schedule looks back for.
LATE = "10 minutes"


@pytest.fixture(scope="module", params=["1", "2"], ids=["one-worker", "two-workers"])
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    """One worker reads by ranges of ids, two lease row by row."""
    with running_service({"workers": request.param}) as service:
        yield service


def bodies(receiver: Receiver, count: int) -> list[object]:
    found: list[Delivery] = receiver.take_many(count)
    for delivery in found:
        delivery.disposition(Accepted())
    return [delivery.body for delivery in found]


def made(service: Service, address: str, *options: str) -> str:
    service.cli("address", "add", address, *options)
    return address


def test_it_comes_when_and_only_if_its_transaction_commits(
    service: Service, begin: Begin, address: str, beside: Application, ask: Ask
) -> None:
    session = begin()
    consumer = session.receiver(made(service, address), credit=10)
    post(beside, address, "rolled back")
    beside.rollback()
    post(beside, address, "tea")
    session.sync()
    assert browse(session, address) == []
    assert not consumer.arrived
    beside.commit()
    found = consumer.take()
    assert found.message.bare == section(VALUE, "tea")
    assert (found.message.header.durable, found.count) == (True, 0)
    found.disposition(Accepted())
    session.sync()
    assert not consumer.arrived
    states = "select state from coordinator.messages where address = %s"
    deadline = time.monotonic() + PATIENCE
    while ask(states, address) != [("acked",)]:
        assert time.monotonic() < deadline, ask(states, address)


def test_a_transaction_that_commits_late_is_not_passed_over(
    service: Service, begin: Begin, address: str, beside: Application
) -> None:
    """Meanwhile others post, in SQL and over the wire, and what they post is consumed."""
    session = begin()
    consumer = session.receiver(made(service, address), credit=100)
    post(beside, address, "early")
    with psycopg.connect(running_url(service.data_dir)) as other:
        for number in range(10):
            post(other, address, f"sql {number}")
            other.commit()
            post_over_the_wire(session, address, b"wire %d" % number)
            assert sorted(map(str, bodies(consumer, 2))) == sorted([f"sql {number}", str(b"wire %d" % number)])
    post(beside, address, "late")
    assert not consumer.arrived
    beside.commit()
    assert bodies(consumer, 2) == ["early", "late"]


@pytest.mark.parametrize("noticed", [True, False], ids=["noticed", "not-noticed"])
def test_a_commit_that_takes_long_is_found(
    service: Service, begin: Begin, address: str, beside: Application, noticed: bool
) -> None:
    """Its entries are as old as if the commit had waited so long for the disk or for a standby; the notice of it may
    be lost, too.
    """
    session = begin()
    consumer = session.receiver(made(service, address), credit=100)
    with psycopg.connect(running_url(service.data_dir)) as other:
        post(other, address, "2")
        other.commit()
    assert bodies(consumer, 1) == ["2"]
    row = beside.execute("select pg_get_functiondef('coordinator.send_outbox'::regproc)").fetchone()
    assert row is not None
    slow = row[0].replace("clock_timestamp();", f"clock_timestamp() - interval '{LATE}';")
    slow = slow.replace("due := greatest(clock_timestamp(), ", "due := greatest(due, ")
    assert slow.count(LATE) == 2, "of the notice, and of the entries"
    beside.execute(slow if noticed else slow.replace("perform pg_notify", "perform concat"))
    post(beside, address, "1")
    beside.commit()
    beside.execute(row[0])
    beside.commit()
    assert bodies(consumer, 1) == ["1"]


def test_of_two_that_are_open_at_once_each_stays_in_order(
    service: Service, begin: Begin, address: str, beside: Application
) -> None:
    consumer = begin().receiver(made(service, address), credit=100)
    with psycopg.connect(running_url(service.data_dir)) as other:
        for number in range(3):
            post(beside, address, f"slow {number}")
            post(other, address, f"fast {number}")
        other.commit()
        assert bodies(consumer, 3) == [f"fast {number}" for number in range(3)]
    beside.commit()
    assert bodies(consumer, 3) == [f"slow {number}" for number in range(3)]


def test_many_in_one_transaction_come_in_order(
    service: Service, begin: Begin, address: str, beside: Application
) -> None:
    consumer = begin().receiver(made(service, address), credit=2000)
    beside.execute("select coordinator.post(%s, n::text) from generate_series(1, 2000) n", [address])
    beside.commit()
    assert bodies(consumer, 2000) == [str(number) for number in range(1, 2001)]


def test_the_turn_of_another_that_does_nothing_with_it_is_passed_over(
    service: Service, begin: Begin, address: str, beside: Application
) -> None:
    """As a process that is stopped does."""
    consumer = begin().receiver(made(service, address), credit=1000)
    with psycopg.connect(running_url(service.data_dir)) as other:
        other.execute(f"select {ROW_OF['places']} for update".encode())
        beside.execute("select coordinator.post(%s, n::text) from generate_series(1, 500) n", [address])
        beside.commit()
        assert sorted(map(str, bodies(consumer, 500))) == sorted(str(number) for number in range(1, 501))


def test_all_that_a_message_says_of_its_delivery_counts(
    service: Service, begin: Begin, address: str, beside: Application
) -> None:
    """Priority, ttl, delay, and the annotations of JSON."""
    session = begin()
    made(service, address)
    started = time.time()
    post(beside, address, "later", delay=timedelta(seconds=2))
    post(beside, address, "gone", ttl=timedelta(milliseconds=1))
    post(beside, address, "low", priority=1)
    post(beside, address, Jsonb({"item": "tea"}), priority=8, headers=Jsonb({"colour": "red"}))
    beside.commit()
    time.sleep(0.5)
    consumer = session.receiver(address, credit=10)
    first, second = consumer.take_many(2)
    sections = {each.code: each.value for each in first.message.sections}
    assert first.body == b'{"item": "tea"}'
    assert (first.message.header.priority, sections[APPLICATION_PROPERTIES]) == (8, {"colour": "red"})
    assert second.body == "low"
    for each in (first, second):
        each.disposition(Accepted())
    assert bodies(consumer, 1) == ["later"]
    assert time.time() >= started + 2


def test_a_topic_gives_it_to_each_subscription(
    service: Service, begin: Begin, address: str, beside: Application
) -> None:
    made(service, address, "--topic")
    session = begin()
    source = Source(address=address, capabilities=(Symbol("topic"),))
    consumers = [session.receiver(source, credit=10) for _ in range(2)]
    post(beside, address, b"news")
    beside.commit()
    assert [bodies(each, 1) for each in consumers] == [[b"news"], [b"news"]]


def test_a_message_group_keeps_its_order_and_is_the_group_of_clients_too(
    service: Service, begin: Begin, address: str, beside: Application
) -> None:
    made(service, address, "--kind", "fifo")
    session = begin()
    for number in range(3):
        post(beside, address, f"sql {number}", group_id="g")
        beside.commit()
    holder = session.receiver(address, credit=4)
    held = holder.take_many(3)
    assert [each.body for each in held] == ["sql 0", "sql 1", "sql 2"]
    other = begin().receiver(address, credit=10)
    properties = section(Properties.CODE, [None] * 10 + ["g"])
    assert session.sender(address).outcome(properties + data(b"wire")) == Accepted()
    post(beside, address, "other", group_id="other")
    beside.commit()
    assert sorted(map(str, [*bodies(other, 1), *bodies(holder, 1)])) == sorted(["other", str(b"wire")])
    assert other.session.peer is not session.peer


def test_while_no_service_runs_posts_go_on_and_none_is_lost(
    database_url: str, begin_at: BeginAt, address: str, application: Application
) -> None:
    with running_service({"database_url": database_url}) as service:
        made(service, address)
        post(application, address, "1")
        application.commit()
        service.kill()
        for body in ("2", "3"):
            post(application, address, body)
            application.commit()
        post(application, address, "4")
        service.restart()
        consumer = begin_at(service).receiver(address, credit=10)
        assert bodies(consumer, 3) == ["1", "2", "3"]
        application.commit()
        assert bodies(consumer, 1) == ["4"]


def test_a_large_body_goes_through(service: Service, begin: Begin, address: str, beside: Application) -> None:
    """Larger than what a service keeps in memory."""
    body = random.Random(1).randbytes(5 << 20)
    consumer = begin().receiver(made(service, address), credit=10)
    post(beside, address, body)
    post(beside, address, "small")
    beside.commit()
    assert [each == body for each in bodies(consumer, 2)] == [True, False]
