"""Discharge frame by frame: what decides a transaction, and what ends one that is not discharged (part 4, section 4.3;
rules T8 to T15)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.fix_compiled import BOTH_RULES
from tests.fix_night import by_night
from tests.fix_service import Service
from tests.fix_wire import Ask, Begin, decided
from tests.wire.frames import (
    Accepted,
    Discharge,
    Source,
    TransactionalState,
)
from tests.wire.messages import data
from tests.wire.queues import condition
from tests.wire.types import Symbol, UInt, ULong

pytestmark = BOTH_RULES


@pytest.mark.rule("T8")
def test_accepted_is_durable(begin: Begin, service: Service, address: str) -> None:
    """Part 4, section 4.3: killed right after the answer, the service still has the message, and the decision."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    sender.outcome(data(b"kept"), txn=txn)
    undecided = control.declare()
    sender.outcome(data(b"gone"), txn=undecided)
    control.commit(txn)
    service.kill()
    service.restart()
    session = begin()
    assert session.receiver(address).bodies() == [b"kept"]
    control = session.control()
    assert control.discharge(txn) == Accepted()
    assert condition(control.discharge(undecided)) in ("amqp:transaction:rollback", "amqp:transaction:unknown-id")


@pytest.mark.rule("T8", "T22")
def test_a_commit_that_fails_is_rejected_or_detached(begin: Begin, address: str) -> None:
    """Part 4, section 4.3: rejected(rollback) with the reason; a source without rejected is detached with the same."""
    session = begin()
    sender = session.sender(address)
    broken = b"\x00\x53\x75\xb0\x00\x00\x00\xff"
    control = session.control()
    txn = control.declare()
    sender.post(broken, txn=txn, settled=True)
    state = control.discharge(txn)
    assert condition(state) == "amqp:transaction:rollback"
    assert "amqp:decode-error" in state.error.description

    control = session.control(source=Source(outcomes=("amqp:accepted:list", "amqp:declared:list")))
    txn = control.declare()
    sender.post(broken, txn=txn, settled=True)
    control.request(Discharge(txn_id=txn, fail=False))
    assert control.error == "amqp:transaction:rollback"


@pytest.mark.rule("T9")
@pytest.mark.parametrize(("fail", "bodies"), [(None, [b"x"]), (False, [b"x"]), (True, [])])
def test_fail_decides(begin: Begin, address: str, fail: bool | None, bodies: list[bytes]) -> None:
    """Part 4, section 4.5.3: ``fail`` absent means false; ``fail=true`` always succeeds."""
    session = begin()
    control = session.control()
    txn = control.declare()
    session.sender(address).outcome(data(b"x"), txn=txn)
    assert control.discharge(txn, fail=fail) == Accepted()
    assert session.receiver(address).bodies() == bodies


@pytest.mark.rule("T9")
def test_a_transaction_that_can_only_roll_back_does(begin: Begin, address: str) -> None:
    """Part 4, section 4.3: ``fail=true`` is accepted after a post was refused."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    sender.outcome(data(b"x"), txn=txn)
    sender.post(b"\xff", txn=txn, settled=True)
    control.roll_back(txn)
    assert session.receiver(address).bodies() == []


@pytest.mark.rule("T10")
@pytest.mark.parametrize("txn", [b"", b"x", bytes(16), b"never-was-never-", b"x" * 300])
@pytest.mark.parametrize("fail", [False, True])
def test_an_unknown_txn_id_is_rejected(begin: Begin, txn: bytes, fail: bool) -> None:
    """Part 4, sections 4.3 and 4.5.8."""
    control = begin().control()
    assert condition(control.discharge(txn, fail=fail)) == "amqp:transaction:unknown-id"
    assert control.declare()


@pytest.mark.rule("T7", "T10")
@pytest.mark.parametrize("octet", [0, 15, *map(by_night, range(1, 15))])
def test_a_txn_id_that_was_not_given_out_is_unknown_and_leaves_nothing(begin: Begin, ask: Ask, octet: int) -> None:
    """However near it is to one that was: it is checked with the store's secret."""
    control = begin().control()
    txn = bytearray(control.declare())
    txn[octet] ^= 1
    refused = control.discharge(bytes(txn))
    assert condition(refused) == "amqp:transaction:unknown-id"
    assert "never gave out" in refused.error.description
    assert ask("select 1 from coordinator.op where id = %s", bytes(txn).hex()) == []


@pytest.mark.rule("T10")
def test_an_unknown_txn_id_detaches_where_rejected_is_not_known(begin: Begin) -> None:
    """Part 4, section 4.3: the source's outcomes say what the peer can take."""
    control = begin().control(source=Source(outcomes=("amqp:accepted:list",)))
    control.request(Discharge(txn_id=b"never-was-never-", fail=False))
    assert control.error == "amqp:transaction:unknown-id"


@pytest.mark.rule("T11")
def test_the_first_decision_wins_and_is_remembered(begin: Begin, service: Service, address: str) -> None:
    """A client that lost the reply asks again: on the same link, a new connection, and after a restart."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    committed, rolled_back = control.declare(), control.declare()
    for txn in (committed, rolled_back):
        sender.outcome(data(b"x"), txn=txn)
    control.commit(committed)
    control.roll_back(rolled_back)

    def ask_again(control: Any) -> None:
        assert control.discharge(committed) == Accepted()
        assert condition(control.discharge(committed, fail=True)) == "amqp:illegal-state"
        assert control.discharge(rolled_back, fail=True) == Accepted()
        assert condition(control.discharge(rolled_back)) == "amqp:transaction:rollback"

    ask_again(control)
    ask_again(begin().control())
    service.kill()
    service.restart()
    session = begin()
    ask_again(session.control())
    assert session.receiver(address).bodies() == [b"x"]


@pytest.mark.rule("T11")
def test_a_discharge_repeated_at_once_has_one_answer(begin: Begin, address: str) -> None:
    """Two discharges in one write: the first decides; the other gets the same answer, or that one is under way."""
    session = begin()
    control = session.control()
    txn = control.declare()
    session.sender(address).outcome(data(b"x"), txn=txn)
    first = control.request(Discharge(txn_id=txn, fail=False))
    second = control.request(Discharge(txn_id=txn, fail=True))
    assert control.answer_to(first).state == Accepted()
    assert condition(control.answer_to(second).state) == "amqp:illegal-state"
    assert session.receiver(address).bodies() == [b"x"]


@pytest.mark.rule("T12")
def test_a_transaction_belongs_to_its_connection(begin: Begin, address: str) -> None:
    """Part 4, section 4.1: work of another connection names an unknown transaction; its discharge is a question for the
    outcome, and decides it (T11).
    """
    session, other = begin(), begin()
    control = session.control()
    txn = control.declare()
    assert isinstance(session.sender(address).outcome(data(b"mine"), txn=txn), TransactionalState)
    assert condition(other.sender(address).outcome(data(b"theirs"), txn=txn)) == "amqp:transaction:unknown-id"
    refused = other.control().discharge(txn)
    assert condition(refused) == "amqp:transaction:rollback"
    assert "another connection asked" in refused.error.description
    assert other.control().discharge(txn, fail=True) == Accepted()
    assert condition(session.sender(address).outcome(data(b"late"), txn=txn)) == "amqp:transaction:unknown-id"
    refused = control.discharge(txn)
    assert condition(refused) == "amqp:transaction:rollback"
    assert "another connection asked" in refused.error.description
    assert other.receiver(address).bodies() == []


@pytest.mark.rule("T12")
def test_a_transaction_is_good_on_every_session_of_its_connection(begin: Begin, address: str) -> None:
    """Part 4, section 4.1: declared on one session, worked in on a second, discharged on a third."""
    session = begin()
    first = session.control()
    txn = first.declare()
    assert isinstance(session.peer.begin().sender(address).outcome(data(b"x"), txn=txn), TransactionalState)
    session.peer.begin().control().commit(txn)
    first.detach()
    assert session.receiver(address).bodies() == [b"x"]


@pytest.mark.rule("T13")
@pytest.mark.parametrize("how", ["detach", "end", "close", "socket"])
def test_a_lost_control_link_rolls_back(begin: Begin, address: str, ask: Ask, how: str) -> None:
    """Part 4, section 4.1: undecided transactions roll back with their control link, at once."""
    session = begin()
    working = session.peer.begin()
    control = session.control()
    txn, decided_before = control.declare(), control.declare()
    sender = working.sender(address)
    sender.outcome(data(b"gone"), txn=txn)
    sender.outcome(data(b"kept"), txn=decided_before)
    control.commit(decided_before)
    if how == "detach":
        control.detach()
        assert condition(sender.outcome(data(b"late"), txn=txn)) == "amqp:transaction:unknown-id"
    elif how == "end":
        session.end()
    elif how == "close":
        session.peer.close()
    else:
        session.peer.close_socket()
    assert decided(ask, txn) == ("rollback", "link-lost")
    assert begin().receiver(address).bodies() == [b"kept"]


@pytest.mark.rule("T14")
def test_a_transaction_that_is_too_old_rolls_back(begin: Begin, address: str, ask: Ask) -> None:
    """Part 4, section 4.5.8: amqp:transaction:timeout with the limit, and the connection stays open."""
    session = begin()
    control = session.control(properties={Symbol("coordinator:timeout-ms"): UInt(300)})
    sender = session.sender(address)
    txn = control.declare()
    sender.outcome(data(b"gone"), txn=txn)
    assert decided(ask, txn) == ("rollback", "timeout")
    refused = sender.outcome(data(b"late"), txn=txn)
    assert condition(refused) == "amqp:transaction:timeout"
    assert "0.3 s" in refused.error.description
    refused = control.discharge(txn)
    assert condition(refused) == "amqp:transaction:timeout"
    assert "0.3 s" in refused.error.description
    assert control.discharge(txn, fail=True) == Accepted()
    again = control.declare()
    sender.outcome(data(b"kept"), txn=again)
    control.commit(again)
    assert session.receiver(address).bodies() == [b"kept"]


@pytest.mark.rule("T14", "T35")
def test_a_transaction_without_work_lives_with_its_control_link(begin: Begin, address: str) -> None:
    """Clients declare the next with each discharge: its time runs from the first work."""
    session = begin()
    control = session.control(properties={Symbol("coordinator:timeout-ms"): UInt(2000)})
    sender = session.sender(address)
    posting, retiring = control.declare(), control.declare()
    assert sender.outcome(data(b"before")) == Accepted()
    receiver = session.receiver(address, credit=1)
    delivery = receiver.take()
    time.sleep(3)
    assert isinstance(sender.outcome(data(b"x"), txn=posting), TransactionalState)
    control.commit(posting)
    delivery.retire(retiring, Accepted())
    control.commit(retiring)
    assert begin().receiver(address).bodies() == [b"x"]


@pytest.mark.rule("T14")
def test_the_first_frame_of_a_delivery_is_work(begin: Begin, address: str) -> None:
    session = begin()
    control = session.control(properties={Symbol("coordinator:timeout-ms"): UInt(300)})
    sender = session.sender(address)
    txn = control.declare()
    sender.begin_in(txn)
    time.sleep(2)
    assert condition(control.discharge(txn)) == "amqp:transaction:timeout"


@pytest.mark.rule("T14")
@pytest.mark.parametrize("limit", [UInt(0), ULong(1 << 40), "soon", True])
def test_an_impossible_timeout_is_refused(begin: Begin, limit: Any) -> None:
    """Part 2, section 2.8.15: amqp:invalid-field, naming the property."""
    session = begin()
    control = session.control(properties={Symbol("coordinator:timeout-ms"): limit})
    assert not control.accepted
    found = control.wait_detached().error
    assert found is not None
    assert found.condition == "amqp:invalid-field"
    assert "coordinator:timeout-ms" in str(found.description)
    assert session.control().declare()


@pytest.mark.rule("T15")
def test_discharged_while_a_delivery_is_partial(begin: Begin, address: str, ask: Ask) -> None:
    """Part 4, section 4.4.1: frames are still to come: the discharge is rejected, its control link is detached, the
    transaction rolls back.
    """
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    sender.outcome(data(b"whole"), txn=txn)
    number = sender.begin_in(txn)
    asked = control.request(Discharge(txn_id=txn, fail=False))
    assert condition(control.answer_to(asked).state) == "amqp:transaction:rollback"
    assert control.error == "amqp:transaction:rollback"
    assert decided(ask, txn)[0] == "rollback"
    sender.transfer(b"\xa0\x01x", delivery_id=number)
    assert condition(sender.answer_to(number).state) == "amqp:transaction:unknown-id"
    assert session.receiver(address).bodies() == []


@pytest.mark.rule("T15")
def test_discharged_when_the_last_frame_has_come(begin: Begin, address: str) -> None:
    """Part 4, section 4.4.1: the right use; all frames are there before the discharge."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    number = sender.begin_in(txn)
    sender.transfer(b"\xa0\x01x", delivery_id=number)
    control.commit(txn)
    assert session.receiver(address).bodies() == [b"x"]
