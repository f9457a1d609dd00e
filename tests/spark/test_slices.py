"""A large store in slices: what is found and counted is what a look at each row finds (R36)."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from random import Random, SystemRandom
from typing import TYPE_CHECKING

import pytest

from spark.period import Period
from spark.slices import LONGEST, width_of
from tests.fix_findings import AT, all_findings, surveyed
from tests.fix_night import by_night
from tests.fix_store_rows import NOW, StoreRows
from tests.plain_checks import break_at_random

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MILLISECOND = timedelta(milliseconds=1)


@pytest.mark.rule("R36")
@pytest.mark.parametrize(
    ("period", "width"),
    [
        pytest.param(Period(), timedelta(seconds=7), id="all"),
        by_night(Period(since=NOW - timedelta(hours=5), until=AT), LONGEST, id="hours"),
    ],
)
def test_slices_change_nothing(spark: SparkSession, period: Period, width: timedelta) -> None:
    seed = SystemRandom().getrandbits(32)
    print(f"seed {seed}")  # noqa: T201 (shown where it fails)
    rows = StoreRows(seed).healthy(400)
    break_at_random(rows, Random(seed), 3)
    rows.with_keys()
    found, numbers = surveyed(rows, spark, slices=None, period=period)
    again, counted = surveyed(rows, spark, slices=width, period=period)
    assert Counter(again) == Counter(found)
    assert counted == numbers


@pytest.mark.rule("R13", "R14", "R36")
def test_faults_do_not_make_up_for_each_other(spark: SparkSession) -> None:
    """What one transaction, half or group has too little is not what another has too much."""
    rows = StoreRows()
    topic = rows.address("topic", routing="topic")
    one, other = rows.group(topic, "one"), rows.group(topic, "other")
    swapped = []
    for _ in range(2):
        txn, halves = rows.committed([topic] * 3, AT)
        rows.op("accept", NOW, covers=[(half, group) for half in halves[:2] for group in (one, other)])
        swapped.append((txn, halves[2]))
    (_, first), (_, second) = swapped
    # each group has one of the two, and that twice
    rows.op("accept", NOW, covers=[(first, one), (first, one), (second, other), (second, other)])
    # one transaction has a half more than it posted, the other a half less
    more, less = (txn for txn, _ in swapped)
    for row in rows.rows["half"]:
        if row["id"] == second:
            row["txn_id"] = more
    found = {
        (each.kind, each.half_id or each.txn_id, each.consumer_group)
        for each in all_findings(rows, spark, slices=LONGEST)
    }
    assert found == {
        ("double-delivery", first, "one"),
        ("double-delivery", second, "other"),
        ("lost-delivery", first, "other"),
        ("lost-delivery", second, "one"),
        ("unbalanced", more, None),
        ("orphan-op", less, None),
    }


@pytest.mark.rule("R11", "R36")
def test_an_op_that_ends_nothing_tells_of_a_missing_half(spark: SparkSession) -> None:
    """It is alone in its slice, and no sum misses it."""
    rows = StoreRows()
    address = rows.address("orders")
    (group,) = rows.groups_of(address, NOW)
    missing = []
    for place, (decision, reason) in enumerate((("release", None), ("replay", "expired"), ("reject", None))):
        missing.append(rows.half(address, AT - timedelta(hours=place + 1)))
        rows.rows["half"].pop()
        rows.op(decision, AT, covers=[(missing[-1], group)], reason=reason)
    # null stands in the place of its half
    rows.op("accept", AT, covers=[(None, group)])
    missing.append(0)
    found = all_findings(rows, spark, slices=MILLISECOND)
    assert Counter((each.kind, each.half_id) for each in found) == Counter(("orphan-op", half) for half in missing)


@pytest.mark.parametrize(
    ("extent", "size", "width"),
    [
        # some 60 halves of a store of 10,000,000 in 20 hours
        (timedelta(hours=20), 4 << 30, timedelta(milliseconds=411)),
        # much in no time: as short as can be
        (timedelta(0), 1 << 40, MILLISECOND),
        (timedelta(seconds=1), 1 << 40, MILLISECOND),
        # no more slices than can be sent to all tasks
        (timedelta(hours=10), 1 << 50, timedelta(milliseconds=36)),
        # little in a year: no longer than a clock may be set back
        (timedelta(days=365), 32 << 20, LONGEST),
    ],
)
def test_a_slice_has_little_of_the_store(extent: timedelta, size: int, width: timedelta) -> None:
    assert width_of(extent, size) == width
