"""Books against the coordinator, on rows made in memory; and books that cannot be used."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from spark import ledger
from spark.books.description import BookError, Description, describe
from spark.books.loading import unreadable
from spark.books.messages import by_txn_alone, pick
from spark.books.production import Production
from spark.books.rows import Book, open_book
from spark.period import Period
from spark.survey import keeping
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

    def _message(self, key: str | None, amount: object = 12.5) -> bytes:
        return encode_message(properties={"order-id": key} if key else {"x": 1}, body={"amount": amount})

    def row(self, key: object, status: str = "paid", *, at: object = AT, amount: object = Decimal("12.50")) -> None:
        self.rows.append((key, at, status, amount))

    def expect(self, kind: str, txn: str | None = None, half: int | None = None) -> None:
        self.expected[(kind, txn, half)] += 1

    def committed(self, key: str | None, amount: object = 12.5, **when: object) -> tuple[str, int]:
        at = when.get("at", AT)
        txn, halves = self.store.committed([self.orders], at, messages=[self._message(key, amount)])  # type: ignore[arg-type]
        return txn, halves[0]

    def undecided(self, key: str, *, decision: str | None = None) -> tuple[str, int]:
        txn = self.store.uuid_v7(AT)
        half = self.store.half(self.orders, AT, txn, self._message(key))
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
            self.store.committed([self.other], AT, messages=[self._message(self._key())])
        self._rows_that_cannot_be_used()
        self._messages_that_cannot_be_used()
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
        key = self._key()
        self.row(key)
        self.row(key, "new")
        self.committed(key)
        self.expect("repeated-key")

    def _messages_that_cannot_be_used(self) -> None:
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
            "id", "id_high as txn_high", "id_low as txn_low", "producer_group is null as plain"
        ),
    )


def compare(spark: SparkSession, shop: Shop, description: Description, period: Period) -> list[Row]:
    tables = shop.store.frames(spark)
    book = replace(open_book(spark, description), behind=BEHIND)
    names = tables["address"].selectExpr("id as address_id", "name as address")
    with keeping() as keep:
        _, found = production(shop, description, book, tables, period).differences(names, period, NOW, keep)
        return found.collect()


@pytest.mark.rule("R20", "R21", "R22", "R23", "R25")
def test_a_book_finds_what_differs_and_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop().fill()
    spark.createDataFrame(shop.rows, SCHEMA).write.parquet(str(tmp_path / "orders.parquet"))
    found = compare(spark, shop, describe_text(tmp_path, BOOK), Period())
    keys = Counter((row["kind"], row["txn_id"], row["half_id"]) for row in found)
    assert shop.expected - keys == Counter(), "not found"
    assert keys - shop.expected == Counter(), "invented"
    details = [row["detail"] for row in found if row["kind"] == "unclear-row"]
    assert any(
        "column placed_at: 2 times are in the future, and their rows were not judged" in each for each in details
    )
    repairs = {row["detail"][-11:]: row["suggested_repair"] for row in found if row["kind"] == "undecided-but-known"}
    assert "--commit" in repairs["s committed"]
    assert "--rollback" in repairs["rolled back"]


@pytest.mark.rule("R20", "R21")
def test_edges_of_a_period_tear_no_row_from_its_message(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop()
    edge = AT
    for row_offset, message_offset in ((-1, 1), (1, -1), (-60, 60), (60, -60)):
        key = f"E{row_offset}"
        shop.row(key, at=edge + timedelta(seconds=row_offset))
        shop.committed(key, at=edge + timedelta(seconds=message_offset))
    spark.createDataFrame(shop.rows, SCHEMA).write.parquet(str(tmp_path / "orders.parquet"))
    description = describe_text(tmp_path, BOOK)
    for period in (Period(until=edge, reach=description.grace), Period(since=edge, reach=description.grace)):
        assert compare(spark, shop, description, period) == []


@pytest.mark.rule("R20", "R21", "R22", "R25")
def test_a_book_by_txn_id_in_a_csv_file(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop()
    paid, _ = shop.committed(None)
    phantom, half = shop.committed(None)
    waiting, _ = shop.undecided("x")
    plain_waiting = shop.store.uuid_v7(AT)
    shop.store.undecided(plain_waiting, AT, producer_group=None)
    rolled_back = shop.store.uuid_v7(AT)
    shop.store.decide(rolled_back, "rollback", AT, 1, reason="client")
    lines = ["txn,at,state"]
    for txn in (paid, waiting.replace("-", ""), plain_waiting.upper(), rolled_back, "no-uuid", ""):
        lines.append(f"{txn},{AT.isoformat()},done")
    lines.append(f"{shop.store.uuid_v7(AT)},yesterday,done")
    early = [shop.store.committed([shop.orders], AT - timedelta(days=1))[0] for _ in range(2)]
    lines += [f"{txn},{AT - timedelta(days=1):%Y-%m-%d %H:%M:%S},done" for txn in early]
    (tmp_path / "book.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    description = describe_text(
        tmp_path,
        """
        name = "tills"
        format = "csv"
        addresses = ["orders"]
        key = "txn"
        message_key = "txn-id"
        time = "at"
        committed_when = "state = 'done'"
        options = { path = "book.csv" }
        """,
    )
    findings = compare(spark, shop, description, Period())
    repairs = {row["txn_id"]: row["suggested_repair"] for row in findings if row["kind"] == "undecided-but-known"}
    assert "resolve" in repairs[waiting]
    # the coordinator would refuse to
    assert "resolve" not in repairs[plain_waiting]
    found = Counter((row["kind"], row["txn_id"], row["half_id"]) for row in findings)
    assert found == Counter(
        {
            ("phantom-message", phantom, half): 1,
            ("undecided-but-known", waiting, None): 1,
            ("undecided-but-known", plain_waiting, None): 1,
            ("lost-message", rolled_back, None): 1,
            ("unparsable-key", None, None): 1,
            ("null-key", None, None): 1,
            ("unclear-row", None, None): 1,
            ("time-without-zone", None, None): 1,
        }
    )
    (without,) = (row for row in findings if row["kind"] == "time-without-zone")
    assert "book tills, column at: 2 times have no zone and were taken for UTC, the first of key " in without["detail"]
    assert without["severity"] == "note"


@pytest.mark.rule("R25")
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("name = ", "nmae = "), r"book .*book.toml: name: Field required; nmae: Extra inputs"),
        (
            ('"property:order-id"', '"property:"'),
            "message_key: .*expected message-id, property:NAME or body:..PATH, or txn-id",
        ),
        (('grace = "5m"', "grace = 5"), "grace: .*such as '5m'"),
        (('["orders"]', "[]"), "addresses: List should have at least 1"),
        (('"body:$.amount"', '"body"'), r"equal.0.message: .*expected"),
        (("name", "[["), "not TOML"),
    ],
)
def test_a_description_that_is_wrong_says_where(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    with pytest.raises(BookError, match=says):
        describe_text(tmp_path, BOOK.replace(*change, 1))


@pytest.mark.rule("R25")
def test_a_description_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BookError, match=r"none\.toml: No such file"):
        describe(tmp_path / "none.toml")


@pytest.mark.rule("R25")
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('"order_id"', '"order"'), "book orders: key: there is no column 'order'; there are order_id, placed_at"),
        (('key = "order_id"', 'key = "placed_at"'), "book orders: key: column 'placed_at' is timestamp, expected text"),
        (
            ('time = "placed_at"', 'time = "amount"'),
            r"book orders: time: column 'amount' is decimal\(10,2\), expected a timestamp",
        ),
        (('column = "amount"', 'column = "sum"'), r"book orders: equal\[0\].column: there is no column 'sum'"),
        (("status = 'paid'", "state = 'paid'"), "book orders: committed_when: .*state"),
        (("status = 'paid'", "status ="), "book orders: committed_when: "),
        (
            ("status = 'cancelled'", "status"),
            "book orders: rolled_back_when: 'status' is string, expected true or false",
        ),
        (("orders.parquet", "none.parquet"), "book orders: cannot be read: .*none.parquet"),
        (('"parquet"', '"unheard-of"'), "book orders: cannot be read: .*unheard-of"),
    ],
)
def test_a_book_that_cannot_be_used_says_which_column(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str], change: tuple[str, str], says: str
) -> None:
    spark.createDataFrame([], SCHEMA).write.parquet(str(tmp_path / "orders.parquet"))
    with pytest.raises(BookError, match=says):
        open_book(spark, describe_text(tmp_path, BOOK.replace(*change, 1)))
    # the error is all there is: no log line of PySpark's before it
    assert capfd.readouterr().err == ""


@pytest.mark.rule("R25")
def test_a_cell_that_is_not_of_its_type_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """Book, row, column and value, and nothing of Spark's."""
    lines = ["id,at,amount", f"a,{AT.isoformat()},12.50", f"b,{AT.isoformat()},", f"c,{AT.isoformat()},12 EUR"]
    (tmp_path / "book.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    description = describe_text(
        tmp_path,
        """
        name = "tills"
        format = "csv"
        columns = "id string, at timestamp, amount decimal(10,2)"
        addresses = ["orders"]
        key = "id"
        message_key = "property:id"
        time = "at"
        committed_when = "amount is not null"
        options = { path = "book.csv" }
        """,
    )
    book = open_book(spark, description)
    with pytest.raises((PySparkException, Py4JJavaError)) as failed:
        book.rows.collect()
    said = str(unreadable(description, failed.value))
    assert said == "book tills: row 3, column 'amount': '12 EUR' is no decimal(10,2)"
