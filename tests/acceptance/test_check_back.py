"""Check-back frame by frame: what checkers are sent, and what their outcomes do (rules H7 to H11)."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import pytest

from store.embedded.running import running_url
from tests.fix_check_back import Plant, plant
from tests.fix_service import PATIENCE, Service
from tests.fix_wire import Ask, Begin, decided
from tests.wire.frames import Accepted, Modified, Received, Rejected, Released, Source, State, TransactionalState
from tests.wire.links import Delivery, Receiver
from tests.wire.messages import DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, Properties, data, section
from tests.wire.peer import Session
from tests.wire.types import Described, Symbol

#: so that no test waits long for the second check
SOON_MS = 50


def checker(session: Session, group: str, *, credit: int = 10, **fields: Any) -> Receiver:
    return session.receiver(f"$check/{group}", credit=credit, **fields)


def told_by(check: Delivery) -> dict[str, Any]:
    """Its delivery annotations."""
    return {str(key): each for key, each in check.message.delivery_annotations.items()}


def checks_of(ask: Ask, txn: bytes) -> int:
    """How many count; the transaction is undecided."""
    ((checks,),) = ask("select checks from coordinator.txn where id = encode(%s, 'hex')::uuid", txn)
    return int(checks)


def wait_for_checks(ask: Ask, txn: bytes, wanted: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while checks_of(ask, txn) != wanted:
        assert time.monotonic() < deadline, "the check was not counted"
        time.sleep(0.02)


@pytest.mark.rule("H7", "H8")
def test_accepted_commits_all_halves(begin: Begin, address: str, planted: Plant, ask: Ask) -> None:
    session = begin()
    consumer = session.receiver(address, credit=10)
    first = section(DELIVERY_ANNOTATIONS, {Symbol("x-opt-hop"): "1"})
    first += section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-mine"): "2"}) + data(b"1")
    txn = planted(address, address, first, data(b"2"), data(b"3"))
    check = checker(session, address).take()
    assert not check.settled
    assert check.message.bare == data(b"1")
    assert check.message.annotations == {"x-opt-mine": "2"}
    told = told_by(check)
    assert time.time() * 1000 - told.pop("x-opt-declared-at") == pytest.approx(60_000, abs=30_000)
    assert told == {
        "x-opt-txn-id": txn,
        "x-opt-check-count": 1,
        "x-opt-half-count": 3,
        "x-opt-retired-count": 0,
        "x-opt-original-address": address,
    }
    assert not consumer.arrived
    check.disposition(Accepted(), settled=False)
    answer = check.settlement()
    assert (answer.settled, answer.state) == (True, Accepted())
    assert decided(ask, txn) == ("commit", "checked")  # it is settled once that is durable
    assert [consumer.take().body for _ in range(3)] == [b"1", b"2", b"3"]
    assert ask("select from coordinator.txn where producer_group = %s", address) == []
    assert ask("select posted from coordinator.op where id = encode(%s, 'hex')::uuid", txn) == [(3,)]


@pytest.mark.rule("H8")
def test_rejected_rolls_back(begin: Begin, address: str, planted: Plant, ask: Ask) -> None:
    session = begin()
    consumer = session.receiver(address, credit=10)
    txn = planted(address, address, data(b"1"))
    checker(session, address).take().disposition(Rejected())
    assert decided(ask, txn) == ("rollback", "checked")
    assert consumer.drain() == []


@pytest.mark.rule("H7", "H8", "H9")
@pytest.mark.parametrize("state", [Released(), Modified(delivery_failed=True), None])
def test_what_is_no_decision_leaves_it_unknown(
    begin: Begin, address: str, planted: Plant, ask: Ask, state: State | None
) -> None:
    """It counts, and is checked again after the interval."""
    txn = planted(address, address, data(b"1"), interval_ms=SOON_MS)
    link = checker(begin(), address)
    for count in (1, 2, 3):
        check = link.take()
        assert told_by(check)["x-opt-check-count"] == count
        check.disposition(state)
    link.take().disposition(Accepted())
    assert decided(ask, txn) == ("commit", "checked")


@pytest.mark.rule("H8")
def test_received_is_no_outcome_yet(begin: Begin, address: str, planted: Plant, ask: Ask) -> None:
    txn = planted(address, address, data(b"1"))
    session = begin()
    check = checker(session, address).take()
    check.disposition(Received(section_number=0, section_offset=0), settled=False)
    session.sync()
    check.disposition(Accepted())
    assert decided(ask, txn) == ("commit", "checked")


@pytest.mark.rule("H7", "H8")
def test_one_that_never_answers_is_asked_again_and_a_late_answer_counts(
    begin: Begin, address: str, planted: Plant, ask: Ask
) -> None:
    """The first answer decides; those to later checks of the same transaction do nothing."""
    txn = planted(address, address, data(b"1"), interval_ms=SOON_MS)
    link = checker(begin(), address, credit=3)
    first, second, third = link.take(), link.take(), link.take()
    second.disposition(Rejected(), settled=False)
    assert second.settlement().state == Rejected()
    first.disposition(Accepted(), settled=False)
    assert first.settlement().state == Released()  # it does not stand
    third.disposition(Rejected(), settled=False)
    assert third.settlement().state == Rejected()
    assert decided(ask, txn) == ("rollback", "checked")


@pytest.mark.rule("H8")
def test_two_outcomes_of_one_check(begin: Begin, address: str, planted: Plant, ask: Ask, service: Service) -> None:
    """The second comes while the first is on its way to the store, which waits."""
    txn = planted(address, address, data(b"1"))
    session = begin()
    check = checker(session, address).take()
    with psycopg.connect(running_url(service.data_dir)) as other:
        other.execute("select from coordinator.txn where producer_group = %s for update", [address])
        for state in (Accepted(), Rejected()):
            check.disposition(state, settled=False)
            session.sync()
    assert decided(ask, txn) == ("commit", "checked")
    assert check.settlement().state == Accepted()


@pytest.mark.rule("H8")
def test_outcomes_after_the_answer_mean_nothing(begin: Begin, address: str, planted: Plant, ask: Ask) -> None:
    """Settled twice, and settled with another outcome: the link goes on."""
    session = begin()
    link = checker(session, address)
    txns = [planted(address, address, data(b"%d" % number), due=-10 + number) for number in range(2)]
    first, second = link.take(), link.take()
    first.disposition(Accepted(), settled=False)
    assert first.settlement().state == Accepted()
    for state in (Accepted(), Rejected(), Released()):
        for settled in (False, True):
            first.disposition(state, settled=settled)
    second.disposition(Rejected())
    session.sync()  # of two that are read at once, Proton shows the last
    second.disposition(Accepted())
    assert [decided(ask, txn) for txn in txns] == [("commit", "checked"), ("rollback", "checked")]
    later = planted(address, address, data(b"x"))
    assert told_by(link.take())["x-opt-txn-id"] == later


@pytest.mark.rule("H8", "H9")
def test_a_checker_of_a_group_that_nothing_belongs_to(begin: Begin, address: str, planted: Plant, ask: Ask) -> None:
    """It is sent nothing, and may have come before its producers."""
    other = planted(f"{address}-other", address, data(b"1"))
    session = begin()
    link = checker(session, address)
    assert link.drain() == []
    assert checks_of(ask, other) == 0
    link.credit(1)
    txn = planted(address, address, data(b"2"))
    link.take().disposition(Accepted())
    assert decided(ask, txn) == ("commit", "checked")


@pytest.mark.rule("H8", "H9")
@pytest.mark.parametrize("way", ["link", "session", "connection", "socket"])
def test_a_checker_that_vanishes_with_the_check(
    begin: Begin, address: str, planted: Plant, ask: Ask, service: Service, way: str
) -> None:
    """Its credit goes with it: no further check is counted for it. Of a socket it is not known when that is seen."""
    txn = planted(address, address, data(b"1"), interval_ms=3_600_000)
    lost = begin()
    link = checker(lost, address, credit=1 if way == "socket" else 10)
    assert told_by(link.take())["x-opt-check-count"] == 1
    wait_for_checks(ask, txn, 1)
    if way == "link":
        link.detach()
    elif way == "session":
        lost.end()
    elif way == "connection":
        lost.peer.close()
    else:
        lost.peer.close_socket()
    ask("update coordinator.txn set next_check_at = now() where producer_group = %s returning id", address)
    fence(begin(), address, service)
    assert checks_of(ask, txn) == 1
    check = checker(begin(), address).take()
    assert told_by(check)["x-opt-check-count"] == 2
    check.disposition(Accepted())
    assert decided(ask, txn) == ("commit", "checked")


@pytest.mark.rule("H9")
def test_no_count_is_spent_without_a_checker_with_credit(begin: Begin, address: str, planted: Plant, ask: Ask) -> None:
    """Neither those of another group, nor one without credit, nor a drain with nothing due."""
    txn = planted(address, address, data(b"1"))
    session = begin()
    others = [checker(session, f"{address}-{number}") for number in range(3)]
    silent = checker(session, address, credit=0)
    assert [other.drain() for other in others] == [[], [], []]
    assert checks_of(ask, txn) == 0
    assert [told_by(each)["x-opt-txn-id"] for each in silent.drain()] == [txn]
    wait_for_checks(ask, txn, 1)


@pytest.mark.rule("H7")
def test_none_is_checked_before_it_is_due(begin: Begin, address: str, planted: Plant, ask: Ask) -> None:
    """And it is checked then, without another event."""
    link = checker(begin(), address, credit=0)
    assert link.drain() == []  # all of the past is looked at: the next drain takes a moment
    txn = planted(address, address, data(b"1"), due=1.0)
    assert link.drain() == []
    assert checks_of(ask, txn) == 0
    link.credit(1)
    assert told_by(link.take())["x-opt-txn-id"] == txn


@pytest.mark.rule("H9")
def test_no_more_are_taken_than_there_is_credit_for(begin: Begin, address: str, planted: Plant, ask: Ask) -> None:
    txns = [planted(address, address, data(b"%d" % number), due=-10 + number) for number in range(5)]
    session = begin()
    link = checker(session, address, credit=2)
    assert [told_by(each)["x-opt-txn-id"] for each in (link.take(), link.take())] == txns[:2]
    for txn in txns[:2]:
        wait_for_checks(ask, txn, 1)
    assert [checks_of(ask, txn) for txn in txns] == [1, 1, 0, 0, 0]
    assert [told_by(each)["x-opt-txn-id"] for each in link.drain()] == txns[2:]


@pytest.mark.rule("H9")
def test_a_checker_leaves_at_most_a_hundred_unanswered(begin: Begin, address: str, ask: Ask, service: Service) -> None:
    """Whatever credit it gives."""
    with psycopg.connect(running_url(service.data_dir)) as connection:
        for number in range(110):
            plant(connection, address, address, [data(b"%d" % number)])
    link = checker(begin(), address, credit=1000)
    checks = [link.take() for _ in range(100)]
    fence(begin(), address, service)
    assert sent_of(ask, address) == 100
    for check in checks:
        check.disposition(Accepted())
    assert len([link.take() for _ in range(10)]) == 10


@pytest.mark.rule("H9", "P5")
def test_a_checker_that_reads_nothing_is_sent_no_more(begin: Begin, address: str, ask: Ask, service: Service) -> None:
    """What it was not sent is not counted, and comes when it reads."""
    count = 30
    with psycopg.connect(running_url(service.data_dir)) as connection:
        for _ in range(count):
            plant(connection, address, address, [data(bytes(1_000_000))])
    session = begin()
    link = checker(session, address, credit=0)
    session.sync()
    link.credit(count)
    deadline = time.monotonic() + PATIENCE
    while not sent_of(ask, address):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    fence(begin(), address, service)
    assert 0 < sent_of(ask, address) < count
    assert {told_by(link.take())["x-opt-check-count"] for _ in range(count)} == {1}


@pytest.mark.rule("H9", "P5")
def test_a_checker_whose_window_is_shut_is_sent_none(
    begin: Begin, address: str, ask: Ask, service: Service, planted: Plant
) -> None:
    """What the window does not let through is no check; it comes as the window opens."""
    session = begin().peer.begin(incoming_window=0)
    link = checker(session, address, credit=0)
    link.credit(50)
    session.sync()
    txn = planted(address, address, data(b"x"))
    fence(begin(), address, service)
    assert checks_of(ask, txn) == 0
    session.flow(next_incoming_id=session.next_incoming_id, incoming_window=10)
    assert told_by(link.take())["x-opt-check-count"] == 1


def fence(session: Session, address: str, service: Service) -> None:
    """A check of another group, and its count: what the looks before have taken was sent and counted by then, or given
    back.
    """
    group = f"{address}-fence"
    with psycopg.connect(running_url(service.data_dir), autocommit=True) as connection:
        txn = plant(connection, group, address, [data(b"fence")])
        checker(session, group, credit=1).take()
        wait_for_checks(lambda sql, *values: connection.execute(sql.encode(), values).fetchall(), txn, 1)


def sent_of(ask: Ask, group: str) -> int:
    """How many transactions of the group have a check that counts."""
    ((count,),) = ask("select count(*) from coordinator.txn where producer_group = %s and checks > 0", group)
    return int(count)


@pytest.mark.rule("H8")
def test_checkers_of_a_group_share_its_checks(begin: Begin, address: str, planted: Plant) -> None:
    links = [checker(begin(), address, credit=10) for _ in range(2)]
    txns = {planted(address, address, data(b"x")) for _ in range(6)}
    seen: list[bytes] = []
    deadline = time.monotonic() + PATIENCE
    while len(seen) < len(txns):
        assert time.monotonic() < deadline
        for link in links:
            link.session.sync()
            seen += [told_by(link.arrived.popleft())["x-opt-txn-id"] for _ in range(len(link.arrived))]
    assert sorted(seen) == sorted(txns)
    assert all(link.delivery_count for link in links)


@pytest.mark.rule("H11")
def test_a_transaction_whose_halves_are_lost_stops_no_other(
    begin: Begin, address: str, planted: Plant, ask: Ask
) -> None:
    """Its checker is asked all the same, and can end it."""
    lost = planted(address, address, due=-30)
    unreadable = planted(address, address, b"no message", due=-20)
    sound = planted(address, address, data(b"x"), due=-10)
    link = checker(begin(), address, credit=1)
    first = link.take()
    told = told_by(first)
    assert (told["x-opt-txn-id"], told["x-opt-body-left-out"], told["x-opt-half-count"]) == (lost, True, 0)
    first.disposition(Rejected())
    second = link.take()
    assert (told_by(second)["x-opt-txn-id"], second.body) == (unreadable, b"no message")
    second.disposition(Rejected())
    assert told_by(link.take())["x-opt-txn-id"] == sound
    assert decided(ask, unreadable) == decided(ask, lost) == ("rollback", "checked")


@pytest.mark.rule("H8", "P2")
def test_of_a_large_first_half_the_body_is_left_out(begin: Begin, address: str, planted: Plant, ask: Ask) -> None:
    session = begin()
    consumer = session.receiver(address, credit=1)
    message = Properties(message_id="o-7").encoded() + data(bytes(1 << 21))
    txn = planted(address, address, message)
    check = checker(session, address).take()
    assert told_by(check)["x-opt-body-left-out"] is True
    assert [each.value for each in check.message.sections[1:]] == [Properties(message_id="o-7"), b""]
    check.disposition(Accepted())
    assert decided(ask, txn) == ("commit", "checked")
    assert consumer.take().message.bare == message


@pytest.mark.rule("H2", "H8")
@pytest.mark.parametrize("group", ["", "g" * 256])
def test_a_group_that_none_can_be_called(begin: Begin, group: str) -> None:
    link = checker(begin(), group, credit=0)
    error = link.wait_detached().error
    assert error is not None
    assert error.condition == "amqp:invalid-field"
    assert "1 to 255 printable characters" in (error.description or "")


@pytest.mark.rule("H8")
@pytest.mark.parametrize(
    ("source", "fields"),
    [
        ({"distribution_mode": Symbol("copy")}, {}),
        ({"filter": {Symbol("s"): Described(Symbol("apache.org:selector-filter:string"), "n = 1")}}, {}),
        ({}, {"snd_settle_mode": 1}),
    ],
    ids=["browse", "selector", "settled"],
)
def test_what_no_checker_can_have(begin: Begin, address: str, source: dict[str, Any], fields: dict[str, Any]) -> None:
    link = begin().receiver(Source(address=f"$check/{address}", **source), **fields)
    assert link.error == "amqp:not-implemented"


@pytest.mark.rule("H8")
def test_nothing_is_posted_to_checkers(begin: Begin, address: str) -> None:
    session = begin()
    sender = session.sender(f"$check/{address}")
    assert not sender.accepted
    assert sender.error == "amqp:not-found"


@pytest.mark.rule("H8")
def test_a_check_is_not_retired_in_a_transaction(begin: Begin, address: str, planted: Plant, ask: Ask) -> None:
    txn = planted(address, address, data(b"1"), interval_ms=SOON_MS)
    session = begin()
    control = session.control()
    link = checker(session, address)
    link.take().disposition(TransactionalState(txn_id=control.declare(), outcome=Accepted()))
    assert link.error == "amqp:not-allowed"
    checker(session, address).take().disposition(Accepted())
    assert decided(ask, txn) == ("commit", "checked")


@pytest.mark.rule("H8")
def test_what_was_posted_to_a_removed_address_can_only_be_rolled_back(
    begin: Begin, address: str, planted: Plant, ask: Ask
) -> None:
    txn = planted(address, address, data(b"1"))
    check = checker(begin(), address).take()
    ask("delete from coordinator.address where name = %s returning id", address)
    check.disposition(Accepted(), settled=False)
    assert check.settlement().state == Released()
    assert decided(ask, txn) == ("rollback", "address-removed")
