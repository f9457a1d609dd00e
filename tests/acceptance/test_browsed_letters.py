"""Dead letters browsed (D4): a browser sees each with where it came from and why, and takes none."""

from __future__ import annotations

import json

import pytest

from coordinator.address.addresses import dead_letter_name
from tests.fix_service import Service
from tests.fix_wire import Ask, Begin
from tests.wire.frames import Accepted, Error, Modified, Rejected, Released, Source, State
from tests.wire.peer import Session
from tests.wire.queues import browse, dead_letters, post

pytestmark = pytest.mark.rule("D4", "P8")


def _browser(address: str) -> Source:
    return Source(address=dead_letter_name(address), distribution_mode="copy")


def _bury(session: Session, address: str, *bodies: bytes) -> None:
    """A consumer rejects them, each with its body as the reason; waits until they are dead letters."""
    post(session, address, *bodies)
    consumer = session.receiver(address)
    for delivery in consumer.take_many(len(bodies)):
        error = Error(condition="app:bad", description=delivery.body.decode())
        delivery.disposition(Rejected(error=error), settled=False)
        delivery.settlement()
    consumer.detach()
    dead_letters(session, address).detach()  # they come right after
    browser = session.receiver(_browser(address))
    assert sorted(each.body for each in browser.take_many(len(bodies))) == sorted(bodies)
    browser.detach()


@pytest.mark.parametrize(
    "outcome",
    [Accepted(), Rejected(), Released(), Modified(delivery_failed=True, undeliverable_here=True), None],
    ids=["accepted", "rejected", "released", "modified", "none"],
)
def test_a_browser_sees_them_and_takes_none(
    begin: Begin, service: Service, ask: Ask, address: str, outcome: State | None
) -> None:
    """Whatever it says of them: they stay, with their counts, and no letter is made of a letter."""
    session = begin()
    _bury(session, address, b"1", b"2", b"3")
    name = dead_letter_name(address)
    before = json.loads(service.cli("dead-letters", "show", address, "--json"))
    browser = session.receiver(_browser(address))
    seen = browser.drain()
    assert sorted(each.body for each in seen) == [b"1", b"2", b"3"]
    for each in seen:
        each.disposition(outcome)
    browser.detach()
    assert sorted(browse(session, name)) == [b"1", b"2", b"3"]
    assert json.loads(service.cli("dead-letters", "show", address, "--json")) == before
    assert ask("select count(*) from coordinator.address where name = %s", dead_letter_name(name)) == [(0,)]
    taken = session.receiver(name).drain()
    assert [each.count for each in (*seen, *taken)] == [0] * 6
    # as a consumer gets it, word for word
    assert sorted(each.octets for each in taken) == sorted(each.octets for each in seen)
    for each in seen:
        assert each.message.annotations["x-opt-original-address"] == address
        assert each.message.annotations["x-opt-last-error"] == f"app:bad: {each.body.decode()}"


def test_a_browser_goes_on_with_what_dies_while_it_looks(begin: Begin, address: str) -> None:
    session = begin()
    _bury(session, address, b"1")
    browser = session.receiver(_browser(address), credit=10)
    assert browser.take().body == b"1"
    consumer = session.receiver(address, credit=1)
    post(session, address, b"2")
    consumer.take().disposition(Rejected())
    assert browser.take().body == b"2"
    assert sorted(browse(session, dead_letter_name(address))) == [b"1", b"2"]
