"""The data source ``halfop`` on real PostgreSQL."""

from __future__ import annotations

import contextlib
import io
import os
import re
import struct
from collections import Counter
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import psycopg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql.datasource import EqualTo, GreaterThan, In, IsNull, Not

from spark import ledger
from spark.master import DATABASE_VARIABLE
from spark.period import MARGIN
from spark.schemas import TABLES
from spark.snapshot import StoreUnreadable, exported_snapshot
from spark.source import (
    HalfOpReader,
    KeyRange,
    ReadOptions,
    SourceOptionError,
    condition_sql,
    literal,
)
from spark.source import database_url as url_of
from store import tables
from store.database import connected
from store.ids import LONGEST_UNDECIDED
from store.partitions import make_days
from tests.fix_spark import assert_same_rows
from tests.fix_store_rows import NOW, StoreRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def credentials(database_url: str, tmp_path: Path) -> Path:
    path = tmp_path / "url"
    path.touch(0o600)
    path.write_text(database_url, encoding="utf-8")
    return path


def read(spark: SparkSession, credentials: Path, table: str, **options: str) -> DataFrame:
    return spark.read.format("halfop").options(table=table, credentials=str(credentials), **options).load()


@pytest.mark.rule("R2")
def test_every_table_reads_as_it_was_written(spark: SparkSession, database_url: str, credentials: Path) -> None:
    rows = StoreRows(seed=11).healthy(200)
    rows.write(database_url)
    for name, frame in rows.frames(spark).items():
        got = read(spark, credentials, name, partitions="3")
        # the database writes this one itself
        if "written_xid" in got.columns:
            assert got.where("written_xid is null or written_xid <= 0").count() == 0
            got, frame = got.drop("written_xid"), frame.drop("written_xid")
        texts = [f.col(column).cast("string") for column in got.columns]
        assert_same_rows(got.select(texts), frame.select(texts))


@pytest.mark.rule("R2")
def test_a_uuid_is_two_numbers_too(
    spark: SparkSession, database_url: str, credentials: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By tasks and by the driver, of what has one and what has none, and of no rows."""
    columns = "txn_id_low,id,txn_id_high"
    monkeypatch.setenv(DATABASE_VARIABLE, database_url)
    reader = HalfOpReader(ReadOptions.parse({"table": "half", "columns": columns}))
    assert reader.whole().column_names == columns.split(",")
    assert reader.whole().num_rows == 0
    rows = StoreRows(seed=5).healthy(50)
    rows.write(database_url)
    expected = {
        row["id"]: (None, None) if row["txn_id"] is None else struct.unpack(">qq", UUID(row["txn_id"]).bytes)
        for row in rows.rows["half"]
    }
    assert (None, None) in expected.values()
    got = read(spark, credentials, "half", columns=columns, partitions="3")
    assert {row.id: (row.txn_id_high, row.txn_id_low) for row in got.collect()} == expected
    assert {row["id"]: (row["txn_id_high"], row["txn_id_low"]) for row in reader.whole().to_pylist()} == expected
    # back to text, by Spark and in the driver
    named = got.select("id", ledger.uuid_text(f.col("txn_id_high"), f.col("txn_id_low")).alias("text"))
    texts = {row["id"]: row["txn_id"] for row in rows.rows["half"]}
    assert {row.id: row.text for row in named.collect()} == texts
    again = spark.createDataFrame([(text,) for text in texts.values()], "text string")
    words = again.select(f.struct(*ledger.uuid_words(f.col("text"))).alias("words"))
    assert Counter(tuple(row.words) for row in words.collect()) == Counter(expected.values())
    assert all(ledger.words_of(text) == expected[key] for key, text in texts.items() if text is not None)
    assert all(ledger.uuid_of(*words) == texts[key] for key, words in expected.items() if words != (None, None))


def test_the_schemas_are_those_of_the_tables() -> None:
    for name, table in TABLES.items():
        assert table.schema.names == [
            column.name for column in tables.metadata.tables[f"{tables.SCHEMA}.{name}"].columns
        ]


@pytest.mark.rule("R3")
def test_partitions_are_even_by_the_real_data(spark: SparkSession, database_url: str, credentials: Path) -> None:
    rows = StoreRows()
    address = rows.address("orders")
    for number in range(2000):
        # nine of ten in the last hour of a month
        at = NOW - (timedelta(hours=1) * number / 2000 if number % 10 else timedelta(days=30) * number / 2000)
        half = rows.half(address, at)
        rows.entry(address, half)
        rows.op("accept", at, covers=[(half, address)])
    rows.write(database_url)
    for table in ("half", "op", "entry"):
        counts = [
            row["count"]
            for row in read(spark, credentials, table, partitions="8").groupBy(f.spark_partition_id()).count().collect()
        ]
        assert len(counts) == 8
        assert sum(counts) == 2000
        assert max(counts) <= 2 * sorted(counts)[4]


@pytest.mark.rule("R2")
@pytest.mark.parametrize(
    ("table", "condition"),
    [
        ("half", "id > {half} and address_id in (1, 2)"),
        ("half", "txn_id is null or id <= {half}"),
        ("half", "txn_id is not null and txn_id >= '{txn}'"),
        ("half", "posted_at < timestamp'{moment}'"),
        ("op", "decision = 'commit' and posted > 1"),
        ("op", "decision > 'expire'"),
        ("op", "id = '{txn}' or reason like 'app%'"),
        ("op", "not (decision = 'commit')"),
        ("op", "reason = 'app:bad-order' and half_ids is not null"),
        ("address", "name = 'it''s \\\\ odd'"),
        ("entry", "lease <> 0 and attempts >= 1"),
    ],
)
def test_filters_mean_the_same_in_both_places(
    spark: SparkSession, database_url: str, credentials: Path, table: str, condition: str
) -> None:
    rows = StoreRows(seed=12).healthy(150)
    rows.address("it's \\ odd")
    rows.write(database_url)
    half = rows.rows["half"][40]
    txn = next(row["txn_id"] for row in rows.rows["half"][40:] if row["txn_id"])
    condition = condition.format(half=half["id"], txn=txn, moment=half["posted_at"].isoformat())
    columns = TABLES[table].key
    expected = rows.frames(spark)[table].where(condition).select(*columns)
    assert expected.count() > 0
    assert_same_rows(read(spark, credentials, table, partitions="2").where(condition).select(*columns), expected)


def test_only_what_means_the_same_is_pushed_down() -> None:
    half, op = TABLES["half"], TABLES["op"]
    assert condition_sql(half, GreaterThan(("id",), 5)) == "id > 5"
    assert condition_sql(half, In(("address_id",), (1, 2))) == "address_id in (1, 2)"
    assert condition_sql(half, IsNull(("txn_id",))) == "txn_id is null"
    assert condition_sql(op, EqualTo(("reason",), "a'b\\c")) == "reason = E'a''b\\\\c'"
    # another order of text, text that is no UUID, a NUL, another kind of value, a negation, a nested field, a cast
    assert condition_sql(op, GreaterThan(("reason",), "a")) is None
    assert condition_sql(half, EqualTo(("txn_id",), "x' or true --")) is None
    assert condition_sql(op, EqualTo(("reason",), "a\0")) is None
    assert condition_sql(half, EqualTo(("id",), "5")) is None
    assert condition_sql(half, EqualTo(("id",), True)) is None
    assert condition_sql(half, Not(EqualTo(("id",), 5))) is None
    assert condition_sql(half, EqualTo(("id", "x"), 5)) is None
    assert condition_sql(half, EqualTo(("written_xid",), 5)) is None
    assert condition_sql(half, EqualTo(("nothing",), 5)) is None
    with pytest.raises(TypeError):
        literal(b"octets")


@pytest.mark.rule("R2")
def test_filters_reach_postgresql(spark: SparkSession, database_url: str, credentials: Path) -> None:
    StoreRows(seed=13).healthy(50).write(database_url)
    plan = io.StringIO()
    with contextlib.redirect_stdout(plan):
        read(spark, credentials, "half", columns="id,address_id").where("id > 5 and address_id = 1").explain()
    assert "BatchScan" in plan.getvalue()
    assert "Filter (" not in plan.getvalue(), "Spark still filters itself"


@pytest.mark.parametrize("table", ["half", "op"])
def test_a_period_reads_no_partition_of_before_it(
    database_url: str, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """Nor of the days before a transaction can have begun that retires what is of the period."""
    begin = (NOW - timedelta(days=1)).replace(hour=0, minute=0, second=0)
    with connected(database_url) as connection:
        make_days(connection, [(begin - timedelta(days=ago)).date() for ago in range(30)])
    monkeypatch.setenv(DATABASE_VARIABLE, database_url)
    reader = HalfOpReader(ReadOptions.parse({"table": table, "columns": "id", "since": begin.isoformat()}))
    with psycopg.connect(database_url) as connection:
        plan = connection.execute(f"explain {reader._select(KeyRange(None, None))}".encode()).fetchall()
    days = [date.fromisoformat(day) for day in re.findall(rf"{table}_(\d{{8}})", str(plan))]
    earliest = begin - MARGIN - (LONGEST_UNDECIDED if table == "op" else timedelta(0))
    assert (min(days), max(days) >= NOW.date()) == (earliest.date(), True)


def test_the_commit_of_a_transaction_that_began_long_before_is_read(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has retired what is of the period."""
    rows, begin = StoreRows(), NOW - timedelta(days=1)
    address = rows.address("orders")
    half = rows.half(address, NOW - timedelta(hours=2))
    txn_id = rows.uuid_v7(begin - MARGIN - LONGEST_UNDECIDED + timedelta(hours=1))
    covers = [(half, address)]
    rows.op("commit", NOW - timedelta(hours=1), op_id=txn_id, txn_id=txn_id, posted=0, covers=covers)
    rows.write(database_url)
    monkeypatch.setenv(DATABASE_VARIABLE, database_url)
    reader = HalfOpReader(ReadOptions.parse({"table": "op", "columns": "id", "since": begin.isoformat()}))
    assert reader.whole().to_pylist() == [{"id": txn_id}]


@pytest.mark.rule("R1")
def test_all_partitions_read_one_snapshot(spark: SparkSession, database_url: str, credentials: Path) -> None:
    rows = StoreRows(seed=14).healthy(50)
    rows.write(database_url)
    before = len(rows.rows["half"])
    with exported_snapshot(database_url) as snapshot:
        with psycopg.connect(database_url) as connection:
            connection.execute(
                f"insert into {tables.SCHEMA}.half (id, address_id, message) "
                "select i, 1, '' from generate_series(1, 100) i"
            )
        assert read(spark, credentials, "half", partitions="4", snapshot=snapshot.name).count() == before
        assert read(spark, credentials, "half", partitions="4").count() == before + 100
    with pytest.raises(PySparkException, match="snapshot"):
        read(spark, credentials, "half", snapshot=snapshot.name).count()


@pytest.mark.rule("R2", "S8")
def test_the_password_is_nowhere_to_be_seen(
    spark: SparkSession, database_url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = "hunter2-and-more"
    path = tmp_path / "url"
    path.touch(0o600)
    # a server that is not there, so that every error on the way shows what it shows
    path.write_text(f"postgresql://user:{secret}@127.0.0.1:1/none", encoding="utf-8")
    shown = io.StringIO()
    frame = spark.read.format("halfop").options(table="half", credentials=str(path)).load()
    with contextlib.redirect_stdout(shown):
        frame.printSchema()
        frame.explain("extended")
        with pytest.raises(PySparkException) as raised:
            frame.count()
    with pytest.raises(StoreUnreadable) as unreadable, exported_snapshot(path.read_text(encoding="utf-8")):
        pass
    configuration = spark.sparkContext.getConf().toDebugString()
    written = capfd.readouterr()
    for text in (shown.getvalue(), str(raised.value), str(unreadable.value), configuration, *written):
        assert secret not in text


def test_credentials_that_others_may_read_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "url"
    path.write_text("postgresql:///", encoding="utf-8")
    path.chmod(0o644)
    with pytest.raises(SourceOptionError, match="expected mode 0600"):
        url_of(str(path))
    with pytest.raises(SourceOptionError, match="No such file"):
        url_of(str(tmp_path / "none"))
    monkeypatch.delenv("COORDINATOR_DATABASE_URL", raising=False)
    with pytest.raises(SourceOptionError, match="COORDINATOR_DATABASE_URL is not set"):
        url_of(None)
    monkeypatch.setitem(os.environ, "COORDINATOR_DATABASE_URL", "postgresql:///x")
    assert url_of(None) == "postgresql:///x"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "option 'table': '', expected one of"),
        ({"table": "half; drop table half"}, "option 'table'"),
        ({"table": "half", "columns": "id,password"}, "half has no column 'password'"),
        ({"table": "half", "columns": "id,id"}, "named twice"),
        ({"table": "half", "since": "2026-01-01"}, "since has no time zone"),
        ({"table": "half", "since": "soon"}, "Invalid isoformat string"),
        ({"table": "half", "partitions": "0"}, "option 'partitions': '0', expected a number from 1"),
        ({"table": "half", "colums": "id"}, "option 'colums': there is none of this name"),
    ],
)
def test_options_that_are_wrong_say_which(spark: SparkSession, options: dict[str, str], says: str) -> None:
    with pytest.raises(PySparkException, match=says):
        spark.read.format("halfop").options(**options).load()


def test_a_database_that_is_no_store_is_said(empty_database_url: str) -> None:
    with pytest.raises(StoreUnreadable, match=r"no table coordinator\.half"), exported_snapshot(empty_database_url):
        pass
