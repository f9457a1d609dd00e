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
    facts = [(decision, "told") for decision in (*marks.ENDS, *marks.FAILED_ATTEMPT, "release")]
    rows = spark.createDataFrame(facts, "decision string, reason string")
    marked = rows.select("decision", marks.of_op(f.col("decision"), f.col("reason")).alias("m"))
    of = {row["decision"]: row["m"] for row in marked.collect()}
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
    schema = "kind string, lease int, failures smallint, available_at timestamp, failed string"
    rows = spark.createDataFrame(entries, schema).select("kind", "failures", marks.of_entry(NOW, {7}).alias("m"))
    for row in rows.collect():
        found = marks.unpacked(marks.EXPECTED + row["m"])
        assert found == marks.InOrder(
            accounted=row["kind"], failed_attempts=0, attempts=min(row["failures"], marks.MOST_ATTEMPTS)
        )


#: Facts of a pair: whether it is in order.
_PAIRS = [
    (["expected", "accept"], True),
    (["expected", "purge", "modify", "modify"], True),
    (["expected"], False),
    (["accept"], False),
    (["expected", "release"], False),
    (["expected", "expected", "accept"], False),
    (["expected", "accept", "commit"], False),
    (["expected", "dead-letter", "dead-letter"], False),
]
#: Facts of an expected pair, some of them taken back: what it counts as.
_TAKEN_BACK = [
    (["accept", "replay accepted", "accept"], "accepted"),
    (["commit", "replay accepted", "dead-letter", "modify"], "dead_lettered"),
    (["purge", "replay purged", "commit"], "accepted"),
    (["accept", "replay accepted", "purge", "replay purged", "expire"], "expired"),
    (["accept", *["replay accepted", "accept"] * 5], "accepted"),
    (["accept", "replay accepted"], None),
    (["accept", "replay accepted", "accept", "accept"], None),
    (["accept", "accept", "replay accepted", "commit"], None),
    (["dead-letter", "expire", "replay accepted"], None),
    (["dead-letter", "dead-letter", "replay accepted"], None),
    (["accept", "replay told"], "accepted"),
]


@pytest.mark.rule("R13", "R15")
def test_in_order_is_expected_once_and_ended_once(spark: SparkSession) -> None:
    found = _count_as(spark, [facts for facts, _ in _PAIRS])
    assert [(facts, each is not None) for (facts, _), each in zip(_PAIRS, found, strict=True)] == _PAIRS


@pytest.mark.rule("R15", "H17")
def test_an_end_that_was_taken_back_does_not_count(spark: SparkSession) -> None:
    """What was delivered again is in order, and what was delivered twice after it is not."""
    found = _count_as(spark, [["expected", *facts] for facts, _ in _TAKEN_BACK])
    assert [(facts, each) for (facts, _), each in zip(_TAKEN_BACK, found, strict=True)] == _TAKEN_BACK


def _count_as(spark: SparkSession, pairs: list[list[str]]) -> list[str | None]:
    """What each pair counts as, by its facts, each with its reason; None: it is not in order."""
    facts = [(number, fact) for number, of_pair in enumerate(pairs) for fact in of_pair]
    rows = spark.createDataFrame(facts, "pair int, fact string")
    decision, reason = (f.split_part("fact", f.lit(" "), f.lit(number)) for number in (1, 2))
    mark = f.when(f.col("fact") == "expected", f.lit(marks.EXPECTED)).otherwise(marks.of_op(decision, reason))
    sums = rows.groupBy("pair").agg(f.try_sum(mark).alias("m"))
    found = sums.select("pair", marks.in_order(f.col("m")).alias("is_in_order"), "m").collect()
    counted = {row["pair"]: marks.unpacked(row["m"]).accounted if row["is_in_order"] else None for row in found}
    return [counted[number] for number in range(len(pairs))]
