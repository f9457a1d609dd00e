"""``coordinator reconcile`` with a consumer's book, and with the store's own inbox (R24)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest

from spark.books.description import describe
from spark.books.inbox import MOST
from spark.books.loading import _first_endless
from spark.period import Period
from store.tables import SCHEMA
from tests.fix_store_rows import NOW, StoreRows, encode_message
from tests.reconciling import Told, Writer, run, wait_for

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from pyspark.sql import SparkSession

    from spark.results import Findings

AT = NOW - timedelta(hours=3)
BOOK = """
name = "till"
format = "csv"
columns = "order_id string, processed_at timestamp"
group = "orders"
key = "order_id"
message_key = "message-id"
time = "processed_at"
options.path = "till.csv"
"""


def posted(rows: StoreRows, address: int, key: str, at: datetime = AT) -> int:
    message = encode_message(message_id=key, body={})
    return rows.committed([address], at, messages=[message])[1][0]


def details(found: Findings, kind: str) -> list[str]:
    return [each.detail for each in found.shown[kind]]


@pytest.mark.rule("R24", "R25")
def test_a_book_in_a_csv_file(spark: SparkSession, database_url: str, tmp_path: Path) -> None:
    """Over a period: a row is about a message that is older than all that the run reads of others."""
    rows = StoreRows(seed=24)
    orders = rows.address("orders")
    rows.address("%DLQ%orders")
    lines = ["order_id,processed_at"]
    for key in ("same", "twice", "long ago"):
        half = posted(rows, orders, key, AT - timedelta(days=6) * (key == "long ago"))
        rows.op("accept", AT, covers=[(half, orders)])
        lines += [f"{key},{AT.isoformat()}"] * (1 + (key == "twice"))
    lost = posted(rows, orders, "lost")
    rows.op("accept", AT, covers=[(lost, orders)])
    lines.append(f"unknown,{AT.isoformat()}")
    rows.write(database_url)
    (tmp_path / "till.csv").write_text("\n".join(lines) + "\n", "utf-8")
    (tmp_path / "book.toml").write_text(BOOK, "utf-8")
    book = describe(tmp_path / "book.toml")
    for period in (Period(), Period(since=AT - timedelta(days=1))):
        result = run(spark, database_url, tmp_path / "out", period, [book])
        found = result.findings
        assert dict(found.by_kind) == {
            "consumed-not-processed": 1,
            "processed-not-consumed": 1,
            "processed-twice": 1,
        }
        assert found.shown["consumed-not-processed"][0].half_id == lost
        assert "key unknown: " in details(found, "processed-not-consumed")[0]
        assert "key twice: processed in 2 rows, accepted by its group 1 times" in details(found, "processed-twice")[0]
        assert [(book.name, book.rows) for book in result.books] == [("till", 5)]


@pytest.mark.night
@pytest.mark.rule("R24")
def test_a_book_in_a_database(spark: SparkSession, database_url: str, tmp_path: Path) -> None:
    """Derby, whose driver Spark has with it."""
    rows = StoreRows(seed=26)
    orders = rows.address("orders")
    half = posted(rows, orders, "lost")
    for each in (half, posted(rows, orders, "same")):
        rows.op("accept", AT, covers=[(each, orders)])
    rows.write(database_url)
    assert spark._jvm is not None
    spark._jvm.java.lang.System.setProperty("derby.stream.error.file", str(tmp_path / "derby.log"))
    url = f"jdbc:derby:{tmp_path}/till"
    made = spark.createDataFrame([("same", AT)], "order_id string, processed_at timestamp")
    made.write.format("jdbc").options(url=f"{url};create=true", dbtable="inbox").save()
    options = f'options = {{ url = "{url}", dbtable = "inbox" }}'
    book = tmp_path / "book.toml"
    text = BOOK.replace('"csv"', '"jdbc"').replace('options.path = "till.csv"', options)
    book.write_text("".join(line for line in text.splitlines(keepends=True) if not line.startswith("columns")), "utf-8")
    found = run(spark, database_url, tmp_path / "out", books=[describe(book)]).findings
    # PostgreSQL's infinity, which Spark cannot read, is looked for so
    late = made.selectExpr("'x' as order_id", "timestamp '9999-12-31 10:00:00' as processed_at")
    made.unionByName(late).write.format("jdbc").options(url=url, dbtable="ages").save()
    ages = describe(book).model_copy(update={"options": {"url": url, "dbtable": "ages"}})
    said = _first_endless(ages)
    assert said == "column 'processed_at': of the key 'x' it is infinity, which is no time: let it be null"
    # Derby's times have no zone
    assert dict(found.by_kind) == {"consumed-not-processed": 1, "time-without-zone": 1}
    assert found.shown["consumed-not-processed"][0].half_id == half


@pytest.mark.rule("R24", "R25")
def test_a_group_that_was_never_there_is_said(spark: SparkSession, database_url: str, tmp_path: Path) -> None:
    StoreRows().write(database_url)
    (tmp_path / "till.csv").write_text(f"order_id,processed_at\na,{AT.isoformat()}\n", "utf-8")
    (tmp_path / "book.toml").write_text(BOOK, "utf-8")
    told = Told()
    found = run(spark, database_url, tmp_path / "out", books=[describe(tmp_path / "book.toml")], told=told).findings
    assert told.warnings == ["book till: the store knows no consumer group 'orders'"]
    assert dict(found.by_kind) == {"processed-not-consumed": 1}


@pytest.mark.rule("R24", "R25", "X4")
def test_the_inbox_of_the_store_needs_no_file(spark: SparkSession, database_url: str, tmp_path: Path) -> None:
    """A consumer is the group of its name; another is listed. What was posted before its first row has none."""
    rows = StoreRows(seed=25)
    orders = rows.address("orders")
    prices = rows.address("prices", routing="topic")
    billing = rows.group(prices, "billing")
    inbox = []

    def consumed(address: int, group: int, consumer: str, key: str, minutes: int, *, done: bool = True) -> int:
        at = AT + timedelta(minutes=minutes)
        half = posted(rows, address, key, at)
        rows.op("accept", at + timedelta(seconds=2), covers=[(half, group)])
        if done:
            inbox.append((consumer, key, at + timedelta(seconds=1)))
        return half

    consumed(orders, orders, "orders", "before", 0, done=False)
    consumed(prices, billing, "prices::billing", "p-1", 1)
    lost = [consumed(prices, billing, "prices::billing", "p-2", 2, done=False)]
    consumed(orders, orders, "orders", "o-1", 3)
    # the same key in another group
    lost.append(consumed(orders, orders, "orders", "p-1", 4, done=False))
    half = posted(rows, orders, "o-2", AT)
    rows.entry(orders, half, failures=1)
    inbox += [("orders", "o-2", AT + timedelta(minutes=3)), ("till", "o-1", AT), ("till", "o-2", AT)]
    rows.write(database_url)
    with psycopg.connect(database_url) as connection, connection.cursor() as cursor:
        cursor.executemany(
            f"insert into {SCHEMA}.inbox (consumer, message_id, taken_at) values (%s, %s, %s)".encode(), inbox
        )
    result = run(spark, database_url, tmp_path / "out", inbox=True)
    found = result.findings
    assert dict(found.by_kind) == {
        "consumed-not-processed": 2,
        "processed-not-consumed": 1,
        "unknown-consumer": 1,
    }
    assert {each.half_id for each in found.shown["consumed-not-processed"]} == set(lost)
    assert [each.half_id for each in found.shown["processed-not-consumed"]] == [half]
    assert details(found, "unknown-consumer") == ["book inbox: 2 rows of consumer till, which is the name of no group"]
    assert found.severities["unknown-consumer"] == "note"
    assert [(book.name, book.rows, book.messages) for book in result.books] == [("inbox", 3, 5)]


@pytest.mark.rule("R25", "X4")
def test_consumers_that_are_no_group_are_bounded(spark: SparkSession, database_url: str, tmp_path: Path) -> None:
    """An application may give any name, such as one for each message."""
    StoreRows().write(database_url)
    with psycopg.connect(database_url) as connection:
        connection.execute(
            f"insert into {SCHEMA}.inbox (consumer, message_id) select 'c-' || i, j::text"
            " from generate_series(1, 3000) i, generate_series(1, 1 + (i = 7)::int) j".encode()
        )
    found = run(spark, database_url, tmp_path / "out", inbox=True).findings
    assert dict(found.by_kind) == {"unknown-consumer": MOST + 1}
    told = details(found, "unknown-consumer")
    assert "book inbox: 2 rows of consumer c-7, which is the name of no group" in told
    others = 3000 - MOST
    assert f"book inbox: {others} rows of {others} other consumers, whose names are of no group either" in told


_CONSUME = f"""
with posted as (
  insert into {SCHEMA}.half (id, txn_id, address_id, posted_at, message)
  select h.id, %(txn)s, 1, now() - interval '10 minutes',
         -- its properties: the message-id, 20 digits
         '\\x005373c01701a114'::bytea || convert_to(lpad(h.id::text, 20, '0'), 'utf8') || '\\x005375a0027b7d'::bytea
    from (select %(half)s + i as id from generate_series(1, 3) i) h),
 decided as (
  insert into {SCHEMA}.op (id, decision, txn_id, posted, decided_at, half_ids, group_ids, instance_id)
  select %(txn)s, 'commit', %(txn)s, 3, now() - interval '10 minutes', array_agg(taken.half_id), array_agg(1), 1 from (
    select half_id from {SCHEMA}.entry where group_id = 1 order by id limit %(take)s for update skip locked) taken
  returning half_ids),
 done as (
  insert into {SCHEMA}.inbox (consumer, message_id, taken_at)
  select 'orders', lpad(half_id::text, 20, '0'), now() - interval '10 minutes'
    from decided d, unnest(d.half_ids) half_id),
 gone as (
  delete from {SCHEMA}.entry e using decided d where e.group_id = 1 and e.id = any(d.half_ids))
insert into {SCHEMA}.entry (group_id, id, half_id, lease)
  select 1, %(half)s + i, %(half)s + i, 1 from generate_series(1, 3) i
"""


@pytest.mark.night
@pytest.mark.rule("R24", "R1")
def test_consumers_under_load_are_in_order(spark: SparkSession, database_url: str, tmp_path: Path) -> None:
    """Each accept and its row in the inbox are one SQL transaction; many are under way while it is read. All say that
    they are older than the grace of the book, within which nothing is judged."""
    rows = StoreRows()
    rows.address("orders")
    rows.write(database_url)
    with Writer(database_url, 2, _CONSUME) as one, Writer(database_url, 3, _CONSUME) as two:
        started = wait_for(300, one, two)
        result = run(spark, database_url, tmp_path / "out", inbox=True)
        ended = one.written + two.written
    assert ended > started, "nothing was written meanwhile: the test shows nothing"
    assert result.findings.by_kind == {}
    (book,) = result.books
    assert book.messages == book.rows == result.metrics.totals["accepted"] > 0
