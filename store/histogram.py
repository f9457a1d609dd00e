"""Counts of values by range, as Prometheus shows them (H19)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

#: upper ends of the ranges of batches' sizes, in rows, and of the times of their commits, in seconds
BATCH_ROWS = (1, 10, 100, 1000)
COMMIT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Histogram:
    """``ends``: the upper end of each range; values above the last have a range of their own."""

    __slots__ = ("_ends", "counts", "total")

    def __init__(self, ends: Sequence[float]) -> None:
        self._ends = ends
        self.counts = [0] * (len(ends) + 1)
        #: the sum of all values
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self._ends, value)] += 1
        self.total += value
