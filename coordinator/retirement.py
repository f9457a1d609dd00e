"""What a client says of its deliveries, in a transaction or in none, whatever the wire (part 4, section 4.4; rules T26
to T30, T34, P11).

The link of a consumer hands over what it reads. The outcome is applied when it is durable, by itself or with the
decision of its transaction; until then the delivery is enlisted, or its outcome is on its way to the store.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from coordinator.errors import Condition, Refusal
from coordinator.outcomes import FAILED, LOST, RELEASED, UNREAD, Kind
from coordinator.transitions import DECIDED, LINK_LOST, ROLLED_BACK, SENT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coordinator.group.entries import Entry
    from coordinator.outcomes import Outcome
    from coordinator.registry import Registry
    from coordinator.settlements import Settlements

#: How often in a row a delivery is forgiven that is the first undecided of a link that has decided others.
MOST_FORGIVEN = 3
#: Deliveries of which it is known how often they were.
MOST_REMEMBERED = 10_000


class Departure(Enum):
    """How a link ends."""

    #: its connection is lost, or the service ends it for what its client has done
    LOST = "lost"
    #: its client detaches it, or ends its session or its connection
    LEFT = "left"
    #: the service stops
    STOPPED = "stopped"


class Retiring(Protocol):
    """The link of a consumer, as the rules see it."""

    default_outcome: Outcome | None
    departure: Departure
    #: whether its client has decided any delivery outside transactions; one that it released does not count
    has_decided: bool
    #: whether it has retired any in a transaction
    transactional: bool

    def refuse(self, refusal: Refusal) -> None:
        """Detach the link."""


class Owner(Protocol):
    """The connection of a link."""

    @property
    def user_id(self) -> str | None:
        """Of the user as which its client has logged in; None: as none."""


class Retirement:
    """Of all consumers of an instance."""

    def __init__(self, registry: Registry, settlements: Settlements) -> None:
        self._registry = registry
        self._settlements = settlements
        #: by group and entry, how often it was forgiven in a row; the oldest are forgotten first
        self._forgiven: OrderedDict[tuple[int, int], int] = OrderedDict()

    def settle(self, link: Retiring, entry: Entry, outcome: Outcome | None, settled: bool) -> None:
        """A plain state. ``outcome``: None where the state is none; ``settled``: the peer has settled the delivery."""
        if entry.txn is not None:
            # enlisted: until the discharge a plain state can only settle the delivery
            entry.peer_settled = entry.peer_settled or settled
        elif outcome is not None or settled:
            outcome = outcome or link.default_outcome or RELEASED
            link.has_decided = link.has_decided or outcome.kind is not Kind.RELEASED
            self._settlements.add(entry, outcome)

    def retire(
        self, link: Retiring, owner: Owner, entry: Entry, txn_id: bytes, outcome: Outcome | None, settled: bool
    ) -> None:
        """A transactional state. ``owner``: the link's connection; ``outcome``: None where the state names none."""
        txn = self._registry.for_work(txn_id, owner)
        enlisted = entry.txn
        if txn is None:
            if enlisted is None:
                known = entry.last_txn == txn_id and settled
                if settled:  # T28
                    self._settlements.add(entry, link.default_outcome or FAILED)
            else:
                known = enlisted.id == txn_id and (settled or enlisted.state is not ROLLED_BACK)
                if known:
                    entry.peer_settled = entry.peer_settled or settled
            if not known:  # T30; else the delivery is part of it, or was, and is settled (T34)
                link.refuse(self._registry.unknown(txn_id, owner.user_id))
        elif enlisted is not None and enlisted is not txn:  # T29
            entry.peer_settled = entry.peer_settled or settled
            text = "a delivery was retired in one transaction and then in another, both undecided"
            refusal = Refusal(Condition.TXN_ROLLBACK, text)
            txn.refuse(refusal)  # a checkable one would stay undecided, and could be committed without the retirement
            txn.control.refuse(refusal)
        elif entry.state is not DECIDED:  # else it is settled outside transactions already
            link.transactional = True
            outcome = outcome or link.default_outcome or FAILED
            if txn.checkable:
                txn.hold(entry, outcome, settled)
            else:
                txn.retire(entry, outcome, settled)

    def link_ended(self, link: Retiring, entries: Iterable[Entry], *, dropped: bool) -> None:
        """What was sent and not decided comes back (D5); what is enlisted waits for its transaction. ``entries``: its
        deliveries, in the order in which they were sent. ``dropped``: their group or address is gone, and nothing is
        left to deliver them from.
        """
        if dropped:
            for entry in entries:
                if entry.met(LINK_LOST):
                    entry.queue.done_with(entry)
            return
        outcome, others = _undecided(link)
        for entry in entries:
            sent = entry.state is SENT
            if sent and link.has_decided and outcome is not others and self._forgives(entry):
                outcome = others
            self._settlements.add(entry, outcome, LINK_LOST)
            if sent:
                outcome = others

    def _forgives(self, entry: Entry) -> bool:
        """Whether the first that a link leaves, which has decided others, does not count. One that its consumers leave
        again and again, each behind another that they decide, counts in the end.
        """
        key = (entry.queue.group_id, entry.id)
        times = self._forgiven.pop(key, 0)
        if times == MOST_FORGIVEN:
            return False
        self._forgiven[key] = times + 1
        if len(self._forgiven) > MOST_REMEMBERED:
            self._forgiven.popitem(last=False)
        return True


def _undecided(link: Retiring) -> tuple[Outcome, Outcome]:
    """The outcome of the first of its undecided deliveries, and that of all others.

    A client that leaves has worked on the first at most, and may have left the others unread, or not have them yet: to
    count them all, as Qpid JMS asks with the default-outcome that it names for each source, would use up the attempts
    of messages that no application has seen. One that has decided others before may have none in hand, as one that
    takes a message, accepts it and leaves: then the first is forgiven, some times in a row. Where it works in
    transactions, their rollbacks have counted.
    """
    if link.departure is Departure.LOST:
        return LOST, LOST
    named = link.default_outcome
    counts = named is None or named.delivery_failed
    if link.departure is Departure.STOPPED or link.transactional or not counts:
        return RELEASED, RELEASED
    return LOST, RELEASED if link.has_decided else UNREAD
