"""A finding of a check or of a book."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark.schemas import FINDING

#: What a finding may be about, as columns of its rows.
TRANSACTION: Final = ("txn_id", "address")
HALF: Final = ("txn_id", "half_id", "address")
DELIVERY: Final = (*HALF, "consumer_group")
_ABOUT: Final = DELIVERY


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One finding, as :data:`spark.schemas.FINDING` has it."""

    kind: str
    severity: str
    txn_id: str | None = None
    half_id: int | None = None
    address: str | None = None
    consumer_group: str | None = None
    seen_at: datetime
    detail: str
    suggested_repair: str


def finding(
    rows: DataFrame,
    *,
    kind: str,
    severity: str,
    seen_at: datetime,
    about: Sequence[str] = (),
    detail: Column,
    suggested_repair: Column | str,
) -> DataFrame:
    """Each of ``rows`` as a finding (:data:`spark.schemas.FINDING`), with the columns ``about`` of it; those that are
    not named are null."""
    repair = f.lit(suggested_repair) if isinstance(suggested_repair, str) else suggested_repair
    return rows.select(
        f.lit(kind).alias("kind"),
        f.lit(severity).alias("severity"),
        *((f.col(name) if name in about else f.lit(None)).cast(FINDING[name].dataType).alias(name) for name in _ABOUT),
        f.lit(seen_at).alias("seen_at"),
        detail.alias("detail"),
        repair.alias("suggested_repair"),
    )
