"""Check-back over two services on one database: a transaction is declared at one of them, and its checker is at the
other, or at both (rules H5, H7 to H10, H13, H20).
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from coordinator.address.addresses import UNANSWERED as ADDRESS
from tests.fix_check_back import plant
from tests.fix_service import PATIENCE, Service
from tests.fix_wire import Ask, BeginAt, decided
from tests.wire.checkable import accept, in_group, left
from tests.wire.frames import Accepted, Rejected, Released, State
from tests.wire.links import Delivery, Receiver
from tests.wire.messages import data
from tests.wire.peer import Session
from tests.wire.queues import condition
from tests.wire.types import UInt

#: no test waits for a second check: what is to come again has its time set
SETTINGS = {"check.immunity_seconds": "0", "check.interval_seconds": "3600"}
OUTCOMES: list[tuple[str, State]] = [("commit", Accepted()), ("rollback", Rejected())]


@pytest.fixture(scope="module")
def services(module_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Service]]:
    """Two services, each started by a command of its own."""
    started: list[Service] = []
    try:
        for _ in range(2):
            folder = tmp_path_factory.mktemp("service")
            started.append(Service(folder, {**SETTINGS, "database_url": module_database_url}))
            started[-1].start()
        yield started
    finally:
        for service in started:
            service.discard()


@pytest.fixture
def ask(module_database_url: str) -> Ask:
    def rows(statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(module_database_url) as connection:
            return connection.execute(statement.encode(), parameters or None).fetchall()

    return rows


def checker(session: Session, group: str, *, credit: int = 10) -> Receiver:
    return session.receiver(f"$check/{group}", credit=credit)


def told_by(check: Delivery) -> dict[str, Any]:
    return {str(key): each for key, each in check.message.delivery_annotations.items()}


def posted(session: Session, group: str, *bodies: bytes, **properties: object) -> bytes:
    """A transaction of the group, whose posts to the address of its name are accepted."""
    txn = in_group(session, group, **properties).declare()
    sender = session.sender(group)
    for body in bodies:
        accept(sender, body, txn)
    return txn


def decided_by(ask: Ask, txn: bytes) -> int:
    """The instance that decided."""
    ((instance,),) = ask("select instance_id from coordinator.op where id = encode(%s, 'hex')::uuid", txn)
    return int(instance)


def instance_of(ask: Ask, txn: bytes) -> int:
    """The instance that declared it."""
    ((instance,),) = ask("select instance_id from coordinator.txn where id = encode(%s, 'hex')::uuid", txn)
    return int(instance)


@pytest.mark.rule("H7", "H8", "H13")
@pytest.mark.parametrize(("decision", "outcome"), OUTCOMES)
def test_declared_at_one_service_and_checked_at_the_other(
    services: list[Service], begin_at: BeginAt, address: str, ask: Ask, decision: str, outcome: State
) -> None:
    producer, elsewhere, own = begin_at(services[0]), begin_at(services[1]), begin_at(services[0])
    consumer = own.receiver(address, credit=5)
    link = checker(elsewhere, address)
    txn = posted(producer, address, b"1", b"2")
    declared_at = instance_of(ask, txn)
    producer.peer.close_socket()
    check = link.take()
    told = told_by(check)
    assert (told["x-opt-txn-id"], told["x-opt-check-count"], told["x-opt-half-count"]) == (txn, 1, 2)
    check.disposition(outcome, settled=False)
    assert check.settlement().state == outcome
    assert decided(ask, txn) == (decision, "checked")
    assert decided_by(ask, txn) != declared_at
    expected = [b"1", b"2"] if decision == "commit" else []
    assert [consumer.take().body for _ in expected] == expected
    assert consumer.drain() == []


@pytest.mark.rule("H8", "H9")
def test_with_checkers_at_both_services_each_check_goes_to_one(
    services: list[Service], begin_at: BeginAt, address: str, ask: Ask
) -> None:
    """Taken at once by both: none is counted twice. Left unknown, each comes once more when its time is there."""
    links = [checker(begin_at(service), address, credit=200) for service in services]
    producers = [begin_at(service) for service in services]
    txns = [posted(producer, address, b"%d" % number) for number in range(25) for producer in producers]
    for producer in producers:
        producer.peer.close_socket()
    for txn in txns:
        left(ask, txn)
    for count in (1, 2):
        checks = gathered(links, len(txns))
        assert Counter(told_by(each)["x-opt-txn-id"] for each in checks) == Counter(txns)
        assert {told_by(each)["x-opt-check-count"] for each in checks} == {count}
        for each in checks:
            each.disposition(Released() if count == 1 else Accepted())
        for link in links:
            link.session.sync()
        uncounted = "select from coordinator.txn where producer_group = %s and checks < %s"
        deadline = time.monotonic() + PATIENCE
        while ask(uncounted, address, count):
            assert time.monotonic() < deadline, "a check was not counted"
        ask("update coordinator.txn set next_check_at = now() where producer_group = %s returning id", address)
    assert {decided(ask, txn) for txn in txns} == {("commit", "checked")}
    assert len(begin_at(services[0]).receiver(address).take_many(len(txns))) == len(txns)


def gathered(links: list[Receiver], count: int) -> list[Delivery]:
    found: list[Delivery] = []
    deadline = time.monotonic() + PATIENCE
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count}"
        for link in links:
            link.session.sync()
            found += [link.arrived.popleft() for _ in range(len(link.arrived))]
    return found


@pytest.mark.rule("H7", "H8", "H13")
def test_the_service_that_declared_it_is_killed(
    services: list[Service], begin_at: BeginAt, address: str, ask: Ask
) -> None:
    """Its connection is there until then: a checker at the other service is asked once the instance is given up."""
    elsewhere = begin_at(services[1])
    consumer = elsewhere.receiver(address, credit=5)
    link = checker(elsewhere, address)
    txn = posted(begin_at(services[0]), address, b"1")
    assert link.drain() == []
    link.credit(1)
    services[0].kill()
    try:
        check = link.take()
        assert (told_by(check)["x-opt-txn-id"], check.body) == (txn, b"1")
        check.disposition(Accepted())
        assert consumer.take().body == b"1"
        assert decided(ask, txn) == ("commit", "checked")
    finally:
        services[0].restart()
    assert in_group(begin_at(services[0]), address).discharge(txn) == Accepted()  # the producer that comes back (T11)


@pytest.mark.rule("H5", "H7", "H8")
@pytest.mark.parametrize(("decision", "outcome"), OUTCOMES)
def test_a_late_discharge_at_the_service_that_declared_it(
    services: list[Service], begin_at: BeginAt, address: str, ask: Ask, decision: str, outcome: State
) -> None:
    """Its client still holds it past its timeout; what the checker at the other service said stands."""
    session, elsewhere = begin_at(services[0]), begin_at(services[1])
    control = in_group(session, address, timeout_ms=UInt(50))
    txn = control.declare()
    accept(session.sender(address), b"1", txn)
    left(ask, txn)
    past_preference(ask, txn)
    checker(elsewhere, address, credit=1).take().disposition(outcome)
    assert decided(ask, txn) == (decision, "checked")
    fail = decision == "commit"
    state = control.discharge(txn, fail=fail)
    assert condition(state) == ("amqp:illegal-state" if fail else "amqp:transaction:rollback")
    said = state.error.description
    assert re.search(r" at 20\d\d-\d\d-\d\dT[\d:.]+Z by instance \d+", said)
    assert said.partition("by instance ")[2].partition(":")[0] == str(decided_by(ask, txn))
    assert ("checked" in said) or fail
    assert in_group(elsewhere, address).discharge(txn, fail=not fail) == Accepted()
    assert len(elsewhere.receiver(address).drain()) == int(fail)


def past_preference(ask: Ask, txn: bytes) -> None:
    """It was due for so long that its own connection is waited for no more."""
    ask(
        "update coordinator.txn set next_check_at = now() - interval '1 minute' where id = encode(%s, 'hex')::uuid "
        "returning id",
        txn,
    )


@pytest.mark.rule("H5", "H8", "H20")
@pytest.mark.parametrize("fail", [False, True])
def test_a_late_answer_after_a_discharge_at_the_other_service(
    services: list[Service], begin_at: BeginAt, address: str, ask: Ask, fail: bool
) -> None:
    """The answer does not stand, and the checker is told: its check is released."""
    producer, elsewhere = begin_at(services[0]), begin_at(services[1])
    txn = posted(producer, address, b"1")
    producer.peer.close_socket()
    check = checker(elsewhere, address, credit=1).take()
    assert in_group(begin_at(services[0]), address).discharge(txn, fail=fail) == Accepted()
    check.disposition(Accepted() if fail else Rejected(), settled=False)
    assert check.settlement().state == Released()
    assert decided(ask, txn) == (("rollback", "discharged") if fail else ("commit", None))
    assert len(elsewhere.receiver(address).drain()) == int(not fail)


@pytest.mark.rule("H5", "H10", "T11")
def test_exhausted_while_both_services_look(
    services: list[Service], begin_at: BeginAt, address: str, ask: Ask, module_database_url: str
) -> None:
    """Each is set aside once; a discharge of it at either says when that was, and by which instance."""
    producer = begin_at(services[0])
    own = posted(producer, address, b"0")
    producer.peer.close_socket()
    left(ask, own)
    with psycopg.connect(module_database_url) as connection:
        txns = [plant(connection, address, address, [data(b"%d" % n)], checks=15) for n in range(1, 60)]
        connection.execute("update coordinator.txn set checks = 15, next_check_at = now() where checks = 0")
    txns.append(own)
    assert {decided(ask, txn) for txn in txns} == {("rollback", "check-exhausted")}
    link = begin_at(services[0]).receiver(ADDRESS)
    bodies = [each.body for each in link.take_many(len(txns))]
    assert sorted(bodies) == sorted(b"%d" % n for n in range(60))
    assert link.drain() == []
    for service in services:
        state = in_group(begin_at(service), address).discharge(own)
        assert condition(state) == "amqp:transaction:rollback"
        assert "check-exhausted" in state.error.description
        assert f"by instance {decided_by(ask, own)}" in state.error.description
