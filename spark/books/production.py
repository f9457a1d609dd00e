"""Join a producer's book with the store by key, and find the keys that must be examined.

Facts of rows, messages and decisions are aggregated by key. If a key has one row and the store agrees with it, or if
neither has anything committed, they do not differ: rows, messages and transactions are compared only for the other
keys.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark import ledger
from spark.books.comparison import book_findings, comparable
from spark.books.description import BookDescription
from spark.books.rows import Book, judged_row, usable
from spark.books.unusable import rows_together
from spark.keeping import Keep, near
from spark.period import Period

#: The columns of a transaction's id, and of the id of its op.
_TXN: Final = ("txn_high", "txn_low")
_OP: Final = ("id_high", "id_low")
#: Facts about a key, besides the numbers of the book's rows and the store's commits: bits, so that the rows that are
#: shuffled by key are small.
_JUDGED_ROW, _COMMITTED_ROW, _MESSAGE, _ROLLBACK, _UNDECIDED = (1 << place for place in range(5))


@dataclass(frozen=True, kw_only=True)
class Production:
    """A producer's book, and the part of the store that it is compared with.

    ``messages`` are those of its addresses (:func:`spark.picking.pick`), ``decided`` is of
    :func:`spark.ledger.decided`, ``open_transactions`` are those listed as undecided:
    ``txn_id, txn_high, txn_low, plain``."""

    book: Book
    messages: DataFrame
    decided: DataFrame
    open_transactions: DataFrame
    seed: int = field(default_factory=lambda: secrets.randbits(63))

    @property
    def description(self) -> BookDescription:
        assert isinstance(self.book.description, BookDescription)
        return self.book.description

    @property
    def _key(self) -> Sequence[str]:
        return _TXN if self.description.by_txn_id else ("key",)

    def differences(self, names: DataFrame, period: Period, seen_at: datetime, keep: Keep) -> tuple[int, DataFrame]:
        """Return about how many findings are possible, and the findings. ``names``: ``address_id, address``."""
        apart = self.differing(period, keep)
        marks = near(apart.marks(period).join(f.broadcast(names), "address_id", "left"), keep)
        most = apart.book.rows.count() + marks.count()
        times = self.book.all_rows.withColumn("judged_row", judged_row(period))
        found = rows_together(self.description, times, seen_at)
        if most:  # a plan for all comparisons takes seconds to make
            found = found.unionByName(book_findings(apart.book, marks, period, seen_at))
        return most, found

    def differing(self, period: Period, keep: Keep) -> Production:
        """Return the book and the store without the keys that do not differ."""
        by_txn_id, key = self.description.by_txn_id, self._key
        facts = [self._rows(period), *(self._transactions() if by_txn_id else [self._messages(period)])]
        apart = near(_apart(reduce(DataFrame.unionByName, facts), key), keep)
        rows, messages = self.book.rows, self.messages
        keys = ledger.with_txn_id(apart).select(f.col("txn_id").alias("key")) if by_txn_id else apart
        unusable = messages.where(f.col("txn_high").isNull() if by_txn_id else ~usable())
        messages = near(messages.join(apart, list(key), "left_semi").unionByName(unusable), keep)
        transactions = apart if by_txn_id else messages.select(*_TXN).distinct()
        of_ops = transactions.withColumnsRenamed(dict(zip(_TXN, _OP, strict=True)))
        # an unclear row is a finding, even if its key has no other
        listed = ~usable() | f.col("unclear").isNotNull()
        rows = rows.where(~listed).join(keys, "key", "left_semi").unionByName(rows.where(listed))
        return replace(
            self,
            book=replace(self.book, rows=near(rows, keep)),
            messages=messages,
            decided=self.decided.join(of_ops, list(_OP), "left_semi"),
            open_transactions=self.open_transactions.join(transactions, list(_TXN), "left_semi"),
        )

    def marks(self, period: Period) -> DataFrame:
        """Return the store's messages with the book's kind of key.

        ``key, problem, half_id, txn_id, address_id, state, judged, decided_at, plain, picked``; ``plain``: undecided,
        and not in the store before its client commits it. For txn-ids also transactions that left no half at the
        book's addresses, with ``half_id`` null.
        """
        stated = ledger.with_txn_id(ledger.states(self.messages, ledger.decisions(self.decided), period))
        columns = ("half_id", "txn_id", "address_id", "state", "judged", "decided_at", "problem", "key", "picked")
        of_halves = stated.where(f.col("half_id").isNotNull()).select(*columns, f.lit(False).alias("plain"))
        if not self.description.by_txn_id:
            return of_halves
        of_halves = of_halves.withColumns({"key": f.col("txn_id"), "problem": f.lit(None).cast("string")})
        none = {"problem": "string", "half_id": "bigint", "address_id": "int", "picked": "array<string>"}
        decided = (
            stated.where((f.col("state") != "open") & f.col("txn_id").isNotNull())
            .groupBy("txn_id")
            .agg(f.max(f.col("commits") > 0).alias("committed"), f.max("decided_at").alias("decided_at"))
        )
        of_transactions = decided.select(
            f.col("txn_id").alias("key"),
            "txn_id",
            f.when(f.col("committed"), "committed").otherwise("rolled-back").alias("state"),
            "decided_at",
            f.lit(False).alias("plain"),
        ).unionByName(
            self.open_transactions.join(decided, "txn_id", "left_anti").select(
                f.col("txn_id").alias("key"),
                "txn_id",
                f.lit("open").alias("state"),
                f.lit(None).cast("timestamp").alias("decided_at"),
                "plain",
            )
        )
        return of_halves.unionByName(
            of_transactions.select(
                "*", f.lit(False).alias("judged"), *(f.lit(None).cast(kind).alias(name) for name, kind in none.items())
            )
        )

    def _rows(self, period: Period) -> DataFrame:
        """Return the facts of the book's rows by key."""
        rows = self.book.rows.where(usable())
        if self.description.by_txn_id:
            rows = rows.withColumns(dict(zip(_TXN, ledger.uuid_words(f.col("key")), strict=True)))
        return _facts(
            rows,
            self._key,
            rows=f.lit(1),
            bits=_bit(_JUDGED_ROW, judged_row(period)).bitwiseOR(_bit(_COMMITTED_ROW, f.col("state") == "committed")),
            says=self._digest(0),
        )

    def _transactions(self) -> list[DataFrame]:
        """Return the facts of transactions by their ids."""
        decided = self.decided.withColumnsRenamed(dict(zip(_OP, _TXN, strict=True)))
        is_commit = f.col("decision") == "commit"
        messages = self.messages.where(f.col("txn_high").isNotNull())
        return [
            _facts(decided, _TXN, commits=is_commit.cast("int"), bits=_bit(_ROLLBACK, ~is_commit)),
            _facts(messages, _TXN, bits=f.lit(_MESSAGE), says=self._digest(1)),
            _facts(self.open_transactions, _TXN, bits=f.lit(_UNDECIDED)),
        ]

    def _messages(self, period: Period) -> DataFrame:
        """Return the facts of messages by the keys that they contain."""
        stated = ledger.states(self.messages.where(usable()), ledger.decisions(self.decided), period)
        state = f.col("state")
        return _facts(
            stated.where(f.col("half_id").isNotNull()),
            self._key,
            commits=(state == "committed").cast("int"),
            bits=f.lit(_MESSAGE)
            .bitwiseOR(_bit(_ROLLBACK, state == "rolled-back"))
            .bitwiseOR(_bit(_UNDECIDED, state == "open")),
            says=self._digest(1),
        )

    def _digest(self, side: int) -> Column:
        """Return a hash of the compared values of a row (0) or a message (1)."""
        parts = [f.lit(self.seed)]
        for place, of_type in enumerate(self.book.types):
            sides = comparable(f.col(f"compared_{place}"), f.element_at("picked", place + 1), of_type)
            for value in sides[side]:
                parts += [value, value.isNull()]
        return f.xxhash64(*parts)


def _bit(bit: int, is_so: Column) -> Column:
    return f.when(is_so, bit).otherwise(0)


def _facts(frame: DataFrame, key: Sequence[str], **says: Column) -> DataFrame:
    """Return the facts of ``frame`` by key: ``rows, commits, bits, says`` (the hash of compared values, or null)."""
    counts = [says.get(name, f.lit(0)).cast("int").alias(name) for name in ("rows", "commits", "bits")]
    return frame.select(*key, *counts, says.get("says", f.lit(None)).cast("bigint").alias("says"))


def _apart(facts: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the keys that must be examined."""
    by_key = (
        facts.repartition(*key)
        .groupBy(*key)
        .agg(
            f.sum("rows").alias("rows"),
            f.sum("commits").alias("commits"),
            f.bit_or("bits").alias("bits"),
            f.min("says").alias("least"),
            f.max("says").alias("most"),
        )
    )
    rows, commits = f.col("rows"), f.col("commits")

    def has(bit: int) -> Column:
        return f.col("bits").bitwiseAND(bit) != 0

    is_open = has(_UNDECIDED) | (has(_MESSAGE) & ~has(_ROLLBACK))
    # a transaction may have no message at the book's addresses: then only the row has a hash
    agree = f.col("least") == f.col("most")
    is_in_order = (
        ((rows == 1) & has(_COMMITTED_ROW) & (commits == 1) & agree)
        | ((rows == 1) & ~has(_COMMITTED_ROW) & (commits == 0) & ~is_open)
        | (~has(_JUDGED_ROW) & (commits == 0))
        | ((rows == 0) & ~has(_MESSAGE))
    )
    return by_key.where(~is_in_order).select(*key)
