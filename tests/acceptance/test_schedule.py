"""Messages to be delivered later (rule D7): ``x-opt-delivery-time`` and ``x-opt-delivery-delay``.

That nothing comes before its time is asserted; how late it comes ``python -m tests.benchmarks.schedule`` measures.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fix_service import Service, running_service
from tests.fix_wire import Begin, BeginAt
from tests.wire.frames import Accepted, Source
from tests.wire.messages import Header, data
from tests.wire.peer import Session
from tests.wire.queues import browse, condition, later
from tests.wire.types import Symbol, Timestamp

pytestmark = pytest.mark.rule("D7")

SECOND = 1000


def now() -> int:
    return int(time.time() * 1000)


def post(session: Session, address: str, *messages: bytes) -> None:
    sender = session.sender(address)
    for message in messages:
        assert sender.outcome(message) == Accepted()
    sender.detach()


def test_not_before_its_time(begin: Begin, address: str) -> None:
    """Others are delivered before it; no browser sees it meanwhile; then it comes as it was posted."""
    session = begin()
    consumer = session.receiver(address, credit=10)
    at = now() + 1500
    due = later(b"later", at=Timestamp(at))
    post(session, address, due, data(b"at once"))
    assert consumer.take().body == b"at once"
    assert browse(session, address) == []
    found = consumer.take()
    assert now() >= at
    assert found.message.bare == data(b"later")
    assert found.count == 0
    found.disposition(Accepted())
    assert consumer.bodies() == []


def test_in_the_order_of_their_times(begin: Begin, address: str) -> None:
    session = begin()
    start = now()
    post(
        session,
        address,
        later(b"3", delay=1200),
        later(b"2", at=start + 700),
        later(b"1", at=start + 300, delay=350),
        later(b"0", at=start - SECOND, delay=0),
    )
    consumer = session.receiver(address, credit=4)
    assert [consumer.take().body for _ in range(4)] == [b"0", b"1", b"2", b"3"]
    assert now() >= start + 1200


def test_after_the_commit_alone(begin: Begin, address: str) -> None:
    session = begin()
    control, sender = session.control(), session.sender(address)
    kept, undone = control.declare(), control.declare()
    sender.post(later(b"undone", delay=200), txn=undone)
    sender.post(later(b"kept", delay=300), txn=kept)
    control.roll_back(undone)
    control.commit(kept)
    consumer = session.receiver(address, credit=2)
    assert consumer.take().body == b"kept"
    assert consumer.bodies() == []


def test_a_subscription_and_priorities(begin: Begin, address: str) -> None:
    session = begin()
    topic = Source(address=address, capabilities=(Symbol("topic"),))
    subscribers = [session.receiver(topic, credit=5), session.receiver(topic, credit=5)]
    sender = session.sender(address)
    at = now() + 400
    for body, priority in ((b"4", None), (b"9", 9), (b"1", 1)):
        assert sender.outcome(later(body, at=at, header=Header(priority=priority))) == Accepted()
    for subscriber in subscribers:
        assert [subscriber.take().body for _ in range(3)] == [b"9", b"4", b"1"]
    assert now() >= at


@pytest.mark.rule("P12")
def test_one_that_expires_before(begin: Begin, address: str) -> None:
    session = begin()
    post(session, address, later(b"gone", delay=600, header=Header(ttl=100)), later(b"there", delay=600))
    consumer = session.receiver(address, credit=2)
    assert consumer.take().body == b"there"
    assert consumer.bodies() == []


@pytest.mark.rule("P10")
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"at": "tomorrow"}, "x-opt-delivery-time is of the type str"),
        ({"delay": -5}, "x-opt-delivery-delay is -5"),
        ({"at": True}, "x-opt-delivery-time is of the type bool"),
    ],
)
def test_a_time_that_is_none(begin: Begin, address: str, wrong: dict[str, Any], says: str) -> None:
    """What came is named beside what was expected."""
    outcome = begin().sender(address).outcome(later(b"x", **wrong))
    assert condition(outcome) == "amqp:decode-error"
    assert f"{says}; expected milliseconds, 0 or more" in outcome.error.description


@pytest.mark.parametrize("far", [1 << 62, (1 << 63) - 1])
def test_a_time_that_never_comes(begin: Begin, service: Service, address: str, far: int) -> None:
    """Beyond what the store can hold: it waits, and is counted."""
    session = begin()
    post(session, address, later(b"x", at=far), later(b"y", delay=far))
    counts = json.loads(service.cli("address", "show", address, "--json"))
    assert (counts["scheduled"], counts["ready"]) == (2, 0)
    assert session.receiver(address).bodies() == []


@pytest.fixture
def own() -> Iterator[Service]:
    with running_service() as service:
        yield service


def test_over_a_kill(own: Service, begin_at: BeginAt) -> None:
    """What comes due while nothing runs is delivered at the start; the rest in its time. Neither was ever sent."""
    session = begin_at(own)
    consumer = session.receiver("jobs", credit=10)
    post(session, "jobs", data(b"before"), later(b"while away", delay=100), later(b"after", delay=4000))
    at = now() + 4000 - 200
    assert consumer.take().body == b"before"
    own.kill()
    time.sleep(0.2)
    own.restart()
    consumer = begin_at(own).receiver("jobs", credit=10)
    found = [consumer.take() for _ in range(3)]
    assert [(each.body, each.count) for each in found] == [(b"before", 1), (b"while away", 0), (b"after", 0)]
    assert now() >= at


def test_whichever_instance_has_it(begin_at: BeginAt) -> None:
    """Either of two workers enters it, and consumers of both are told."""
    with running_service({"workers": "2"}) as service:
        sessions = [begin_at(service) for _ in range(6)]
        consumers = [session.receiver("jobs") for session in sessions]
        for number, session in enumerate(sessions):
            post(session, "jobs", *(later(b"%d" % (10 * number + each), delay=200 + 50 * each) for each in range(5)))
        found: list[bytes] = []
        while len(found) < 30:
            for consumer in consumers:
                found += consumer.bodies()
        assert sorted(found) == sorted(b"%d" % (10 * number + each) for number in range(6) for each in range(5))
