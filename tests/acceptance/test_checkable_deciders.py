"""What becomes of checkable transactions frame by frame: their clients go or come too late, others decide (rules H5,
H7, H13, H15, H20).
"""

from __future__ import annotations

import re
import time

import psycopg
import pytest

from store.embedded.running import running_url
from tests.fix_service import PATIENCE, Service
from tests.fix_wire import Ask, Begin, decided
from tests.wire.checkable import accept, in_group, left, pending, row
from tests.wire.frames import Accepted
from tests.wire.messages import data
from tests.wire.queues import BROKEN, condition
from tests.wire.types import UInt


@pytest.mark.rule("H7", "H13", "T13")
def test_a_lost_control_link_leaves_it_undecided(begin: Begin, address: str, ask: Ask) -> None:
    session, other = begin(), begin()
    control, sender = in_group(session, check_immunity_ms=UInt(3_000_000)), session.sender(address)
    txn = control.declare()
    accept(sender, b"1", txn)
    unused = control.declare()
    control.detach()
    found = left(ask, txn)
    assert found[1] is True, "its connection is there"
    (due,) = ask(
        "select next_check_at - declared_at = interval '50 minutes' from coordinator.txn "
        "where id = encode(%s, 'hex')::uuid",
        txn,
    )[0]
    assert due
    assert pending(ask, txn) == 1
    assert row(ask, unused) is None
    assert condition(sender.outcome(data(b"2"), txn=txn)) == "amqp:transaction:unknown-id"
    # the same connection is of its group still
    in_group(session).commit(txn)
    assert other.receiver(address).bodies() == [b"1"]


@pytest.mark.rule("H7", "H13", "T13")
def test_a_lost_connection_leaves_it_undecided_and_a_plain_one_is_rolled_back(
    begin: Begin, address: str, ask: Ask
) -> None:
    session = begin()
    control, plain, sender = in_group(session), session.control(), session.sender(address)
    txn, lost = control.declare(), plain.declare()
    accept(sender, b"1", txn)
    accept(sender, b"2", lost)
    session.peer.close_socket()
    assert decided(ask, lost) == ("rollback", "link-lost")
    assert left(ask, txn)[:2] == ("shop", False)


@pytest.mark.rule("H2", "H13", "T23")
def test_its_client_leaves_while_its_first_post_is_on_its_way_and_another_was_refused(
    service: Service, begin: Begin, address: str, ask: Ask
) -> None:
    """It is rolled back once the post is answered, and nothing of it waits."""
    session, other = begin(), begin()
    control, sender = in_group(session), session.sender(address)
    txn = control.declare()
    with psycopg.connect(running_url(service.data_dir)) as store:
        store.execute("lock table coordinator.pending in exclusive mode")
        with session.peer.at_once():
            sender.post(data(b"1"), txn=txn)
            sender.post(BROKEN, txn=txn, settled=True)
        session.sync()
        session.peer.close_socket()
        other.sync()
    assert decided(ask, txn)[0] == "rollback"
    deadline = time.monotonic() + PATIENCE
    while row(ask, txn) is not None:
        assert time.monotonic() < deadline, "it is decided, and waits for checks"
        time.sleep(0.02)
    assert pending(ask, txn) == 0


@pytest.mark.rule("H2", "H13", "T22")
def test_its_client_leaves_while_the_store_refuses_a_post(
    service: Service, begin: Begin, address: str, ask: Ask
) -> None:
    """A checker cannot commit the rest: it is rolled back."""
    session, other = begin(), begin()
    control = in_group(session)
    txn = control.declare()
    accept(session.sender(address), b"1", txn)
    sender = session.sender(f"{address}-2")
    sender.wait_for_credit()
    with psycopg.connect(running_url(service.data_dir)) as store:
        store.execute("delete from coordinator.address where name = %s", [f"{address}-2"])
        sender.post(data(b"2"), txn=txn, settled=True)
        session.sync()
        session.peer.close_socket()
        other.sync()
    assert decided(ask, txn) == ("rollback", "rollback-only: amqp:resource-deleted")
    assert (row(ask, txn), pending(ask, txn)) == (None, 0)


@pytest.mark.rule("H7", "T14")
def test_past_its_timeout_it_is_due_and_can_still_be_discharged(begin: Begin, address: str, ask: Ask) -> None:
    session = begin()
    control = in_group(session, timeout_ms=UInt(100), check_immunity_ms=UInt(0))
    sender = session.sender(address)
    txn = control.declare()
    accept(sender, b"1", txn)
    assert left(ask, txn)[:2] == ("shop", True)
    accept(sender, b"2", txn)
    control.commit(txn)
    assert session.receiver(address).bodies() == [b"1", b"2"]


@pytest.mark.rule("H20", "T12")
@pytest.mark.parametrize("fail", [False, True])
@pytest.mark.parametrize("gone", [False, True], ids=["open", "left"])
def test_a_producer_that_comes_back_decides(begin: Begin, address: str, ask: Ask, fail: bool, gone: bool) -> None:
    session, other = begin(), begin()
    control, sender = in_group(session), session.sender(address)
    txn = control.declare()
    accept(sender, b"1", txn)
    if gone:
        session.peer.close_socket()
        left(ask, txn)
    consumer = other.receiver(address, credit=10)
    assert in_group(other).discharge(txn, fail=fail) == Accepted()
    assert decided(ask, txn) == (("rollback", "discharged") if fail else ("commit", None))
    assert in_group(other).discharge(txn, fail=fail) == Accepted()  # T11
    assert isinstance(in_group(other).discharge(txn, fail=not fail).error.description, str)
    if fail:
        other.sync()
        assert not consumer.arrived
    else:
        assert consumer.take().body == b"1"
    if not gone:
        assert (control.discharge(txn, fail=fail) == Accepted(), row(ask, txn)) == (True, None)


@pytest.mark.rule("H20")
def test_a_checker_of_its_group_may_discharge_it(begin: Begin, address: str, ask: Ask) -> None:
    session, other = begin(), begin()
    txn = in_group(session, address).declare()
    accept(session.sender(address), b"1", txn)
    other.receiver(f"$check/{address}")
    other.control().commit(txn)


@pytest.mark.rule("H20", "T11", "T12")
def test_a_question_by_another_group_decides_nothing(begin: Begin, address: str, ask: Ask) -> None:
    session, other = begin(), begin()
    control, sender = in_group(session), session.sender(address)
    txn = control.declare()
    accept(sender, b"1", txn)
    for stranger in (other.control(), in_group(other, "others")):
        for fail in (False, True):
            state = stranger.discharge(txn, fail=fail)
            assert condition(state) == "amqp:transaction:unknown-id"
            assert "'shop'" in state.error.description
    accept(sender, b"2", txn)
    control.commit(txn)
    assert other.receiver(address).bodies() == [b"1", b"2"]


@pytest.mark.rule("T11")
@pytest.mark.parametrize(
    ("reason", "by"),
    [("instance-lost", ""), ("application", " by an application, in SQL"), ("shut", " by an operator")],
)
def test_who_has_decided_is_told(begin: Begin, ask: Ask, reason: str, by: str) -> None:
    txn = begin().control().declare()
    ask(
        "insert into coordinator.op (id, decision, reason, posted) "
        "values (encode(%s, 'hex')::uuid, 'rollback', %s, 1) returning 1",
        txn,
        reason,
    )
    told = begin().control().discharge(txn)
    assert condition(told) == "amqp:transaction:rollback"
    assert re.fullmatch(rf"the transaction was rolled back at 20\S+Z{by}: {reason}", told.error.description)


@pytest.mark.rule("H5", "T11")
@pytest.mark.parametrize("first", ["commit", "rollback"])
@pytest.mark.parametrize("fail", [False, True])
def test_an_operator_was_first(service: Service, begin: Begin, address: str, ask: Ask, first: str, fail: bool) -> None:
    session = begin()
    control, sender = in_group(session), session.sender(address)
    txn = control.declare()
    accept(sender, b"1", txn)
    service.cli("transaction", "resolve", txn.hex(), f"--{first}", "--reason", "by the books")
    state = control.discharge(txn, fail=fail)
    if fail == (first == "rollback"):
        assert state == Accepted()
    else:
        assert condition(state) == ("amqp:illegal-state" if fail else "amqp:transaction:rollback")
        assert " at 20" in state.error.description
        assert "by an operator" in state.error.description
        assert ("by the books" in state.error.description) or fail
    assert decided(ask, txn) == (first, "by the books")
    assert session.receiver(address).bodies() == ([b"1"] if first == "commit" else [])
    refused = sender.outcome(data(b"2"), txn=txn)
    assert condition(refused) == "amqp:transaction:unknown-id"


@pytest.mark.rule("H5", "H15")
def test_after_another_decision_posts_are_refused(service: Service, begin: Begin, address: str, ask: Ask) -> None:
    session = begin()
    control, sender = in_group(session), session.sender(address)
    txn = control.declare()
    accept(sender, b"1", txn)
    service.cli("transaction", "resolve", txn.hex(), "--commit", "--reason", "x")
    state = sender.outcome(data(b"2"), txn=txn)
    assert condition(state.outcome) == "amqp:transaction:rollback"
    # a commit that is accepted would be of all posts
    state = control.discharge(txn)
    assert condition(state) == "amqp:illegal-state"
    assert "without what was refused" in state.error.description
    assert session.receiver(address).bodies() == [b"1"]
    assert pending(ask, txn) == 0
