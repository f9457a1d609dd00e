"""One consumer group of an address, as this instance serves it: a window of entries it has leased, and who wants them.

What does not fit the window stays in PostgreSQL. Entries go out in order of commit; what comes back goes before what
is newer (rule D5). The window is bounded in messages and octets, and so are the bodies kept for deliveries under way:
an entry whose body was let go returns through the store.

The window is for consumers that take anything. Those with a selector (rule P16) would leave it full of what nobody
wants: each has a :class:`coordinator.search.Search` of its own instead, which says how.
"""

from __future__ import annotations

import time
from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from coordinator.outcomes import Outcome
    from coordinator.search import Search
    from coordinator.service import Service
    from coordinator.transactions import Transaction
    from store.batch import Batch
    from store.errors import StoreError


class Consumer(Protocol):
    """A link that takes entries. ``key`` is unique in this process."""

    key: int
    #: what becomes of a delivery that was settled without an outcome that holds (part 3, section 3.5.3)
    default_outcome: Outcome | None

    @property
    def room(self) -> int:
        """Entries it takes now: its credit, within the bound of unsettled deliveries."""

    @property
    def draining(self) -> bool: ...

    def send(self, entry: Entry) -> bool:
        """Whether it takes another right away."""

    def drained(self) -> None:
        """There is nothing for it: its credit is used up (part 2, section 2.6.7)."""

    def retired(self, entry: Entry, outcome: Outcome) -> None:
        """The delivery's outcome is durable: settle it."""

    def unretired(self, entry: Entry, description: str) -> None:
        """The store does not take the outcome (rule D10)."""


_HIGHEST = 1 << 63
#: how long a message waits in one instance's window for a consumer's credit while other instances live
SURPLUS_SECONDS = 0.1


class Entry:
    """A committed message in one group, leased to this instance; on a link it is the delivery itself."""

    __slots__ = (
        "annotations",
        "attempts",
        "delivery",
        "expires",
        "half_id",
        "id",
        "kept",
        "last_txn",
        "link",
        "message",
        "outcome",
        "peer_settled",
        "queue",
        "refused_by",
        "size",
        "txn",
        "whole",
    )

    def __init__(
        self, queue: Queue, entry_id: int, half_id: int, message: bytes, attempts: int, expires: int, annotations: bytes
    ) -> None:
        """``expires``: microseconds since 2000, 0 for never."""
        self.queue = queue
        self.id = entry_id
        self.half_id = half_id
        self.message: bytes | None = message
        self.size = len(message)
        #: octets of a large message, of which ``message`` is the beginning; 0 for all others
        self.whole = 0
        self.attempts = attempts
        self.expires = expires
        self.annotations = annotations
        self.refused_by: tuple[int, ...] = ()
        self.link: Consumer | None = None
        self.delivery: object = None
        self.txn: Transaction | None = None
        self.last_txn: bytes | None = None
        self.outcome: Outcome | None = None
        self.peer_settled = False
        #: what the store was told of its lease when it went back
        self.kept = False

    def __lt__(self, other: Entry) -> bool:
        return self.id < other.id


#: 2000-01-01 UTC, in Unix seconds: where PostgreSQL counts from
POSTGRES_EPOCH = 946_684_800


def now_micros() -> int:
    """Microseconds since 2000-01-01 UTC, as PostgreSQL stores times."""
    return int((time.time() - POSTGRES_EPOCH) * 1e6)


class Queue:
    """``lease``: this instance's id."""

    __slots__ = (
        "_gone",
        "_loading",
        "_low",
        "_lowered",
        "_surplus",
        "_version",
        "address_id",
        "browsers",
        "consumers",
        "dead_letters",
        "dirty",
        "group_id",
        "held",
        "holding",
        "lease",
        "max_attempts",
        "more",
        "name",
        "not_from",
        "on_expiry",
        "ready",
        "ready_octets",
        "reserved",
        "returned",
        "returning",
        "searches",
        "sent_octets",
        "service",
    )

    def __init__(
        self,
        service: Service,
        group_id: int,
        address_id: int,
        name: str,
        *,
        max_attempts: int,
        on_expiry: str,
        dead_letters: bool,
    ) -> None:
        self.service = service
        self.group_id = group_id
        self.address_id = address_id
        self.name = name
        self.max_attempts = max_attempts
        self.on_expiry = on_expiry
        #: this is an address of dead letters: its failures go nowhere else
        self.dead_letters = dead_letters
        self.lease = service.instance_id
        self.consumers: deque[Consumer] = deque()
        self.browsers: list[Browser] = []
        #: of the consumers that choose
        self.searches: list[Search] = []
        #: a subscription that gets nothing posted on this connection (no-local)
        self.not_from: object = None
        self.held: dict[int, Entry] = {}
        self.ready: deque[Entry] = deque()
        self.returned: list[Entry] = []
        self.ready_octets = 0
        self.sent_octets = 0
        #: entries on their way into the window: written in a batch that is not durable yet
        self.reserved = 0
        #: what is on its way to the store and brings entries back. A drain waits for it, or a client that closes a
        #: consumer and drains another would be told that there is nothing; so does a load, or what is newer would go
        #: first (D5)
        self.returning = 0
        #: the store may have entries nobody holds
        self.more = True
        self.dirty = False
        self._loading = False
        self._version = 0
        self._low = 0
        #: while a load is on its way: what left our hands (the load may have seen it before), and the lowest id that
        #: came back
        self._gone: set[int] = set()
        self._lowered = _HIGHEST
        self._surplus = False
        #: the group is ours whole: entries are taken by the range, not leased one by one
        self.holding = False

    # -- entries arriving

    def reserve(self, size: int) -> bool:
        """Whether a message posted now is born leased to us: someone here wants it, and nothing older waits in the
        store.
        """
        if not self.consumers or self.more or self._loading:
            return False
        limits = self.service.limits
        have = len(self.ready) + len(self.returned) + self.reserved
        if have >= limits.window_messages or self.ready_octets + size > limits.window_bytes:
            return False
        if self.service.peers and have >= self._wanted():
            return False  # another instance may have a consumer that takes it now
        self.reserved += 1
        self.ready_octets += size
        return True

    def unreserve(self, size: int) -> None:
        self.reserved -= 1
        self.ready_octets -= size

    def arrived(self, entry: Entry) -> None:
        """A reserved entry is durable."""
        self.reserved -= 1
        self.held[entry.id] = entry
        self.ready.append(entry)
        for search in self.searches:
            search.came(entry.id)
        self.touch()

    def in_store(self, lowest: int | None = None) -> None:
        """The store has (or may have) entries that nobody holds; ``lowest``: an id among them, where it may be an old
        one.
        """
        self.more = True
        if lowest is not None:
            self._low = max(0, min(self._low, lowest - 1))
            self._lowered = min(self._lowered, self._low)
        self._version += 1
        for search in self.searches:
            search.came(lowest)
        self.touch()

    def touch(self) -> None:
        """Pump at the end of this turn."""
        if not self.dirty and (self.consumers or self.searches or self.browsers or self.ready or self.returned):
            self.dirty = True
            self.service.dirty_queues.append(self)

    # -- entries coming back

    def can_keep(self, entry: Entry) -> bool:
        return entry.message is not None and bool(self.consumers)

    def give_back(self, entry: Entry, *, leased: bool = True) -> None:
        """Back to its place, before what is newer; ``leased``: the store has it as ours still."""
        self._unsent(entry)
        entry.link = entry.delivery = entry.txn = entry.outcome = None
        entry.peer_settled = False
        if leased and self.can_keep(entry):
            self.ready_octets += entry.size
            heappush(self.returned, entry)
            for search in self.searches:
                search.came(entry.id)
            self.touch()
            return
        self._forget(entry)
        if leased:
            self._yield([entry])
        else:
            self.in_store(entry.id)

    def done_with(self, entry: Entry) -> None:
        """It is no longer held: accepted, dead, or left to the store."""
        # on the path of every message: _unsent() and _forget() written out
        if entry.message is not None:
            self.sent_octets -= entry.size
        if self.held.get(entry.id) is entry:
            del self.held[entry.id]
        if self._loading:
            self._gone.add(entry.id)
        entry.link = entry.delivery = entry.txn = None

    def _forget(self, entry: Entry) -> None:
        if self.held.get(entry.id) is entry:  # else it was lost to the store, and came again
            del self.held[entry.id]
        if self._loading:
            self._gone.add(entry.id)

    def _unsent(self, entry: Entry) -> None:
        if entry.message is not None:
            self.sent_octets -= entry.size

    def failed(self) -> None:
        """An entry of ours was marked failed in the store."""
        self.service.dead_letters.wake()

    def _yield(self, entries: list[Entry]) -> None:
        self.yield_ids([entry.id for entry in entries])

    def yield_ids(self, ids: list[int]) -> None:
        """Back to the store, for whoever wants them: held until now and never decided."""
        self.service.commit.add(Yield(self, ids))

    # -- consumers

    def add(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)
        self.more = True
        self.touch()

    def remove(self, consumer: Consumer) -> None:
        """The link is gone; its deliveries come back by ways of their own."""
        if consumer in self.consumers:
            self.consumers.remove(consumer)
        if not self.consumers:
            self._let_go()

    def _let_go(self) -> None:
        """Nobody here takes what the window holds: others may."""
        entries = [*self.returned, *self.ready]
        self.returned.clear()
        self.ready.clear()
        for entry in entries:
            self.ready_octets -= entry.size
            self._forget(entry)
        for start in range(0, len(entries), 1000):
            self._yield(entries[start : start + 1000])

    # -- entries going out

    def pump(self) -> None:
        """Give what is ready to who wants it; then ask the store for more where someone waits."""
        self.dirty = False
        if not self.consumers and (self.ready or self.returned):
            self._let_go()  # the last consumer went while entries were on their way
        progress = True
        while progress and (self.ready or self.returned):
            takers = [consumer for consumer in self.consumers if consumer.room > 0]
            if not takers:
                break
            share = max(1, (len(self.ready) + len(self.returned)) // len(takers))
            progress = False
            for consumer in takers:
                if self._give(consumer, min(consumer.room, share)):
                    progress = True
            self.consumers.rotate(-1)
        self._refill()
        for search in self.searches:
            search.advance()
        if self.service.peers and (self.ready or self.returned) and not self._surplus:
            self._surplus = True
            self.service.loop.call_later(SURPLUS_SECONDS, self._give_surplus)
        for browser in self.browsers:
            browser.advance()

    def _give_surplus(self) -> None:
        """What nobody here has had room for goes to the store: consumers of other instances may wait for it."""
        self._surplus = False
        if not self._wanted():
            self._let_go()

    def _wanted(self) -> int:
        return sum(consumer.room for consumer in self.consumers)

    def _give(self, consumer: Consumer, most: int) -> int:
        ready, returned = self.ready, self.returned
        given = 0
        aside: list[Entry] = []
        while given < most:
            if returned and (not ready or returned[0].id < ready[0].id):
                entry = heappop(returned)
            elif ready:
                entry = ready.popleft()
            else:
                break
            if entry.refused_by and consumer.key in entry.refused_by:
                aside.append(entry)
                continue
            self.ready_octets -= entry.size
            if entry.expires and entry.expires <= now_micros():
                self.sent_octets += entry.size  # as if it were under way: done_with() takes it off again
                self.service.expire(entry)
                continue
            more = self.hand(consumer, entry)
            given += 1
            if not more:
                break
        for entry in aside:
            heappush(returned, entry)
        return given

    def hand(self, consumer: Consumer, entry: Entry) -> bool:
        """Send a held entry that is in the window no more; whether the consumer takes another right away."""
        more = consumer.send(entry)
        if entry.message is not None:
            size = entry.size
            self.sent_octets += size
            if self.sent_octets > self.service.limits.window_bytes:
                entry.message = None
                self.sent_octets -= size
        return more

    def withdraw(self, entry: Entry) -> bool:
        """Take a held entry out of the window; whether it was there, and not in a consumer's hands."""
        try:
            self.ready.remove(entry)
        except ValueError:
            if entry not in self.returned:
                return False
            self.returned.remove(entry)
            heapify(self.returned)
        self.ready_octets -= entry.size
        return True

    def _refill(self) -> None:
        if self._loading:
            return
        wanted = self._wanted()
        if self.more and wanted and not self.returning:
            have = len(self.ready) + len(self.returned) + self.reserved
            limits = self.service.limits
            # one instance alone reads ahead
            most = min(limits.window_messages - have, wanted - have if self.service.peers else max(2 * wanted, 100))
            octets = limits.window_bytes - self.ready_octets
            # what is still here nobody with room may have (undeliverable-here)
            if self.reserved < wanted and most > 0 and octets > 0:
                self._loading = True
                self._lowered = _HIGHEST
                self.service.load(self, self._low, most, octets, self._version)
                return
        if (not self.more or not wanted) and not self.returning:
            for consumer in self.consumers:
                if consumer.draining and not self._has_for(consumer):
                    consumer.drained()

    def _has_for(self, consumer: Consumer) -> bool:
        return consumer.room > 0 and (
            bool(self.ready) or any(consumer.key not in entry.refused_by for entry in self.returned)
        )

    def loaded(self, entries: list[Entry], complete: bool, version: int) -> None:
        """Entries leased from the store; ``complete``: there was nothing beyond them."""
        self._loading = False
        last = self.ready[-1].id if self.ready else 0
        for entry in entries:
            # what a range brings may have been read before, and be in our hands still, or just out of them; what was
            # leased just now is ours, whatever we know of it
            if self.holding and (entry.id in self.held or entry.id in self._gone):
                continue
            self.held[entry.id] = entry
            self.ready_octets += entry.size
            if entry.id > last:
                self.ready.append(entry)
                last = entry.id
            else:
                heappush(self.returned, entry)
        if complete and version == self._version:
            self.more = False
        if self.holding:
            # nothing comes below any more: ids only grow with this instance's batches, and it is alone
            if entries:
                self._low = max(self._low, entries[-1].id)
        elif complete or not entries:
            self._low = 0
        else:
            # rows already consumed at the head cost nothing; a little slack, for commits that were slower than ours
            self._low = max(0, entries[-1].id - self.service.low_water_slack)
        self._low = min(self._low, self._lowered)
        self._forget_load()
        self.touch()

    def load_failed(self) -> None:
        self._loading = False
        self._forget_load()

    def _forget_load(self) -> None:
        self._lowered = _HIGHEST
        self._gone.clear()

    def share(self) -> None:
        """Another instance came: hold the group no longer whole."""
        if not self.holding:
            return
        if self._loading:  # what is being read is not known yet
            self.service.loop.call_later(0.01, self.share)
            return
        self._loading = True
        self.service.commit.add(Share(self))

    def shared(self) -> None:
        self.holding = self._loading = False
        self._forget_load()
        self.in_store(0)


class Browser(Protocol):
    """A link that looks and does not take (distribution-mode copy)."""

    def advance(self) -> None: ...


class Share:
    """Unit: the group is held whole no more; what we have of it is leased row by row."""

    __slots__ = ("_pinned", "_queue")

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._pinned: list[int] = []

    def write(self, batch: Batch) -> None:
        self._pinned = list(self._queue.held)
        batch.share(self._queue.group_id, self._pinned)
        batch.wake.add(self._queue.group_id)

    def durable(self) -> None:
        queue = self._queue
        # what left our hands in the same batch or the one before, and was free in the store already, was leased again
        let_go = [each for each in self._pinned if each not in queue.held]
        if let_go:
            queue.yield_ids(let_go)
        queue.shared()

    def refused(self, error: StoreError) -> None:
        self._queue.shared()


class Yield:
    """Unit: entries that were held and never decided go back to the store, for whoever wants them."""

    __slots__ = ("_ids", "_queue")

    def __init__(self, queue: Queue, ids: list[int]) -> None:
        self._queue = queue
        self._ids = ids
        queue.returning += 1

    def write(self, batch: Batch) -> None:
        for entry_id in self._ids:
            batch.yield_entry(self._queue.group_id, entry_id)
        if self._queue.service.peers:
            batch.wake.add(self._queue.group_id)

    def durable(self) -> None:
        queue = self._queue
        queue.returning -= 1
        queue.in_store(min(self._ids, default=None))
        if queue.holding and not queue.held and not queue.consumers:
            queue.service.unread(queue)

    def refused(self, error: StoreError) -> None:
        self.durable()
