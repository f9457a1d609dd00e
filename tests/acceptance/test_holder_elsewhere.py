"""Services that say where clients reach them send consumers of a group to the one that holds it (rule P24)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.fix_service import PATIENCE, Service, running_service
from tests.fix_wire import BeginAt
from tests.wire.peer import Session
from tests.wire.queues import post, select
from tests.wire.types import Int, Symbol

pytestmark = pytest.mark.rule("P24")

REDIRECT = "amqp:link:redirect"
_SOON = {"coordinator.group.serving.HOLD_SECONDS": 0.5}


@pytest.fixture(scope="module")
def services(module_database_url: str) -> Iterator[tuple[Service, Service]]:
    first, second = (
        {"database_url": module_database_url, "addresses.here": f"amqp://{name}.example:5672"} for name in ("a", "b")
    )
    with running_service(first, _SOON) as one, running_service(second, _SOON) as two:
        yield one, two


def _served(session: Session, address: str) -> object:
    """The body of a message, from whichever link gets one: the other service lets go of the group in its time."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        link = session.receiver(address, credit=1)
        while not link.arrived and link.detached is None:
            session.peer.step()
        if link.arrived:
            return link.take().body
        assert link.error == REDIRECT
    raise AssertionError(f"nothing came from {address}")


def test_a_consumer_is_sent_to_the_service_that_holds_its_group(
    services: tuple[Service, Service], begin_at: BeginAt
) -> None:
    here, there = (begin_at(each) for each in services)
    holds = here.receiver("sent")
    post(here, "sent", b"1")
    assert holds.bodies() == [b"1"]
    error = there.receiver("sent", credit=1).wait_detached().error
    assert error is not None
    place = {Symbol("hostname"): "a.example", Symbol("network-host"): "a.example", Symbol("port"): Int(5672)}
    assert (error.condition, error.info) == (REDIRECT, {**place, Symbol("address"): "sent"})
    assert error.description == "the service at amqp://a.example:5672 has consumers of sent: connect there"
    post(there, "sent", b"2")
    assert holds.bodies() == [b"2"]
    holds.detach()
    post(here, "sent", b"3")
    assert _served(there, "sent") == b"3"


def test_what_a_selector_chooses_is_served_everywhere(services: tuple[Service, Service], begin_at: BeginAt) -> None:
    here, there = (begin_at(each) for each in services)
    holds = here.receiver("chosen", credit=1)
    post(here, "chosen", b"1")
    assert holds.take().body == b"1"
    link = select(there, "chosen", "JMSPriority = 4")
    link.credit(1)
    post(here, "chosen", b"2")
    assert link.take().body == b"2"
