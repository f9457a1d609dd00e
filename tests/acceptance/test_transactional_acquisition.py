"""Messages are acquired in a transaction: a flow names it (part 4, section 4.4.3; rule T33)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fix_wire import Begin
from tests.wire.checkable import GROUP
from tests.wire.frames import Accepted, Flow, Rejected, Released, Source, TransactionalState
from tests.wire.links import Delivery, Receiver
from tests.wire.messages import data
from tests.wire.peer import Session
from tests.wire.queues import NEVER, browse, post
from tests.wire.types import Symbol

pytestmark = pytest.mark.rule("T33")

#: more than the service reads of a message at once
_LARGE = 3 << 20


def acquire(consumer: Receiver, txn: bytes, credit: int) -> list[Delivery]:
    """Take ``credit`` messages, each of which is acquired in ``txn``."""
    consumer.credit(credit, properties={Symbol("txn-id"): txn})
    taken = [consumer.take() for _ in range(credit)]
    assert [each.first.state for each in taken] == [TransactionalState(txn_id=txn)] * credit
    return taken


def left(session: Session, address: str) -> list[tuple[Any, int]]:
    """The messages that a consumer gets now, each with its delivery-count; they are accepted."""
    taken = session.receiver(address).drain()
    for each in taken:
        each.disposition(Accepted())
    return [(each.body, each.count) for each in taken]


@pytest.mark.parametrize("properties", [{}, {GROUP: "orders"}], ids=["plain", "checkable"])
@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("in_it", [True, False], ids=["", "plain-outcome"])
def test_what_is_acquired_goes_with_the_commit(
    begin: Begin, address: str, properties: dict[Any, Any], settled: bool, in_it: bool
) -> None:
    """The outcome is of the same transaction, whether it says so or not; what has none stays with its consumer."""
    session, other = begin(), begin()
    post(session, address, b"1", b"2", b"3")
    control, consumer = session.control(properties=properties), session.receiver(address)
    txn = control.declare()
    first, second, third = acquire(consumer, txn, 3)
    for delivery in (first, second):
        state = TransactionalState(txn_id=txn, outcome=Accepted()) if in_it else Accepted()
        delivery.disposition(state, settled=settled)
    session.sender(address).outcome(data(b"4"), txn=txn)
    assert left(other, address) == []
    control.commit(txn)
    assert left(other, address) == [(b"4", 0)]
    third.disposition(Released())
    assert left(other, address) == [(b"3", 0)]
    consumer.credit(1)
    post(other, address, b"5")
    later = consumer.take()
    assert (later.body, later.first.state) == (b"5", None), "after the discharge the link acquires outside"


@pytest.mark.parametrize("properties", [{}, {GROUP: "orders"}], ids=["plain", "checkable"])
@pytest.mark.parametrize("end", ["fail", "control"])
def test_what_is_acquired_returns_with_the_rollback(
    begin: Begin, address: str, properties: dict[Any, Any], end: str
) -> None:
    """One is settled in the transaction, one has an outcome that is not settled, one has none."""
    session, other = begin(), begin()
    post(session, address, b"1", b"2", b"3")
    control, consumer = session.control(properties=properties), session.receiver(address)
    txn = control.declare()
    first, second, third = acquire(consumer, txn, 3)
    if end == "fail":
        first.retire(txn)
        second.retire(txn, settled=False)
        assert control.discharge(txn, fail=True) == Accepted()
        while not second.settlement().settled:
            pass  # of a checkable one it is told first that the store has the retirement
        assert third.settlement().state == Released()
        assert left(other, address) == [(b"1", 1), (b"2", 1), (b"3", 0)]
    else:
        control.detach()
        assert [each.settlement().state for each in (first, second, third)] == [Released()] * 3
        assert left(other, address) == [(b"1", 0), (b"2", 0), (b"3", 0)]
    consumer.credit(1)
    post(other, address, b"4")
    assert consumer.take().body == b"4"


def test_a_refused_commit_returns_what_was_acquired(begin: Begin, address: str) -> None:
    session, other = begin(), begin()
    post(session, address, b"1", b"2")
    control, consumer = session.control(), session.receiver(address)
    txn = control.declare()
    first, second = acquire(consumer, txn, 2)
    first.retire(txn)
    state = session.sender(address).outcome(b"\x00", txn=txn)
    assert isinstance(state, TransactionalState)
    assert isinstance(state.outcome, Rejected)
    assert isinstance(control.discharge(txn, fail=False), Rejected)
    assert second.settlement().state == Released()
    assert sorted(body for body, _ in left(other, address)) == [b"1", b"2"]


def test_presettled_deliveries_are_accepted_with_the_commit(begin: Begin, address: str) -> None:
    session, other = begin(), begin()
    post(session, address, b"1", b"2")
    control, consumer = session.control(), session.receiver(address, snd_settle_mode=1)
    txn = control.declare()
    assert [each.settled for each in acquire(consumer, txn, 1)] == [True]
    assert control.discharge(txn, fail=True) == Accepted()
    txn = control.declare()
    (delivery,) = acquire(consumer, txn, 1)
    assert (delivery.body, delivery.count) == (b"1", 1)
    assert left(other, address) == [(b"2", 0)]
    control.commit(txn)
    assert left(other, address) == []


def test_a_large_message_is_acquired_and_returned(begin: Begin, address: str) -> None:
    session, other = begin(), begin()
    post(session, address, b"x" * _LARGE)
    control, consumer = session.control(), session.receiver(address)
    txn = control.declare()
    acquire(consumer, txn, 1)
    assert control.discharge(txn, fail=True) == Accepted()
    ((body, count),) = left(other, address)
    assert (len(body), count) == (_LARGE, 0)


@pytest.mark.parametrize("fail", [True, False])
def test_a_discharge_decides_on_what_has_come_in_part(begin: Begin, address: str, fail: bool) -> None:
    """After a failure the rest is not sent; after a commit it comes."""
    session = begin(max_frame_size=65_536)
    post(begin(), address, b"x" * _LARGE)
    control, narrow = session.control(), session.peer.begin(incoming_window=10)
    consumer, txn = narrow.receiver(address), control.declare()
    consumer.credit(1, properties={Symbol("txn-id"): txn})
    while consumer._coming is None or len(consumer._coming.frames) < narrow.incoming_window:
        session.peer.step()
    assert control.discharge(txn, fail=fail) == Accepted()
    narrow.incoming_window = 1000
    narrow.flow()
    if fail:
        again = session.receiver(address).take()
        assert (len(again.body), again.count) == (_LARGE, 0)
        assert not consumer.arrived, "it was aborted"
    else:
        assert len(consumer.take().body) == _LARGE


def test_the_end_of_the_link_returns_what_has_no_outcome(begin: Begin, address: str) -> None:
    """What was retired stays in the transaction; the rest can be taken, and its outcome has nothing to do with it."""
    session, other = begin(), begin()
    post(session, address, b"1", b"2")
    control, consumer = session.control(), session.receiver(address)
    txn = control.declare()
    acquire(consumer, txn, 2)[0].retire(txn)
    consumer.detach()
    assert [body for body, _ in left(other, address)] == [b"2"]
    assert control.discharge(txn, fail=True) == Accepted()
    assert [body for body, _ in left(other, address)] == [b"1"]


def test_a_message_that_came_later_is_acquired_too(begin: Begin, address: str) -> None:
    """The credit is there before it."""
    session = begin()
    control, consumer = session.control(), session.receiver(address)
    txn = control.declare()
    consumer.credit(2, properties={Symbol("txn-id"): txn})
    post(begin(), address, b"1")
    assert consumer.take().first.state == TransactionalState(txn_id=txn)
    control.commit(txn)
    post(begin(), address, b"2")
    assert consumer.take().first.state is None


def test_properties_without_a_txn_id_end_the_acquisition(begin: Begin, address: str) -> None:
    """fe2o3 says so before it discharges. A flow without properties leaves it as it is."""
    session = begin()
    post(session, address, b"1", b"2", b"3")
    control, consumer = session.control(), session.receiver(address)
    txn = control.declare()
    acquire(consumer, txn, 1)
    consumer.credit(1)
    assert consumer.take().first.state == TransactionalState(txn_id=txn)
    consumer.credit(1, properties={})
    assert consumer.take().first.state is None
    control.discharge(txn, fail=True)
    assert left(begin(), address) == [(b"1", 0), (b"2", 0)]


@pytest.mark.parametrize("txn", [NEVER, b""], ids=["", "empty"])
@pytest.mark.parametrize("credit", [0, 1])
@pytest.mark.parametrize("messages", [0, 1])
def test_an_unknown_txn_id_ends_the_link(begin: Begin, address: str, txn: bytes, credit: int, messages: int) -> None:
    session = begin()
    post(session, address, *[b"x"] * messages)
    consumer = session.receiver(address)
    consumer.credit(credit, properties={Symbol("txn-id"): txn})
    assert consumer.error == "amqp:transaction:unknown-id"
    assert not consumer.arrived
    assert left(session, address) == [(b"x", 0)] * messages


def test_a_txn_id_that_is_no_binary_ends_the_link(begin: Begin, address: str) -> None:
    consumer = begin().receiver(address)
    consumer.credit(1, properties={Symbol("txn-id"): "text"})
    assert consumer.error == "amqp:invalid-field"


def test_the_transaction_of_another_connection_is_unknown(begin: Begin, address: str) -> None:
    consumer, txn = begin().receiver(address), begin().control().declare()
    consumer.credit(1, properties={Symbol("txn-id"): txn})
    assert consumer.error == "amqp:transaction:unknown-id"


def test_a_browser_acquires_nothing(begin: Begin, address: str) -> None:
    session = begin()
    post(session, address, b"x")
    txn = session.control().declare()
    browser = session.receiver(Source(address=address, distribution_mode="copy"))
    browser.credit(1, properties={Symbol("txn-id"): txn})
    assert browser.error == "amqp:not-implemented"
    assert browse(session, address) == [b"x"]


@pytest.mark.parametrize("counted", [True, False], ids=["", "without-next-incoming-id"])
@pytest.mark.parametrize("symbolic", [False, True], ids=["", "by-symbol"])
def test_a_flow_in_any_encoding_names_a_transaction(begin: Begin, address: str, symbolic: bool, counted: bool) -> None:
    session = begin()
    post(session, address, b"x")
    control, consumer = session.control(), session.receiver(address)
    txn = control.declare()
    flow = Flow(
        next_incoming_id=session.next_incoming_id if counted else None, incoming_window=100,
        next_outgoing_id=session.next_outgoing_id, outgoing_window=100, handle=consumer.handle, delivery_count=0,
        link_credit=1, properties={"txn-id": txn},
    )  # fmt: skip
    consumer.link_credit = 1
    session.peer.send(flow.encoded(symbolic=symbolic), channel=session.channel)
    assert consumer.take().first.state == TransactionalState(txn_id=txn)


@pytest.mark.parametrize("properties", [{Symbol("txn-id"): None}, {"my-txn-id": b"t"}, {Symbol("x"): Symbol("txn-id")}])
def test_a_flow_with_other_properties_gives_credit(begin: Begin, address: str, properties: dict[Any, Any]) -> None:
    session = begin()
    post(session, address, b"x")
    consumer = session.receiver(address)
    consumer.credit(1, properties=properties)
    assert consumer.take().first.state is None
