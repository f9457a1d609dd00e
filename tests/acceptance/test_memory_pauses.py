"""Memory has its bounds, and what they stop goes on: a connection that is not read, a consumer that waits (S4, S5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.acceptance.attacks import MIB, Memory
from tests.fix_service import Service, running_service
from tests.wire.frames import (
    Accepted,
    Begin,
    Close,
    Declare,
    Error,
    Modified,
    Rejected,
    Released,
    Source,
    TransactionalState,
)
from tests.wire.links import Delivery, Receiver
from tests.wire.messages import data
from tests.wire.peer import Peer, Session
from tests.wire.queues import condition, post, select
from tests.wire.types import Symbol

#: limits.memory_bytes has six parts; deliveries of so many octets fill one before they use up a link's unsettled ones
_OCTETS = 60_000
#: a quarter of a part, in thousands of octets
_MOST_TRANSACTIONS = 12 * MIB // 6 // 4 // 1000


@pytest.fixture
def small_service() -> Iterator[Service]:
    with running_service({"limits.memory_bytes": "12 MiB"}) as service:
        yield service


#: 54 kB, in one value
_ANNOTATIONS = {Symbol("why"): "x" * 54_000}


def _begin(service: Service) -> Session:
    peer = Peer(service.port)
    peer.open()
    return peer.begin()


def _hold_all(session: Session) -> tuple[Receiver, list[Delivery]]:
    """Of 60 deliveries as many as the service gives before any is settled."""
    post(session, "held", *[bytes(_OCTETS)] * 60)
    receiver = session.receiver("held", credit=100)
    held = [receiver.take() for _ in range(30)]
    session.sync()
    assert len(receiver.arrived) < 30, "all together hold too much: some must wait"
    return receiver, held


@pytest.mark.rule("S4", "F4")
def test_a_connection_that_posts_and_holds_deliveries_is_read(small_service: Service) -> None:
    """Only reading from a consumer can bring its settlements: its connection must not be paused for them."""
    session = _begin(small_service)
    sender = session.sender("results")
    receiver, held = _hold_all(session)
    for delivery in held:
        delivery.disposition(Accepted())
    assert sender.outcome(data(b"result")) == Accepted()
    for _ in range(30):
        receiver.take().disposition(Accepted())
    session.peer.close_socket()


@pytest.mark.rule("S4", "F4")
def test_a_consumer_goes_on_when_the_posts_of_its_connection_are_answered(small_service: Service) -> None:
    """A neighbour holds too much and settles nothing; the consumer waits for its own connection's posts alone."""
    neighbour = _begin(small_service)
    _hold_all(neighbour)
    session, other = _begin(small_service), _begin(small_service)
    consumer, results = session.receiver("work", credit=1000), session.sender("results")
    work = other.sender("work")
    for _ in range(5):
        with session.peer.at_once():
            posts = [results.post(data(bytes(_OCTETS))) for _ in range(12)]
        for number in range(3):
            work.outcome(data(b"%d" % number))
        for number in posts:
            assert results.answer_to(number).state == Accepted()
        for _ in range(3):
            consumer.take().disposition(Accepted())
    for each in (neighbour, session, other):
        each.peer.close_socket()


def _each(settle: Callable[[Delivery], None]) -> Callable[[Receiver, list[Delivery]], None]:
    def settle_all(_: Receiver, deliveries: list[Delivery]) -> None:
        for each in deliveries:
            settle(each)

    return settle_all


def _retire(receiver: Receiver, deliveries: list[Delivery]) -> None:
    control = receiver.session.control()
    txn = control.declare()
    for each in deliveries:
        each.retire(txn)
    control.commit(txn)


def _detach(receiver: Receiver, _: list[Delivery]) -> None:
    receiver.detach()


_SETTLE: dict[str, Callable[[Receiver, list[Delivery]], None]] = {
    "accepted": _each(lambda each: each.disposition(Accepted())),
    "released": _each(lambda each: each.disposition(Released())),
    "rejected": _each(lambda each: each.disposition(Rejected())),
    "undeliverable": _each(lambda each: each.disposition(Modified(undeliverable_here=True))),
    "in_a_transaction": _retire,
    "detached": _detach,
}


@pytest.mark.rule("S4", "F4")
@pytest.mark.parametrize("copies", [False, True], ids=["consumer", "browser"])
@pytest.mark.parametrize("way", _SETTLE)
def test_what_is_settled_makes_room_for_its_connection_however_it_is(
    small_service: Service, way: str, copies: bool
) -> None:
    """A neighbour holds too much. A connection has its share again and again, and little more: it is four of them, and
    what fits into buffers that the engine has already.
    """
    neighbour, session, other = (_begin(small_service) for _ in range(3))
    _hold_all(neighbour)
    post(other, "shared", *[bytes(_OCTETS)] * 60)
    source = Source(address="shared", distribution_mode="copy" if copies else None)
    receiver = session.receiver(source, credit=100)
    for _ in range(3):
        share = receiver.take_many(4)
        session.sync()
        share += receiver.arrived
        receiver.arrived.clear()
        assert len(share) < 15
        _SETTLE[way](receiver, share)
        if receiver.detached is not None:
            receiver = session.receiver(source, credit=100)
    for each in (neighbour, session, other):
        each.peer.close_socket()


@pytest.mark.rule("S4", "T23", "T25")
def test_a_transaction_that_is_refused_lets_go_of_posts_whose_sender_waits(small_service: Service) -> None:
    """Receiver settle mode second: the engine keeps a post until its outcome is said, and that is said at once."""
    session = _begin(small_service)
    control, sender = session.control(), session.sender("undecided", rcv_settle_mode=1)
    memory = Memory(small_service)
    txn = control.declare()
    posts = []
    for number in range(1000):
        posts.append(sender.post(data(bytes(_OCTETS)), txn=txn))
        session.peer.record.clear()
        if number % 100 == 99:
            session.sync()
    session.sync()
    states: list[Any] = [session.answers[number][-1].state for number in posts]
    released = [state for state in states if state == Released()]
    assert released == states[: len(released)], "after the first that is refused, all are"
    assert 0 < len(released) < 100
    for state in states[len(released) :]:
        assert isinstance(state, TransactionalState)
        assert condition(state.outcome) == "amqp:resource-limit-exceeded"
    memory.look()
    assert memory.peak - memory.before < 30 * MIB
    assert condition(control.discharge(txn)) == "amqp:transaction:rollback"
    session.peer.close_socket()


@pytest.mark.rule("S4", "T23", "T27")
def test_a_transaction_whose_outcomes_have_too_many_annotations_is_refused(small_service: Service) -> None:
    """Beyond its part of the bound it rolls back, by the setting's name; another beside it is committed."""
    session = _begin(small_service)
    post(session, "annotated", *[b"x"] * 61)
    receiver = session.receiver("annotated", credit=61)
    first, *held = [receiver.take() for _ in range(61)]
    control = session.control()
    small, large = control.declare(), control.declare()
    first.retire(small, Modified(message_annotations={Symbol("why"): "little"}))
    memory = Memory(small_service)
    for delivery in held:
        delivery.retire(large, Modified(message_annotations=_ANNOTATIONS), settled=False)
        session.peer.record.clear()
    refused = control.discharge(large)
    memory.look()
    assert condition(refused) == "amqp:transaction:rollback"
    assert "limits.memory_bytes" in refused.error.description
    assert memory.peak - memory.before < 16 * MIB
    control.commit(small)
    for delivery in held:
        delivery.disposition(Accepted())
    session.peer.close_socket()


@pytest.mark.rule("S4", "P14")
def test_a_disposition_that_says_much_of_many_deliveries_ends_its_connection(small_service: Service) -> None:
    """The engine would keep a copy for each of them; of one delivery as much may be said."""
    session = _begin(small_service)
    post(session, "many", *[b"x"] * 300)
    receiver = session.receiver("many", credit=300)
    held = [receiver.take() for _ in range(300)]
    memory = Memory(small_service)
    held[0].disposition(Modified(message_annotations=_ANNOTATIONS))
    session.sync()
    control = session.control()
    txn = control.declare()
    outcome = Modified(message_annotations={Symbol(f"{each}"): None for each in range(7000)})
    held[1].disposition(TransactionalState(txn_id=txn, outcome=outcome), settled=False, last=held[-1])
    error = session.peer.wait(Close).error
    assert error is not None
    assert error.condition == "amqp:resource-limit-exceeded"
    memory.look()
    assert memory.peak - memory.before < 16 * MIB
    session.peer.close_socket()
    again = _begin(small_service)
    assert len(again.receiver("many", credit=300).bodies()) == 300
    again.peer.close_socket()


@pytest.mark.rule("S4", "P14")
def test_a_large_state_is_not_counted_for_what_is_accepted_beside_it(small_service: Service) -> None:
    """One large state and hundreds of small ones in one piece: only the large one takes memory."""
    session = _begin(small_service)
    sender, receiver = session.sender("beside"), session.receiver("beside", credit=400)
    for _ in range(400):
        sender.post(data(b"x"), settled=True)
    held = [receiver.take() for _ in range(400)]
    with session.peer.at_once():
        held[0].disposition(Modified(message_annotations=_ANNOTATIONS))
        for delivery in held[1:]:
            delivery.disposition(Accepted())
    session.sync()
    session.peer.close_socket()


@pytest.mark.rule("S4", "F5")
def test_connections_beyond_their_number_are_refused() -> None:
    """Those that are there go on; when one leaves, another has its place."""
    with running_service({"limits.connections": "3"}) as service:
        first, *others = [_begin(service) for _ in range(3)]
        error = _refused(service)
        assert error is not None
        assert error.condition == "amqp:resource-limit-exceeded"
        assert "limits.connections" in (error.description or "")
        post(first, "crowded", b"x")
        first.peer.close()
        while _refused(service) is not None:
            assert others[0].receiver("crowded").bodies() in ([b"x"], [])
        for each in others:
            each.peer.close_socket()


def _refused(service: Service) -> Error | None:
    """Why another connection is refused; None where it is not."""
    peer = Peer(service.port)
    peer.open()
    peer.send(Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10))
    while not any(isinstance(frame.performative, Begin | Close) for frame in peer.heard):
        peer.step()
    said = next(frame.performative for frame in peer.heard if isinstance(frame.performative, Begin | Close))
    peer.close_socket()
    return said.error if isinstance(said, Close) else None


@pytest.mark.rule("S4", "P16")
def test_selectors_that_take_too_much_memory_are_refused(small_service: Service) -> None:
    """One that others have already takes no more; when their links are gone, there is room again."""
    session, other = _begin(small_service), _begin(small_service)
    links = [select(session, "chosen", _long_selector(0))]
    while links[-1].answer.source is not None:
        links.append(select(session, "chosen", _long_selector(len(links))))
    error = links[-1].wait_detached().error
    assert error is not None
    assert error.condition == "amqp:resource-limit-exceeded"
    assert "limits.memory_bytes" in (error.description or "")
    assert 1 < len(links) < 10
    assert select(other, "chosen", _long_selector(0)).answer.source is not None
    session.peer.close()
    other.sync()
    assert select(other, "chosen", _long_selector(len(links))).answer.source is not None
    other.peer.close_socket()


def _long_selector(number: int) -> str:
    return " OR ".join(f"n{each} = {number}" for each in range(120))


@pytest.mark.rule("S4")
def test_a_small_delivery_in_the_buffer_of_a_large_one_counts_as_much(small_service: Service) -> None:
    """The engine takes the buffers of large deliveries that are settled for small ones that are not."""
    session = _begin(small_service)
    bodies = [bytes(200_000), b"small"] * 60
    post(session, "alternating", *bodies)
    memory = Memory(small_service)
    receiver = session.receiver("alternating")
    held: list[Delivery] = []
    while len(held) < 60 and _comes(receiver):
        delivery = receiver.take()
        if len(delivery.body) > 100:
            delivery.disposition(Accepted())
            session.sync()
        else:
            held.append(delivery)
        session.peer.record.clear()
    memory.look()
    assert memory.peak - memory.before < 10 * MIB
    assert len(held) < 60, "some must wait"
    for delivery in held:
        delivery.disposition(Accepted())
    rest = receiver.take()
    rest.disposition(Accepted())
    session.peer.close_socket()


def _comes(receiver: Receiver) -> bool:
    """Whether another delivery comes while much else is answered."""
    receiver.credit(1)
    for _ in range(50):
        if receiver.arrived:
            return True
        receiver.session.sync()
    return False


@pytest.mark.rule("S4", "S5", "T7")
def test_a_client_that_declares_too_many_leaves_room_for_others(small_service: Service) -> None:
    """Each undecided transaction takes memory, also without work. Beyond their part of it a connection may have its
    fair share of them; a discharge makes room.
    """
    hog, other = _begin(small_service).control(), _begin(small_service).control()
    declared = [hog.declare() for _ in range(_MOST_TRANSACTIONS)]
    refused = hog.reply(Declare())
    assert condition(refused) == "amqp:resource-limit-exceeded"
    assert "limits.memory_bytes" in refused.error.description
    for _ in range(_MOST_TRANSACTIONS // 2):
        assert other.declare()
    assert condition(other.reply(Declare())) == "amqp:resource-limit-exceeded"
    for txn in declared[: _MOST_TRANSACTIONS // 2 + 1]:
        hog.commit(txn)
    assert other.declare()
