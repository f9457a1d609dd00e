"""Message groups on addresses of kind fifo (part 3, section 3.2.4; rules P18 and D3).

The window of the queues is small, so that all of this goes past it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.acceptance.fifo import SETTINGS, WINDOW, by_group, message, numbers, post, post_each, settle
from tests.fix_compiled import BOTH_RULES
from tests.fix_service import Service, running_service
from tests.fix_wire import Begin, BeginAt
from tests.wire.frames import Accepted, Modified, Rejected, Released, Source, State, Target
from tests.wire.messages import MESSAGE_ANNOTATIONS, section
from tests.wire.queues import condition, select
from tests.wire.types import Symbol, Timestamp

pytestmark = [pytest.mark.rule("P18"), *BOTH_RULES]


@pytest.fixture(scope="module")
def service(rules: None) -> Iterator[Service]:
    with running_service(SETTINGS) as service:
        yield service


def test_one_consumer_gets_all_in_order_of_commit(begin: Begin, address: str) -> None:
    """A single consumer gets all; priorities mean nothing."""
    session = begin()
    sender = session.sender(address)
    post(sender, "abc-ab-cabc")
    post_each(sender, *(message(number, "a", priority=number - 5) for number in range(11, 14)))
    assert session.receiver(address).bodies() == list(range(14))


def test_a_group_is_with_one_consumer(begin: Begin, address: str) -> None:
    session = begin()
    post(session.sender(address), "aaabbb-c")
    one, other = session.receiver(address), session.receiver(address)
    (first,) = one.take_many(1)
    assert first.body == 0
    assert numbers(other.drain()) == [3, 4, 5, 6, 7]  # nothing of a
    (second,) = one.take_many(1)
    assert second.body == 1  # the same consumer gets on with it
    settle(Accepted(), first)
    assert numbers(other.drain()) == []  # one is out still
    settle(Accepted(), second)
    assert numbers(other.drain()) == [2]


@pytest.mark.rule("T26")
def test_a_group_goes_on_when_its_link_is_detached(begin: Begin, address: str) -> None:
    """To the next consumer, with what the first had; a transaction in which that is retired then rolls back."""
    session = begin()
    control = session.control()
    post(session.sender(address), "aa")
    one, other = session.receiver(address), session.receiver(address)
    had = one.take()
    one.detach(closed=False)
    txn = control.declare()
    had.retire(txn)
    assert condition(control.discharge(txn)) == "amqp:transaction:rollback"
    assert other.bodies() == [0, 1]


@pytest.mark.rule("P21", "D3")
def test_what_a_consumer_did_and_could_not_tell_lets_the_next_come(begin: Begin, address: str) -> None:
    lost, session = begin(), begin()
    post(session.sender(address), "aaa")
    had = lost.receiver(address).take()
    lost.peer.close_socket()
    receiver = session.receiver(address, unsettled={had.tag: Accepted()})
    assert receiver.bodies() == [1, 2]


def test_groups_are_shared(begin: Begin, address: str) -> None:
    session = begin()
    receivers = [session.receiver(address, credit=10) for _ in range(4)]
    post(session.sender(address), "aabbccdd")
    session.sync()
    while sum(len(receiver.arrived) for receiver in receivers) < 8:
        session.sync()
    got = [{delivery.body // 2 for delivery in receiver.arrived} for receiver in receivers]
    assert sum(map(len, got)) == 4
    assert sum(map(bool, got)) > 1


@pytest.mark.rule("D3")
@pytest.mark.parametrize("stuck", ["from the beginning", "by an unsettled delivery", "by many groups"])
def test_what_lies_behind_a_group_that_waits(begin: Begin, address: str, stuck: str) -> None:
    """Messages behind many windows of others that no consumer takes."""
    session = begin()
    sender = session.sender(address)
    ones = [f"stuck {number}" for number in range(WINDOW // 2 if stuck == "by many groups" else 1)]
    count = 10 * WINDOW // len(ones)
    waits = session.receiver(address)
    if stuck != "from the beginning":
        post_each(sender, *(message(count, one) for one in ones))
        taken = waits.take_many(len(ones))
    post_each(sender, *(message(number, one) for number in range(count) for one in ones))
    if stuck == "from the beginning":
        taken = waits.take_many(10)
    others = [session.receiver(address, credit=5) for _ in range(2)]
    post(sender, "xyzxyz" * 50, first=10_000)
    post_each(sender, message(10_300, None))
    seen: list[int] = []
    while len(seen) < 301:  # whichever of the two they go to
        session.sync()
        for other in others:
            while other.arrived:
                delivery = other.take()
                seen.append(delivery.body)
                settle(Accepted(), delivery)
                other.credit(1)
    for offset in range(3):
        assert [number for number in seen if number < 10_300 and number % 3 == (10_000 + offset) % 3] == list(
            range(10_000 + offset, 10_300, 3)
        )
    assert all(numbers(other.drain()) == [] for other in others)
    for other in others:
        other.detach()
    if stuck == "from the beginning":
        settle(Released(), *reversed(taken))
    else:
        settle(Accepted(), *taken)
    found: list[int] = []
    while len(found) < count * len(ones):
        batch = waits.drain(most=WINDOW)
        found += numbers(batch)
        settle(Accepted(), *batch)
    assert sorted(found) == sorted(list(range(count)) * len(ones))
    # across groups the order is that of the commits only roughly
    assert len(ones) > 1 or found == list(range(count))


@pytest.mark.rule("D3")
@pytest.mark.parametrize("outcome", [Released(), Modified(), Modified(delivery_failed=True)])
def test_what_comes_back_goes_first(begin: Begin, address: str, outcome: State) -> None:
    session = begin()
    sender = session.sender(address)
    post(sender, "aaaaaab")
    consumer, other = session.receiver(address), session.receiver(address)
    taken = consumer.take_many(4)
    settle(Accepted(), taken[1])
    settle(outcome, taken[2])
    settle(outcome, taken[0])
    assert numbers(other.drain()) == [6]
    again = consumer.drain()
    assert numbers(again) == [0, 2, 4, 5]
    assert [each.count for each in again] == [1 if outcome == Modified(delivery_failed=True) else 0] * 2 + [0] * 2
    settle(outcome, *again)
    assert numbers(other.drain()) == []  # number 3 is out still
    settle(outcome, taken[3])
    assert numbers(other.drain()) == [0, 2, 3, 4, 5]


def test_with_a_credit_of_one(begin: Begin, address: str) -> None:
    """The credit is there before the outcome is durable."""
    session = begin()
    post(session.sender(address), "aaa")
    consumer = session.receiver(address, credit=2)
    first, second = consumer.take(), consumer.take()
    assert [first.body, second.body] == [0, 1]
    consumer.credit(1)
    assert consumer.take().body == 2
    consumer.credit(3)
    for delivery in (second, first):
        delivery.disposition(Modified(delivery_failed=True))
    assert sorted(numbers([consumer.take(), consumer.take()])) == [0, 1]


@pytest.mark.rule("D5")
def test_a_link_that_is_lost(begin: Begin, address: str) -> None:
    session, other = begin(), begin()
    sender = other.sender(address)
    post(sender, "a" * 150)
    consumer = session.receiver(address)
    assert numbers(consumer.take_many(120)) == list(range(120))
    post(sender, "b", first=150)
    waiting = other.receiver(address, credit=1000)
    assert waiting.take().body == 150
    session.peer.close_socket()
    found = [waiting.take() for _ in range(150)]
    assert [(each.body, each.count) for each in found] == [(n, 1 if n < 120 else 0) for n in range(150)]


def test_to_the_dead_letters_and_on(begin: Begin, address: str) -> None:
    session = begin()
    post(session.sender(address), "aaaa")
    consumer, other = session.receiver(address), session.receiver(address)
    taken = consumer.take_many(2)
    settle(Rejected(), taken[0])
    for _ in range(2):
        settle(Modified(delivery_failed=True), taken[1])
        (taken[1],) = consumer.take_many(1)
        assert taken[1].body == 1
    settle(Modified(delivery_failed=True), taken[1])
    assert numbers(other.drain()) == [2, 3]
    letters = session.receiver(f"%DLQ%{address}", credit=2)
    assert sorted(numbers([letters.take(), letters.take()])) == [0, 1]


def test_refused_by_one_consumer(begin: Begin, address: str) -> None:
    session = begin()
    post(session.sender(address), "aab")
    consumer, other = session.receiver(address), session.receiver(address)
    settle(Modified(undeliverable_here=True), *consumer.take_many(1))
    assert numbers(consumer.drain()) == [2]
    assert numbers(other.drain()) == [0, 1]


@pytest.mark.rule("T27")
def test_a_transaction_keeps_its_groups(begin: Begin, address: str) -> None:
    session = begin()
    control, sender = session.control(), session.sender(address)
    post(sender, "aaab")
    consumer, other = session.receiver(address), session.receiver(address)
    txn = control.declare()
    first, second = consumer.take_many(2)
    first.retire(txn)
    second.retire(txn, Released())
    session.sync()
    assert numbers(other.drain()) == [3]
    control.commit(txn)
    assert numbers(other.drain()) == [1, 2]
    post(sender, "cc", first=4)
    txn = control.declare()
    (third,) = consumer.take_many(1)
    third.retire(txn, settled=False)
    sender.post(message(6, "c"), txn=txn)
    control.roll_back(txn)
    assert numbers(other.drain()) == []  # it is in the consumer's hands still (T27)
    settle(Released(), third)
    found = other.drain()
    assert numbers(found) == [4, 5]
    txn = control.declare()
    found[0].retire(txn)
    sender.post(message(7, "c"), txn=txn)
    session.sync()
    settle(Accepted(), found[1])
    assert numbers(consumer.drain()) == []
    control.roll_back(txn)  # settled by the peer: it failed (T28)
    again = consumer.drain()
    assert [(each.body, each.count) for each in again] == [(4, 1)]


def test_expiry_and_schedule(begin: Begin, address: str) -> None:
    """An expired message holds up no group; a delayed one enters its group when it is due."""
    session = begin()
    sender = session.sender(address)
    due = section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-delivery-time"): Timestamp(int(time.time() * 1000) + 1000)})
    post_each(sender, due + message(0, "a"), message(1, "a", ttl=1), message(2, "a"))
    consumer, other = session.receiver(address), session.receiver(address)
    taken = consumer.drain()
    assert [number for number in numbers(taken) if number != 1] == [2]
    consumer.credit(1)
    last = consumer.take()
    assert last.body == 0
    assert numbers(other.drain()) == []
    settle(Accepted(), last, *taken)
    post(sender, "a", first=3)
    assert numbers(other.drain()) == [3]


def test_browsers_see_all_and_selectors_are_refused(begin: Begin, address: str) -> None:
    session = begin()
    post(session.sender(address), "aab-")
    consumer = session.receiver(address)
    (taken,) = consumer.take_many(1)
    browser = session.receiver(Source(address=address, distribution_mode="copy"))
    assert numbers(browser.drain()) == [1, 2, 3]
    refused = select(session, address, "x = 1")
    assert refused.error == "amqp:not-implemented"
    assert numbers(consumer.drain()) == [1, 2, 3]
    settle(Accepted(), taken)


def test_presettled(begin: Begin, address: str) -> None:
    session = begin()
    post(session.sender(address), "ab-a" * WINDOW)
    consumer = session.receiver(address, snd_settle_mode=1)
    found = numbers(consumer.take_many(4 * WINDOW))
    assert sorted(found) == list(range(4 * WINDOW))
    assert all(each == sorted(each) for each in by_group("ab-a", found))


def test_each_subscription_of_a_topic_keeps_the_order(begin: Begin, address: str) -> None:
    session = begin()
    topic = Target(address=address, capabilities=("topic",))
    subscriptions = [session.receiver(f"{address}::{name}") for name in ("one", "two")]
    sender = session.sender(topic)
    post(sender, "aab-a")
    shared = session.receiver(f"{address}::one")
    (first,) = subscriptions[0].take_many(1)
    assert numbers(shared.drain()) == [2, 3]
    assert numbers(subscriptions[1].drain()) == [0, 1, 2, 3, 4]
    settle(Released(), first)
    assert numbers(shared.drain()) == [0, 1, 4]


def test_on_other_addresses_a_group_id_means_nothing(begin_at: BeginAt) -> None:
    with running_service() as service:
        session = begin_at(service)
        post(session.sender("normal"), "aab")
        one, other = session.receiver("normal"), session.receiver("normal")
        assert [numbers(each.take_many(1)) for each in (one, other)] == [[0], [1]]
        service.cli("address", "add", "grouped", "--kind", "fifo")
        assert "fifo" in service.cli("address", "show", "grouped")
        service.cli("address", "add", "other", "--kind", "batch", status=2)
        post(session.sender("grouped"), "aab")
        one, other = session.receiver("grouped"), session.receiver("grouped")
        assert [numbers(each.take_many(1)) for each in (one, other)] == [[0], [2]]
