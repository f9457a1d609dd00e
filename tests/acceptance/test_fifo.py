"""Message groups on addresses of kind fifo (part 3, section 3.2.4; rules P18 and D3).

The window of the queues is small, so that all of this goes past it.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fix_service import Service, running_service
from tests.fix_wire import Begin, BeginAt
from tests.wire.frames import Accepted, Modified, Rejected, Released, Source, State, Target
from tests.wire.links import Delivery, Receiver, Sender
from tests.wire.messages import MESSAGE_ANNOTATIONS, VALUE, Header, Properties, section
from tests.wire.peer import Session
from tests.wire.queues import select
from tests.wire.types import Int, Symbol, Timestamp

pytestmark = pytest.mark.rule("P18")

WINDOW = 100
SETTINGS = {
    "addresses.patterns": '[{"match": "*", "kind": "fifo", "max_attempts": 3}]',
    "limits.window_messages": str(WINDOW),
}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service(SETTINGS) as service:
        yield service


def message(number: int, group: str | None, **header: Any) -> bytes:
    """With ``number`` for a body."""
    octets = section(VALUE, Int(number))
    if group is not None:
        octets = section(Properties.CODE, Properties(group_id=group, group_sequence=number).described().value) + octets
    return section(Header.CODE, Header(**header).described().value) + octets if header else octets


def post_each(sender: Sender, *messages: bytes) -> None:
    sent = [sender.post(each) for each in messages]
    for delivery in sent:
        assert sender.answer_to(delivery).state == Accepted()


def post(sender: Sender, groups: str, first: int = 0) -> None:
    """One of each group, by its letter; ``-``: of none. Numbered from ``first`` on."""
    post_each(sender, *(message(first + n, None if each == "-" else each) for n, each in enumerate(groups)))


def numbers(deliveries: list[Delivery]) -> list[Any]:
    return [delivery.body for delivery in deliveries]


def settle(state: State, *deliveries: Delivery) -> None:
    """And wait until the store has it."""
    for delivery in deliveries:
        delivery.disposition(state, settled=False)
    for delivery in deliveries:
        delivery.settlement()


def test_in_order_of_commit_where_nobody_waits(begin: Begin, address: str) -> None:
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
    if stuck != "from the beginning":
        settle(Accepted(), *taken)
    elif stuck == "from the beginning":
        settle(Released(), *reversed(taken))
    found: list[int] = []
    while len(found) < count * len(ones):
        batch = waits.drain(most=WINDOW)
        found += numbers(batch)
        settle(Accepted(), *batch)
    assert sorted(found) == sorted(list(range(count)) * len(ones))
    if len(ones) == 1:
        assert found == list(range(count))


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
    assert all(each == sorted(each) for each in _by_group("ab-a", found))


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


@pytest.fixture
def own() -> Iterator[Service]:
    with running_service(SETTINGS) as service:
        yield service


@pytest.mark.rule("D5")
def test_over_a_kill(own: Service, begin_at: BeginAt) -> None:
    session = begin_at(own)
    post(session.sender("jobs"), "abc-" * WINDOW)
    taken = session.receiver("jobs").take_many(6)
    settle(Accepted(), taken[1])
    gone = taken.pop(1).body
    sent = numbers(taken)
    own.kill()
    own.restart()
    session = begin_at(own)
    one, other = session.receiver("jobs"), session.receiver("jobs")
    (first,) = one.take_many(1)
    found = [first]
    while batch := other.drain(most=WINDOW):
        settle(Accepted(), *batch)
        found += batch
    settle(Accepted(), first)
    found += other.drain()
    assert sorted(numbers(found)) == [number for number in range(4 * WINDOW) if number != gone]
    assert all(each == sorted(each) for each in _by_group("abc-", numbers(found))[:3])
    assert {each.body for each in found if each.count} >= set(sent)


def _by_group(groups: str, found: list[int]) -> list[list[int]]:
    """Of what :func:`post` posted as a repetition of ``groups``: those of each, as they came."""
    of = {group: [n for n in found if groups[n % len(groups)] == group] for group in dict.fromkeys(groups)}
    return list(of.values())


class Held(NamedTuple):
    """A delivery as its consumer saw it, by a clock that all share."""

    consumer: int
    number: int
    group: str
    came: int
    went: int
    accepted: bool


def test_two_workers(begin_at: BeginAt) -> None:
    """Many groups, consumers at both workers that fail and vanish: no group is in two hands, and order holds."""
    producers, each, groups = 3, 250, 12
    clock = itertools.count()
    seen: list[Held] = []
    group_of: dict[int, str] = {}
    lock = threading.Lock()
    failures: list[BaseException] = []
    done = threading.Event()

    def consume(session: Session, name: int) -> None:
        choose = random.Random(name)
        receiver = session.receiver("jobs")
        while not done.is_set():
            came = [(delivery, next(clock)) for delivery in receiver.drain(most=choose.randint(1, 8))]
            lost = choose.random() < 0.03
            for delivery, tick in came:
                state = Accepted() if choose.random() < 0.8 else choose.choice((Released(), Modified()))
                number = delivery.body
                with lock:
                    seen.append(
                        Held(name, number, group_of[number], tick, next(clock), state == Accepted() and not lost)
                    )
                    # a link that goes has what is not settled in its hands until then
                    if state == Accepted() and not lost and sum(held.accepted for held in seen) == producers * each:
                        done.set()
                if not lost:
                    delivery.disposition(state)
            if lost:
                receiver.detach()
                receiver = session.receiver("jobs")
        session.peer.close_socket()

    def produce(session: Session, name: int) -> None:
        choose = random.Random(100 + name)
        sender = session.sender("jobs")
        for number in range(each):
            body = number * producers + name
            group_of[body] = f"group {choose.randrange(groups)}"
            post_each(sender, message(body, group_of[body]))

    def run(function: Callable[[Session, int], None], session: Session, name: int) -> None:
        try:
            function(session, name)
        except BaseException as error:  # noqa: BLE001 - the test fails with it
            failures.append(error)
            done.set()

    with running_service({**SETTINGS, "addresses.patterns": '[{"match": "*", "kind": "fifo"}]', "workers": "2"}) as two:
        threads = [threading.Thread(target=run, args=(consume, begin_at(two), name)) for name in range(8)]
        threads += [threading.Thread(target=run, args=(produce, begin_at(two), name)) for name in range(producers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures, failures[0]
    accepted = [held for held in seen if held.accepted]
    assert sorted(held.number for held in accepted) == list(range(producers * each))
    by_group: dict[str, list[Held]] = {}
    for held in seen:
        by_group.setdefault(held.group, []).append(held)
    assert len(by_group) == groups
    for of_group in by_group.values():
        for before, after in itertools.pairwise(sorted(of_group, key=lambda held: held.came)):
            assert before.consumer == after.consumer or before.went < after.came, (before, after)
        for producer in range(producers):
            numbers_of = [held.number for held in of_group if held.number % producers == producer]
            # what failed before came again, in its place: of each new number all before it were seen
            firsts = list(dict.fromkeys(numbers_of))
            assert firsts == sorted(firsts)


def _groups_of_model(
    waiting: list[tuple[int, str]], hands: dict[int, list[tuple[int, str]]], consumer: int
) -> set[int]:
    """The messages that the consumer may be given next: the first of each group that is not in other hands."""
    elsewhere = {group for other, held in hands.items() if other != consumer for _, group in held}
    heads: dict[str, int] = {}
    for number, group in sorted(waiting):
        heads.setdefault(group if group != "-" else f"-{number}", number)
    return {number for group, number in heads.items() if group not in elsewhere}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("post"), st.sampled_from("aab-")),
        st.tuples(st.just("take"), st.integers(0, 1)),
        st.tuples(st.just("take"), st.integers(0, 1)),
        st.tuples(st.sampled_from(["accept", "release", "fail"]), st.integers(0, 5)),
        st.tuples(st.just("lose"), st.integers(0, 1)),
    ),
    max_size=40,
)
_count = itertools.count()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=STEPS)
def test_any_history(begin: Begin, address: str, steps: list[tuple[str, Any]]) -> None:
    """Against a model: of the groups that a consumer may be given, it is given the first of one."""
    session = begin()
    name = f"{address}-{next(_count)}"
    sender = session.sender(name)
    consumers: list[Receiver] = [session.receiver(name), session.receiver(name)]
    waiting: list[tuple[int, str]] = []
    hands: dict[int, list[tuple[int, str]]] = {0: [], 1: []}
    deliveries: dict[int, Delivery] = {}
    groups: dict[int, str] = {}
    for number, (step, argument) in enumerate(steps):
        if step == "post":
            post(sender, argument, first=number)
            groups[number] = argument
            waiting.append((number, argument))
        elif step == "take":
            allowed = _groups_of_model(waiting, hands, argument)
            found = consumers[argument].drain(most=1)
            assert len(found) == min(1, len(allowed))
            for delivery in found:
                assert delivery.body in allowed
                item = (delivery.body, groups[delivery.body])
                waiting.remove(item)
                hands[argument].append(item)
                deliveries[delivery.body] = delivery
        elif step == "lose":
            consumers[argument].detach()
            consumers[argument] = session.receiver(name)
            waiting += hands[argument]
            hands[argument] = []
        else:
            held = [(consumer, item) for consumer in hands for item in hands[consumer]]
            if held:
                consumer, item = held[argument % len(held)]
                state = {"accept": Accepted(), "release": Released(), "fail": Modified()}[step]
                settle(state, deliveries[item[0]])
                hands[consumer].remove(item)
                if step != "accept":
                    waiting.append(item)
    session.peer.close()


def test_on_other_addresses_a_group_id_means_nothing(begin_at: BeginAt) -> None:
    with running_service() as service:
        session = begin_at(service)
        post(session.sender("normal"), "aab")
        one, other = session.receiver("normal"), session.receiver("normal")
        assert [numbers(each.take_many(1)) for each in (one, other)] == [[0], [1]]
        service.cli("address", "add", "grouped", "--kind", "fifo")
        assert "fifo" in service.cli("address", "show", "grouped")
        service.cli("address", "add", "other", "--kind", "mixed", status=2)
        post(session.sender("grouped"), "aab")
        one, other = session.receiver("grouped"), session.receiver("grouped")
        assert [numbers(each.take_many(1)) for each in (one, other)] == [[0], [2]]
