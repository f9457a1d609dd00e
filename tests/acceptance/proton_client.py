"""The client that python-qpid-proton ships, as its examples use it.

``python -m tests.acceptance.proton_client CASE PORT`` prints one line of JSON with what the client saw.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from proton import ConnectionException, Delivery, Message, Terminus, Timeout, symbol, ulong
from proton.reactor import (
    AtMostOnce,
    Container,
    Copy,
    DynamicNodeProperties,
    ReceiverOption,
    SenderOption,
)
from proton.utils import BlockingConnection, LinkDetached, SendException

from tests.acceptance.proton_transactions import Detaching, Moving, Posting, Retiring, TwoAtOnce

#: Seconds for what must arrive.
PATIENCE = 60.0

Seen = dict[str, Any]


class Subscription(ReceiverOption):
    """To a topic; ``capabilities`` beside ``topic``, ``name``: it lasts."""

    def __init__(self, *capabilities: str, name: str | None = None) -> None:
        self._capabilities = ["topic", *capabilities]
        self._lasts = name is not None

    def apply(self, receiver: Any) -> None:
        source = receiver.source
        source.capabilities.put_array(False, source.capabilities.SYMBOL)
        source.capabilities.enter()
        for each in self._capabilities:
            source.capabilities.put_symbol(symbol(each))
        if self._lasts:
            source.durability = Terminus.DELIVERIES
            source.expiry_policy = Terminus.EXPIRE_NEVER


class ToTopic(SenderOption):
    def apply(self, sender: Any) -> None:
        sender.target.capabilities.put_symbol(symbol("topic"))


def _take_all(url: str, address: str) -> list[Any]:
    """Everything left at an address: a mark is sent behind it and all before the mark is taken."""
    connection = BlockingConnection(url, timeout=PATIENCE)
    try:
        connection.create_sender(address).send(Message(body="end"))
        receiver = connection.create_receiver(address, credit=1)
        taken = []
        while (message := receiver.receive(timeout=PATIENCE)).body != "end":
            taken.append(message.body)
            receiver.accept()
            receiver.flow(1)
        receiver.accept()
        return taken
    finally:
        connection.close()


def tx_send(url: str) -> Seen:
    posting = Posting(url, "proton.tx_send", batches=4, size=3)
    Container(posting).run()
    accepted = [outcome == ulong(Delivery.ACCEPTED) for outcome in posting.outcomes]
    return {"outcomes": posting.seen, "accepted": accepted, "left": _take_all(url, "proton.tx_send")}


def tx_send_checkable(url: str) -> Seen:
    """Its messages name a producer group."""
    posting = Posting(url, "proton.tx_send_checkable", batches=4, size=3)
    posting.properties = {"producer-group": "proton"}
    Container(posting).run()
    accepted = [outcome == ulong(Delivery.ACCEPTED) for outcome in posting.outcomes]
    return {"outcomes": posting.seen, "accepted": accepted, "left": _take_all(url, "proton.tx_send_checkable")}


def tx_receive(url: str) -> Seen:
    return _receive(url, "proton.tx_receive", settle_before_discharge=False)


def tx_receive_settled(url: str) -> Seen:
    return _receive(url, "proton.tx_receive_settled", settle_before_discharge=True)


def tx_receive_checkable(url: str) -> Seen:
    """Its connection names a producer group."""
    address, group = "proton.tx_receive_checkable", {"coordinator:producer-group": "proton"}
    return _receive(url, address, settle_before_discharge=False, of_connection=group)


def _receive(
    url: str, address: str, *, settle_before_discharge: bool, of_connection: dict[str, str] | None = None
) -> Seen:
    connection = BlockingConnection(url, timeout=PATIENCE)
    sender = connection.create_sender(address)
    for number in range(6):
        sender.send(Message(body=f"m{number}"))
    connection.close()
    retiring = Retiring(url, address, batches=3, size=2, settle_before_discharge=settle_before_discharge)
    retiring.of_connection = of_connection
    Container(retiring).run()
    return {"seen": retiring.seen, "left": _take_all(url, address)}


def blocking(url: str) -> Seen:
    address = "proton.blocking"
    connection = BlockingConnection(url, timeout=PATIENCE)
    sender = connection.create_sender(address)
    for number in range(4):
        sender.send(Message(body=f"m{number}", properties={"number": number}))
    receiver = connection.create_receiver(address, credit=1)
    seen = []
    outcomes: dict[Any, list[Callable[[], None]]] = {
        "m1": [receiver.accept, receiver.release],
        "m2": [receiver.reject],
    }
    for _ in range(5):
        message: Any = receiver.receive(timeout=PATIENCE)
        seen.append([message.body, message.delivery_count, message.properties["number"]])
        outcomes.get(message.body, [receiver.accept]).pop()()
        receiver.flow(1)
    connection.close()
    return {"seen": seen, "left": _take_all(url, address)}


def browse(url: str) -> Seen:
    address = "proton.browse"
    connection = BlockingConnection(url, timeout=PATIENCE)
    sender = connection.create_sender(address)
    for number in range(3):
        sender.send(Message(body=f"m{number}"))
    browser = connection.create_receiver(address, credit=3, options=Copy())
    seen = [browser.receive(timeout=PATIENCE).body for _ in range(3)]
    connection.close()
    return {"seen": seen, "left": _take_all(url, address)}


def dynamic(url: str) -> Seen:
    connection = BlockingConnection(url, timeout=PATIENCE)
    options = DynamicNodeProperties({"supported-dist-modes": "move"})
    receiver = connection.create_receiver(None, credit=1, dynamic=True, options=options)
    address = receiver.link.remote_source.address
    elsewhere = BlockingConnection(url, timeout=PATIENCE)
    elsewhere.create_sender(address).send(Message(body="hello"))
    message = receiver.receive(timeout=PATIENCE)
    receiver.accept()
    connection.close()
    try:
        elsewhere.create_sender(None).send(Message(address=address, body="too late"))
        after = "accepted"
    except SendException as refused:
        after = "rejected" if refused.state == Delivery.REJECTED else str(refused.state)
    except LinkDetached as detached:
        after = str(detached.condition)
    elsewhere.close()
    return {"address": address, "received": message.body, "after": after}


def without_sasl(url: str) -> Seen:
    connection = BlockingConnection(url, timeout=PATIENCE, sasl_enabled=False)
    opened: Any = connection.conn
    properties = opened.remote_properties or {}
    offered = [str(each) for each in opened.remote_offered_capabilities or ()]
    connection.create_sender("proton.without_sasl").send(Message(body="hello"))
    connection.close()
    return {
        "properties": {str(name): str(value) for name, value in properties.items()},
        "offered": sorted(offered),
        "left": _take_all(url, "proton.without_sasl"),
    }


def tx_move(url: str) -> Seen:
    address = "proton.tx_move"
    _send(url, f"{address}.from", *(f"m{number}" for number in range(4)))
    moving = Moving(url, address, batches=2, size=2)
    Container(moving).run()
    return {
        "seen": moving.seen,
        "from": _take_all(url, f"{address}.from"),
        "to": _take_all(url, f"{address}.to"),
    }


def tx_detached(url: str) -> Seen:
    address = "proton.tx_detached"
    _send(url, address, "m0")
    detaching = Detaching(url, address, batches=1, size=1)
    Container(detaching).run()
    return {"seen": detaching.seen, "left": _take_all(url, address)}


def tx_two(url: str) -> Seen:
    both = TwoAtOnce(url, "proton.tx_two")
    Container(both).run()
    return {"outcomes": sorted(both.seen), "left": _take_all(url, "proton.tx_two")}


def redirected(url: str) -> Seen:
    """To an address that another service has: the error says where it is."""
    address, seen = "elsewhere.proton", Seen()
    connection = BlockingConnection(url, timeout=PATIENCE)
    for kind, create in (("sender", connection.create_sender), ("receiver", connection.create_receiver)):
        try:
            create(address)
        except LinkDetached as detached:
            condition: Any = detached.link.remote_condition
            info = {str(key): value for key, value in condition.info.items()}
            place = str(info["network-host"]), int(info["port"]), str(info["address"])
            seen[kind] = [detached.condition, *place]
    connection.close()
    _, host, port, there = seen["sender"]
    other = BlockingConnection(f"amqp://{host}:{port}", timeout=PATIENCE)
    other.create_sender(there).send(Message(body="followed"))
    seen["received"] = other.create_receiver(there, credit=1).receive(timeout=PATIENCE).body
    other.close()
    return seen


def _send(url: str, address: str, *bodies: str, options: Any = None) -> None:
    connection = BlockingConnection(url, timeout=PATIENCE)
    sender = connection.create_sender(address, options=options)
    for body in bodies:
        sender.send(Message(body=body))
    connection.close()


def _accept(receiver: Any, count: int) -> list[Any]:
    bodies = []
    for _ in range(count):
        bodies.append(receiver.receive(timeout=PATIENCE).body)
        receiver.accept()
    return bodies


def settled(url: str) -> Seen:
    address = "proton.settled"
    connection = BlockingConnection(url, timeout=PATIENCE)
    sender = connection.create_sender(address, options=AtMostOnce())
    for number in range(3):
        sender.send(Message(body=f"m{number}"))
    receiver = connection.create_receiver(address, credit=3, options=AtMostOnce())
    received = [receiver.receive(timeout=PATIENCE).body for _ in range(3)]
    connection.close()
    return {"received": received, "left": _take_all(url, address)}


def drain(url: str) -> Seen:
    address = "proton.drain"
    connection = BlockingConnection(url, timeout=PATIENCE)
    receiver: Any = connection.create_receiver(address, credit=0)
    link = receiver.link

    def drained(credit: int) -> None:
        link.drain(credit)
        connection.wait(lambda: link.credit == 0 and not link.draining(), msg="the end of a drain")

    drained(5)
    empty = receiver.fetcher.has_message
    _send(url, address, "m0", "m1")
    drained(10)
    received = _accept(receiver, receiver.fetcher.has_message)
    connection.close()
    return {"empty": empty, "received": received, "left": _take_all(url, address)}


def large(url: str) -> Seen:
    body = bytes(range(256)) * 12_000
    connection = BlockingConnection(url, timeout=PATIENCE, max_frame_size=8192)
    connection.create_sender("proton.large").send(Message(body=body))
    receiver = connection.create_receiver("proton.large", credit=1)
    message: Any = receiver.receive(timeout=PATIENCE)
    equal = bytes(message.body) == body  # a view of the message's own memory: gone with it
    receiver.accept()
    connection.close()
    return {"equal": equal}


def relay(url: str) -> Seen:
    connection = BlockingConnection(url, timeout=PATIENCE)
    sender = connection.create_sender(None)
    for name in ("a", "b"):
        sender.send(Message(address=f"proton.relay.{name}", body=f"to {name}"))
    try:
        sender.send(Message(body="without to"))
        nowhere = "accepted"
    except SendException as refused:
        nowhere = "rejected" if refused.state == Delivery.REJECTED else str(refused.state)
    connection.close()
    return {"nowhere": nowhere, **{name: _take_all(url, f"proton.relay.{name}") for name in ("a", "b")}}


def topics(url: str) -> Seen:
    address = "proton.topics"
    connections: list[Any] = [BlockingConnection(url, timeout=PATIENCE) for _ in range(2)]
    alone = [each.create_receiver(address, credit=2, options=Subscription()) for each in connections]
    shared = [
        each.create_receiver(
            address, credit=1, name=f"prices|{number}", options=Subscription("shared", "global", name="prices")
        )
        for number, each in enumerate(connections)
    ]
    _send(url, address, "m0", "m1", options=ToTopic())
    seen: Seen = {"alone": [_accept(each, 2) for each in alone]}
    took: list[Any] = []
    until = time.monotonic() + PATIENCE
    while len(took) < 2 and time.monotonic() < until:  # Proton gives credit anew by itself: one may get both
        for member in shared:
            with suppress(Timeout):
                member.connection.wait(lambda each=member: each.fetcher.has_message, timeout=0.2)
                took += _accept(member, 1)
    seen["shared"] = sorted(took)
    for member in shared:
        member.close()
    for each in connections:
        each.close()
    return seen


def lasting(url: str) -> Seen:
    address = "proton.lasting"
    seen: Seen = {}
    for round_ in ("first", "away", "closed"):
        if round_ != "first":
            _send(url, address, round_, options=ToTopic())
        connection = BlockingConnection(url, timeout=PATIENCE, container_id="proton-reader")
        receiver: Any = connection.create_receiver(
            address, credit=1, name="prices", options=Subscription(name="prices")
        )
        if round_ == "first":
            _send(url, address, round_, options=ToTopic())
        if round_ == "closed":
            _send(url, address, "end", options=ToTopic())
        seen[round_] = _accept(receiver, 1)
        if round_ == "away":
            receiver.close()
        connection.close()
    return seen


def groups(url: str) -> Seen:
    address = "proton.groups"
    connection = BlockingConnection(url, timeout=PATIENCE)
    members = {name: connection.create_receiver(f"{address}::{name}", credit=2) for name in ("billing", "shipping")}
    _send(url, address, "m0", "m1")
    seen: Seen = {name: _accept(member, 2) for name, member in members.items()}
    connection.close()
    return {**seen, "default": _take_all(url, address)}


def expiration(url: str) -> Seen:
    address = "proton.expiration"
    connection = BlockingConnection(url, timeout=PATIENCE)
    sender = connection.create_sender(address)
    sender.send(Message(body="brief", ttl=0.001))
    sender.send(Message(body="lasting", ttl=3600))
    connection.close()
    time.sleep(0.02)
    return {"left": _take_all(url, address)}


def dead_letters(url: str) -> Seen:
    address = "proton.dead_letters"
    _send(url, address, "bad")
    connection = BlockingConnection(url, timeout=PATIENCE)
    receiver = connection.create_receiver(address, credit=1)
    receiver.receive(timeout=PATIENCE)
    receiver.reject()
    letters = connection.create_receiver(f"%DLQ%{address}", credit=1)
    seen = _accept(letters, 1)
    connection.close()
    return {"letters": seen, "left": _take_all(url, address)}


def sole(url: str) -> Seen:
    def connect() -> BlockingConnection:
        return BlockingConnection(
            url,
            timeout=PATIENCE,
            container_id="proton-sole",
            desired_capabilities=symbol("sole-connection-for-container"),
        )

    first = connect()
    try:
        connect()
        refused = "connected"
    except ConnectionException as error:
        refused = "invalid-field" if "amqp:invalid-field" in str(error) else str(error)
    first.close()
    connect().close()
    return {"second": refused}


CASES: dict[str, Callable[[str], Seen]] = {
    case.__name__: case
    for case in (
        *(
            tx_send,
            tx_send_checkable,
            tx_receive,
            tx_receive_checkable,
            tx_receive_settled,
            tx_move,
            tx_detached,
            tx_two,
        ),
        *(blocking, settled, drain, large, browse, dynamic, relay, dead_letters, expiration),
        *(topics, lasting, groups),
        *(without_sasl, sole, redirected),
    )
}


def main() -> None:
    case, port = sys.argv[1:]
    sys.stdout.write(json.dumps(CASES[case](f"amqp://127.0.0.1:{port}")) + "\n")


if __name__ == "__main__":
    main()
