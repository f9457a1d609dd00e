"""Divide a book among several stores: a row is of the store that has its key, or of none.

Each store is then compared with its rows alone: a key that is missing in one store and is in another is no finding.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from spark import ledger
from spark.books.description import BookDescription, Description
from spark.books.rows import usable
from spark.finding import Case, findings, shown
from spark.period import Period
from spark.picking import Messages
from spark.snapshot import Snapshot


def known(each: Messages, op: DataFrame, open_transactions: DataFrame, period: Period) -> DataFrame:
    """Return the keys of a book that a store has: ``key, committed, judged``, several times each.

    ``open_transactions``: those listed as undecided, ``txn_high, txn_low``."""
    decided = ledger.decided(op)
    if not each.book.description.by_txn_id:
        stated = ledger.states(each.picked.where(usable()), ledger.decisions(decided), period)
        return stated.where("half_id is not null").selectExpr("key", "state = 'committed' as committed", "judged")
    of_ops = decided.selectExpr("id_high as txn_high", "id_low as txn_low", "decision = 'commit' as committed")
    others = (
        each.picked.where("txn_high is not null")
        .select("txn_high", "txn_low")
        .unionByName(open_transactions.select("txn_high", "txn_low"))
    )
    ids = of_ops.unionByName(others.withColumn("committed", f.lit(False)))
    return ledger.with_txn_id(ids).selectExpr("txn_id as key", "committed", "true as judged")


def located(stores: Mapping[str, DataFrame]) -> DataFrame:
    """Return where each key is. ``stores``: of :func:`known`, by the stores' names.

    ``key, stores`` (those whose rows have to be compared: those that have committed it, if any has), ``committed``
    (the names of these) and ``judged``: whether a commit is of the period."""
    named = (frame.withColumn("store", f.lit(name)) for name, frame in stores.items())
    by_key = (
        reduce(DataFrame.unionByName, named)
        .groupBy("key")
        .agg(
            f.array_sort(f.collect_set(f.when(f.col("committed"), f.col("store")))).alias("committed"),
            f.collect_set("store").alias("there"),
            f.coalesce(f.bool_or(f.col("committed") & f.col("judged")), f.lit(False)).alias("judged"),
        )
    )
    stores_of = f.when(f.size("committed") > 0, f.col("committed")).otherwise(f.col("there"))
    return by_key.select("key", stores_of.alias("stores"), "committed", "judged")


def rows_of(rows: DataFrame, places: DataFrame, store: str) -> DataFrame:
    """Return the book's rows that the store is compared with. ``places``: of :func:`located`."""
    here = places.where(f.array_contains("stores", store))
    return rows.where(usable()).join(here, "key", "left_semi")


def rows_of_none(rows: DataFrame, places: DataFrame) -> DataFrame:
    """Return the book's rows whose key no store has, and those without a key that can be used."""
    return rows.where(usable()).join(places, "key", "left_anti").unionByName(rows.where(~usable()))


def in_several(book: Description, places: DataFrame, snapshot: Snapshot) -> DataFrame:
    """Return a finding for each key that more than one store has committed (R25)."""
    repeated = Case(
        kind="repeated-key",
        severity="warning" if isinstance(book, BookDescription) else "note",
        where=f.col("judged") & (f.size("committed") > 1),
        detail=f.concat(
            f.lit(f"book {book.name}, key "),
            shown(f.col("key")),
            f.lit(": committed in several stores: "),
            f.concat_ws(", ", "committed"),
        ),
        suggested_repair="a producer that was sent on, or that retried, posted it again there? tell the consumers",
    )
    return findings(places, snapshot.taken_at, repeated)
