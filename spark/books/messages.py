"""The messages that a book is compared with: their keys and values, and what became of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import arrow_udf

from spark.messages import Message, Selector, selector
from store.codec.encoding import DecodeError

if TYPE_CHECKING:
    from spark.books.description import Description


def by_txn_alone(book: Description) -> bool:
    """Whether what the messages say does not matter."""
    return book.by_txn_id and not book.equal


def pick(book: Description, messages: DataFrame) -> DataFrame:
    """The halves of the book's addresses (:func:`spark.ledger.halves`, with ``message`` unless :func:`by_txn_alone`),
    each with what is wrong with its key (``problem``), its ``key``, and ``picked``, a text per compared pair."""
    if by_txn_alone(book):
        no_text = f.lit(None).cast("string")
        return messages.withColumns({"problem": no_text, "key": no_text, "picked": f.array().cast("array<string>")})
    key = None if book.by_txn_id else book.message_key
    # its kind comes from the annotations of the function, as PySpark prefers; its stubs know only the other way
    picking = arrow_udf(picker(key, [pair.message for pair in book.equal]), _PICKED)  # type: ignore[call-overload]
    return messages.withColumn("found", picking("message")).select("*", "found.*").drop("message", "found")


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
            raise DecodeError(f"a text of {len(key)} characters, at most {LONGEST_KEY} were expected")
    except DecodeError as error:
        values.extend([f"unreadable: {error}"] * len(selectors))
        return str(error), None
    for select in selectors:
        try:
            values.append(select(message))
        except DecodeError as error:
            # differs from whatever is in the column, and says why
            values.append(f"unreadable: {error}")
    return None, key
