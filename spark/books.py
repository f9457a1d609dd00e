"""The applications' own books, held against the coordinator's (rules R20 to R23 and R25).

A book is described by a TOML file (docs/how-to/reconcile-with-your-books.md). :func:`describe` checks the file,
:func:`open_book` the data behind it, both before any work; :func:`book_findings` compares.

**Which rows are judged.** A book's row belongs to the period by its ``time``; a message as everywhere
(:mod:`spark.period`). Each is looked for on the other side without regard to the period, so that no edge tears them
apart. Nothing younger than ``grace`` is reported.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Annotated, Final

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark.checks import finding
from spark.messages import MessageUnreadable, Selector, decode, selector
from spark.period import Period

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class BookError(Exception):
    """A book that cannot be used: names the book or its file, the setting or the column, and what was expected
    (R25)."""


def _duration(value: object) -> object:
    if isinstance(value, str):
        found = re.fullmatch(r"(\d+)([smhd])", value.strip())
        if found is None:
            raise ValueError("expected a number and s, m, h or d, such as '5m'")
        return timedelta(**{_UNITS[found.group(2)]: int(found.group(1))})
    raise ValueError("expected text such as '5m'")


def _plain_text(value: object) -> object:
    """TOML's numbers and booleans as Spark's readers want their options: text."""
    if isinstance(value, dict):
        return {key: (str(item).lower() if isinstance(item, bool) else str(item)) for key, item in value.items()}
    return value


class ComparedPair(BaseModel):
    """A column of the book and a part of the message that must be equal."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    column: str = Field(min_length=1)
    message: str

    @field_validator("message")
    @classmethod
    def _readable(cls, value: str) -> str:
        selector(value)
        return value


class BookDescription(BaseModel):
    """The TOML file of a book."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[\w.-]{1,64}$")
    format: str = Field(min_length=1)
    options: Annotated[dict[str, str], BeforeValidator(_plain_text)] = Field(default_factory=dict)
    #: Spark's DDL ("order_id string, amount decimal(10,2)") where the format does not say its types, as CSV
    columns: str | None = None
    addresses: list[str] = Field(min_length=1)
    key: str
    message_key: str
    time: str
    committed_when: str
    rolled_back_when: str = "false"
    grace: Annotated[timedelta, BeforeValidator(_duration)] = timedelta(minutes=5)
    equal: list[ComparedPair] = Field(default_factory=list)

    @field_validator("message_key")
    @classmethod
    def _known_key(cls, value: str) -> str:
        if value != "txn-id":
            try:
                selector(value)
            except ValueError as error:
                raise ValueError(f"{error}, or txn-id") from None
        return value


def describe(path: Path) -> BookDescription:
    """Read and check a book's TOML file; a relative ``path`` in its options is beside the file.

    :raises BookError: names the file and each setting that is wrong.
    """
    try:
        with path.open("rb") as file:
            given = tomllib.load(file)
    except OSError as error:
        raise BookError(f"book {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BookError(f"book {path}: not TOML: {error}") from None
    try:
        book = BookDescription.model_validate(given)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors())
        raise BookError(f"book {path}: {wrong}") from None
    where = book.options.get("path")
    if where is not None and "://" not in where:
        book.options["path"] = str((path.parent / where).resolve())
    return book


@dataclass(frozen=True, kw_only=True)
class Book:
    """A book that can be read. ``rows``: ``key`` (text), ``problem``, ``at``, ``state``, ``compared_<n>``."""

    description: BookDescription
    rows: DataFrame
    types: tuple[DataType, ...]

    @property
    def name(self) -> str:
        return self.description.name


def open_book(spark: SparkSession, description: BookDescription) -> Book:
    """Check that the book's data is there, with the columns and types that its description names.

    :raises BookError: names the book and the column.
    """
    name = description.name
    defaults = {"header": "true", "mode": "FAILFAST"} if description.format == "csv" else {}
    try:
        reader = spark.read.format(description.format).options(**{**defaults, **description.options})
        if description.columns is not None:
            reader = reader.schema(description.columns)
        data = reader.load()
    except (PySparkException, Py4JJavaError) as error:
        raise BookError(f"book {name}: cannot be read: {_first_line(error)}") from None
    types = {field.name: field.dataType for field in data.schema.fields}
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
    conditions: dict[str, Column] = {}
    for setting, expression in (
        ("committed_when", description.committed_when),
        ("rolled_back_when", description.rolled_back_when),
    ):
        try:
            conditions[setting] = f.expr(expression)
            found = data.select(conditions[setting].alias("c")).schema["c"].dataType
        except PySparkException as error:
            raise BookError(f"book {name}: {setting}: {expression!r}: {_first_line(error)}") from None
        if not isinstance(found, BooleanType):
            raise BookError(f"book {name}: {setting}: {expression!r} is {found.simpleString()}, expected true or false")
    key, problem = _book_key(f.col(f"`{description.key}`"), key_type, description)
    at = f.col(f"`{description.time}`").try_cast("timestamp")
    committed = f.coalesce(conditions["committed_when"], f.lit(False))
    rolled_back = f.coalesce(conditions["rolled_back_when"], f.lit(False))
    rows = data.select(
        key.alias("key"),
        f.when(problem.isNotNull(), problem)
        .when(at.isNull(), f.concat(f.lit("unclear-row:"), f.lit(f"{description.time} is null or no time")))
        .when(committed & rolled_back, "unclear-row:both committed_when and rolled_back_when hold")
        .alias("problem"),
        at.alias("at"),
        f.when(committed, "committed").when(rolled_back, "rolled-back").otherwise("open").alias("state"),
        *(f.col(f"`{pair.column}`").alias(f"compared_{place}") for place, pair in enumerate(description.equal)),
    )
    return Book(description=description, rows=rows, types=tuple(types[pair.column] for pair in description.equal))


def _first_line(error: PySparkException | Py4JJavaError) -> str:
    text = str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else str(error)
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")[:500]


#: Spark numbers the rows of each task from a multiple of this on.
_ROWS_OF_FIRST_TASK: Final = 1 << 33


def unreadable(description: BookDescription, error: PySparkException | Py4JJavaError) -> BookError:
    """Why the rows of a book cannot be read: in a CSV with ``columns``, by the first cell that is not of its type."""
    try:
        cell = _bad_cell(description) if description.format == "csv" and description.columns is not None else None
    except (PySparkException, Py4JJavaError):
        # it is not a cell: the file is away, or no CSV
        cell = None
    return BookError(f"book {description.name}: {cell or f'cannot be read: {_first_line(error)}'}")


def _bad_cell(description: BookDescription) -> str | None:
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


def _book_key(column: Column, key_type: DataType, description: BookDescription) -> tuple[Column, Column]:
    """The key as text, and what is wrong with it (``kind:detail``) or null."""
    missing = f.when(column.isNull(), f"null-key:{description.key} is null")
    if description.message_key == "txn-id":
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


def picked_columns(book: Book) -> tuple[str, ...]:
    """The columns of ``half`` that :func:`pick` needs: not the message, where only the txn-id counts."""
    return ("id",) if _by_txn_alone(book.description) else ("id", "message")


def _by_txn_alone(description: BookDescription) -> bool:
    return description.message_key == "txn-id" and not description.equal


def pick(book: Book, messages: DataFrame) -> DataFrame:
    """From the halves of the book's addresses (``picked_columns``): ``half_id, problem, key, picked``, a text per
    compared pair."""
    description = book.description
    if _by_txn_alone(description):
        return messages.select(
            f.col("id").alias("half_id"),
            f.lit(None).cast("string").alias("problem"),
            f.lit(None).cast("string").alias("key"),
            f.array().cast("array<string>").alias("picked"),
        )
    key = None if description.message_key == "txn-id" else description.message_key
    # its kind comes from the annotations of the function, as PySpark prefers; its stubs know only the other way
    picking = arrow_udf(_picker(key, [pair.message for pair in description.equal]), _PICKED)  # type: ignore[call-overload]
    return messages.select(f.col("id").alias("half_id"), picking("message").alias("found")).select("half_id", "found.*")


_PICKED: Final = "struct<problem: string, key: string, picked: array<string>>"


def _picker(key: str | None, pairs: list[str]) -> Callable[[pa.Array], pa.Array]:
    """A function from messages to ``_PICKED``, for Spark's Arrow workers (which need no pandas, as ``mapInArrow``
    does)."""

    def run(messages: pa.Array) -> pa.Array:
        select_key = selector(key) if key is not None else None
        selectors = [selector(pair) for pair in pairs]
        rows = [_picked(message.as_py(), select_key, selectors) for message in messages]
        problems, keys, values = zip(*rows, strict=True) if rows else ((), (), ())
        return pa.StructArray.from_arrays(
            [pa.array(problems, pa.string()), pa.array(keys, pa.string()), pa.array(values, pa.list_(pa.string()))],
            names=["problem", "key", "picked"],
        )

    return run


def _picked(
    message: bytes, select_key: Selector | None, selectors: list[Selector]
) -> tuple[str | None, str | None, list[str | None]]:
    """What is wrong with the key, the key, and the compared values of one message."""
    try:
        decoded = decode(message)
        key = select_key(decoded) if select_key is not None else None
    except MessageUnreadable as error:
        return str(error), None, [f"unreadable: {error}"] * len(selectors)
    values: list[str | None] = []
    for select in selectors:
        try:
            values.append(select(decoded))
        except MessageUnreadable as error:
            # differs from whatever is in the column, and says why
            values.append(f"unreadable: {error}")
    return None, key, values


def sent(book: Book, picked: DataFrame, stated: DataFrame, decided: DataFrame, txn: DataFrame) -> DataFrame:
    """What the coordinator knows under the book's kind of key.

    ``key, problem, half_id, txn_id, address_id, state, judged, decided_at, plain, picked``; ``plain``: undecided, and
    none of it is in the store before its client commits it; ``picked`` is what :func:`pick`
    gave. For txn-ids also transactions that left no half at the book's addresses, with ``half_id`` null.
    """
    known = stated.select("half_id", "txn_id", "address_id", "state", "judged", "decided_at")
    of_halves = picked.join(known, "half_id").withColumn("plain", f.lit(False))
    if book.description.message_key != "txn-id":
        return of_halves
    of_halves = of_halves.withColumns({"key": f.col("txn_id"), "problem": f.lit(None).cast("string")})
    none = {"problem": "string", "half_id": "bigint", "address_id": "int", "picked": "array<string>"}
    of_transactions = decided.select(
        f.col("txn_id").alias("key"),
        "txn_id",
        f.when(f.col("commits") > 0, "committed").otherwise("rolled-back").alias("state"),
        "decided_at",
        f.lit(False).alias("plain"),
    ).unionByName(
        txn.join(decided, f.col("id") == f.col("txn_id"), "left_anti").select(
            f.col("id").alias("key"),
            f.col("id").alias("txn_id"),
            f.lit("undecided").alias("state"),
            f.lit(None).cast("timestamp").alias("decided_at"),
            f.col("producer_group").isNull().alias("plain"),
        )
    )
    return of_halves.unionByName(
        of_transactions.select(
            "*", f.lit(False).alias("judged"), *(f.lit(None).cast(kind).alias(name) for name, kind in none.items())
        )
    )


_ONLY_ITS_CLIENT: Final = (
    "let its client commit it: nobody else can; if the client is gone, it rolls back by itself, and the message is to"
    " be posted again from the book's row"
)


def book_findings(book: Book, marks: DataFrame, period: Period, seen_at: datetime) -> DataFrame:
    """Everything in which the book and the coordinator differ. ``marks`` is what :func:`sent` gives, with
    ``address`` (a name)."""
    description = book.description
    settled = seen_at - description.grace
    in_period = (f.col("at") >= f.lit(period.since)) & (f.col("at") < f.lit(period.until))
    rows = book.rows.withColumn("judged_row", in_period)
    usable = rows.where(f.col("problem").isNull() & f.col("key").isNotNull())
    counted = usable.groupBy("key").agg(
        f.count("*").alias("rows"),
        f.bool_or("judged_row").alias("judged_row"),
        f.min("at").alias("at"),
        # of a repeated key any row that says so counts: it is listed as repeated besides
        f.bool_or(f.col("state") == "committed").alias("book_committed"),
        f.bool_or(f.col("state") == "rolled-back").alias("book_rolled_back"),
        *(f.min(f"compared_{place}").alias(f"compared_{place}") for place in range(len(description.equal))),
    )
    keyed = marks.where(f.col("problem").isNull() & f.col("key").isNotNull())
    committed = f.col("state") == "committed"
    undecided = f.col("state").isin("undecided", "unknown")
    here = keyed.groupBy("key").agg(
        f.bool_or(committed).alias("committed"),
        f.max(f.when(undecided, f.col("txn_id"))).alias("undecided_txn"),
        f.max(f.when(f.col("state") == "rolled-back", f.col("txn_id"))).alias("rolled_back_txn"),
        f.max(f.when(undecided, f.col("address"))).alias("undecided_address"),
        f.coalesce(f.bool_and(f.when(undecided, f.col("plain"))), f.lit(False)).alias("undecided_plain"),
    )
    prefix = f.format_string(f"book {description.name}, key %s: ", f.col("key"))

    def said(text: str, *columns: Column) -> Column:
        return f.concat(prefix, f.format_string(text, *columns) if columns else f.lit(text))

    known = counted.join(here, "key", "left").where(f.col("judged_row") & (f.col("at") <= f.lit(settled)))
    only_address = f.lit(description.addresses[0] if len(description.addresses) == 1 else None)
    not_sent = ~f.coalesce("committed", f.lit(False)) & f.col("undecided_txn").isNull()
    lost = finding(
        known.where(f.col("book_committed") & not_sent),
        kind="lost-message",
        severity="error",
        seen_at=seen_at,
        txn_id=f.col("key") if description.message_key == "txn-id" else f.col("rolled_back_txn"),
        address=only_address,
        detail=said(
            "the book says committed, the coordinator %s",
            f.when(f.col("rolled_back_txn").isNotNull(), "rolled it back").otherwise("knows nothing of it"),
        ),
        suggested_repair="post the message again from the book's row",
    )
    decision = f.when(f.col("book_committed"), "commit").otherwise("rollback")
    waiting = finding(
        known.where(
            f.col("undecided_txn").isNotNull()
            & ~f.coalesce("committed", f.lit(False))
            & (f.col("book_committed") != f.col("book_rolled_back"))
        ),
        kind="undecided-but-known",
        severity="warning",
        seen_at=seen_at,
        txn_id=f.col("undecided_txn"),
        address=f.col("undecided_address"),
        detail=said(
            "undecided here, the book says %s", f.when(f.col("book_committed"), "committed").otherwise("rolled back")
        ),
        suggested_repair=f.when(f.col("book_committed") & f.col("undecided_plain"), _ONLY_ITS_CLIENT).otherwise(
            f.format_string('coordinator resolve %s --%s --reason "as the book says"', f.col("undecided_txn"), decision)
        ),
    )
    sent_out = keyed.where(
        committed & f.col("half_id").isNotNull() & f.col("judged") & (f.col("decided_at") <= f.lit(settled))
    )
    beside = sent_out.join(counted.drop("judged_row"), "key", "left")
    phantom = finding(
        beside.where(
            f.col("rows").isNull()
            | (f.col("book_rolled_back") & ~f.col("book_committed") & (f.col("at") <= f.lit(settled)))
        ),
        kind="phantom-message",
        severity="error",
        seen_at=seen_at,
        txn_id=f.col("txn_id"),
        half_id=f.col("half_id"),
        address=f.col("address"),
        detail=said(
            "the coordinator committed it, the book %s",
            f.when(f.col("rows").isNull(), "has no row").otherwise("says rolled back"),
        ),
        suggested_repair="tell the consumers of the address, or write the row that is missing",
    )
    findings = [lost, waiting, phantom]
    for place, (pair, spark_type) in enumerate(zip(description.equal, book.types, strict=True)):
        in_book, in_message = f.col(f"compared_{place}"), f.element_at("picked", place + 1)
        findings.append(
            finding(
                beside.where(
                    f.col("book_committed")
                    & (f.col("rows") == 1)
                    & (f.col("at") <= f.lit(settled))
                    & ~_equal(in_book, in_message, spark_type)
                ),
                kind="different-content",
                severity="error",
                seen_at=seen_at,
                txn_id=f.col("txn_id"),
                half_id=f.col("half_id"),
                address=f.col("address"),
                detail=said(
                    f"{_escaped(pair.column)} is %s in the book, {_escaped(pair.message)} is %s in the message",
                    f.coalesce(in_book.cast("string"), f.lit("null")),
                    f.coalesce(in_message, f.lit("missing")),
                ),
                suggested_repair="find out which is right; post a correction, or correct the row",
            )
        )
    findings.extend(_unusable(book, rows, marks, counted, seen_at))
    return reduce(DataFrame.unionByName, findings)


def _escaped(text: str) -> str:
    """``text`` inside a format string of Java's."""
    return text.replace("%", "%%")


def _equal(in_book: Column, in_message: Column, spark_type: DataType) -> Column:
    """Is the message's text the book's value? Numbers by value, whatever their notation; what does not parse is not
    equal."""
    if isinstance(spark_type, DecimalType | IntegralType):
        exact = "decimal(38,18)"
        parsed = in_message.try_cast(exact)
        equal = in_book.try_cast(exact).eqNullSafe(parsed)
    elif isinstance(spark_type, NumericType | BooleanType | DateType | TimestampType | TimestampNTZType):
        parsed = in_message.try_cast(spark_type)
        equal = in_book.eqNullSafe(parsed)
    else:
        return in_book.cast("string").eqNullSafe(in_message)
    return equal & (in_message.isNull() == parsed.isNull())


def _unusable(book: Book, rows: DataFrame, marks: DataFrame, counted: DataFrame, seen_at: datetime) -> list[DataFrame]:
    """R25: keys that occur twice, are null or do not parse, on both sides, each listed."""
    name = book.description.name
    listed: list[DataFrame] = []
    for kind in ("null-key", "unparsable-key", "unclear-row"):
        listed.append(
            finding(
                rows.where(f.col("problem").startswith(f"{kind}:") & f.coalesce("judged_row", f.lit(True))),
                kind=kind,
                severity="warning",
                seen_at=seen_at,
                detail=f.concat(
                    f.lit(f"book {name}, key "),
                    f.coalesce("key", f.lit("unknown")),
                    f.lit(": "),
                    f.expr(f"substring(problem, {len(kind) + 2})"),
                ),
                suggested_repair="correct the row, or the book's description; it was compared with nothing",
            )
        )
    listed.append(
        finding(
            counted.where("judged_row and rows > 1"),
            kind="repeated-key",
            severity="warning",
            seen_at=seen_at,
            detail=f.format_string(f"book {name}, key %s: in %d rows", f.col("key"), f.col("rows")),
            suggested_repair="find out which row is right; until then the key counts as committed when one row says so",
        )
    )
    unkeyed = marks.where(f.col("judged") & (f.col("state") == "committed") & f.col("half_id").isNotNull())
    for kind, condition, detail in (
        ("unparsable-key", f.col("problem").isNotNull(), f.col("problem")),
        ("null-key", f.col("problem").isNull() & f.col("key").isNull(), f.lit(f"no {book.description.message_key}")),
    ):
        listed.append(
            finding(
                unkeyed.where(condition),
                kind=kind,
                severity="warning",
                seen_at=seen_at,
                txn_id=f.col("txn_id"),
                half_id=f.col("half_id"),
                address=f.col("address"),
                detail=f.concat(f.lit(f"book {name}: the message has no key that can be used: "), detail),
                suggested_repair="let the producer set the key; the message was compared with nothing",
            )
        )
    twice = (
        unkeyed.where(f.col("problem").isNull() & f.col("key").isNotNull())
        .groupBy("key")
        .agg(
            f.count_distinct(f.coalesce("txn_id", f.col("half_id").cast("string"))).alias("times"),
            f.max("half_id").alias("half_id"),
            f.max_by("txn_id", "half_id").alias("txn_id"),
            f.max_by("address", "half_id").alias("address"),
        )
        .where("times > 1")
    )
    listed.append(
        finding(
            twice,
            kind="repeated-key",
            severity="warning",
            seen_at=seen_at,
            txn_id=f.col("txn_id"),
            half_id=f.col("half_id"),
            address=f.col("address"),
            detail=f.format_string(f"book {name}, key %s: committed %d times", f.col("key"), f.col("times")),
            suggested_repair="a producer that retried after an unknown answer posted it again? tell the consumers",
        )
    )
    return listed
