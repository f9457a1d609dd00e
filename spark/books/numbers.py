"""Decimal numbers that are written as text."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as f

#: Digits after the point of the numbers that are compared, at least, where there is room for them.
FRACTION: Final = 18


def as_number(text: Column) -> Column:
    """``text``, or null where its exponent has four digits or more: Spark would write out the number, and a client may
    have sent ``1e-100000000``."""
    with_exponent = text.contains("e") | text.contains("E")
    return f.when(~(with_exponent & text.rlike(r"[eE][+-]?0*[1-9]\d{3,}\s*$")), text)


def digits_behind_point(text: Column) -> Column:
    """How many digits ``text`` has behind its point, without zeros at the end; 0 where it has an exponent."""
    return f.length(f.regexp_extract(text, r"\.(\d*[1-9])?0*\s*$", 1))
