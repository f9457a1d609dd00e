"""Questions that PostgreSQL refuses though the connection stays, as one that is cancelled: nothing is left stuck."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from store.channels import USER
from store.embedded.running import running_url
from tests.acceptance.fifo import numbers, post, settle
from tests.acceptance.subscribers import TOPIC, lasting
from tests.fix_service import Service, running_service
from tests.fix_users import PASSWORD, add_users
from tests.fix_wire import Ask, Begin, Dial
from tests.refusing import refused
from tests.sole import alone, is_admitted, lives
from tests.wire.frames import Accepted, Source
from tests.wire.peer import PATIENCE, Peer
from tests.wire.sasl import Login, ScramClient

PATTERNS = '[{"match": "fifo-*", "kind": "fifo"}, {"match": "topic-*", "routing": "topic"}]'


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service({"addresses.patterns": PATTERNS}) as service:
        yield service


@contextmanager
def _refused(service: Service, what: str) -> Iterator[None]:
    """What is done in the block meets a store that refuses ``what``, at least once."""
    with refused(running_url(service.data_dir), what) as tries:
        yield
        _until(tries)


def _until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


@pytest.mark.rule("P18")
def test_message_groups_that_cannot_be_given_up(service: Service, begin: Begin, address: str) -> None:
    session, address = begin(), f"fifo-{address}"
    sender = session.sender(address)
    post(sender, "ab")
    receiver = session.receiver(address, credit=2)
    settle(Accepted(), *receiver.take_many(2))
    with _refused(service, "delete on coordinator.message_group"):
        receiver.detach()
    post(sender, "abc", 10)
    assert sorted(numbers(session.receiver(address, credit=10).take_many(3))) == [10, 11, 12]


@pytest.mark.rule("D1")
def test_a_subscription_that_cannot_be_removed(service: Service, begin: Begin, address: str, ask: Ask) -> None:
    """It would be given each further message. Meanwhile a link of its name does not get what was another's."""
    session, address = begin(), f"topic-{address}"
    sender = session.sender(address)
    owner = lasting(session, address, "prices")
    volatile = session.receiver(Source(address=address, capabilities=TOPIC))
    post(sender, "a")
    entries = "select from coordinator.entry e join coordinator.half h on h.id = e.half_id "
    entries += "join coordinator.address a on a.id = h.address_id where a.name = %s"
    with _refused(service, "delete on coordinator.consumer_group"):
        volatile.detach()
        owner.detach()
        post(sender, "b")
        assert len(ask(entries, address)) == 4
        assert lasting(session, address, "prices").error == "amqp:resource-locked"
    _until(lambda: not ask(entries, address))
    again = lasting(session, address, "prices")
    post(sender, "c", 10)
    assert numbers(again.take_many(1)) == [10]


@pytest.mark.rule("P8")
def test_a_dynamic_address_that_cannot_be_removed(service: Service, begin: Begin, ask: Ask) -> None:
    session = begin()
    owner = session.receiver(Source(dynamic=True))
    assert isinstance(owner.answer.source, Source)
    name = owner.answer.source.address
    with _refused(service, "delete on coordinator.address"):
        owner.detach()
        assert session.receiver(str(name)).error == "amqp:not-found"
    _until(lambda: not ask("select from coordinator.address where name = %s", name))


@pytest.mark.rule("P15")
def test_the_claim_of_a_connection_that_cannot_be_given_up(service: Service, dial: Dial, address: str) -> None:
    """It would keep its container out."""
    first, second = dial(), dial()
    assert is_admitted(first.open(container_id=address, **alone()))
    with _refused(service, "delete on coordinator.sole_connection"):
        first.close()
    assert is_admitted(second.open(container_id=address, **alone()))
    assert lives(second)


@pytest.mark.rule("S1")
def test_a_user_that_was_disabled_meanwhile_is_out(own_service: Service) -> None:
    """The question whether it may stay is cancelled."""
    add_users(own_service, "alice")
    login = Login(Peer(own_service.port))
    assert login.scram(ScramClient(user="alice", password=PASSWORD)).code == 0
    login.goes_on()
    asked = "wait_event_type = 'Lock' and application_name ~ 'coordinator queries'"
    cancel = f"select query, pg_cancel_backend(pid) from pg_stat_activity where {asked}".encode()
    url = running_url(own_service.data_dir)
    with psycopg.connect(url) as disabling, psycopg.connect(url, autocommit=True) as other:
        disabling.execute("lock table coordinator.user_account in access exclusive mode")
        disabling.execute("update coordinator.user_account set disabled_at = now()")
        other.execute("select pg_notify(%s, 'alice')", [USER])
        _until(lambda: any("disabled_at is null from" in query for query, _ in other.execute(cancel)))
    assert login.peer.closed().condition == "amqp:unauthorized-access"
