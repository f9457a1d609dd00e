"""One consumer group of an address, as this instance serves it: windows of entries it has leased, and its consumers.

Entries are sent by priority (rule P17) and within one in order of commit; what comes back is sent before what is newer
(rule D5). A rank of priorities waits until those above it have nothing more, here or in the store. Besides the windows,
the bodies kept for deliveries under way are bounded too: an entry whose body was dropped returns through the store.

The windows are for consumers that take anything. Those with a selector (rule P16) would leave them full of what no
consumer wants: each has a :class:`coordinator.group.selecting.Search` of its own instead, which says how.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

import structlog

from coordinator.codec.encoding import DecodeError
from coordinator.group import loading
from coordinator.group.entries import Entry
from coordinator.group.loading import Expiry, Offer, SetAside, Yield, stored_attempts
from coordinator.group.ready import Takers
from coordinator.group.refused import Refused
from coordinator.group.window import Window
from coordinator.memory import ENTRY_OCTETS
from coordinator.outcomes import UNTRANSFERRED
from coordinator.transitions import AFTER_LEAVES, AFTER_SEND, BACK, LEAVES, UNSENT
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


#: how long a message waits in one instance's window for a consumer's credit while other instances live
SURPLUS_SECONDS = 0.1

log = structlog.get_logger(__name__)


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
        "surplus_due",
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
        self.refused = Refused(self)
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
        #: a timer runs, after which what no consumer here has room for goes to the store
        self.surplus_due = False
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
        self.refused.remember(entry)
        if self.held.get(entry.id) is entry:  # else it was lost to the store, and came again
            del self.held[entry.id]
        if self.normal.loading:
            self.normal.gone.add(entry.id)

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
            if not self.searches:
                self.refused.forget_all()

    def changed(self, consumer: Consumer) -> None:
        """The consumer may have more room than it had, or drains its credit."""
        if consumer in self.consumers:
            self.takers.changed(consumer)
        self.touch()

    def _let_go(self) -> None:
        """No consumer here takes what the windows hold: yield it to the store, for other instances."""
        entries = [entry for window in self.windows for entry in window.empty()]
        self.yield_entries(entries + self.refused.empty())

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
        if self.refused.wanted:
            self._take_back_refused()
        for window in self.windows:
            if window:
                window.distribute()
                if window.returned and not window.waits:
                    self._make_room(window)
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
        if self.instance.peers:
            if self._has_any():
                self._offer_surplus()
            if self.refused.aside or any(window.returned for window in self.windows):
                self.refused.offer_soon()
        for browser in self.browsers:
            browser.advance()
        if self.instance.memory.windows_full and not self.wanted() and self._has_any():
            self._let_go()

    def _has_any(self) -> bool:
        """Whether it has entries that no consumer has."""
        return bool(self.refused.aside) or any(self.windows)

    def _offer_surplus(self) -> None:
        if not self.surplus_due:
            self.surplus_due = True
            self.instance.loop.call_later(SURPLUS_SECONDS, self.give_surplus)

    def give_surplus(self) -> None:
        """Yield to the store what no consumer here has had room for: consumers of other instances may wait for it."""
        self.surplus_due = False
        if not self.wanted():
            self._let_go()

    # -- what all with room have refused (:mod:`coordinator.group.refused`)

    def _make_room(self, window: Window) -> None:
        """What all with room have refused stands aside, where it may be in the way: the window is half full."""
        limits, memory = self.instance.limits, self.instance.memory
        few = 2 * len(window) < limits.window_messages and 2 * window.octets < memory.window_bytes
        keys = {consumer.key for consumer in self.takers}
        if keys and not few and not memory.windows_full:
            entries = window.refused_by(keys)[: self.refused.room]
            window.take_out({entry.id for entry in entries})
            self.refused.stand_aside(entries)

    def refused_by(self, keys: set[int]) -> list[Entry]:
        """What is here, aside or not, that consumers with these keys have refused, all of them."""
        aside = [entry for entry in self.refused.aside.values() if keys.issubset(entry.refused_by)]
        return aside + [entry for window in self.windows for entry in window.refused_by(keys)]

    def offer(self, entries: Sequence[Entry]) -> None:
        """Yield what is refused here to the store, for other instances; it is not looked for at once."""
        ids = {entry.id for entry in entries}
        for window in self.windows:
            window.take_out(ids)
        for entry in entries:
            self.forget(entry)
        self.instance.commit.add(Offer(self, [entry.id for entry in entries], list(map(stored_attempts, entries))))

    def offered(self) -> None:
        """The store has what was offered."""
        self.returning -= 1
        self.touch()
        self.refused.offered()

    def look_again(self, lowest: int) -> None:
        """For what was offered: other instances may have left it in the store, from this id on."""
        self.in_store(lowest)

    def _take_back_refused(self) -> None:
        """A consumer that has room may take some: what stands aside goes to the store, with all of its windows, and
        comes from there in its order. What comes meanwhile, posted now or by a load on its way, waits for it (D5).
        """
        entries = self.refused.empty()
        ranks = {rank_of(entry.priority) for entry in entries}
        for window in self.windows:
            if window.rank in ranks:
                entries += window.empty()
                window.in_store(min(entry.id for entry in entries if rank_of(entry.priority) == window.rank), None)
        self.yield_entries(entries)
        self.refused.look_again()

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
        return self.refused.aside.pop(entry.id, None) is not None or self.window(entry.priority).withdraw(entry)
