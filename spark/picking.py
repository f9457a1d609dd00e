"""Read, from the messages in the store, the keys and values that books are compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import arrow_udf

from spark import ledger
from spark.books.consumption import groups_named, unmatched
from spark.books.description import BookDescription, ConsumerBookDescription, Description
from spark.books.rows import Book
from spark.directory import Directory
from spark.keeping import Keep
from spark.messages import Message, Selector, selector
from spark.period import BEGINNING, Period
from spark.reading import Store
from store.codec.encoding import DecodeError
from store.ids import id_at

# The messages that a book is compared with: their keys and values, and what became of each.


def by_txn_alone(book: Description) -> bool:
    """Return whether the book needs no content of messages: its key is the txn-id, and it compares no values."""
    return book.by_txn_id and not book.equal


def pick(book: Description, messages: DataFrame) -> DataFrame:
    """Add ``key``, what is wrong with it (``problem``), and ``picked``, a text per compared pair, to ``messages``.

    These are the halves of the book's addresses (:func:`spark.ledger.halves`, with ``message`` unless
    :func:`by_txn_alone`)."""
    if by_txn_alone(book):
        no_text = f.lit(None).cast("string")
        return messages.withColumns({"problem": no_text, "key": no_text, "picked": f.array().cast("array<string>")})
    key = None if book.by_txn_id else book.message_key
    # its kind comes from the annotations of the function, as PySpark prefers; its stubs know only the other way
    picking = arrow_udf(picker(key, [pair.message for pair in book.equal]), _PICKED)  # type: ignore[call-overload]
    return messages.withColumn("found", picking("message")).select("*", "found.*").drop("message", "found")


#: The most characters of a key.
LONGEST_KEY: Final = 4096
#: Messages that are taken out of a batch together.
_AT_ONCE: Final = 256
_PICKED: Final = "struct<problem: string, key: string, picked: array<string>>"


def picker(key: str | None, pairs: list[str]) -> Callable[[pa.Array], pa.Array]:
    """Return a function from messages to ``_PICKED``, for Spark's Arrow workers (which need no pandas, as
    ``mapInArrow`` does)."""

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
    """Return what is wrong with the key of one message, and the key; ``values`` receives the compared values."""
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


_COLUMNS: Final = "id,txn_id_high,txn_id_low,address_id,posted_at,message"


@dataclass(frozen=True, kw_only=True)
class Messages:
    """A book, and of a consumer's its ``groups`` (:func:`spark.books.consumption.groups_named`); ``picked``: what the
    messages that it is about say (:func:`spark.picking.pick`)."""

    book: Book
    groups: DataFrame | None
    picked: DataFrame


@dataclass(frozen=True)
class Picking:
    """``halves`` are those of the run (:func:`spark.ledger.halves`). ``warn`` is called with what a book names and the
    store does not have."""

    store: Store
    directory: Directory
    halves: DataFrame
    keep: Keep
    warn: Callable[[str], None]

    def of(self, book: Book) -> Messages:
        """Return what the messages of the book's addresses, or groups, say."""
        about, seen_at = book.description, self.store.snapshot.taken_at
        if isinstance(about, ConsumerBookDescription):
            if all(group.name != about.group for group in self.directory.named_groups):
                self.warn(f"book {book.name}: the store knows no consumer group {about.group!r}")
            own = replace(book, rows=book.rows.withColumn("consumer", f.lit(about.group)))
            return self.of_consumers(own, {about.group: None if about.keeps is None else seen_at - about.keeps})
        assert isinstance(about, BookDescription)
        names = set(about.addresses)
        known = [number for number, name in self.directory.addresses.items() if name in names]
        for name in sorted(names - set(self.directory.addresses.values())):
            self.warn(f"book {book.name}: the store knows no address {name!r}; nothing was ever posted to it")
        return Messages(book=book, groups=None, picked=self._picked(self.store, about, known))

    def of_consumers(self, book: Book, begins: Mapping[str, datetime | None]) -> Messages:
        """Return what the messages say that came to these groups: of the period, and older ones where a row is about
        none of these.
        """
        store, about = self.store, book.description
        addresses = sorted({group.address_id for group in self.directory.named_groups if group.name in begins})
        groups = groups_named(store.spark, self.directory, begins)
        picked = self._picked(store, about, addresses)
        since = store.period.read_from
        if since > BEGINNING and not unmatched(book, picked, groups, store.period).isEmpty():
            whole = replace(store, period=Period())
            picked = picked.unionAll(self._picked(whole, about, addresses, f.col("id") < id_at(since)))
        return Messages(book=book, groups=groups, picked=picked)

    def _picked(self, store: Store, about: Description, addresses: list[int], only: Column | None = None) -> DataFrame:
        """Return what the messages of these addresses say: read and kept, unless no message has to be read for it."""
        of_these = f.col("address_id").isin(addresses)
        if by_txn_alone(about):
            return pick(about, self.halves.where(of_these))
        half = store.table("half", _COLUMNS)[0].where(of_these)
        messages = ledger.halves(half if only is None else half.where(only), store.period, "message")
        picked = self.keep(pick(about, messages))
        picked.count()
        return picked
