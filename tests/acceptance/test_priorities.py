"""Priorities (part 3, section 3.2.1; rule P17), and the counts that the header carries (D6)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.embedded.running import running_url
from tests.fix_service import PATIENCE, Service, running_service
from tests.fix_wire import Begin, BeginAt
from tests.wire.frames import Accepted, Modified, Released, Source
from tests.wire.links import Delivery, Sender
from tests.wire.messages import VALUE, Header, section
from tests.wire.queues import select
from tests.wire.types import Int

pytestmark = pytest.mark.rule("P17")


def message(number: int, priority: int | None = None) -> bytes:
    """With ``number`` for a body; no priority: no header."""
    body = section(VALUE, Int(number))
    return body if priority is None else section(Header.CODE, Header(priority=priority).described().value) + body


def post(sender: Sender, *priorities: int | None, first: int = 0) -> None:
    """Number them, from ``first`` on."""
    sent = [sender.post(message(first + number, priority)) for number, priority in enumerate(priorities)]
    for delivery in sent:
        assert sender.answer_to(delivery).state == Accepted()


def numbers(deliveries: list[Delivery]) -> list[Any]:
    return [delivery.body for delivery in deliveries]


def test_higher_first_and_in_order_of_commit(begin: Begin, address: str) -> None:
    """A message that does not say has priority 4."""
    session = begin()
    post(session.sender(address), 4, 9, 0, None, 5, 9, 3, 4, 255, 0)
    assert session.receiver(address).bodies() == [8, 1, 5, 4, 0, 3, 7, 6, 2, 9]


def test_urgent_ones_overtake_what_waits_for_credit(begin: Begin, address: str) -> None:
    session = begin()
    consumer = session.receiver(address)
    sender = session.sender(address)
    post(sender, 4, 4, 2)
    assert numbers(consumer.take_many(1)) == [0]
    post(sender, 7, first=3)
    post(sender, 4, first=4)
    assert numbers(consumer.take_many(1)) == [3]
    post(sender, 8, 1, 3, first=5)
    assert numbers(consumer.drain()) == [5, 1, 4, 7, 2, 6]


def test_in_the_order_of_the_commits(begin: Begin, address: str) -> None:
    session = begin()
    control, sender = session.control(), session.sender(address)
    first, second = control.declare(), control.declare()
    sender.post(message(1, 5), txn=first)
    sender.post(message(2, 5), txn=second)
    sender.post(message(3, 9), txn=first)
    control.commit(second)
    control.commit(first)
    assert session.receiver(address).bodies() == [3, 2, 1]


def test_past_a_long_queue(begin: Begin, address: str) -> None:
    """The window of the queue is full and more is in the store, of each rank."""
    session = begin()
    sender = session.sender(address)
    post(sender, *[1] * 2200)
    post(sender, *[4] * 2200, first=3000)
    consumer = session.receiver(address)
    assert numbers(consumer.take_many(2)) == [3000, 3001]
    post(sender, *[6] * 2200, first=6000)
    post(sender, 9, first=9000)
    found = numbers(consumer.take_many(2201))
    assert found == [9000, *range(6000, 8200)]
    assert numbers(consumer.take_many(2198)) == list(range(3002, 5200))
    assert numbers(consumer.take_many(2200)) == list(range(2200))


def test_what_comes_back_takes_its_place(begin: Begin, address: str) -> None:
    session = begin()
    post(session.sender(address), 9, 6, 6, 4)
    consumer = session.receiver(address)
    high, first, second, last = consumer.take_many(4)
    high.disposition(Modified(delivery_failed=True), settled=False)
    high.settlement()  # it is back when the store has its count
    for delivery in (last, second, first):
        delivery.disposition(Released())
    found = consumer.drain()
    assert numbers(found) == [0, 1, 2, 3]
    assert [(each.count, each.message.header.first_acquirer) for each in found] == [
        (1, False),
        (0, False),
        (0, False),
        (0, False),
    ]


def test_an_urgent_one_that_is_refused_holds_up_no_other(begin: Begin, address: str) -> None:
    session = begin()
    post(session.sender(address), 9, 4)
    consumer, other = session.receiver(address, credit=1), session.receiver(address)
    consumer.take().disposition(Modified(undeliverable_here=True))
    assert numbers(consumer.drain()) == [1]
    assert numbers(other.drain()) == [0]


def test_browsers_and_consumers_that_choose(begin: Begin, address: str) -> None:
    session = begin()
    sender = session.sender(address)
    post(sender, 4, 8, 2, 9, 4, 8)
    browser = session.receiver(Source(address=address, distribution_mode="copy"), credit=100)
    assert numbers([browser.take() for _ in range(6)]) == [3, 1, 5, 0, 4, 2]
    post(sender, 9, 1, 4, 3, first=6)  # it goes on with what it has not seen
    assert sorted(numbers([browser.take() for _ in range(4)])) == [6, 7, 8, 9]
    assert numbers(browser.drain()) == []
    browser.detach()
    chooser = select(session, address, "JMSPriority <> 8")
    assert numbers(chooser.take_many(2)) == [3, 6]
    post(sender, 7, first=10)
    assert numbers(chooser.drain()) == [10, 0, 4, 8, 9, 2, 7]
    assert session.receiver(address).bodies() == [1, 5]


@pytest.fixture
def own() -> Iterator[Service]:
    with running_service() as service:
        yield service


def _all_given_back(service: Service) -> None:
    """Killed before that, it could not tell what was sent from what it had read ahead."""
    given_back = (
        "select exists (select from coordinator.entry where attempts = 1)"
        " and not exists (select from coordinator.group_read where read_through > 0)"
    )
    deadline = time.monotonic() + PATIENCE
    with psycopg.connect(running_url(service.data_dir), autocommit=True) as connection:
        while connection.execute(given_back).fetchone() != (True,):
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.rule("D6")
def test_over_a_kill(own: Service, begin_at: BeginAt) -> None:
    """A sent message counts a failed delivery, one given back has been acquired, all others are as posted."""
    consumer = begin_at(own).receiver("jobs")
    post(consumer.session.sender("jobs"), 4, 9, 1, 9, 4)
    seen = consumer.take_many(2)
    assert numbers(seen) == [1, 3]
    assert not any(each.count or each.message.header.first_acquirer is False for each in seen)
    seen[1].disposition(Released())
    consumer.detach()  # the other fails; what was given back goes to the store
    _all_given_back(own)
    own.kill()
    own.restart()
    consumer = begin_at(own).receiver("jobs")
    found = consumer.take_many(3)
    assert [(each.body, each.count, each.message.header.first_acquirer is False) for each in found] == [
        (1, 1, True),
        (3, 0, True),
        (0, 0, False),
    ]
    own.kill()
    own.restart()
    found = begin_at(own).receiver("jobs").drain()
    assert [(each.body, each.count, each.message.header.first_acquirer is False) for each in found[:3]] == [
        (1, 2, True),
        (3, 1, True),
        (0, 1, True),
    ]
    assert numbers(found[3:]) == [4, 2]


def test_among_instances(begin_at: BeginAt) -> None:
    """What one worker posts, consumers of both get by priority."""
    with running_service({"workers": "2"}) as service:
        sessions = [begin_at(service) for _ in range(8)]
        for number, session in enumerate(sessions):
            post(session.sender("jobs"), 2, 4, 7, first=10 * number)
        found: list[int] = []
        for session in sessions:
            consumer = session.receiver("jobs")
            taken = consumer.take_many(3)
            for delivery in taken:
                delivery.disposition(Accepted())
            found += numbers(taken)
            consumer.detach()
        assert sorted(found) == sorted(10 * number + each for number in range(8) for each in range(3))
        ranks = [{0: 2, 1: 4, 2: 7}[number % 10] for number in found]
        assert ranks == sorted(ranks, reverse=True)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("post"), st.sampled_from([None, 0, 1, 3, 4, 5, 8, 9])),
        st.tuples(st.sampled_from(["take", "release", "accept"]), st.none()),
    ),
    max_size=30,
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=STEPS)
def test_any_history(begin: Begin, steps: list[tuple[str, int | None]]) -> None:
    """Against a model that is a sorted list."""
    session = begin()
    peer = session.peer
    owner = session.receiver(Source(dynamic=True))
    assert isinstance(owner.answer.source, Source)
    address = owner.answer.source.address
    assert address
    consumer, sender = session.receiver(address), session.sender(address)
    waiting: list[tuple[int, int]] = []
    hands: list[tuple[tuple[int, int], Delivery]] = []
    for number, (step, priority) in enumerate(steps):
        if step == "post":
            post(sender, priority, first=number)
            waiting.append((-(4 if priority is None else priority), number))
            waiting.sort()
        elif step == "take" and waiting:
            delivery = consumer.take()
            assert delivery.body == waiting[0][1]
            hands.append((waiting.pop(0), delivery))
        elif step in ("release", "accept") and hands:
            key, delivery = hands.pop()
            delivery.disposition(Released() if step == "release" else Accepted(), settled=False)
            delivery.settlement()
            if step == "release":
                waiting.append(key)
                waiting.sort()
    assert numbers(consumer.drain()) == [number for _, number in waiting]
    peer.close()
