"""Read the store's own inbox, which applications fill by ``coordinator.first_time`` (X4), as a book."""

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

#: The value of ``--book`` for the inbox.
NAME: Final = "inbox"
#: The most consumers that name no group and are reported one by one.
MOST: Final = 100

_BEGINS: Final = f"select consumer, min(taken_at) from {SCHEMA}.inbox where consumer = any(%s) group by consumer"
_OTHERS: Final = (
    "select consumer, rows, count(*) over (), (sum(rows) over ())::int8 from (select consumer, count(*) as rows"
    f" from {SCHEMA}.inbox where consumer <> all(%s) group by consumer) told order by rows desc, consumer limit %s"
)


@dataclass(frozen=True, kw_only=True)
class Inbox:
    """The inbox as a book.

    ``begins``: of each consumer that has the name of a group, when its oldest row was written; messages posted before
    may have no row, or a deleted one. ``others``: the numbers of rows of the other consumers, those with the most;
    ``more``: the numbers of further consumers, and of their rows.
    """

    book: Book
    begins: dict[str, datetime | None]
    others: dict[str, int]
    more: tuple[int, int]

    def unknown_consumers(self, seen_at: datetime) -> Iterator[Finding]:
        """Yield a finding for each consumer that is not compared (R25), and one for all beyond :data:`MOST`."""
        said = [f"{rows} rows of consumer {name}, which is the name of no group" for name, rows in self.others.items()]
        consumers, rows = self.more
        if consumers:
            said.append(f"{rows} rows of {consumers} other consumers, whose names are of no group either")
        for each in said:
            yield Finding(
                kind="unknown-consumer",
                severity="note",
                seen_at=seen_at,
                detail=f"book {NAME}: {each}",
                suggested_repair="name the consumer as its group (coordinator group list): orders, prices::billing",
            )


def open_inbox(store: Store, directory: Directory) -> Inbox:
    """Open the inbox in the snapshot of ``store``; a consumer is the group of the same name.

    :raises spark.snapshot.StoreUnreadable: the database does not answer.
    """
    names = sorted({group.name for group in directory.named_groups})
    connection = store.snapshot.connection
    with read_error():
        begins: dict[str, datetime | None] = dict(connection.execute(_BEGINS.encode(), [names]).fetchall())
        others = connection.execute(_OTHERS.encode(), [names, MOST]).fetchall()
    # each row has the totals
    consumers, all_rows = others[0][2:] if others else (0, 0)
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
            f.lit(None).cast("string").alias("unclear"),
            f.lit(False).alias("without_zone"),
            f.lit("processed").alias("state"),
            f.lit(None).cast("string").alias("says"),
        ),
        types=(),
    )
    told = {consumer: rows for consumer, rows, _, _ in others}
    more = (consumers - len(told), all_rows - sum(told.values()))
    return Inbox(book=book, begins=begins, others=told, more=more)
