"""Broadcast (rule D1): each link gets every message that is committed while it is there, and none of it twice."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.fix_compiled import BOTH_RULES
from tests.fix_service import PATIENCE, Service, running_service
from tests.fix_wire import Ask, Begin, BeginAt
from tests.wire.frames import Accepted, Error, Modified, Rejected, Released, Source, State
from tests.wire.links import Receiver
from tests.wire.messages import data
from tests.wire.peer import Session
from tests.wire.queues import post, select
from tests.wire.types import Symbol

pytestmark = [pytest.mark.rule("D1"), *BOTH_RULES]

ACCEPTED, FAILED = Accepted(), Modified(delivery_failed=True)


def _listen(session: Session, address: str) -> Receiver:
    """Attached, and so behind nothing that is committed from now on."""
    listener = session.receiver(f"{address}::*", credit=100)
    assert listener.answer.source is not None, listener.error
    return listener


def _take(listener: Receiver, count: int, outcome: State = ACCEPTED) -> list[bytes]:
    found = [listener.take() for _ in range(count)]
    for delivery in found:
        delivery.disposition(outcome, settled=False)
        delivery.settlement()
    return [bytes(delivery.body) for delivery in found]


@pytest.mark.parametrize("options", [(), ("--topic",), ("--kind", "fifo")])
def test_each_link_gets_all_and_the_consumers_share(
    begin: Begin, service: Service, address: str, options: tuple[str, ...]
) -> None:
    """From when it attached on; consumers of the queue have every message once besides."""
    service.cli("address", "add", address, *options)
    session = begin()
    post(session, address, b"before")
    first, second = _listen(session, address), _listen(begin(), address)
    bodies = [b"%d" % number for number in range(20)]
    post(session, address, *bodies)
    assert _take(first, 20) == _take(second, 20) == bodies
    first.detach()
    post(session, address, b"after")
    assert _take(second, 1) == [b"after"]
    topic = options == ("--topic",)
    assert session.receiver(address).bodies() == ([] if topic else [b"before", *bodies, b"after"])


@pytest.mark.parametrize(
    "outcome",
    [
        Released(),
        FAILED,
        Modified(undeliverable_here=True),
        Rejected(error=Error(condition="app:no", description="no \u2028 use")),
    ],
    ids=["released", "failed", "undeliverable", "rejected"],
)
def test_no_outcome_brings_it_back(begin: Begin, service: Service, ask: Ask, address: str, outcome: State) -> None:
    """It is logged, once, and nothing goes to dead letters: every delivery has its op."""
    session = begin()
    listener = _listen(session, address)
    since = len(service.log_lines())
    post(session, address, b"1", b"2")
    assert _take(listener, 1, outcome) == [b"1"]
    assert _take(listener, 1) == [b"2"]
    assert listener.drain() == []
    service.wait_for(lambda line: line.get("event") == "broadcast not accepted", since=since)
    (line,) = [line for line in service.log_lines()[since:] if line.get("event") == "broadcast not accepted"]
    assert (line["address"], line["outcome"]) == (address, type(outcome).__name__.lower())
    assert line["error"].isprintable()
    left = "select consumer_group, ready + inflight + scheduled + failed from coordinator.groups where address = %s"
    assert {count for group, count in ask(left, address) if group} == {0}
    letters = "select name from coordinator.address where origin = 'dead-letter' and strpos(name, %s) > 0"
    assert ask(letters, address) == []


def test_very_many_that_are_not_accepted_are_counted_in_the_log(begin: Begin, service: Service, address: str) -> None:
    """They do not fill it: the first hundred, and then one in a hundred, with its number."""
    session = begin()
    listener = _listen(session, address)
    since = len(service.log_lines())
    for _ in range(5):
        post(session, address, *[b"x"] * 50)
        _take(listener, 50, Released())
        listener.credit(50)
    service.wait_for(lambda line: line.get("number") == 200, since=since)
    lines = [line for line in service.log_lines()[since:] if line.get("event") == "broadcast not accepted"]
    assert [line["number"] for line in lines] == [*range(1, 101), 200]


def test_what_is_committed_late_is_not_lost(begin: Begin, address: str) -> None:
    """The transaction that posted first commits last, and another between."""
    session = begin()
    control, sender = session.control(), session.sender(address)
    listener = _listen(session, address)
    early, late = control.declare(), control.declare()
    sender.post(data(b"early"), txn=early)
    sender.post(data(b"late"), txn=late)
    control.commit(late)
    assert _take(listener, 1) == [b"late"]
    post(session, address, b"plain")
    assert _take(listener, 1) == [b"plain"]
    control.commit(early)
    assert _take(listener, 1) == [b"early"]


@pytest.mark.rule("T28", "T29")
def test_outcomes_in_a_transaction(begin: Begin, address: str) -> None:
    """Rolled back, what the client has settled is done with; committed, whatever its outcome."""
    session = begin()
    control = session.control()
    listener = _listen(session, address)
    post(session, address, b"1", b"2")
    first, second = listener.take(), listener.take()
    undone, done = control.declare(), control.declare()
    first.retire(undone, FAILED)
    second.retire(done, FAILED)
    control.roll_back(undone)
    control.commit(done)
    assert listener.drain() == []


def test_a_lasting_terminus_keeps_its_place(begin: Begin, address: str) -> None:
    """Over a lost connection: what was not settled comes again, then what came meanwhile. Closing the link ends it."""
    session = begin(container_id="shop")
    lasting = Source(address=f"{address}::*", expiry_policy=Symbol("never"), durable=2)
    listener = session.receiver(lasting, name="screen", credit=2)
    assert listener.answer.source is not None
    other = begin()
    post(other, address, b"1", b"2")
    assert _take(listener, 1) == [b"1"]
    listener.take()
    session.peer.close_socket()
    post(other, address, b"3")
    session = begin(container_id="shop")
    listener = session.receiver(lasting, name="screen", credit=9)
    assert _take(listener, 2) == [b"2", b"3"]
    listener.detach(closed=True)
    post(other, address, b"4")
    listener = session.receiver(lasting, name="screen", credit=9)
    assert listener.answer.source is not None
    post(other, address, b"5")
    assert _take(listener, 1) == [b"5"]


@pytest.mark.rule("P16")
def test_a_selector_chooses(begin: Begin, address: str) -> None:
    session = begin()
    listener = select(session, f"{address}::*", "JMSPriority > 4")
    assert listener.answer.source is not None
    post(session, address, b"1")
    assert listener.drain() == []


def test_it_is_not_shared(begin: Begin, address: str) -> None:
    refused = begin().receiver(Source(address=f"{address}::*", capabilities=(Symbol("shared"),)))
    assert refused.answer.source is None
    assert refused.error == "amqp:invalid-field"


@pytest.fixture
def two() -> Iterator[Service]:
    with running_service({"workers": "2"}) as service:
        yield service


def test_at_every_worker(two: Service, begin_at: BeginAt) -> None:
    """Links at both workers, posts at both: each link has all, and nothing stays behind the last of them."""
    sessions = [begin_at(two) for _ in range(6)]
    listeners = [_listen(session, "news") for session in sessions]
    for number, session in enumerate(sessions):
        post(session, "news", b"%d" % number)
    wanted = [b"%d" % number for number in range(6)]
    assert [sorted(_take(listener, 6)) for listener in listeners] == [wanted] * 6
    for listener in listeners:
        listener.detach()
    deadline = time.monotonic() + PATIENCE
    while len(two.cli("group", "list", "news").splitlines()) > 2:
        assert time.monotonic() < deadline, "the groups of the links stay"
