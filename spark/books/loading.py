"""Load a book's files, checked against its description; and explain why one cannot be read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, QueryContextType
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark.books.description import BookError, Description
from spark.books.written import (
    FRACTION,
    digits_behind_point,
    in_its_zone,
    moment,
    number,
    pattern_without_zone,
    value,
    why_none,
    without_zone,
    zone_of,
)

# The columns of a book's Parquet files, each by its own footer. Spark reads one footer, and fills a column that another
# file lacks with nulls: its rows would be neither committed nor rolled back, without an error.


class Stored(NamedTuple):
    """The types of a file's column: whether it has times, or dates, without a zone, and whether in nanoseconds."""

    without_zone: bool
    nanoseconds: bool


#: By file on this machine: its columns, in lower case.
Files = Mapping[str, Mapping[str, Stored]]


def footers(data: DataFrame) -> Files:
    """Read the footers of the files of ``data``."""
    found: dict[str, dict[str, Stored]] = {}
    for file in data.inputFiles():
        if urlsplit(file).scheme in ("", "file"):
            with suppress(OSError, pa.ArrowException):  # Spark reports what is wrong with the file
                schema = pq.read_metadata(_path(file)).schema
                leaves = (schema.column(place) for place in range(len(schema)))
                found[file] = {each.path.split(".")[0].lower(): _stored(each) for each in leaves}
    return found


def _path(file: str) -> str:
    return unquote(urlsplit(file).path)


def _stored(leaf: pq.ColumnSchema) -> Stored:
    if "." in leaf.path:  # nested in another column
        return Stored(without_zone=False, nanoseconds=False)
    kind = json.loads(leaf.logical_type.to_json())
    is_local = kind["Type"] == "Date" or kind.get("isAdjustedToUTC") is False
    return Stored(is_local, kind["Type"] == "Timestamp" and kind["timeUnit"] == "nanoseconds")


def names_in(files: Files) -> set[str]:
    """Return the columns of all files, and those that are folders (``day=2026-11-28``)."""
    folders = (re.findall(r"([^/=]+)=[^/]*/", _path(file)) for file in files)
    return {name.lower() for names in (*files.values(), *folders) for name in names}


def in_nanoseconds(files: Files) -> dict[str, Stored]:
    """Return the columns that have times in nanoseconds."""
    return {name: each for columns in files.values() for name, each in columns.items() if each.nanoseconds}


def check_footers(description: Description, files: Files, names: Sequence[str]) -> None:
    """Check, in all files, those of the columns ``names`` that the description names.

    :raises BookError: a file lacks one that another file has, or has it in another unit.
    """
    there, numbers = names_in(files), in_nanoseconds(files)
    named = [name for name in names if name.lower() in there and _names(description, name)]
    for file, columns in files.items():
        which = f"book {description.name}: {_path(file)}"
        for name in named:
            column = columns.get(name.lower())
            if column is None and name.lower() not in names_in({file: {}}):
                raise BookError(
                    f"{which}: there is no column {name!r}, which other files of the book have; all need the columns"
                    " that the description names"
                )
            if column is not None and not column.nanoseconds and name.lower() in numbers:
                raise BookError(f"{which}: the column {name!r} is in nanoseconds in other files alone")


def _names(description: Description, column: str) -> bool:
    """Return whether the description names the column, alone or in a condition."""
    equal = (pair.column for pair in description.equal)
    plain = {description.key, description.time, *description.show, *equal}
    conditions = (getattr(description, setting) for setting in description.states.values())
    word = re.compile(rf"(?<!\w){re.escape(column)}(?!\w)", re.IGNORECASE)
    return column.lower() in {name.lower() for name in plain} or any(map(word.search, conditions))


#: Without this a cell that cannot be read, or that a row lacks, is null.
_STRICT: Final = {"mode": "FAILFAST"}
#: A quote in a quoted cell is written twice (RFC 4180), as spreadsheets, PostgreSQL and Python write it. Spark's own
#: default expects a backslash before it, and treats any other quote as a part of the cell.
_QUOTES: Final = {"escape": '"', "unescapedQuoteHandling": "RAISE_ERROR"}
#: the reader's error for a quote that is not written twice
_UNESCAPED: Final = "Unescaped quote character"
_DEFAULTS: Final = {
    "csv": {**_STRICT, **_QUOTES, "header": "true", "enforceSchema": "false", "columnPruning": "false"},
    "json": _STRICT,
    # without this a time without a zone is read as one with a zone
    "jdbc": {"preferTimestampNTZ": "true"},
}
#: The driver of a JDBC book without ``driver``, by the beginning of its URL: Spark itself finds none in a given jar.
_DRIVERS: Final = {
    "jdbc:postgresql:": "org.postgresql.Driver",
    "jdbc:mysql:": "com.mysql.cj.jdbc.Driver",
    "jdbc:mariadb:": "org.mariadb.jdbc.Driver",
    "jdbc:oracle:": "oracle.jdbc.OracleDriver",
    "jdbc:sqlserver:": "com.microsoft.sqlserver.jdbc.SQLServerDriver",
}
#: Java's error for other URLs.
_NO_DRIVER: Final = "No suitable driver"
#: Spark's error for a type that it does not know, in any column.
_ILLEGAL: Final = "Illegal Parquet type"
#: Spark's error for a PostgreSQL ``timestamp`` that is infinity.
_OVERFLOW: Final = "long overflow"
#: The formats whose files are text.
_WRITTEN: Final = ("csv", "json")
#: The formats whose files name their columns, perhaps otherwise than ``columns``.
_NAMED: Final = ("csv", "json", "parquet")

#: Added columns of a row: its time, and whether neither the time nor the book has a zone.
MOMENT: Final = "_moment"
WITHOUT_ZONE: Final = "_without_zone"
#: The character that replaces octets which are no text of the encoding.
_NO_CHARACTER: Final = "\ufffd"
_ENCODINGS: Final = ("encoding", "charset")
#: Encodings that are UTF-8, or a part of it.
_OF_UTF_8: Final = ("utf-8", "utf8", "us-ascii")


def load(spark: SparkSession, description: Description) -> tuple[DataFrame, DataFrame | None]:
    """Load the rows of a book, each with :data:`MOMENT` and :data:`WITHOUT_ZONE`.

    Also returns an empty frame with those columns of ``columns`` that the files have, as Spark fills one that is in no
    file with nulls (None: nothing can be compared). Reading the rows raises if a cell of a CSV or JSON file is no value
    of its type in ``columns`` (:func:`unreadable`).

    :raises BookError: with the book, and why it cannot be read.
    """
    try:
        reader = spark.read.format(description.format).options(**_options(description))
        if description.columns is None:
            data = reader.load()
            declared = data.schema
        else:
            declared = _declared(spark, description)
            _check_encoding(description, declared)
            data = reader.schema(declared).load()
        files = footers(data) if description.format == "parquet" else {}
        check_footers(description, files, data.columns)
        there = None if description.columns is None else _there(spark, description, declared, files)
        if description.columns is None:
            declared = StructType([_declared_time(field, files) for field in declared])
        read_as = StructType([StructField(each.name, _read_as(description, each, files)) for each in declared])
        if read_as != data.schema:
            data = reader.schema(read_as).load()
        cells = [_cell(description, read.dataType, field) for read, field in zip(read_as, declared, strict=True)]
        at, without = _time(description, declared, read_as, files)
        return data.select(*cells, at.alias(MOMENT), without.alias(WITHOUT_ZONE)), there
    except (PySparkException, Py4JJavaError) as error:
        raise unreadable(description, error) from None


def _check_encoding(description: Description, declared: StructType) -> None:
    """Check the encoding of a JSON file with decimal columns.

    :raises BookError: in that encoding Spark would keep only as many digits as a double has.
    """
    other = [name for name in _options(description) if name.lower() in _ENCODINGS]
    amounts = [field.name for field in declared if isinstance(field.dataType, DecimalType)]
    if description.format == "json" and other and amounts:
        raise BookError(
            f"book {description.name}: options.{other[0]}: {description.options[other[0]]}: Spark keeps 15 digits of"
            f" the column {amounts[0]!r} in a JSON file that is not in UTF-8; write the file in UTF-8"
        )


def _declared_time(field: StructField, files: Files) -> StructField:
    """Return the timestamp type of a column in nanoseconds, which Spark reads as a whole number; else the field."""
    column = in_nanoseconds(files).get(field.name.lower())
    if column is None:
        return field
    return StructField(field.name, TimestampNTZType() if column.without_zone else TimestampType())


def _read_as(description: Description, field: StructField, files: Files) -> DataType:
    """Return the type as which a column is read.

    Text, if Spark's readers would lose digits or the zone; a whole number for nanoseconds, which they do not know."""
    kind = field.dataType
    if isinstance(kind, TimestampType | TimestampNTZType) and field.name.lower() in in_nanoseconds(files):
        return LongType()
    if description.format not in _WRITTEN:
        return kind
    if isinstance(kind, DecimalType):
        return StringType()
    if isinstance(kind, TimestampType) and field.name == description.time and not description.option("timestampformat"):
        return StringType()
    return kind


def _cell(description: Description, read_as: DataType, field: StructField) -> Column:
    """Return the value of a column that was read as ``read_as``; reading raises if the text is no value."""
    column = f.col(f"`{field.name}`")
    if isinstance(read_as, StringType):
        fault = _fault(description, column, field.dataType)
        given = value(description, column, field.dataType)
        return f.when(fault, f.raise_error(f.lit("no value"))).otherwise(given).alias(field.name)
    if read_as != field.dataType:
        return _from_nanoseconds(column).cast(field.dataType).alias(field.name)
    return column


def _from_nanoseconds(column: Column) -> Column:
    return f.timestamp_micros(f.call_function("div", column, f.lit(1000)))


def _fault(description: Description, text: Column, data_type: DataType) -> Column:
    """Return the condition that ``text`` of a CSV or JSON file is not null, and no value of this type."""
    if isinstance(data_type, StringType):
        known = description.format != "csv" or any(map(description.option, _ENCODINGS))
        return f.lit(False) if known else f.coalesce(text.contains(_NO_CHARACTER), f.lit(False))
    given = value(description, text, data_type)
    fault = given.isNull()
    if isinstance(data_type, DecimalType):
        # as many digits before the point, and as many as fit behind it
        wide = DecimalType(38, 38 - data_type.precision + data_type.scale)
        # if few fit, also as many as small numbers need
        digits, scales = number(description, text), sorted({wide.scale, max(FRACTION, wide.scale)})
        for room in (DecimalType(38, scale) for scale in scales):
            fault = fault | f.coalesce(digits.try_cast(room) != given.try_cast(room), f.lit(False))
        fault = fault | f.coalesce(digits_behind_point(digits) > wide.scale, f.lit(False))
    return text.isNotNull() & fault


def _time(description: Description, declared: StructType, read_as: StructType, files: Files) -> tuple[Column, Column]:
    """Return the columns :data:`MOMENT` and :data:`WITHOUT_ZONE`."""
    name, column, no = description.time, f.col(f"`{description.time}`"), f.lit(False)
    kind, read = (each[name].dataType if name in each.names else None for each in (declared, read_as))
    pattern = description.option("timestampformat")
    if isinstance(read, StringType):
        at, without = moment(description, column), without_zone(column)
    elif isinstance(kind, TimestampType) and description.format in _WRITTEN and pattern:
        # Spark's reader itself knows timeZone
        at, without = column, f.lit(pattern_without_zone(description, pattern))
    elif isinstance(kind, TimestampType | TimestampNTZType | DateType):
        columns = {file: columns.get(name.lower()) for file, columns in files.items()}
        some = [file for file, each in columns.items() if each is not None and each.without_zone]
        in_all = not isinstance(kind, TimestampType) or len(some) == len(files) > 0
        without = f.lit(True) if in_all else f.input_file_name().isin(some) if some else no
        at = column.try_cast("timestamp") if read == kind else _from_nanoseconds(column)
        at = in_its_zone(description, at, without)
    else:
        at, without = f.lit(None).cast("timestamp"), no
    return at, without if zone_of(description) is None else no


def _there(spark: SparkSession, description: Description, declared: StructType, files: Files) -> DataFrame | None:
    """Return an empty frame with those columns of ``columns`` that the files have; None: nothing can be compared.

    Spark reads the columns of a CSV by their places, whatever its header.

    :raises BookError: the header of a CSV has other names.
    """
    options = _options(description)
    headed = description.format != "csv" or options["header"].lower() == "true"
    if description.format not in _NAMED or not headed:
        return None
    if files:
        # Spark would also read unrequested columns, and does not know all their types
        names = names_in(files)
        return spark.createDataFrame([], StructType([field for field in declared if field.name.lower() in names]))
    found = spark.read.format(description.format).options(**options).load().schema
    if description.format == "csv":
        if [name.strip().lower() for name in found.names] != [name.lower() for name in declared.names]:
            raise BookError(
                f"book {description.name}: columns: they are {', '.join(declared.names)}; the header of the file is"
                f" {', '.join(found.names)[:500] or 'not there'} (a file without a header needs options.header = false)"
            )
        return None
    if not found.names:
        # no rows: the columns are unknown
        return None
    return spark.createDataFrame([], _in_both(declared, found, exactly=description.format == "json"))


def _in_both(declared: StructType, found: StructType, *, exactly: bool) -> StructType:
    """Return the columns, and nested fields, of ``declared`` that are in ``found``.

    ``exactly``: compare with case, as the JSON reader does, which returns null for a name in another case."""

    def inside(one: DataType, other: DataType) -> DataType:
        if isinstance(one, StructType) and isinstance(other, StructType):
            return _in_both(one, other, exactly=exactly)
        if isinstance(one, ArrayType) and isinstance(other, ArrayType):
            return ArrayType(inside(one.elementType, other.elementType))
        return one

    there = {field.name if exactly else field.name.lower(): field.dataType for field in found}
    named = [(each, there.get(each.name if exactly else each.name.lower())) for each in declared]
    return StructType([StructField(each.name, inside(each.dataType, other)) for each, other in named if other])


def unreadable(description: Description, error: PySparkException | Py4JJavaError) -> BookError:
    """Return the error why the rows of a book cannot be read; for CSV or JSON with the first invalid row and cell."""
    try:
        fault = _first_fault(description) if description.format in _WRITTEN else None
        if description.format == "jdbc" and _OVERFLOW in reason(error):
            fault = _first_endless(description)
    except (PySparkException, Py4JJavaError):
        # no row is at fault: the file is missing, or cannot be read at all
        fault = None
    why = fault or f"{_setting(description, error)}: {reason(error)}"
    if description.format == "csv" and _UNESCAPED in why:
        why = "a quote in a quoted cell is not written twice; options.escape says what else stands before it"
    if description.format == "parquet" and _ILLEGAL in why:
        why += "; columns says which of them are read"
    # of a class that is missing Java says the name
    if description.format == "jdbc" and reason(error) in (_NO_DRIVER, *_options(description).values()):
        why += "; name the jar of the driver in PYSPARK_SUBMIT_ARGS (--jars), and its class in options.driver"
    return BookError(f"book {description.name}: {why}")


def _setting(description: Description, error: PySparkException | Py4JJavaError) -> str:
    """Return the setting whose condition fails on a row, if Spark's error names it; else ``cannot be read``."""
    contexts = error.getQueryContext() if isinstance(error, PySparkException) else []
    for fragment in (each.fragment() for each in contexts if each.contextType() is QueryContextType.SQL):
        for setting in description.states.values():
            expression = getattr(description, setting)
            if fragment and fragment in expression:
                return f"{setting}: {expression!r}"
    return "cannot be read"


def reason(error: PySparkException | Py4JJavaError) -> str:
    """Return Spark's error, and its cause, in a line."""
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
        # UTF-8 is the default; if it is given, Spark reads fractions as doubles
        given = {
            name: said
            for name, said in given.items()
            if not (name.lower() in _ENCODINGS and said.strip().lower() in _OF_UTF_8)
        }
    if description.format == "jdbc":
        # Spark passes options that it does not know to the driver
        given = {name: said for name, said in given.items() if name.lower() != "timezone"}
    if description.format == "jdbc" and description.option("driver") is None:
        url = (description.option("url") or "").lower()
        given |= next(({"driver": driver} for begin, driver in _DRIVERS.items() if url.startswith(begin)), {})
    return {**_DEFAULTS.get(description.format, {}), **given}


def _declared(spark: SparkSession, description: Description) -> StructType:
    assert description.columns is not None
    return spark.createDataFrame([], description.columns).schema


def _first_endless(description: Description) -> str | None:
    """Describe a row of a database with an infinite time, and its column; None: there is no such row."""
    data = SparkSession.active().read.format(description.format).options(**_options(description)).load()
    ends = [f.lit(text).cast("timestamp_ntz") for text in ("0001-01-01", "9999-12-31")]
    for field in data.schema:
        if isinstance(field.dataType, TimestampNTZType):
            time = f.col(f"`{field.name}`")
            # the database searches the row: Spark reads only the key
            found = data.where((time <= ends[0]) | (time >= ends[1])).select(f"`{description.key}`").first()
            if found is not None:
                return (
                    f"column {field.name!r}: of the key {found[0]!r} it is infinity, which is no time: let it be null"
                )
    return None


#: Spark numbers the rows of each task from a multiple of this on.
_ROWS_OF_FIRST_TASK: Final = 1 << 33
_CORRUPT: Final = "_corrupt_record"


def _first_fault(description: Description) -> str | None:
    """Describe the first invalid row of a CSV or JSON file, or its first value that is not of its type in ``columns``.

    None: the error has another reason."""
    spark = SparkSession.active()
    options = {**_options(description), "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    if description.columns is None:
        found_types = spark.read.format(description.format).options(**options).load().schema
        types = StructType([field for field in found_types if field.name != _CORRUPT])
    else:
        types = _declared(spark, description)
    as_text = StructType(
        [*(StructField(field.name, StringType()) for field in types), StructField(_CORRUPT, StringType())]
    )
    rows = spark.read.format(description.format).options(**options).schema(as_text).load()
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
    column, text = found["bad"]["column"], str(found["bad"]["value"])[:100]
    row = f"row {found['_row'] + 1}" if found["_row"] < _ROWS_OF_FIRST_TASK else "a row"
    if column is None and description.format == "csv":
        return f"{row}: {text!r} has not the {len(types)} columns that there are"
    if column is None:
        return (
            f"{row}: {text!r} is no JSON object; an array of them, or one over several lines, needs"
            " options.multiLine = true"
        )
    if isinstance(types[column].dataType, StringType):
        return f"{row}, column {column!r}: {text!r} is not UTF-8; options.encoding says what it is, such as ISO-8859-1"
    kind = types[column].dataType
    return f"{row}, column {column!r}: {text!r} is no {kind.simpleString()}{why_none(text, kind)}"
