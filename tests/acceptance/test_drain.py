"""A drain ends when there is nothing more, and not where the socket is full (part 2, section 2.6.7; rule P5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.fix_night import by_night
from tests.fix_service import Service, running_service
from tests.fix_wire import Begin
from tests.wire.frames import Flow, Source
from tests.wire.links import Receiver
from tests.wire.messages import data
from tests.wire.peer import Session
from tests.wire.queues import select

#: more in all than a session lets wait to be written
_COUNT, _SIZE = 150, 32 * 1024
_UNSETTLED = 200


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service({"bounds.unsettled_per_link": str(_UNSETTLED)}) as service:
        yield service


def any_of(session: Session, address: str) -> Receiver:
    return session.receiver(address)


def chosen(session: Session, address: str) -> Receiver:
    return select(session, address, "kind IS NULL")


def shown(session: Session, address: str) -> Receiver:
    return session.receiver(Source(address=address, distribution_mode="copy"))


def subscribed(session: Session, address: str) -> Receiver:
    return session.receiver(f"{address}::group")


def posted(session: Session, address: str, count: int, size: int) -> None:
    sender = session.sender(address)
    control = session.control()
    txn = control.declare()
    for _ in range(count):
        sender.post(data(bytes(size)), txn=txn)
    control.commit(txn)


@pytest.mark.rule("P5")
@pytest.mark.parametrize("attached", [any_of, chosen, shown, subscribed])
def test_all_that_there_is(begin: Begin, address: str, attached: Callable[[Session, str], Receiver]) -> None:
    session = begin()
    receiver = attached(session, address)
    posted(session, address, _COUNT, _SIZE)
    assert len(receiver.drain()) == _COUNT


@pytest.mark.rule("P5", "P18")
def test_all_that_there_is_of_a_fifo_address(begin: Begin, address: str, service: Service) -> None:
    service.cli("address", "add", address, "--kind", "fifo")
    test_all_that_there_is(begin, address, any_of)


@pytest.mark.rule("P5")
def test_all_large_ones(begin: Begin, address: str) -> None:
    session = begin()
    posted(session, address, 8, 2 << 20)
    assert len(session.receiver(address).drain()) == 8


@pytest.mark.rule("P5", "S4")
@pytest.mark.parametrize("kind", ["normal", "fifo"])
def test_as_much_as_a_link_may_leave_unsettled(begin: Begin, address: str, service: Service, kind: str) -> None:
    """The peer would wait in vain for more; the log says so once."""
    service.cli("address", "add", address, "--kind", kind)
    session = begin()
    posted(session, address, _UNSETTLED + 10, 10)
    receiver = session.receiver(address)
    since = len(service.log_lines())
    assert len(receiver.drain()) == _UNSETTLED
    receiver.credit(5)
    session.sync()

    def full(line: dict[str, Any]) -> bool:
        return "as many unsettled deliveries as a link may" in line["event"]

    service.wait_for(full, since=since)
    told = [line for line in service.log_lines(since) if full(line)]
    assert [(line["link"], line["unsettled"]) for line in told] == [(receiver.answer.name, _UNSETTLED)]


@pytest.mark.rule("P5")
@pytest.mark.parametrize("attached", [any_of, chosen, shown, subscribed])
@pytest.mark.parametrize(("messages", "window", "more"), [(1, 0, 1), (3, 2, 100), by_night(5, 2, 2), by_night(3, 1, 1)])
def test_what_waits_for_the_window_of_the_session(
    begin: Begin, address: str, attached: Callable[[Session, str], Receiver], messages: int, window: int, more: int
) -> None:
    """The end of a drain is said behind it. Nothing but flows of the session, without a handle, come from the peer."""
    session = begin().peer.begin()
    receiver = attached(session, address)
    posted(session, address, messages, 1)

    def opens(window: int, **fields: Any) -> None:
        incoming, outgoing = session.next_incoming_id, session.next_outgoing_id
        windows: dict[str, Any] = {"incoming_window": window, "outgoing_window": 1000}
        session.send(Flow(next_incoming_id=incoming, next_outgoing_id=outgoing, **windows, **fields))

    receiver.link_credit = 8
    opens(window, handle=receiver.handle, delivery_count=0, link_credit=8, drain=True)
    while len(receiver.arrived) < messages:
        seen = len(receiver.arrived)
        if seen >= window:
            session.sync()  # the service has written all that it may
            opens(more)
        while len(receiver.arrived) == seen:
            session.peer.step()
    while receiver.link_credit:
        session.peer.step()
    assert len(receiver.take_many(messages)) == messages


@pytest.mark.rule("P5")
@pytest.mark.parametrize("attached", [any_of, chosen, shown, subscribed])
@pytest.mark.parametrize(("messages", "credit"), [by_night(1, 1), (5, 5), (5, 3), (5, 6), by_night(0, 1)])
@pytest.mark.parametrize("later", [False, by_night(True)])
def test_credit_that_is_used_up_exactly(
    begin: Begin, address: str, attached: Callable[[Session, str], Receiver], messages: int, credit: int, later: bool
) -> None:
    """A flow tells it behind the last transfer, once. ``later``: the credit was given before, without a drain."""
    session = begin()
    receiver = attached(session, address)
    posted(session, address, messages, 1)
    if later:
        receiver.credit(credit)
        receiver.take_many(min(messages, credit))
        receiver.flows.clear()
    receiver.credit(0 if later else credit, drain=True)
    while not any(flow.drain for flow in receiver.flows):
        session.peer.step()
    assert len(receiver.arrived) == (0 if later else min(messages, credit))
    assert (receiver.flows[-1].link_credit, receiver.link_credit) == (0, 0)
    session.sync()
    assert len([flow for flow in receiver.flows if flow.drain]) == 1


@pytest.mark.rule("P5")
def test_credit_of_a_link_that_gets_settled_deliveries(begin: Begin, address: str) -> None:
    session = begin()
    posted(session, address, 5, 1)
    receiver = session.receiver(address, snd_settle_mode=1)
    receiver.credit(5, drain=True)
    while not any(flow.drain for flow in receiver.flows):
        session.peer.step()
    assert len(receiver.arrived) == 5


@pytest.mark.rule("P5")
def test_credit_that_is_lowered_below_what_was_on_its_way(begin: Begin, address: str) -> None:
    """As by a client that drains before it has read the deliveries: the count is not taken back, nor is more sent."""
    session = begin()
    posted(session, address, 3, 1)
    receiver = session.receiver(address, credit=3)
    receiver.take_many(3)
    receiver.flows.clear()
    session.flow(handle=receiver.handle, delivery_count=0, link_credit=1, drain=True)
    session.sync()
    assert {(flow.delivery_count, flow.link_credit) for flow in receiver.flows} == {(3, 0)}
    receiver.credit(2)
    posted(session, address, 8, 1)
    receiver.take_many(2)
    session.sync()
    assert not receiver.arrived
