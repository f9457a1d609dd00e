"""Deliveries retired in checkable transactions, frame by frame: who has them meanwhile, and what decisions make of them
(rule H20).
"""

from __future__ import annotations

import time

import pytest

from tests.fix_compiled import BOTH_RULES
from tests.fix_service import PATIENCE, Service
from tests.fix_wire import Ask, Begin, decided
from tests.wire.checkable import accept, in_group, named, row
from tests.wire.frames import Accepted, Modified, Rejected, Released, TransactionalState
from tests.wire.messages import data
from tests.wire.queues import condition
from tests.wire.retirements import held, let_go, ops, retire, soon, waiting
from tests.wire.types import Symbol, UInt

pytestmark = BOTH_RULES

FAILED = Modified(delivery_failed=True)


@pytest.mark.rule("H20", "T26")
def test_a_retirement_is_durable_before_it_is_answered_and_applied_at_the_commit(
    begin: Begin, address: str, ask: Ask
) -> None:
    session, other = begin(), begin()
    waiting(session, address, b"1", b"2")
    consumer, control = session.receiver(address, credit=2), in_group(session)
    txn = control.declare()
    first, second = consumer.take(), consumer.take()
    retire(first, txn)
    assert held(ask, txn) == [("accept", True, -1)]
    assert row(ask, txn)[:2] == ("shop", True)
    second.retire(txn)  # settled: no answer says when it is durable
    deadline = time.monotonic() + PATIENCE
    while held(ask, txn) != [("accept", True, -1)] * 2:
        assert time.monotonic() < deadline
    undecided = ask("select retired, posted from coordinator.undecided where txn_id = encode(%s, 'hex')::uuid", txn)
    assert undecided == [(2, 0)]
    assert other.receiver(address, credit=2).drain() == []
    control.commit(txn)
    answer = first.settlement()
    assert (answer.settled, answer.state) == (True, Accepted())
    assert ops(ask, txn) == [("commit", 2)]
    assert ask("select retired from coordinator.outcome where txn_id = encode(%s, 'hex')::uuid", txn) == [(2,)]
    assert ask("select from coordinator.pending_retirement where txn_id = encode(%s, 'hex')::uuid", txn) == []
    assert other.receiver(address, credit=2).drain() == []


@pytest.mark.rule("H20", "T27", "T28")
def test_rolled_back_by_its_owner_a_delivery_stays_or_has_failed(begin: Begin, address: str, ask: Ask) -> None:
    session, other = begin(), begin()
    waiting(session, address, b"1", b"2")
    consumer, control = session.receiver(address, credit=2), in_group(session)
    txn = control.declare()
    kept, settled = consumer.take(), consumer.take()
    retire(kept, txn)
    settled.retire(txn, settled=True)
    control.roll_back(txn)
    soon(other.receiver(address, credit=2), b"2", 1)
    assert other.receiver(address, credit=2).drain() == []
    again = control.declare()
    retire(kept, again)
    control.commit(again)
    assert ops(ask, again) == [("commit", 1)]


@pytest.mark.rule("H20", "H7")
@pytest.mark.parametrize("way", ["socket", "close", "links"])
@pytest.mark.parametrize("fail", [False, True])
def test_whichever_way_its_consumer_goes_nothing_is_given_back_before_the_decision(
    begin: Begin, address: str, ask: Ask, way: str, fail: bool
) -> None:
    session, other = begin(), begin()
    waiting(session, address, b"1", b"2", b"3")
    consumer, control = session.receiver(address, credit=2), in_group(session)
    txn = control.declare()
    retire(consumer.take(), txn)
    consumer.take().retire(txn, settled=True)
    session.sync()
    if way == "socket":
        session.peer.close_socket()
    elif way == "close":
        session.peer.close()
    else:
        consumer.detach()
        control.detach()
    let_go(ask, txn)
    second = other.receiver(address, credit=10)
    soon(second, b"3", 0)
    other.sync()
    assert not second.arrived
    assert held(ask, txn) == [("accept", False, -1)] * 2
    assert in_group(other).discharge(txn, fail=fail) == Accepted()
    if fail:
        soon(second, b"1", 1)
        soon(second, b"2", 1)
        assert ops(ask, txn) == [("modify", 1), ("modify", 1), ("rollback", None)]
    else:
        assert ops(ask, txn) == [("commit", 2)]
        assert second.drain() == []


@pytest.mark.rule("H20", "D4", "P11")
@pytest.mark.parametrize("gone", [False, True], ids=["open", "left"])
def test_each_outcome_is_applied_at_the_commit(
    service: Service, begin: Begin, address: str, ask: Ask, gone: bool
) -> None:
    service.cli("address", "add", address, "--retry", "ladder 300ms")
    session, other = begin(), begin()
    waiting(session, address, b"accept", b"reject", b"release", b"modify", b"fail")
    consumer, control = session.receiver(address, credit=5), in_group(session)
    txn = control.declare()
    outcomes = [
        Accepted(),
        Rejected(),
        Released(),
        Modified(message_annotations={Symbol("x-opt-seen"): UInt(1)}),
        FAILED,
    ]
    for outcome in outcomes:
        retire(consumer.take(), txn, outcome)
    assert [each[0] for each in held(ask, txn)] == ["accept", "reject", "release", "modify", "modify"]
    if gone:
        session.peer.close_socket()
        let_go(ask, txn)
    assert other.receiver(address, credit=5).drain() == []
    (in_group(other) if gone else control).commit(txn)
    if not gone:
        consumer.detach()
    second = other.receiver(address, credit=5)
    soon(second, b"release", 0)
    seen = second.take()
    assert (seen.body, seen.count, seen.message.annotations) == (b"modify", 0, {"x-opt-seen": 1})
    soon(second, b"fail", 1)
    letters = other.receiver(f"%DLQ%{address}", credit=1)
    assert letters.take().body == b"reject"
    found = ops(ask, txn)
    assert found == [("commit", 1), ("modify", 1), ("modify", 1), ("reject", 1)]


@pytest.mark.rule("H20", "P11")
def test_annotations_are_kept_where_an_entry_stays(begin: Begin, address: str, ask: Ask) -> None:
    session = begin()
    waiting(session, address, b"1", b"2")
    consumer, control = session.receiver(address, credit=2), in_group(session)
    for each in (consumer.take(), consumer.take()):
        each.disposition(Modified(message_annotations={Symbol("x-opt-seen"): UInt(1)}))
    consumer.credit(2)
    txn = control.declare()
    retire(consumer.take(), txn)
    retire(consumer.take(), txn, Released())
    kept = ask(
        "select decision, annotations is not null from coordinator.pending_retirement "
        "where txn_id = encode(%s, 'hex')::uuid order by decision",
        txn,
    )
    assert kept == [("accept", False), ("release", True)]
    control.commit(txn)
    consumer.credit(1)
    assert consumer.take().message.annotations == {"x-opt-seen": 1}


@pytest.mark.rule("H20", "T29")
def test_a_later_outcome_replaces_the_earlier(begin: Begin, address: str, ask: Ask) -> None:
    session, other = begin(), begin()
    waiting(session, address, b"1")
    consumer, control = session.receiver(address, credit=1), in_group(session)
    txn = control.declare()
    delivery = consumer.take()
    with session.peer.at_once():
        for outcome in (Accepted(), FAILED, Rejected(), Released()):
            delivery.retire(txn, outcome, settled=False)
    while held(ask, txn) != [("release", True, -1)]:
        session.sync()
    assert delivery.settlement().state == TransactionalState(txn_id=txn, outcome=Released())
    retire(delivery, txn, FAILED)
    assert held(ask, txn) == [("modify", True, -1)]
    session.peer.close_socket()
    let_go(ask, txn)
    in_group(other).commit(txn)
    soon(other.receiver(address, credit=1), b"1", 1)


@pytest.mark.rule("H20", "T29")
def test_retired_in_a_second_transaction_that_one_rolls_back(begin: Begin, address: str, ask: Ask) -> None:
    """No checker commits it without the retirement; the first is as it was."""
    session, other = begin(), begin()
    waiting(session, address, b"1")
    consumer, control, second = session.receiver(address, credit=1), in_group(session), in_group(session)
    txn, later = control.declare(), second.declare()
    accept(session.sender(address), b"posted", later)
    delivery = consumer.take()
    retire(delivery, txn)
    delivery.retire(later, Rejected(), settled=False)
    assert second.error == "amqp:transaction:rollback"
    assert decided(ask, later)[0] == "rollback"
    control.commit(txn)
    assert ops(ask, txn) == [("commit", 1)]
    assert other.receiver(address).bodies() == []


@pytest.mark.rule("H20", "H2")
@pytest.mark.parametrize("how", ["message", "kind", "connection"])
def test_what_was_retired_before_it_became_checkable_is_held_too(
    service: Service, begin: Begin, address: str, ask: Ask, how: str
) -> None:
    target = address + "-out"
    if how == "kind":
        service.cli("address", "add", target, "--kind", "transaction")
    session = begin(properties={Symbol("coordinator:producer-group"): "shop"} if how == "connection" else None)
    other = begin()
    waiting(session, address, b"1")
    consumer, control, sender = session.receiver(address, credit=1), session.control(), session.sender(target)
    txn = control.declare()
    consumer.take().retire(txn, settled=False)
    message = named(b"out", producer_group="shop") if how == "message" else data(b"out")
    assert sender.outcome(message, txn=txn).outcome == Accepted()
    session.sync()
    session.peer.close_socket()
    let_go(ask, txn)
    assert held(ask, txn) == [("accept", False, -1)]
    assert other.receiver(address, credit=1).drain() == []
    in_group(other, target if how == "kind" else "shop").commit(txn)
    assert other.receiver(target).bodies() == [b"out"]
    assert other.receiver(address, credit=1).drain() == []


@pytest.mark.rule("H20", "H8")
@pytest.mark.parametrize("commits", [True, False])
def test_a_checker_is_shown_the_first_message_that_was_retired_and_decides(
    begin: Begin, address: str, ask: Ask, commits: bool
) -> None:
    """Of a transaction that only retires."""
    session, other = begin(), begin()
    waiting(session, address, b"first", b"second")
    consumer, control = session.receiver(address, credit=2), in_group(session, address)
    txn = control.declare()
    for _ in range(2):
        retire(consumer.take(), txn)
    session.peer.close_socket()
    let_go(ask, txn)
    ask("update coordinator.txn set next_check_at = now() where id = encode(%s, 'hex')::uuid returning id", txn)
    check = other.receiver(f"$check/{address}", credit=1).take()
    ((_, told, _),) = [each for each in check.message.sections if each.code == 0x71]
    shown = {str(key): value for key, value in told.items()}
    assert check.body == b"first"
    assert (shown["x-opt-half-count"], shown["x-opt-retired-count"]) == (0, 2)
    assert shown["x-opt-original-address"] == address
    check.disposition(Accepted() if commits else Rejected())
    assert decided(ask, txn) == ("commit" if commits else "rollback", "checked")
    second = other.receiver(address, credit=2)
    if commits:
        assert second.drain() == []
    else:
        assert [(each.body, each.count) for each in (second.take(), second.take())] == [(b"first", 1), (b"second", 1)]


@pytest.mark.rule("H20", "T27")
@pytest.mark.parametrize("settled", [False, True])
def test_another_rolls_it_back_while_its_consumer_has_the_delivery(
    service: Service, begin: Begin, address: str, ask: Ask, settled: bool
) -> None:
    """It stays with the link, unless its consumer has settled it; the discharge is told what stands."""
    session, other = begin(), begin()
    waiting(session, address, b"1")
    consumer, control = session.receiver(address, credit=1), in_group(session)
    txn = control.declare()
    delivery = consumer.take()
    delivery.retire(txn, settled=settled)
    session.sync()
    service.cli("transaction", "resolve", txn.hex(), "--rollback", "--reason", "by the books")
    second = other.receiver(address, credit=1)
    if settled:
        soon(second, b"1", 1)
    else:
        for _ in range(5):
            other.sync()
            session.sync()
        assert not second.arrived
    assert condition(control.discharge(txn)) == "amqp:transaction:rollback"
    if not settled:
        delivery.disposition(Released())
        soon(second, b"1", 0)
    assert ask("select from coordinator.pending_retirement where txn_id = encode(%s, 'hex')::uuid", txn) == []


@pytest.mark.rule("H20", "H5")
def test_another_commits_it_while_its_consumer_has_the_delivery(
    service: Service, begin: Begin, address: str, ask: Ask
) -> None:
    session, other = begin(), begin()
    waiting(session, address, b"1", b"2")
    consumer, control = session.receiver(address, credit=2), in_group(session)
    txn = control.declare()
    first, second = consumer.take(), consumer.take()
    retire(first, txn)
    retire(second, txn, Released())
    service.cli("transaction", "resolve", txn.hex(), "--commit", "--reason", "by the books")
    assert (first.settlement().state, second.settlement().state) == (Accepted(), Released())
    soon(other.receiver(address, credit=1), b"2", 0)
    control.commit(txn)
    assert ops(ask, txn) == [("commit", 1)]


@pytest.mark.rule("H20", "H10")
def test_without_an_answer_they_come_back_and_are_copied_nowhere(begin: Begin, address: str, ask: Ask) -> None:
    session, other = begin(), begin()
    waiting(session, address, b"1")
    consumer, control = session.receiver(address, credit=1), in_group(session)
    txn = control.declare()
    retire(consumer.take(), txn)
    session.peer.close_socket()
    let_go(ask, txn)
    second = other.receiver(address, credit=1)
    ask(
        "update coordinator.txn set next_check_at = now(), checks = most_checks where id = encode(%s, 'hex')::uuid "
        "returning id",
        txn,
    )
    assert decided(ask, txn) == ("rollback", "check-exhausted")
    soon(second, b"1", 1)


@pytest.mark.rule("H20", "D4")
def test_a_rollback_uses_up_the_last_attempt(service: Service, begin: Begin, address: str, ask: Ask) -> None:
    service.cli("address", "add", address, "--max-attempts", "1")
    session, other = begin(), begin()
    waiting(session, address, b"1")
    consumer, control = session.receiver(address, credit=1), in_group(session)
    txn = control.declare()
    retire(consumer.take(), txn)
    session.peer.close_socket()
    let_go(ask, txn)
    in_group(other).roll_back(txn)
    assert other.receiver(f"%DLQ%{address}", credit=1).take().body == b"1"


@pytest.mark.rule("H20", "T23")
def test_what_it_refuses_rolls_back_its_retirements_before_the_discharge(begin: Begin, address: str, ask: Ask) -> None:
    session = begin()
    waiting(session, address, b"1")
    consumer, control, sender = session.receiver(address, credit=1), in_group(session), session.sender(address + "-o")
    txn = control.declare()
    delivery = consumer.take()
    retire(delivery, txn)
    accept(sender, b"2", txn)
    refused = sender.outcome(named(b"3", producer_group="other"), txn=txn)
    assert condition(refused.outcome) == "amqp:precondition-failed"
    assert decided(ask, txn)[0] == "rollback"
    assert condition(control.discharge(txn)) == "amqp:transaction:rollback"
    delivery.disposition(Accepted(), settled=False)
    assert delivery.settlement() is not None
    session.sync()
    assert ask("select from coordinator.entries where address = %s", address) == []
