"""What the model keeps: links, messages, deliveries, transactions, and the answers that are due."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from tests.model.steps import (
    Outcome,
)


@dataclass(frozen=True)
class Policy:
    """Of a consumer group. ``waits``: in hours, after the first failed delivery, the second one, and all others; empty:
    none (D2). ``asked``: where a consumer asks for the highest level. ``retry``: as it is written.
    """

    address: int
    waits: tuple[int, ...]
    asked: int
    retry: str
    most_attempts: int = 3
    #: a name of its own (D1), and policies that are not those of its address
    own: bool = False


#: What the drivers set up the service with: of each address, its kind (H1).
QUEUE_KINDS = ("normal", "normal", "delay", "transaction", "fifo")
ADDRESSES = len(QUEUE_KINDS)
#: The default group of each address, in their order, and another of one (D1).
POLICIES = (
    Policy(0, (), 2, "immediate"),
    Policy(1, (48, 96), 96, "ladder 48h 96h"),
    Policy(2, (72, 144, 200), 200, "exponential 72h 2 200h"),
    Policy(3, (), 2, "immediate"),
    Policy(4, (48, 96), 96, "ladder 2d 4d"),
    Policy(1, (30,), 80, "exponential 30h 3 80h", most_attempts=2, own=True),
)
QUEUES = len(POLICIES)
FIFO = QUEUE_KINDS.index("fifo")
#: hours until what is posted to come later comes
LATER_HOURS = 24
GROUPS = 2
MOST_CHECKS = 2
#: In a transaction; one to several consumer groups counts once for each.
MOST_POSTS = 4
#: Messages that a consumer has refused, in memory where it could take others; fewer than a window holds.
MOST_REFUSED = 3
WINDOW = 4

ACCEPTED, RELEASED = "accepted", "released"
#: As the service says it when it settles a delivery.
KIND = {
    Outcome.ACCEPTED: "accepted",
    Outcome.REJECTED: "rejected",
    Outcome.RELEASED: "released",
    Outcome.MARKED: "modified",
    Outcome.FAILED: "modified",
    Outcome.ELSEWHERE: "modified",
    Outcome.FAILED_ELSEWHERE: "modified",
    Outcome.LATER: "modified",
    Outcome.FAILED_LATER: "modified",
    Outcome.GIVEN_UP: "modified",
    Outcome.LOST: "modified",
    Outcome.RETURNED: "released",
}
FAILURES = (Outcome.FAILED, Outcome.FAILED_ELSEWHERE, Outcome.FAILED_LATER, Outcome.LOST)
#: what no consumer says
UNSAID = (Outcome.LOST, Outcome.RETURNED)
REFUSALS = (Outcome.ELSEWHERE, Outcome.FAILED_ELSEWHERE)
#: what a consumer says with ``rejected``, as a dead letter tells it
WHY_REJECTED = "amqp:internal-error: by the consumer"
ILLEGAL_STATE = "amqp:illegal-state"
INTERNAL_ERROR = "amqp:internal-error"
DECODE_ERROR = "amqp:decode-error"
RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
UNKNOWN_ID = "amqp:transaction:unknown-id"
ROLLBACK = "amqp:transaction:rollback"
TIMEOUT = "amqp:transaction:timeout"
PRECONDITION_FAILED = "amqp:precondition-failed"


def rejected(condition: str) -> str:
    return f"rejected {condition}"


def in_txn(answer: str) -> str:
    return f"in the transaction: {answer}"


#: ("answer", step), ("decided", step): the second one to a post (T25), ("settled", delivery): the service settles it.
Label = tuple[str, int]


class Departure(Enum):
    """How a link ends: its connection vanishes; its client leaves; the service ends it, or stops."""

    LOST = "lost"
    LEFT = "left"
    ENDED = "ended"


@dataclass(eq=False)
class Link:
    number: int
    connection: int
    session: int
    open: bool = True
    #: of the detach, where the service sent it
    condition: str | None = None


@dataclass(eq=False)
class Control(Link):
    hasty: bool = False
    group: int | None = None


@dataclass(eq=False)
class Sender(Link):
    #: None: the anonymous relay
    queue: int | None = 0
    second: bool = False


@dataclass(eq=False)
class Receiver(Link):
    queue: int = 0
    deliveries: list[Delivery] = field(default_factory=list)
    #: it has decided one outside transactions
    has_decided: bool = False
    #: it has retired one in a transaction
    transactional: bool = False


@dataclass(eq=False)
class Listener(Link):
    """Of a broadcast (D1)."""

    address: int = 0
    #: messages that were committed while it was there and that it has not heard, in their order; and those of them
    #: whose time has not come
    waiting: list[int] = field(default_factory=list)
    later: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Stored:
    """``place``: "queue", "later" (its time has not come), "dead" (its letter is written or will be), or "nowhere".
    ``least``, ``most``: attempts. ``failures``: of these. ``written``: at least so many attempts are in the
    store, which has the others with the next change of the row.

    ``marked``: a consumer's annotation is on it. ``wait``: hours until its time comes, when this was said.
    """

    place: str
    least: int = 0
    most: int = 0
    marked: bool = False
    wait: int = 0
    failures: int = 0
    written: int = 0

    def comes_as(self, count: int, marked: bool) -> bool:
        """Whether it may be delivered so."""
        return self.place == "queue" and self.least <= count <= self.most and self.marked is marked

    def holds(self, found: Stored) -> bool:
        """Whether ``found``, in the store, is this."""
        if self.place != found.place or self.wait != found.wait:
            return False
        if self.place not in ("queue", "later"):
            return True
        attempts = self.written <= found.least <= self.most
        return attempts and self.failures == found.failures and self.marked is found.marked

    def survived(self, *, sent: bool) -> Stored:
        """After a crash, which fails nothing; an entry that was not sent may count as sent (D5)."""
        if self.place != "queue":
            return self
        written = self.written + sent
        return replace(self, least=written, most=self.most + 1, written=written)


@dataclass(frozen=True)
class Letter:
    """What a dead letter tells (D4): the address it came from, failed deliveries, why, and the transaction that posted
    it.
    """

    address: int
    count: int
    why: str
    txn: int | None


@dataclass(eq=False)
class Message:
    number: int
    queue: int
    stored: Stored
    #: the delivery that holds it
    delivery: Delivery | None = None
    #: receivers that it is not to come to again
    refused_by: set[int] = field(default_factory=set)
    #: before what is not known to be durable yet, and whether a consumer had it then; the transaction that changed it
    before: tuple[Stored, bool] | None = None
    changed_by: Txn | None = None
    #: message group (P18)
    key: int | None = None
    #: the transaction that posted it
    txn: int | None = None
    #: retention has dropped it from the store, all of whose groups were done with it
    dropped: bool = False
    #: of a dead one; and whether a consumer's annotation is on that
    letter: Letter | None = None
    letter_marked: bool = False
    #: letters of it that were replayed: each is a message of its own in the store. Whether the last one is marked
    replays: int = 0
    replay_marked: bool = False

    @property
    def name(self) -> tuple[int, int]:
        return self.queue, self.number

    @property
    def retried(self) -> bool:
        """It waits, after a delivery (D2)."""
        return self.stored.place == "later" and self.stored.wait != LATER_HOURS


@dataclass(eq=False)
class Delivery:
    number: int
    receiver: Receiver
    message: Message
    txn: Txn | None = None
    outcome: Outcome = Outcome.NONE
    #: the last transaction that let it go, undecided
    last_txn: Txn | None = None
    #: the client says no more of it: it has settled it, or given a plain outcome
    closed: bool = False
    #: the client has said something of it
    spoken_of: bool = False
    #: by the client
    settled: bool = False
    #: the service has settled it
    done: bool = False


@dataclass(eq=False)
class Txn:
    number: int
    connection: int
    control: Control
    #: "active", "rollback-only", "left" (checkable, and its control link is gone), "committed", "rolled-back"
    state: str = "active"
    #: queue and number
    posts: list[tuple[int, int]] = field(default_factory=list)
    #: what its posts count towards its limit: also those that came too late
    rows: int = 0
    #: of its messages, those that are in the store for sure, whatever happens; and those retired that it holds there
    stored: set[int] = field(default_factory=set)
    held: set[tuple[int, int]] = field(default_factory=set)
    #: of the posts, those that were accepted before it was checkable: they are in the store when a later one is
    plain: set[int] = field(default_factory=set)
    #: the producer group, of a checkable transaction
    group: int | None = None
    #: checks that were sent
    checks: int = 0
    #: the store has halves of it, or holds what it has retired: they outlive the client (H3, H13, H20)
    entered: bool = False
    #: its time is over, and it is checkable
    overdue: bool = False
    retired: list[Delivery] = field(default_factory=list)
    #: what it gives back with a decision that the store may not have yet
    giving_back: list[Delivery] = field(default_factory=list)
    unsettled: list[tuple[Sender, int]] = field(default_factory=list)
    timed_out: bool = False
    #: the condition of what made it rollback-only
    refused: str | None = None
    #: an operator or another instance has rolled it back
    decided: bool = False
    #: what the store remembers
    op: str | None = None
    #: whether the store may not have it yet, or the client has no answer yet
    pending: bool = False
    #: an operator or a checker made it: the store has it
    others: bool = False

    @property
    def open(self) -> bool:
        return self.state in ("active", "rollback-only")

    @property
    def empty(self) -> bool:
        return not self.posts and not self.retired

    @property
    def asked(self) -> bool:
        """Checkers are asked for it, until they were asked often enough (H7)."""
        return self.entered and self.op is None and (self.state == "left" or (self.open and self.overdue))

    @property
    def due(self) -> bool:
        """For a check."""
        return self.asked and self.checks < MOST_CHECKS

    @property
    def exhausted(self) -> bool:
        """No checker has answered (H10)."""
        return self.asked and self.checks == MOST_CHECKS


@dataclass(frozen=True)
class Due:
    """An answer: one of ``allowed``; None among them: it may not come."""

    allowed: frozenset[str | None]
    link: int
