"""An order service: each order is a row in its own database and a message, by best effort one-phase commit (rule X1).

1. The message is posted in a transaction of the coordinator, and its acceptance awaited: what can be refused is, now.
2. The row is committed in the service's own database. It keeps the txn-id.
3. The transaction is discharged.

A crash before 2 leaves nothing. A crash between 2 and 3 leaves a row without its message: rare, and found by
``coordinator reconcile --book orders_book.toml``, as the row's txn-id is one that the coordinator rolled back.

With ``--producer-group`` the coordinator asks a checker of that group instead (rule H8): ``examples/orders_checked``
finds in the same database what became of the transaction, and its message is delivered.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import signal
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from proton import Message, ulong
from proton._events import Event
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container, Transaction
from sqlalchemy import (
    Column,
    Connection,
    DateTime,
    Engine,
    Integer,
    MetaData,
    Numeric,
    Table,
    Text,
    create_engine,
    event,
    func,
    select,
)
from sqlalchemy.exc import IntegrityError

TRANSACTIONAL_STATE = 0x34
ACCEPTED = ulong(0x24)

metadata = MetaData()
orders = Table(
    "orders",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("customer", Text, nullable=False),
    Column("amount", Numeric(10, 2), nullable=False),
    # The transaction in which the order's message was posted, in hexadecimal: the key between the two books.
    Column("txn_id", Text, nullable=False, unique=True),
    Column("placed_at", DateTime(timezone=True), nullable=False),
)
# What became of a transaction: the first row decides, this service's or a checker's.
outcomes = Table(
    "outcomes", metadata, Column("txn_id", Text, primary_key=True), Column("outcome", Text, nullable=False)
)


def open_database(url: str) -> Engine:
    """The service's own database; makes its table if it is missing."""
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def durable(connection: Any, _record: object) -> None:
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = full")  # a commit is on the disk

    metadata.create_all(engine)
    return engine


def incoming(first: int, last: int) -> Iterator[dict[str, Any]]:
    """The orders that customers send; the same number is always the same order."""
    for number in range(first, last + 1):
        source = random.Random(number)
        cents = source.randrange(100, 100_000)
        yield {"id": number, "customer": f"customer-{source.randrange(500):03}", "amount": Decimal(cents) / 100}


class OrderService(MessagingHandler, TransactionHandler):
    """Places one order after the other, each in a transaction of its own."""

    def __init__(self, arguments: argparse.Namespace, database: Connection) -> None:
        super().__init__()
        self._url: str = arguments.url
        self._address: str = arguments.address
        group = arguments.producer_group
        self._properties = {"coordinator:producer-group": group} if group else None
        self._database = database
        #: a point (``before-commit``, ``after-commit``) and the order at which it waits to be killed
        self._hold: tuple[str, int] | None = arguments.hold
        first = (database.scalar(select(func.max(orders.c.id))) or 0) + 1
        database.rollback()
        self._incoming = incoming(first, arguments.orders)
        self._order: dict[str, Any] | None = None
        self._transaction: Transaction | None = None
        self._undecided = 0
        self._finished = False
        self.placed = 0
        self.problem: str | None = None

    def on_start(self, event: Event) -> None:
        self._container = event.container
        self._connection = event.container.connect(self._url, reconnect=False, properties=self._properties)
        self._sender = event.container.create_sender(self._connection, self._address)
        self._container.declare_transaction(self._connection, handler=self)

    def on_transaction_declared(self, event: Event) -> None:
        self._transaction = event.transaction
        self._post()

    def on_sendable(self, event: Event) -> None:
        self._post()

    def _post(self) -> None:
        """Step 1, once there is a transaction and credit."""
        if self._transaction is None or self._order is not None or not self._sender.credit:
            return
        self._order = next(self._incoming, None)
        if self._order is None:
            self._transaction.abort()  # declared ahead, and not needed
            return
        order = self._order
        body = json.dumps({"order": order["id"], "customer": order["customer"], "amount": str(order["amount"])})
        self._undecided += 1
        self._transaction.send(
            self._sender,
            Message(id=f"order-{order['id']}", content_type="application/json", durable=True, body=body),
        )

    def on_settled(self, event: Event) -> None:
        """The answer to the post: a transactional state around the outcome."""
        delivery: Any = event.delivery
        if event.sender != self._sender:
            return
        order = self._order["id"] if self._order else None
        if delivery.remote_state != TRANSACTIONAL_STATE:  # as where the service stops, or the transaction timed out
            self._end(f"order {order} was not accepted: its transaction was rolled back")
            return
        outcome = delivery.remote.data[1]
        if outcome.descriptor != ACCEPTED:
            self._end(f"order {order} was not accepted: {outcome}")
            return
        self._commit()

    def _commit(self) -> None:
        """Steps 2 and 3."""
        order, transaction = self._order, self._transaction
        assert order is not None
        assert transaction is not None
        declared: Any = transaction.id
        txn_id = bytes(declared).hex()
        try:
            self._database.execute(outcomes.insert().values(txn_id=txn_id, outcome="commit"))
        except IntegrityError:
            self._end(f"a checker has refused order {order['id']}: place it again")
            return
        self._database.execute(orders.insert().values(**order, txn_id=txn_id, placed_at=datetime.now(UTC)))
        self._stop_at("before-commit", order["id"])
        self._database.commit()
        self._stop_at("after-commit", order["id"])
        transaction.commit()
        self._order = self._transaction = None
        # declare the next one together with the discharge: one round trip for both
        self._container.declare_transaction(self._connection, handler=self)

    def _stop_at(self, point: str, number: int) -> None:
        if self._hold == (point, number):
            print(f"holding {point} {number}", flush=True)
            while True:
                signal.pause()

    def on_transaction_committed(self, event: Event) -> None:
        self.placed += 1
        self._undecided -= 1
        self._close_when_done()

    def on_transaction_aborted(self, event: Event) -> None:
        self._finished = True
        self._close_when_done()

    def _close_when_done(self) -> None:
        # an empty transaction is answered at once, before the commits that wait for the disk
        if self._finished and not self._undecided:
            self._connection.close()

    def on_transaction_commit_failed(self, event: Event) -> None:
        delivery: Any = event.delivery
        self._end(f"an order is in the book, but its message was refused: {delivery.remote.condition}")

    def on_transaction_declare_failed(self, event: Event) -> None:
        self._end("no transaction could be declared")

    def on_link_error(self, event: Event) -> None:
        link: Any = event.link
        self._end(f"the service closed a link: {link.remote_condition}")

    def on_connection_remote_close(self, event: Event) -> None:
        """Proton's own handler leaves a connection open that is closed by force, as by a service that is stopped."""
        connection: Any = event.connection
        if connection.remote_condition is not None:
            self._lost(connection.remote_condition)

    def on_transport_error(self, event: Event) -> None:
        transport: Any = event.transport
        self._lost(transport.condition)

    def _lost(self, condition: Any) -> None:
        unknown = f"; what became of {self._undecided} messages is unknown" if self._undecided else ""
        self._end(f"no connection to {self._url}: {condition}{unknown}")

    def _end(self, problem: str) -> None:
        self.problem = self.problem or problem
        self._connection.close()


def place(arguments: argparse.Namespace) -> int:
    """Place orders up to number ``--orders``, going on after the last one in the book."""
    with open_database(arguments.database).connect() as database:
        service = OrderService(arguments, database)
        Container(service).run()
    print(f"placed {service.placed} orders", flush=True)
    if service.problem:
        print(f"error: {service.problem}", file=sys.stderr)
        return 1
    return 0


def export(arguments: argparse.Namespace) -> int:
    """Write the orders book as CSV."""
    names = [column.name for column in orders.columns]
    with open_database(arguments.database).connect() as database, arguments.file.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for row in database.execute(select(orders).order_by(orders.c.id)):
            # SQLite keeps no zone: the times were UTC
            writer.writerow([*row[:-1], row.placed_at.replace(tzinfo=row.placed_at.tzinfo or UTC).isoformat()])
    return 0


def hold_point(text: str) -> tuple[str, int]:
    point, _, number = text.partition(":")
    if point not in ("before-commit", "after-commit") or not number.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}: expected before-commit:NUMBER or after-commit:NUMBER")
    return point, int(number)


def main() -> int:
    parser = argparse.ArgumentParser(description="An order service that posts in transactions.")
    parser.add_argument("--database", default="sqlite:///orders.db", help="its own database (SQLAlchemy URL)")
    commands = parser.add_subparsers(required=True)
    placing = commands.add_parser("place", help="place orders")
    placing.add_argument("--url", default="amqp://127.0.0.1:5672", help="the coordinator")
    placing.add_argument("--address", default="orders", help="where the messages go")
    placing.add_argument("--orders", type=int, default=100, help="the number of the last order")
    placing.add_argument("--producer-group", help="ask a checker of this group what became of a transaction")
    placing.add_argument("--hold", type=hold_point, help="stop before-commit:N or after-commit:N and wait to be killed")
    placing.set_defaults(run=place)
    exporting = commands.add_parser("export", help="write the orders book as CSV")
    exporting.add_argument("file", type=Path)
    exporting.set_defaults(run=export)
    arguments = parser.parse_args()
    status: int = arguments.run(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main())
