"""Compare a consumer's book with the accept ops of its group: messages consumed and not processed, processed and not
consumed, or processed twice (R24).

A message is *consumed* in a group when an op accepts it there, in a transaction (``commit``) or outside; one that
expired, was purged, or became a dead letter is not, and no row is expected of it. An op ``replay`` takes an accept
back: the message is delivered once more, and may have a row from the first time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from spark import ledger, marks
from spark.books.comparison import detail_of, different
from spark.books.rows import Book, judged_row, usable
from spark.books.unusable import rows_together, unusable_messages, unusable_rows
from spark.directory import Directory
from spark.finding import DELIVERY, Case, findings
from spark.period import Period
from spark.reading import local

#: The columns that join rows and messages; ``consumer`` is the name of a group, as a client gives it.
_KEY: Final = ["consumer", "key"]
#: SQL: whether the book must have a row of the message.
_EXPECTED: Final = "consumed and judged and state = 'committed' and (begins is null or posted_at >= begins)"
_GROUPS: Final = {
    **{"group_id": pa.int32(), "address_id": pa.int32(), "consumer": pa.string(), "gone": pa.bool_()},
    **{"address": pa.string(), "consumer_group": pa.string(), "begins": pa.timestamp("us", "UTC")},
}


def groups_named(spark: SparkSession, directory: Directory, begins: Mapping[str, datetime | None]) -> DataFrame:
    """Return the groups that have, or had, the names in ``begins``.

    ``group_id, address_id, consumer, gone, address, consumer_group, begins``. ``begins``: since when the book has a row
    of each posted message; None: of all.
    """
    rows = (
        {
            "group_id": group.group_id,
            "address_id": group.address_id,
            "consumer": group.name,
            "gone": group.gone,
            "address": directory.addresses[group.address_id],
            "consumer_group": directory.groups[group.group_id],
            "begins": begins[group.name],
        }
        for group in directory.named_groups
        if group.name in begins
    )
    return local(spark, _GROUPS, rows)


def fates(picked: DataFrame, groups: DataFrame, *, stated: DataFrame, op: DataFrame, entry: DataFrame) -> DataFrame:
    """Return the fate of the messages of ``picked`` (:func:`spark.picking.pick`) in each of ``groups``.

    ``half_id, address_id, problem, key, picked`` and the columns of ``groups``; ``txn_id, state, judged, posted_at``
    (:func:`spark.ledger.states`; null: it is older than the messages that the run has read); ``accepts`` (how often
    it was accepted), ``consumed`` (accepted, and not taken back), ``accepted_at`` (the last time), ``ended`` (another
    decision that ended it, or null) and ``waits``.
    """
    ids = [row.group_id for row in groups.select("group_id").distinct().collect()]
    known = stated.select("half_id", "txn_id", "state", "judged", "posted_at")
    waiting = entry.where(f.col("group_id").isin(ids)).select("half_id", "group_id", f.lit(True).alias("waits"))
    pair = ["half_id", "group_id"]
    return (
        picked.select("half_id", "address_id", "problem", "key", "picked")
        .join(f.broadcast(groups), "address_id")
        .join(known, "half_id", "left")
        .join(_ends(ledger.delivery_ops(op).where(f.col("group_id").isin(ids))), pair, "left")
        .join(waiting.dropDuplicates(pair), pair, "left")
        .withColumns(
            {
                "accepts": f.coalesce("accepts", f.lit(0)),
                "consumed": f.coalesce("consumed", f.lit(False)),
                "waits": f.coalesce("waits", f.lit(False)),
            }
        )
    )


def _ends(deliveries: DataFrame) -> DataFrame:
    """Aggregate the ops of each pair: ``half_id, group_id, accepts, consumed, accepted_at, ended``."""
    decision, at = f.col("decision"), f.col("decided_at")
    # an accept with a reason only records that the group does not get the message (no-local, a selector)
    accepted = (decision == "commit") | ((decision == "accept") & f.col("reason").isNull())
    back = (decision == marks.TAKEN_BACK) & (f.col("reason") == "accepted")
    other = decision.isin(*marks.ends_as("dead_lettered"), *marks.ends_as("expired"), *marks.ends_as("purged"))
    first_accept, first_back = f.min(f.when(accepted, at)), f.min(f.when(back, at))
    # the accept that was taken back first may be older than the ops that were read
    before = first_back.isNotNull() & (first_accept.isNull() | (first_back < first_accept))
    accepts = f.count_if(accepted) + before.cast("int")
    return deliveries.groupBy("half_id", "group_id").agg(
        accepts.alias("accepts"),
        (accepts > f.count_if(back)).alias("consumed"),
        f.max(f.when(accepted, at)).alias("accepted_at"),
        f.max(f.when(other, decision)).alias("ended"),
    )


def consumer_findings(
    book: Book,
    messages: DataFrame,
    period: Period,
    seen_at: datetime,
    *,
    groups: DataFrame,
    complete: bool,
) -> DataFrame:
    """Return the findings of all differences between the book and its ``groups`` (:func:`groups_named`).

    ``messages`` is of :func:`fates`, and the book's rows have a column ``consumer``. ``complete``: no message was ever
    dropped.
    """
    # an accept may be older than its row by the grace; accepts before the ops that were read explain no row
    counts = f.col("at") >= f.lit(period.read_from + book.description.grace)
    rows = book.rows.withColumns({"judged_row": judged_row(period), "counts": counts})
    used = messages.where(_EXPECTED)
    comparison = _Comparison(
        book=book,
        settled=f.lit(seen_at - book.description.grace),
        settled_here=f.lit(book.settled(seen_at)),
        rows=_rows_by_key(rows, len(book.description.equal)),
        messages=messages.where(usable()),
        names=f.broadcast(groups.select("consumer", "address", "consumer_group").dropDuplicates(["consumer"])),
        complete=complete,
    )
    found = [
        findings(comparison.judged_rows(), seen_at, *comparison.not_consumed(), comparison.twice()),
        findings(comparison.judged_messages(), seen_at, comparison.not_processed(), *comparison.different()),
        findings(comparison.judged_keys(), seen_at, comparison.repeated()),
        unusable_rows(book.name, rows, seen_at),
        rows_together(book.description, book.all_rows.withColumn("judged_row", judged_row(period)), seen_at),
        unusable_messages(book.description, used, seen_at, DELIVERY),
    ]
    return reduce(DataFrame.unionByName, found)


def unmatched(book: Book, picked: DataFrame, groups: DataFrame, period: Period) -> DataFrame:
    """Return the rows of the period whose key is of no message of ``picked``."""
    named = picked.join(f.broadcast(groups), "address_id").select(*_KEY).where("key is not null")
    rows = book.rows.where(usable() & (f.col("state") == "processed"))
    return rows.where(judged_row(period)).join(named, _KEY, "left_anti")


def _rows_by_key(rows: DataFrame, pairs: int) -> DataFrame:
    """Group the processed rows by consumer and key.

    ``consumer, key, rows`` (how many), ``counted, judged_row, at, last_at, says, compared_<n>``."""
    return (
        rows.where(usable() & (f.col("state") == "processed"))
        .groupBy(*_KEY)
        .agg(
            f.count("*").alias("rows"),
            f.count_if("counts").alias("counted"),
            f.bool_or("judged_row").alias("judged_row"),
            f.min("at").alias("at"),
            f.max("at").alias("last_at"),
            f.min("says").alias("says"),
            *(f.min(f"compared_{place}").alias(f"compared_{place}") for place in range(pairs)),
        )
    )


def _messages_by_key(messages: DataFrame) -> DataFrame:
    """Group the messages by consumer and key.

    ``consumer, key, messages`` (consumed ones), ``accepts`` of all; of any ``judged, committed, waits, gone``,
    ``ended``, ``open`` (its state, if it is judged and not committed) and ``settled_at`` (the last accept);
    ``half_id, txn_id`` of the last.
    """
    committed = f.coalesce(f.col("state") == "committed", f.lit(False))
    return messages.groupBy(*_KEY).agg(
        f.count_if("consumed").alias("messages"),
        f.sum("accepts").alias("accepts"),
        f.coalesce(f.bool_or("judged"), f.lit(False)).alias("judged"),
        f.bool_or(committed).alias("committed"),
        f.bool_or("waits").alias("waits"),
        f.bool_or("gone").alias("gone"),
        f.max("ended").alias("ended"),
        f.max(f.when(f.col("judged") & ~committed, f.col("state"))).alias("open"),
        f.max("accepted_at").alias("settled_at"),
        f.max("half_id").alias("half_id"),
        f.max_by("txn_id", "half_id").alias("txn_id"),
    )


def in_shell(name: Column) -> Column:
    """Quote a name that a client has chosen, as one word of a command that a person may copy (S7)."""
    plain = name.rlike(r"^[A-Za-z0-9_.:@%/-]+$")
    return f.when(plain, name).otherwise(f.concat(f.lit("'"), f.replace(name, f.lit("'"), f.lit("'\\''")), f.lit("'")))


@dataclass(frozen=True, kw_only=True)
class _Comparison:
    """Builds the cases in which book and groups differ.

    ``rows``: of :func:`_rows_by_key`. ``messages``: those with a key. ``names``: of each consumer its ``address``
    and ``consumer_group``, as the store has them. No row is judged that is younger than ``settled``, and no message
    that is younger than ``settled_here``."""

    book: Book
    settled: Column
    settled_here: Column
    rows: DataFrame
    messages: DataFrame
    names: DataFrame
    complete: bool

    def judged_rows(self) -> DataFrame:
        """Return the keys of the book's rows, each with its messages in the store."""
        beside = self.rows.join(_messages_by_key(self.messages), _KEY, "left")
        return beside.where("judged_row").join(self.names, "consumer", "left")

    def judged_messages(self) -> DataFrame:
        """Return the consumed messages, each with the book's rows of its key."""
        return (
            self.messages.where(_EXPECTED)
            .where(f.col("accepted_at") <= self.settled_here)
            .join(self.rows, _KEY, "left")
        )

    def judged_keys(self) -> DataFrame:
        """Return the keys of consumed messages, each with the book's rows."""
        keys = _messages_by_key(self.messages).where("judged and messages > 0")
        settled = keys.where(f.col("settled_at") <= self.settled_here)
        return settled.join(self.rows, _KEY, "left").join(self.names, "consumer", "left")

    def _detail(self, text: str, *columns: Column) -> Column:
        return detail_of(self.book.name, text, *columns)

    def not_processed(self) -> Case:
        """R24: a message was accepted, and the book has no processed row of it."""
        to = f.format_string("--back-to %d -- %s", "half_id", in_shell(f.col("consumer")))
        return Case(
            kind="consumed-not-processed",
            severity="error",
            where=f.col("rows").isNull(),
            about=DELIVERY,
            detail=self._detail("its group has accepted it, the book has no row that says it was processed"),
            suggested_repair=f.concat(
                f.lit(
                    "do its work by hand; or have it delivered again, with all that is newer: coordinator group seek "
                ),
                to,
            ),
        )

    def not_consumed(self) -> tuple[Case, ...]:
        """R24: a row is processed, and its group has accepted no such message."""
        unknown, committed = f.col("messages").isNull(), f.coalesce("committed", f.lit(False))
        due = (f.col("at") <= self.settled) & (f.coalesce("accepts", f.lit(0)) == 0)
        # a message posted before the ones that were read may have been accepted before, too
        seen = f.col("waits") | f.col("ended").isNotNull() | (committed & ~f.col("gone"))
        never_sent = ~f.col("waits") & ~committed & f.col("open").isNotNull()
        return (
            self._not_consumed(
                "warning",
                due & ~unknown & ~never_sent & seen,
                self._detail(
                    "the book says processed, and its group has not accepted it: %s",
                    f.when(f.col("waits"), "it waits there")
                    .when(f.col("ended").isNotNull(), f.concat(f.lit("the op that ended it is "), "ended"))
                    .otherwise("it has no delivery there"),
                ),
                f.when(f.col("waits"), "see that the consumer runs: it comes again, and its row tells that it is done")
                .when(f.col("ended") == "dead-letter", "remove the dead letter: its work is done")
                .otherwise("find out why it was not accepted; its work is done"),
            ),
            self._not_consumed(
                "error",
                due & ~unknown & never_sent,
                self._detail("the book says processed, and its transaction is not committed: %s", f.col("open")),
                "undo the work: the message was not sent",
            ),
            self._not_consumed(
                "error" if self.complete else "note",
                due & unknown,
                self._detail(
                    "the book says processed, and no message of its group has this key"
                    + (
                        ""
                        if self.complete
                        else "; it may have been dropped since: what was consumed is not kept for good"
                    )
                ),
                "find out what was processed; or correct the book's description, which says how the keys are found",
            ),
        )

    def _not_consumed(self, severity: str, where: Column, detail: Column, repair: Column | str) -> Case:
        return Case(
            kind="processed-not-consumed",
            severity=severity,
            where=where,
            about=DELIVERY,
            detail=detail,
            suggested_repair=repair,
        )

    def twice(self) -> Case:
        """R24: a key has more rows than its group has accepted messages."""
        accepts = f.coalesce("accepts", f.lit(0))
        return Case(
            kind="processed-twice",
            severity="error",
            where=(f.col("counted") > 1) & (f.col("counted") > accepts) & (f.col("last_at") <= self.settled),
            about=DELIVERY,
            detail=self._detail("processed in %d rows, accepted by its group %d times", f.col("rows"), accepts),
            suggested_repair="undo what was done too often; let the book's key be unique, as an inbox has it",
        )

    def repeated(self) -> Case:
        """R25: a key has more than one message, or several rows that further accepts explain."""
        rows = f.coalesce("rows", f.lit(0))
        return Case(
            kind="repeated-key",
            severity="note",
            where=(f.col("messages") > 1) | ((rows > 1) & (rows <= f.col("accepts"))),
            about=DELIVERY,
            detail=self._detail(
                "consumed as %d messages, accepted %d times, processed in %d rows",
                f.col("messages"),
                f.col("accepts"),
                rows,
            ),
            suggested_repair="nothing, where its producer repeats its keys or the group was moved back",
        )

    def different(self) -> list[Case]:
        """R23: a message that is consumed and processed has other values than its row."""
        return different(self.book, (f.col("rows") == 1) & (f.col("at") <= self.settled), DELIVERY)
