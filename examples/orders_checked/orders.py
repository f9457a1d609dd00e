"""An order service that is asked what became of its transactions: best effort one-phase, repaired (rules X1, H8).

1. The message is posted in a checkable transaction, and its acceptance awaited: it is durable, and not yet delivered.
2. The row is committed in the service's own database. It keeps the txn-id.
3. The transaction is discharged.

A crash between 2 and 3 leaves a row whose message waits. The coordinator shows the message to any process of the
producer group, which looks for the row: it is there, so the message is delivered.

Without a row it is rolled back. A check may come while the order is still being placed, as when its connection was
lost: so a transaction has one outcome in the service's own database, and the first row decides, written by the process
that places the order or by the checker.
"""

from __future__ import annotations

import argparse
import json
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

from proton import Message, ulong
from proton._events import Event
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container, Transaction

#: The name that the processes of this service share, unless they are told: each of them can answer for the others.
GROUP = "order-service"
TRANSACTIONAL_STATE = 0x34
ACCEPTED = ulong(0x24)


def open_book(path: Path) -> sqlite3.Connection:
    """The service's own database."""
    book = sqlite3.connect(path)
    book.execute("pragma journal_mode = wal")
    book.execute("pragma synchronous = full")  # a commit is on the disk
    book.execute("create table if not exists orders (id integer primary key, txn_id text not null unique)")
    book.execute("create table if not exists outcomes (txn_id text primary key, outcome text not null)")
    return book


class OrderService(MessagingHandler, TransactionHandler):
    """Places one order, if it is given one, and answers checks."""

    def __init__(self, arguments: argparse.Namespace, book: sqlite3.Connection) -> None:
        super().__init__(prefetch=0, auto_accept=False, auto_settle=False)
        self._url: str = arguments.url
        self._group: str = arguments.group
        self._book = book
        self._order: int | None = getattr(arguments, "order", None)
        #: stop after its own commit, to be killed
        self._hold: bool = getattr(arguments, "hold", False)
        #: end after so many are answered; 0: never
        self._checks: int = getattr(arguments, "checks", 0)
        self._transaction: Transaction | None = None
        self._posted = False
        self.problem: str | None = None

    def on_start(self, event: Event) -> None:
        container: Any = event.container
        self._connection = container.connect(
            self._url, reconnect=False, properties={"coordinator:producer-group": self._group}
        )
        if self._order is not None:
            self._sender = container.create_sender(self._connection, "orders")
            container.declare_transaction(self._connection, handler=self)
        else:
            self._checker = container.create_receiver(self._connection, f"$check/{self._group}")
            self._checker.flow(10)

    # -- an order

    def on_transaction_declared(self, event: Event) -> None:
        self._transaction = event.transaction
        self.on_sendable(event)

    def on_sendable(self, _event: Event) -> None:
        """Step 1, once there is a transaction and credit."""
        if self._transaction is None or self._posted or not self._sender.credit:
            return
        self._posted = True
        self._transaction.send(
            self._sender, Message(id=f"order-{self._order}", durable=True, body=json.dumps({"order": self._order}))
        )

    def on_settled(self, event: Event) -> None:
        """The answer to the post: a transactional state around the outcome. Then steps 2 and 3."""
        delivery: Any = event.delivery
        if self._order is None or event.sender != self._sender:
            return
        outcome = delivery.remote.data[1] if delivery.remote_state == TRANSACTIONAL_STATE else None
        if outcome is None or outcome.descriptor != ACCEPTED:
            self._end(f"order {self._order} was not accepted: {outcome or delivery.remote.condition}")
            return
        assert self._transaction is not None
        declared: Any = self._transaction.id
        txn_id = bytes(declared).hex()
        try:
            with self._book:
                self._book.execute("insert into outcomes values (?, 'commit')", (txn_id,))
                self._book.execute("insert into orders values (?, ?)", (self._order, txn_id))
        except sqlite3.IntegrityError:
            self._transaction.abort()
            self._end(f"order {self._order} is in the book already, or a checker has refused it")
            return
        if self._hold:
            print("holding", flush=True)
            while True:
                signal.pause()
        self._transaction.commit()

    def on_transaction_committed(self, event: Event) -> None:
        print(f"placed order {self._order}", flush=True)
        self._connection.close()

    def on_transaction_commit_failed(self, event: Event) -> None:
        delivery: Any = event.delivery
        self._end(f"the order is in the book, but its message was refused: {delivery.remote.condition}")

    # -- checks

    def on_message(self, event: Event) -> None:
        delivery: Any = event.delivery
        message: Any = event.message
        outcome = self._outcome_of(bytes(message.instructions["x-opt-txn-id"]).hex())
        print(f"{message.id}: {outcome}", flush=True)
        states = {"commit": delivery.ACCEPTED, "rollback": delivery.REJECTED, "unknown": delivery.RELEASED}
        delivery.update(states[outcome])
        delivery.settle()
        self._checker.flow(1)
        self._checks -= 1
        if not self._checks:
            self._connection.close()

    def _outcome_of(self, txn_id: str) -> str:
        """What became of a transaction? Without an outcome it is rolled back, from now on."""
        try:
            with self._book:
                self._book.execute("insert into outcomes values (?, 'rollback') on conflict do nothing", (txn_id,))
        except sqlite3.OperationalError:  # another process holds the book for long: it is asked again
            return "unknown"
        (outcome,) = self._book.execute("select outcome from outcomes where txn_id = ?", (txn_id,)).fetchone()
        return str(outcome)

    # -- problems

    def on_link_error(self, event: Event) -> None:
        link: Any = event.link
        self._end(f"the coordinator closed a link: {link.remote_condition}")

    def on_transport_error(self, event: Event) -> None:
        transport: Any = event.transport
        self._end(f"no connection to {self._url}: {transport.condition}")

    def _end(self, problem: str) -> None:
        self.problem = self.problem or problem
        self._connection.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="An order service that is asked about its transactions.")
    parser.add_argument("--url", default="amqp://127.0.0.1:5672", help="the coordinator")
    parser.add_argument("--book", type=Path, default=Path("orders.sqlite"), help="its own database")
    parser.add_argument("--group", default=GROUP, help="its producer group")
    commands = parser.add_subparsers(dest="command", required=True)
    placing = commands.add_parser("place", help="place an order")
    placing.add_argument("order", type=int)
    placing.add_argument("--hold", action="store_true", help="stop after its own commit, and wait to be killed")
    answering = commands.add_parser("answer", help="answer checks")
    answering.add_argument("--checks", type=int, default=0, help="end after so many (0: never)")
    asked = parser.parse_args()
    service = OrderService(asked, open_book(asked.book))
    Container(service).run()
    if service.problem:
        print(f"error: {service.problem}", file=sys.stderr)
    return 1 if service.problem else 0


if __name__ == "__main__":
    sys.exit(main())
