"""What the checks find in rows that were made in memory."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from spark.period import Period
from tests.fix_store_rows import NOW, StoreRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.finding import Finding

ALL = Period()
#: When what is planted happens.
AT = NOW - timedelta(hours=3)


def all_findings(rows: StoreRows, spark: SparkSession, *, small: bool = True, period: Period = ALL) -> list[Finding]:
    from spark import ledger
    from spark.directory import Directory
    from spark.survey import Survey, Tables, keeping

    _plan_for(spark, small=small)
    frames = rows.frames(spark)
    tables = Tables(
        stated=ledger.states(frames["half"], ledger.decisions(frames["op"]), period),
        op=frames["op"],
        entry=frames["entry"],
        directory=Directory.of(rows.rows, NOW),
        small=small,
    )
    with keeping() as keep:
        survey = Survey(spark, tables, period=period, seen_at=NOW, width=timedelta(minutes=1), keep=keep, steps=Quiet())
        found = list(survey.findings())
    _plan_for(spark, small=True)
    return found


def _plan_for(spark: SparkSession, *, small: bool) -> None:
    """As a run does (:mod:`spark.reconcile`): what is large is compiled, and planned again on its way."""
    spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN" if small else "FALLBACK")
    spark.conf.set("spark.sql.adaptive.enabled", str(not small).lower())


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
