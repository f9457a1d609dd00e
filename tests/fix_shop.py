"""A shop's orders in a producer's book, and the messages of them, as rows made in memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from spark import ledger
from spark.books.description import Description, describe
from spark.books.production import Production
from spark.books.rows import Book, open_book
from spark.keeping import keeping
from spark.period import Period
from spark.picking import by_txn_alone, pick
from tests.fix_store_rows import NOW, StoreRows, encode_message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

AT = NOW - timedelta(hours=3)
BOOK = """
name = "orders"
format = "parquet"
addresses = ["orders"]
key = "order_id"
message_key = "property:order-id"
time = "placed_at"
committed_when = "status = 'paid'"
rolled_back_when = "status = 'cancelled'"
grace = "5m"

[options]
path = "orders.parquet"

[[equal]]
column = "amount"
message = "body:$.amount"
"""
GRACE = timedelta(minutes=5)
BEHIND = timedelta(minutes=1)
SCHEMA = "order_id string, placed_at timestamp, status string, amount decimal(10,2)"


class Shop:
    """An orders table and the messages of it; each method makes one case and says what must be found."""

    def __init__(self) -> None:
        self.store = StoreRows(seed=5)
        self.orders = self.store.address("orders")
        self.other = self.store.address("other")
        self.rows: list[tuple[object, ...]] = []
        self.expected: Counter[tuple[str, str | None, int | None]] = Counter()
        self._number = 0

    def _key(self) -> str:
        self._number += 1
        return f"A-{self._number}"

    def message(self, key: str | None, amount: object = 12.5) -> bytes:
        return encode_message(properties={"order-id": key} if key else {"x": 1}, body={"amount": amount})

    def row(self, key: object, status: str = "paid", *, at: object = AT, amount: object = Decimal("12.50")) -> None:
        self.rows.append((key, at, status, amount))

    def expect(self, kind: str, txn: str | None = None, half: int | None = None) -> None:
        self.expected[(kind, txn, half)] += 1

    def committed(self, key: str | None, amount: object = 12.5, **when: object) -> tuple[str, int]:
        at = when.get("at", AT)
        txn, halves = self.store.committed([self.orders], at, messages=[self.message(key, amount)])  # type: ignore[arg-type]
        return txn, halves[0]

    def undecided(self, key: str, *, decision: str | None = None) -> tuple[str, int]:
        txn = self.store.uuid_v7(AT)
        half = self.store.half(self.orders, AT, txn, self.message(key))
        if decision is None:
            self.store.undecided(txn, AT, next_check_at=NOW)
        else:
            self.store.decide(txn, decision, AT, 1)
        return txn, half

    def fill(self) -> Shop:
        """Every case that must be found, and every one that must not."""
        for _ in range(3):
            self._agree()
            self._lost()
            self._phantom()
            self._undecided()
            self._different()
            self._too_young()
            # other addresses are not of this book
            self.store.committed([self.other], AT, messages=[self.message(self._key())])
        self._rows_that_cannot_be_used()
        self.messages_that_cannot_be_used()
        return self

    def _agree(self) -> None:
        key = self._key()
        self.row(key)
        self.committed(key)
        # numbers are compared by value, whatever their notation
        key = self._key()
        self.row(key, amount=Decimal("12.00"))
        self.committed(key, "12")
        # undecided on both sides, rolled back on both sides
        key = self._key()
        self.row(key, "new")
        self.undecided(key)
        key = self._key()
        self.row(key, "cancelled")
        self.undecided(key, decision="rollback")

    def _lost(self) -> None:
        """R20."""
        self.row(self._key())
        self.expect("lost-message")
        key = self._key()
        self.row(key)
        txn, _ = self.undecided(key, decision="rollback")
        self.expect("lost-message", txn)

    def _phantom(self) -> None:
        """R21."""
        txn, half = self.committed(self._key())
        self.expect("phantom-message", txn, half)
        key = self._key()
        self.row(key, "cancelled")
        txn, half = self.committed(key)
        self.expect("phantom-message", txn, half)

    def _undecided(self) -> None:
        """R22."""
        for status in ("paid", "cancelled"):
            key = self._key()
            self.row(key, status)
            txn, _ = self.undecided(key)
            self.expect("undecided-but-known", txn)

    def _different(self) -> None:
        """R23."""
        for amount in (12.51, "twelve", None):
            key = self._key()
            self.row(key)
            txn, half = self.committed(key, amount)
            self.expect("different-content", txn, half)
        key = self._key()
        self.row(key, amount=None)
        self.committed(key, None)

    def _too_young(self) -> None:
        """R25: younger than the grace; a message also than how long before the store the book was read."""
        at = NOW - timedelta(minutes=1)
        self.committed(self._key(), at=NOW - GRACE - BEHIND / 2)
        self.row(self._key(), at=at)
        self.committed(self._key(), at=at)
        key = self._key()
        self.row(key, "cancelled", at=at)
        self.committed(key)

    def _rows_that_cannot_be_used(self) -> None:
        """R25: each is listed; those in the future, as of another zone, as one."""
        for hours in (1, 2):
            self.row(self._key(), at=NOW + timedelta(hours=hours))
        self.row(self._key(), at=NOW + GRACE / 2)
        self.expect("unclear-row")
        self.row(None)
        self.expect("null-key")
        self.row(self._key(), at=None)
        self.expect("unclear-row")
        # of no period that a run can have: the zero of a clock, a slip of the hand, and "for good"
        for at in (datetime(1, 1, 1), datetime(1900, 1, 1), datetime(1970, 1, 1), datetime(9999, 12, 31)):  # noqa: DTZ001
            self.row(self._key(), at=at.replace(tzinfo=UTC))
            self.expect("unclear-row")
        # its message has its row, of whatever time
        key = self._key()
        self.row(key, at=None)
        self.committed(key)
        self.expect("unclear-row")
        key = self._key()
        self.row(key)
        self.row(key, "new")
        self.committed(key)
        self.expect("repeated-key")

    def messages_that_cannot_be_used(self) -> None:
        """R25: each is listed."""
        txn, half = self.committed(None)
        self.expect("null-key", txn, half)
        txn = self.store.uuid_v7(AT)
        half = self.store.half(self.orders, AT, txn, b"\x00\x53")
        self.store.decide(txn, "commit", AT, 1)
        self.expect("unparsable-key", txn, half)
        key = self._key()
        self.row(key)
        self.committed(key)
        txn, half = self.committed(key)
        self.expect("repeated-key", txn, half)


def describe_text(folder: Path, text: str) -> Description:
    file = folder / "book.toml"
    file.write_text(text, encoding="utf-8")
    return describe(file)


def production(
    shop: Shop, description: Description, book: Book, tables: dict[str, DataFrame], period: Period
) -> Production:
    half = tables["half"].where(f"address_id = {shop.orders}")
    messages = ledger.halves(half, period, *(() if by_txn_alone(description) else ("message",)))
    return Production(
        book=book,
        messages=pick(description, messages),
        decided=ledger.decided(tables["op"]),
        open_transactions=tables["txn"].selectExpr(
            "id as txn_id", "id_high as txn_high", "id_low as txn_low", "producer_group is null as plain"
        ),
    )


def compare(spark: SparkSession, shop: Shop, description: Description, period: Period) -> list[Row]:
    tables = shop.store.frames(spark)
    book = replace(open_book(spark, description), behind=BEHIND)
    names = tables["address"].selectExpr("id as address_id", "name as address")
    with keeping() as keep:
        _, found = production(shop, description, book, tables, period).differences(names, period, NOW, keep)
        return found.collect()
