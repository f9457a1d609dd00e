"""Links that end while decisions are on their way to the store: what their peers are told, and get."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from store.embedded.running import running_url
from store.reasons import STORE_REFUSED
from tests.fix_compiled import BOTH_RULES
from tests.fix_service import PATIENCE, Service
from tests.fix_wire import Begin
from tests.held_store import nothing_is_decided
from tests.wire.checkable import accept, in_group
from tests.wire.frames import Accepted, Detach, Discharge
from tests.wire.messages import data
from tests.wire.queues import condition
from tests.wire.types import Symbol

pytestmark = BOTH_RULES


@pytest.mark.rule("T8", "T13")
@pytest.mark.parametrize("closed", [True, False])
def test_a_discharge_is_answered_before_its_control_link_ends(
    service: Service, begin: Begin, address: str, closed: bool
) -> None:
    """A settlement without an outcome may be taken for success, and the commit is not durable. What is not discharged
    rolls back.
    """
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn, other = control.declare(), control.declare()
    sender.outcome(data(b"x"), txn=txn)
    sender.outcome(data(b"y"), txn=other)
    with nothing_is_decided(service) as waits:
        with session.peer.at_once():
            asked = control.request(Discharge(txn_id=txn, fail=False))
            session.send(Detach(handle=control.handle, closed=closed))
        waits()
        session.sync()
        assert (list(session.answers[asked]), control.detached) == ([], None)
    answer = control.answer_to(asked)
    assert (answer.state, answer.settled) == (Accepted(), True)
    while control.detached is None:
        session.peer.step()
    assert control.detached.closed
    assert session.receiver(address).bodies() == [b"x"]


@pytest.mark.rule("T5", "T8")
def test_nor_does_the_service_end_it_before(service: Service, begin: Begin, address: str) -> None:
    """What comes meanwhile is refused for the same reason."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    sender.outcome(data(b"x"), txn=txn)
    with nothing_is_decided(service) as waits:
        asked = control.request(Discharge(txn_id=txn, fail=False))
        waits()
        control.request(Discharge(txn_id=bytes(16), fail=False), settled=True)
        later = control.reply(Discharge(txn_id=bytes(16), fail=False))
        assert condition(later) == "amqp:illegal-state"
        assert (list(session.answers[asked]), control.detached) == ([], None)
    assert control.answer_to(asked).state == Accepted()
    assert control.error == "amqp:illegal-state"


@pytest.mark.rule("T26")
def test_a_retirement_behind_the_end_of_what_is_settled_does_nothing(
    service: Service, begin: Begin, address: str
) -> None:
    """Though its settlement is on its way to the store yet."""
    session = begin()
    control = session.control()
    assert session.sender(address).outcome(data(b"x")) == Accepted()
    consumer, txn = session.receiver(address), control.declare()
    delivery = consumer.take()
    with nothing_is_decided(service) as waits:
        delivery.disposition(Accepted(), settled=False)
        waits()
        # it asks for messages in a transaction, for which its link ends
        consumer.credit(9, properties={Symbol("txn-id"): txn})
        delivery.retire(txn)
        asked = control.request(Discharge(txn_id=txn, fail=False))
        session.sync()
    assert control.answer_to(asked).state == Accepted()


@pytest.mark.rule("T13", "P5", "H20")
@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("plain", "detach"),
        ("plain", "close"),
        ("plain", "discharge"),
        ("checkable", "discharge"),
        ("doomed", "close"),
        ("doomed", "detach"),
        ("doomed", "discharge"),
    ],
)
def test_a_drain_waits_for_what_a_rollback_gives_back(
    service: Service, begin: Begin, address: str, kind: str, how: str
) -> None:
    """As it does outside transactions."""
    session, other = begin(), begin()
    for body in (b"1", b"2", b"3"):
        session.sender(address).outcome(data(body))
    control = session.control() if kind == "plain" else in_group(session)
    consumer = session.receiver(address, credit=3)
    txn = control.declare()
    for delivery in consumer.take_many(3):
        delivery.retire(txn, settled=False)
    session.sync()
    drains = other.receiver(address)
    with nothing_is_decided(service) as waits:
        if kind == "doomed":  # the service rolls it back of itself, as a post is refused
            session.sender(address).post(b"no message", txn=txn, settled=True)
        with session.peer.at_once():
            if how != "close":
                session.send(Detach(handle=consumer.handle, closed=True))
            if how == "detach":
                session.send(Detach(handle=control.handle, closed=True))
            if how == "discharge":
                control.request(Discharge(txn_id=txn, fail=True))
        if how == "close":
            session.peer.close()
        waits()
        drains.credit(10, drain=True)
        other.sync()
        assert not drains.arrived
        assert drains.link_credit == 10
    assert [each.body for each in drains.take_many(3)] == [b"1", b"2", b"3"]


@contextmanager
def no_refused_commit_rolls_back(service: Service) -> Iterator[None]:
    """The rollback that follows a commit that the store refused waits until the block ends."""
    url = running_url(service.data_dir)
    with psycopg.connect(url, autocommit=True) as beside, psycopg.connect(url) as holding:
        holding.execute("select pg_advisory_xact_lock(1)")
        beside.execute(
            "create function public.wait() returns trigger language plpgsql as "
            "$$ begin perform pg_advisory_xact_lock(1); return new; end $$"
        )
        beside.execute(
            "create trigger wait before insert on coordinator.op for each row "
            f"when (new.reason = '{STORE_REFUSED}') execute function public.wait()"
        )
        yield
        holding.rollback()
        beside.execute("drop function public.wait cascade")


@pytest.mark.rule("T13", "P5", "H20")
def test_a_drain_waits_for_what_a_refused_commit_gives_back(service: Service, begin: Begin, address: str) -> None:
    session, other = begin(), begin()
    assert session.sender(address).outcome(data(b"1")) == Accepted()
    control, consumer = in_group(session), session.receiver(address, credit=1)
    txn = control.declare()
    accept(session.sender(f"{address}-2"), b"2", txn)
    consumer.take().retire(txn, settled=True)
    with psycopg.connect(running_url(service.data_dir)) as store:
        store.execute("delete from coordinator.address where name = %s", [f"{address}-2"])
    drains = other.receiver(address)
    with no_refused_commit_rolls_back(service):
        asked = control.request(Discharge(txn_id=txn, fail=False))
        until_it_waits(service)
        drains.credit(10, drain=True)
        other.sync()
        assert (list(session.answers[asked]), list(drains.arrived), drains.link_credit) == ([], [], 10)
    assert condition(control.answer_to(asked).state) == "amqp:transaction:rollback"
    assert drains.take().body == b"1"


def until_it_waits(service: Service) -> None:
    """Wait until the rollback waits."""
    waiting = "select from pg_locks where locktype = 'advisory' and objid = 1 and not granted"
    with psycopg.connect(running_url(service.data_dir), autocommit=True) as beside:
        deadline = time.monotonic() + PATIENCE
        while beside.execute(waiting).fetchone() is None:
            assert time.monotonic() < deadline, "no rollback waits"
            time.sleep(0.01)
