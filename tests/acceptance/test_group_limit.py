"""How many consumer groups an address may have (rules S4, D1)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fix_service import Service, running_service
from tests.fix_wire import Begin
from tests.wire.frames import Source
from tests.wire.peer import Session
from tests.wire.queues import post
from tests.wire.types import Symbol

MOST = 3
EXCEEDED = "amqp:resource-limit-exceeded"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service({"bounds.groups_per_address": str(MOST)}) as service:
        yield service


def _refused(session: Session, source: str | Source) -> None:
    error = session.receiver(source).wait_detached().error
    assert error is not None
    assert (error.condition, f"at most {MOST} consumer groups" in str(error.description)) == (EXCEEDED, True)


@pytest.mark.rule("S4", "D1")
def test_a_link_that_needs_one_group_more_is_refused(begin: Begin, service: Service, address: str) -> None:
    """By the limit's name. Groups that are there are joined, and the default one does not count."""
    session = begin()
    for number in range(MOST):
        link = session.receiver(f"{address}::{number}")
        assert link.answer.source is not None
        link.detach()
    _refused(begin(), f"{address}::more")
    _refused(begin(), f"{address}::*")
    post(session, address, b"x")
    assert session.receiver(f"{address}::0").bodies() == session.receiver(address).bodies() == [b"x"]
    assert session.receiver(f"{address}-other::more").answer.source is not None


@pytest.mark.rule("S4", "D1")
def test_lasting_subscriptions_count_when_their_links_are_gone(begin: Begin, service: Service, address: str) -> None:
    service.cli("address", "add", address, "--topic")
    session = begin()
    lasting = [Source(address=address, expiry_policy=Symbol("never")) for _ in range(MOST)]
    links = [session.receiver(source) for source in lasting]
    for link in links:
        assert link.answer.source is not None
        link.detach(closed=False)
    _refused(begin(), lasting[0])
    _refused(begin(), address)
