"""Findings that hang on when something happened: just before, just after, at the edge of a period."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from spark.period import Period
from tests.fix_findings import ALL, AT, all_findings, own_queue
from tests.fix_store_rows import NOW, StoreRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_an_instance_that_has_just_ended_may_hold_entries(spark: SparkSession) -> None:
    rows = StoreRows()
    address, group = own_queue(rows, "orders")
    halves = []
    for number, age in ((2, timedelta(minutes=1)), (3, timedelta(minutes=3))):
        rows.rows["instance"].append({**rows.rows["instance"][0], "id": number, "ended_at": NOW - age})
        halves.append(rows.half(address, AT))
        rows.entry(group, halves[-1], lease=number)
    (found,) = all_findings(rows, spark)
    assert (found.kind, found.half_id) == ("stuck-delivery", halves[1])
    assert "instance 3" in found.detail


@pytest.mark.rule("R18")
def test_the_clock_of_the_database_may_be_set(spark: SparkSession) -> None:
    rows = StoreRows()
    address, group = own_queue(rows, "orders")
    for seconds in (59, 61):
        half = rows.half(address, AT)
        rows.op("accept", AT - timedelta(seconds=seconds), covers=[(half, group)])
    (found,) = all_findings(rows, spark)
    assert (found.kind, found.half_id, found.severity) == ("order", half, "warning")
    assert "61 s before it was committed" in found.detail


@pytest.mark.rule("R17")
def test_letters_around_the_edge_of_a_period_are_of_no_run(spark: SparkSession) -> None:
    rows = StoreRows()
    address, group = own_queue(rows, "orders")
    halves = []
    for minutes in (-90, -30, 30, 90):
        halves.append(rows.half(address, AT - timedelta(hours=2)))
        rows.op("dead-letter", AT + timedelta(minutes=minutes), covers=[(halves[-1], group)], reason="tried")

    def found(period: Period) -> list[int | None]:
        return [
            item.half_id for item in all_findings(rows, spark, period=period) if item.kind == "dead-letter-mismatch"
        ]

    assert sorted(filter(None, found(ALL))) == halves
    assert found(Period(until=AT)) == halves[:1]
    # the period has no letters but these: it is known that there are some by the address
    rows.address("%DLQ%orders")
    assert found(Period(since=AT)) == halves[3:]
