"""Provide the store's tables as a Spark data source, ``spark.read.format("halfop")`` (R2).

ADBC reads Arrow record batches from PostgreSQL's binary COPY; a task holds one batch at a time. Options:

``table``        one of :data:`spark.schemas.TABLES`; required
``columns``      comma-separated, in the order wanted, and numbers of UUIDs besides (:mod:`spark.schemas`); default: all
                 columns (Spark does not tell a Python source what it prunes)
``since``, ``until``  ISO 8601 with a zone: the period of :mod:`spark.period`; default: everything
``reach``        seconds, of the same period; default 0
``partitions``   how many at most; default: one per ``BYTES_PER_PARTITION`` of the table
``snapshot``     the name of an exported snapshot (:mod:`spark.snapshot`), which all partitions then read
``credentials``  path of a file that holds nothing but the database URL, readable by its owner only; default: the
                 environment variable ``COORDINATOR_DATABASE_URL`` of the process that reads

The URL itself is never an option: options show in plans, logs and Spark's web UI.
"""

from __future__ import annotations

import os
import sys
import uuid
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import (
    BooleanType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from spark.master import DATABASE_VARIABLE
from spark.period import BEGINNING, END, Period
from spark.schemas import TABLES, SourceTable
from store import tables

if TYPE_CHECKING:
    import pyarrow as pa
    from adbc_driver_manager import AdbcDatabase

_COMPARISONS: Final[dict[type[Filter], str]] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
FORMAT: Final = "halfop"
BYTES_PER_PARTITION: Final = 64 * 1024 * 1024
#: The approximate size of an Arrow batch in a task.
BATCH_BYTES: Final = 4 * 1024 * 1024
#: Pages of 8 KiB that are sampled to split a table evenly: for each partition wanted, and at most.
SAMPLE_PAGES: Final = 128
MOST_SAMPLE_PAGES: Final = 4096
_PAGE: Final = 8192

_OPTIONS: Final = frozenset(
    {"table", "columns", "since", "until", "reach", "partitions", "snapshot", "credentials", "path"}
)


class SourceOptionError(ValueError):
    """An option of the data source is missing or wrong; the message names it, and what was expected."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """The options of one read, checked."""

    table: SourceTable
    columns: tuple[str, ...]
    period: Period
    partitions: int | None
    snapshot: str | None
    credentials: str | None

    @classmethod
    def parse(cls, given: dict[str, str]) -> ReadOptions:
        """Check the options of a read.

        :raises SourceOptionError: an unknown option, or an invalid value.
        """
        unknown = sorted(key for key in given if key.lower() not in _OPTIONS)
        if unknown:
            raise SourceOptionError(
                f"option {unknown[0]!r}: there is none of this name; there are {sorted(_OPTIONS - {'path'})}"
            )
        name = given.get("table", "")
        if name not in TABLES:
            raise SourceOptionError(f"option 'table': {name!r}, expected one of {sorted(TABLES)}")
        table = TABLES[name]
        columns = tuple(part.strip() for part in given.get("columns", ",".join(table.schema.names)).split(","))
        for column in columns:
            if column not in table.sql and column not in table.words:
                raise SourceOptionError(
                    f"option 'columns': {name} has no column {column!r}; it has {[*table.schema.names, *table.words]}"
                )
        if len(set(columns)) != len(columns):
            raise SourceOptionError(f"option 'columns': a column is named twice in {','.join(columns)!r}")
        try:
            period = Period(
                since=_moment(given, "since", BEGINNING),
                until=_moment(given, "until", END),
                reach=timedelta(seconds=float(given.get("reach", "0"))),
            )
        except ValueError as error:
            raise SourceOptionError(f"options 'since', 'until', 'reach': {error}") from None
        partitions = given.get("partitions")
        if partitions is not None and (not partitions.isdecimal() or not 1 <= int(partitions) <= 100_000):
            raise SourceOptionError(f"option 'partitions': {partitions!r}, expected a number from 1 to 100000")
        return cls(
            table=table,
            columns=columns,
            period=period,
            partitions=int(partitions) if partitions is not None else None,
            snapshot=given.get("snapshot"),
            credentials=given.get("credentials"),
        )


def _moment(given: dict[str, str], option: str, default: datetime) -> datetime:
    return datetime.fromisoformat(given[option]) if option in given else default


def database_url(credentials: str | None) -> str:
    """Return the URL of the database, from the file or the environment of this process.

    :raises SourceOptionError: no file, no variable, or a file that others may read, or that is no text.
    """
    if credentials is None:
        url = os.environ.get(DATABASE_VARIABLE, "")
        if not url:
            raise SourceOptionError(f"no option 'credentials', and {DATABASE_VARIABLE} is not set where the task runs")
        return url
    path = Path(credentials)
    try:
        mode = path.stat().st_mode
        url = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SourceOptionError(f"option 'credentials': {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SourceOptionError(f"option 'credentials': {path} is no text; expected a URL alone, in UTF-8") from None
    if mode & 0o077:
        raise SourceOptionError(f"option 'credentials': {path} can be read by others; expected mode 0600")
    return url


class HalfOpSource(DataSource):
    """The data source ``halfop``; the module's docstring lists its options."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        read = ReadOptions.parse(dict(self.options))
        return StructType([read.table.field(column) for column in read.columns])

    def reader(self, schema: StructType) -> HalfOpReader:
        return HalfOpReader(ReadOptions.parse(dict(self.options)))


class KeyRange(InputPartition):
    """A partition: rows with keys from ``low`` to below ``high``, SQL literals of the key's columns; None: no bound."""

    def __init__(self, low: tuple[str, ...] | None, high: tuple[str, ...] | None) -> None:
        super().__init__((low, high))
        self.low = low
        self.high = high


class HalfOpReader(DataSourceReader):
    """Reads one table by ranges of its key, each range in a connection of its own, all in one snapshot."""

    def __init__(self, read: ReadOptions) -> None:
        self._options, self._at = read, (read.credentials, read.snapshot)
        self._conditions: list[str] = [read.period.read(read.table.name)]

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Push down comparisons with a literal that PostgreSQL evaluates as Spark does; yield the others back."""
        for pushed in filters:
            condition = condition_sql(self._options.table, pushed)
            if condition is None:
                yield pushed
            else:
                self._conditions.append(condition)

    def partitions(self) -> list[KeyRange]:
        table = self._options.table
        with Session(*self._at) as session:
            pages = _pages(session, table.name)
            wanted = self._options.partitions or max(1, -(-pages * _PAGE // BYTES_PER_PARTITION))
            bounds = _quantiles(session, table, " and ".join(self._conditions), pages, wanted)
        edges: list[tuple[str, ...] | None] = [None, *bounds, None]
        return [KeyRange(low, high) for low, high in pairwise(edges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, KeyRange)
        with Session(*self._at) as session, session.stream(self._select(partition)) as reader:
            for rows in reader:
                yield self._wanted(rows)

    def whole(self) -> pa.Table:
        """Read all rows in this process."""
        import pyarrow as pa

        with Session(*self._at) as session, session.stream(self._select(KeyRange(None, None))) as reader:
            found = reader.read_all()
        none = pa.RecordBatch.from_pylist([], found.schema)
        return pa.Table.from_batches(map(self._wanted, found.to_batches() or [none]))

    def _wanted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the requested columns; the numbers of a UUID are computed from its octets."""
        import pyarrow as pa

        words = self._options.table.words
        numbers = {uuid: _words(rows.column(f"{uuid}_words")) for uuid in self._uuids()}
        columns = {}
        for name in self._options.columns:
            if name in words:
                of, place = words[name]
                columns[name] = numbers[of][place]
            else:
                columns[name] = rows.column(name)
        return pa.RecordBatch.from_pydict(columns)

    def _uuids(self) -> list[str]:
        """Return the UUID columns whose numbers were requested."""
        words = self._options.table.words
        return list(dict.fromkeys(words[name][0] for name in self._options.columns if name in words))

    def _select(self, partition: KeyRange) -> str:
        table = self._options.table
        key = f"({', '.join(table.key)})" if len(table.key) > 1 else table.key[0]
        conditions = list(self._conditions)
        for bound, comparison in ((partition.low, ">="), (partition.high, "<")):
            if bound is not None:
                conditions.append(f"{key} {comparison} ({', '.join(bound)})")
        columns = [f"{table.sql[name]} as {name}" for name in self._options.columns if name not in table.words]
        columns += [f"{name} as {name}_words" for name in self._uuids()]
        return f"select {', '.join(columns)} from {tables.SCHEMA}.{table.name} where {' and '.join(conditions)}"


def _words(uuids: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the first and the last 64 bits of each UUID, as signed numbers."""
    import pyarrow as pa

    octets = uuids.storage
    numbers = array("q")
    numbers.frombytes(memoryview(octets.buffers()[1])[16 * octets.offset : 16 * (octets.offset + len(octets))])
    if sys.byteorder == "little":
        numbers.byteswap()
    valid = octets.is_valid().buffers()[1] if octets.null_count else None
    high, low = (
        pa.Array.from_buffers(pa.int64(), len(octets), [valid, pa.py_buffer(numbers[place::2])]) for place in (0, 1)
    )
    return high, low


class Session:
    """Connects read-only to the store, in the run's snapshot or in one of its own.

    It uses ADBC's lower layer: the upper one (DBAPI) imports much that no task needs.
    """

    def __init__(self, credentials: str | None, snapshot: str | None = None) -> None:
        # Imported where it is needed: Spark loads this module in a new process for each plan, too.
        import adbc_driver_manager
        import adbc_driver_postgresql

        self._manager = adbc_driver_manager
        self._batch_size = adbc_driver_postgresql.StatementOptions.BATCH_SIZE_HINT_BYTES.value
        self._connect(adbc_driver_postgresql.connect, database_url(credentials))
        try:
            if self.rows("select where current_setting('quote_all_identifiers')::boolean"):
                # the driver then knows no type: it queries them before a statement of ours can change the setting
                self.close()
                self._connect(adbc_driver_postgresql.connect, _without_quotes(database_url(credentials)))
            self._connection.set_autocommit(False)
            self.do("set transaction isolation level repeatable read read only")
            # the driver assumes that all text is UTF-8
            self.do("set local client_encoding = 'UTF8'")
            if snapshot is not None:
                self.do(f"set transaction snapshot {literal(snapshot)}")
            # One COPY a task: parallel workers of PostgreSQL would compete with the other tasks.
            self.do("set local max_parallel_workers_per_gather = 0")
        except BaseException:
            self.close()
            raise

    def _connect(self, connect: Callable[[str], AdbcDatabase], url: str) -> None:
        self._database = connect(url)
        try:
            self._connection = self._manager.AdbcConnection(self._database)
        except BaseException:
            self._database.close()
            raise

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()
        self._database.close()

    def do(self, sql: str) -> None:
        with self._manager.AdbcStatement(self._connection) as statement:
            statement.set_sql_query(sql)
            statement.execute_update()

    @contextmanager
    def stream(self, sql: str) -> Iterator[pa.RecordBatchReader]:
        """Stream the rows of ``sql`` as they are received."""
        import pyarrow as pa

        with self._manager.AdbcStatement(self._connection) as statement:
            statement.set_options(**{self._batch_size: str(BATCH_BYTES)})
            statement.set_sql_query(sql)
            stream, _ = statement.execute_query()
            with pa.RecordBatchReader._import_from_c(stream.address) as reader:
                yield reader

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Return all rows of ``sql``, which must be few."""
        with self.stream(sql) as reader:
            return [tuple(row.values()) for row in reader.read_all().to_pylist()]


def _without_quotes(url: str) -> str:
    """Return ``url`` with ``quote_all_identifiers`` off, so that sessions quote only names that need it."""
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    given = conninfo_to_dict(url).get("options") or ""
    return make_conninfo(url, options=f"{given} -c quote_all_identifiers=off".strip())


def _pages(session: Session, table: str) -> int:
    found = session.rows(
        f"select coalesce(sum(pg_relation_size(relid)), 0)::bigint / {_PAGE} as pages"
        f" from pg_partition_tree('{tables.SCHEMA}.{table}') where isleaf"
    )
    return int(found[0][0])


def _quantiles(session: Session, table: SourceTable, condition: str, pages: int, wanted: int) -> list[tuple[str, ...]]:
    """Return ``wanted`` - 1 keys that split the rows under ``condition`` evenly, by a sample of the pages (R3)."""
    if wanted <= 1:
        return []
    looked_at = min(SAMPLE_PAGES * wanted, MOST_SAMPLE_PAGES)
    share = 100.0 if pages <= looked_at else 100.0 * looked_at / pages
    while True:
        sample = "" if share >= 100 else f" tablesample system ({share:.6f})"
        key = ", ".join(table.key)
        # the last of each of ``wanted`` groups but one begins the next
        rows = session.rows(
            f"""
            with sampled as (
              select {key}, row_number() over (order by {key}) as place, count(*) over () as total
                from {tables.SCHEMA}.{table.name}{sample} where {condition})
            select total, {", ".join(f"{part}::text" for part in table.key)} from sampled
             where place > 1 and (place - 1) * {wanted} / total <> (place - 2) * {wanted} / total order by place"""
        )
        # a narrow condition can leave too few rows of the sample to split by: then all rows are read, once
        if share >= 100 or (rows and int(rows[0][0]) >= 100 * wanted):
            return [tuple(literal(str(value)) for value in row[1:]) for row in rows]
        share = 100.0


def literal(value: object) -> str:
    """Return ``value`` as an SQL literal; this is the only place where values become SQL text.

    :raises TypeError: a value of another type.
    """
    if value is True or value is False:
        return str(value).lower()
    if isinstance(value, int | Decimal):
        return str(value)
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        return f"'{moment.isoformat()}'::timestamptz"
    if isinstance(value, str):
        if "\0" in value:
            raise TypeError("text with a NUL octet is not PostgreSQL's text")
        # E'' is independent of standard_conforming_strings
        return "E'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
    raise TypeError(f"no SQL literal for {type(value).__name__}")


def condition_sql(table: SourceTable, pushed: Filter) -> str | None:
    """Return ``pushed`` as SQL on ``table``, or ``None`` if PostgreSQL might evaluate it otherwise than Spark."""
    attribute: tuple[str, ...] = getattr(pushed, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in table.sql:
        return None
    column = attribute[0]
    spark_type = table.schema[column].dataType
    if isinstance(pushed, IsNull):
        return f"{column} is null"
    if isinstance(pushed, IsNotNull):
        return f"{column} is not null"
    if table.sql[column] not in (column, f"{column}::text"):
        return None
    is_uuid = table.sql[column] != column
    if isinstance(pushed, In):
        values = [_literal_of(value, spark_type, is_uuid) for value in pushed.value]
        return f"{column} in ({', '.join(values)})" if values and None not in values else None  # type: ignore[arg-type]
    comparison = _COMPARISONS.get(type(pushed))
    if comparison is None:
        return None
    if isinstance(spark_type, StringType) and not is_uuid and comparison != "=":
        return None  # the database's collation is not Spark's order
    value = _literal_of(pushed.value, spark_type, is_uuid)  # type: ignore[attr-defined]
    return None if value is None else f"{column} {comparison} {value}"


def _literal_of(value: object, spark_type: object, is_uuid: bool) -> str | None:
    """Return the literal if value and column have the same type, else ``None``."""
    if is_uuid:
        # only the store's form of a UUID: only that compares as text like a uuid
        try:
            return literal(value) if isinstance(value, str) and str(uuid.UUID(value)) == value else None
        except ValueError:
            return None
    kinds: tuple[tuple[type, type | tuple[type, ...]], ...] = (
        (BooleanType, bool),
        (TimestampType, datetime),
        (StringType, str),
        (ShortType, int),
        (IntegerType, int),
        (LongType, int),
    )
    for spark_kind, python_kind in kinds:
        if isinstance(spark_type, spark_kind) and isinstance(value, python_kind):
            if isinstance(value, bool) and spark_kind is not BooleanType:
                return None
            if isinstance(value, datetime) and value.tzinfo is None:
                return None
            return None if isinstance(value, str) and "\0" in value else literal(value)
    return None
