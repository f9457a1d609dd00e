"""Books against the coordinator, on rows made in memory; and books that cannot be used."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from spark.books.description import BookError, describe
from spark.books.loading import unreadable
from spark.books.rows import open_book
from spark.books.written import LONGEST
from spark.finding import LONGEST_SHOWN
from spark.keeping import keeping
from spark.period import Period
from spark.reconcile import _keep_book
from store.ids import OUTBOX
from tests.fix_findings import Quiet
from tests.fix_shop import AT, BOOK, SCHEMA, Shop, compare, describe_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    shop.row("never", at=datetime(1970, 1, 1, tzinfo=UTC))
    spark.createDataFrame(shop.rows, SCHEMA).write.parquet(str(tmp_path / "orders.parquet"))
    description = describe_text(tmp_path, BOOK)
    for period in (Period(until=edge, reach=description.grace), Period(since=edge, reach=description.grace)):
        (never,) = compare(spark, shop, description, period)
        assert never["detail"] == (
            "book orders, key never: placed_at is 1970-01-01 00:00:00; a store has times from 2024-01-01 to 2093-09-06"
        )


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
    in_sql = [shop.store.half(shop.orders, AT, slot=OUTBOX) for _ in range(2)]
    outside = shop.store.half(shop.orders, AT)
    lines = ["txn,at,state"]
    for txn in (paid, waiting.replace("-", ""), plain_waiting.upper(), rolled_back, "no-uuid", ""):
        lines.append(f"{txn},{AT.isoformat()},done")
    lines += [f"{shop.store.uuid_v7(AT)},{at},done" for at in ("yesterday", "20226-11-28T10:00:00Z")]
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
            ("unclear-row", None, None): 2,
            ("time-without-zone", None, None): 1,
            ("null-key", None, outside): 1,
            ("posted-in-sql", None, None): 1,
        }
    )
    (in_no_txn,) = (row for row in findings if row["kind"] == "posted-in-sql")
    assert in_no_txn["severity"] == "note"
    said = "2 messages were posted in SQL, have no txn-id, and were compared with nothing; the first is"
    assert in_no_txn["detail"] == f"book tills: {said} {in_sql[0]}"
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
        (("path = ", "sep = ['x']\npath = "), r"options: .*sep: expected text, a number or a boolean, and not \['x'\]"),
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
        (("[options]", "show = ['customer']\n[options]"), r"book orders: show\[0\]: there is no column 'customer'"),
        (("status = 'paid'", "state = 'paid'"), "book orders: committed_when: .*state"),
        (("status = 'paid'", "status ="), "book orders: committed_when: "),
        (
            ("status = 'cancelled'", "status"),
            "book orders: rolled_back_when: 'status' is string, expected true or false",
        ),
        (
            ("status = 'paid'", "count(*) > 0"),
            r"book orders: committed_when: 'count\(\*\) > 0': it is of all rows together, as count and sum are",
        ),
        (("status = 'cancelled'", "explode(array(true))"), "book orders: rolled_back_when: .* generator is not supp"),
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


@pytest.mark.rule("R25")
@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ("1/0 > 0", "Division by zero"),
        ("1/(amount - 12.50) > 0", "Division by zero"),
        ("cast(status as int) > 0", 'The value \'paid\' of the type "STRING" cannot be cast to "INT"'),
    ],
)
def test_a_condition_that_fails_on_a_row_is_named(
    spark: SparkSession, tmp_path: Path, condition: str, says: str
) -> None:
    shop = Shop()
    shop.row("A")
    spark.createDataFrame(shop.rows, SCHEMA).write.parquet(str(tmp_path / "orders.parquet"))
    book = open_book(spark, describe_text(tmp_path, BOOK.replace("status = 'cancelled'", condition)))
    with keeping() as keep, pytest.raises(BookError) as failed:
        _keep_book(book, keep, Quiet())
    (line,) = str(failed.value).splitlines()
    assert line.startswith(f"book orders: rolled_back_when: {condition!r}: [")
    assert says in line


@pytest.mark.rule("R20", "R25")
def test_a_book_may_call_its_columns_what_it_likes(spark: SparkSession, tmp_path: Path) -> None:
    """Also as the columns are called that are made of them."""
    names = ("key", "written_key", "at", "state", "several", "problem", "compared_0", "without_zone")
    shop = Shop()
    rows = [("A ", "x", AT, *["yes"] * 5), ("B ", "x", AT, *["no"] * 5)]
    schema = ", ".join(f"{name} {'timestamp' if name == 'at' else 'string'}" for name in names)
    spark.createDataFrame(rows, schema).write.parquet(str(tmp_path / "orders.parquet"))
    description = describe_text(
        tmp_path,
        BOOK[: BOOK.index("[[equal]]")]
        .replace('"order_id"', '"key"')
        .replace('"placed_at"', '"at"')
        .replace("status = 'paid'", " and ".join(f"{name} = 'yes'" for name in names[3:]))
        .replace("status = 'cancelled'", "written_key = 'y'"),
    )
    found = {row["kind"]: row for row in compare(spark, shop, description, Period())}
    assert "key A " in found.pop("lost-message")["detail"]
    # as a column of the type char(n) gives them
    blanks = found.pop("unclear-row")
    assert (blanks["severity"], blanks["detail"].partition(": ")[2]) == (
        "note",
        "all 2 keys end in blanks, as those of the type char(n) do; they are compared exactly, the first is 'A '",
    )
    assert not found


@pytest.mark.rule("R23", "R25")
def test_a_column_that_cannot_be_compared_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame(
        [("A", AT, "paid", {"x": 1})], "order_id string, placed_at timestamp, status string, amount map<string, int>"
    )
    frame.write.parquet(str(tmp_path / "orders.parquet"))
    with pytest.raises(BookError, match=r"column: column 'amount' is map<string,int>, which cannot be compared"):
        open_book(spark, describe_text(tmp_path, BOOK))


@pytest.mark.rule("R25")
@pytest.mark.parametrize(
    "column", ["array<map<string,int>>", "struct<x:map<string,int>>", "struct<x:array<struct<y:variant>>>"]
)
def test_a_column_in_which_something_cannot_be_compared_is_refused(
    spark: SparkSession, tmp_path: Path, column: str
) -> None:
    frame = spark.createDataFrame([], SCHEMA.replace("decimal(10,2)", column))
    frame.write.parquet(str(tmp_path / "orders.parquet"))
    with pytest.raises(BookError, match=f"column: column 'amount' is {re.escape(column)}, which cannot be compared"):
        open_book(spark, describe_text(tmp_path, BOOK))


@pytest.mark.rule("R23")
def test_large_numbers_are_compared_to_the_last_digit(spark: SparkSession, tmp_path: Path) -> None:
    """Also those beside which 38 digits have no room for 18 after the point."""
    large = "123456789012345678901234567890123456"
    same = [
        (f"{large}.5", f"{large}.50"),
        (f"{large}.25", f"{large}.25000 "),
        ("1e30", "1" + 30 * "0"),
        ("12", "12.0"),
        ("15", "1.5e1"),
        ("0", "-0.00"),
        # as all octets of an AMQP decimal are that are 0
        ("0", "0E-6176"),
        ("0", "-0.0e+99 "),
        ("1000", "1e0003"),
        (f"{large}.5", f"{large[0]}.{large[1:]}500E+35"),
        (f"{large}.5", f"{large}500000e-6"),
        (f"{large}.5", f"{large}5000.0e-4"),
        ("0", ".0e5"),
        # as long as a number may be
        ("1", f"1.{(LONGEST - 2) * '0'}"),
    ]
    other = [
        (f"{large}.5", f"{large}.51"),
        (large, f"{large[:-1]}7"),
        (large, f"{large}.004"),
        (large, f"{large}.004 "),
        (large, "1e36"),
        ("1", "x"),
        ("0.02", "1.5e-2"),
        ("0", "4e-3"),
        ("5", "5.004 "),
        ("0", "1e-100000000"),
        ("0", "1e-100000000\x01"),
        (large, f"{large}.004\x01"),
        (large, f"{large[0]}.{large[1:]}004E+35"),
        (large, f"{large}004e-3"),
        # Java would take hours to read one that is long enough
        ("1", f"1.{LONGEST * '0'}"),
        ("0", f".{100_000 * '0'}x"),
        ("0", "1e-\u0661\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0660"),
        ("0", "0e5\u2028"),
        ("1", f"1.{(LONGEST - 3) * '0'}\u0660"),
    ]
    shop = Shop()
    for number, (amount, said) in enumerate(same + other):
        shop.row(f"K{number}", amount=Decimal(amount))
        shop.committed(f"K{number}", amount=said)
    schema = SCHEMA.replace("decimal(10,2)", "decimal(38,2)")
    spark.createDataFrame(shop.rows, schema).write.parquet(str(tmp_path / "orders.parquet"))
    found = compare(spark, shop, describe_text(tmp_path, BOOK), Period())
    said_of = re.findall(r"key K(\d+): .* in the message", "\n".join(row["detail"] for row in found))
    assert sorted(map(int, said_of)) == list(range(len(same), len(same + other)))


@pytest.mark.rule("R23")
def test_as_many_digits_as_the_books_type_has_are_compared(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop()
    for number, said in enumerate(("1", "2", "1000")):
        shop.row(f"K{number}", amount=Decimal("1.00000000000000000001"))
        shop.committed(f"K{number}", amount=f"1.0000000000000000000{said}")
    schema = SCHEMA.replace("decimal(10,2)", "decimal(38,20)")
    spark.createDataFrame(shop.rows, schema).write.parquet(str(tmp_path / "orders.parquet"))
    found = compare(spark, shop, describe_text(tmp_path, BOOK), Period())
    assert [row["detail"].partition(":")[0] for row in found] == ["book orders, key K1"]


@pytest.mark.rule("R23", "R30")
def test_of_a_long_value_its_beginning_is_shown(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop()
    for key, amount in (("L", 1_000_000 * "\u00e9"), ("S", LONGEST_SHOWN * "%")):
        shop.row(key)
        shop.committed(key, amount)
    spark.createDataFrame(shop.rows, SCHEMA).write.parquet(str(tmp_path / "orders.parquet"))
    found = compare(spark, shop, describe_text(tmp_path, BOOK), Period())
    shown = [f"{LONGEST_SHOWN * chr(0xE9)}... (1000000 characters)", LONGEST_SHOWN * "%"]
    said = "amount is 12.50 in the book, body:$.amount is"
    assert sorted(row["detail"] for row in found) == [
        f"book orders, key {key}: {said} {text} in the message" for key, text in zip("LS", shown, strict=True)
    ]


@pytest.mark.rule("R20", "R21", "R25", "R30")
def test_a_finding_about_a_row_shows_the_columns_that_the_description_names(
    spark: SparkSession, tmp_path: Path
) -> None:
    shop = Shop()
    shop.row("lost", amount=None)
    shop.row("twice")
    shop.row("twice")
    shop.committed("twice")
    shop.committed("nowhere")
    shop.row("different", amount=Decimal(10))
    shop.committed("different")
    shop.row("never", "lent", at=None)
    spark.createDataFrame(shop.rows, SCHEMA).write.parquet(str(tmp_path / "orders.parquet"))
    description = BOOK.replace("[options]", 'show = ["status", "amount"]\n[options]')
    found = compare(spark, shop, describe_text(tmp_path, description), Period())
    assert sorted(row["detail"] for row in found) == [
        "book orders, key different (status paid, amount 10.00): amount is 10.00 in the book, body:$.amount is 12.5 in"
        " the message",
        "book orders, key lost (status paid, amount null): the book says committed, the coordinator knows nothing of"
        " it",
        "book orders, key never (status lent, amount 12.50): placed_at is null",
        "book orders, key nowhere: the coordinator committed it, the book has no row",
        "book orders, key twice (status paid, amount 12.50): in 2 rows",
    ]


@pytest.mark.rule("R20", "R25", "R30")
def test_of_a_long_key_its_beginning_is_shown(spark: SparkSession, tmp_path: Path) -> None:
    """Keys whose beginnings are the same are not one key."""
    shop = Shop()
    long = {end: f"{1_000_000 * 'k'}{end}" for end in "abcd"}
    for key in (long["a"], long["b"], long["b"]):
        shop.row(key)
    shop.row(long["c"], at=None)
    shop.row(long["d"], at=AT + timedelta(days=300))
    spark.createDataFrame(shop.rows, SCHEMA).write.parquet(str(tmp_path / "orders.parquet"))
    found = compare(spark, shop, describe_text(tmp_path, BOOK), Period())
    beginning = f"{LONGEST_SHOWN * 'k'}... (1000001 characters)"
    kinds = Counter(row["kind"] for row in found)
    assert kinds == {"lost-message": 2, "repeated-key": 1, "unclear-row": 2}
    assert {row["key"] for row in found} == {beginning, None}
    assert all(beginning in row["detail"] and len(row["detail"]) < 2 * LONGEST_SHOWN for row in found)
