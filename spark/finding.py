"""A finding of a check or of a book, and text from the wire or a book, fit for a page or a table (S7)."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark.schemas import FINDING

#: Categories of Unicode: control, format, surrogate, ends of lines and of paragraphs.
_UNSEEN: Final = ("Cc", "Cf", "Cs", "Zl", "Zp")
#: What a finding may be about, as columns of its rows.
HALF: Final = ("txn_id", "half_id", "address")
DELIVERY: Final = (*HALF, "consumer_group")
#: Characters of a key, or of a compared value, in a finding.
LONGEST_SHOWN: Final = 500


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One finding, as :data:`spark.schemas.FINDING` has it."""

    kind: str
    severity: str
    txn_id: str | None = None
    half_id: int | None = None
    address: str | None = None
    consumer_group: str | None = None
    key: str | None = None
    seen_at: datetime
    detail: str
    suggested_repair: str


@dataclass(frozen=True, kw_only=True)
class Case:
    """When a row is a finding, and what is said of it; ``about``: which columns of the row tell what it is about, or
    what tells it instead."""

    kind: Column | str
    severity: Column | str
    where: Column
    about: Sequence[str] | Mapping[str, Column] = ()
    detail: Column
    suggested_repair: Column | str

    def finding(self, seen_at: datetime, key: Column) -> Column:
        """The finding (:data:`spark.schemas.FINDING`) of a row; null if it is none."""
        told = self.about if isinstance(self.about, Mapping) else {name: f.col(name) for name in self.about}
        columns = {
            "kind": self.kind,
            "severity": self.severity,
            **{name: told.get(name, f.lit(None)) for name in DELIVERY},
            "key": key,
            "seen_at": f.lit(seen_at),
            "detail": self.detail,
            "suggested_repair": self.suggested_repair,
        }
        typed = [
            (f.lit(value) if isinstance(value, str) else value).cast(FINDING[name].dataType).alias(name)
            for name, value in columns.items()
        ]
        return f.when(self.where, f.struct(*typed))


def findings(rows: DataFrame, seen_at: datetime, *cases: Case) -> DataFrame:
    """What ``rows`` are by ``cases``, in one pass: a finding for each case that holds; with the ``key`` of its row,
    where rows have one."""
    key = shown(f.col("key")) if "key" in rows.columns else f.lit(None)
    found = f.array_compact(f.array(*(case.finding(seen_at, key) for case in cases)))
    return rows.select(f.explode(found).alias("found")).select("found.*")


def shown(text: Column) -> Column:
    """``text``, or its beginning: a message, or a row, has up to 100 MiB, and a report has 100,000 findings."""
    beginning = f.format_string("%s... (%d characters)", f.substring(text, 1, LONGEST_SHOWN), f.length(text))
    return f.when(f.length(text) > LONGEST_SHOWN, beginning).otherwise(text)


def readable(name: str | None, missing: str, longest: int = 60) -> str:
    """A name from the wire, fit for a page: control characters shown as a box, and not longer than a line."""
    if name is None:
        return missing
    if name == "":
        return "(default)"
    clean = visible(name)
    return clean if len(clean) <= longest else f"{clean[: longest - 1]}…"


def visible(text: str) -> str:
    """``text`` with a box for each control character, and for each that turns the direction of what follows, or that is
    not seen."""
    if text.isprintable():
        return text
    return "".join("\ufffd" if unicodedata.category(each) in _UNSEEN else each for each in text)
