"""Compare a producer's book with the store: lost, phantom, undecided and different messages (R20 to R23)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    NumericType,
    TimestampNTZType,
    TimestampType,
)

from spark.books.description import BookDescription
from spark.books.rows import Book, judged_row, says, usable
from spark.books.unusable import (
    messages_in_sql,
    posted_in_sql,
    repeated_messages,
    repeated_rows,
    unusable_messages,
    unusable_rows,
)
from spark.books.written import FRACTION, as_number, digits_behind_point
from spark.finding import HALF, Case, findings, shown
from spark.period import Period

_ONLY_ITS_CLIENT: Final = (
    "let its client commit it, which alone can; if the client is gone, the transaction rolls back by itself: then post"
    " the message again from the book's row"
)


def book_findings(book: Book, marks: DataFrame, period: Period, seen_at: datetime) -> DataFrame:
    """Return the findings of all differences between the book and the store.

    Those about its rows together are in :func:`spark.books.unusable.rows_together`. ``marks``: the result of
    :meth:`spark.books.production.Production.marks`, with ``address`` (a name).
    """
    assert isinstance(book.description, BookDescription)
    rows = book.rows.withColumn("judged_row", judged_row(period))
    keyed_rows = _rows_by_key(rows, len(book.description.equal))
    keyed_marks = marks.where(usable())
    comparison = _Comparison(
        description=book.description,
        settled=f.lit(seen_at - book.description.grace),
        settled_here=f.lit(book.settled(seen_at)),
        rows=keyed_rows,
        marks=keyed_marks,
    )
    committed = marks.where(f.col("judged") & (f.col("state") == "committed") & f.col("half_id").isNotNull())
    by_txn_id = book.description.by_txn_id
    with_key = committed.where(~posted_in_sql()) if by_txn_id else committed
    found = [
        findings(comparison.judged_rows(), seen_at, comparison.lost(), comparison.undecided()),
        findings(
            comparison.judged_messages(),
            seen_at,
            comparison.phantom(),
            *comparison.different(book),
        ),
        unusable_rows(book.name, rows, seen_at),
        repeated_rows(book.name, keyed_rows, seen_at),
        unusable_messages(book.description, with_key, seen_at),
        repeated_messages(book.description, committed, seen_at),
    ]
    if by_txn_id:
        found.append(messages_in_sql(book.description, committed, seen_at))
    return reduce(DataFrame.unionByName, found)


def _rows_by_key(rows: DataFrame, pairs: int) -> DataFrame:
    """Group the usable rows by key.

    ``key, rows`` (how many), ``judged_row, at, book_committed, book_rolled_back, says, compared_<n>``."""
    return (
        rows.where(usable())
        .groupBy("key")
        .agg(
            f.count("*").alias("rows"),
            f.bool_or("judged_row").alias("judged_row"),
            f.min("at").alias("at"),
            # one committed row of a repeated key counts; the key is also reported as repeated
            f.bool_or(f.col("state") == "committed").alias("book_committed"),
            f.bool_or(f.col("state") == "rolled-back").alias("book_rolled_back"),
            f.min("says").alias("says"),
            *(f.min(f"compared_{place}").alias(f"compared_{place}") for place in range(pairs)),
        )
    )


def _marks_by_key(marks: DataFrame) -> DataFrame:
    """Group the transactions by key: whether one is committed, and one of those that are not.

    ``key, committed, undecided_txn, rolled_back_txn, undecided_address, undecided_plain``."""
    undecided = f.col("state") == "open"
    return marks.groupBy("key").agg(
        f.bool_or(f.col("state") == "committed").alias("committed"),
        f.max(f.when(undecided, f.col("txn_id"))).alias("undecided_txn"),
        f.max(f.when(f.col("state") == "rolled-back", f.col("txn_id"))).alias("rolled_back_txn"),
        f.max(f.when(undecided, f.col("address"))).alias("undecided_address"),
        f.coalesce(f.bool_and(f.when(undecided, f.col("plain"))), f.lit(False)).alias("undecided_plain"),
    )


@dataclass(frozen=True, kw_only=True)
class _Comparison:
    """Builds the cases in which book and store differ.

    ``rows``: of :func:`_rows_by_key`. ``marks``: those with a key. No row is judged that is younger than ``settled``,
    and no message that is younger than ``settled_here``."""

    description: BookDescription
    settled: Column
    settled_here: Column
    rows: DataFrame
    marks: DataFrame

    def judged_rows(self) -> DataFrame:
        """Return the book's rows, each with the transactions of its key."""
        beside = self.rows.join(_marks_by_key(self.marks), "key", "left")
        return beside.where(f.col("judged_row") & (f.col("at") <= self.settled))

    def judged_messages(self) -> DataFrame:
        """Return the committed messages, each with the book's row of its key."""
        committed = (f.col("state") == "committed") & f.col("half_id").isNotNull()
        judged = self.marks.where(committed & f.col("judged") & (f.col("decided_at") <= self.settled_here))
        return judged.join(self.rows.drop("judged_row"), "key", "left")

    def _detail(self, text: str, *columns: Column) -> Column:
        return detail_of(self.description.name, text, *columns)

    def lost(self) -> Case:
        """R20: a row is committed in the book, and its transaction neither committed nor undecided in the store."""
        not_sent = ~f.coalesce("committed", f.lit(False)) & f.col("undecided_txn").isNull()
        addresses = self.description.addresses
        return Case(
            kind="lost-message",
            severity="error",
            where=f.col("book_committed") & not_sent,
            about={
                "txn_id": f.col("key") if self.description.by_txn_id else f.col("rolled_back_txn"),
                "address": f.lit(addresses[0] if len(addresses) == 1 else None),
            },
            detail=self._detail(
                "the book says committed, the coordinator %s",
                f.when(f.col("rolled_back_txn").isNotNull(), "rolled it back").otherwise("knows nothing of it"),
            ),
            suggested_repair="post the message again from the book's row",
        )

    def undecided(self) -> Case:
        """R22: a row is decided in the book, and its transaction undecided in the store."""
        decision = f.when(f.col("book_committed"), "commit").otherwise("rollback")
        resolve = f.format_string(
            'coordinator transaction resolve %s --%s --reason "as the book says"', f.col("undecided_txn"), decision
        )
        return Case(
            kind="undecided-but-known",
            severity="warning",
            where=f.col("undecided_txn").isNotNull()
            & ~f.coalesce("committed", f.lit(False))
            & (f.col("book_committed") != f.col("book_rolled_back")),
            about={"txn_id": f.col("undecided_txn"), "address": f.col("undecided_address")},
            detail=self._detail(
                "undecided here, the book says %s",
                f.when(f.col("book_committed"), "committed").otherwise("rolled back"),
            ),
            suggested_repair=f.when(f.col("book_committed") & f.col("undecided_plain"), _ONLY_ITS_CLIENT).otherwise(
                resolve
            ),
        )

    def phantom(self) -> Case:
        """R21: a message is committed in the store, and rolled back in the book or missing there."""
        rolled_back = f.col("book_rolled_back") & ~f.col("book_committed") & (f.col("at") <= self.settled)
        return Case(
            kind="phantom-message",
            severity="error",
            where=f.col("rows").isNull() | rolled_back,
            about=HALF,
            detail=self._detail(
                "the coordinator committed it, the book %s",
                f.when(f.col("rows").isNull(), "has no row").otherwise("says rolled back"),
            ),
            suggested_repair="tell the consumers of the address, or write the row that is missing",
        )

    def different(self, book: Book) -> list[Case]:
        """R23: a message that is committed on both sides has other values than its row."""
        known = f.col("book_committed") & (f.col("rows") == 1) & (f.col("at") <= self.settled)
        return different(book, known, HALF)


def detail_of(name: str, text: str, *columns: Column) -> Column:
    """Return the detail of a finding about a key of the book ``name``; with columns ``text`` is a format string."""
    prefix = f.format_string(f"book {name}, key %s%s: ", shown(f.col("key")), says())
    return f.concat(prefix, f.format_string(text, *columns) if columns else f.lit(text))


def different(book: Book, known: Column, about: Sequence[str]) -> list[Case]:
    """R23: a message that is ``known`` on both sides differs from its row in a compared pair."""
    cases = []
    for place, (pair, spark_type) in enumerate(zip(book.description.equal, book.types, strict=True)):
        in_book, in_message = f.col(f"compared_{place}"), f.element_at("picked", place + 1)
        cases.append(
            Case(
                kind="different-content",
                severity="error",
                where=known & ~_equal(in_book, in_message, spark_type),
                about=about,
                detail=detail_of(
                    book.name,
                    f"{_escaped(pair.column)} is %s in the book, {_escaped(pair.message)} is %s in the message",
                    f.coalesce(shown(in_book.cast("string")), f.lit("null")),
                    f.coalesce(shown(in_message), f.lit("missing")),
                ),
                suggested_repair="find out which is right; post a correction, or correct the row",
            )
        )
    return cases


def _escaped(text: str) -> str:
    """Escape ``text`` for a format string of Java's."""
    return text.replace("%", "%%")


def _equal(in_book: Column, in_message: Column, spark_type: DataType) -> Column:
    """Return the condition that the message's text stands for the book's value."""
    row, message = comparable(in_book, in_message, spark_type)
    return reduce(Column.__and__, (one.eqNullSafe(other) for one, other in zip(row, message, strict=True)))


def comparable(in_book: Column, in_message: Column, spark_type: DataType) -> tuple[tuple[Column, ...], ...]:
    """Return values of the row and of the message that are equal if the message's text stands for the book's value.

    Numbers are compared by value, whatever their notation; text that does not parse equals no value."""
    if isinstance(spark_type, DecimalType | IntegralType):
        return _exactly(in_book, in_message, spark_type)
    if isinstance(spark_type, NumericType | BooleanType | DateType | TimestampType | TimestampNTZType):
        value, parsed = in_book, in_message.try_cast(spark_type)
        return (value, f.lit(False)), (parsed, in_message.isNotNull() & parsed.isNull())
    return (in_book.cast("string"),), (in_message,)


def _exactly(
    in_book: Column, in_message: Column, spark_type: DecimalType | IntegralType
) -> tuple[tuple[Column, ...], ...]:
    """Compare numbers up to 18 digits after the point, or as many as the book's type has."""
    # a whole number has 19 digits at most
    whole, scale = (
        (19, 0) if isinstance(spark_type, IntegralType) else (spark_type.precision - spark_type.scale, spark_type.scale)
    )
    text, room = as_number(in_message), 38 - whole
    if room >= FRACTION:
        types = [DecimalType(38, max(FRACTION, scale))]
        parsed = [text.try_cast(types[0])]
    else:
        types = [DecimalType(38, FRACTION), DecimalType(38, room)]
        first, second = (text.try_cast(each) for each in types)
        # a number that does not fit into the first type must not be rounded to the digits of the second
        parsed = [first, f.when(first.isNotNull() | (digits_behind_point(text) <= room), second)]
    nothing = reduce(Column.__and__, (each.isNull() for each in parsed))
    return (*(in_book.try_cast(each) for each in types), f.lit(False)), (*parsed, in_message.isNotNull() & nothing)
