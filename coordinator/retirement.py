"""What a client says of its deliveries, in a transaction or in none, whatever the wire (part 4, section 4.4; rules T26
to T30, T34, P11).

The link of a consumer hands over what it reads. The outcome is applied when it is durable, by itself or with the
decision of its transaction; until then the delivery is enlisted, or its outcome is on its way to the store.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

from coordinator.errors import Condition, Refusal
from coordinator.outcomes import FAILED, LOST, RELEASED, RETURNED, UNTRANSFERRED, Kind
from coordinator.transitions import DECIDED, LINK_LOST, ROLLED_BACK, SENT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from coordinator.group.entries import Entry
    from coordinator.outcomes import Outcome
    from coordinator.registry import Registry
    from coordinator.settlements import Settlements


class Departure(Enum):
    """How a link ends."""

    #: its connection is cut, or its client is silent for too long
    LOST = "lost"
    #: its client detaches it, or ends its session or its connection
    LEFT = "left"
    #: the service ends it, whatever the reason
    ENDED = "ended"


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
            if txn.in_store is not None:
                txn.in_store.retire(entry, outcome, settled)
            else:
                txn.retire(entry, outcome, settled)

    def link_ended(
        self, link: Retiring, entries: Iterable[Entry], *, unsent: Collection[Entry] = (), dropped: bool
    ) -> None:
        """What was sent and not decided comes back (D5); what is enlisted waits for its transaction. ``entries``: its
        deliveries, in the order in which they were sent. ``unsent``: those that were never transferred. ``dropped``:
        their group or address is gone, and nothing is left to deliver them from.
        """
        if dropped:
            for entry in entries:
                if entry.met(LINK_LOST):
                    entry.queue.done_with(entry)
            return
        first, others = _undecided(link)
        outcome, waits = first, False
        for entry in entries:
            came = entry.state is SENT and entry not in unsent
            if came:
                waits = waits or outcome is LOST
            self._settlements.add(entry, outcome if came else UNTRANSFERRED, LINK_LOST, behind_others=waits)
            if came:
                outcome = others


def _undecided(link: Retiring) -> tuple[Outcome, Outcome]:
    """The outcome of the first of its undecided deliveries, and that of all others (D5: the table in docs/reference).

    A client that leaves has worked on the first at most, and may have left the others unread: were all counted as
    failed, as Qpid JMS asks with the default-outcome that it names for each source, messages that no application has
    seen would become dead letters. One that has decided others before may have none in hand, as one that takes a
    message, accepts it and leaves. Where it works in transactions, their rollbacks have counted.
    """
    if link.departure is Departure.LOST:
        return LOST, LOST
    named = link.default_outcome
    if named is not None and not named.delivery_failed and named.kind in (Kind.RELEASED, Kind.MODIFIED):
        return RELEASED, RELEASED  # as the source says (part 3, section 3.5.3)
    fails = link.departure is Departure.LEFT and not (link.has_decided or link.transactional)
    return (LOST if fails and (named is None or named.delivery_failed) else RETURNED), RETURNED
