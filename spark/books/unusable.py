"""Rows and messages that cannot be compared, because their key is null, does not parse or occurs twice (R25)."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark.books.description import BookDescription
from spark.finding import HALF, finding


def unusable_rows(name: str, rows: DataFrame, by_key: DataFrame, seen_at: datetime) -> list[DataFrame]:
    """Findings of a book's rows. ``by_key``: the usable ones, with how many there are of each key (``rows``)."""
    return [
        *(_problem_rows(name, kind, rows, seen_at) for kind in ("null-key", "unparsable-key", "unclear-row")),
        finding(
            by_key.where("judged_row and rows > 1"),
            kind="repeated-key",
            severity="warning",
            seen_at=seen_at,
            detail=f.format_string(f"book {name}, key %s: in %d rows", f.col("key"), f.col("rows")),
            suggested_repair="find out which row is right; until then the key counts as committed when one row says so",
        ),
    ]


def _problem_rows(name: str, kind: str, rows: DataFrame, seen_at: datetime) -> DataFrame:
    return finding(
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


def unusable_messages(book: BookDescription, marks: DataFrame, seen_at: datetime) -> list[DataFrame]:
    """Findings of committed messages. ``marks`` is what :func:`spark.books.messages.sent` gives, with ``address``."""
    committed = marks.where(f.col("judged") & (f.col("state") == "committed") & f.col("half_id").isNotNull())
    unparsable = f.col("problem").isNotNull()
    missing = f.col("problem").isNull() & f.col("key").isNull()
    return [
        _unkeyed_messages(book.name, "unparsable-key", committed.where(unparsable), f.col("problem"), seen_at),
        _unkeyed_messages(book.name, "null-key", committed.where(missing), f.lit(f"no {book.message_key}"), seen_at),
        finding(
            _repeated(committed.where(f.col("problem").isNull() & f.col("key").isNotNull())),
            kind="repeated-key",
            severity="warning",
            seen_at=seen_at,
            about=HALF,
            detail=f.format_string(f"book {book.name}, key %s: committed %d times", f.col("key"), f.col("times")),
            suggested_repair="a producer that retried after an unknown answer posted it again? tell the consumers",
        ),
    ]


def _unkeyed_messages(name: str, kind: str, messages: DataFrame, detail: Column, seen_at: datetime) -> DataFrame:
    return finding(
        messages,
        kind=kind,
        severity="warning",
        seen_at=seen_at,
        about=HALF,
        detail=f.concat(f.lit(f"book {name}: the message has no key that can be used: "), detail),
        suggested_repair="let the producer set the key; the message was compared with nothing",
    )


def _repeated(messages: DataFrame) -> DataFrame:
    """Each key that was committed more than once: ``key, times``, and ``half_id, txn_id, address`` of the last."""
    return (
        messages.groupBy("key")
        .agg(
            f.count_distinct(f.coalesce("txn_id", f.col("half_id").cast("string"))).alias("times"),
            f.max("half_id").alias("half_id"),
            f.max_by("txn_id", "half_id").alias("txn_id"),
            f.max_by("address", "half_id").alias("address"),
        )
        .where("times > 1")
    )
