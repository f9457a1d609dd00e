"""Frames that are kept, those whose rows the driver has, and jobs of Spark beside the one in hand."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as f

from spark.keeping import MOST_NEAR, job_threads, keeping, near
from tests.fix_command import PATIENCE_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

VALUES = """
select timestamp'0001-01-01 00:00:00' as first, timestamp'9999-12-31 23:59:59.999999' as last,
 timestamp_ntz'2020-03-29 02:30:00' as without_zone, date'1582-10-04' as day, cast('1e20' as decimal(38,17)) as large,
 array('x', null) as texts, struct(1L as id, x'00ff' as octets) as both, cast('NaN' as double) as no_number,
 interval '1' day as apart, cast(null as string) as nothing, -0.0D as below, null as void,
 array(named_struct('at', timestamp'2020-01-01 00:00:00', 'names', map('x', array(1)))) as inside,
 cast(null as struct<at: timestamp>) as missing
"""


def _text(frame: DataFrame) -> list[Row]:
    """As Spark says them: Python would take the first moment for one before its own."""
    return frame.select(f.struct("*").cast("string")).collect()


def _plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().logical().toString())


def test_values_stay_what_they_are(spark: SparkSession) -> None:
    frame = spark.sql(VALUES)
    with keeping() as keep:
        found = near(frame, keep)
        assert (found.schema, _text(found)) == (frame.schema, _text(frame))
        assert "LocalRelation" in _plan(found)


@pytest.mark.parametrize(
    "text",
    [
        "select interval '1' year as apart",
        f"select repeat('ä', {MOST_NEAR // 2}) as text",
        f"select id from range({MOST_NEAR // 100})",
    ],
    ids=["type", "octets", "rows"],
)
def test_what_does_not_come_to_the_driver_is_kept(spark: SparkSession, text: str) -> None:
    frame = spark.sql(text)
    with keeping() as keep:
        found = near(frame, keep)
        assert found.is_cached
        assert "LocalRelation" not in _plan(found)
        assert _text(found) == _text(frame)


def test_none(spark: SparkSession) -> None:
    frame = spark.sql(f"{VALUES} where false")
    with keeping() as keep:
        found = near(frame, keep)
        assert "LocalRelation" in _plan(found)
        assert (found.schema, found.collect()) == (frame.schema, [])


@pytest.mark.rule("R31")
def test_an_error_waits_for_no_job(spark: SparkSession) -> None:
    context = spark.sparkContext

    def lasts() -> None:
        context.parallelize([1], 1).foreach(lambda _: time.sleep(3600))

    with pytest.raises(ZeroDivisionError), job_threads(spark, 1) as threads:  # noqa: PT012 - the job runs by then
        job = threads.submit(lasts)
        while not context.statusTracker().getActiveJobsIds():
            time.sleep(0.01)
        raise ZeroDivisionError
    with pytest.raises(Exception, match="cancelled"):
        job.result(PATIENCE_SECONDS)


def test_what_goes_well_is_waited_for(spark: SparkSession) -> None:
    with job_threads(spark, 2) as threads:
        counts = [threads.submit(spark.range(number).count) for number in (3, 4)]
    assert [count.result(0) for count in counts] == [3, 4]
