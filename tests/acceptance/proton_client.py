"""The client that python-qpid-proton ships, as its examples use it.

``python -m tests.acceptance.proton_client CASE PORT`` prints one line of JSON with what the client saw.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from proton import ConnectionException, Delivery, Message, Terminus, symbol, ulong
from proton._events import Event
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import (
    AtMostOnce,
    Container,
    Copy,
    DynamicNodeProperties,
    ReceiverOption,
    SenderOption,
    Transaction,
)
from proton.utils import BlockingConnection, LinkDetached, SendException

#: Seconds for what must arrive.
PATIENCE = 60.0

Seen = dict[str, Any]


class _Transacted(MessagingHandler, TransactionHandler):
    """What sending and receiving in transactions share: one transaction after the other, alternately aborted."""

    def __init__(
        self, url: str, address: str, batches: int, size: int, *, settle_before_discharge: bool = False
    ) -> None:
        super().__init__(prefetch=0, auto_accept=False)
        self._url = url
        self._address = address
        self._batches = batches
        self._settle_before_discharge = settle_before_discharge
        self.size = size
        self.batch = 0
        self.done = 0
        self.transaction: Transaction | None = None
        self.seen: list[Any] = []

    def on_start(self, event: Event) -> None:
        self._container = event.container
        self._connection = event.container.connect(self._url, reconnect=False)
        self.open_link(event.container, self._connection, self._address)
        self._declare()

    def open_link(self, container: Container, connection: Any, address: str) -> None:
        raise NotImplementedError

    def work(self) -> None:
        """Called when a transaction is declared, and when there is something to do."""
        raise NotImplementedError

    def _declare(self) -> None:
        self._container.declare_transaction(
            self._connection, handler=self, settle_before_discharge=self._settle_before_discharge
        )

    def on_transaction_declared(self, event: Event) -> None:
        self.transaction = event.transaction
        self.done = 0
        self.work()

    def discharge(self) -> None:
        """Commit the batches with even numbers, abort the others."""
        transaction, self.transaction = self.transaction, None
        assert transaction is not None
        if self.batch % 2:
            transaction.abort()
        else:
            transaction.commit()

    def _discharged(self, outcome: str) -> None:
        self.seen.append(outcome)
        self.batch += 1
        if self.batch == self._batches:
            self._connection.close()
        else:
            self._declare()

    def on_transaction_committed(self, event: Event) -> None:
        self._discharged("committed")

    def on_transaction_aborted(self, event: Event) -> None:
        self._discharged("aborted")

    def on_transaction_declare_failed(self, event: Event) -> None:
        raise RuntimeError(f"declare failed: {event.delivery}")

    def on_transaction_commit_failed(self, event: Event) -> None:
        raise RuntimeError(f"commit failed: {event.delivery}")

    def on_transport_error(self, event: Event) -> None:
        raise RuntimeError(f"the connection broke: {event.transport}")


class Posting(_Transacted):
    """As the example ``tx_send.py``."""

    def open_link(self, container: Container, connection: Any, address: str) -> None:
        self._sender = container.create_sender(connection, address)
        self.outcomes: list[int] = []

    def on_sendable(self, event: Event) -> None:
        self.work()

    def work(self) -> None:
        while self.transaction is not None and self._sender.credit and self.done < self.size:
            self.transaction.send(self._sender, Message(body=f"{self.batch}/{self.done}"))
            self.done += 1
            if self.done == self.size:
                self.discharge()

    def on_settled(self, event: Event) -> None:
        delivery: Any = event.delivery
        if event.sender == self._sender and delivery.remote_state == 0x34:
            _, outcome = delivery.remote.data  # transactional-state: txn-id, outcome
            self.outcomes.append(int(outcome.descriptor))


class Retiring(_Transacted):
    """As the example ``tx_recv.py``."""

    def open_link(self, container: Container, connection: Any, address: str) -> None:
        self._receiver = container.create_receiver(connection, address)

    def work(self) -> None:
        self._receiver.flow(self.size)

    def on_message(self, event: Event) -> None:
        assert self.transaction is not None
        self.seen.append([event.message.body, event.message.delivery_count])
        assert event.delivery is not None
        self.transaction.accept(event.delivery)
        self.done += 1
        if self.done == self.size:
            self.discharge()


class Moving(Retiring):
    """What is retired goes on to another address, in the same transaction."""

    def open_link(self, container: Container, connection: Any, address: str) -> None:
        super().open_link(container, connection, f"{address}.from")
        self._sender = container.create_sender(connection, f"{address}.to")

    def on_message(self, event: Event) -> None:
        assert self.transaction is not None
        self.transaction.send(self._sender, Message(body=f"moved {event.message.body}"))
        super().on_message(event)


class TwoAtOnce(MessagingHandler, TransactionHandler):
    """Two transactions on one connection, posted in by turns; the first commits, the second does not."""

    def __init__(self, url: str, address: str) -> None:
        super().__init__()
        self._url = url
        self._address = address
        self._transactions: list[Transaction] = []
        self._begun = False
        self.seen: list[str] = []

    def on_start(self, event: Event) -> None:
        container: Any = event.container
        self._connection = container.connect(self._url, reconnect=False)
        self._sender = container.create_sender(self._connection, self._address)
        for _ in range(2):
            container.declare_transaction(self._connection, handler=self)

    def on_transaction_declared(self, event: Event) -> None:
        self._transactions.append(event.transaction)
        self._work()

    def on_sendable(self, event: Event) -> None:
        self._work()

    def _work(self) -> None:
        if self._begun or len(self._transactions) < 2 or self._sender.credit < 6:
            return
        self._begun = True
        for number in range(3):
            for name, transaction in zip("ab", self._transactions, strict=True):
                transaction.send(self._sender, Message(body=f"{name}{number}"))
        first, second = self._transactions
        first.commit()
        second.abort()

    def _discharged(self, outcome: str) -> None:
        self.seen.append(outcome)
        if len(self.seen) == 2:
            self._connection.close()

    def on_transaction_committed(self, event: Event) -> None:
        self._discharged("committed")

    def on_transaction_aborted(self, event: Event) -> None:
        self._discharged("aborted")


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


def tx_receive(url: str) -> Seen:
    return _receive(url, "proton.tx_receive", settle_before_discharge=False)


def tx_receive_settled(url: str) -> Seen:
    return _receive(url, "proton.tx_receive_settled", settle_before_discharge=True)


def _receive(url: str, address: str, *, settle_before_discharge: bool) -> Seen:
    connection = BlockingConnection(url, timeout=PATIENCE)
    sender = connection.create_sender(address)
    for number in range(6):
        sender.send(Message(body=f"m{number}"))
    connection.close()
    retiring = Retiring(url, address, batches=3, size=2, settle_before_discharge=settle_before_discharge)
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


def tx_two(url: str) -> Seen:
    both = TwoAtOnce(url, "proton.tx_two")
    Container(both).run()
    return {"outcomes": sorted(both.seen), "left": _take_all(url, "proton.tx_two")}


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
    seen["shared"] = sorted(body for each in shared for body in _accept(each, 1))
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
        *(tx_send, tx_receive, tx_receive_settled, tx_move, tx_two),
        *(blocking, settled, drain, large, browse, dynamic, relay, dead_letters, expiration),
        *(topics, lasting, groups),
        *(without_sasl, sole),
    )
}


def main() -> None:
    case, port = sys.argv[1:]
    sys.stdout.write(json.dumps(CASES[case](f"amqp://127.0.0.1:{port}")) + "\n")


if __name__ == "__main__":
    main()
