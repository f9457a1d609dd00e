"""Define the columns of the store in Spark, and the schema of all findings.

:data:`TABLES` is what the data source ``halfop`` can read: for each table its columns (Spark type and the SQL that
yields it) and the key by which it is split. UUIDs are text in lower case, which sorts as the UUIDs do; or two numbers,
of their first and of their last 64 bits, which take a third of the time: ``id_high`` and ``id_low`` of a column ``id``.
``xid8`` is a number. A test compares the columns with :mod:`store.tables`.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from sqlalchemy import BigInteger, Boolean, DateTime, Integer, LargeBinary, SmallInteger, Table, Text, Uuid
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.types import TypeEngine

from store import tables


@dataclass(frozen=True, kw_only=True)
class SourceTable:
    """A table of the store as the data source reads it."""

    name: str
    schema: StructType
    #: column -> the SQL expression that yields it in a form that Arrow and Spark share
    sql: dict[str, str]
    #: the columns whose ranges make the partitions: the primary key
    key: tuple[str, ...]
    #: numbers besides the columns of ``schema``: the UUID of each, and which half of it (0 or 1)
    words: dict[str, tuple[str, int]]

    def field(self, column: str) -> StructField:
        """Return the field of a column.

        :raises KeyError: no column has this name.
        """
        return StructField(column, LongType()) if column in self.words else self.schema[column]


def _spark_type(column_type: TypeEngine[object]) -> DataType:
    """Return the Spark type of a column of the store. Raises ``TypeError`` for a type without a mapping."""
    if isinstance(column_type, ARRAY):
        return ArrayType(_spark_type(column_type.item_type), containsNull=True)
    if isinstance(column_type, tables.Xid8):
        return LongType()
    for known, spark_type in (
        (SmallInteger, ShortType()),
        (BigInteger, LongType()),
        (Integer, IntegerType()),
        (Boolean, BooleanType()),
        (LargeBinary, BinaryType()),
        (DateTime, TimestampType()),
        (Text, StringType()),
        (Uuid, StringType()),
    ):
        if isinstance(column_type, known):
            return spark_type
    raise TypeError(f"no Spark type for a column of type {column_type!r}")


def _source_table(table: Table) -> SourceTable:
    fields: list[StructField] = []
    sql: dict[str, str] = {}
    words: dict[str, tuple[str, int]] = {}
    for column in table.columns:
        # all nullable: Arrow batches from PostgreSQL do not contain which are not
        fields.append(StructField(column.name, _spark_type(column.type)))
        if isinstance(column.type, Uuid):
            sql[column.name] = f"{column.name}::text"
            words |= {f"{column.name}_{name}": (column.name, place) for place, name in enumerate(("high", "low"))}
        elif isinstance(column.type, tables.Xid8):
            # ADBC has no xid8; below 2^63 it is the same number
            sql[column.name] = f"{column.name}::text::bigint"
        else:
            sql[column.name] = column.name
    return SourceTable(
        name=table.name,
        schema=StructType(fields),
        sql=sql,
        key=tuple(column.name for column in table.primary_key.columns),
        words=words,
    )


#: Every table that the reconciliation reads, by name.
TABLES: Final = MappingProxyType(
    {
        table.name: _source_table(table)
        for table in (
            tables.address,
            tables.consumer_group,
            tables.group_read,
            tables.removed_address,
            tables.removed_group,
            tables.half,
            tables.op,
            tables.entry,
            tables.txn,
            tables.instance,
            tables.inbox,
        )
    }
)

#: The schema of a finding of one store (docs/explanation/reconciliation.md). ``seen_at`` is the moment of the snapshot;
#: ``key`` is the application's own key of a book's row or message.
FINDING: Final = StructType(
    [
        StructField("kind", StringType(), False),
        StructField("severity", StringType(), False),
        StructField("txn_id", StringType(), True),
        StructField("half_id", LongType(), True),
        StructField("address", StringType(), True),
        StructField("consumer_group", StringType(), True),
        StructField("key", StringType(), True),
        StructField("seen_at", TimestampType(), False),
        StructField("detail", StringType(), False),
        StructField("suggested_repair", StringType(), False),
    ]
)

#: Severities, the mildest first.
SEVERITIES: Final = ("note", "warning", "error")
