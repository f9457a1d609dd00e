"""What becomes of the deliveries that a consumer has not decided when its link ends (rule D5)."""

from __future__ import annotations

import pytest

from tests.fix_service import Service
from tests.fix_wire import Begin, BeginAt
from tests.wire.frames import Accepted, Detach, Modified, Rejected, Released, Source, State
from tests.wire.links import Receiver
from tests.wire.messages import Header, data
from tests.wire.queues import post

pytestmark = pytest.mark.rule("D5")

_BODIES = [b"1", b"2", b"3"]
_FAILED = Modified(delivery_failed=True, undeliverable_here=False)


def _leave(consumer: Receiver, how: str) -> None:
    session = consumer.session
    match how:
        case "a detach":
            consumer.detach(closed=False)
        case "a close of the link":
            consumer.detach()
        case "an end":
            session.end()
        case "a close":
            session.peer.close()
        case "nothing":
            session.peer.close_socket()


def _came_back(begin: Begin, address: str, how: str, default: State | None = None) -> list[tuple[object, int]]:
    """Body and delivery-count, of three that a consumer had which left so."""
    post(begin(), address, *_BODIES)
    consumer = begin().receiver(Source(address=address, default_outcome=default))
    consumer.take_many(3)
    _leave(consumer, how)
    after = begin().receiver(address)
    return [(each.body, each.count) for each in after.take_many(3)]


@pytest.mark.parametrize("how", ["a detach", "a close of the link", "an end", "a close"])
@pytest.mark.parametrize("default", [None, _FAILED])
def test_of_those_a_client_leaves_the_first_alone_has_failed(
    begin: Begin, address: str, how: str, default: State | None
) -> None:
    """The others lay in its prefetch, perhaps: its application may not have seen them. All come back in their order."""
    assert _came_back(begin, address, how, default) == [(b"1", 1), (b"2", 0), (b"3", 0)]


@pytest.mark.parametrize(
    "default", [Released(), Modified(delivery_failed=False, undeliverable_here=False), Accepted(), Rejected()]
)
def test_none_has_failed_where_the_source_names_another_outcome(begin: Begin, address: str, default: State) -> None:
    """Nor is any accepted or rejected: the client may not have them yet."""
    assert _came_back(begin, address, "a close", default) == [(b"1", 0), (b"2", 0), (b"3", 0)]


def test_all_have_failed_when_the_connection_is_lost(begin: Begin, address: str) -> None:
    assert _came_back(begin, address, "nothing") == [(b"1", 1), (b"2", 1), (b"3", 1)]


@pytest.mark.rule("P19")
def test_what_waits_for_the_window_comes_back(begin: Begin, address: str) -> None:
    """Two of ten are transferred when the client leaves."""
    session = begin()
    bodies = [b"%d" % number for number in range(10)]
    post(session, address, *bodies)
    narrow = session.peer.begin(incoming_window=2)
    narrow.receiver(Source(address=address, default_outcome=Accepted()), credit=10).take_many(2)
    narrow.end()
    assert [(each.body, each.count) for each in session.receiver(address).take_many(10)] == [(it, 0) for it in bodies]


@pytest.mark.parametrize(
    ("said", "left"),
    [
        (Accepted(), [(b"2", 0), (b"3", 0)]),
        (Rejected(), [(b"2", 0), (b"3", 0)]),
        (_FAILED, [(b"1", 1), (b"2", 0), (b"3", 0)]),
        (Released(), [(b"1", 0), (b"2", 1), (b"3", 0)]),
    ],
)
def test_none_has_failed_of_a_client_that_has_decided_one(
    begin: Begin, address: str, said: State, left: list[tuple[bytes, int]]
) -> None:
    """It has none in hand then, as one that takes a message, decides it and leaves, again and again. Of one that has
    released some, the first that is undecided counts. The outcome is on its way to the store.
    """
    session = begin()
    post(session, address, *_BODIES)
    consumer = session.receiver(address)
    first, _, _ = consumer.take_many(3)
    with session.peer.at_once():
        first.disposition(said)
        consumer.session.send(Detach(handle=consumer.handle, closed=True))
    session.sync()
    after = session.receiver(address).take_many(len(left))
    assert sorted((each.body, each.count) for each in after) == left


def test_a_message_that_is_always_left_is_counted_when_it_is_the_first(begin: Begin, address: str) -> None:
    """Behind one that was accepted it is not, but the next link gets it first."""
    session = begin()
    post(session, address, *_BODIES)
    counts = []
    for _ in range(3):
        consumer = session.receiver(address)
        first, _ = consumer.take_many(2)
        if first.body == b"1":
            first.disposition(Accepted())
        consumer.detach()
        counts.append(
            [
                (each.body, each.count)
                for each in session.receiver(Source(address=address, distribution_mode="copy")).take_many(2)
            ]
        )
    assert counts == [[(b"2", 0), (b"3", 0)], [(b"2", 1), (b"3", 0)], [(b"2", 2), (b"3", 0)]]


@pytest.mark.rule("T28")
def test_in_transactions_their_rollbacks_count(begin: Begin, address: str) -> None:
    """The first was rolled back, and is in the prefetch again when its consumer leaves: one attempt, and not two."""
    session = begin()
    post(session, address, *_BODIES)
    control = session.control()
    consumer = session.receiver(address)
    txn = control.declare()
    consumer.take_many(3)[0].retire(txn, Accepted())
    control.roll_back(txn)
    assert consumer.take().count == 1
    consumer.detach()
    assert [(each.body, each.count) for each in session.receiver(address).take_many(3)] == [
        (b"1", 1),
        (b"2", 0),
        (b"3", 0),
    ]


@pytest.mark.rule("T28", "D4")
def test_what_lies_behind_what_is_committed_has_not_failed(begin: Begin, address: str) -> None:
    """A client takes an urgent message, commits it and leaves, again and again, as JmsTemplate.receive does."""
    session = begin()
    sender, control = session.sender(address), session.control()
    sender.outcome(data(b"behind"))
    counts = []
    for _ in range(6):
        sender.outcome(Header(priority=9).encoded() + data(b"urgent"))
        consumer = session.receiver(address)
        urgent, behind = consumer.take_many(2)
        counts.append(behind.count)
        txn = control.declare()
        urgent.retire(txn, Accepted())
        control.commit(txn)
        consumer.detach()
    assert counts == [0] * 6


def test_a_transaction_that_is_undecided_keeps_what_it_retires(begin: Begin, address: str) -> None:
    """It is not among those that are left: the delivery behind it is the first."""
    session, other = begin(), begin()
    post(session, address, *_BODIES)
    control = session.control()
    txn = control.declare()
    consumer = session.receiver(address)
    retired, _, _ = consumer.take_many(3)
    retired.retire(txn, Accepted(), settled=False)
    consumer.detach()
    after = other.receiver(address)
    assert [(each.body, each.count) for each in after.take_many(2)] == [(b"2", 0), (b"3", 0)]
    control.roll_back(txn)
    assert [(each.body, each.count) for each in after.take_many(1)] == [(b"1", 1)]


def test_none_has_failed_when_the_service_stops(own_service: Service, begin_at: BeginAt) -> None:
    session = begin_at(own_service)
    post(session, "q", *_BODIES)
    session.receiver(Source(address="q", default_outcome=Accepted())).take_many(3)
    assert own_service.stop() == 0
    own_service.start()
    again = begin_at(own_service).receiver("q")
    assert [(each.body, each.count) for each in again.take_many(3)] == [(b"1", 0), (b"2", 0), (b"3", 0)]
