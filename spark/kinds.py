"""Define the texts of the report on each kind of finding, in its order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class KindText:
    """``one`` and ``many`` say what is wrong of one and of several, whose number stands before ``many``; ``meaning``
    explains; ``repaired``: by ``coordinator repair``, where it can (R34)."""

    title: str
    one: str
    many: str
    meaning: str
    repaired: bool = False

    def sentence(self, count: int) -> str:
        """Return the sentence on ``count`` findings."""
        return f"{self.one}." if count == 1 else f"{count:,} {self.many}."


#: R numbers are in docs/explanation/reconciliation.md.
KINDS: Final = {
    "double-decision": KindText(
        title="Decided twice",
        one="A transaction was decided twice",
        many="transactions were decided twice",
        meaning="A transaction has two decisions; the first must be the only one.",
    ),
    "phantom-delivery": KindText(
        title="Delivered without a commit",
        one="A message is delivered though it was never committed",
        many="deliveries are of messages that were never committed",
        meaning="A consumer has, or will get, a message whose transaction is not committed.",
    ),
    "lost-delivery": KindText(
        title="Committed, never delivered",
        one="A committed message will never reach one of its consumer groups",
        many="committed deliveries will never reach their consumer group",
        meaning="A committed message that one of its consumer groups will never get.",
        repaired=True,
    ),
    "orphan-entry": KindText(
        title="Kept for a group that is gone",
        one="A message waits in a consumer group that was removed",
        many="messages wait in consumer groups that were removed",
        meaning="A message waits in a consumer group that was removed; no consumer can get it there.",
    ),
    "double-delivery": KindText(
        title="Delivered twice",
        one="A message was delivered twice in one consumer group",
        many="messages were delivered twice in one consumer group",
        meaning="A message was finished with twice in one consumer group.",
    ),
    "orphan-op": KindText(
        title="A decision without its message",
        one="A decision names a message that the store does not have",
        many="decisions name messages that the store does not have",
        meaning="An op names a message that the store does not have.",
    ),
    "stuck-delivery": KindText(
        title="Waits, and no consumer gets it",
        one="A message waits, and no consumer gets it",
        many="messages wait, and no consumer gets them",
        meaning="An instance that has ended still has a message, or consumers take later ones and pass it over.",
        repaired=True,
    ),
    "dead-letter-mismatch": KindText(
        title="Dead letters and their ops differ",
        one="A delivery was given up without its dead letter, or the reverse",
        many="deliveries were given up without their dead letter, or the reverse",
        meaning="A delivery was given up and its dead letter is not there, or a dead letter is there without that.",
        repaired=True,
    ),
    "order": KindText(
        title="Delivered before it was committed",
        one="A message was answered by its consumer before it was committed",
        many="messages were answered by their consumer before they were committed",
        meaning="A consumer's answer is older than the commit of the message: one of them, or a clock, is wrong.",
    ),
    "unbalanced": KindText(
        title="The sums do not match",
        one="The sums of an address do not match in one hour",
        many="times the sums of an address do not match in an hour",
        meaning="Posted and decided, or committed and delivered, do not add up for an address and hour.",
    ),
    "overdue": KindText(
        title="Undecided past its time",
        one="A transaction is undecided past its time",
        many="transactions are undecided past their time",
        meaning="A transaction that should have been checked or decided by now.",
        repaired=True,
    ),
    "lost-message": KindText(
        title="In the book, not sent",
        one="A row of a book is committed, and its message was not sent",
        many="rows of a book are committed, and their messages were not sent",
        meaning="The application committed its own record, but the message was rolled back or never came.",
    ),
    "phantom-message": KindText(
        title="Sent, not in the book",
        one="A message was sent, and the book has no committed row of it",
        many="messages were sent, and the book has no committed row of them",
        meaning="The message was committed, but the application's record is rolled back or not there.",
    ),
    "undecided-but-known": KindText(
        title="Undecided here, decided in the book",
        one="A transaction is undecided here, and its book knows the outcome",
        many="transactions are undecided here, and their book knows the outcome",
        meaning="The application knows the outcome; the coordinator still waits for it.",
        repaired=True,
    ),
    "different-content": KindText(
        title="Book and message differ",
        one="A message and its row in the book differ",
        many="values of messages differ from those of their rows in the book",
        meaning="Both are committed, but a value that must be equal is not.",
    ),
    "consumed-not-processed": KindText(
        title="Consumed, and not in the book",
        one="A message was consumed, and its consumer's book has no row of the work",
        many="messages were consumed, and their consumer's book has no row of the work",
        meaning="A consumer group has accepted a message, and its book does not say that the work was done.",
    ),
    "processed-not-consumed": KindText(
        title="In the book, and not consumed",
        one="The work of a message was done, and its group has not accepted it",
        many="times the work of a message was done, and its group has not accepted it",
        meaning="A consumer's book says that the work of a message was done; its group has not accepted it.",
    ),
    "processed-twice": KindText(
        title="In the book too often",
        one="The work of a message was done too often",
        many="messages had their work done too often",
        meaning="A consumer's book has more rows of a message than times that its group has accepted it.",
    ),
    "repeated-key": KindText(
        title="A key that occurs twice",
        one="A key occurs more than once",
        many="keys occur more than once",
        meaning="Rows or messages that share a key and so cannot be told apart.",
    ),
    "null-key": KindText(
        title="No key",
        one="A row or message has no key",
        many="rows or messages have no key",
        meaning="Rows or messages without the key by which they are compared.",
    ),
    "posted-in-sql": KindText(
        title="Messages posted in SQL",
        one="Messages at the addresses of a book by txn-id were posted in SQL",
        many="books by txn-id have messages at their addresses that were posted in SQL",
        meaning="Messages that applications posted in SQL have no txn-id: a book by txn-id says nothing of them.",
    ),
    "unparsable-key": KindText(
        title="A key that cannot be read",
        one="A key cannot be read",
        many="keys cannot be read",
        meaning="Rows or messages whose key does not parse.",
    ),
    "unclear-row": KindText(
        title="A row that says nothing clear",
        one="A row of a book says nothing clear",
        many="rows of a book say nothing clear",
        meaning="A row of a book without a time, or with one of no store, or in the future, or with two outcomes.",
    ),
    "time-without-zone": KindText(
        title="Times without a zone",
        one="A book has times without a zone",
        many="books have times without a zone",
        meaning="Rows of a book say no zone with their time; they were taken for UTC.",
    ),
    "unknown-consumer": KindText(
        title="A consumer that is no group",
        one="A consumer in the store's inbox has the name of no group",
        many="consumers in the store's inbox have the name of no group",
        meaning="The store's inbox has rows of a consumer that no group is named as; they are compared with nothing.",
    ),
}


def place(kind: str) -> int:
    """Return the place of a kind in the report."""
    known = list(KINDS)
    return known.index(kind) if kind in KINDS else len(known)


def text_of(kind: str) -> KindText:
    """Return the texts of a kind; for an unknown kind, its name."""
    return KINDS.get(kind) or KindText(title=kind, one=kind, many=kind, meaning="")
