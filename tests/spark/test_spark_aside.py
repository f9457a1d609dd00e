"""Jobs of Spark beside the one in hand."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from spark.aside import aside
from tests.fix_command import PATIENCE_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.rule("R31")
def test_an_error_waits_for_no_job(spark: SparkSession) -> None:
    context = spark.sparkContext

    def lasts() -> None:
        context.parallelize([1], 1).foreach(lambda _: time.sleep(3600))

    with pytest.raises(ZeroDivisionError), aside(spark, 1) as threads:  # noqa: PT012 - the job runs by then
        job = threads.submit(lasts)
        while not context.statusTracker().getActiveJobsIds():
            time.sleep(0.01)
        raise ZeroDivisionError
    with pytest.raises(Exception, match="cancelled"):
        job.result(PATIENCE_SECONDS)


def test_what_goes_well_is_waited_for(spark: SparkSession) -> None:
    with aside(spark, 2) as threads:
        counts = [threads.submit(spark.range(number).count) for number in (3, 4)]
    assert [count.result(0) for count in counts] == [3, 4]
