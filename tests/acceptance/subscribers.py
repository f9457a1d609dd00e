"""Clients of lasting subscriptions, each at a worker of its own."""

from __future__ import annotations

from tests.fix_wire import DialTo
from tests.wire.frames import Open, Source, Target
from tests.wire.links import Receiver, Sender
from tests.wire.peer import Session
from tests.wire.types import Symbol

TOPIC = (Symbol("topic"),)


def begin(dial_to: DialTo, worker: int, container: str) -> Session:
    peer = dial_to(worker)
    peer.send(Open(container_id=container))
    peer.remote_open = peer.wait(Open)
    return peer.begin()


def lasting(session: Session, address: str, name: str) -> Receiver:
    source = Source(address=address, durable=2, expiry_policy=Symbol("never"), capabilities=TOPIC)
    return session.receiver(source, credit=10, name=name)


def poster(dial_to: DialTo, address: str) -> Sender:
    session = begin(dial_to, 0, f"poster-{address}")
    return session.sender(Target(address=address, capabilities=TOPIC))
