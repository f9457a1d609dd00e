"""Spark's jobs beside the one in hand: while one is planned and compiled, or its last tasks run, the others have the
processors.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def aside(spark: SparkSession, most: int) -> Iterator[ThreadPoolExecutor]:
    """So many threads that wait for jobs. Where the block ends by an error, none is waited for: its jobs are cancelled.

    Frames are made in the main thread: a text in a plan that is made in another has the time zone of the machine.
    """
    threads = ThreadPoolExecutor(most)
    try:
        yield threads
    except BaseException:
        with suppress(Py4JError, OSError):  # Java may be gone
            spark.sparkContext.cancelAllJobs()
        threads.shutdown(wait=False, cancel_futures=True)
        raise
    threads.shutdown()
