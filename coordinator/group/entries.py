"""An entry is a committed message of one consumer group, leased to this instance; consumers and browsers are links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from coordinator.transitions import DELIVERY, HELD
from store.clock import CLOCK
from store.commit import terms

if TYPE_CHECKING:
    from coordinator.group.queues import Queue
    from coordinator.outcomes import Outcome
    from coordinator.traces import DeliverySpan
    from coordinator.transaction import Transaction
    from coordinator.transitions import DeliveryEvent, DeliveryState


class Consumer(Protocol):
    """A link that receives entries. ``key`` is unique in this process."""

    key: int
    #: applied to a delivery that is settled without a valid outcome (part 3, section 3.5.3)
    default_outcome: Outcome | None

    @property
    def connection(self) -> object: ...

    @property
    def room(self) -> int:
        """The number of entries that the link accepts now: its credit, within the limit of unsettled deliveries. 0: its
        group is paused.
        """

    @property
    def draining(self) -> bool: ...

    @property
    def waits(self) -> bool:
        """Whether the link has no room for a short time, until octets are written or the turn ends; it reports the
        end.
        """

    @property
    def shut(self) -> bool:
        """Whether the link has no room until its peer opens the session's window; it reports that."""

    def send(self, entry: Entry) -> bool:
        """Send ``entry``; return whether the link takes another right away.

        :raises DecodeError: the stored message cannot be read; nothing was sent.
        """

    def redirect(self, place: str) -> None:
        """Close the link, and send its client to the service at this URL."""

    def drained(self) -> None:
        """Use up the credit of a drain, as the queue has no more entries for the link (part 2, section 2.6.7)."""

    def retired(self, entry: Entry, outcome: Outcome) -> None:
        """Settle the delivery, whose outcome is durable."""

    def enlisted(self, entry: Entry, txn_id: bytes, outcome: Outcome) -> None:
        """Confirm the retirement: the store holds the entry for a checkable transaction, which will apply this
        outcome.
        """

    def left(self, entry: Entry) -> None:
        """Settle the delivery, whose undecided transaction is decided elsewhere."""

    def unretired(self, entry: Entry, description: str) -> None:
        """Report to the peer that the store has refused the outcome (rule D10)."""


class Browser(Protocol):
    """A link that reads entries without leasing them (distribution-mode copy)."""

    def advance(self) -> None:
        """Send further entries, if the link has credit."""

    def arrived(self) -> None:
        """Note that there may be new entries."""


class Entry:
    """A committed message in one group, leased to this instance; on a link it is the delivery itself."""

    __slots__ = (
        "acquired", "annotations", "attempts", "delivery", "expires", "failures", "half_id", "id", "kept", "last_txn",
        "link", "message", "outcome", "peer_settled", "priority", "queue", "refused_by", "size", "state", "trace",
        "txn", "whole",
    )  # fmt: skip

    def __init__(
        self,
        queue: Queue,
        entry_id: int,
        half_id: int,
        message: bytes,
        attempts: int,
        expires: int,
        annotations: bytes,
        acquired: bool = False,
        priority: int = terms.DEFAULT,
        whole: int = 0,
        failures: int = 0,
    ) -> None:
        """``attempts``: how many deliveries a client may have seen; ``failures``: how many of them failed. ``expires``:
        microseconds since 2000, 0 for never. ``acquired``: a client had it before.
        """
        self.queue = queue
        self.id = entry_id
        self.half_id = half_id
        self.message: bytes | None = message
        #: octets that the entry has in memory
        self.size = len(message) + len(annotations)
        #: the size of a large message, of which ``message`` is the beginning; 0 for all others
        self.whole = whole
        self.attempts = attempts
        self.failures = failures
        self.expires = expires
        self.annotations = annotations
        self.acquired = acquired
        self.priority = priority
        self.refused_by: tuple[int, ...] = ()
        self.link: Consumer | None = None
        self.delivery: object = None
        #: changed by the table of deliveries alone (:data:`coordinator.transitions.DELIVERY`)
        self.state: DeliveryState = HELD
        self.txn: Transaction | None = None
        self.last_txn: bytes | None = None
        self.outcome: Outcome | None = None
        #: the span of its delivery, if its trace is sampled
        self.trace: DeliverySpan | None = None
        self.peer_settled = False
        #: whether the store keeps the lease when the entry comes back
        self.kept = False

    def met(self, event: DeliveryEvent) -> bool:
        """Change the state by the event, as the table says; whether it changed. KeyError: the event cannot occur."""
        before = self.state
        self.state = DELIVERY[before, event]
        return self.state is not before

    @property
    def order(self) -> tuple[int, int]:
        """The sort key within the group: by priority, then by id (P17)."""
        return -self.priority, self.id

    def __lt__(self, other: Entry) -> bool:
        """Whether it is delivered before ``other``."""
        if self.priority != other.priority:
            return self.priority > other.priority
        return self.id < other.id

    def __hash__(self) -> int:
        """Return the hash of the identity, which mypyc omits for a class with an order."""
        return id(self)


#: 2000-01-01 UTC in Unix seconds: the epoch of PostgreSQL's timestamps
POSTGRES_EPOCH = 946_684_800


def now_micros() -> int:
    """Return the microseconds since 2000-01-01 UTC by the database's clock, as PostgreSQL stores times."""
    return int((CLOCK.now() - POSTGRES_EPOCH) * 1e6)
