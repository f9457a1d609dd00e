"""Which addresses an instance keeps in memory: those in use, and of the others the ones used last."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
from sqlalchemy import Connection

from coordinator.address import directory
from coordinator.address.addresses import Group
from coordinator.address.nodes import Address
from coordinator.errors import Condition, Refusal
from coordinator.group.policies import Policies
from coordinator.group.queues import Queue
from store import addresses
from store.channels import ADDRESS
from store.permissions import Verb
from store.tables import SCHEMA
from tests.fix_instance import Instance
from tests.fix_proxy import Proxy

MOST = 20


class User:
    def refuse(self, refusal: Refusal) -> None:
        raise AssertionError(refusal)


@pytest.fixture
def instance(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Instance]:
    monkeypatch.setattr(directory, "MOST_KNOWN", MOST)
    instance = Instance(database_url)
    yield instance
    instance.close()


@pytest.mark.rule("S4", "D1")
def test_the_least_used_address_is_forgotten_first(instance: Instance) -> None:
    made = [instance.resolve(f"q{number}") for number in range(MOST)]
    assert instance.resolve("q0") is made[0]
    instance.resolve("one-more")
    known = instance.service.directory.known
    assert known("q1") is None
    assert known("q0") is made[0]
    assert known("q2") is made[2]


@pytest.mark.rule("S4", "D1")
def test_a_topic_with_a_subscriber_stays_the_same_however_many_others_are_used(instance: Instance) -> None:
    """A second object of it would know of no subscription, and what is posted there would wait in the store."""
    topic = instance.resolve("prices", topic=True)
    user = User()
    topic.users.add(user)
    queue = instance.subscribe(topic, "shop")
    for number in range(3 * MOST):
        instance.resolve(f"q{number}")
    again = instance.resolve("prices", topic=True)
    assert again is topic
    assert again.subscriptions == [queue]
    topic.users.discard(user)
    for number in range(3 * MOST):
        instance.resolve(f"r{number}")
    assert instance.service.directory.known("prices") is None


@pytest.mark.rule("S4", "D1")
def test_the_queue_of_a_forgotten_address_is_held_whole_no_more(instance: Instance) -> None:
    """While it is held it stays in memory: many addresses, each used once, would fill it. One in use is held on."""
    first, second = instance.resolve("q0"), instance.resolve("q1")
    queues = [each.queue for each in (first, second) if each.queue is not None]
    for queue in queues:
        queue.enter()
    home = instance.service.queues
    instance.loop.run_until(lambda: home.holding == set(queues))
    queues[1].returning += 1
    for number in range(MOST):
        instance.resolve(f"r{number}")
    instance.loop.run_until(lambda: home.holding != set(queues))
    assert home.holding == {queues[1]}


@pytest.mark.rule("D1")
def test_a_group_that_another_instance_makes_in_the_same_moment_is_joined(
    instance: Instance, database_url: str
) -> None:
    topic = instance.resolve("prices", topic=True)
    joined: list[Queue | Refusal] = []
    with psycopg.connect(database_url) as other:
        row = other.execute(
            "insert into coordinator.consumer_group (address_id, name) values (%s, 'shop') returning id", [topic.id]
        ).fetchone()
        assert row is not None
        instance.service.subscriptions.join(topic, Group(name="shop", lasting=True), joined.append)
        waits = "select 1 from pg_locks where not granted and locktype = 'transactionid'"
        instance.loop.run_until(lambda: other.execute(waits).fetchone())
    instance.loop.run_until(lambda: joined)
    assert isinstance(joined[0], Queue)
    assert joined[0].group_id == row[0]


class Maker:
    user_id: str | None = None

    def __init__(self, made: int) -> None:
        self.addresses_made = made

    def may(self, verb: Verb, name: str) -> bool:
        return True


def _named_by(instance: Instance, name: str, *makers: Maker | None) -> list[Address | Refusal]:
    """What those find who name an address at once."""
    found: list[Address | Refusal] = []
    for maker in makers:
        instance.service.directory.resolve(name, found.append, maker=maker)
    instance.loop.run_until(lambda: len(found) == len(makers))
    return found


@pytest.mark.rule("S4")
def test_an_address_that_several_name_at_once_is_made_by_one_that_may(instance: Instance) -> None:
    most = instance.service.bounds.addresses_per_connection
    full, other, last = Maker(most), Maker(0), Maker(0)
    first, second, third = _named_by(instance, "orders", full, other, last)
    assert isinstance(first, Address)
    assert first is second is third
    assert [each.addresses_made for each in (full, other, last)] == [most, 1, 0]
    (refused,) = _named_by(instance, "bills", full)
    assert isinstance(refused, Refusal)
    assert refused.condition is Condition.RESOURCE_LIMIT_EXCEEDED


@pytest.mark.rule("S4")
def test_an_address_that_is_made_elsewhere_meanwhile_does_not_count(instance: Instance, database_url: str) -> None:
    maker = Maker(0)
    with psycopg.connect(database_url) as other:
        other.execute("insert into coordinator.address (name) values ('orders')")
        found: list[Address | Refusal] = []
        instance.service.directory.resolve("orders", found.append, maker=maker)
        waits = "select 1 from pg_locks where not granted and locktype = 'transactionid'"
        instance.loop.run_until(lambda: other.execute(waits).fetchone() is not None)
        assert maker.addresses_made == 1
        other.commit()
    instance.loop.run_until(lambda: found)
    assert isinstance(found[0], Address)
    assert maker.addresses_made == 0


@pytest.mark.rule("S4")
def test_a_dynamic_address_that_is_made_as_the_connection_is_lost_counts(proxy: Proxy, database_url: str) -> None:
    """The question is asked again, and finds it there."""
    instance, maker = Instance(proxy.url), Maker(0)
    instance.resolve("orders")  # the question is prepared from now on
    found: list[Address | Refusal] = []
    rows = f"select 1 from {SCHEMA}.address where origin = 'dynamic'"
    with psycopg.connect(database_url) as other:
        other.execute(f"lock table {SCHEMA}.address in share mode".encode())
        instance.service.directory.make_dynamic(found.append, maker=maker)
        waits = "select 1 from pg_locks where not granted and locktype = 'relation'"
        instance.loop.run_until(lambda: other.execute(waits).fetchone() is not None)
        with proxy.held("replies"):
            other.commit()
            instance.loop.run_until(lambda: other.execute(rows.encode()).fetchone() is not None)
            proxy.cut()
    instance.loop.run_until(lambda: found)
    (address,) = found
    assert isinstance(address, Address)
    assert maker.addresses_made == 1
    instance.service.directory.remove_dynamic(address, maker)
    assert maker.addresses_made == 0
    instance.close()


@pytest.mark.rule("S4")
def test_a_dynamic_address_that_cannot_be_looked_up_is_taken_back(instance: Instance, database_url: str) -> None:
    """It was made, and no link has it."""
    maker = Maker(0)
    instance.resolve("orders")
    found: list[Address | Refusal] = []
    rows = f"select 1 from {SCHEMA}.address where origin = 'dynamic'".encode()
    with psycopg.connect(database_url) as other:
        other.execute(f"lock table {SCHEMA}.address in share mode".encode())
        instance.service.directory.make_dynamic(found.append, maker=maker)
        waits = b"select 1 from pg_locks where not granted and locktype = 'relation'"
        instance.loop.run_until(lambda: other.execute(waits).fetchone() is not None)
        other.execute(f"alter table {SCHEMA}.address_use rename to used_of_late".encode())  # what looks it up fails
    instance.loop.run_until(lambda: found)
    (refusal,) = found
    assert isinstance(refusal, Refusal)
    assert refusal.condition is Condition.INTERNAL_ERROR
    assert maker.addresses_made == 0
    with psycopg.connect(database_url, autocommit=True) as other:
        instance.loop.run_until(lambda: other.execute(rows).fetchone() is None)


@pytest.mark.rule("H1")
def test_a_change_that_the_store_could_not_tell_at_once_is_learned(instance: Instance, database_url: str) -> None:
    """Its links keep it in use for long: nothing else would ask for it."""
    address = instance.resolve("orders")
    asked = "wait_event_type = 'Lock' and application_name like 'coordinator queries%'"
    with psycopg.connect(database_url) as changing, psycopg.connect(database_url, autocommit=True) as other:
        changing.execute(f"lock table {SCHEMA}.address in access exclusive mode".encode())
        changing.execute(f"update {SCHEMA}.address set kind = 'delay' where name = 'orders'".encode())
        other.execute(b"select pg_notify(%s, 'orders')", [ADDRESS])
        cancelled = f"select pg_cancel_backend(pid) from pg_stat_activity where {asked}".encode()
        instance.loop.run_until(lambda: other.execute(cancelled).fetchall())
    instance.loop.run_until(lambda: address.delayed)


@pytest.fixture
def second(database_url: str) -> Iterator[Instance]:
    instance = Instance(database_url)
    yield instance
    instance.close()


@pytest.mark.rule("D2", "P12")
def test_policies_of_a_group_reach_every_instance_while_it_serves_the_group(
    instance: Instance, second: Instance, database: Connection, database_url: str
) -> None:
    """Also an instance that joins the group later; what is taken back is the address's again."""
    queues = [each.subscribe(each.resolve("orders"), "billing") for each in (instance, second)]
    defaults = [each.resolve("orders").queue for each in (instance, second)]
    place = addresses.find_group(database, "orders", "billing")
    assert place is not None
    assert place.group == queues[0].group_id

    def change(**changes: object) -> None:
        assert addresses.change_group(database, "orders", queues[0].group_id, changes)

    def until(done: Callable[[Policies], bool]) -> None:
        for each, queue in zip((instance, second), queues, strict=True):
            each.loop.run_until(lambda queue=queue: done(queue.policies))  # type: ignore[misc]

    change(retry="ladder 1s", max_attempts=2, on_expiry="dead-letter")
    until(lambda now: now.max_attempts == 2)
    assert [each.policies.retry.text for each in queues] == ["ladder 1s"] * 2
    assert [each.policies.on_expiry for each in queues] == ["dead-letter"] * 2
    assert [each and each.policies.max_attempts for each in defaults] == [16, 16]
    addresses.change(database, "orders", {"max_attempts": 9, "retry": "ladder 2s"})
    change(max_attempts=None)
    until(lambda now: now.max_attempts == 9)
    assert [each.policies.retry.text for each in queues] == ["ladder 1s"] * 2
    third = Instance(database_url)
    assert third.subscribe(third.resolve("orders"), "billing").policies == queues[0].policies
    third.close()
