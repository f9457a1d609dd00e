"""One consumer group of an address, as this instance serves it: windows of entries it has leased, and its consumers.

Entries are sent by priority (rule P17) and within one in order of commit; what comes back is sent before what is newer
(rule D5). A rank of priorities waits until those above it have nothing more, here or in the store. Besides the windows,
the bodies kept for deliveries under way are bounded too: an entry whose body was dropped returns through the store.

The windows are for consumers that take anything. Those with a selector (rule P16) would leave them full of what no
consumer wants: each has a :class:`coordinator.group.selecting.Search` of its own instead, which says how.
"""

from __future__ import annotations

from heapq import nsmallest
from typing import TYPE_CHECKING, ClassVar, Protocol

import structlog

from coordinator.group import loading
from coordinator.group.entries import Entry
from coordinator.group.loading import Expiry, SetAside, Yield, stored_attempts
from coordinator.group.ready import Takers
from coordinator.group.window import Window
from coordinator.memory import ENTRY_OCTETS
from coordinator.outcomes import UNTRANSFERRED
from coordinator.transitions import AFTER_LEAVES, AFTER_SEND, BACK, LEAVES, UNSENT
from store.codec.encoding import DecodeError
from store.commit.checkable import NEVER_HAD
from store.commit.terms import DEFAULT, Rank, rank_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coordinator.group.entries import Browser, Consumer
    from coordinator.group.policies import Policies
    from coordinator.group.selecting import Search
    from coordinator.instance import Instance
    from store.commit.batch import Batch
    from store.commit.terms import Terms


# What consumers here leave in memory goes to the store, where consumers of other instances may wait for it: all of it
# where none here has room, and else, now and then, what those with room have refused (``modified`` with
# undeliverable-here, P11).
#
# Of what they have refused, some at a time, the longer apart the longer no other instance takes any. After a moment, in
# which the others have been told, this instance looks for them again.

#: how long a message waits in one instance's window for a consumer's credit while other instances live
SURPLUS_SECONDS = 0.1
#: how long others have to take what is offered; and what lies between the first offers
_FIRST_SECONDS = 0.1
_LONGEST_SECONDS = 10.0
_AT_ONCE = 100
#: halves of which it is remembered that they were offered
_MOST_OFFERED = 10_000


class Surplus:
    """Of one queue; true while some were offered that this instance has not looked for again."""

    __slots__ = ("_away", "_due", "_keys", "_lot", "_offered", "_pause", "_queue", "_through", "_timed")

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        #: halves that were offered, and have not come back since
        self._offered: dict[int, None] = {}
        #: of what was offered last: how many, and the order of the last of them
        self._lot = 0
        self._through: tuple[int, int] | None = None
        #: of what was offered since this instance looked: the lowest id, and the consumers that have refused all of it
        self._away = 0
        self._keys: set[int] = set()
        self._pause = _FIRST_SECONDS
        self._due = self._timed = False

    def __bool__(self) -> bool:
        return self._away > 0

    def look(self) -> None:
        """There is something in memory, and other instances live."""
        queue = self._queue
        if not self._due:
            self._due = True
            queue.instance.loop.call_later(SURPLUS_SECONDS, self._give)
        if not self._timed and any(window.returned or window.aside for window in queue.windows):
            self._timed = True
            queue.instance.loop.call_later(self._pause, self._offer)

    def _give(self) -> None:
        self._due = False
        self._queue.give_surplus()

    def _offer(self) -> None:
        self._timed = False
        queue = self._queue
        keys = {consumer.key for consumer in queue.takers}
        refused = [entry for window in queue.windows for entry in window.refused_by(keys)] if keys else []
        if not refused or not queue.instance.peers:
            self._pause = _FIRST_SECONDS
            self._offered.clear()
            return
        back = [entry.half_id for entry in refused if entry.half_id in self._offered]
        for half_id in back:
            del self._offered[half_id]
        # others may have them for a while only, as all consumers there have refused them, too
        come_back = 2 * len(back) >= self._lot > 0
        self._pause = min(2 * self._pause, _LONGEST_SECONDS) if come_back else _FIRST_SECONDS
        through = self._through
        beyond = [entry for entry in refused if through is None or entry.order > through]
        entries = nsmallest(_AT_ONCE, beyond or refused)
        self._lot = len(entries)
        self._through = entries[-1].order
        self._offered.update((entry.half_id, None) for entry in entries)
        while len(self._offered) > _MOST_OFFERED:
            del self._offered[next(iter(self._offered))]
        ids = {entry.id for entry in entries}
        self._keys = self._keys & keys if self._away else keys
        self._away = min(min(ids), self._away or min(ids))
        for window in queue.windows:
            window.take_out(ids)
        for entry in entries:
            queue.forget(entry)
        attempts = [entry.attempts for entry in entries]
        queue.instance.commit.add(Offer(self, queue, [entry.id for entry in entries], attempts))

    def taken_back(self) -> None:
        """Look for them now where a consumer that has room may take some (D5, and the answer to its drain): what is on
        its way to the store is waited for.
        """
        if any(consumer.key not in self._keys for consumer in self._queue.takers):
            self.look_for_them()

    def look_for_them(self) -> None:
        if self._away:
            lowest, self._away = self._away, 0
            self._queue.in_store(lowest)


class Offer(Yield):
    """Unit: as :class:`Yield`, and this instance does not look for them at once."""

    __slots__ = ("_surplus",)

    def __init__(self, surplus: Surplus, queue: Queue, ids: Sequence[int], attempts: Sequence[int]) -> None:
        super().__init__(queue, ids, attempts)
        self._surplus = surplus

    def durable(self) -> None:
        self._queue.returning -= 1
        self._queue.touch()
        self._queue.instance.loop.call_later(_FIRST_SECONDS, self._surplus.look_for_them)


log = structlog.get_logger(__name__)

#: entries in the store that are known to be refused by a consumer here
MOST_REFUSED = 10_000


class Home(Protocol):
    """The queues of an instance, as one of them sees it."""

    #: those that are pumped at the end of this turn
    dirty: list[Queue]
    #: those whose groups are held whole
    holding: set[Queue]
    #: of these, those that are to be shared
    sharing: set[Queue]
    #: called when an entry was marked failed in the store: it is to become a dead letter
    failed: Callable[[], None]
    #: called when an entry is durable that is to be delivered later: at this time, in microseconds since 2000
    later: Callable[[int], None]


class Queue:
    """``lease``: this instance's id."""

    #: what its entries are
    entry_kind: ClassVar[type[Entry]] = Entry

    __slots__ = (
        "_counted",
        "address_id",
        "anchor",
        "browsers",
        "consumers",
        "dirty",
        "gone",
        "group_id",
        "held",
        "holding",
        "home",
        "instance",
        "lease",
        "name",
        "normal",
        "not_from",
        "policies",
        "refused",
        "returning",
        "searches",
        "sent_octets",
        "surplus",
        "takers",
        "windows",
    )

    def __init__(
        self, instance: Instance, home: Home, group_id: int, address_id: int, name: str, policies: Policies
    ) -> None:
        self.instance = instance
        self.home = home
        self.group_id = group_id
        self.address_id = address_id
        self.name = name
        self.policies = policies
        self.anchor: object = None  # see coordinator.group.serving
        self.lease = instance.instance_id
        self.consumers: dict[Consumer, None] = {}
        self.takers = Takers()
        self.browsers: list[Browser] = []
        #: of the consumers that choose
        self.searches: list[Search] = []
        #: a subscription that gets nothing posted on this connection (no-local)
        self.not_from: object = None
        self.held: dict[int, Entry] = {}
        #: of entries that went to the store, by half, as their ids may change: keys of consumers that refused them
        self.refused: dict[int, tuple[int, ...]] = {}
        #: by rank
        self.windows = tuple(Window(self, rank) for rank in Rank)
        #: nearly all there is
        self.normal = self.windows[Rank.NORMAL]
        self.sent_octets = 0
        #: what the account of the instance has of it
        self._counted = 0
        #: units on their way to the store that bring entries back. A drain waits for them: else a client that closes a
        #: consumer and drains another is told that there is nothing. A load waits too: else what is newer is sent first
        #: (D5)
        self.returning = 0
        self.dirty = False
        #: its address was removed, and all messages with it
        self.gone = False
        self.surplus = Surplus(self)
        #: this instance holds the group whole: entries are taken by the range, not leased one by one
        self.holding = False

    def window(self, priority: int) -> Window:
        return self.windows[rank_of(priority)]

    @property
    def window_octets(self) -> int:
        return sum(window.octets for window in self.windows)

    def count(self) -> None:
        """Keep the account of memory (:class:`coordinator.memory.Account`)."""
        octets = self.window_octets + self.sent_octets + ENTRY_OCTETS * len(self.held)
        if octets != self._counted:
            self.instance.memory.count_windows(octets - self._counted)
            self._counted = octets

    def __del__(self) -> None:
        if self._counted:
            self.instance.memory.count_windows(-self._counted)

    @property
    def idle(self) -> bool:
        """Nothing of it is here, and no link wants any."""
        return not (self.consumers or self.searches or self.browsers or self.held or self.returning)

    # -- entries arriving

    def reserve(self, size: int, priority: int) -> bool:
        """Whether a message posted now is born leased to this instance: the window has room, and nothing older waits in
        the store.
        """
        return (self.normal if priority == DEFAULT else self.window(priority)).reserve(size)

    def unreserve(self, entry: Entry) -> None:
        self.window(entry.priority).unreserve(entry.size)

    def arrived(self, entry: Entry) -> None:
        """A reserved entry is durable."""
        self.held[entry.id] = entry
        priority = entry.priority
        (self.normal if priority == DEFAULT else self.window(priority)).arrived(entry)
        for search in self.searches:
            search.came(entry.id, entry.priority)
        for browser in self.browsers:
            browser.came()
        self.touch()

    def in_store(self, lowest: int | None = None, priority: int | None = None) -> None:
        """The store has (or may have) entries that are not leased; ``lowest``: an id among them, where it may be an old
        one; ``priority``: theirs, where it is known.
        """
        if priority == DEFAULT:
            self.normal.in_store(lowest, priority)
        elif priority is not None:
            self.window(priority).in_store(lowest, priority)
        else:
            for window in self.windows:
                window.in_store(lowest, None)
        for search in self.searches:
            search.came(lowest, priority)
        for browser in self.browsers:
            browser.came()
        self.touch()

    def has_passed(self, entry_id: int) -> bool:
        """Whether what is looked for next may be beyond this id."""
        return any(window.has_passed(entry_id) for window in self.windows) or any(
            search.has_passed(entry_id) for search in self.searches
        )

    def touch(self) -> None:
        """Pump at the end of this turn."""
        if not self.dirty and (self.consumers or self.held or self.searches or self.browsers):
            self.dirty = True
            self.home.dirty.append(self)

    def posted(self, entry_id: int, terms: Terms) -> None:
        """What was posted here is durable and not leased."""
        self.in_store(entry_id, terms.priority)

    # -- entries coming back

    def comes_back(self, entry: Entry) -> None:
        """Its outcome is on its way to the store, and may bring it back."""
        self.returning += 1

    def can_keep(self, entry: Entry) -> bool:
        return entry.message is not None and bool(self.consumers)

    def give_back(self, entry: Entry, *, leased: bool = True) -> None:
        """Back to its place, before what is newer; ``leased``: in the store it is leased to this instance still."""
        self._unsent(entry)
        entry.acquired = entry.acquired or entry.outcome is not UNTRANSFERRED
        entry.link = entry.delivery = entry.txn = entry.last_txn = entry.outcome = None
        entry.peer_settled = False
        if leased and self.can_keep(entry):
            entry.met(BACK)
            self.window(entry.priority).give_back(entry)
            for search in self.searches:
                search.came(entry.id, entry.priority)
            self.touch()
            return
        self.forget(entry)
        if leased:
            self.yield_ids([entry.id], [stored_attempts(entry)])
        else:
            self.in_store(entry.id, entry.priority)

    def came_before(self, lowest: int) -> None:
        """The store has (or may have) entries from this id on that come before what was read."""
        self.in_store(lowest)

    def done_with(self, entry: Entry) -> None:
        """It is no longer held: accepted, dead, or left to the store."""
        # on the path of every message: _unsent() and forget() written out
        entry_id, held, normal = entry.id, self.held, self.normal
        if entry.message is not None:
            self.sent_octets -= entry.size
        if held.get(entry_id) is entry:
            del held[entry_id]
        if normal.loading:
            normal.gone.add(entry_id)
        entry.state = AFTER_LEAVES[entry.state]
        entry.txn = None
        if not self.dirty:  # less memory, and perhaps room for more
            self.touch()

    def forget(self, entry: Entry) -> None:
        entry.met(LEAVES)
        self.note_refused(entry)
        if self.held.get(entry.id) is entry:  # else it was lost to the store, and came again
            del self.held[entry.id]
        if self.normal.loading:
            self.normal.gone.add(entry.id)

    def note_refused(self, entry: Entry) -> None:
        """It goes to the store, and may come again."""
        if entry.refused_by:
            self.refused[entry.half_id] = entry.refused_by
            if len(self.refused) > MOST_REFUSED:  # the oldest may come again
                del self.refused[next(iter(self.refused))]

    def _unsent(self, entry: Entry) -> None:
        if entry.message is not None:
            self.sent_octets -= entry.size

    def failed(self) -> None:
        """An entry of this queue was marked failed in the store."""
        self.home.failed()

    def yield_ids(self, ids: Sequence[int], attempts: Sequence[int] = ()) -> None:
        """Back to the store, for any consumer: held until now and never decided. ``attempts``: of each, as
        :func:`coordinator.group.loading.stored_attempts` has them; none: no link had any.
        """
        attempts = attempts or [NEVER_HAD] * len(ids)
        for start in range(0, len(ids), 1000):
            self.instance.commit.add(Yield(self, ids[start : start + 1000], attempts[start : start + 1000]))

    def wake(self, batch: Batch, ids: Sequence[int]) -> None:
        """Notifies the other instances that these entries are not leased."""
        batch.tell(self.group_id, min(ids))

    def yielded(self, ids: Sequence[int]) -> None:
        """The store has them."""
        self.returning -= 1
        self.in_store(min(ids, default=None))
        if self.holding and not self.held and not self.consumers:
            loading.unread(self)

    # -- consumers

    def add(self, consumer: Consumer) -> None:
        self.consumers[consumer] = None
        self.takers.changed(consumer)
        for window in self.windows:
            window.in_store(None, None)
        self.touch()

    def remove(self, consumer: Consumer) -> None:
        """The link has ended. What becomes of its deliveries is not decided here."""
        self.consumers.pop(consumer, None)
        self.takers.remove(consumer)
        if not self.consumers:
            self._let_go()
            self.refused.clear()

    def changed(self, consumer: Consumer) -> None:
        """The consumer may have more room than it had, or drains its credit."""
        if consumer in self.consumers:
            self.takers.changed(consumer)
        self.touch()

    def _let_go(self) -> None:
        """No consumer here takes what the windows hold: yield it to the store, for other instances."""
        self.yield_entries([entry for window in self.windows for entry in window.empty()])

    def yield_entries(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self.forget(entry)
        self.yield_ids([entry.id for entry in entries], list(map(stored_attempts, entries)))

    # -- entries going out

    def pump(self) -> None:
        """Send what is ready to consumers with room; then ask the store for more where a consumer has room left."""
        self.dirty = False
        if not self.consumers:
            self._let_go()  # the last consumer went while entries were on their way
        if self.surplus:
            self.surplus.taken_back()
        for window in self.windows:
            if window.aside:
                window.aside.give_back()
            if window:
                window.distribute()
            if (window.more or window.loading) and window.refill():
                break
        else:
            if not self.returning:
                for consumer in self.takers.draining():
                    no_room = consumer.room <= 0 and not consumer.shut
                    if no_room or not any(window.has_for(consumer) for window in self.windows):
                        consumer.drained()
                        self.takers.drained(consumer)
        for search in self.searches:
            search.advance()
        if self.instance.peers and any(window.has_any for window in self.windows):
            self.surplus.look()
        for browser in self.browsers:
            browser.advance()
        if self.instance.memory.windows_full and not self.wanted() and any(window.has_any for window in self.windows):
            self._let_go()

    def give_surplus(self) -> None:
        """Yield to the store what no consumer here has had room for: consumers of other instances may wait for it."""
        if not self.wanted():
            self._let_go()

    def wanted(self) -> int:
        """Entries that consumers here have room for."""
        return self.takers.wanted

    def hand(self, consumer: Consumer, entry: Entry) -> bool:
        """Send a held entry that is in no window any more; whether the consumer takes another right away."""
        entry.state = AFTER_SEND[entry.state]
        try:
            more = consumer.send(entry)
        except DecodeError as error:
            self.set_aside(entry, f"the stored message cannot be read: {error}")
            return True
        size = entry.size
        sent = self.sent_octets + size
        if sent > self.instance.memory.window_room:
            entry.message = None
            sent -= size
        self.sent_octets = sent
        return more

    def expire(self, entry: Entry) -> None:
        """Its time ran out before a consumer took it (P12)."""
        entry.met(UNSENT)
        self.sent_octets += entry.size  # as if it were under way: done_with() takes it off again
        self.instance.commit.add(Expiry(entry))

    def set_aside(self, entry: Entry, reason: str) -> None:
        """It cannot be delivered to any consumer: to the dead letters, whatever its attempts."""
        log.error("a message is set aside", queue=self.name, entry=entry.id, half=entry.half_id, why=reason)
        entry.met(UNSENT)
        self.sent_octets += entry.size
        self.instance.commit.add(SetAside(entry, reason))

    def withdraw(self, entry: Entry) -> bool:
        """Take a held entry out of its window; whether it was there, and not in a consumer's hands."""
        return self.window(entry.priority).withdraw(entry)
