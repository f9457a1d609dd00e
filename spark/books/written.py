"""Parse the text in a cell: numbers with the separators of ``locale``, and moments with their zone."""

from __future__ import annotations

import re
from typing import Final

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, DecimalType, TimestampType

from spark.books.description import BookError, Description

#: The least digits after the point of compared numbers, if they fit.
FRACTION: Final = 18
#: The most octets of a number: the time to parse it grows with their square.
LONGEST: Final = 4096
#: What Java leaves out around a number. What is repeated is not given back (+ behind it), here and below: a text that
#: is no number is left in a time that its length accounts for.
_SPACE: Final = r"[\x00-\x20]*+"
_ZERO: Final = rf"^{_SPACE}[+-]?(0++(\.0*+)?|\.0++)[eE][+-]?\d++{_SPACE}\z"
#: Of four digits or more, in any script.
_LARGE_EXPONENT: Final = rf"^[^eE]*+[eE][+-]?0*+[^0+\-\x00-\x20][^\x00-\x20]{{3,}}+{_SPACE}\z"
_WITHOUT_ZONE: Final = r"^\s*[+-]?\d{4,6}-\d{1,2}-\d{1,2}([ T]\d{1,2}:\d{1,2}(:\d{1,2}(\.\d*)?)?)?\s*$"
#: Of three letters, as several zones have: for Spark BST is Dhaka, and CST Chicago.
_SHORT_ZONE: Final = "(?!UTC|GMT)[A-Za-z]{3}"
_IN_SHORT_ZONE: Final = rf"(?<![A-Za-z0-9])\d++\.?\s*{_SHORT_ZONE}\s*$"
_SEVERAL_ZONES: Final = "three letters are the name of several zones: write +01:00 or Europe/London"
#: The letters of a pattern that stand for a zone.
_ZONE_LETTERS: Final = re.compile("[VzOXxZ]")


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
    """Return how many digits ``number`` (:func:`as_number`) has behind its point if written without an exponent.

    Zeros at the end do not count."""
    digits = f.length(f.regexp_extract(number, rf"\.(\d*[1-9])?0*([eE][+-]?\d+)?{_SPACE}\z", 1))
    exponent = f.regexp_extract(number, rf"[eE]([+-]?\d+){_SPACE}\z", 1).try_cast("int")
    zeros = f.length(f.regexp_extract(number, r"(?<!0)(0*+)(\.0*+)?[eE]", 1))
    moved = f.greatest(f.when(digits > 0, digits).otherwise(-zeros) - exponent, f.lit(0))
    return f.when(number.contains("e") | number.contains("E"), moved).otherwise(digits)


def value(description: Description, text: Column, data_type: DataType) -> Column:
    """Return the value of ``text``, or null."""
    if isinstance(data_type, TimestampType):
        return moment(description, text)
    return (number(description, text) if isinstance(data_type, DecimalType) else text).try_cast(data_type)


def number(description: Description, text: Column) -> Column:
    """Return the number as SQL writes it, or null. With ``locale`` it has the separators of that, or none between
    thousands.

    A number of JSON's own has a point in each locale; what may be one or the other (1.014, a thousand to some) is none.
    """
    locale = description.option("locale")
    if locale is None:
        return as_number(text)
    java = SparkSession.active()._jvm.java  # type: ignore[union-attr]
    symbols = java.text.DecimalFormatSymbols.getInstance(java.util.Locale.forLanguageTag(locale))
    between, point = symbols.getGroupingSeparator(), symbols.getDecimalSeparator()
    rest = rf"({re.escape(point)}\d*+)?([eE][+-]?\d++)?\s*$"
    in_groups = rf"^\s*[+-]?\d{{1,3}}({re.escape(between)}\d{{2,3}})*{re.escape(between)}\d{{3}}{rest}"
    digits = f.when(text.rlike(rf"^\s*[+-]?\d*+{rest}"), text)
    digits = digits.when(text.rlike(in_groups), f.replace(text, f.lit(between), f.lit("")))
    local = f.replace(digits, f.lit(point), f.lit("."))
    if description.format == "json":
        own = f.when(text.rlike(r"^-?\d++(\.\d++)?([eE][+-]?\d++)?$"), text)
        local = f.when(local.isNull(), own).when(own.isNull() | (own == local), local)
    return as_number(local)


def moment(description: Description, text: Column) -> Column:
    """Return the moment of ``text``, or null.

    Spark would read a time without a date as one of today, and a number as a year; 20261128 may be a date, and is not
    read as seconds since 1970."""
    seconds = f.when(text.rlike(r"^\s*-?\d{9,11}\s*$"), f.timestamp_seconds(text.try_cast("bigint")))
    is_one = text.rlike(r"^\s*[+-]?\d{4,6}-\d") & ~text.rlike(_IN_SHORT_ZONE)
    return seconds.when(is_one, in_its_zone(description, text.try_cast("timestamp"), text.rlike(_WITHOUT_ZONE)))


def without_zone(text: Column) -> Column:
    """Return the condition that the time is written without a zone."""
    return f.coalesce(text.rlike(_WITHOUT_ZONE), f.lit(False))


def in_its_zone(description: Description, at: Column, without: Column) -> Column:
    """Convert ``at`` from the zone ``timeZone`` where it is ``without`` a zone and was assumed to be UTC."""
    zone = zone_of(description)
    return at if zone is None else f.when(without, f.to_utc_timestamp(at, f.lit(zone))).otherwise(at)


def zone_of(description: Description) -> str | None:
    """Return the option ``timeZone``, the zone of times without one.

    :raises BookError: it is the name of several zones.
    """
    zone = description.option("timezone")
    if zone is not None and re.fullmatch(_SHORT_ZONE, zone.strip()):
        raise BookError(f"book {description.name}: options.timeZone: {zone}: {_SEVERAL_ZONES}")
    return zone


def pattern_without_zone(description: Description, pattern: str) -> bool:
    """Return whether times written in ``pattern``, the option ``timestampFormat``, have no zone.

    :raises BookError: the zone is optional in it, or a name of several zones.
    """
    which, letters = f"book {description.name}: options.timestampFormat: {pattern}", re.sub("'[^']*'", "", pattern)
    if re.search("(?<!z)z{1,3}(?!z)", letters):
        raise BookError(f"{which}: {_SEVERAL_ZONES}")
    if _ZONE_LETTERS.search(re.sub(r"\[[^]]*\]", "", letters)):
        return False
    if _ZONE_LETTERS.search(letters) and zone_of(description) is None:
        raise BookError(f"{which}: of a time without its zone options.timeZone has to say which it is")
    return True


def why_none(text: str, data_type: DataType) -> str:
    """Return a hint why a text is no value of this type, or an empty string."""
    short = isinstance(data_type, TimestampType) and re.search(_IN_SHORT_ZONE, text)
    return f"; {_SEVERAL_ZONES}" if short else ""
