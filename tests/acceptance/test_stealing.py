"""A link that its client attaches again at another worker (rule P13, part 2, 2.6.1)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.acceptance.subscribers import begin, lasting, poster
from tests.fix_service import PATIENCE, Service, running_service
from tests.fix_wire import DialTo
from tests.wire.frames import RECEIVER, Accepted, Attach, Detach, Source
from tests.wire.links import Receiver
from tests.wire.messages import data
from tests.wire.peer import Session


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service({"workers": "2"}) as service:
        yield service


@pytest.mark.rule("P13", "D1")
def test_it_is_stolen_from_the_other_worker_with_what_it_held(dial_to: DialTo, address: str) -> None:
    """To and fro; of another name, or of another container, it is another link."""
    sender = poster(dial_to, address)
    others = [
        lasting(begin(dial_to, 0, f"d-{address}"), address, "prices"),
        lasting(begin(dial_to, 0, f"c-{address}"), address, "news"),
    ]
    before = lasting(begin(dial_to, 0, f"c-{address}"), address, "prices")
    assert sender.outcome(data(b"1")) == Accepted()
    assert before.take().body == b"1"
    for count, worker in ((1, 1), (2, 0), (3, 1)):
        now = lasting(begin(dial_to, worker, f"c-{address}"), address, "prices")
        assert before.error == "amqp:link:stolen"
        delivery = now.take()
        assert (delivery.body, delivery.count) == (b"1", count)
        before = now
    assert [other.take().body for other in others] == [b"1", b"1"]
    assert all(other.detached is None for other in (*others, before))


def _sender(session: Session, address: str) -> Any:
    return session.sender(address, name="again")


def _receiver(session: Session, address: str) -> Any:
    return session.receiver(address, name="again")


def _browser(session: Session, address: str) -> Any:
    return session.receiver(Source(address=address, distribution_mode="copy"), name="again")


def _control(session: Session, _address: str) -> Any:
    return session.control(name="again")


@pytest.mark.rule("P13")
@pytest.mark.parametrize("attach", [_sender, _receiver, _browser, _control])
def test_any_link_is(dial_to: DialTo, address: str, attach: Any) -> None:
    """To and fro; but for one of the other direction, and of another container."""
    other = attach(begin(dial_to, 0, f"d-{address}"), address)
    session = begin(dial_to, 0, f"c-{address}")
    before = attach(session, address)
    against = session.receiver(address, name="again") if attach in (_sender, _control) else _sender(session, address)
    for worker in (1, 0, 1):
        now = attach(begin(dial_to, worker, f"c-{address}"), address)
        assert before.error == "amqp:link:stolen"
        before = now
    for link in (other, against, before):
        link.session.sync()
        assert link.detached is None


@pytest.mark.rule("P13", "D9")
def test_posts_of_one_that_is_stolen_are_answered(dial_to: DialTo, address: str) -> None:
    """And what its consumer had comes to the next."""
    before = _sender(begin(dial_to, 0, f"c-{address}"), address)
    assert before.outcome(data(b"1")) == Accepted()
    first = _receiver(begin(dial_to, 0, f"d-{address}"), address)
    assert first.take().body == b"1"
    numbers = [before.post(data(b"%d" % number)) for number in range(2, 6)]
    _sender(begin(dial_to, 1, f"c-{address}"), address)
    assert before.error == "amqp:link:stolen"
    assert [before.answer_to(number).state for number in numbers] == [Accepted()] * 4
    second = _receiver(begin(dial_to, 1, f"d-{address}"), address)
    assert first.error == "amqp:link:stolen"
    taken = second.take_many(5)
    assert sorted((each.body, each.count) for each in taken) == [
        (b"1", 1),
        *((b"%d" % number, 0) for number in range(2, 6)),
    ]


@pytest.mark.rule("P13", "D1")
def test_of_two_that_are_attached_at_once_one_stays(dial_to: DialTo, address: str) -> None:
    sender = poster(dial_to, address)
    for number in range(10):
        sessions = [begin(dial_to, worker, f"c-{address}") for worker in (0, 1)]
        links: list[Receiver] = []
        name = f"prices-{number}"

        def attach(session: Session, name: str = name, links: list[Receiver] = links) -> None:
            links.append(lasting(session, address, name))

        threads = [threading.Thread(target=attach, args=(session,)) for session in sessions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        body = b"%d" % number
        assert sender.outcome(data(body)) == Accepted()
        limit = time.monotonic() + PATIENCE
        while all(link.detached is None for link in links) and time.monotonic() < limit:
            for session in sessions:
                session.sync()
        stolen = [link for link in links if _stolen(link, body)]
        assert len(stolen) == 1
        for link in links:
            if link not in stolen:
                link.detach()


@pytest.mark.rule("P13")
def test_many_that_are_attached_in_one_go_are_all_stolen(dial_to: DialTo, address: str) -> None:
    """More than one turn reads: while the others are told of some, the next ones wait."""
    sessions = [begin(dial_to, worker, f"c-{address}") for worker in (0, 1)]
    names = [f"{number}-{address}" for number in range(200)]
    for session in sessions:
        session.sender(address).detach()  # the address is known from now on: no attach waits
        with session.peer.at_once():
            for handle, name in enumerate(names):
                session.send(Attach(name=name, handle=handle, role=RECEIVER, source=Source(address=address)))
        for name in names:
            assert session.peer.wait(Attach, name=name).source is not None
    stolen = [sessions[0].peer.wait(Detach) for _ in names]
    assert {str(each.error.condition) for each in stolen} == {"amqp:link:stolen"}


def _stolen(link: Receiver, body: bytes) -> bool:
    """Either it is detached, or it is left alone and gets the message."""
    while link.detached is None:
        if link.arrived:
            return _later(link)
        link.session.peer.step()
    return link.error == "amqp:link:stolen"


def _later(link: Receiver) -> bool:
    """The message may have come just before the link was stolen: after a while in which all notices are heard."""
    for _ in range(20):
        link.session.sync()
    return link.detached is not None
