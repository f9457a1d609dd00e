"""An order service in the PostgreSQL of the store: an order's row and its message are one SQL transaction (X2, X5).

``sql.post`` writes the message with the row, and one commit makes both real. There is no second step, so no crash can
come between: before the commit there is neither, after it both. No checker is needed, nor a connection to the
coordinator, which may be away meanwhile.
"""

from __future__ import annotations

import argparse
import csv
import random
import signal
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Column,
    DateTime,
    Engine,
    Integer,
    MetaData,
    Numeric,
    Table,
    Text,
    create_engine,
    func,
    select,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateSchema

from coordinator_client import sql

metadata = MetaData(schema="shop")
orders = Table(
    "orders",
    metadata,
    # The message says the same number, as the application property "order": the key between the two books.
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("customer", Text, nullable=False),
    Column("amount", Numeric(10, 2), nullable=False),
    Column("placed_at", DateTime(timezone=True), nullable=False),
)


def open_database(url: str) -> Engine:
    """The service's own tables, in a schema of its own beside that of the store; made if they are missing."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(CreateSchema("shop", if_not_exists=True))
        metadata.create_all(connection)
    return engine


def incoming(first: int, last: int) -> Iterator[dict[str, Any]]:
    """The orders that customers send; the same number is always the same order."""
    for number in range(first, last + 1):
        source = random.Random(number)
        cents = source.randrange(100, 100_000)
        yield {"id": number, "customer": f"customer-{source.randrange(500):03}", "amount": Decimal(cents) / 100}


def place(arguments: argparse.Namespace) -> None:
    """Place orders up to number ``--orders``, going on after the last one in the book."""
    with open_database(arguments.database).connect() as database:
        with database.begin():
            last = database.scalar(select(func.max(orders.c.id))) or 0
        for order in incoming(last + 1, arguments.orders):
            with database.begin():
                database.execute(orders.insert().values(**order, placed_at=datetime.now(UTC)))
                sql.post(
                    database,
                    arguments.address,
                    {"order": order["id"], "customer": order["customer"], "amount": str(order["amount"])},
                    properties={"message-id": f"order-{order['id']}"},
                    headers={"order": order["id"]},
                )
                stop_at("before-commit", order["id"], arguments.hold)
            stop_at("after-commit", order["id"], arguments.hold)
    print(f"placed {max(0, arguments.orders - last)} orders", flush=True)


def stop_at(point: str, number: int, hold: tuple[str, int] | None) -> None:
    if hold == (point, number):
        print(f"holding {point} {number}", flush=True)
        while True:
            signal.pause()


def export(arguments: argparse.Namespace) -> None:
    """Write the orders book as CSV."""
    with open_database(arguments.database).connect() as database, arguments.file.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([column.name for column in orders.columns])
        for row in database.execute(select(orders).order_by(orders.c.id)):
            writer.writerow([*row[:-1], row.placed_at.isoformat()])


def hold_point(text: str) -> tuple[str, int]:
    point, _, number = text.partition(":")
    if point not in ("before-commit", "after-commit") or not number.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}: expected before-commit:NUMBER or after-commit:NUMBER")
    return point, int(number)


def main() -> int:
    parser = argparse.ArgumentParser(description="An order service whose SQL transactions post.")
    parser.add_argument("--database", required=True, help="the PostgreSQL of the store (URL)")
    commands = parser.add_subparsers(required=True)
    placing = commands.add_parser("place", help="place orders")
    placing.add_argument("--address", default="orders-one-commit", help="where the messages go; it has to be there")
    placing.add_argument("--orders", type=int, default=100, help="the number of the last order")
    placing.add_argument("--hold", type=hold_point, help="stop before-commit:N or after-commit:N and wait to be killed")
    placing.set_defaults(run=place)
    exporting = commands.add_parser("export", help="write the orders book as CSV")
    exporting.add_argument("file", type=Path)
    exporting.set_defaults(run=export)
    arguments = parser.parse_args()
    try:
        arguments.run(arguments)
    except DBAPIError as error:
        print("error:", str(error.orig).partition("\n")[0], file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
