"""A book's data: opened, checked against its description, and its keys made comparable."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark.books.description import BookError, Description


@dataclass(frozen=True, kw_only=True)
class Book:
    """A book that can be read.

    ``rows``: ``key`` (text), ``problem`` (``kind:detail`` of a finding, or null), ``at``, ``state`` (one of the
    description's, or ``open``), and for each compared pair ``compared_<n>``, of the Spark type ``types[n]``.
    ``behind``: how long before the store they began to be read. What happened since may have no row yet.
    """

    description: Description
    rows: DataFrame
    types: tuple[DataType, ...]
    behind: timedelta = timedelta(0)

    def settled(self, seen_at: datetime) -> datetime:
        """Nothing younger in the store is judged, of a run that read it at ``seen_at`` (R25)."""
        return seen_at - self.behind - self.description.grace

    @property
    def name(self) -> str:
        return self.description.name


def open_book(spark: SparkSession, description: Description) -> Book:
    """Check that the book's data is there, with the columns and types that its description names.

    :raises BookError: names the book and the column.
    """
    data = _loaded(spark, description)
    types = {field.name: field.dataType for field in data.schema.fields}
    _check_columns(description, types)
    holds = {
        state: _condition(description, data, setting, getattr(description, setting))
        for state, setting in description.states.items()
    }
    several = sum((condition.cast("int") for condition in holds.values()), f.lit(0)) > 1
    state = f.lit("open")
    for name, condition in holds.items():
        state = f.when(condition, name).otherwise(state)
    key, problem = _book_key(f.col(f"`{description.key}`"), types[description.key], description)
    at = f.col(f"`{description.time}`").try_cast("timestamp")
    rows = data.select(
        key.alias("key"),
        f.when(problem.isNotNull(), problem)
        .when(at.isNull(), f.concat(f.lit("unclear-row:"), f.lit(f"{description.time} is null or no time")))
        .when(several, f"unclear-row:both {' and '.join(description.states.values())} hold")
        .alias("problem"),
        at.alias("at"),
        state.alias("state"),
        *(f.col(f"`{pair.column}`").alias(f"compared_{place}") for place, pair in enumerate(description.equal)),
    )
    return Book(description=description, rows=rows, types=tuple(types[pair.column] for pair in description.equal))


def _loaded(spark: SparkSession, description: Description) -> DataFrame:
    defaults = {"header": "true", "mode": "FAILFAST"} if description.format == "csv" else {}
    try:
        reader = spark.read.format(description.format).options(**{**defaults, **description.options})
        if description.columns is not None:
            reader = reader.schema(description.columns)
        return reader.load()
    except (PySparkException, Py4JJavaError) as error:
        raise BookError(f"book {description.name}: cannot be read: {_first_line(error)}") from None


def _check_columns(description: Description, types: dict[str, DataType]) -> None:
    name = description.name
    for setting, column in (
        ("key", description.key),
        ("time", description.time),
        *((f"equal[{place}].column", pair.column) for place, pair in enumerate(description.equal)),
    ):
        if column not in types:
            raise BookError(f"book {name}: {setting}: there is no column {column!r}; there are {', '.join(types)}")
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


def _condition(description: Description, data: DataFrame, setting: str, expression: str) -> Column:
    """The description's SQL expression, false where it is null."""
    try:
        condition = f.expr(expression)
        found = data.select(condition.alias("c")).schema["c"].dataType
    except PySparkException as error:
        raise BookError(f"book {description.name}: {setting}: {expression!r}: {_first_line(error)}") from None
    if not isinstance(found, BooleanType):
        raise BookError(
            f"book {description.name}: {setting}: {expression!r} is {found.simpleString()}, expected true or false"
        )
    return f.coalesce(condition, f.lit(False))


def _first_line(error: PySparkException | Py4JJavaError) -> str:
    text = str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else str(error)
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")[:500]


#: Spark numbers the rows of each task from a multiple of this on.
_ROWS_OF_FIRST_TASK: Final = 1 << 33


def unreadable(description: Description, error: PySparkException | Py4JJavaError) -> BookError:
    """Why the rows of a book cannot be read: in a CSV with ``columns``, by the first cell that is not of its type."""
    try:
        cell = _bad_cell(description) if description.format == "csv" and description.columns is not None else None
    except (PySparkException, Py4JJavaError):
        # no cell is at fault: the file is missing, or is no CSV
        cell = None
    return BookError(f"book {description.name}: {cell or f'cannot be read: {_first_line(error)}'}")


def _bad_cell(description: Description) -> str | None:
    """The first value of a CSV that cannot be what ``columns`` says; None: it is something else."""
    spark = SparkSession.active()
    assert description.columns is not None
    types = spark.createDataFrame([], description.columns).schema
    text = StructType([StructField(field.name, StringType()) for field in types])
    options = {"header": "true", **description.options, "mode": "PERMISSIVE"}
    formatted = any(name.lower().endswith("format") for name in options)
    rows = spark.read.format("csv").options(**options).schema(text).load()
    rows = rows.withColumn("_row", f.monotonically_increasing_id())
    bad = [
        f.when(
            f.col(f"`{field.name}`").isNotNull() & f.col(f"`{field.name}`").try_cast(field.dataType).isNull(),
            f.struct(f.lit(field.name).alias("column"), f.col(f"`{field.name}`").alias("value")),
        )
        for field in types
        if not (formatted and isinstance(field.dataType, DateType | TimestampType | TimestampNTZType))
    ]
    kind = {field.name: field.dataType.simpleString() for field in types}
    found = rows.select("_row", f.coalesce(*bad).alias("bad")).where("bad is not null").orderBy("_row").first()
    if found is None:
        return None
    column, value = found["bad"]["column"], str(found["bad"]["value"])[:100]
    row = f"row {found['_row'] + 1}, " if found["_row"] < _ROWS_OF_FIRST_TASK else ""
    return f"{row}column {column!r}: {value!r} is no {kind[column]}"


_UUID_TEXT: Final = r"^\s*\{?[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}\}?\s*$"


def _uuid_text(hexadecimal: Column) -> Column:
    """32 hexadecimal digits as the store shows a UUID."""
    digits = f.lower(hexadecimal)
    return f.regexp_replace(digits, r"^(.{8})(.{4})(.{4})(.{4})(.{12})$", "$1-$2-$3-$4-$5")


def _book_key(column: Column, key_type: DataType, description: Description) -> tuple[Column, Column]:
    """The key as text, and what is wrong with it (``kind:detail``) or null."""
    missing = f.when(column.isNull(), f"null-key:{description.key} is null")
    if description.by_txn_id:
        if isinstance(key_type, BinaryType):
            good = f.length(column) == 16
            key = _uuid_text(f.hex(column))
        else:
            text = column.cast("string")
            good = text.rlike(_UUID_TEXT)
            key = _uuid_text(f.regexp_replace(text, r"[^0-9a-fA-F]", ""))
        shown = f.hex(column) if isinstance(key_type, BinaryType) else column.cast("string")
        problem = missing.when(~good, f.concat(f.lit("unparsable-key:no txn-id: "), f.substring(shown, 1, 100)))
        return f.when(good, key), problem
    if isinstance(key_type, BinaryType):
        text = f.try_validate_utf8(column)
        return text, missing.when(text.isNull(), f.lit("unparsable-key:octets that are no text"))
    # whole numbers of any width, and text as it is
    key = (
        f.regexp_replace(column.cast("string"), r"\.0+$", "")
        if isinstance(key_type, DecimalType)
        else column.cast("string")
    )
    return key, missing.otherwise(f.lit(None).cast("string"))
