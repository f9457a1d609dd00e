"""``coordinator reconcile`` where it could invent something: at the end of a period, with a book that allows no delay,
and of messages that a subscription does not get (no-local).
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from spark.books.description import describe
from spark.period import Period
from tests.fix_service import running_service
from tests.fix_store_rows import NOW, StoreRows, encode_message
from tests.reconciling import run
from tests.wire.checkable import in_group
from tests.wire.frames import Source
from tests.wire.messages import data
from tests.wire.queues import NO_LOCAL, filtered, post
from tests.wire.types import Described, Symbol, UInt

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.fix_wire import BeginAt

BOOK = """
name = "shop"
format = "parquet"
addresses = ["orders"]
key = "id"
message_key = "property:order"
time = "at"
committed_when = "true"
grace = "0s"
options.path = "shop.parquet"
"""


@pytest.mark.night
@pytest.mark.rule("R20", "R36")
def test_a_large_book_beside_a_small_store_is_compared_as_what_is_large(
    spark: SparkSession, database_url: str, tmp_path: Path
) -> None:
    """By all processors, and by plans that are compiled; the store itself is read and looked at as a small one."""
    StoreRows(seed=23).healthy(20).write(database_url)
    times = spark.range(100_000).selectExpr("concat('K', id) id", "timestamp'2026-01-01' at")
    times.write.parquet(str(tmp_path / "shop.parquet"))
    (tmp_path / "book.toml").write_text(BOOK, "utf-8")
    names = ("spark.sql.shuffle.partitions", "spark.sql.codegen.wholeStage", "spark.sql.codegen.factoryMode")
    large, small = ("2", "true", "FALLBACK"), ("1", "false", "NO_CODEGEN")
    for books, expected in (([describe(tmp_path / "book.toml")], large), ([], small)):
        run(spark, database_url, tmp_path / "out", Period(since=NOW), books)
        assert tuple(spark.conf.get(name) for name in names) == expected


@pytest.mark.rule("R20", "R21", "R25")
def test_a_book_without_grace_up_to_a_moment(spark: SparkSession, database_url: str, tmp_path: Path) -> None:
    """No row is torn from its message at the edge, in either direction; what is before the edge is judged."""
    edge = NOW - timedelta(hours=1)
    rows, book = StoreRows(seed=23), []
    orders = rows.address("orders")

    def message(key: str, seconds: int) -> int:
        sent = encode_message(properties={"order": key}, body={})
        _, (half,) = rows.committed([orders], edge + timedelta(seconds=seconds), messages=[sent])
        rows.entry(1, half)
        return half

    def row(key: str, seconds: int) -> None:
        book.append((key, edge + timedelta(seconds=seconds)))

    for seconds in (1, 240):
        row(f"before its message by {seconds}", -seconds)
        message(f"before its message by {seconds}", seconds)
        row(f"after its message by {seconds}", seconds)
        message(f"after its message by {seconds}", -seconds)
    row("lost", -1)
    row("not of this period", 1)
    phantom = message("phantom", -1)
    message("not of this period either", 1)
    rows.write(database_url)
    (tmp_path / "book.toml").write_text(BOOK, "utf-8")
    spark.createDataFrame(book, "id string, at timestamp").write.parquet(str(tmp_path / "shop.parquet"))
    description = describe(tmp_path / "book.toml")
    found = run(spark, database_url, tmp_path / "out", Period(until=edge), [description]).findings
    assert dict(found.by_kind) == {"lost-message": 1, "phantom-message": 1}
    assert "key lost:" in found.shown["lost-message"][0].detail
    assert "key phantom:" in found.shown["phantom-message"][0].detail
    assert found.shown["phantom-message"][0].half_id == phantom


@pytest.mark.rule("P16", "R13", "R19")
def test_what_a_subscription_does_not_get_is_not_lost(
    spark: SparkSession, database_url: str, begin_at: BeginAt, tmp_path: Path
) -> None:
    """Posted on its own connection, in all three manners: the trace says so. Others get it."""
    topic = (Symbol("topic"),)
    with running_service({"database_url": database_url}) as service:
        session, other = begin_at(service), begin_at(service)
        lasting: dict[str, Any] = {"capabilities": topic, "durable": UInt(2), "expiry_policy": Symbol("never")}
        quiet = filtered("news", {"no-local": Described(NO_LOCAL, [])}, **lasting)
        consumers = [session.receiver(quiet), other.receiver(Source(address="news", **lasting))]
        with psycopg.connect(database_url) as store:  # of a group that was just made nothing is expected yet
            store.execute("update coordinator.consumer_group set created_at = created_at - interval '1 day'")
        post(session, "news", b"plain")
        sender = session.sender("news")
        for control in (session.control(), in_group(session)):
            txn = control.declare()
            sender.outcome(data(b"in a transaction"), txn=txn)
            control.commit(txn)
        whole = run(spark, database_url, tmp_path / "waiting")
        assert Counter(consumers[1].bodies()) == {b"plain": 1, b"in a transaction": 2}
        assert consumers[0].bodies() == []
        consumed = run(spark, database_url, tmp_path / "consumed")
    assert [dict(each.findings.by_kind) for each in (whole, consumed)] == [{}, {}]
    assert whole.metrics.totals["expected"] == 6
