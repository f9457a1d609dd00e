"""Clients in transactions, as the examples of python-qpid-proton write them."""

from __future__ import annotations

from typing import Any

from proton import Message
from proton._events import Event
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import (
    Container,
    Transaction,
)


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
        #: properties of the connection
        self.of_connection: dict[str, str] | None = None

    def on_start(self, event: Event) -> None:
        self._container = event.container
        self._connection = event.container.connect(self._url, reconnect=False, properties=self.of_connection)
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

    #: of its messages
    properties: dict[str, Any] | None = None

    def open_link(self, container: Container, connection: Any, address: str) -> None:
        self._sender = container.create_sender(connection, address)
        self.outcomes: list[int] = []

    def on_sendable(self, event: Event) -> None:
        self.work()

    def work(self) -> None:
        while self.transaction is not None and self._sender.credit and self.done < self.size:
            message = Message(body=f"{self.batch}/{self.done}", properties=self.properties)
            self.transaction.send(self._sender, message)
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


class Detaching(Retiring):
    """Its receiver is detached, and not closed, before it retires what it had."""

    def on_message(self, event: Event) -> None:
        self._had = event
        self._receiver.detach()

    def on_link_remote_detach(self, event: Event) -> None:
        super().on_message(self._had)

    def on_transaction_commit_failed(self, event: Event) -> None:
        self._discharged("commit failed")


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
