"""What becomes of the deliveries that a consumer has not decided when its link ends (rule D5): a test for each row of
the table in docs/reference/clients.md. Two numbers: attempts, which ``delivery-count`` tells, and failures.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from store.embedded.running import running_url
from tests.fix_service import Service, running_service
from tests.fix_wire import Ask, Begin, BeginAt, decided
from tests.wire.frames import Accepted, Detach, Flow, Modified, Rejected, Released, Source, State
from tests.wire.links import Delivery, Receiver
from tests.wire.messages import Header, Message, data
from tests.wire.peer import Session
from tests.wire.queues import NEVER, dead_letters, post
from tests.wire.types import Symbol, UInt

pytestmark = pytest.mark.rule("D5", "D6")

_BODIES = [b"1", b"2", b"3"]
#: the window of the session lets three be transferred, and has no room for these
_MORE = [b"4", b"5"]
_FAILED = Modified(delivery_failed=True, undeliverable_here=False)
#: (attempts, failures) of three
ALL_FAILED = [(1, 1), (1, 1), (1, 1)]
FIRST_FAILED = [(1, 1), (1, 0), (1, 0)]
NONE_FAILED = [(1, 0), (1, 0), (1, 0)]
AS_BEFORE = [(0, 0), (0, 0), (0, 0)]

#: A way to end: of the consumer, and what it has.
Way = Callable[[Receiver, list[Delivery]], object]


def _told(service: Service, session: Session, address: str) -> list[tuple[Any, int, int, bool]]:
    """Body, attempts, failures and whether it is its first delivery, of all that there are, in their order."""
    came = session.receiver(address).drain()
    with psycopg.connect(running_url(service.data_dir)) as connection:
        rows = connection.execute(
            "select h.message, e.failures from coordinator.entries e join coordinator.half h on h.id = e.half_id "
            "where e.address = %s",
            [address],
        ).fetchall()
    failures = {Message(message).body: number for message, number in rows}
    return [(each.body, each.count, failures[each.body], each.message.header.first_acquirer is True) for each in came]


def _consumer(session: Session, address: str, **fields: Any) -> tuple[Receiver, list[Delivery]]:
    """Five are posted, and it has credit for them; three are transferred."""
    post(session, address, *_BODIES, *_MORE)
    narrow = session.peer.begin(incoming_window=len(_BODIES))
    consumer = narrow.receiver(Source(address=address, **fields), credit=10, name=f"link of {address}")
    return consumer, consumer.take_many(len(_BODIES))


def _expected(counts: list[tuple[int, int]]) -> list[tuple[Any, int, int, bool]]:
    """What was never transferred is as it was: its next delivery is the first."""
    transferred = [(body, *count, False) for body, count in zip(_BODIES, counts, strict=True)]
    return [*transferred, *((body, 0, 0, True) for body in _MORE)]


def _cut(consumer: Receiver, _: list[Delivery]) -> None:
    consumer.session.peer.close_socket()


def _stolen(consumer: Receiver, _: list[Delivery]) -> None:
    source = consumer.answer.source
    assert source is not None
    consumer.session.peer.begin().receiver(Source(address=source.address), name=consumer.answer.name)
    assert consumer.error == "amqp:link:stolen"


def _refused(consumer: Receiver, deliveries: list[Delivery]) -> None:
    """An outcome in a transaction that there is not."""
    deliveries[0].retire(NEVER, Accepted(), settled=False)
    assert consumer.error == "amqp:transaction:unknown-id"


def _no_such_handle(consumer: Receiver, _: list[Delivery]) -> None:
    session = consumer.session
    session.send(Flow(next_incoming_id=0, incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=77))


def _nonsense(consumer: Receiver, _: list[Delivery]) -> None:
    """A frame that cannot be decoded: the service closes the connection."""
    consumer.session.peer.send_octets(b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x99\xff")
    assert consumer.session.peer.closed().condition is not None


def _says(outcome: State) -> Way:
    def say(consumer: Receiver, deliveries: list[Delivery]) -> None:
        for each in deliveries:
            each.disposition(outcome, settled=False)
        for each in deliveries:
            each.settlement()
        consumer.detach()

    return say


WAYS: dict[str, tuple[Way, list[tuple[int, int]]]] = {
    "it says failed": (_says(_FAILED), ALL_FAILED),
    "it says modified": (_says(Modified(delivery_failed=False, undeliverable_here=False)), AS_BEFORE),
    "it says released": (_says(Released()), AS_BEFORE),
    "a detach": (lambda consumer, _: consumer.detach(closed=False), FIRST_FAILED),
    "a close of the link": (lambda consumer, _: consumer.detach(), FIRST_FAILED),
    "an end": (lambda consumer, _: consumer.session.end(), FIRST_FAILED),
    "a close": (lambda consumer, _: consumer.session.peer.close(), FIRST_FAILED),
    "cut": (_cut, ALL_FAILED),
    "stolen": (_stolen, NONE_FAILED),
    "refused": (_refused, NONE_FAILED),
    "its session is ended": (_no_such_handle, NONE_FAILED),
    "its connection is closed": (_nonsense, NONE_FAILED),
}


@pytest.mark.rule("P19", "P13", "T30")
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("kind", ["normal", "fifo"])
def test_each_way(service: Service, begin: Begin, address: str, how: str, kind: str) -> None:
    service.cli("address", "add", address, "--kind", kind)
    way, counts = WAYS[how]
    way(*_consumer(begin(), address))
    found = _told(service, begin(), address)
    assert (sorted(found) if kind == "fifo" else found) == _expected(counts)  # each is a message group of its own


@pytest.mark.parametrize("how", ["a detach", "a close of the link", "an end", "a close"])
@pytest.mark.parametrize("default", [None, _FAILED])
def test_of_those_a_client_leaves_the_first_alone_has_failed(
    service: Service, begin: Begin, address: str, how: str, default: State | None
) -> None:
    """The others lay in its prefetch, perhaps. It may have seen all. They come back in their order."""
    WAYS[how][0](*_consumer(begin(), address, default_outcome=default))
    assert _told(service, begin(), address) == _expected(FIRST_FAILED)


@pytest.mark.parametrize(
    ("default", "counts"),
    [
        (Released(), AS_BEFORE),
        (Modified(delivery_failed=False, undeliverable_here=False), AS_BEFORE),
        (Accepted(), NONE_FAILED),
        (Rejected(), NONE_FAILED),
    ],
)
def test_none_has_failed_where_the_source_names_another_outcome(
    service: Service, begin: Begin, address: str, default: State, counts: list[tuple[int, int]]
) -> None:
    """Part 3, section 3.5.3. None is accepted or rejected: the client may not have them yet."""
    WAYS["a close"][0](*_consumer(begin(), address, default_outcome=default))
    assert _told(service, begin(), address) == _expected(counts)


def _of_its_own(service: Service, begin_at: BeginAt, way: Callable[[], object]) -> list[tuple[Any, int, int, bool]]:
    _consumer(begin_at(service), "q")
    way()
    return _told(service, begin_at(service), "q")


def test_all_have_failed_of_a_client_that_is_silent(begin_at: BeginAt) -> None:
    """For the idle time that the service has told it."""
    with running_service({"limits.idle_timeout_seconds": "1"}) as service:
        peer = begin_at(service).peer
        session = peer.begin()
        _consumer(session, "q")
        assert peer.closed().condition == "amqp:resource-limit-exceeded"
        assert _told(service, begin_at(service), "q") == _expected(ALL_FAILED)


def test_none_has_failed_when_the_service_stops(own_service: Service, begin_at: BeginAt) -> None:
    def stop() -> None:
        assert own_service.stop() == 0
        own_service.start()

    assert _of_its_own(own_service, begin_at, stop) == _expected(NONE_FAILED)


def _is_ready(line: dict[str, Any]) -> bool:
    return line.get("event") == "worker ready"


@pytest.mark.rule("H13")
@pytest.mark.parametrize("what", ["the service", "a worker"])
def test_none_has_failed_when_the_service_is_killed(own_service: Service, begin_at: BeginAt, what: str) -> None:
    """However often. What was read ahead may have been sent: which it was is not known."""

    def kill() -> None:
        if what == "a worker":
            before = len(own_service.log_lines())
            os.kill(own_service.wait_for(_is_ready)["pid"], signal.SIGKILL)
            own_service.wait_for(_is_ready, since=before)
        else:
            own_service.kill()
            own_service.restart()

    found = _of_its_own(own_service, begin_at, kill)
    assert [(body, count, failures, first) for body, count, failures, first in found[:3]] == _expected(NONE_FAILED)[:3]
    assert [(body, failures) for body, _, failures, _ in found[3:]] == [(body, 0) for body in _MORE]


@pytest.mark.rule("T14", "T28")
def test_what_a_transaction_that_timed_out_had_retired_has_failed(
    service: Service, begin: Begin, ask: Ask, address: str
) -> None:
    """And not what else its consumer has."""
    session = begin()
    consumer, deliveries = _consumer(session, address)
    control = session.control(properties={Symbol("coordinator:timeout-ms"): UInt(100)})
    deliveries[0].retire(txn := control.declare(), Accepted())
    assert decided(ask, txn) == ("rollback", "timeout")
    deliveries[1].retire(txn, Accepted(), settled=False)
    assert consumer.error == "amqp:transaction:timeout"
    assert _told(service, begin(), address) == _expected(FIRST_FAILED)


@pytest.mark.rule("D10")
def test_an_outcome_that_the_store_refuses_fails_nothing(service: Service, begin: Begin, address: str) -> None:
    session = begin()
    consumer, deliveries = _consumer(session, address)
    with psycopg.connect(running_url(service.data_dir), autocommit=True) as connection:
        its = "from coordinator.entries x where x.address = %s and x.group_id = e.group_id and x.entry_id = e.id"
        where = f"{its} and x.entry_id = (select min(entry_id) from coordinator.entries where address = %s)"
        taken = f"update coordinator.entry e set lease = %s {where}".encode()
        connection.execute(taken, [1_000_000, address, address])
        deliveries[0].disposition(_FAILED, settled=False)
        assert consumer.error == "amqp:internal-error"
        connection.execute(taken, [0, address, address])
    body, _, failures, _ = _told(service, begin(), address)[0]
    assert (body, failures) == (b"1", 0)


@pytest.mark.rule("T28", "D5")
def test_a_transaction_whose_control_link_the_service_ends_fails_nothing(
    service: Service, begin: Begin, address: str
) -> None:
    session = begin()
    consumer, deliveries = _consumer(session, address)
    control = session.control()
    deliveries[0].retire(control.declare(), Accepted())
    session.sync()
    _nonsense(consumer, deliveries)
    assert _told(service, begin(), address) == _expected(NONE_FAILED)


def test_poison_ends(service: Service, begin: Begin, address: str) -> None:
    """A consumer dies of one of ten, each time: all that it has been sent goes to the dead letters with it."""
    service.cli("address", "add", address, "--max-attempts", "3")
    post(begin(), address, *(b"%d" % number for number in range(10)))
    for _ in range(3):
        consumer = begin().receiver(address, credit=4)
        consumer.take_many(4)
        _cut(consumer, [])
    letters = dead_letters(begin(), address).take_many(4)
    assert [each.body for each in letters] == [b"0", b"1", b"2", b"3"]
    assert [each.message.annotations["x-opt-delivery-count"] for each in letters] == [3] * 4
    assert [each.count for each in begin().receiver(address).take_many(6)] == [0] * 6


@pytest.mark.parametrize(
    ("said", "left"),
    [
        (Accepted(), [(b"2", 1), (b"3", 1)]),
        (Rejected(), [(b"2", 1), (b"3", 1)]),
        (_FAILED, [(b"1", 1), (b"2", 1), (b"3", 1)]),
        (Released(), [(b"1", 0), (b"2", 1), (b"3", 1)]),
    ],
)
def test_none_has_failed_of_a_client_that_has_decided_one(
    begin: Begin, ask: Ask, address: str, said: State, left: list[tuple[bytes, int]]
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
    ((failures,),) = ask("select sum(failures) from coordinator.entries where address = %s", address)
    assert failures == (said == _FAILED) + (said == Released())


def test_a_message_that_is_always_left_fails_when_it_is_the_first(begin: Begin, ask: Ask, address: str) -> None:
    """Behind one that was accepted it does not, but the next link gets it first."""
    session = begin()
    post(session, address, *_BODIES)
    counts = []
    for _ in range(4):
        consumer = session.receiver(address)
        deliveries = consumer.take_many(2)
        counts.append([(each.body, each.count) for each in deliveries])
        if deliveries[0].body == b"1":
            deliveries[0].disposition(Accepted())
        consumer.detach()
    assert counts == [
        [(b"1", 0), (b"2", 0)],
        [(b"2", 1), (b"3", 0)],
        [(b"2", 2), (b"3", 1)],
        [(b"2", 3), (b"3", 2)],
    ]
    session.receiver(address).take_many(2)
    assert ask("select failures from coordinator.entries where address = %s order by entry_id", address) == [(3,), (0,)]


@pytest.mark.rule("T28")
def test_in_transactions_their_rollbacks_fail(service: Service, begin: Begin, address: str) -> None:
    """The first was rolled back, and is in the prefetch again when its consumer leaves: one failure, and not two."""
    session = begin()
    post(session, address, *_BODIES)
    control = session.control()
    consumer = session.receiver(address)
    txn = control.declare()
    consumer.take_many(3)[0].retire(txn, Accepted())
    control.roll_back(txn)
    assert consumer.take().count == 1
    consumer.detach()
    assert _told(service, session, address) == [(b"1", 2, 1, False), (b"2", 1, 0, False), (b"3", 1, 0, False)]


@pytest.mark.rule("T28", "D4")
def test_what_lies_behind_what_is_committed_has_not_failed(begin: Begin, ask: Ask, address: str) -> None:
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
    assert counts == list(range(6))
    assert ask("select failures from coordinator.entries where address = %s", address) == [(0,)]


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
    assert [(each.body, each.count) for each in after.take_many(2)] == [(b"2", 1), (b"3", 1)]
    control.roll_back(txn)
    assert [(each.body, each.count) for each in after.take_many(1)] == [(b"1", 1)]
