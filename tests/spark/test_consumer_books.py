"""A consumer's book against the accepts of its group, on rows made in memory (R24)."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark import ledger
from spark.books.consumption import consumer_findings, fates, groups_named, in_shell
from spark.books.description import BookError, ConsumerBookDescription, describe
from spark.books.rows import open_book
from spark.directory import Directory
from spark.period import Period
from spark.picking import pick
from tests.fix_store_rows import NOW, StoreRows, encode_message

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

AT = NOW - timedelta(hours=3)
BOOK = """
name = "billing"
format = "parquet"
group = "prices::billing"
key = "message_id"
message_key = "message-id"
time = "processed_at"
processed_when = "status = 'done'"

[options]
path = "inbox.parquet"
"""
SCHEMA = "message_id string, processed_at timestamp, status string, amount int"


class Billing:
    """The inbox of one group of a topic; another group of the topic gets the same messages."""

    def __init__(self) -> None:
        self.store = StoreRows(seed=7)
        self.topic = self.store.address("prices", routing="topic")
        self.group = self.store.group(self.topic, "billing")
        self.other = self.store.group(self.topic, "audit")
        self.inbox: list[tuple[object, ...]] = []
        self.expected: Counter[tuple[str, str, int | None]] = Counter()
        self._number = 0

    def key(self) -> str:
        self._number += 1
        return f"m-{self._number}"

    def posted(self, key: str | None, at: datetime = AT, *, address: int | None = None, amount: int = 1) -> int:
        message = encode_message(message_id=key, body={"amount": amount})
        return self.store.committed([address or self.topic], at, messages=[message])[1][0]

    def accepted(self, half: int, at: datetime = AT, *, group: int | None = None, decision: str = "accept") -> None:
        covers = [(half, group or self.group)]
        if decision == "commit":
            self.store.decide(self.store.uuid_v7(at), "commit", at, 0, covers)
        else:
            self.store.op(decision, at, covers=covers)

    def row(self, key: object, at: object = AT, status: str = "done", amount: int = 1) -> None:
        self.inbox.append((key, at, status, amount))

    def expect(self, kind: str, severity: str, half: int | None = None) -> None:
        self.expected[kind, severity, half] += 1

    def healthy(self) -> Billing:
        """All that may happen to a message of a consumer that does what it should."""
        for decision in ("accept", "commit"):
            key = self.key()
            self.accepted(self.posted(key), decision=decision)
            self.row(key)
        # its row is there long before or after, or of another period
        for offset in (timedelta(hours=-1), timedelta(hours=2)):
            key = self.key()
            self.accepted(self.posted(key))
            self.row(key, AT + offset)
        # no work was done of what came to another end, or waits, or is another group's
        for decision in ("expire", "purge", "dead-letter"):
            self.accepted(self.posted(self.key()), decision=decision)
        self.store.entry(self.group, self.posted(self.key()))
        self.accepted(self.posted(self.key()), group=self.other)
        # left out of what it posted itself
        self.store.op("accept", AT, covers=[(self.posted(self.key()), self.group)], reason="no-local")
        self._moved_back()
        # written, and killed before the accept; redelivered a moment ago
        key = self.key()
        half = self.posted(key, NOW - timedelta(minutes=1))
        self.store.entry(self.group, half, failures=1)
        self.row(key, NOW - timedelta(seconds=30))
        # accepted a moment ago, and not yet written
        self.accepted(self.posted(self.key(), NOW - timedelta(minutes=1)), NOW - timedelta(seconds=50))
        # in hand
        self.row(self.key(), AT, "failed")
        return self

    def _moved_back(self) -> None:
        """By a seek: some wait, some were accepted again, one was consumed without its row and comes again."""
        for again in (False, True):
            key = self.key()
            half = self.posted(key)
            self.accepted(half)
            self.row(key)
            self.store.op("replay", AT + timedelta(hours=1), covers=[(half, self.group)], reason="accepted")
            if again:
                self.accepted(half, AT + timedelta(hours=2))
            else:
                self.store.entry(self.group, half)
        half = self.posted(self.key())
        self.accepted(half)
        self.store.op("replay", AT + timedelta(hours=1), covers=[(half, self.group)], reason="accepted")
        self.store.entry(self.group, half)

    def gone(self) -> Billing:
        """A group of the same name, of an address of the same name, both removed; its messages stay."""
        address, group = 90, 91
        self.store.rows["removed_address"].append(
            {"id": address, "name": "prices", "origin": "use", "removed_at": NOW - timedelta(hours=2)}
        )
        self.store.rows["removed_group"].append(
            {"id": group, "address_id": address, "name": "billing", "lasting": True, "removed_at": NOW}
        )
        key = self.key()
        self.accepted(self.posted(key, address=address), group=group)
        self.row(key)
        # removed before it was accepted
        key = self.key()
        self.posted(key, address=address)
        self.row(key)
        return self

    def broken(self) -> Billing:
        """Each kind of finding."""
        for decision in ("accept", "commit"):
            half = self.posted(self.key())
            self.accepted(half, decision=decision)
            self.expect("consumed-not-processed", "error", half)
        half = self.posted(self.key(), NOW - timedelta(minutes=11))
        self.accepted(half, NOW - timedelta(minutes=10))
        self.expect("consumed-not-processed", "error", half)
        key = self.key()
        half = self.posted(key)
        self.accepted(half)
        self.row(key, status="failed")
        self.expect("consumed-not-processed", "error", half)
        self._not_consumed()
        for accepts in (0, 1):
            key = self.key()
            half = self.posted(key)
            for _ in range(accepts):
                self.accepted(half)
            self.row(key)
            self.row(key, AT + timedelta(minutes=1))
            self.expect("processed-twice", "error", half)
            if not accepts:
                self.expect("processed-not-consumed", "warning", half)
        self._unusable()
        return self

    def _not_consumed(self) -> None:
        for decision in ("expire", "purge", "dead-letter", None):
            key = self.key()
            half = self.posted(key)
            if decision:
                self.accepted(half, decision=decision)
            else:
                self.store.entry(self.group, half, failures=1)
            self.row(key)
            self.expect("processed-not-consumed", "warning", half)
        # of another group it was; this one has nothing
        key = self.key()
        half = self.posted(key)
        self.accepted(half, group=self.other)
        self.row(key)
        self.expect("processed-not-consumed", "warning", half)
        # rolled back, undecided, never posted
        for state in ("rollback", "undecided"):
            key, txn = self.key(), self.store.uuid_v7(AT)
            half = self.store.half(self.topic, AT, txn, encode_message(message_id=key, body={}))
            if state == "rollback":
                self.store.decide(txn, state, AT, 1)
            else:
                self.store.undecided(txn, AT)
            self.row(key)
            self.expect("processed-not-consumed", "error", half)
        self.row(self.key())
        self.expect("processed-not-consumed", "error")

    def _unusable(self) -> None:
        self.row(None)
        self.expect("null-key", "warning")
        self.row(self.key(), None)
        self.expect("unclear-row", "warning")
        half = self.posted(None)
        self.accepted(half)
        self.expect("null-key", "warning", half)
        # posted twice by its producer, and known to the inbox
        key = self.key()
        first, second = self.posted(key), self.posted(key, AT + timedelta(seconds=1))
        self.accepted(first)
        self.accepted(second)
        self.row(key)
        self.expect("repeated-key", "note", max(first, second))


def description(folder: Path, text: str = BOOK) -> ConsumerBookDescription:
    file = folder / "book.toml"
    file.write_text(text, encoding="utf-8")
    described = describe(file)
    assert isinstance(described, ConsumerBookDescription)
    return described


def compare(
    spark: SparkSession,
    billing: Billing,
    folder: Path,
    period: Period,
    text: str = BOOK,
    *,
    begins: datetime | None = None,
    behind: timedelta = timedelta(0),
    complete: bool = True,
) -> list[Row]:
    from pyspark.sql import functions as f

    spark.createDataFrame(billing.inbox, SCHEMA).write.parquet(str(folder / "inbox.parquet"), mode="overwrite")
    about = description(folder, text)
    opened = open_book(spark, about)
    book = type(opened)(
        description=about,
        rows=opened.rows.withColumn("consumer", f.lit(about.group)),
        types=opened.types,
        behind=behind,
    )
    tables = billing.store.frames(spark)
    groups = groups_named(spark, Directory.of(billing.store.rows, NOW), {about.group: begins})
    picked = pick(about, ledger.halves(tables["half"], period, "message"))
    read = tables["half"].where(period.read("half"))
    stated = ledger.states(ledger.halves(read, period), ledger.decisions(tables["op"]), period)
    stated = ledger.with_txn_id(stated)
    messages = fates(picked, groups, stated=stated, op=tables["op"], entry=tables["entry"]).cache()
    return consumer_findings(book, messages, period, NOW, groups=groups, complete=complete).collect()


def kinds(found: list[Row]) -> Counter[tuple[str, str, int | None]]:
    return Counter((row["kind"], row["severity"], row["half_id"]) for row in found)


@pytest.mark.rule("R24", "R25")
def test_a_consumers_book_finds_what_differs_and_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    billing = Billing().healthy().gone().broken()
    found = compare(spark, billing, tmp_path, Period())
    assert billing.expected - kinds(found) == Counter(), "not found"
    assert kinds(found) - billing.expected == Counter(), "invented"
    named = [row for row in found if row["kind"] in {"processed-twice", "processed-not-consumed"}]
    assert {(row["address"], row["consumer_group"]) for row in named} == {("prices", "billing")}
    repairs = [row["suggested_repair"] for row in found if row["kind"] == "consumed-not-processed"]
    assert repairs
    assert all(re.search(r"coordinator group seek --back-to \d+ -- prices::billing$", each) for each in repairs)


@pytest.mark.rule("R24", "S7")
def test_a_name_in_a_command_is_one_word(spark: SparkSession) -> None:
    """Clients choose the names of subscriptions."""
    from pyspark.sql import functions as f

    names = ["prices::billing@shop", "a b", "a'b", "; rm -rf /", "$(date)", "`date`", "-x", "a\nb"]
    rows = (
        spark.createDataFrame([(each,) for each in names], ["name"]).select("name", in_shell(f.col("name"))).collect()
    )
    assert [shlex.split(row[1]) for row in rows] == [[row["name"]] for row in rows]
    assert rows[0][1] == names[0]


@pytest.mark.rule("R24")
def test_edges_of_a_period_tear_no_row_from_its_message(spark: SparkSession, tmp_path: Path) -> None:
    """Of whatever age: what an old message says is read, and what became of it may be older than what is."""
    billing = Billing()
    edge = NOW - timedelta(days=5)
    for row_offset, message_offset in ((-1, 1), (1, -1), (1, -3600), (-3600, 1)):
        key = billing.key()
        half = billing.posted(key, edge + timedelta(seconds=message_offset))
        billing.accepted(half, edge + timedelta(seconds=max(row_offset, message_offset)))
        billing.row(key, edge + timedelta(seconds=row_offset))
    key = billing.key()
    half = billing.posted(key, edge - timedelta(days=20))
    billing.accepted(half, edge + timedelta(seconds=5))
    billing.row(key, edge + timedelta(seconds=4))
    key = billing.key()
    billing.posted(key, edge - timedelta(days=20))
    billing.row(key, edge + timedelta(seconds=4))
    reach = timedelta(hours=1)
    for period in (Period(until=edge, reach=reach), Period(since=edge, reach=reach)):
        assert compare(spark, billing, tmp_path, period) == []


@pytest.mark.rule("R24", "R25")
def test_a_message_before_the_book_begins_has_no_row_and_needs_no_key(spark: SparkSession, tmp_path: Path) -> None:
    billing = Billing()
    halves = [
        billing.posted(key, AT + timedelta(minutes=minutes)) for minutes in (-1, 1) for key in (billing.key(), None)
    ]
    for half in halves:
        billing.accepted(half, AT + timedelta(minutes=2))
    found = compare(spark, billing, tmp_path, Period(), begins=AT)
    assert kinds(found) == Counter([("consumed-not-processed", "error", halves[2]), ("null-key", "warning", halves[3])])


@pytest.mark.rule("R24", "R25")
def test_what_happened_after_the_book_was_read_is_not_judged(spark: SparkSession, tmp_path: Path) -> None:
    """A book that takes longer to read than its grace has no rows of what was accepted since."""
    billing = Billing()
    halves = [billing.posted(billing.key(), NOW - timedelta(hours=1)) for _ in range(2)]
    for half, minutes in zip(halves, (10, 30), strict=True):
        billing.accepted(half, NOW - timedelta(minutes=minutes))
    found = compare(spark, billing, tmp_path, Period(), behind=timedelta(minutes=20))
    assert kinds(found) == Counter([("consumed-not-processed", "error", halves[1])])


@pytest.mark.rule("R24")
def test_a_row_is_of_the_group_as_the_store_has_it_and_its_message_may_be_dropped(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The group's address ends with a colon. A row without a message is a note then."""
    billing = Billing()
    billing.topic = billing.store.address("prices:", routing="topic")
    billing.group = billing.store.group(billing.topic, "billing")
    half = billing.posted(key := billing.key())
    billing.row(key)
    billing.row(billing.key())
    found = compare(spark, billing, tmp_path, Period(), BOOK.replace("prices::", "prices:::"), complete=False)
    assert [(row["address"], row["consumer_group"]) for row in found] == [("prices:", "billing")] * 2
    assert kinds(found) == Counter(
        [("processed-not-consumed", "warning", half), ("processed-not-consumed", "note", None)]
    )


@pytest.mark.rule("R23", "R24")
def test_what_was_processed_is_compared_with_the_message(spark: SparkSession, tmp_path: Path) -> None:
    billing = Billing()
    halves = []
    for amount in (1, 2):
        key = billing.key()
        halves.append(billing.posted(key, amount=amount))
        billing.accepted(halves[-1])
        billing.row(key)
    text = BOOK + '\n[[equal]]\ncolumn = "amount"\nmessage = "body:$.amount"\n'
    found = compare(spark, billing, tmp_path, Period(), text)
    assert kinds(found) == Counter({("different-content", "error", halves[1]): 1})
    assert "amount is 1 in the book" in found[0]["detail"]


@pytest.mark.rule("R25")
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('"message-id"', '"txn-id"'), "message_key: .*expected message-id, property:NAME or body:..PATH$"),
        (("processed_when", "committed_when"), "committed_when: Extra inputs"),
        (('"prices::billing"', '""'), "group: String should have at least 1 character"),
        (("format", "keeps = 30\nformat"), "keeps: .*such as '5m'"),
    ],
)
def test_a_description_that_is_wrong_says_where(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    with pytest.raises(BookError, match=says):
        description(tmp_path, BOOK.replace(*change, 1))


@pytest.mark.rule("R25")
def test_a_condition_that_is_none_is_said(spark: SparkSession, tmp_path: Path) -> None:
    spark.createDataFrame([], SCHEMA).write.parquet(str(tmp_path / "inbox.parquet"))
    with pytest.raises(BookError, match="book billing: processed_when: 'amount' is int, expected true or false"):
        open_book(spark, description(tmp_path, BOOK.replace("status = 'done'", "amount", 1)))
