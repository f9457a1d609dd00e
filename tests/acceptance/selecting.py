"""Lasting subscriptions with selectors."""

from __future__ import annotations

from tests.acceptance.subscribers import TOPIC
from tests.wire.frames import Accepted, Target
from tests.wire.links import Receiver
from tests.wire.messages import data, section
from tests.wire.peer import Session
from tests.wire.queues import NO_LOCAL, SELECTOR, filtered
from tests.wire.types import Described, Int, Symbol

LOW, HIGH = "price < 10", "price >= 10"


def subscribed(
    session: Session, address: str, selector: str, *capabilities: str, no_local: bool = False, name: str = "sub"
) -> Receiver:
    filters = {"selector": Described(SELECTOR, selector)} if selector else {}
    if no_local:
        filters["no-local"] = Described(NO_LOCAL, [])
    source = filtered(
        address,
        filters,
        durable=2,
        expiry_policy=Symbol("never"),
        capabilities=(*TOPIC, *(Symbol(each) for each in capabilities)),
    )
    return session.receiver(source, credit=10, name=name)


def post(session: Session, address: str, *prices: int) -> None:
    sender = session.sender(Target(address=address, capabilities=TOPIC))
    for price in prices:
        assert sender.outcome(section(0x74, {"price": Int(price)}) + data(b"%d" % price)) == Accepted()


def taken(receiver: Receiver) -> list[bytes]:
    found = receiver.drain()
    for each in found:
        each.disposition(Accepted())
    return [each.body for each in found]
