"""Check-back from end to end: transactions that producers leave by whatever way, and checkers at several instances and
over kills (rules H7 to H9, H13).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from store.embedded.running import running_url
from tests.fix_check_back import Plant, plant
from tests.fix_proxy import Proxy
from tests.fix_service import PATIENCE, Service, running_service
from tests.fix_wire import Ask, Begin, BeginAt, DialTo, decided
from tests.wire.checkable import accept, in_group, left
from tests.wire.frames import Accepted, Detach, Open, Rejected, Released
from tests.wire.links import Delivery
from tests.wire.messages import data
from tests.wire.peer import Session
from tests.wire.queues import condition
from tests.wire.types import UInt

SETTINGS = {"check.immunity_seconds": "0", "check.interval_seconds": "0.2", "check.most": "1000", "workers": "2"}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service(SETTINGS) as service:
        yield service


def begin_at_worker(dial_to: DialTo, worker: int, container: str) -> Session:
    peer = dial_to(worker)
    peer.send(Open(container_id=container))
    peer.remote_open = peer.wait(Open)
    return peer.begin()


def posted(session: Session, address: str, *bodies: bytes, **properties: object) -> bytes:
    """A checkable transaction of the group ``address``, whose posts are accepted."""
    txn = in_group(session, address, **properties).declare()
    sender = session.sender(address)
    for body in bodies:
        accept(sender, body, txn)
    return txn


def told_by(check: Delivery) -> dict[str, object]:
    return {str(key): each for key, each in check.message.delivery_annotations.items()}


def check_id(check: Delivery) -> bytes:
    found = told_by(check)["x-opt-txn-id"]
    assert isinstance(found, bytes)
    return found


@pytest.mark.rule("H11")
def test_a_checker_that_answers_none_keeps_no_other_from_being_checked(
    begin: Begin, address: str, planted: Plant, ask: Ask, service: Service
) -> None:
    """It has as many as it may leave unanswered, each of another transaction. It may be at work on the first ones."""
    with psycopg.connect(running_url(service.data_dir)) as connection:
        for number in range(100):
            plant(connection, address, address, [data(b"%d" % number)])
    link = begin().receiver(f"$check/{address}", credit=1000)
    stuck = link.take_many(100)
    other = planted(address, address, data(b"other"))
    check = link.take()
    assert check_id(check) == other
    assert [each.settlement().state for each in stuck[50:]] == [Released()] * 50
    for answered in (check, stuck[0]):
        answered.disposition(Accepted())
        assert decided(ask, check_id(answered)) == ("commit", "checked")


@pytest.mark.rule("H7", "H8", "H13")
@pytest.mark.parametrize("way", ["link", "session", "connection", "socket"])
def test_whichever_way_a_producer_leaves_it_is_checked(begin: Begin, address: str, ask: Ask, way: str) -> None:
    other = begin()
    consumer = other.receiver(address, credit=5)
    checker = other.receiver(f"$check/{address}", credit=5)
    session = begin()
    control = in_group(session, address)
    txn = control.declare()
    accept(session.sender(address), b"1", txn)
    if way == "link":
        session.send(Detach(handle=control.handle, closed=True))
    elif way == "session":
        session.end()
    elif way == "connection":
        session.peer.close()
    else:
        session.peer.close_socket()
    check = checker.take()
    assert told_by(check)["x-opt-txn-id"] == txn
    check.disposition(Accepted())
    assert consumer.take().body == b"1"
    assert decided(ask, txn) == ("commit", "checked")


@pytest.mark.rule("H7")
def test_none_is_checked_that_its_client_holds_in_time(begin: Begin, address: str, ask: Ask) -> None:
    session, other = begin(), begin()
    txn = posted(session, address, b"1")
    checker = other.receiver(f"$check/{address}")
    assert checker.drain() == []
    session.peer.close_socket()
    left(ask, txn)
    assert [told_by(each)["x-opt-txn-id"] for each in checker.drain()] == [txn]


@pytest.mark.rule("H7")
def test_none_is_checked_before_its_immunity(begin: Begin, address: str, ask: Ask) -> None:
    session, other = begin(), begin()
    txn = posted(session, address, b"1", check_immunity_ms=UInt(3_600_000))
    session.peer.close_socket()
    left(ask, txn)
    assert other.receiver(f"$check/{address}").drain() == []


@pytest.mark.rule("H7", "H8", "T14")
@pytest.mark.parametrize("outcome", [Accepted(), Rejected()])
def test_past_its_timeout_its_own_connection_is_asked(
    dial_to: DialTo, address: str, ask: Ask, outcome: Accepted | Rejected
) -> None:
    """Not the checkers of its worker's other connections, nor those of another worker. Its discharge comes later."""
    others = [begin_at_worker(dial_to, worker, f"other-{worker}-{address}") for worker in (0, 1)]
    strangers = [other.receiver(f"$check/{address}", credit=5) for other in others]
    session = begin_at_worker(dial_to, 0, f"own-{address}")
    checker = session.receiver(f"$check/{address}", credit=5)
    control = in_group(session, address, timeout_ms=UInt(50))
    txn = control.declare()
    accept(session.sender(address), b"1", txn)
    check = checker.take()
    assert told_by(check)["x-opt-txn-id"] == txn
    check.disposition(outcome, settled=False)
    assert check.settlement().state == outcome
    assert decided(ask, txn) == ("commit" if outcome == Accepted() else "rollback", "checked")
    late = control.discharge(txn)
    assert late == Accepted() if outcome == Accepted() else condition(late) == "amqp:transaction:rollback"
    for stranger in strangers:
        assert stranger.drain() == []


@pytest.mark.rule("H7", "H8")
def test_after_its_control_link_is_closed_its_own_connection_is_asked_first(
    dial_to: DialTo, address: str, ask: Ask
) -> None:
    """Not the checkers of its worker's other connections, nor those of another worker. These are asked next, if it has
    given no answer.
    """
    others = [begin_at_worker(dial_to, worker, f"other-{number}-{address}") for number, worker in enumerate((0, 0, 1))]
    strangers = [other.receiver(f"$check/{address}", credit=20) for other in others]
    session = begin_at_worker(dial_to, 0, f"own-{address}")
    checker, sender = session.receiver(f"$check/{address}", credit=20), session.sender(address)
    for _ in range(8):
        control = in_group(session, address, check_interval_ms=UInt(3_600_000))
        txn = control.declare()
        accept(sender, b"1", txn)
        session.send(Detach(handle=control.handle, closed=True))
        assert check_id(checker.take()) == txn
    ask("update coordinator.txn set next_check_at = now() where producer_group = %s returning id", address)
    deadline = time.monotonic() + PATIENCE
    again: list[Delivery] = []
    while not again:
        assert time.monotonic() < deadline
        again = [check for stranger in strangers for check in stranger.drain(20)]
    assert {told_by(check)["x-opt-check-count"] for check in again} == {2}


@pytest.mark.rule("H8", "H9")
def test_checkers_at_two_instances(dial_to: DialTo, address: str, ask: Ask) -> None:
    """Of transactions left at either each is checked once at a time, by whichever checker."""
    txns = []
    for worker in (0, 1):
        for number in range(20):
            session = begin_at_worker(dial_to, worker, f"{worker}-{number}-{address}")
            txns.append(posted(session, address, b"%d-%d" % (worker, number)))
            session.peer.close_socket()
    for txn in txns:
        left(ask, txn)
    ask("update coordinator.txn set check_interval_ms = 3600000 where producer_group = %s returning id", address)
    sessions = [begin_at_worker(dial_to, worker, f"checker-{worker}-{address}") for worker in (0, 1)]
    checkers = [session.receiver(f"$check/{address}", credit=100) for session in sessions]
    seen: Counter[bytes] = Counter()
    deadline = time.monotonic() + PATIENCE
    while len(seen) < len(txns):
        assert time.monotonic() < deadline, f"{len(seen)} of {len(txns)}"
        for checker in checkers:
            checker.session.sync()
            while checker.arrived:
                check = checker.arrived.popleft()
                seen[check_id(check)] += 1
                check.disposition(Accepted())
    assert seen == Counter(txns)
    consumer = sessions[0].receiver(address)
    assert len({each.body for each in consumer.take_many(len(txns))}) == len(txns)
    assert {decided(ask, txn) for txn in txns} == {("commit", "checked")}


@pytest.mark.rule("H9")
def test_a_kill_after_a_check_is_taken_and_before_it_is_sent_costs_none(
    begin_at: BeginAt, database_url: str, proxy: Proxy, tmp_path: Path
) -> None:
    """The store's reply to the look does not come: what it took is sent an interval later, and is the first."""
    service = Service(
        tmp_path, {**SETTINGS, "check.interval_seconds": "3600", "workers": "1", "database_url": proxy.url}
    )
    service.start()
    try:
        checker = begin_at(service).receiver("$check/shop")
        assert checker.drain() == []
        checker.credit(1)  # the service looks now and then from here on
        with psycopg.connect(database_url) as planting, ExitStack() as reply:
            txn = plant(planting, "shop", "orders", [data(b"1")])

            def look(octets: bytes) -> None:
                if b"take_checks" in octets:
                    proxy.on_request = lambda _: None
                    planting.commit()
                    reply.enter_context(proxy.held("replies"))

            proxy.on_request = look
            with psycopg.connect(database_url, autocommit=True) as store:
                taken = b"select checks from coordinator.txn where next_check_at > now()"
                deadline = time.monotonic() + PATIENCE
                while not (found := store.execute(taken).fetchall()):
                    assert time.monotonic() < deadline, "it was not taken"
                service.kill()
                assert found == store.execute(taken).fetchall() == [(0,)]
        service.restart()
        checker = begin_at(service).receiver("$check/shop")
        assert checker.drain() == []
        with psycopg.connect(database_url) as store:
            assert store.execute(b"select checks from coordinator.txn").fetchall() == [(0,)]
            store.execute(b"update coordinator.txn set next_check_at = now()")
        checker.credit(1)
        told = told_by(checker.take())
        assert (told["x-opt-txn-id"], told["x-opt-check-count"]) == (txn, 1)
    finally:
        service.discard()


@pytest.mark.rule("H5", "H8", "H13")
def test_over_kills_each_is_decided_once_and_as_a_checker_said(begin_at: BeginAt) -> None:
    """The service is killed -9 while a checker answers: every second commits, the others roll back."""
    count, kills = 200, 3
    with running_service({**SETTINGS, "workers": "1"}) as service:
        producer = begin_at(service)
        control, sender = in_group(producer, "shop"), producer.sender("orders")
        txns = []
        for number in range(count):
            txns.append(control.declare())
            accept(sender, b"%d" % number, txns[-1])
        producer.peer.close_socket()
        for _ in range(kills):
            _answer(begin_at(service), count // (kills + 1))
            service.kill()
            service.restart()
        _answer(begin_at(service), 100 * count)
        with psycopg.connect(running_url(service.data_dir)) as connection:
            ops = connection.execute("select id, decision, reason from coordinator.op where posted = 1").fetchall()
        assert {each[0].bytes: each[1:] for each in ops} == {
            txn: ("rollback" if number % 2 else "commit", "checked") for number, txn in enumerate(txns)
        }
        assert len(ops) == count
        consumer = begin_at(service).receiver("orders")
        assert sorted(int(each.body) for each in consumer.take_many(count // 2)) == list(range(0, count, 2))
        assert consumer.drain() == []


def _answer(session: Session, most: int) -> None:
    """Answer so many checks, or all until none come any more. What is not decided within the interval comes again."""
    checker = session.receiver("$check/shop", credit=20)
    answered = 0
    quiet = 0
    while answered < most and quiet < 5:
        checks = checker.drain(20)
        for check in checks:
            check.disposition(Rejected() if int(check.body) % 2 else Accepted())
        answered += len(checks)
        quiet = 0 if checks else quiet + 1
        time.sleep(0 if checks else 0.2)
