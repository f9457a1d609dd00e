"""What the checks find in rows that were made in memory."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from spark.period import Period
from tests.fix_store_rows import NOW, StoreRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.finding import Finding
    from spark.metrics import Metrics

ALL = Period()
#: When what is planted happens.
AT = NOW - timedelta(hours=3)


def all_findings(
    rows: StoreRows, spark: SparkSession, *, slices: timedelta | None = None, period: Period = ALL
) -> list[Finding]:
    """``slices``: how long those of a large store are, in which no id may be twice; None: as of a small one."""
    found, _ = surveyed(rows, spark, slices=slices, period=period)
    return found


def surveyed(
    rows: StoreRows, spark: SparkSession, *, slices: timedelta | None, period: Period = ALL
) -> tuple[list[Finding], Metrics]:
    """All findings, and the numbers of the report."""
    from spark import ledger
    from spark.directory import Directory
    from spark.keeping import keeping
    from spark.slices import Weigher
    from spark.survey import Survey, Tables

    frames = rows.frames(spark)
    halves = ledger.halves(frames["half"], period)
    tables = Tables(
        halves=halves,
        stated=ledger.states(halves, ledger.decisions(frames["op"]), period),
        op=frames["op"],
        entry=frames["entry"],
        directory=Directory.of(rows.rows, NOW),
        weigher=None if slices is None else Weigher(width=slices, seed=1, period=period),
        small=slices is None,
    )
    with keeping() as keep:
        survey = Survey(spark, tables, period=period, seen_at=NOW, width=timedelta(minutes=1), keep=keep, steps=Quiet())
        found = list(survey.findings())
        return found, survey.metrics()


class Quiet:
    """A run that tells nothing."""

    def stage(self, name: str) -> None:
        pass

    def rows(self, count: int) -> None:
        pass

    def warn(self, text: str) -> None:
        pass


def own_queue(rows: StoreRows, name: str) -> tuple[int, int]:
    """A queue of the plant's own, so that what it does to the sums of its hour is known; with its group."""
    address = rows.address(name)
    return address, rows.groups_of(address, NOW)[0]
