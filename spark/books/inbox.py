"""The store's own inbox as a book: what applications have told to ``coordinator.first_time`` (X4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pyspark.sql import functions as f

from spark.books.description import ConsumerBookDescription
from spark.books.rows import Book
from spark.directory import Directory
from spark.finding import Finding
from spark.reading import Store
from spark.snapshot import read_error
from store.tables import SCHEMA

#: What ``--book`` is given for it.
NAME: Final = "inbox"


@dataclass(frozen=True, kw_only=True)
class Inbox:
    """``begins``: of each consumer that has the name of a group, when its oldest row was written; what was posted
    before may have none, or one that is forgotten. ``others``: how many rows each of the other consumers has.
    """

    book: Book
    begins: dict[str, datetime | None]
    others: dict[str, int]

    def unknown_consumers(self, seen_at: datetime) -> Iterator[Finding]:
        """A finding for each consumer that is compared with nothing (R25)."""
        for consumer, rows in self.others.items():
            yield Finding(
                kind="unknown-consumer",
                severity="note",
                seen_at=seen_at,
                detail=f"book {NAME}: {rows} rows of consumer {consumer}, which is the name of no consumer group",
                suggested_repair="name the consumer as its group (coordinator groups): orders, prices::billing",
            )


def open_inbox(store: Store, directory: Directory) -> Inbox:
    """The inbox in the snapshot of ``store``; a consumer is the group of the same name.

    :raises spark.snapshot.StoreUnreadable: the database does not answer.
    """
    with read_error():
        found = store.snapshot.connection.execute(
            f"select consumer, count(*), min(taken_at) from {SCHEMA}.inbox group by consumer order by consumer".encode()
        ).fetchall()
    names = {group.name for group in directory.named_groups}
    begins = {consumer: oldest for consumer, _, oldest in found if consumer in names}
    rows, _ = store.table("inbox", "consumer,message_id,taken_at")
    description = ConsumerBookDescription(
        name=NAME, format=NAME, key="message_id", message_key="message-id", time="taken_at", group=NAME
    )
    book = Book(
        description=description,
        rows=rows.where(f.col("consumer").isin(list(begins))).select(
            "consumer",
            f.col("message_id").alias("key"),
            f.lit(None).cast("string").alias("problem"),
            f.col("taken_at").alias("at"),
            f.lit("processed").alias("state"),
        ),
        types=(),
    )
    others = {consumer: rows for consumer, rows, _ in found if consumer not in names}
    return Inbox(book=book, begins=begins, others=others)
