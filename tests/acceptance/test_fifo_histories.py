"""Message groups over kills, in any history, and between two workers (rules P18, D3, D5)."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.acceptance.fifo import MAX_ATTEMPTS, SETTINGS, WINDOW, by_group, message, numbers, post, post_each, settle
from tests.fix_service import Service, running_service
from tests.fix_wire import Begin, BeginAt
from tests.wire.frames import Accepted, Modified, Released
from tests.wire.links import Delivery, Receiver
from tests.wire.peer import Session

pytestmark = pytest.mark.rule("P18")


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service(SETTINGS) as service:
        yield service


@pytest.mark.rule("D5")
def test_over_a_kill(service: Service, begin_at: BeginAt, address: str) -> None:
    session = begin_at(service)
    post(session.sender(address), "abc-" * WINDOW)
    taken = session.receiver(address).take_many(6)
    settle(Accepted(), taken[1])
    gone = taken.pop(1).body
    sent = numbers(taken)
    service.kill()
    service.restart()
    session = begin_at(service)
    one, other = session.receiver(address), session.receiver(address)
    (first,) = one.take_many(1)
    found = [first]
    while batch := other.drain(most=WINDOW):
        settle(Accepted(), *batch)
        found += batch
    settle(Accepted(), first)
    found += other.drain()
    assert sorted(numbers(found)) == [number for number in range(4 * WINDOW) if number != gone]
    assert all(each == sorted(each) for each in by_group("abc-", numbers(found))[:3])
    assert {each.body for each in found if each.count} >= set(sent)


class Held(NamedTuple):
    """A delivery as its consumer saw it; ``came`` and ``left`` by a clock that all consumers share."""

    consumer: int
    number: int
    group: str
    came: int
    left: int
    accepted: bool


_PRODUCERS, _EACH, _GROUPS = 3, 250, 12


class Traffic:
    """Producers that post to many groups, and consumers that fail and vanish until all messages are accepted."""

    def __init__(self) -> None:
        self.seen: list[Held] = []
        self.failures: list[BaseException] = []
        self._group_of: dict[int, str] = {}
        self._clock = itertools.count()
        self._lock = threading.Lock()
        self._done = threading.Event()

    def consume(self, session: Session, name: int) -> None:
        choose = random.Random(name)
        receiver = session.receiver("jobs")
        while not self._done.is_set():
            came = [(delivery, next(self._clock)) for delivery in receiver.drain(most=choose.randint(1, 8))]
            lost = choose.random() < 0.03
            for delivery, tick in came:
                state = Accepted() if choose.random() < 0.8 else choose.choice((Released(), Modified()))
                accepted = state == Accepted() and not lost
                group = self._group_of[delivery.body]
                self._note(Held(name, delivery.body, group, tick, next(self._clock), accepted))
                if not lost:
                    delivery.disposition(state)
            if lost:
                receiver.detach()
                receiver = session.receiver("jobs")
        session.peer.close_socket()

    def _note(self, held: Held) -> None:
        with self._lock:
            self.seen.append(held)
            # A link that is lost keeps what it has not settled until then: an accepted message ends the run, no other.
            if held.accepted and sum(each.accepted for each in self.seen) == _PRODUCERS * _EACH:
                self._done.set()

    def produce(self, session: Session, name: int) -> None:
        choose = random.Random(100 + name)
        sender = session.sender("jobs")
        for number in range(_EACH):
            body = number * _PRODUCERS + name
            self._group_of[body] = f"group {choose.randrange(_GROUPS)}"
            post_each(sender, message(body, self._group_of[body]))

    def _run(self, function: Callable[[Session, int], None], session: Session, name: int) -> None:
        try:
            function(session, name)
        except BaseException as error:  # noqa: BLE001 - the test fails with it
            self.failures.append(error)
            self._done.set()

    def run(self, connect: Callable[[], Session]) -> None:
        """Returns when all is accepted, or something has failed."""
        work = [(self.consume, name) for name in range(8)] + [(self.produce, name) for name in range(_PRODUCERS)]
        threads = [threading.Thread(target=self._run, args=(each, connect(), name)) for each, name in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _in_one_hand(group: list[Held]) -> None:
    for before, after in itertools.pairwise(sorted(group, key=lambda held: held.came)):
        assert before.consumer == after.consumer or before.left < after.came, (before, after)


def _in_order(group: list[Held]) -> None:
    """What failed came again in its place: when a message first came, all that its producer posted before had come."""
    for producer in range(_PRODUCERS):
        firsts = list(dict.fromkeys(held.number for held in group if held.number % _PRODUCERS == producer))
        assert firsts == sorted(firsts)


def test_two_workers(begin_at: BeginAt) -> None:
    """Many groups, consumers at both workers that fail and vanish: no group is in two hands, and order holds."""
    traffic = Traffic()
    with running_service({**SETTINGS, "addresses.patterns": '[{"match": "*", "kind": "fifo"}]', "workers": "2"}) as two:
        traffic.run(lambda: begin_at(two))
    assert not traffic.failures, traffic.failures[0]
    assert sorted(held.number for held in traffic.seen if held.accepted) == list(range(_PRODUCERS * _EACH))
    by_name: dict[str, list[Held]] = {}
    for held in traffic.seen:
        by_name.setdefault(held.group, []).append(held)
    assert len(by_name) == _GROUPS
    for group in by_name.values():
        _in_one_hand(group)
        _in_order(group)


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
@example(steps=[("post", "a"), ("post", "a"), *[("take", 0), ("lose", 0)] * 3, ("take", 0)])
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
    losses: Counter[int] = Counter()
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
            lost, hands[argument] = hands[argument], []
            losses.update(number for number, _ in lost)
            waiting += [item for item in lost if losses[item[0]] < MAX_ATTEMPTS]  # the others are dead letters
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
