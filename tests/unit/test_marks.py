"""What the sum of a pair's marks says, and when it says nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as f

from spark import marks
from tests.fix_store_rows import NOW

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.rule("R19")
def test_the_end_of_a_pair_in_order_is_read_from_its_marks(spark: SparkSession) -> None:
    facts = [(decision,) for decision in (*marks.ENDS, *marks.FAILED_ATTEMPT, "release")]
    rows = spark.createDataFrame(facts, "decision string").select("decision", marks.of_op(f.col("decision")).alias("m"))
    of = {row["decision"]: row["m"] for row in rows.collect()}
    for decision, accounted in marks.ENDS.items():
        found = marks.unpacked(marks.EXPECTED + of[decision] + 3 * of["modify"] + of["reject"] + 5 * of["release"])
        assert found == marks.InOrder(accounted=accounted, failed_attempts=4, attempts=0)


@pytest.mark.rule("R19")
def test_where_a_pair_in_order_waits_is_read_from_its_marks(spark: SparkSession) -> None:
    entries = [
        ("ready", 0, 0, None, None),
        ("ready", 0, 3, NOW, None),
        ("inflight", 7, 99, None, None),
        ("scheduled", 0, 1, NOW.replace(year=NOW.year + 1), None),
        ("failing", 7, 2, NOW.replace(year=NOW.year + 1), "app:bad-order"),
    ]
    schema = "kind string, lease int, attempts smallint, available_at timestamp, failed string"
    rows = spark.createDataFrame(entries, schema).select("kind", "attempts", marks.of_entry(NOW).alias("m"))
    for row in rows.collect():
        found = marks.unpacked(marks.EXPECTED + row["m"])
        assert found == marks.InOrder(
            accounted=row["kind"], failed_attempts=0, attempts=min(row["attempts"], marks.MOST_ATTEMPTS)
        )


@pytest.mark.rule("R13", "R15")
@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (["expected", "accept"], True),
        (["expected", "purge", "modify", "modify"], True),
        (["expected"], False),
        (["accept"], False),
        (["expected", "release"], False),
        (["expected", "expected", "accept"], False),
        (["expected", "accept", "commit"], False),
        (["expected", "dead-letter", "dead-letter"], False),
    ],
)
def test_in_order_is_expected_once_and_ended_once(spark: SparkSession, facts: list[str], expected: bool) -> None:
    rows = spark.createDataFrame([(fact,) for fact in facts], "fact string")
    mark = f.when(f.col("fact") == "expected", f.lit(marks.EXPECTED)).otherwise(marks.of_op(f.col("fact")))
    (row,) = rows.agg(marks.in_order(f.try_sum(mark))).collect()
    assert row[0] is expected
