"""A book's files, held against what its description says of them; and what to say of one that cannot be read."""

from __future__ import annotations

from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, QueryContextType
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark.books.description import BookError, Description
from spark.books.footers import look_at_footers
from spark.books.numbers import FRACTION, as_number, digits_behind_point

#: Else a cell that cannot be read, or that a row lacks, is null.
_STRICT: Final = {"mode": "FAILFAST"}
#: A quote in a quoted cell is written twice (RFC 4180), as spreadsheets, PostgreSQL and Python write it. Spark's own
#: default takes a backslash for what stands before it, and any other quote for a part of the cell.
_QUOTES: Final = {"escape": '"', "unescapedQuoteHandling": "RAISE_ERROR"}
#: what the reader says then
_UNESCAPED: Final = "Unescaped quote character"
_DEFAULTS: Final = {
    "csv": {**_STRICT, **_QUOTES, "header": "true", "enforceSchema": "false", "columnPruning": "false"},
    "json": _STRICT,
    # else a time without a zone looks like one with it
    "jdbc": {"preferTimestampNTZ": "true"},
}
#: Of a JDBC book without ``driver``, by the beginning of its URL: Spark itself finds none in a jar that it was given.
_DRIVERS: Final = {
    "jdbc:postgresql:": "org.postgresql.Driver",
    "jdbc:mysql:": "com.mysql.cj.jdbc.Driver",
    "jdbc:mariadb:": "org.mariadb.jdbc.Driver",
    "jdbc:oracle:": "oracle.jdbc.OracleDriver",
    "jdbc:sqlserver:": "com.microsoft.sqlserver.jdbc.SQLServerDriver",
}
#: What Java says of other URLs.
_NO_DRIVER: Final = "No suitable driver"
#: The formats whose files are text.
_WRITTEN: Final = ("csv", "json")
#: The formats whose files have names for their columns, other than ``columns`` may say.
_NAMED: Final = ("csv", "json", "parquet")


#: Of a row: whether its time, as it is written, has no zone.
WITHOUT_ZONE: Final = "_without_zone"
_NO_ZONE: Final = r"^\s*\d{4,6}-\d{1,2}-\d{1,2}([ T]\d{1,2}:\d{1,2}(:\d{1,2}(\.\d*)?)?)?\s*$"
#: What stands for octets that are no text of the encoding.
_NO_CHARACTER: Final = "\ufffd"
_ENCODINGS: Final = ("encoding", "charset")
#: Encodings that are UTF-8, or a part of it.
_OF_UTF_8: Final = ("utf-8", "utf8", "us-ascii")


def load(spark: SparkSession, description: Description) -> DataFrame:
    """The rows of a book, and of each :data:`WITHOUT_ZONE`.

    Reading it raises where a cell of a CSV or JSON file cannot be what ``columns`` says (:func:`unreadable`).

    :raises BookError: names the book, and says why it cannot be read.
    """
    try:
        reader = spark.read.format(description.format).options(**_options(description))
        if description.columns is None:
            data = reader.load()
            declared = data.schema
        else:
            declared = _declared(spark, description)
            _check_encoding(description, declared)
            written = (StructField(each.name, _written(description, each)) for each in declared)
            data = reader.schema(StructType(list(written))).load()
        if description.format == "parquet":
            look_at_footers(description, data)
        cells = [_cell(description, data.schema[field.name].dataType, field) for field in declared]
        return data.select(*cells, _without_zone(description, data.schema).alias(WITHOUT_ZONE))
    except (PySparkException, Py4JJavaError) as error:
        raise unreadable(description, error) from None


def _check_encoding(description: Description, declared: StructType) -> None:
    """:raises BookError: of amounts in a JSON file in that encoding Spark would keep as many digits as a double has."""
    other = [name for name in _options(description) if name.lower() in _ENCODINGS]
    amounts = [field.name for field in declared if isinstance(field.dataType, DecimalType)]
    if description.format == "json" and other and amounts:
        raise BookError(
            f"book {description.name}: options.{other[0]}: {description.options[other[0]]}: Spark keeps 15 digits of"
            f" the column {amounts[0]!r} in a JSON file that is not in UTF-8; write the file in UTF-8"
        )


def _written(description: Description, field: StructField) -> DataType:
    """The type that a column is read as: text, where Spark's readers would lose what is written, digits or the zone."""
    names = {name.lower() for name in description.options}
    if description.format not in _WRITTEN:
        return field.dataType
    if isinstance(field.dataType, DecimalType) and "locale" not in names:
        return StringType()
    if isinstance(field.dataType, TimestampType) and field.name == description.time and "timestampformat" not in names:
        return StringType()
    return field.dataType


def _cell(description: Description, written: DataType, field: StructField) -> Column:
    """The value of a column that was read as ``written``; where it has none, reading it raises."""
    text = f.col(f"`{field.name}`")
    if not isinstance(written, StringType):
        return text
    fault = _fault(description, text, field.dataType)
    value = f.when(fault, f.raise_error(f.lit("no value"))).otherwise(_value(text, field.dataType))
    return value.alias(field.name)


def _value(text: Column, data_type: DataType) -> Column:
    """What ``text`` stands for, or null. Spark would take a time without a date for one of today, and a number for a
    year; 20261128 is a date, perhaps, and no seconds since 1970."""
    if isinstance(data_type, TimestampType):
        seconds = f.when(text.rlike(r"^\s*-?\d{9,11}\s*$"), f.timestamp_seconds(text.try_cast("bigint")))
        return seconds.when(text.rlike(r"^\s*[+-]?\d{4,6}-\d"), text.try_cast(data_type))
    return (as_number(text) if isinstance(data_type, DecimalType) else text).try_cast(data_type)


def _fault(description: Description, text: Column, data_type: DataType) -> Column:
    """Whether ``text``, of a CSV or JSON file, is there, and is no value of this type."""
    if isinstance(data_type, StringType):
        given = description.format != "csv" or any(name.lower() in _ENCODINGS for name in description.options)
        return f.lit(False) if given else f.coalesce(text.contains(_NO_CHARACTER), f.lit(False))
    value = _value(text, data_type)
    fault = value.isNull()
    if isinstance(data_type, DecimalType):
        # as many digits before the point, and all that there is room for behind it
        wide = DecimalType(38, 38 - data_type.precision + data_type.scale)
        # and where that is little, as much as small numbers need
        number, scales = as_number(text), sorted({wide.scale, max(FRACTION, wide.scale)})
        for room in (DecimalType(38, scale) for scale in scales):
            fault = fault | f.coalesce(number.try_cast(room) != value.try_cast(room), f.lit(False))
        fault = fault | f.coalesce(digits_behind_point(number) > wide.scale, f.lit(False))
    return text.isNotNull() & fault


def _without_zone(description: Description, written: StructType) -> Column:
    if description.time not in written.names:
        return f.lit(False)
    found, time = written[description.time].dataType, f.col(f"`{description.time}`")
    if isinstance(found, StringType):
        return f.coalesce(time.rlike(_NO_ZONE), f.lit(False))
    return f.lit(isinstance(found, TimestampNTZType | DateType))


def declared_and_there(spark: SparkSession, description: Description) -> DataFrame | None:
    """No rows, with those columns of ``columns`` that the files have; None where nothing can be compared.

    Spark takes a column that is in no file for one of nulls, and the columns of a CSV by their places, whatever its
    header calls them.

    :raises BookError: the header of a CSV is another.
    """
    options = _options(description)
    headed = description.format != "csv" or options["header"].lower() == "true"
    if description.columns is None or description.format not in _NAMED or not headed:
        return None
    declared = _declared(spark, description)
    try:
        there = spark.read.format(description.format).options(**options).load().columns
    except (PySparkException, Py4JJavaError) as error:
        raise unreadable(description, error) from None
    if description.format == "csv":
        if [name.strip().lower() for name in there] != [name.lower() for name in declared.names]:
            raise BookError(
                f"book {description.name}: columns: they are {', '.join(declared.names)}; the header of the file is"
                f" {', '.join(there)[:500] or 'not there'} (a file without a header needs options.header = false)"
            )
        return None
    known = {name.lower() for name in there}
    if not known:
        # no rows: nothing says what they would have
        return None
    return spark.createDataFrame([], StructType([field for field in declared if field.name.lower() in known]))


def unreadable(description: Description, error: PySparkException | Py4JJavaError) -> BookError:
    """Why the rows of a book cannot be read: in a CSV or JSON file by the first row, and cell, that is at fault."""
    try:
        fault = _first_fault(description) if description.format in _WRITTEN else None
    except (PySparkException, Py4JJavaError):
        # no row is at fault: the file is missing, or cannot be read at all
        fault = None
    why = fault or f"{_setting(description, error)}: {reason(error)}"
    if description.format == "csv" and _UNESCAPED in why:
        why = "a quote in a quoted cell is not written twice; options.escape says what else stands before it"
    # of a class that is missing Java says the name
    if description.format == "jdbc" and reason(error) in (_NO_DRIVER, *_options(description).values()):
        why += "; name the jar of the driver in PYSPARK_SUBMIT_ARGS (--jars), and its class in options.driver"
    return BookError(f"book {description.name}: {why}")


def _setting(description: Description, error: PySparkException | Py4JJavaError) -> str:
    """The condition of the description's that fails on a row, as Spark says where; or what is to be said of no such."""
    contexts = error.getQueryContext() if isinstance(error, PySparkException) else []
    for fragment in (each.fragment() for each in contexts if each.contextType() is QueryContextType.SQL):
        for setting in description.states.values():
            expression = getattr(description, setting)
            if fragment and fragment in expression:
                return f"{setting}: {expression!r}"
    return "cannot be read"


def reason(error: PySparkException | Py4JJavaError) -> str:
    """What Spark says, in a line, and what it says of the cause."""
    origin = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    told = [_first_line(str(error) if origin is None else str(origin.getMessage()))]
    while origin is not None:
        last, origin = origin, origin.getCause()
        if origin is None and (cause := _first_line(str(last.getMessage()))) not in told:
            told.append(cause)
    return ": ".join(told)[:500]


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")


def _options(description: Description) -> dict[str, str]:
    given = dict(description.options)
    if description.format == "json":
        # as it is anyway; where it is said, Spark takes fractions for doubles
        given = {
            name: said
            for name, said in given.items()
            if not (name.lower() in _ENCODINGS and said.strip().lower() in _OF_UTF_8)
        }
    names = {name.lower(): said for name, said in given.items()}
    if description.format == "jdbc" and "driver" not in names:
        url = names.get("url", "").lower()
        given |= next(({"driver": driver} for begin, driver in _DRIVERS.items() if url.startswith(begin)), {})
    return {**_DEFAULTS.get(description.format, {}), **given}


def _declared(spark: SparkSession, description: Description) -> StructType:
    assert description.columns is not None
    return spark.createDataFrame([], description.columns).schema


#: Spark numbers the rows of each task from a multiple of this on.
_ROWS_OF_FIRST_TASK: Final = 1 << 33
_CORRUPT: Final = "_corrupt_record"


def _first_fault(description: Description) -> str | None:
    """The first row of a CSV or JSON file that is none, or its first value that cannot be what ``columns`` says; None:
    it is something else."""
    spark = SparkSession.active()
    options = {**_options(description), "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    if description.columns is None:
        found_types = spark.read.format(description.format).options(**options).load().schema
        types = StructType([field for field in found_types if field.name != _CORRUPT])
    else:
        types = _declared(spark, description)
    text = StructType(
        [*(StructField(field.name, StringType()) for field in types), StructField(_CORRUPT, StringType())]
    )
    rows = spark.read.format(description.format).options(**options).schema(text).load()
    rows = rows.withColumn("_row", f.monotonically_increasing_id())
    formatted = any(name.lower().endswith("format") for name in options)
    bad = [
        f.when(
            _fault(description, f.col(f"`{field.name}`"), field.dataType),
            f.struct(f.lit(field.name).alias("column"), f.col(f"`{field.name}`").alias("value")),
        )
        for field in types
        if not (formatted and isinstance(field.dataType, DateType | TimestampType | TimestampNTZType))
    ]
    broken = f.when(
        f.col(_CORRUPT).isNotNull(),
        f.struct(f.lit(None).cast("string").alias("column"), f.col(_CORRUPT).alias("value")),
    )
    found = rows.select("_row", f.coalesce(broken, *bad).alias("bad")).where("bad is not null").orderBy("_row").first()
    if found is None:
        return None
    column, value = found["bad"]["column"], str(found["bad"]["value"])[:100]
    row = f"row {found['_row'] + 1}" if found["_row"] < _ROWS_OF_FIRST_TASK else "a row"
    if column is None and description.format == "csv":
        return f"{row}: {value!r} has not the {len(types)} columns that there are"
    if column is None:
        return (
            f"{row}: {value!r} is no JSON object; an array of them, or one over several lines, needs"
            " options.multiLine = true"
        )
    if isinstance(types[column].dataType, StringType):
        return f"{row}, column {column!r}: {value!r} is not UTF-8; options.encoding says what it is, such as ISO-8859-1"
    return f"{row}, column {column!r}: {value!r} is no {types[column].dataType.simpleString()}"
