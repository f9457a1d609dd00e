"""The messages that a book is compared with: their keys and values, and what became of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import arrow_udf

from spark.messages import Message, Selector, selector
from spark.values import MessageUnreadable

if TYPE_CHECKING:
    from spark.books.description import Description


def picked_columns(book: Description) -> tuple[str, ...]:
    """The columns of ``half`` that :func:`pick` needs: not the message, where only the txn-id counts."""
    return ("id", "address_id") if _by_txn_alone(book) else ("id", "address_id", "message")


def _by_txn_alone(book: Description) -> bool:
    """Whether what the messages say does not matter."""
    return book.by_txn_id and not book.equal


def pick(book: Description, messages: DataFrame) -> DataFrame:
    """From the halves of the book's addresses (``picked_columns``): ``half_id, address_id, problem, key, picked``, a
    text per compared pair."""
    if _by_txn_alone(book):
        return messages.select(
            f.col("id").alias("half_id"),
            "address_id",
            f.lit(None).cast("string").alias("problem"),
            f.lit(None).cast("string").alias("key"),
            f.array().cast("array<string>").alias("picked"),
        )
    key = None if book.by_txn_id else book.message_key
    # its kind comes from the annotations of the function, as PySpark prefers; its stubs know only the other way
    picking = arrow_udf(picker(key, [pair.message for pair in book.equal]), _PICKED)  # type: ignore[call-overload]
    found = messages.select(f.col("id").alias("half_id"), "address_id", picking("message").alias("found"))
    return found.select("half_id", "address_id", "found.*")


#: Characters of a key.
LONGEST_KEY: Final = 4096
#: Messages that are taken out of a batch together.
_AT_ONCE: Final = 256
_PICKED: Final = "struct<problem: string, key: string, picked: array<string>>"


def picker(key: str | None, pairs: list[str]) -> Callable[[pa.Array], pa.Array]:
    """A function from messages to ``_PICKED``, for Spark's Arrow workers (which need no pandas, as ``mapInArrow``
    does)."""

    def run(messages: pa.Array) -> pa.Array:
        select_key = selector(key) if key is not None else None
        selectors = [selector(pair) for pair in pairs]
        problems: list[str | None] = []
        keys: list[str | None] = []
        values: list[str | None] = []
        for first in range(0, len(messages), _AT_ONCE):
            for octets in messages.slice(first, _AT_ONCE).to_pylist():
                problem, found = _pick(octets, select_key, selectors, values)
                problems.append(problem)
                keys.append(found)
        places = pa.array(range(0, len(values) + 1, len(pairs)) if pairs else [0] * (len(keys) + 1), pa.int32())
        return pa.StructArray.from_arrays(
            [
                pa.array(problems, pa.string()),
                pa.array(keys, pa.string()),
                pa.ListArray.from_arrays(places, pa.array(values, pa.string())),
            ],
            names=["problem", "key", "picked"],
        )

    return run


def _pick(
    octets: bytes, select_key: Selector | None, selectors: list[Selector], values: list[str | None]
) -> tuple[str | None, str | None]:
    """What is wrong with the key of one message, and the key; ``values`` gets those that are compared."""
    try:
        message = Message(octets)
        key = select_key(message) if select_key is not None else None
        if key is not None and len(key) > LONGEST_KEY:
            raise MessageUnreadable(f"a text of {len(key)} characters, at most {LONGEST_KEY} were expected")
    except MessageUnreadable as error:
        values.extend([f"unreadable: {error}"] * len(selectors))
        return str(error), None
    for select in selectors:
        try:
            values.append(select(message))
        except MessageUnreadable as error:
            # differs from whatever is in the column, and says why
            values.append(f"unreadable: {error}")
    return None, key


def sent(book: Description, picked: DataFrame, stated: DataFrame, open_transactions: DataFrame) -> DataFrame:
    """What the coordinator knows under the book's kind of key.

    ``key, problem, half_id, txn_id, address_id, state, judged, decided_at, plain, picked``; ``plain``: undecided, and
    none of it is in the store before its client commits it; ``picked`` is what :func:`pick`
    gave. For txn-ids also transactions that left no half at the book's addresses, with ``half_id`` null;
    ``open_transactions`` are those listed as undecided: ``id, plain``.
    """
    known = stated.select("half_id", "txn_id", "state", "judged", "decided_at")
    of_halves = picked.join(known, "half_id").withColumn("plain", f.lit(False))
    if not book.by_txn_id:
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
        open_transactions.join(decided, f.col("id") == f.col("txn_id"), "left_anti").select(
            f.col("id").alias("key"),
            f.col("id").alias("txn_id"),
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
