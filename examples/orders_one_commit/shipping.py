"""A consumer in the PostgreSQL of the store: it ships each order once, however often its message comes (X4, X5).

1. One SQL transaction asks ``first_time`` and, if it is, writes the shipment.
2. The message is accepted.

A crash before the commit of 1 leaves nothing, and one between 1 and 2 leaves the shipment: either way the message comes
again, and in the second case it is not the first time.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from typing import Any

from proton._events import Event
from proton.handlers import MessagingHandler
from proton.reactor import Container
from sqlalchemy import Column, Connection, DateTime, Engine, Integer, MetaData, Table, create_engine, func
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateSchema

from coordinator_client import sql

metadata = MetaData(schema="shipping")
# No key forbids a second shipment of an order: that there is none is the work of first_time alone.
shipments = Table(
    "shipments",
    metadata,
    Column("order_id", Integer, nullable=False),
    Column("shipped_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)


def open_database(url: str) -> Engine:
    """The consumer's own table, in a schema of its own beside that of the store; made if it is missing."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(CreateSchema("shipping", if_not_exists=True))
        metadata.create_all(connection)
    return engine


class Shipping(MessagingHandler):
    """Ships what comes, until it is killed."""

    def __init__(self, arguments: argparse.Namespace, database: Connection) -> None:
        super().__init__(prefetch=20, auto_accept=False)
        self._url: str = arguments.url
        self._address: str = arguments.address
        self._database = database
        #: a point (``before-commit``, ``after-commit``) and the order at which it waits to be killed
        self._hold: tuple[str, int] | None = arguments.hold
        self.problem: str | None = None

    def on_start(self, event: Event) -> None:
        container: Any = event.container
        self._connection = container.connect(self._url, reconnect=False)
        container.create_receiver(self._connection, self._address)

    def on_message(self, event: Event) -> None:
        message: Any = event.message
        try:
            number = int(json.loads(bytes(message.body))["order"])
        except (TypeError, ValueError, KeyError):
            self.reject(event.delivery)  # not an order: it goes to the dead letters
            return
        with self._database.begin():
            if sql.first_time(self._database, self._address, str(message.id)):
                self._database.execute(shipments.insert().values(order_id=number))
            else:
                print(f"again {number}", flush=True)
            self._stop_at("before-commit", number)
        self._stop_at("after-commit", number)
        self.accept(event.delivery)

    def _stop_at(self, point: str, number: int) -> None:
        if self._hold == (point, number):
            print(f"holding {point} {number}", flush=True)
            while True:
                signal.pause()

    def on_link_error(self, event: Event) -> None:
        link: Any = event.link
        self._end(f"the coordinator closed a link: {link.remote_condition}")

    def on_connection_remote_close(self, event: Event) -> None:
        """Proton's own handler leaves a connection open that is closed by force, as by a service that is stopped."""
        connection: Any = event.connection
        if connection.remote_condition is not None:
            self._end(f"no connection to {self._url}: {connection.remote_condition}")

    def on_transport_error(self, event: Event) -> None:
        transport: Any = event.transport
        self._end(f"no connection to {self._url}: {transport.condition}")

    def _end(self, problem: str) -> None:
        self.problem = self.problem or problem
        self._connection.close()


def hold_point(text: str) -> tuple[str, int]:
    point, _, number = text.partition(":")
    if point not in ("before-commit", "after-commit") or not number.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}: expected before-commit:NUMBER or after-commit:NUMBER")
    return point, int(number)


def main() -> int:
    parser = argparse.ArgumentParser(description="A consumer that ships each order once.")
    parser.add_argument("--url", default="amqp://127.0.0.1:5672", help="the coordinator")
    parser.add_argument("--database", required=True, help="the PostgreSQL of the store (URL)")
    parser.add_argument("--address", default="orders-one-commit", help="where the messages come from")
    parser.add_argument("--hold", type=hold_point, help="stop before-commit:N or after-commit:N and wait to be killed")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # it may be ended at any moment
    try:
        with open_database(arguments.database).connect() as database:
            service = Shipping(arguments, database)
            Container(service).run()
            problem = service.problem
    except DBAPIError as error:
        problem = str(error.orig).partition("\n")[0]
    if problem:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
