"""Open a book's data, check it against its description, and make its keys comparable."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from spark.books.description import BookError, Description
from spark.books.loading import MOMENT, WITHOUT_ZONE, load, reason
from spark.finding import shown
from spark.period import BEGINNING, END, Period


@dataclass(frozen=True, kw_only=True)
class Book:
    """A book that can be read.

    ``rows``: ``key`` (text), ``problem`` (``kind:detail`` of a finding, or null), ``at`` (null: it is of no period),
    ``unclear`` (the reason for that, else null), ``without_zone`` (it was assumed to be UTC), ``state`` (one of the
    description's, or ``open``), ``says`` (the columns that the description shows, or null), and for each compared
    pair ``compared_<n>``, of the Spark type ``types[n]``.
    ``behind``: how long before the store the book was read. Later messages may have no row yet.
    ``together``: the rows that findings about all rows together are about; None: ``rows``.
    """

    description: Description
    rows: DataFrame
    types: tuple[DataType, ...]
    behind: timedelta = timedelta(0)
    together: DataFrame | None = None

    def settled(self, seen_at: datetime) -> datetime:
        """Return the time after which nothing in the store is judged, if a run read it at ``seen_at`` (R25)."""
        return seen_at - self.behind - self.description.grace

    @property
    def name(self) -> str:
        return self.description.name

    @property
    def all_rows(self) -> DataFrame:
        return self.rows if self.together is None else self.together


def usable() -> Column:
    """Return the condition that a row, or a message (:func:`spark.picking.pick`), can be compared."""
    return f.col("problem").isNull() & f.col("key").isNotNull()


def says() -> Column:
    """Return what the row of a finding says, in brackets, or an empty string."""
    return f.coalesce(f.concat(f.lit(" ("), f.col("says"), f.lit(")")), f.lit(""))


def judged_row(period: Period) -> Column:
    """Return the condition that a row is of the period."""
    return (f.col("at") >= f.lit(period.since)) & (f.col("at") < f.lit(period.until))


def open_book(spark: SparkSession, description: Description) -> Book:
    """Open a book, and check that its data has the columns and types that its description names.

    :raises BookError: with the book and the column.
    """
    data, written = load(spark, description)
    types = {field.name: field.dataType for field in data.schema.fields if field.name not in (MOMENT, WITHOUT_ZONE)}
    _check_columns(description, types)
    if written is not None:
        _check_columns(description, {field.name: field.dataType for field in written.schema.fields})
        for setting in description.states.values():
            _condition(description, written, setting, getattr(description, setting))
    holds = {
        state: _condition(description, data, setting, getattr(description, setting))
        for state, setting in description.states.items()
    }
    several = sum((condition.cast("int") for condition in holds.values()), f.lit(0)) > 1
    state = f.lit("open")
    for name, condition in holds.items():
        state = f.when(condition, name).otherwise(state)
    column, key_type = f.col(f"`{description.key}`"), types[description.key]
    compared = [f"compared_{place}" for place in range(len(description.equal))]
    # from here on all columns have our own names, whatever the names in the book
    named = data.select(
        _book_key(column, key_type, description).alias("key"),
        column.alias("written_key"),
        f.when((f.col(MOMENT) >= f.lit(BEGINNING)) & (f.col(MOMENT) < f.lit(END)), f.col(MOMENT)).alias("at"),
        f.col(f"`{description.time}`").cast("string").alias("written_time"),
        f.col(MOMENT).isNotNull().alias("is_time"),
        f.col(WITHOUT_ZONE).alias("without_zone"),
        state.alias("state"),
        several.alias("several"),
        _said(description, types).alias("says"),
        *(f.col(f"`{pair.column}`").alias(name) for pair, name in zip(description.equal, compared, strict=True)),
    )
    problem = f.coalesce(
        _key_problem(key_type, description),
        f.when(f.col("several"), f.lit(f"unclear-row:both {' and '.join(description.states.values())} hold")),
    )
    time = shown(f.col("written_time"))
    no_store = f.lit(f"; a store has times from {BEGINNING:%Y-%m-%d} to {END:%Y-%m-%d}")
    unclear = f.concat(
        f.lit(f"{description.time} is "),
        f.when(f.col("is_time"), f.concat(time, no_store)).otherwise(
            f.coalesce(f.concat(time, f.lit(", which is no time")), f.lit("null"))
        ),
    )
    rows = named.select(
        "key",
        problem.alias("problem"),
        "at",
        f.when(f.col("at").isNull(), unclear).alias("unclear"),
        "without_zone",
        "state",
        "says",
        *compared,
    )
    return Book(description=description, rows=rows, types=tuple(types[pair.column] for pair in description.equal))


def _said(description: Description, types: dict[str, DataType]) -> Column:
    """Return the columns that a finding shows, with their names; null if there are none."""
    if not description.show:
        return f.lit(None).cast("string")
    texts = {
        name: f.hex(f"`{name}`") if isinstance(types[name], BinaryType) else f.col(f"`{name}`").cast("string")
        for name in description.show
    }
    said = (f.concat(f.lit(f"{name} "), f.coalesce(shown(text), f.lit("null"))) for name, text in texts.items())
    return f.concat_ws(", ", *said)


def _check_columns(description: Description, types: dict[str, DataType]) -> None:
    name = description.name
    for setting, column in (
        ("key", description.key),
        ("time", description.time),
        *((f"equal[{place}].column", pair.column) for place, pair in enumerate(description.equal)),
        *((f"show[{place}]", column) for place, column in enumerate(description.show)),
    ):
        if column not in types:
            raise BookError(f"book {name}: {setting}: there is no column {column!r}; there are {', '.join(types)}")
    for place, pair in enumerate(description.equal):
        if not _has_order(types[pair.column]):
            raise BookError(
                f"book {name}: equal[{place}].column: column {pair.column!r} is"
                f" {types[pair.column].simpleString()}, which cannot be compared"
            )
    key_type, time_type = types[description.key], types[description.time]
    if not isinstance(key_type, StringType | IntegralType | DecimalType | BinaryType):
        raise BookError(
            f"book {name}: key: column {description.key!r} is {key_type.simpleString()},"
            " expected text or a whole number"
        )
    if not isinstance(time_type, TimestampType | TimestampNTZType | DateType | StringType):
        raise BookError(
            f"book {name}: time: column {description.time!r} is {time_type.simpleString()}, expected a timestamp"
        )


def _has_order(of_type: DataType) -> bool:
    """Return whether values of the type, and the values inside them, can be compared."""
    if isinstance(of_type, ArrayType):
        return _has_order(of_type.elementType)
    if isinstance(of_type, StructType):
        return all(_has_order(field.dataType) for field in of_type)
    return not isinstance(of_type, MapType | VariantType)


def _condition(description: Description, data: DataFrame, setting: str, expression: str) -> Column:
    """Return the condition of a description's SQL expression; null is false."""
    which = f"book {description.name}: {setting}: {expression!r}"
    try:
        condition = f.expr(expression)
        found = data.select(condition.alias("c")).schema["c"].dataType
        if not isinstance(found, BooleanType):
            raise BookError(f"{which} is {found.simpleString()}, expected true or false")
        holds = f.coalesce(condition, f.lit(False))
        # Spark does not allow an aggregate next to plain columns
        data.select("*", holds)
    except PySparkException as error:
        of_all = error.getCondition() == "MISSING_GROUP_BY"
        said = "it is of all rows together, as count and sum are; expected true or false of each" if of_all else None
        raise BookError(f"{which}: {said or reason(error)}") from None
    return holds


_UUID_TEXT: Final = r"^\s*\{?[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}\}?\s*$"


def _is_uuid_text(text: Column) -> Column:
    """Return the condition that text is a UUID in the store's form. It takes a fifth of a regular expression's time."""
    hyphens = reduce(Column.__and__, (f.substring(text, place, 1) == "-" for place in (9, 14, 19, 24)))
    digits = f.replace(text, f.lit("-"), f.lit(""))
    are_digits = (f.length(digits) == 32) & f.unhex(digits).isNotNull()
    return (f.length(text) == 36) & hyphens & (f.lower(text) == text) & are_digits


def _uuid_text(hexadecimal: Column) -> Column:
    """Convert 32 hexadecimal digits to the store's form of a UUID."""
    digits = f.lower(hexadecimal)
    return f.regexp_replace(digits, r"^(.{8})(.{4})(.{4})(.{4})(.{12})$", "$1-$2-$3-$4-$5")


def _book_key(column: Column, key_type: DataType, description: Description) -> Column:
    """Return the key as text, or null."""
    if description.by_txn_id:
        if isinstance(key_type, BinaryType):
            return f.when(f.length(column) == 16, _uuid_text(f.hex(column)))
        text = column.cast("string")
        other = _uuid_text(f.regexp_replace(text, r"[^0-9a-fA-F]", ""))
        return f.when(_is_uuid_text(text), text).when(text.rlike(_UUID_TEXT), other)
    if isinstance(key_type, BinaryType):
        return f.try_validate_utf8(column)
    # whole numbers of any width, and text as it is
    text = column.cast("string")
    return f.regexp_replace(text, r"\.0+$", "") if isinstance(key_type, DecimalType) else text


def _key_problem(key_type: DataType, description: Description) -> Column:
    """Return what is wrong with the ``key`` of ``written_key`` (``kind:detail``), or null."""
    column = f.col("written_key")
    missing = f.when(column.isNull(), f.lit(f"null-key:{description.key} is null"))
    no_key = f.lit("unparsable-key:octets that are no text")
    if description.by_txn_id:
        shown = f.hex(column) if isinstance(key_type, BinaryType) else column.cast("string")
        no_key = f.concat(f.lit("unparsable-key:no txn-id: "), f.substring(shown, 1, 100))
    return missing.when(f.col("key").isNull(), no_key)
