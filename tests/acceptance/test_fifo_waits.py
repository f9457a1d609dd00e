"""Failed deliveries of a message group that wait for their time: the group waits with them, the others go on (D3).

The waits are long, and a test ends them in the store, as the schedule does when their time has come.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from store.channels import DUE
from store.embedded.running import running_url
from tests.acceptance.fifo import WINDOW, message, numbers, post, post_each, settle
from tests.fix_service import PATIENCE, Service, running_service
from tests.fix_wire import Ask, Begin, BeginAt
from tests.wire.frames import Accepted, Modified, Rejected, Released, State
from tests.wire.queues import dead_letters
from tests.wire.types import Int, Symbol

pytestmark = pytest.mark.rule("D3", "D2")

FAILED = Modified(delivery_failed=True)
SETTINGS = {
    "addresses.patterns": '[{"match": "*", "kind": "fifo", "max_attempts": 3, "retry": "ladder 1h 2h"}]',
    "bounds.window_messages": str(WINDOW),
}

Due = Callable[..., None]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service(SETTINGS) as service:
        yield service


def end_waits(service: Service, count: int, of: str = "true") -> None:
    """Of all that waits (and is so, in SQL), which must be so many: the time has come."""
    with psycopg.connect(running_url(service.data_dir), autocommit=True) as connection:
        ended = f"update coordinator.entry set available_at = now() where available_at > now() and {of}"
        done = connection.execute(ended.encode())
        assert done.rowcount == count
        connection.execute(f"notify {DUE}".encode())


@pytest.fixture
def due(service: Service) -> Iterator[Due]:
    yield lambda count=1, of="true": end_waits(service, count, of)
    with psycopg.connect(running_url(service.data_dir), autocommit=True) as connection:
        connection.execute("delete from coordinator.entry where available_at is not null")


@pytest.mark.parametrize("outcome", [FAILED, Modified(message_annotations={Symbol("x-opt-delay-level"): Int(9)})])
def test_its_group_waits_and_the_others_go_on(begin: Begin, due: Due, address: str, outcome: State) -> None:
    """What has no group is a group of its own. By the policy, or as the consumer asks."""
    session = begin()
    sender = session.sender(address)
    post(sender, "aab-a-")
    consumer, other = session.receiver(address), session.receiver(address)
    settle(outcome, *consumer.take_many(1))
    found = consumer.drain()
    assert sorted(numbers(found)) == [2, 3, 5]
    settle(outcome, next(each for each in found if each.body == 3))
    post(sender, "ab", first=6)
    assert numbers(other.drain()) == []  # b is with the consumer
    assert numbers(consumer.drain()) == [7]
    due(2)
    again = consumer.take_many(5)
    assert [number for number in numbers(again) if number != 3] == [0, 1, 4, 6]
    counts = {each.body: each.count for each in again}
    assert counts == {**dict.fromkeys((1, 4, 6), 0), **dict.fromkeys((0, 3), int(outcome == FAILED))}


@pytest.mark.rule("D5")
@pytest.mark.parametrize("outcome", [Released(), Modified(), FAILED])
def test_what_the_consumer_has_of_the_group_comes_back_behind_it(
    begin: Begin, due: Due, address: str, outcome: State
) -> None:
    """In its order, though its own wait ends earlier."""
    session = begin()
    post(session.sender(address), "aaaaab")
    consumer, other = session.receiver(address), session.receiver(address)
    taken = consumer.take_many(4)
    settle(FAILED, taken[1])
    assert numbers(consumer.drain()) == [5]  # and not 4, which was read before
    settle(outcome, taken[2])
    settle(Accepted(), taken[3])
    assert numbers(consumer.drain()) == numbers(other.drain()) == []
    settle(Released(), taken[0])  # it comes before
    (first,) = consumer.drain()
    assert first.body == 0
    settle(Accepted(), first)
    assert numbers(consumer.drain()) == numbers(other.drain()) == []
    due(2 if outcome == FAILED else 1)
    again = other.take_many(3)
    assert [(each.body, each.count) for each in again] == [(1, 1), (2, int(outcome == FAILED)), (4, 0)]


def test_a_later_one_whose_time_comes_first_waits_for_the_earlier(
    begin: Begin, ask: Ask, due: Due, address: str
) -> None:
    session = begin()
    post(session.sender(address), "aaa")
    consumer = session.receiver(address)
    settle(FAILED, *consumer.take_many(2))
    due(1, "id = (select max(id) from coordinator.entry where available_at > now())")
    deadline = time.monotonic() + PATIENCE
    while ask("select count(*) from coordinator.entry where available_at is not null") != [(1,)]:
        assert time.monotonic() < deadline, "its time does not come"
        time.sleep(0.05)
    assert numbers(consumer.drain()) == []
    due()
    assert numbers(consumer.take_many(3)) == [0, 1, 2]


@pytest.mark.rule("D4")
@pytest.mark.parametrize("last", [FAILED, Rejected()])
def test_after_the_last_attempt_the_group_goes_on(begin: Begin, due: Due, address: str, last: State) -> None:
    session = begin()
    post(session.sender(address), "aa")
    consumer = session.receiver(address)
    for _ in range(2):
        (first,) = consumer.take_many(1)
        assert first.body == 0
        settle(FAILED, first)
        assert numbers(consumer.drain()) == []
        due()
    (first,) = consumer.take_many(1)
    settle(last, first)
    assert [each.body for each in consumer.take_many(1)] == [1]
    letter = dead_letters(session, address).take()
    assert letter.message.annotations["x-opt-delivery-count"] == (3 if last == FAILED else 2)


@pytest.mark.rule("P12")
def test_the_wait_ends_with_the_message(begin: Begin, address: str) -> None:
    """Else what has run out would hold up what is behind it."""
    session = begin()
    post_each(session.sender(address), message(0, "a", ttl=3000), message(1, "a"))
    consumer = session.receiver(address, credit=1)
    settle(FAILED, consumer.take())
    consumer.credit(1)
    assert consumer.take().body == 1


def test_a_purge_of_what_waits_lets_the_group_go_on(begin: Begin, ask: Ask, service: Service, address: str) -> None:
    """What was behind it may stay: it was just locked, or posted meanwhile."""
    session = begin()
    post(session.sender(address), "aa")
    consumer = session.receiver(address, credit=1)
    settle(FAILED, consumer.take())
    consumer.credit(1)
    session.sync()
    with psycopg.connect(running_url(service.data_dir)) as other:
        other.execute(
            "select from coordinator.entry e join coordinator.half h on h.id = e.half_id"
            " join coordinator.address a on a.id = h.address_id where a.name = %s and attempts = 0 for update of e",
            (address,),
        )
        assert "purged 1" in service.cli("address", "purge", address)
    assert consumer.take().body == 1


def test_in_a_transaction(begin: Begin, due: Due, address: str) -> None:
    session = begin()
    control = session.control()
    post(session.sender(address), "aab")
    consumer, other = session.receiver(address), session.receiver(address)
    (first,) = consumer.take_many(1)
    txn = control.declare()
    first.retire(txn, FAILED)
    control.commit(txn)
    assert numbers(other.drain()) == [2]
    due()
    assert numbers(other.take_many(2)) == [0, 1]


def test_more_groups_wait_than_the_window_holds(begin: Begin, due: Due, address: str) -> None:
    """They keep no memory: a group far behind them is delivered, and then each of them in its order."""
    count = 2 * WINDOW
    session = begin()
    sender = session.sender(address)
    post_each(sender, *(message(number, f"g{number % count}") for number in range(2 * count)))
    consumer = session.receiver(address)
    failed = 0
    while failed < count:
        found = consumer.drain(most=20)
        for each in found:
            each.disposition(FAILED if each.body < count else Released(), settled=False)
            failed += each.body < count
        for each in found:
            each.settlement()
    post(sender, "z", first=2 * count)
    assert numbers(consumer.take_many(1)) == [2 * count]
    due(count)
    seen: list[int] = []
    while len(seen) < 2 * count:
        found = consumer.drain(most=WINDOW)
        seen += numbers(found)
        settle(Accepted(), *found)
    place = {number: index for index, number in enumerate(seen)}
    assert sorted(seen) == list(range(2 * count))
    assert all(place[number] < place[number + count] for number in range(count))


@pytest.fixture
def two() -> Iterator[Service]:
    with running_service({**SETTINGS, "workers": "2"}) as service:
        yield service


@pytest.mark.rule("D6")
def test_it_holds_over_kills(two: Service, begin_at: BeginAt) -> None:
    """Of the service whole, while groups wait and while consumers have what is behind."""
    session = begin_at(two)
    post(session.sender("orders"), "aaab")
    consumer = session.receiver("orders")
    taken = consumer.take_many(2)
    settle(FAILED, taken[0])
    two.kill()
    two.start()
    session = begin_at(two)
    consumer = session.receiver("orders")
    assert numbers(consumer.drain()) == [3]
    two.kill()
    two.start()
    end_waits(two, 1)
    found = begin_at(two).receiver("orders", credit=9).take_many(4)
    assert [each.body for each in found if each.body < 3] == [0, 1, 2]
    assert next(each.count for each in found if each.body == 0) == 1


@pytest.mark.rule("P18")
def test_at_two_workers_with_consumers_that_come_and_go(two: Service, begin_at: BeginAt) -> None:
    """Each message is accepted behind those before it in its group, wherever its group waited."""
    groups, each = 6, 20
    two.cli("address", "add", "orders", "--kind", "fifo", "--retry", "ladder 300ms")
    post_each(
        begin_at(two).sender("orders"),
        *(message(number, f"g{number % groups}") for number in range(groups * each)),
    )
    done: dict[int, list[int]] = {group: [] for group in range(groups)}
    deadline = time.monotonic() + PATIENCE
    for round_ in itertools.count():
        assert time.monotonic() < deadline, done
        session = begin_at(two)
        consumer = session.receiver("orders", credit=1)
        for _ in range(5 + round_ % 7):
            session.sync()
            if not consumer.arrived:
                continue
            delivery = consumer.take()
            if delivery.body % 5 == 0 and delivery.count == 0:
                settle(FAILED, delivery)
            else:
                settle(Accepted(), delivery)
                done[delivery.body % groups].append(delivery.body)
            consumer.credit(1)
        if round_ % 2:
            session.peer.close_socket()
        else:
            consumer.detach()
        if sum(map(len, done.values())) == groups * each:
            break
    assert done == {group: list(range(group, groups * each, groups)) for group in range(groups)}
