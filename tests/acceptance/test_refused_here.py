"""Messages that every consumer here has refused (``modified`` with undeliverable-here) hold up no others (rule P11)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fix_service import Service, running_service
from tests.fix_wire import Begin
from tests.wire.frames import Accepted, Modified, Released
from tests.wire.links import Receiver
from tests.wire.queues import post, select

_WINDOW = 10
_ELSEWHERE = Modified(undeliverable_here=True)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service({"bounds.window_messages": str(_WINDOW)}) as service:
        yield service


def refuse(receiver: Receiver, count: int) -> list[bytes]:
    """Take and refuse so many, which must come; their bodies."""
    bodies = []
    for _ in range(count):
        delivery = receiver.take()
        bodies.append(delivery.body)
        delivery.disposition(_ELSEWHERE)
    return bodies


@pytest.mark.rule("P11")
def test_a_consumer_that_refuses_more_than_a_window(begin: Begin, address: str) -> None:
    """It gets all others; what it has refused goes to the next consumer, in order."""
    session = begin()
    bodies = [b"%d" % number for number in range(5 * _WINDOW)]
    post(session, address, *bodies)
    receiver = session.receiver(address)
    assert refuse(receiver, len(bodies)) == bodies
    session.sync()
    other = session.receiver(address)
    taken = other.take_many(len(bodies))
    assert [each.body for each in taken] == bodies
    for each in taken:
        each.disposition(Accepted())
    assert receiver.drain() == other.drain() == []


@pytest.mark.rule("P11")
def test_two_consumers_that_refuse_more_than_a_window(begin: Begin, address: str) -> None:
    """Each gets every message once; the one that comes then gets all of them."""
    session = begin()
    bodies = [b"%d" % number for number in range(3 * _WINDOW)]
    post(session, address, *bodies)
    receivers = [session.receiver(address) for _ in range(2)]
    for receiver in receivers:
        receiver.credit(1)
    seen: list[list[bytes]] = [[], []]
    while any(len(each) < len(bodies) for each in seen):
        for receiver, mine in zip(receivers, seen, strict=True):
            if len(mine) < len(bodies):
                mine += refuse(receiver, 1)
    assert [sorted(each) for each in seen] == [sorted(bodies)] * 2
    post(session, address, b"last")
    receivers.append(session.receiver(address, credit=100))
    assert sorted(each.body for each in receivers[-1].take_many(len(bodies) + 1)) == sorted([*bodies, b"last"])


@pytest.mark.rule("P11", "P16")
def test_a_consumer_that_chooses_gets_what_another_has_refused(begin: Begin, address: str) -> None:
    session = begin()
    bodies = [b"%d" % number for number in range(3 * _WINDOW)]
    post(session, address, *bodies)
    refuse(session.receiver(address, credit=100), len(bodies))
    chooser = select(session, address, "kind IS NULL")
    assert [each.body for each in chooser.take_many(len(bodies))] == bodies


@pytest.mark.rule("P11", "P16")
def test_a_consumer_that_refuses_beside_one_that_chooses(begin: Begin, address: str) -> None:
    """It gets all others, however many it has refused; the other gets what it wants of those, in order."""
    session = begin()
    chooser = select(session, address, "kind = 'wanted'")
    chooser.credit(1)
    bodies = [b"%d" % number for number in range(5 * _WINDOW)]
    post(session, address, *bodies)
    receiver = session.receiver(address)
    assert refuse(receiver, len(bodies)) == bodies
    other = select(session, address, "kind IS NULL")
    found = other.take_many(len(bodies))
    assert [each.body for each in found] == bodies
    for each in found:
        each.disposition(Accepted())
    assert receiver.drain() == chooser.drain() == other.drain() == []


@pytest.mark.rule("P11")
def test_one_that_has_refused_some_gets_the_others(begin: Begin, address: str) -> None:
    session = begin()
    bodies = [b"%d" % number for number in range(_WINDOW)]
    post(session, address, *bodies)
    receiver, other = session.receiver(address, credit=1000), session.receiver(address)
    refuse(receiver, len(bodies))
    found = other.take_many(len(bodies))
    half = _WINDOW // 2
    for each in found:
        each.disposition(Released() if each in found[:half] else _ELSEWHERE)
    assert receiver.drain() == []
    assert [each.body for each in other.take_many(half)] == bodies[:half]


@pytest.mark.rule("P11")
def test_refused_ones_after_the_consumer_has_left(begin: Begin, address: str) -> None:
    session = begin()
    bodies = [b"%d" % number for number in range(3 * _WINDOW)]
    post(session, address, *bodies)
    receiver = session.receiver(address)
    refuse(receiver, len(bodies))
    receiver.detach()
    assert session.receiver(address).bodies() == bodies
