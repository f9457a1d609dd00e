"""Find rows and messages that cannot be compared: their key is null, does not parse, or occurs twice (R25)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark.books.description import BookDescription, Description
from spark.books.rows import says, usable
from spark.finding import HALF, Case, findings, shown
from store.ids import OUTBOX, SLOTS


def unusable_rows(name: str, rows: DataFrame, seen_at: datetime) -> DataFrame:
    """Return findings about rows of a book without a usable key, state or time."""
    unclear = f.col("problem").isNull() & f.col("unclear").isNotNull()
    key = f.coalesce(shown(f.col("key")), f.lit("unknown"))
    prefix = f.concat(f.lit(f"book {name}, key "), key, says(), f.lit(": "))
    problem = Case(
        kind=f.substring_index("problem", ":", 1),
        severity="warning",
        where=f.col("problem").isNotNull() & f.coalesce("judged_row", f.lit(True)),
        detail=f.concat(prefix, f.expr("substring(problem, instr(problem, ':') + 1)")),
        suggested_repair="correct the row, or the book's description; it was compared with nothing",
    )
    no_time = Case(
        kind="unclear-row",
        severity="warning",
        where=unclear,
        detail=f.concat(prefix, f.col("unclear")),
        suggested_repair="correct the time: until then no run judges the row, whatever its period",
    )
    return findings(rows, seen_at, problem, no_time)


def rows_together(description: Description, rows: DataFrame, seen_at: datetime) -> DataFrame:
    """Return one finding about all rows whose time has no zone and was assumed to be UTC, one about those in the
    future, and one if each key ends in blanks."""
    future = f.col("at") > f.lit(seen_at + description.grace)
    told = rows.where("judged_row").agg(
        *_counted("without", f.col("without_zone")),
        *_counted("future", future),
        *_counted("blank", f.col("key").endswith(" ")),
        f.count("key").alias("keys"),
    )
    key = description.key.replace("%", "%%")
    blank_keys = Case(
        kind="unclear-row",
        severity="note",
        where=(f.col("keys") > 0) & (f.col("blank_rows") == f.col("keys")),
        detail=f.format_string(
            f"book {description.name}, column {key}: all %d keys end in blanks, as those of the type char(n) do; they"
            " are compared exactly, the first is '%s'",
            f.col("keys"),
            shown(f.col("blank_first.key")),
        ),
        suggested_repair="where the messages have no blanks, take them off: options.query = 'select rtrim(...) ...'",
    )
    return findings(
        told,
        seen_at,
        _of_times(
            description,
            "without",
            kind="time-without-zone",
            severity="note",
            said="have no zone and were taken for UTC",
            repair="write the zone with the time; where it is another, rows are judged too early or too late",
        ),
        _of_times(
            description,
            "future",
            kind="unclear-row",
            severity="warning",
            said="are in the future, and their rows were not judged",
            repair="see whether the times are of another zone, or the book's clock is wrong",
        ),
        blank_keys,
    )


def _counted(name: str, where: Column) -> tuple[Column, Column]:
    """Return how many rows fulfil a condition, and the first of them."""
    first = f.min(f.when(where, f.struct("at", "key")))
    return f.count_if(where).alias(f"{name}_rows"), first.alias(f"{name}_first")


def _of_times(description: Description, name: str, *, kind: str, severity: str, said: str, repair: str) -> Case:
    column = description.time.replace("%", "%%")
    return Case(
        kind=kind,
        severity=severity,
        where=f.col(f"{name}_rows") > 0,
        detail=f.format_string(
            f"book {description.name}, column {column}: %d times {said}, the first of key %s: %s",
            f.col(f"{name}_rows"),
            f.coalesce(shown(f.col(f"{name}_first.key")), f.lit("unknown")),
            f.date_format(f.col(f"{name}_first.at"), "yyyy-MM-dd HH:mm:ss"),
        ),
        suggested_repair=repair,
    )


def repeated_rows(name: str, by_key: DataFrame, seen_at: datetime) -> DataFrame:
    """Return findings about keys of several rows. ``by_key``: usable rows by key, with their number (``rows``)."""
    repeated = Case(
        kind="repeated-key",
        severity="warning",
        where=f.col("judged_row") & (f.col("rows") > 1),
        detail=f.format_string(f"book {name}, key %s%s: in %d rows", shown(f.col("key")), says(), f.col("rows")),
        suggested_repair="find out which row is right; until then the key counts as committed when one row says so",
    )
    return findings(by_key, seen_at, repeated)


def unusable_messages(
    book: Description, messages: DataFrame, seen_at: datetime, about: Sequence[str] = HALF
) -> DataFrame:
    """Return findings about messages without a usable key."""
    unparsable = f.col("problem").isNotNull()
    missing = ~unparsable & f.col("key").isNull()
    return findings(
        messages,
        seen_at,
        _without_key(book.name, "unparsable-key", unparsable, f.col("problem"), about),
        _without_key(book.name, "null-key", missing, f.lit(f"no {book.message_key}"), about),
    )


def posted_in_sql() -> Column:
    """Return the condition that a message's id was generated by the database: an application posted it in SQL (X2)."""
    slot = f.shiftright("half_id", 12).bitwiseAND(SLOTS - 1)
    return f.col("txn_id").isNull() & (slot == OUTBOX)


def messages_in_sql(book: Description, messages: DataFrame, seen_at: datetime) -> DataFrame:
    """Return one finding about all messages that were posted in SQL, which a book by txn-id cannot have."""
    told = messages.where(posted_in_sql()).agg(f.count("*").alias("messages"), f.min("half_id").alias("first"))
    note = Case(
        kind="posted-in-sql",
        severity="note",
        where=f.col("messages") > 0,
        detail=f.format_string(
            f"book {book.name}: %d messages were posted in SQL, have no txn-id, and were compared with nothing; the"
            " first is %d",
            "messages",
            "first",
        ),
        suggested_repair="none; a book by a key of the messages (message_key = 'message-id') compares them, too",
    )
    return findings(told, seen_at, note)


def repeated_messages(book: BookDescription, committed: DataFrame, seen_at: datetime) -> DataFrame:
    """Return findings about keys with which more than one message was committed."""
    repeated = Case(
        kind="repeated-key",
        severity="warning",
        where=f.col("times") > 1,
        about=HALF,
        detail=f.format_string(f"book {book.name}, key %s: committed %d times", shown(f.col("key")), f.col("times")),
        suggested_repair="a producer that retried after an unknown answer posted it again? tell the consumers",
    )
    with_key = committed.where(usable())
    return findings(_by_key(with_key), seen_at, repeated)


def _without_key(name: str, kind: str, where: Column, detail: Column, about: Sequence[str]) -> Case:
    return Case(
        kind=kind,
        severity="warning",
        where=where,
        about=about,
        detail=f.concat(f.lit(f"book {name}: the message has no key that can be used: "), detail),
        suggested_repair="let the producer set the key; the message was compared with nothing",
    )


def _by_key(messages: DataFrame) -> DataFrame:
    """Count how often each key was committed: ``key, times``, and ``half_id, txn_id, address`` of the last."""
    return messages.groupBy("key").agg(
        f.count_distinct(f.coalesce("txn_id", f.col("half_id").cast("string"))).alias("times"),
        f.max("half_id").alias("half_id"),
        f.max_by("txn_id", "half_id").alias("txn_id"),
        f.max_by("address", "half_id").alias("address"),
    )
