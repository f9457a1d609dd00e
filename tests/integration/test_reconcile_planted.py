"""Faults of every kind in a store, all found and no other (R36): what ``make bench-spark`` shows at size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from spark import reading, snapshot
from spark.books.description import describe
from tests.benchmarks.planted_books import plant_in_books
from tests.benchmarks.planting import fewest, plant
from tests.benchmarks.reconciliation import QUEUES, fill, written_to
from tests.reconciling import run

_PLANTED = 5


@pytest.fixture
def settings(spark: SparkSession) -> Iterator[None]:
    """A run chooses them for its store's size; other tests are about small ones."""
    names = ("spark.sql.shuffle.partitions", "spark.sql.codegen.wholeStage", "spark.sql.codegen.factoryMode")
    before = {name: str(spark.conf.get(name)) for name in (*names, "spark.sql.adaptive.enabled")}
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.mark.rule("R36")
@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize(
    ("small", "twice"), [(True, True), (False, True), (False, False)], ids=["small", "large", "in slices"]
)
def test_all_that_is_planted_is_found_and_no_more(
    spark: SparkSession, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: bool, twice: bool
) -> None:
    """Read by the driver, and by tasks as a store of any size is: without its keys, and in slices, with them."""
    fill(database_url, fewest(_PLANTED))
    planted = plant(database_url, _PLANTED, twice=twice)
    monkeypatch.setattr(reading, "SMALL_BYTES", snapshot.SMALL_BYTES if small else 0)
    assert run(spark, database_url, tmp_path).findings.by_kind == Counter(planted)


@pytest.mark.night
@pytest.mark.rule("R12")
@pytest.mark.usefixtures("settings")
def test_a_store_without_its_keys_is_looked_into_as_a_whole(
    spark: SparkSession, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of a slice do not show what is in a table twice."""
    fill(database_url, fewest(1))
    with psycopg.connect(database_url) as connection:
        connection.execute(b"alter table coordinator.op drop constraint op_pkey")
        connection.execute(
            b"insert into coordinator.op (id, decision, txn_id, posted, decided_at)"
            b" select id, 'rollback', txn_id, 0, decided_at from coordinator.op where decision = 'commit' limit 1"
        )
    monkeypatch.setattr(reading, "SMALL_BYTES", 0)
    assert run(spark, database_url, tmp_path).findings.by_kind["double-decision"] == 1


@pytest.mark.rule("R20", "R21", "R22", "R23", "R24", "R25", "R36")
@pytest.mark.usefixtures("settings")
def test_all_that_is_planted_in_books_is_found_and_no_more(
    spark: SparkSession, database_url: str, tmp_path: Path
) -> None:
    """Of producers and consumers, while others write."""
    fill(database_url, fewest(_PLANTED))
    books, planted = plant_in_books(database_url, tmp_path, _PLANTED, QUEUES)
    with written_to(database_url):
        found = run(spark, database_url, tmp_path / "out", books=[describe(each) for each in books]).findings
    assert found.by_kind == planted
