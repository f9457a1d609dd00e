"""Frames that are computed once, and rows of theirs in the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from pyspark.errors import PySparkTypeError
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f
from pyspark.storagelevel import StorageLevel

#: On disk: a run must not need memory for the store's size.
_KEPT: Final = StorageLevel.DISK_ONLY
#: As many rows are brought to the driver at once; more come one task after the other.
_MOST_AT_ONCE: Final = 100_000
#: Octets, or so, of the rows of a frame that come to the driver.
MOST_NEAR: Final = 4 << 20

#: Has a frame computed once and kept on disk.
Keep = Callable[[DataFrame], DataFrame]


@contextmanager
def keeping() -> Iterator[Keep]:
    """What is kept during the block is given up after it."""
    with ExitStack() as kept:

        def keep(frame: DataFrame) -> DataFrame:
            stored = frame.persist(_KEPT)
            kept.callback(stored.unpersist)
            return stored

        yield keep


def near(frame: DataFrame, keep: Keep) -> DataFrame:
    """``frame``, computed and kept; or, where it is small, with its rows in the driver, so that what is made of it has
    no more than them in its plan: many plans of a long one take seconds to make."""
    kept = keep(frame)
    octets = kept.agg(f.sum(f.length(f.struct("*").cast("string")))).collect()[0][0]
    if (octets or 0) > MOST_NEAR:
        return kept
    try:
        return frame.sparkSession.createDataFrame(kept.toArrow(), kept.schema)
    except PySparkTypeError:  # Arrow knows no intervals of months, which a book may have
        return kept


def brought(frame: DataFrame, count: int, keep: Keep) -> Iterable[Row]:
    """The rows of ``frame`` in the driver, at once where ``count``, about as many as there are, is not too much."""
    return frame.collect() if count <= _MOST_AT_ONCE else keep(frame).toLocalIterator()
