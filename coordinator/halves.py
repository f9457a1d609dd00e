"""The halves of a checkable transaction (rules H2, H3, H7), and the units that bring them to the store: each is durable
before its post is answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import structlog

from coordinator.address.nodes import resource_deleted
from coordinator.errors import Condition, Refusal
from coordinator.group import deliveries
from coordinator.work import held_octets
from store import reasons
from store.commit.checkable import Settled
from store.commit.terms import PLAIN
from store.errors import AddressGone, AlreadyDecided, NotLeased

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coordinator.address.directory import Directory
    from coordinator.address.nodes import Address
    from coordinator.checkable import CheckTerms, OwnCheckTerms
    from coordinator.group.entries import Entry
    from coordinator.instance import Instance
    from store.commit.batch import Batch
    from store.commit.checkable import Declared
    from store.commit.terms import Terms
    from store.errors import StoreError
    from store.spool import Octets


log = structlog.get_logger(__name__)


class Halves:
    """``group``: the producer group; ``connection``: number of the connection that declared the transaction; ``terms``:
    how it is checked, at first as the settings say; ``asked``: what its client asks for instead.
    """

    __slots__ = (
        "asked",
        "connection",
        "decided",
        "doomed",
        "entered",
        "group",
        "held",
        "holding",
        "ids",
        "left_out",
        "news",
        "on_way",
        "overdue",
        "own_rows",
        "placed",
        "sent",
        "terms",
        "waiting",
    )

    def __init__(self, group: str, terms: CheckTerms, connection: int, asked: OwnCheckTerms) -> None:
        self.group = group
        self.terms = terms
        self.asked = asked
        #: its first message has said to which address it goes
        self.placed = False
        self.connection = connection
        #: of its halves that are in the store, as the posts of the transaction
        self.ids: list[int] = []
        #: those of them that have rows of their own; all others are in the transaction's row
        self.own_rows: set[int] = set()
        #: a group does not get one of them
        self.left_out = False
        #: units that are on their way to the store: no decision is written before they are answered
        self.on_way = 0
        #: another may have decided it meanwhile
        self.news = False
        #: the reason of a rollback that waits for them
        self.waiting: str | None = None
        #: the terms with which its row was sent to the store; None: it was not
        self.sent: CheckTerms | None = None
        #: its row is in the store
        self.entered = False
        #: its time was over, and the store was told
        self.overdue = False
        #: it can only roll back, and the store was told; and has decided so
        self.doomed = False
        self.decided = False
        #: of the deliveries that it has retired, those whose entries it holds in the store
        self.held: dict[Entry, None] = {}
        #: those that are on their way there, and whether another outcome came meanwhile
        self.holding: dict[Entry, bool] = {}

    def place(self, address: Address) -> None:
        """A message of it goes to this address: the first has the address's terms count. What the client asks for goes
        before them (H7). They come too late where the row of the transaction is in the store, as it retired before.
        """
        if not self.placed:
            self.placed = True
            self.terms = address.check_terms.over(self.terms)

    def settled(self, posts: Sequence[tuple[Address, Octets, Terms]], entry_ids: Sequence[int]) -> Settled | None:
        """What its commit makes of its halves. None: the function must decide, as the queue of those in the
        transaction's row has other groups by now.
        """
        halves: list[int] = []
        entries: list[int] = []
        pended: list[int] = []
        pended_entries: list[int] = []
        of_row = group = 0
        for (address, _, _), half_id, entry_id in zip(posts, self.ids, entry_ids, strict=True):
            queue = address.queue
            if half_id in self.own_rows:
                pended.append(half_id)
                pended_entries.append(entry_id)
            elif queue is None or address.fans:
                return None
            else:
                halves.append(half_id)
                entries.append(entry_id)
                of_row, group = address.id, queue.group_id
        return Settled(halves, entries, of_row, group, pended, pended_entries)


class PostLink(Protocol):
    """The link of a post, see :class:`coordinator.posts.PostLink`."""

    @property
    def continues(self) -> bool: ...

    @property
    def second(self) -> bool: ...

    def stored_in(self, delivery: Any, octets: int, txn: Any) -> None: ...

    def not_stored_in(self, delivery: Any, octets: int, txn: Any, refusal: Refusal) -> None: ...


class Checked(Protocol):
    """A checkable transaction, as its units see it."""

    halves: Halves
    error: Refusal | None

    @property
    def id(self) -> bytes: ...

    @property
    def owner(self) -> object: ...

    @property
    def open(self) -> bool: ...

    @property
    def registered(self) -> bool:
        """It may be in the store's list."""

    @property
    def instance(self) -> Instance: ...

    @property
    def directory(self) -> Directory: ...

    def declared(self, terms: CheckTerms) -> Declared:
        """Its row in the store."""

    def stored(self, half_id: int, address: Address, terms: Terms, *, own_row: bool) -> None:
        """A half is durable. ``own_row``: it has a row in ``pending``, and is not in the transaction's."""

    def awaits_decision(self, poster: Any, delivery: object, message: Octets) -> None: ...

    def lacks(self, refusal: Refusal) -> None:
        """A post was refused, which the transaction must not commit without (T23)."""

    def arrived(self) -> None:
        """A unit that was on its way is answered."""


def enter(txn: Checked, batch: Batch) -> None:
    """Its row, with the first that it has in the store; else it must be undecided there."""
    rows = batch.check_back()
    halves = txn.halves
    if halves.entered:
        rows.enlist(txn.id)
        return
    before, halves.sent = halves.sent, halves.asked.over(halves.terms)
    here = txn.id in rows.declared
    if not here or halves.sent != before:  # a later message of the same batch may say how it is checked
        batch.registered.pop(txn.id, None)
        new = here or (before is None and not txn.registered)
        rows.declare(txn.id, txn.declared(halves.sent), new=new)


class HalfPost:
    """Unit: one message posted in a checkable transaction. ``link``: None if the post is answered already, as the
    transaction was a plain one; ``delivery``: None if its sender has settled it.
    """

    __slots__ = ("_address", "_delivery", "_id", "_link", "_message", "_own_row", "_terms", "_txn")

    def __init__(
        self,
        link: PostLink | None,
        delivery: Any,
        txn: Checked,
        address: Address,
        message: Octets,
        terms: Terms,
    ) -> None:
        self._link = link
        self._delivery = delivery
        self._txn = txn
        self._address = address
        self._message = message
        self._terms = terms
        self._id = 0
        self._own_row = False

    @property
    def owner(self) -> object:
        return self._txn.owner

    def write(self, batch: Batch) -> None:
        txn, address, terms = self._txn, self._address, self._terms
        half_id = self._id = self._id or txn.instance.ids.next()
        batch.half(half_id, txn.id, address.id, self._message)
        left_out: Sequence[int] = ()
        if address.subscriptions:
            left_out = [queue.group_id for queue in address.subscriptions if queue.not_from is txn.owner]
            txn.halves.left_out = txn.halves.left_out or bool(left_out)
        enter(txn, batch)
        rows = batch.check_back()
        simple = terms is PLAIN and not left_out and not address.fans and address.queue is not None
        self._own_row = not (simple and rows.pend_in_row(txn.id, half_id, address.id))
        if self._own_row:
            rows.pend(txn.id, half_id, address.id, terms, left_out)

    def durable(self) -> None:
        txn, link = self._txn, self._link
        txn.stored(self._id, self._address, self._terms, own_row=self._own_row)
        if link is not None and self._delivery is not None:
            link.stored_in(self._delivery, len(self._message), txn)
            if link.second:
                txn.awaits_decision(link, self._delivery, self._message)
        txn.arrived()

    def refused(self, error: StoreError) -> None:
        txn, link = self._txn, self._link
        refusal = Refusal(Condition.INTERNAL_ERROR, "the store could not take the message")
        if isinstance(error, AddressGone):
            refusal = resource_deleted(self._address)
            txn.directory.removed(self._address)
        elif isinstance(error, AlreadyDecided):
            refusal = Refusal(Condition.TXN_ROLLBACK, "the transaction is decided already, and not by this client")
        if link is None or self._delivery is None or not link.continues:
            txn.lacks(refusal)
        if link is not None and self._delivery is not None:
            link.not_stored_in(self._delivery, len(self._message), txn, refusal)
        txn.arrived()


class Doom:
    """Unit: a transaction that can only roll back is rolled back before its discharge comes: were the service killed
    before, a checker could commit what is left of it (T22, T23).
    """

    __slots__ = ("_txn",)

    def __init__(self, txn: Checked) -> None:
        self._txn = txn

    @property
    def owner(self) -> object:
        return self._txn.owner

    def write(self, batch: Batch) -> None:
        error = self._txn.error
        assert error is not None
        batch.check_back().decide(self._txn.id, b"rollback", f"{reasons.ROLLBACK_ONLY}: {error.condition}")

    def durable(self) -> None:
        self._txn.halves.decided = True
        self._txn.arrived()

    def refused(self, error: StoreError) -> None:
        """Its discharge says what stands, or tries again."""
        if not isinstance(error, AlreadyDecided):
            log.error("a transaction that can only roll back is undecided in the store", error=str(error))
        self._txn.arrived()


class Overdue:
    """Unit: the time of an undecided transaction is over (H7). ``owner``: what waits with it where others hold the
    transaction: its connection.
    """

    __slots__ = ("_txn_id", "owner")

    def __init__(self, txn_id: bytes, owner: object) -> None:
        self._txn_id = txn_id
        self.owner = owner

    def write(self, batch: Batch) -> None:
        batch.check_back().overdue.append(self._txn_id)

    def durable(self) -> None:
        pass

    def refused(self, error: StoreError) -> None:
        log.error("an undecided transaction is not checked before its control link is gone", error=str(error))


class Declaring(Protocol):
    """The control link that declared it."""

    @property
    def number(self) -> int:
        """Of its connection, at this instance; 0: it is gone."""


class Left:
    """Unit: the control link of an undecided transaction is gone (H7), and what it has retired is the store's alone.
    ``held``: what it holds there. ``owner``: as of :class:`Overdue`.
    """

    __slots__ = ("_control", "_held", "_txn_id", "owner")

    def __init__(self, txn_id: bytes, held: Sequence[Entry], owner: object, control: Declaring) -> None:
        self._txn_id = txn_id
        self._held = held
        self._control = control
        self.owner = owner

    def write(self, batch: Batch) -> None:
        rows = batch.check_back()
        rows.orphaned[self._txn_id] = self._control.number
        if self._held:
            rows.let_go.append(self._txn_id)

    def durable(self) -> None:
        for entry in self._held:
            deliveries.left(entry)

    def refused(self, error: StoreError) -> None:
        log.error("an undecided transaction is not checked before this instance ends", error=str(error))


# Deliveries retired in a checkable transaction (rule H20), and the units that bring them to the store: there the
# transaction holds their entries, whatever becomes of its client and of this instance, and its decision applies them.
#
# As long as the transaction is open here, its retirements are in memory as those of any other: links keep their
# deliveries, and what a rollback leaves to their consumers (T27) stays with them. A decision that another makes is told
# by a notice.


class Holding(Checked, Protocol):
    """A checkable transaction, as these units see it."""

    @property
    def refused_work(self) -> bool: ...

    def entered(self) -> None:
        """Its row is in the store."""

    def on_its_way(self, unit: Hold, octets: int) -> None: ...


class Hold:
    """Unit: a delivery is retired, or another outcome replaces the one before."""

    __slots__ = ("_entry", "_txn")

    def __init__(self, txn: Holding, entry: Entry) -> None:
        self._txn = txn
        self._entry = entry

    @property
    def owner(self) -> object:
        return self._txn.owner

    def write(self, batch: Batch) -> None:
        txn, entry = self._txn, self._entry
        rows = batch.check_back()
        first = entry not in txn.halves.held
        retired = deliveries.retired(entry)
        rows.retire(txn.id, entry.queue.group_id, entry.id, retired, first=first)
        batch.octets += len(retired.annotations)
        enter(txn, batch)

    def durable(self) -> None:
        txn, entry = self._txn, self._entry
        txn.entered()
        txn.halves.held[entry] = None
        if txn.halves.holding.pop(entry) and not txn.refused_work:
            hold(txn, entry)
        elif entry.link is not None and entry.outcome is not None and not entry.peer_settled:
            entry.link.enlisted(entry, txn.id, entry.outcome)
        txn.arrived()

    def refused(self, error: StoreError) -> None:
        txn = self._txn
        del txn.halves.holding[self._entry]
        text = "the store could not hold a delivery that was retired in it"
        refusal = Refusal(Condition.INTERNAL_ERROR, text)
        if isinstance(error, AlreadyDecided):
            refusal = Refusal(Condition.TXN_ROLLBACK, "the transaction is decided already, and not by this client")
        elif isinstance(error, NotLeased):
            text = "a delivery retired in it is no longer this connection's: it will be delivered again, or was removed"
            refusal = Refusal(Condition.TXN_ROLLBACK, text)
        txn.lacks(refusal)
        txn.arrived()


def hold(txn: Holding, entry: Entry) -> None:
    """Bring to the store that it is retired. While that is on its way, a later outcome waits."""
    holding = txn.halves.holding
    if entry in holding:
        holding[entry] = True
        return
    holding[entry] = False
    txn.on_its_way(Hold(txn, entry), held_octets(entry.outcome) if entry.outcome is not None else 0)


class Owed:
    """Unit: another has rolled the transaction back, and what its consumers have retired is this instance's again.
    ``then`` is called when it is, or cannot be.
    """

    __slots__ = ("_entries", "_keep", "_then", "_txn_id")

    owner: object = None

    def __init__(
        self, txn_id: bytes, entries: Sequence[Entry], keep: Callable[[Entry], None], then: Callable[[], None]
    ) -> None:
        """``keep``: makes the delivery what it was before it was retired."""
        self._txn_id = txn_id
        self._entries = entries
        self._keep = keep
        self._then = then

    def write(self, batch: Batch) -> None:
        batch.check_back().owed.append(self._txn_id)

    def durable(self) -> None:
        for entry in self._entries:
            self._keep(entry)
        self._then()

    def refused(self, error: StoreError) -> None:
        log.error("what was retired comes back when this instance ends", error=str(error), entries=len(self._entries))
        self._then()
