"""Add the books' keys of messages to the findings of the store's own checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from spark.finding import Finding, shown
from spark.ledger import NAMED, named
from spark.reading import local

#: Findings whose keys are searched at once.
_AT_ONCE: Final = 10_000


def keyed(
    spark: SparkSession, found: Iterable[Finding], picked: Sequence[DataFrame], halves: DataFrame
) -> Iterator[Finding]:
    """Yield ``found``, each with the key of its message, or of a message of its transaction, if a book has it.

    ``picked``: the result of :func:`spark.picking.pick` for each book; ``halves``: of :func:`spark.ledger.halves`.
    """
    if not picked:
        yield from found
        return
    rest = iter(found)
    while chunk := list(islice(rest, _AT_ONCE)):
        of_halves = {each.half_id for each in chunk if each.half_id is not None}
        of_transactions = {each.txn_id for each in chunk if each.half_id is None and each.txn_id is not None}
        found_of = local(spark, {"half_id": pa.int64()}, ({"half_id": number} for number in of_halves))
        transactions = local(spark, NAMED, map(named, of_transactions))
        of_these = halves.join(f.broadcast(transactions), ["txn_high", "txn_low"]).select("half_id", "txn_id")
        about = found_of.withColumn("txn_id", f.lit(None).cast("string")).unionByName(of_these)
        keys: dict[int | str, str] = {}
        for messages in picked:
            of_book = messages.where("key is not null").join(f.broadcast(about), "half_id")
            for row in of_book.select("half_id", "txn_id", shown(f.col("key")).alias("key")).collect():
                keys.setdefault(row.half_id if row.txn_id is None else row.txn_id, row.key)
        for each in chunk:
            yield replace(each, key=keys.get(each.half_id or each.txn_id or ""))
