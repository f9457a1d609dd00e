"""The conditions of Spark that PostgreSQL decides in its place (R2), and values as SQL."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
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
    TimestampType,
)

from spark.schemas import SourceTable

_COMPARISONS: Final[dict[type[Filter], str]] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}


def literal(value: object) -> str:
    """``value`` as an SQL literal; the only place where values become SQL text.

    :raises TypeError: a type that has none here.
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
        # E'' whatever standard_conforming_strings says
        return "E'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
    raise TypeError(f"no SQL literal for {type(value).__name__}")


def condition_sql(table: SourceTable, pushed: Filter) -> str | None:
    """``pushed`` as SQL on ``table``, or ``None`` where PostgreSQL might decide otherwise than Spark."""
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
    """The literal where value and column are of one kind, else ``None``."""
    if is_uuid:
        # only the form that the store shows: text compares like uuid then, and only then
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
