"""Which keys of a producer's book are looked into: all that something is found of, and none that are in order."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from spark.books.comparison import book_findings
from spark.books.rows import open_book
from spark.keeping import keeping
from spark.period import Period
from tests.fix_night import by_night
from tests.fix_shop import AT, BOOK, SCHEMA, Shop, compare, describe_text, production
from tests.fix_store_rows import NOW, encode_message

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

PERIOD = Period(since=AT - timedelta(hours=1), reach=timedelta(hours=2))
EARLY = PERIOD.since - timedelta(minutes=30)
BY_TXN = BOOK.replace("property:order-id", "txn-id")
BY_TXN_ALONE = BY_TXN[: BY_TXN.index("[[equal]]")]

#: The rows of a key: status, and amount.
ROWS: Final[dict[str, list[tuple[str, datetime | None, str | None]]]] = {
    "none": [],
    "paid": [("paid", AT, "12.50")],
    "paid, none": [("paid", AT, None)],
    "new": [("new", AT, "12.50")],
    "cancelled": [("cancelled", AT, "12.50")],
    "paid early": [("paid", EARLY, "12.50")],
    "cancelled early": [("cancelled", EARLY, "12.50")],
    "paid twice": [("paid", AT, "12.50"), ("paid", AT, "12.50")],
    "paid and cancelled": [("paid", AT, "12.50"), ("cancelled", AT, "12.50")],
    "paid at no time": [("paid", None, "12.50")],
}
#: What the store has of it: the decision of a transaction (None: open), and the amounts of its messages.
MESSAGES: Final[dict[str, list[tuple[str | None, list[object]]]]] = {
    "none": [],
    "committed": [("commit", [12.5])],
    "no number": [("commit", ["much"])],
    "null": [("commit", [None])],
    "another amount": [("commit", [13])],
    "two, one of another amount": [("commit", [12.5, 13])],
    "one of two amounts": [("commit", [13, 12.5])],
    "rolled back": [("rollback", [12.5])],
    "open": [(None, [12.5])],
    "without messages": [("commit", [])],
    "open without messages": [(None, [])],
    "rolled back without messages": [("rollback", [])],
    "twice": [("commit", [12.5]), ("commit", [12.5])],
    "rolled back, and then committed": [("rollback", [12.5]), ("commit", [12.5])],
    "rolled back, and open": [("rollback", [12.5]), (None, [12.5])],
}
#: Combinations of which nothing is to be found, and which are not looked into.
IN_ORDER: Final = {("paid", "committed"), ("none", "rolled back"), ("new", "none"), ("cancelled", "rolled back")}


def stocked(text: str, pairs: Iterator[tuple[str, str]]) -> Shop:
    """A shop in which each of the pairs has a key: of the transaction, or of the messages."""
    shop = Shop()
    for number, (row, said) in enumerate(pairs):
        keys = [f"K-{number}"]
        for decision, amounts in MESSAGES[said]:
            txn = shop.store.uuid_v7(AT)
            for amount in amounts:
                shop.store.half(shop.orders, AT, txn, shop.message(keys[0], amount))
            if decision is None:
                shop.store.undecided(txn, AT)
            else:
                shop.store.decide(txn, decision, AT, len(amounts))
            if text != BOOK:
                keys = [txn, *keys]
        if text != BOOK and len(keys) == 1:
            keys = [shop.store.uuid_v7(AT)]
        for status, at, amount in ROWS[row]:
            shop.row(keys[0], status, at=at, amount=amount and Decimal(amount))
    return shop


def found_of(rows: list[Row]) -> list[tuple[object, ...]]:
    return sorted((tuple(row) for row in rows), key=repr)


@pytest.mark.rule("R20", "R21", "R22", "R23", "R25")
@pytest.mark.parametrize("text", [BOOK, by_night(BY_TXN)], ids=["by property", "by txn-id"])
def test_what_is_left_out_has_no_findings(spark: SparkSession, tmp_path: Path, text: str) -> None:
    """Of all combinations of rows and messages, as if all were compared."""
    shop = stocked(text, product(ROWS, MESSAGES))
    spark.createDataFrame(shop.rows, SCHEMA).write.parquet(str(tmp_path / "orders.parquet"))
    description = describe_text(tmp_path, text)
    tables = shop.store.frames(spark)
    whole = production(shop, description, open_book(spark, description), tables, PERIOD)
    names = tables["address"].selectExpr("id as address_id", "name as address")
    marks = whole.marks(PERIOD).join(names, "address_id", "left").cache()
    of_all = book_findings(whole.book, marks, PERIOD, NOW).collect()
    marks.unpersist()
    with keeping() as keep:
        _, apart = whole.differences(names, PERIOD, NOW, keep)
        assert found_of(apart.collect()) == found_of(of_all)
    assert len({row["kind"] for row in of_all}) >= 4


@pytest.mark.rule("R36")
@pytest.mark.parametrize(
    "text", [BOOK, by_night(BY_TXN), by_night(BY_TXN_ALONE)], ids=["by property", "by txn-id", "by txn-id alone"]
)
def test_what_is_in_order_is_left_out(spark: SparkSession, tmp_path: Path, text: str) -> None:
    shop = stocked(text, iter(sorted(IN_ORDER)))
    spark.createDataFrame(shop.rows, SCHEMA).write.parquet(str(tmp_path / "orders.parquet"))
    description = describe_text(tmp_path, text)
    whole = production(shop, description, open_book(spark, description), shop.store.frames(spark), PERIOD)
    with keeping() as keep:
        apart = whole.differing(PERIOD, keep)
        assert (apart.book.rows.count(), apart.messages.count(), apart.decided.count()) == (0, 0, 0)


@pytest.mark.rule("R23")
def test_the_same_value_in_another_place_is_not_the_same(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop()
    txn = shop.store.uuid_v7(AT)
    message = encode_message(properties={"order-id": "K"}, body={"first": "x"})
    half = shop.store.half(shop.orders, AT, txn, message)
    shop.store.decide(txn, "commit", AT, 1)
    rows = spark.createDataFrame(
        [("K", AT, "paid", None, "x")],
        "order_id string, placed_at timestamp, status string, first string, second string",
    )
    rows.write.parquet(str(tmp_path / "orders.parquet"))
    pairs = (f'[[equal]]\ncolumn = "{name}"\nmessage = "body:$.{name}"\n' for name in ("first", "second"))
    description = describe_text(tmp_path, BOOK[: BOOK.index("[[equal]]")] + "".join(pairs))
    found = compare(spark, shop, description, PERIOD)
    assert [(row["kind"], row["half_id"]) for row in found] == [("different-content", half)] * 2
