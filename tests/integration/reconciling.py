"""A run of the reconciliation in the tests' own Spark, and what it tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark.period import Period
from spark.reconcile import prepare_output, reconcile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from spark.books.description import Description
    from spark.report import Run


class Told:
    """What a run told of itself."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.counts: list[int] = []
        self.warnings: list[str] = []

    def stage(self, name: str) -> None:
        self.stages.append(name)

    def rows(self, count: int) -> None:
        self.counts.append(count)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def run(
    spark: SparkSession,
    url: str,
    out: Path,
    period: Period | None = None,
    books: Sequence[Description] = (),
    told: Told | None = None,
    *,
    inbox: bool = False,
) -> Run:
    prepare_output(out)
    return reconcile(
        spark,
        url=url,
        period=period or Period(),
        books=books,
        inbox=inbox,
        out=out,
        fail_on="warning",
        steps=told or Told(),
        version="1.2.3",
    )
