"""Deliveries for which their link ends: their sender is told so. A client that looks for rejected alone takes released
for stored (part 2, section 2.6.12; part 3, section 3.4; rules T22, T23)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from store.embedded.running import running_url
from tests.fix_night import by_night
from tests.fix_service import Service, running_service
from tests.fix_wire import Begin
from tests.wire.frames import (
    SENDER,
    Accepted,
    Attach,
    Detach,
    Discharge,
    Disposition,
    Rejected,
    Released,
    Source,
    Target,
    TransactionalState,
    Transfer,
)
from tests.wire.messages import Properties, data
from tests.wire.peer import Session
from tests.wire.queues import condition
from tests.wire.types import Symbol
from tests.workers import Worker

LARGEST = 100_000

#: of the transfer, and of its refusal
WRONG = [
    ({"delivery_tag": None}, "amqp:invalid-field"),
    ({"message_format": 7}, "amqp:not-implemented"),
    ({"rcv_settle_mode": 1}, "amqp:invalid-field"),
]


@pytest.fixture(scope="module")
def service(both_forms_of_services: None) -> Iterator[Service]:
    with running_service({"limits.max_message_size_bytes": str(LARGEST)}) as service:
        yield service


def told(session: Session, number: int) -> list[Disposition]:
    """All that was said of the delivery, once all that the service had to say was read."""
    session.sync()
    return list(session.answers[number])


def refused(state: Any) -> str:
    """The condition of a rejected, settled."""
    assert isinstance(state, Rejected), state
    assert state.error is not None
    return str(state.error.condition)


@pytest.mark.rule("P14")
@pytest.mark.parametrize(("fields", "error"), WRONG, ids=["delivery-tag", "message-format", "rcv-settle-mode"])
@pytest.mark.parametrize("frame_size", [by_night(None), 10], ids=["one-transfer", "many"])
@pytest.mark.parametrize("busy", [False, True])
def test_a_delivery_that_ends_its_link_is_rejected(
    begin: Begin, address: str, fields: dict[str, Any], error: str, frame_size: int | None, busy: bool
) -> None:
    """Before the detach, with the same error; what comes behind it is released."""
    session = begin()
    sender, other = session.sender(address), session.sender(address)
    with session.peer.at_once():
        before = [sender.post(data(b"before")) for _ in range(5 * busy)]
        wrong = sender.post(data(b"wrong" * 9), frame_size=frame_size, **fields)
        behind = sender.post(data(b"behind"))
    answer = sender.answer_to(wrong)
    assert (answer.settled, refused(answer.state)) == (True, error)
    assert sender.error == error
    assert [sender.session.answers[number][0].state for number in before] == [Accepted()] * len(before)
    (last,) = told(session, behind)
    assert last.settled
    assert isinstance(last.state, Rejected if busy else Released)
    assert not told(session, wrong)
    assert other.outcome(data(b"after")) == Accepted()
    assert session.receiver(address).bodies() == [b"before"] * len(before) + [b"after"]


@pytest.mark.rule("P14")
@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("second", [False, True])
def test_a_message_that_is_too_large_is_rejected(begin: Begin, address: str, busy: bool, second: bool) -> None:
    """In many frames, all of which come at once; as soon as it is too large."""
    session = begin()
    sender = session.sender(address, rcv_settle_mode=int(second))
    with session.peer.at_once():
        for _ in range(5 * busy):
            sender.post(data(b"before"))
        wrong = sender.post(data(b"x" * 2 * LARGEST), frame_size=10_000)
        behind = sender.post(data(b"behind"))
    answer = sender.answer_to(wrong)
    assert refused(answer.state) == "amqp:link:message-size-exceeded"
    assert sender.error == "amqp:link:message-size-exceeded"
    assert all(isinstance(each.state, Rejected | Released) for each in told(session, behind))
    assert all(each.state == answer.state for each in told(session, wrong))
    assert session.sender(address).outcome(data(b"after")) == Accepted()
    assert session.receiver(address).bodies() == [b"before"] * 5 * busy + [b"after"]


@pytest.mark.rule("T22", "T23")
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("large", [False, True])
def test_such_a_delivery_in_a_transaction(begin: Begin, address: str, settled: bool, large: bool) -> None:
    """It is rejected in its transaction, which cannot commit without it."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    wrong: dict[str, Any] = {"frame_size": 10_000} if large else {"message_format": 7}
    error = "amqp:link:message-size-exceeded" if large else "amqp:not-implemented"
    number = sender.post(data(b"x" * (2 * LARGEST if large else 1)), txn=txn, settled=settled, **wrong)
    assert sender.error == error
    said = told(session, number)
    if settled:
        assert not said
    else:
        (answer,) = said
        assert isinstance(answer.state, TransactionalState)
        assert (answer.settled, answer.state.txn_id, refused(answer.state.outcome)) == (True, txn, error)
    assert condition(control.discharge(txn)) == "amqp:transaction:rollback"
    assert session.receiver(address).bodies() == []


@pytest.mark.rule("T5", "P14")
def test_a_declare_that_ends_its_control_link(begin: Begin) -> None:
    """By its format: it is rejected."""
    session = begin()
    control = session.control()
    number = control.post(b"\x00\x53\x77\x00\x53\x31\x45", message_format=7)
    assert refused(control.answer_to(number).state) == "amqp:not-implemented"
    assert control.error == "amqp:not-implemented"


@pytest.mark.rule("P14")
@pytest.mark.parametrize("frame_size", [None, 10], ids=["one-transfer", "many"])
def test_a_source_that_takes_no_rejected(begin: Begin, address: str, frame_size: int | None) -> None:
    """Part 3, section 3.5.3: its outcomes are all that are chosen from; the error of the detach tells."""
    session = begin()
    sender = session.sender(address, source=Source(outcomes=("amqp:accepted:list", "amqp:released:list")))
    number = sender.post(data(b"wrong" * 9), message_format=7, frame_size=frame_size)
    assert sender.error == "amqp:not-implemented"
    assert not any(isinstance(each.state, Rejected | Accepted) for each in told(session, number))


@pytest.mark.rule("P3", "P14")
def test_an_aborted_delivery_that_does_not_fit_its_link(begin: Begin, address: str) -> None:
    """It gets no answer; the link ends."""
    session = begin()
    sender = session.sender(address)
    number = sender.post(data(b"wrong"), message_format=7, aborted=True)
    assert sender.error == "amqp:not-implemented"
    assert not any(isinstance(each.state, Rejected | Accepted) for each in told(session, number))


@pytest.mark.day
@pytest.mark.rule("P9", "P14")
def test_such_a_delivery_on_the_relay(begin: Begin) -> None:
    session = begin()
    relay = session.sender(Target())
    answer = relay.answer_to(relay.post(data(b"wrong"), message_format=7))
    assert refused(answer.state) == "amqp:not-implemented"
    assert relay.error == "amqp:not-implemented"


@pytest.mark.rule("P14")
def test_transfers_before_there_was_credit_are_not_kept(service: Service, begin: Begin, address: str) -> None:
    """Those behind the one that ended its link."""
    session = begin()
    worker = Worker(service)
    with session.peer.at_once():
        session.send(
            Attach(name="early", handle=0, role=SENDER, target=Target(address=address), initial_delivery_count=0)
        )
        for number in range(4000):  # 40 MB
            post = Transfer(handle=0, delivery_id=number, delivery_tag=b"%d" % number, message_format=0)
            session.send(post, payload=data(b"x" * 10_000))
    assert session.peer.wait(Detach).error.condition == "amqp:link:transfer-limit-exceeded"
    session.flow(echo=True)
    while not session.flows:
        session.peer.step()
    assert worker.peak < 16 << 20


@pytest.mark.rule("S4", "P14")
def test_what_comes_for_a_link_that_is_to_end_and_gets_no_outcome_is_not_kept(
    service: Service, begin: Begin, address: str
) -> None:
    """Its source takes accepted alone, and it waits for the answer to a post; 24 MB come for the delivery behind."""
    session = begin()
    worker = Worker(service)
    sender = session.sender(address, source=Source(outcomes=("amqp:accepted:list",)))
    with psycopg.connect(running_url(service.data_dir)) as store:
        store.execute("lock table coordinator.half in exclusive mode")
        with session.peer.at_once():
            good = sender.post(data(b"good"))
            session.send(
                Transfer(handle=sender.handle, delivery_id=good + 1, delivery_tag=b"w", message_format=1, more=True)
            )
            for _ in range(2000):
                session.send(Transfer(handle=sender.handle, more=True), payload=bytes(12_000))
        session.sync()
        assert sender.detached is None
        assert worker.peak < 16 << 20
    assert sender.error == "amqp:not-implemented"


@pytest.mark.rule("P9", "P14")
def test_the_end_of_the_relay_names_the_delivery_for_which_it_ends(begin: Begin, address: str) -> None:
    """Anonymous terminus 1.0, section 2.2: its source takes no rejected, and this is all that its sender is told."""
    session = begin()
    session.sender(address)
    relay = session.sender(Target(), source=Source(outcomes=("amqp:accepted:list",)))
    message = Properties(to=address).encoded() + data(b"x")
    with session.peer.at_once():
        for tag in (b"good", b"another"):
            relay.post(message, delivery_tag=tag)
        relay.post(message, delivery_tag=b"wrong", message_format=7)
        for tag in (b"behind", b"last"):
            relay.post(message, delivery_tag=tag)
    assert relay.error == "amqp:not-implemented"
    assert relay.detached is not None
    assert relay.detached.error is not None
    assert relay.detached.error.info is not None
    assert relay.detached.error.info[Symbol("delivery-tag")] == b"wrong"


@pytest.mark.rule("T23")
@pytest.mark.parametrize("frame_size", [None, 10], ids=["one-transfer", "many"])
def test_a_client_that_looks_at_each_outcome_commits_without_such_a_delivery(
    begin: Begin, address: str, frame_size: int | None
) -> None:
    """The link property coordinator:on-refused-post=continue."""
    session = begin()
    control, good = session.control(), session.sender(address)
    sender = session.sender(address, properties={Symbol("coordinator:on-refused-post"): "continue"})
    txn = control.declare()
    good.outcome(data(b"good"), txn=txn)
    wrong = sender.post(data(b"wrong" * 9), txn=txn, frame_size=frame_size, message_format=7)
    state = sender.answer_to(wrong).state
    assert isinstance(state, TransactionalState)
    assert refused(state.outcome) == "amqp:not-implemented"
    control.commit(txn)
    assert session.receiver(address).bodies() == [b"good"]


@pytest.mark.rule("T22", "T23")
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("frame_size", [None, 10], ids=["one-transfer", "many"])
def test_a_transaction_whose_post_comes_behind_the_end_of_its_link(
    begin: Begin, address: str, settled: bool, frame_size: int | None
) -> None:
    """It rolls back: its client sent the post before it knew of the end, which was for a post of another."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    other, txn = control.declare(), control.declare()
    with session.peer.at_once():
        sender.post(data(b"x" * 2 * LARGEST), txn=other, frame_size=10_000)
        sender.post(data(b"behind" * 9), txn=txn, settled=settled, frame_size=frame_size)
        number = control.request(Discharge(txn_id=txn, fail=False))
    assert control.discharge(other) != Accepted()
    assert condition(control.answer_to(number).state) == "amqp:transaction:rollback"
    assert session.receiver(address).bodies() == []


@pytest.mark.rule("T22", "T23")
@pytest.mark.parametrize("settled", [False, True])
def test_a_transaction_whose_post_comes_before_there_was_credit(begin: Begin, address: str, settled: bool) -> None:
    session = begin()
    control = session.control()
    txn = control.declare()
    with session.peer.at_once():
        session.send(
            Attach(name="early", handle=9, role=SENDER, target=Target(address=address), initial_delivery_count=0)
        )
        post = Transfer(handle=9, delivery_id=session.next_delivery_id(), delivery_tag=b"1", message_format=0)
        session.send(replace(post, settled=settled, state=TransactionalState(txn_id=txn)), payload=data(b"early"))
        number = control.request(Discharge(txn_id=txn, fail=False))
    assert condition(control.answer_to(number).state) == "amqp:transaction:rollback"


@pytest.mark.rule("T22", "T23")
@pytest.mark.parametrize("behind", [False, True])
def test_a_transaction_whose_post_ends_its_session_or_comes_behind(begin: Begin, address: str, behind: bool) -> None:
    """The session ends for a handle that has no link; the control link is in another."""
    session = begin()
    control, posting = session.control(), session.peer.begin()
    sender, txn = posting.sender(address), control.declare()
    state = None if behind else TransactionalState(txn_id=txn)
    with session.peer.at_once():
        posting.send(Transfer(handle=99, delivery_id=posting.next_delivery_id(), delivery_tag=b"1", state=state))
        for _ in range(behind):
            sender.post(data(b"behind"), txn=txn, settled=True)
        number = control.request(Discharge(txn_id=txn, fail=False))
    assert condition(control.answer_to(number).state) == "amqp:transaction:rollback"


@pytest.mark.rule("T15", "T22")
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("stolen", [False, True])
@pytest.mark.parametrize("more", [by_night(0), 2])
def test_a_transaction_whose_post_is_cut_off_by_the_end_of_its_session(
    begin: Begin, address: str, settled: bool, stolen: bool, more: int
) -> None:
    """Its first transfer alone names the transaction; ``more`` come behind. ``stolen``: its link ended first."""
    session = begin(container_id=address)
    control, posting = session.control(), session.peer.begin()
    sender, txn, other = posting.sender(address, name="post"), control.declare(), control.declare()
    number = sender.begin_in(txn, settled=settled)
    session.sync()
    if stolen:
        begin(container_id=address).sender(address, name="post")
    with session.peer.at_once():
        posting.send(Transfer(handle=99, delivery_id=posting.next_delivery_id(), delivery_tag=b"2"))
        for left in range(more, 0, -1):
            sender.transfer(b"", delivery_id=number, more=left > 1)
    assert condition(control.discharge(txn)) == "amqp:transaction:rollback"
    control.commit(other)
    assert session.receiver(address).bodies() == []


@pytest.mark.rule("P14", "T22")
@pytest.mark.parametrize(("source", "settled"), [(Source(outcomes=("amqp:accepted:list",)), False), (Source(), True)])
def test_a_client_that_detaches_before_it_is_told_why_its_link_ends(
    begin: Begin, address: str, source: Source, settled: bool
) -> None:
    """A post is still with the store; the one behind it is refused, and all that can tell is the detach."""
    session = begin()
    sender = session.sender(address, source=source)
    with session.peer.at_once():
        good = sender.post(data(b"good"))
        sender.post(b"wrong", settled=settled)
        session.send(Detach(handle=sender.handle, closed=True))
    assert sender.error == "amqp:decode-error"
    assert session.answers[good][0].state == Accepted()
