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

from coordinator_client.checker import Answer, Check, Checker, CheckerRefused

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
    """Places one order."""

    def __init__(self, arguments: argparse.Namespace, book: sqlite3.Connection) -> None:
        super().__init__()
        self._url: str = arguments.url
        self._group: str = arguments.group
        self._book = book
        self._order: int = arguments.order
        #: stop after its own commit, to be killed
        self._hold: bool = arguments.hold
        self._transaction: Transaction | None = None
        self._posted = False
        self.problem: str | None = None

    def on_start(self, event: Event) -> None:
        container: Any = event.container
        self._connection = container.connect(
            self._url, reconnect=False, properties={"coordinator:producer-group": self._group}
        )
        self._sender = container.create_sender(self._connection, "orders")
        container.declare_transaction(self._connection, handler=self)

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
        if event.sender != self._sender:
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

    def on_link_error(self, event: Event) -> None:
        link: Any = event.link
        self._end(f"the coordinator closed a link: {link.remote_condition}")

    def on_transport_error(self, event: Event) -> None:
        transport: Any = event.transport
        self._end(f"no connection to {self._url}: {transport.condition}")

    def _end(self, problem: str) -> None:
        self.problem = self.problem or problem
        self._connection.close()


def place(asked: argparse.Namespace, book: sqlite3.Connection) -> str | None:
    """The problem, if there was one."""
    service = OrderService(asked, book)
    Container(service).run()
    return service.problem


def answer_checks(asked: argparse.Namespace, book: sqlite3.Connection) -> str | None:
    left: int = asked.checks

    def answer(check: Check) -> Answer:
        nonlocal left
        found = outcome_of(book, check.txn_id.hex())
        order: object = check.message.id
        print(f"{order}: {found.name.lower()}", flush=True)
        left -= 1
        if not left:
            checker.stop()
        return found

    checker = Checker(asked.url, asked.group, answer)
    try:
        checker.run()
    except CheckerRefused as refused:
        return str(refused)
    return None


def outcome_of(book: sqlite3.Connection, txn_id: str) -> Answer:
    """What became of a transaction? Without an outcome it is rolled back, from now on."""
    try:
        with book:
            book.execute("insert into outcomes values (?, 'rollback') on conflict do nothing", (txn_id,))
    except sqlite3.OperationalError:  # another process holds the book for long: it is asked again
        return Answer.UNKNOWN
    (outcome,) = book.execute("select outcome from outcomes where txn_id = ?", (txn_id,)).fetchone()
    return Answer.COMMIT if outcome == "commit" else Answer.ROLLBACK


def main() -> int:
    parser = argparse.ArgumentParser(description="An order service that is asked about its transactions.")
    parser.add_argument("--url", default="amqp://127.0.0.1:5672", help="the coordinator")
    parser.add_argument("--book", type=Path, default=Path("orders.sqlite"), help="its own database")
    parser.add_argument("--group", default=GROUP, help="its producer group")
    commands = parser.add_subparsers(dest="command", required=True)
    placing = commands.add_parser("place", help="place an order")
    placing.add_argument("order", type=int)
    placing.add_argument("--hold", action="store_true", help="stop after its own commit, and wait to be killed")
    placing.set_defaults(run=place)
    answering = commands.add_parser("answer", help="answer checks")
    answering.add_argument("--checks", type=int, default=0, help="end after so many (0: never)")
    answering.set_defaults(run=answer_checks)
    asked = parser.parse_args()
    problem: str | None = asked.run(asked, open_book(asked.book))
    if problem:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
