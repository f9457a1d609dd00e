"""The work of one transaction: its posts and retirements, in memory, on their way to the store, and once decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from coordinator.errors import Condition, Refusal
from coordinator.group import deliveries
from coordinator.outcomes import without_annotations
from coordinator.transitions import KEPT
from store.commit.terms import PLAIN
from store.errors import AddressGone, AlreadyDecided, GroupsChanged, NotLeased

if TYPE_CHECKING:
    from coordinator.address.enqueue import Enqueue
    from coordinator.address.nodes import Address
    from coordinator.group.entries import Entry
    from coordinator.group.queues import Queue
    from coordinator.instance import Instance
    from coordinator.outcomes import Outcome
    from coordinator.settlements import Settlements
    from store.commit.batch import Batch
    from store.commit.terms import Terms
    from store.errors import StoreError
    from store.spool import Octets


class Host(Protocol):
    """What work needs of its instance."""

    @property
    def instance(self) -> Instance: ...

    @property
    def enqueue(self) -> Enqueue: ...

    @property
    def settlements(self) -> Settlements: ...


H = TypeVar("H", bound=Host)


class Work(Generic[H]):
    """What :class:`coordinator.transactions.Transaction` has gathered; it says when, and how, the work is decided."""

    __slots__ = (
        "_host",
        "_instance",
        "annotated",
        "columns",
        "counted",
        "dropped",
        "entries",
        "fails",
        "half_ids",
        "id",
        "octets",
        "owner",
        "posts",
        "purged",
        "retired",
        "returning",
        "rows",
        "spooled",
        "undone",
    )

    def __init__(self, host: H, txn_id: bytes, owner: object) -> None:
        """``owner``: the connection that declared the transaction (T12)."""
        self._host = host
        self._instance = host.instance
        self.id = txn_id
        self.owner = owner
        self.posts: list[tuple[Address, Octets, Terms]] = []
        self.octets = 0
        #: rows of its posts: one for each group that gets the message
        self.rows = 0
        #: memory of its posts and retirements, in the account of undecided transactions
        self.counted = 0
        #: of that, the annotations of its retirements
        self.annotated = 0
        #: octets of its posts that are in files
        self.spooled = 0
        #: posts that were let go, as the transaction can only roll back
        self.dropped = 0
        self.retired: list[Entry] = []
        #: what it retires has failed where it rolls back: not by what the service does itself (D5)
        self.fails = True
        #: of these, some were removed with their addresses: the commit leaves them out
        self.purged = False
        #: of the posts, once written: their ids, and those of their entries that are born leased to this instance
        self.half_ids: list[int] = []
        self.entries: list[Entry | None] = []
        #: they were written all at once
        self.columns = False
        #: the queues of what a rollback under way gives back
        self.returning: list[Queue] = []
        #: the retirements, and whether the rollback under way decides each
        self.undone: list[tuple[Entry, bool]] = []

    @property
    def empty(self) -> bool:
        return not self.posts and not self.dropped and not self.retired

    @property
    def posted(self) -> int:
        return len(self.posts) + self.dropped

    def uncount(self) -> None:
        self._instance.memory.transactions -= self.counted
        self.counted = 0

    def let_go(self) -> None:
        """The transaction can only roll back: drop its messages and annotations."""
        self.uncount()
        self.dropped += len(self.posts)
        self.posts = []
        self.spooled = 0
        self.annotated = 0
        for entry in self.retired:
            if entry.outcome is not None:
                entry.outcome = without_annotations(entry.outcome)

    def write_commit(self, batch: Batch) -> None:
        enqueue, instance = self._host.enqueue, self._instance
        txn_id = self.id
        for entry in self.entries:  # written before, in a batch that the store refused for another unit
            enqueue.unposted(entry)
        entries = self.entries = []
        ids = self.half_ids = self.half_ids or instance.ids.take(len(self.posts))
        self.columns = len(ids) > 1 and enqueue.write_columns(batch, self.posts, ids, txn_id)
        if not self.columns:
            for (address, message, terms), half_id in zip(self.posts, ids, strict=True):
                batch.half(half_id, txn_id, address.id, message)
                entries.append(enqueue.write_entry(batch, address, half_id, message, terms, self.owner))
        if self.retired:
            retired = [entry for entry in self.retired if not entry.queue.gone]
            accepted = deliveries.write(batch, retired, instance.uuids, txn_id)
            batch.op(txn_id, b"commit", posted=len(self.posts), covers=accepted)
        else:
            batch.commit_ids.append(txn_id)
            batch.commit_posted.append(len(self.posts))

    def can_commit_after(self, error: StoreError) -> bool:
        """The store has refused the commit. Whether it may take another, as it has groups of which this instance did
        not know, or messages were removed with their addresses before it retires them.
        """
        if isinstance(error, GroupsChanged):
            for address, _, _ in self.posts:
                address.fans = True
            return True
        purged = isinstance(error, NotLeased) and any(entry.queue.gone for entry in self.retired)
        again, self.purged = purged and not self.purged, purged
        return again

    def write_rollback(self, batch: Batch, reason: str) -> None:
        batch.op(self.id, b"rollback", reason=reason, posted=self.posted)
        self.write_undone(batch)

    def returns(self) -> None:
        """A rollback is on its way to the store, and gives back what was retired: drains wait for it."""
        if self.returning:
            return
        self.returning = [entry.queue for entry in self.retired]
        for queue in self.returning:
            queue.returning += 1

    def returned(self) -> None:
        """It has given back what it does."""
        returning, self.returning = self.returning, []
        for queue in returning:
            queue.returning -= 1
            queue.touch()

    def write_undone(self, batch: Batch) -> None:
        """Give back what it has retired, as it rolls back."""
        # A delivery that the peer still holds stays as it is (T27). Any other gets the default outcome (T28), and where
        # its link was detached meanwhile, it has failed (D5).
        self.undone = [(entry, entry.peer_settled or entry.link is None) for entry in self.retired]
        decided = [entry for entry, is_decided in self.undone if is_decided]
        for entry in decided:
            entry.outcome = deliveries.default_outcome(entry, fails=self.fails)
        deliveries.write(batch, decided, self._instance.uuids, self.id)

    def apply_commit(self) -> None:
        enqueue = self._host.enqueue
        told: Address | None = None
        if self.columns:
            enqueue.posted(self.posts[0][0], None, self.half_ids[0], PLAIN)
        else:
            for (address, _, terms), half_id, entry in zip(self.posts, self.half_ids, self.entries, strict=True):
                if entry is None and terms is PLAIN:
                    if address is told:
                        continue  # the address knows of the first, which has the lowest id
                    told = address
                enqueue.posted(address, entry, half_id, terms)
        for retired in self.retired:
            deliveries.settle(retired)

    def apply_rollback(self) -> None:
        for entry, is_decided in self.undone:
            entry.last_txn = self.id
            if is_decided:
                deliveries.settle(entry)
            else:
                self._keep(entry)

    def _keep(self, entry: Entry) -> None:
        """The delivery is as it was before it was retired."""
        entry.last_txn = self.id
        entry.txn = entry.outcome = None
        entry.met(KEPT)
        if entry.peer_settled or entry.link is None:
            self._host.settlements.add(entry, deliveries.default_outcome(entry, fails=self.fails))

    def take_back(self) -> None:
        """The store has refused the decision: no post is written, no retirement takes place."""
        for entry in self.entries:
            self._host.enqueue.unposted(entry)
        self.entries = []
        for retired in self.retired:
            self._keep(retired)
        self.retired = []
        self.undone = []

    def forget_work(self) -> None:
        self.returned()
        self.posts = []
        self.entries = []
        self.retired = []
        self.undone = []


def held_octets(outcome: Outcome) -> int:
    """Memory of its annotations: the engine has a copy of them."""
    return 2 * len(outcome.annotations)


def why(error: StoreError) -> Refusal:
    """The refusal of a commit that the store has refused."""
    if isinstance(error, AlreadyDecided):
        text = (
            "the transaction was decided otherwise already, by an operator, an application in SQL or another instance"
        )
    elif isinstance(error, AddressGone):
        return Refusal(Condition.RESOURCE_DELETED, "an address that the transaction posted to was removed")
    elif isinstance(error, NotLeased):
        text = "a delivery retired in it is no longer this connection's: it will be delivered again, or was removed"
    else:
        text = "the store could not take the transaction; it may be tried again"
    return Refusal(Condition.TXN_ROLLBACK, text)
