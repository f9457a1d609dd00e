"""Decimal numbers that are written as text."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as f

#: Digits after the point of the numbers that are compared, at least, where there is room for them.
FRACTION: Final = 18
#: Octets of a number: reading more takes time by their square.
LONGEST: Final = 4096
#: What Java leaves out around a number. What is repeated is not given back (+ behind it), here and below: a text that
#: is no number is left in a time that its length accounts for.
_SPACE: Final = r"[\x00-\x20]*+"
_ZERO: Final = rf"^{_SPACE}[+-]?(0++(\.0*+)?|\.0++)[eE][+-]?\d++{_SPACE}\z"
#: Of four digits or more, in any script.
_LARGE_EXPONENT: Final = rf"^[^eE]*+[eE][+-]?0*+[^0+\-\x00-\x20][^\x00-\x20]{{3,}}+{_SPACE}\z"


def as_number(text: Column) -> Column:
    """``text``, or null where Spark would take long to read it, of octets beyond :data:`LONGEST`, or to write out the
    number, of an exponent of four digits or more: a client may have sent ``1e-100000000``. Zero has no exponent."""
    is_short = f.octet_length(text) <= LONGEST
    with_exponent = text.contains("e") | text.contains("E")
    return (
        f.when(is_short & ~with_exponent, text)
        .when(is_short & text.rlike(_ZERO), f.lit("0"))
        .when(is_short & ~text.rlike(_LARGE_EXPONENT), text)
    )


def digits_behind_point(number: Column) -> Column:
    """How many digits ``number`` (:func:`as_number`) has behind its point, without zeros at the end, once it is written
    without its exponent."""
    digits = f.length(f.regexp_extract(number, rf"\.(\d*[1-9])?0*([eE][+-]?\d+)?{_SPACE}\z", 1))
    exponent = f.regexp_extract(number, rf"[eE]([+-]?\d+){_SPACE}\z", 1).try_cast("int")
    zeros = f.length(f.regexp_extract(number, r"(?<!0)(0*+)(\.0*+)?[eE]", 1))
    moved = f.greatest(f.when(digits > 0, digits).otherwise(-zeros) - exponent, f.lit(0))
    return f.when(number.contains("e") | number.contains("E"), moved).otherwise(digits)
