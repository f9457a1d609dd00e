"""Frames that are computed once, rows of theirs in the driver, and jobs of Spark beside the one in hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkTypeError, UnsupportedOperationException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.storagelevel import StorageLevel

#: On disk: a run must not need memory for the store's size.
_KEPT: Final = StorageLevel.DISK_ONLY
#: As many rows are brought to the driver at once; more come one task after the other.
_MOST_AT_ONCE: Final = 100_000
#: A frame whose rows have no more octets, as text and with what each takes besides, comes to the driver.
MOST_NEAR: Final = 4 << 20
_EACH: Final = 100

#: Computes a frame once and keeps it on disk.
Keep = Callable[[DataFrame], DataFrame]


@contextmanager
def keeping() -> Iterator[Keep]:
    """Provide a function that keeps frames until the block ends."""
    with ExitStack() as kept:

        def keep(frame: DataFrame) -> DataFrame:
            stored = frame.persist(_KEPT)
            kept.callback(stored.unpersist)
            return stored

        yield keep


def near(frame: DataFrame, keep: Keep) -> DataFrame:
    """Compute and keep ``frame``, so that its size is known when joins are planned.

    If it is small its rows are moved to the driver: later plans contain these rows, instead of the whole plan that led
    to them; such plans are long, and many of them take seconds.
    """
    kept = keep(frame)
    rows = kept.count()
    if rows * _EACH > MOST_NEAR:
        return kept
    octets = kept.agg(f.sum(f.octet_length(f.struct("*").cast("string")))).collect()[0][0] or 0
    if octets + rows * _EACH > MOST_NEAR:
        return kept
    try:
        found = frame.sparkSession.createDataFrame(kept.toArrow(), kept.schema)
    except (PySparkTypeError, UnsupportedOperationException, pa.ArrowException, OSError):
        # Arrow knows no intervals of months, which a book may have; a file for what is large is PySpark's own
        return kept
    kept.unpersist()
    return found


def brought(frame: DataFrame, count: int, keep: Keep) -> Iterable[Row]:
    """Return the rows of ``frame`` in the driver: all at once if ``count``, about their number, is not too large."""
    return frame.collect() if count <= _MOST_AT_ONCE else keep(frame).toLocalIterator()


@contextmanager
def job_threads(spark: SparkSession, most: int) -> Iterator[ThreadPoolExecutor]:
    """Provide ``most`` threads that wait for jobs of Spark.

    While one job is planned and compiled, or its last tasks run, the others use the processors. If the block ends by an
    error, all jobs are cancelled without waiting.

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
