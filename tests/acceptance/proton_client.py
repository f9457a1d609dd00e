"""The client that python-qpid-proton ships, as its examples use it.

``python -m tests.acceptance.proton_client CASE PORT`` prints one line of JSON with what the client saw.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from proton import Delivery, Message, ulong
from proton._events import Event
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container, Copy, DynamicNodeProperties, Transaction
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


CASES: dict[str, Callable[[str], Seen]] = {
    case.__name__: case for case in (tx_send, tx_receive, tx_receive_settled, blocking, browse, dynamic, without_sasl)
}


def main() -> None:
    case, port = sys.argv[1:]
    sys.stdout.write(json.dumps(CASES[case](f"amqp://127.0.0.1:{port}")) + "\n")


if __name__ == "__main__":
    main()
