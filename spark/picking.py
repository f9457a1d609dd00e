"""What the messages say that books are about, read from the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark import ledger
from spark.books.consumption import groups_named, unmatched
from spark.books.description import BookDescription, ConsumerBookDescription, Description
from spark.books.messages import by_txn_alone, pick
from spark.books.rows import Book
from spark.directory import Directory
from spark.keeping import Keep
from spark.period import BEGINNING, Period
from spark.progress import Steps
from spark.reading import Store
from store.ids import id_at

_COLUMNS: Final = "id,txn_id_high,txn_id_low,address_id,posted_at,message"


@dataclass(frozen=True, kw_only=True)
class Messages:
    """A book, and of a consumer's its ``groups`` (:func:`spark.books.consumption.groups_named`); ``picked``: what the
    messages that it is about say (:func:`spark.books.messages.pick`)."""

    book: Book
    groups: DataFrame | None
    picked: DataFrame


@dataclass(frozen=True)
class Picking:
    """``halves`` are those of the run (:func:`spark.ledger.halves`)."""

    store: Store
    directory: Directory
    halves: DataFrame
    keep: Keep
    steps: Steps

    def of(self, book: Book) -> Messages:
        """What the messages of the book's addresses, or groups, say."""
        about, seen_at = book.description, self.store.snapshot.taken_at
        if isinstance(about, ConsumerBookDescription):
            if all(group.name != about.group for group in self.directory.named_groups):
                self.steps.warn(f"book {book.name}: the store knows no consumer group {about.group!r}")
            own = replace(book, rows=book.rows.withColumn("consumer", f.lit(about.group)))
            return self.of_consumers(own, {about.group: None if about.keeps is None else seen_at - about.keeps})
        assert isinstance(about, BookDescription)
        names = set(about.addresses)
        known = [number for number, name in self.directory.addresses.items() if name in names]
        for name in sorted(names - set(self.directory.addresses.values())):
            self.steps.warn(f"book {book.name}: the store knows no address {name!r}; nothing was ever posted to it")
        return Messages(book=book, groups=None, picked=self._picked(self.store, about, known))

    def of_consumers(self, book: Book, begins: Mapping[str, datetime | None]) -> Messages:
        """What the messages say that came to these groups: of the period, and older ones where a row is about none of
        these."""
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
        """What the messages of these addresses say: read and kept, unless no message has to be read for it."""
        of_these = f.col("address_id").isin(addresses)
        if by_txn_alone(about):
            return pick(about, self.halves.where(of_these))
        half = store.table("half", _COLUMNS)[0].where(of_these)
        messages = ledger.halves(half if only is None else half.where(only), store.period, "message")
        picked = self.keep(pick(about, messages))
        picked.count()
        return picked
