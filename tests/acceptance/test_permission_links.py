"""What a client without permissions can do to the links and groups of others: nothing (rule S3)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from store.permissions import Verb
from tests.fix_permissions import Enter, enter_as
from tests.fix_service import Service, running_service
from tests.fix_users import EVERYTHING
from tests.fix_wire import Ask, Dial
from tests.wire import checkable
from tests.wire.frames import Accepted, Coordinator, Source, Target
from tests.wire.messages import data
from tests.wire.types import Symbol

UNAUTHORIZED = "amqp:unauthorized-access"
GROUPS = (
    "select g.name from coordinator.consumer_group g join coordinator.address a on a.id = g.address_id "
    "where a.name = %s"
)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service({"login.plain": "always"}) as service:
        yield service


@pytest.mark.rule("S3", "P13")
@pytest.mark.parametrize("target", [Target(), Coordinator()], ids=["relay", "control link"])
def test_links_of_another_users_container_are_not_stolen(
    enter: Enter, dial: Dial, address: str, target: Target | Coordinator
) -> None:
    """Neither a relay nor a control link needs a permission to be attached."""
    user, other = f"user {address}", f"other {address}"
    enter(EVERYTHING, user=user)
    enter([], user=other)
    session = enter_as(dial, user, container_id=address)
    control, sender = session.control(name="control"), session.sender(address, name="sender")
    txn = control.declare()
    checkable.accept(sender, b"x", txn)
    hostile = enter_as(dial, other, container_id=address)
    for name in ("control", "sender"):
        assert hostile.sender(target, name=name).detached is None
    assert sender.outcome(data(b"y")) == Accepted()
    control.commit(txn)
    assert sorted(session.receiver(address).bodies()) == [b"x", b"y"]
    assert enter_as(dial, user, container_id=address).sender(address, name="sender").outcome(data(b"z")) == Accepted()
    assert sender.error == "amqp:link:stolen"


@pytest.mark.rule("S3")
def test_a_browser_makes_no_group(enter: Enter, address: str, ask: Ask) -> None:
    owner = enter(EVERYTHING)
    owner.receiver(f"{address}::there")
    browser = enter([(Verb.BROWSE, address)])

    def browsed(group: str) -> str:
        source = Source(address=f"{address}::{group}", distribution_mode=Symbol("copy"))
        link = browser.receiver(source)
        return "" if link.answer.source is not None else link.error

    assert browsed("there") == ""
    assert browsed("new") == UNAUTHORIZED
    assert sorted(name for (name,) in ask(GROUPS, address)) == ["", "there"]
