"""Define findings of checks and books, and make text from the wire or a book fit for a page or a table (S7)."""

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
#: The columns that name the object of a finding.
HALF: Final = ("txn_id", "half_id", "address")
DELIVERY: Final = (*HALF, "consumer_group")
#: Characters of a key, or of a compared value, in a finding.
LONGEST_SHOWN: Final = 500


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One finding, as :data:`spark.read_back.SCHEMA` has it. ``store``: the name of its store; None: it is of all."""

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
    store: str | None = None


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kind of finding: the condition on a row, and the texts.

    ``about``: the columns of the row that name its object, or the expressions that do instead."""

    kind: Column | str
    severity: Column | str
    where: Column
    about: Sequence[str] | Mapping[str, Column] = ()
    detail: Column
    suggested_repair: Column | str

    def finding(self, seen_at: datetime, key: Column) -> Column:
        """Return the finding (:data:`spark.schemas.FINDING`) of a row; null if the condition is false."""
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
    """Return a finding for each row and case that holds, in one pass; with the ``key`` of its row, if rows have one."""
    key = shown(f.col("key")) if "key" in rows.columns else f.lit(None)
    found = f.array_compact(f.array(*(case.finding(seen_at, key) for case in cases)))
    return rows.select(f.explode(found).alias("found")).select("found.*")


def shown(text: Column) -> Column:
    """Shorten ``text``: a message, or a row, has up to 100 MiB, and a report has 100,000 findings."""
    beginning = f.format_string("%s... (%d characters)", f.substring(text, 1, LONGEST_SHOWN), f.length(text))
    return f.when(f.length(text) > LONGEST_SHOWN, beginning).otherwise(text)


def readable(name: str | None, missing: str, longest: int = 60) -> str:
    """Make a name from the wire fit for a page: with a box for control characters, and not longer than a line."""
    if name is None:
        return missing
    if name == "":
        return "(default)"
    clean = visible(name)
    return clean if len(clean) <= longest else f"{clean[: longest - 1]}…"


def visible(text: str) -> str:
    """Replace control characters, and those that change the direction of text or are invisible, by boxes."""
    if text.isprintable():
        return text
    return "".join("\ufffd" if unicodedata.category(each) in _UNSEEN else each for each in text)
