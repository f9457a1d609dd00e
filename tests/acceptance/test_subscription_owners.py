"""A subscription is its user's: another who knows container, link and topic neither shares nor ends it (rule S3)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from store.permissions import Verb
from store.tables import ANONYMOUS
from tests.fix_permissions import Enter, enter_as
from tests.fix_service import Service, running_service
from tests.fix_users import Grant, grant
from tests.fix_wire import Ask, Dial
from tests.wire.frames import Accepted, Source
from tests.wire.messages import data
from tests.wire.peer import Session
from tests.wire.types import Symbol

LINK = "prices"
TOPIC, SHARED, GLOBAL = Symbol("topic"), Symbol("shared"), Symbol("global")
COPY, NEVER = Symbol("copy"), Symbol("never")


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service({"login.plain": "always"}) as service:
        yield service


def _lasting(topic: str, *capabilities: Symbol) -> Source:
    return Source(address=topic, capabilities=(TOPIC, *capabilities), expiry_policy=NEVER)


def _ways(topic: str, container: str) -> dict[str, Source]:
    """In which a client may come to the subscription, all by the link's name."""
    return {
        "subscribes": _lasting(topic),
        "shares": _lasting(topic, SHARED),
        "names the group": Source(address=f"{topic}::{LINK}@{container}"),
        "browses the group": Source(address=f"{topic}::{LINK}@{container}", distribution_mode=COPY),
        "ends it by name": Source(),
    }


def _seen(session: Session, source: Source) -> str:
    """The condition with which it is refused, or nothing."""
    link = session.receiver(source, name=LINK)
    if link.answer.source is None:
        return link.error
    link.detach(closed=False)
    return ""


def _entered(enter: Enter, dial: Dial, service: Service, who: str, topic: str) -> Session:
    """A session of the container that is named as the topic."""
    grants: list[Grant] = [(verb, pattern) for verb in Verb for pattern in (topic, f"{topic}::*")]
    if who == "no login":
        grant(service, grants, role=ANONYMOUS)
        peer = dial()
        peer.open(container_id=topic)
        return peer.begin()
    name = f"{who} {topic}"
    enter(grants, user=name)
    return enter_as(dial, name, container_id=topic)


@pytest.mark.rule("S3")
@pytest.mark.parametrize("way", _ways("", ""))
@pytest.mark.parametrize("who", ["another", "no login"])
def test_only_its_user_comes_to_it(
    enter: Enter, dial: Dial, service: Service, address: str, way: str, who: str
) -> None:
    owner = _entered(enter, dial, service, "owner", address)
    assert _seen(owner, _lasting(address)) == ""
    assert owner.sender(address).outcome(data(b"x")) == Accepted()
    other = _entered(enter, dial, service, who, address)
    expected = "amqp:not-found" if way == "ends it by name" else "amqp:unauthorized-access"
    assert _seen(other, _ways(address, address)[way]) == expected
    assert _seen(owner, _ways(address, address)[way]) == ""
    assert owner.receiver(_lasting(address), name=LINK).bodies() == [b"x"]


@pytest.mark.rule("S3")
def test_links_that_are_open_are_not_joined(enter: Enter, dial: Dial, service: Service, address: str) -> None:
    """One that does not last, shared by links of one container."""
    shared = Source(address=address, capabilities=(TOPIC, SHARED))
    owner = _entered(enter, dial, service, "owner", address)
    open_one = owner.receiver(shared, name=f"{LINK}|1")
    other = _entered(enter, dial, service, "another", address)
    refused = other.receiver(shared, name=f"{LINK}|2")
    assert refused.error == "amqp:unauthorized-access"
    assert owner.receiver(shared, name=f"{LINK}|2").answer.source is not None
    assert open_one.detached is None


@pytest.mark.rule("S3", "D1")
@pytest.mark.parametrize("maker", ["for all containers", "a named group", "no login"])
def test_what_is_no_ones_is_shared(
    enter: Enter, dial: Dial, service: Service, address: str, ask: Ask, maker: str
) -> None:
    """A subscription of all containers, a group that its sources name, and one that was made without a login."""
    source = {
        "for all containers": _lasting(address, SHARED, GLOBAL),
        "a named group": Source(address=f"{address}::billing", capabilities=(TOPIC,)),
        "no login": _lasting(address),
    }[maker]
    first = _entered(enter, dial, service, "no login" if maker == "no login" else "owner", address)
    assert _seen(first, source) == ""
    assert _seen(_entered(enter, dial, service, "another", address), source) == ""
    owners = "select owner from coordinator.consumer_group g join coordinator.address a on a.id = address_id where "
    assert ask(f"{owners} a.name = %s", address) == [(None,)]
