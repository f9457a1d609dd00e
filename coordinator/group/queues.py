"""A queue serves one consumer group of an address at this instance: it takes entries into windows, and sends them to
consumers.

Entries are sent by priority (rule P17), and within a priority in order of commit; a returned entry is sent before newer
ones (rule D5). A rank of priorities waits until the ranks above it have no more entries, here or in the store. Besides
the windows, the bodies kept for deliveries under way are bounded: an entry whose body was dropped returns by the store.

The windows are for consumers without a selector. Consumers with one (rule P16) would leave the windows full of entries
that no consumer wants: each has a :class:`coordinator.group.selecting.Search` of its own, which explains how.
"""

from __future__ import annotations

import time
from heapq import heappop, heappush
from typing import TYPE_CHECKING, ClassVar

import structlog

from coordinator.group.entries import Entry, now_micros
from coordinator.group.index import Index
from coordinator.group.ready import ReadyConsumers
from coordinator.group.refused import Refused
from coordinator.group.units import LOAD_RETRY_SECONDS, Expiry, Offer, Reclaim, SetAside, Share, Yield, stored_attempts
from coordinator.group.window import Window
from coordinator.memory import ENTRY_OCTETS
from coordinator.outcomes import UNTRANSFERRED
from coordinator.transitions import AFTER_LEAVES, AFTER_SEND, BACK, LEAVES, UNSENT
from store.codec.encoding import DecodeError
from store.commit.checkable import NEVER_HAD
from store.commit.terms import DEFAULT, Rank, rank_of
from store.errors import StoreError
from store.questions import entries as questions
from store.turns import turn_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coordinator.group.entries import Browser, Consumer
    from coordinator.group.policies import Policies
    from coordinator.group.selecting import Search
    from coordinator.group.serving import Queues
    from coordinator.instance import Instance
    from store.commit.batch import Batch
    from store.commit.terms import DeliveryTerms


#: seconds that a message waits in this instance's window for credit while other instances share the group
SURPLUS_SECONDS = 0.1
#: seconds for which consumers wait until an instance that holds the group has shared it
_ASK_SECONDS = 1.0
#: seconds between loads from the beginning by an instance that holds the group while others live
_WHOLE_SECONDS = 10.0
#: seconds between attempts to share a group that is being read
_READ_SECONDS = 0.01
#: entries of one load into a full window, where the store may have others that are to be sent first
_FEW = 100

log = structlog.get_logger(__name__)


class Queue:
    """Serves one consumer group at this instance. ``lease``: this instance's id, with which entries are leased."""

    #: the class of its entries
    entry_kind: ClassVar[type[Entry]] = Entry

    __slots__ = (
        "_counted", "address_id", "anchor", "asked_at", "browsers", "consumers", "dirty", "entered", "entering", "gone",
        "group_id", "held", "holding", "home", "index", "instance", "lease", "name", "normal", "not_from", "policies",
        "refused", "returning", "searches", "sent_octets", "surplus_due", "takers", "tried_at", "windows",
    )  # fmt: skip

    def __init__(
        self, instance: Instance, home: Queues, group_id: int, address_id: int, name: str, policies: Policies
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
        self.takers = ReadyConsumers()
        self.browsers: list[Browser] = []
        #: the searches of consumers with selectors
        self.searches: list[Search] = []
        #: of what they have read
        self.index: Index | None = None
        #: the connection whose posts this subscription does not get (no-local); None: it gets all
        self.not_from: object = None
        self.held: dict[int, Entry] = {}
        self.refused = Refused(self)
        #: one window for each rank
        self.windows = tuple(Window(rank) for rank in Rank)
        #: the window of nearly all entries
        self.normal = self.windows[Rank.NORMAL]
        self.sent_octets = 0
        #: octets of the queue in the instance's account of memory
        self._counted = 0
        #: how many units on their way to the store return entries. A drain waits for them: else a client that closes a
        #: consumer and drains another would get no message. A load waits too: else newer entries would be sent first
        #: (D5)
        self.returning = 0
        self.dirty = False
        #: whether its address was removed with all messages
        self.gone = False
        #: whether the timer runs that returns entries without a consumer to the store
        self.surplus_due = False
        #: whether this instance holds the whole group: entries are read by ranges of ids, not leased one by one
        self.holding = False
        #: whether the store knows that consumers are here, and no other instance holds the group
        self.entered = False
        #: whether the query for that is under way; and the monotonic time when the last one was answered
        self.entering = False
        self.tried_at = 0.0
        #: the monotonic time since when another instance is asked to share the group; 0: none is
        self.asked_at = 0.0

    def set_policies(self, policies: Policies) -> None:
        """Set the policies, which apply from now on. Paused, the queue gives back what no consumer has, and its
        consumers have no room; resumed, it loads anew (D12).
        """
        changed, self.policies = policies.paused is not self.policies.paused, policies
        if changed:
            for consumer in self.consumers:
                self.takers.changed(consumer)
            self.in_store()

    def window(self, priority: int) -> Window:
        return self.windows[rank_of(priority)]

    @property
    def window_octets(self) -> int:
        return sum(window.octets for window in self.windows)

    def count(self) -> None:
        """Update the instance's account of memory (:class:`coordinator.memory.Account`)."""
        octets = self.window_octets + self.sent_octets + ENTRY_OCTETS * len(self.held)
        if octets != self._counted:
            self.instance.memory.count_windows(octets - self._counted)
            self._counted = octets

    def __del__(self) -> None:
        if self._counted:
            self.instance.memory.count_windows(-self._counted)

    @property
    def idle(self) -> bool:
        """Whether the queue has no entries here and no links."""
        return not (self.has_links or self.held or self.returning)

    @property
    def has_links(self) -> bool:
        return bool(self.consumers or self.searches or self.browsers)

    @property
    def is_shared(self) -> bool:
        """Whether other instances may lease entries of the group, now or soon."""
        return self.instance.peers > 0 and (not self.holding or self in self.home.sharing)

    # -- entries arriving

    def reserve(self, size: int, priority: int) -> bool:
        """Reserve room for a message posted now; whether it is born leased to this instance: the window has room, and
        no older entry waits in the store.
        """
        window = self.normal if priority == DEFAULT else self.window(priority)
        if window.more or window.loading or self.policies.paused:
            return False
        instance = self.instance
        have = len(window) + window.reserved
        if have >= instance.bounds.window_messages or window.octets + size > instance.memory.window_room:
            return False
        if self.is_shared and have >= self.wanted():
            return False  # another instance may have a consumer with room for it
        window.reserve(size)
        return True

    def unreserve(self, entry: Entry) -> None:
        self.window(entry.priority).unreserve(entry.size)

    def arrived(self, entry: Entry) -> None:
        """Put a reserved entry, which is durable, into its window."""
        self.held[entry.id] = entry
        priority = entry.priority
        (self.normal if priority == DEFAULT else self.window(priority)).arrived(entry)
        self._may_be_found(entry.id, entry.priority)
        for browser in self.browsers:
            browser.arrived()
        self.touch()

    def in_store(self, lowest: int | None = None, priority: int | None = None) -> None:
        """Note that the store has (or may have) entries that are not leased. ``lowest``: the lowest id, where it may be
        an old one; ``priority``: their priority, if known.
        """
        if priority == DEFAULT:
            self.normal.in_store(lowest, priority)
        elif priority is not None:
            self.window(priority).in_store(lowest, priority)
        else:
            for window in self.windows:
                window.in_store(lowest, None)
        self._may_be_found(lowest, priority)
        for browser in self.browsers:
            browser.arrived()
        self.touch()

    def heard(self, lowest: int | None) -> None:
        """Handle the notice of another instance: the store has entries, from the id ``lowest`` on if that is known."""
        if not lowest:
            self.enter_again()
        if self.holding:
            # They may lie below those read, as commits of several instances overtake each other.
            self.in_store(lowest or 0)
        else:  # returned entries may lie below those read; new ones lie above, and need no load below
            self.in_store(None if lowest is None or not self.has_passed(lowest) else lowest)

    def _may_be_found(self, lowest: int | None, priority: int | None) -> None:
        """Tell the searches that there may be new or returned entries (:meth:`Search.arrived`)."""
        if self.index is not None and lowest is not None:
            self.index.lower(lowest - 1)
        for search in self.searches:
            search.arrived(lowest, priority)

    def indexed(self, field: str) -> Index | None:
        """Return the index of the queue, if it is of this field. A search makes it; one for another field replaces it
        when no open search uses it.
        """
        index = self.index
        if index is None or (index.field != field and not any(search.uses(index) for search in self.searches)):
            self.index = index = Index(field, self.instance.memory)
        index.renew()
        return index if index.field == field else None

    def has_passed(self, entry_id: int) -> bool:
        """Whether the next load or search may begin beyond this id."""
        newest = self.instance.ids.last
        if self.index is not None and self.index.through >= entry_id:
            return True
        return any(window.has_passed(entry_id, newest) for window in self.windows) or any(
            search.has_passed(entry_id) for search in self.searches
        )

    def touch(self) -> None:
        """Have the queue pumped at the end of this turn."""
        if not self.dirty and (self.consumers or self.held or self.searches or self.browsers):
            self.dirty = True
            self.home.dirty.append(self)

    def posted(self, entry_id: int, terms: DeliveryTerms) -> None:
        """Note an entry posted here that is durable and not leased."""
        self.in_store(entry_id, terms.priority)

    # -- entries coming back

    def expect_return(self, entry: Entry) -> None:
        """Count an entry whose outcome is on its way to the store, and may return the entry."""
        self.returning += 1

    def can_keep(self, entry: Entry) -> bool:
        return entry.message is not None and bool(self.consumers)

    def give_back(self, entry: Entry, *, leased: bool = True) -> None:
        """Put an entry back to its place, before newer ones. ``leased``: in the store it is still leased to this
        instance.
        """
        self._unsent(entry)
        entry.acquired = entry.acquired or entry.outcome is not UNTRANSFERRED
        entry.link = entry.delivery = entry.txn = entry.last_txn = entry.outcome = None
        entry.peer_settled = False
        if leased and self.can_keep(entry):
            entry.met(BACK)
            self.window(entry.priority).give_back(entry)
            self._may_be_found(entry.id, entry.priority)
            self.touch()
            return
        self.forget(entry)
        if leased:
            self.yield_ids([entry.id], [stored_attempts(entry)])
        else:
            self.in_store(entry.id, entry.priority)

    def arrived_before(self, lowest: int) -> None:
        """Note that the store has (or may have) entries from this id on, before those that were read."""
        self.in_store(lowest)

    def done_with(self, entry: Entry) -> None:
        """Forget an entry that was accepted, is dead, or is left to the store."""
        # on the path of every message: _unsent() and forget() are inlined
        entry_id, held, normal = entry.id, self.held, self.normal
        if entry.message is not None:
            self.sent_octets -= entry.size
        if held.get(entry_id) is entry:
            del held[entry_id]
        if normal.loading:
            normal.gone.add(entry_id)
        entry.state = AFTER_LEAVES[entry.state]
        entry.txn = None
        if not self.dirty:  # memory was freed: there may be room for more
            self.touch()

    def forget(self, entry: Entry) -> None:
        entry.met(LEAVES)
        self.refused.remember(entry)
        if self.held.get(entry.id) is entry:  # else the lease was lost, and the entry was loaded again
            del self.held[entry.id]
        if self.normal.loading:
            self.normal.gone.add(entry.id)

    def _unsent(self, entry: Entry) -> None:
        if entry.message is not None:
            self.sent_octets -= entry.size

    def failed(self) -> None:
        """Report that an entry of this queue was marked failed in the store."""
        self.home.failed()

    def yield_ids(self, ids: Sequence[int], attempts: Sequence[int] = ()) -> None:
        """Yield undecided entries to the store, for any consumer. ``attempts``: of each, as
        :func:`coordinator.group.units.stored_attempts` returns them; empty: no link had any of the entries.
        """
        attempts = attempts or [NEVER_HAD] * len(ids)
        for start in range(0, len(ids), 1000):
            self.instance.commit.add(Yield(self, ids[start : start + 1000], attempts[start : start + 1000]))

    def wake(self, batch: Batch, ids: Sequence[int]) -> None:
        """Notify the other instances that these entries are not leased."""
        batch.notify(self.group_id, min(ids))

    def yields(self) -> None:
        """Count a unit on its way that yields entries to the store; :meth:`yielded` or :meth:`offered` follows."""
        self.returning += 1

    def yielded(self, ids: Sequence[int]) -> None:
        """Note that the yield of these entries is durable."""
        self.returning -= 1
        self.in_store(min(ids, default=None))
        if self.holding and not self.held and not self.consumers:
            # if this instance dies, no entry of the group counts as sent
            questions.unread(self.instance.queries, self.group_id, self.instance.instance_id)

    # -- consumers

    def add(self, consumer: Consumer) -> None:
        self.consumers[consumer] = None
        self.takers.changed(consumer)
        for window in self.windows:
            window.in_store(None, None)
        self.touch()

    def remove(self, consumer: Consumer) -> None:
        """Remove the consumer of an ended link; its deliveries are settled elsewhere."""
        self.consumers.pop(consumer, None)
        self.takers.remove(consumer)
        if not self.consumers:
            self._yield_all()
            if not self.searches:
                self.refused.forget_all()

    def changed(self, consumer: Consumer) -> None:
        """Note that the consumer may have got more room, or drains its credit."""
        if consumer in self.consumers:
            self.takers.changed(consumer)
        self.touch()

    def _yield_all(self) -> None:
        """Yield all entries of the windows to the store, for other instances, as no consumer here takes them."""
        entries = [entry for window in self.windows for entry in window.empty()]
        self.yield_entries(entries + self.refused.empty())

    def yield_entries(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self.forget(entry)
        self.yield_ids([entry.id for entry in entries], list(map(stored_attempts, entries)))

    # -- entries going out

    def pump(self) -> None:
        """Send ready entries to consumers with room; then load more from the store if a consumer has room left."""
        self.dirty = False
        if not self.consumers or self.policies.paused:
            self._yield_all()  # the last consumer detached, or the group was paused, while entries were on their way
        if self.policies.paused:
            self.share()  # then no entry counts as read but those that consumers have
        if self.refused.wanted:
            self._take_back_refused()
        for window in self.windows:
            if window:
                self._distribute(window)
                if window.returned and not window.waits:
                    self._make_room(window)
            if (window.more or window.loading) and self._refill(window):
                break
        else:
            if not self.returning:
                for consumer in self.takers.draining():
                    no_room = consumer.room <= 0 and not consumer.shut
                    if no_room or not any(window.has_for(consumer) for window in self.windows):
                        consumer.drained()
                        self.takers.drained(consumer)
        if self.entered:
            for search in self.searches:
                search.advance()
        elif self.searches or self.browsers:
            self._enter_in_time()
        if self.is_shared:
            if self._has_any():
                self._offer_surplus()
            if self.refused.aside or any(window.returned for window in self.windows):
                self.refused.offer_soon()
        for browser in self.browsers:
            browser.advance()
        if self.instance.memory.windows_full and not self.wanted() and self._has_any():
            self._yield_all()

    def _has_any(self) -> bool:
        """Whether the queue has entries here that no consumer has."""
        return bool(self.refused.aside) or any(self.windows)

    def _offer_surplus(self) -> None:
        if not self.surplus_due:
            self.surplus_due = True
            self.instance.loop.call_later(SURPLUS_SECONDS, self.give_surplus)

    def give_surplus(self) -> None:
        """Yield entries for which no consumer here has room: consumers of other instances may wait for them."""
        self.surplus_due = False
        if not self.wanted():
            self._yield_all()

    def _distribute(self, window: Window) -> None:
        """Send ready entries to consumers with room, in turns."""
        takers = self.takers
        progress = True
        while progress and window and not window.waits:
            progress = False
            count = len(takers)
            share = max(1, len(window) // count) if count else 0
            for _ in range(count):
                consumer = turn_of(takers.rooms)
                room = consumer.room
                given = self._give(window, consumer, min(room, share)) if room > 0 else 0
                # entries that a subscription passes over use none of its room
                takers.keep(consumer, room - given if given < room else consumer.room)
                if given:
                    progress = True
                    if not window:
                        break

    def _give(self, window: Window, consumer: Consumer, most: int) -> int:
        ready, returned, bound = window.ready, window.returned, window.bound
        given = 0
        passed: list[Entry] = []
        while given < most:
            if returned and (not ready or returned[0].id < ready[0].id):
                if bound is not None and returned[0].order > bound:
                    break
                entry = heappop(returned)
            elif ready:
                if bound is not None and ready[0].id > bound[1]:
                    break
                entry = ready.popleft()
            else:
                break
            if entry.refused_by and consumer.key in entry.refused_by:
                passed.append(entry)
                continue
            window.octets -= entry.size
            if entry.expires and entry.expires <= now_micros():
                self.expire(entry)
                continue
            more = self.hand(consumer, entry)
            given += 1
            if not more:
                break
        for entry in passed:
            heappush(returned, entry)
        return given

    # -- loading from the store

    def _by_range(self, window: Window) -> bool:
        """Whether entries are read by ranges of ids, not leased one by one."""
        return self.holding and window.rank is Rank.NORMAL

    def _refill(self, window: Window) -> bool:
        """Load entries if consumers have room; whether any may come, for which lower ranks wait."""
        if window.loading:
            return True
        wanted = self.wanted() if window.more else 0
        if not wanted and window.more and not window and self.takers.drain_waits:
            wanted = 1
        if not wanted:
            return False
        if not self.entered:
            self._enter_in_time()
            return True
        if self.returning or (self.holding and self in self.home.sharing):
            return True
        instance = self.instance
        have = len(window) + window.reserved
        # an instance that shares with none reads ahead; consumers with room may have refused what is here
        # (undeliverable-here)
        ahead = wanted - window.reserved if self.is_shared else max(2 * wanted, _FEW)
        most = min(instance.bounds.window_messages - have, ahead)
        octets = instance.memory.window_bytes - window.octets
        if instance.memory.windows_full:  # one message
            most, octets = min(most, _FEW), min(octets, 1)
        blocked = window.blocked
        if blocked:  # entries here wait for others that the store has
            most, octets = max(most, min(wanted, _FEW)), max(octets, 1)
        elif most <= 0 or octets <= 0:
            return False
        if window.reserved < wanted or blocked:
            window.load_sent()
            self._load(window, most, octets)
        return True

    def _load(self, window: Window, most: int, octets: int) -> None:
        """Load entries: an instance that holds the whole group reads on; one that shares it leases them."""
        low, version, by_range = window.low, window.version, self._by_range(window)
        reads_all = low.reads_all

        def answered(answer: questions.Loaded | StoreError) -> None:
            if isinstance(answer, StoreError):
                # the server may not be able to read a row: an immediate retry would change nothing
                self.instance.loop.call_later(LOAD_RETRY_SECONDS, lambda: self.reclaim(window.load_ended))
                return
            rows, found = answer
            entry_kind = self.entry_kind
            entries = [entry_kind(self, *row[:10]) for row in rows]
            # Complete: the store has no entries beyond these. Without ranges, entries may lie below the low-water mark,
            # so that an empty answer above it proves little.
            complete = found == len(rows) < most if rows else by_range or reads_all
            self.loaded(window, entries, complete=complete, version=version, by_range=by_range)
            self.touch()

        asked, group, number = self.instance.queries, self.group_id, self.instance.instance_id
        if by_range:
            questions.read(asked, group, low.marks[0], most, octets, number, answered)
        else:
            questions.lease(asked, window.rank, group, low.marks, most, octets, number, answered)

    def loaded(self, window: Window, entries: list[Entry], *, complete: bool, version: int, by_range: bool) -> None:
        """Put loaded entries into the window. ``complete``: the store had no others, as of ``version`` of its news.
        ``by_range``: they were read, not leased.
        """
        held, instance = self.held, self.instance
        # A range may contain entries read before, which are still held, or were settled meanwhile. Entries leased just
        # now are new, whatever this instance has known of them.
        gone = window.gone
        new = [each for each in entries if each.id not in held and each.id not in gone] if by_range else entries
        for entry in new:
            held[entry.id] = entry
        if self.refused.knows_any:
            for entry in new:
                self.refused.recall(entry)
        window.put(new)
        window.loaded(entries, complete=complete, version=version)
        seconds: float | None
        if not by_range:
            newest, alone = instance.ids.last, self.holding and not instance.peers
            seconds = window.move_low(entries, newest, complete=complete, version=version, alone=alone)
        else:
            seconds = window.move_through(entries, alone=not instance.peers)
            seconds = None if seconds is None else max(seconds, _WHOLE_SECONDS)
        if seconds is not None:
            instance.loop.call_later(seconds, lambda: self._read_all_next(window))
        window.load_ended()

    def _read_all_next(self, window: Window) -> None:
        window.read_all_next(alone=self._by_range(window) and not self.instance.peers)
        self.touch()

    def reclaim(self, then: Callable[[], None] | None = None) -> None:
        """Find entries that a lost load may have leased without this instance knowing, and yield them to the store.

        Entries born leased in a batch under way are not known either, until the batch is answered: the list is checked
        again once every earlier batch is answered. ``then`` is called when the entries were found and are on their way
        to the store.
        """
        instance = self.instance

        def listed(found: list[int]) -> None:
            instance.commit.add(Reclaim(self, [each for each in found if each not in self.held], then))

        questions.leased(instance.queries, self.group_id, instance.instance_id, listed)

    def browse(
        self,
        rank: Rank,
        behind: tuple[int, int],
        most: int,
        octets: int,
        found: Callable[[Sequence[questions.EntryRow] | StoreError], None],
    ) -> None:
        """Read entries of this rank that no instance has, behind a priority and an id, without leasing them."""
        questions.browse(self.instance.queries, rank, self.group_id, behind, most, octets, found)

    def piece(self, entry: Entry, at: int, size: int, found: Callable[[bytes | None], None]) -> None:
        """Read octets of an entry's stored message from an offset on; None if there are none, or the store fails."""
        questions.piece(self.instance.queries, entry.half_id, at, size, found)

    # -- holding a whole group: the only instance that has consumers of it reads by ranges of ids, and leases no row.
    # When another one gets consumers, the group is shared: the entries that the holder has are leased then.

    def enter(self) -> None:
        """Note in the store that consumers are here, and hold the whole group if no other instance has any. A browser
        counts as one: an instance tells the others nothing of what it posts for a group that it holds.

        Another one that holds it is asked to share it: before it has, or a second is over, nothing is loaded here. If
        it does not answer, it is asked again (:meth:`may_hold`), and given up in the end.
        """
        self.entering = True
        self.home.entered.add(self)

        def answered(answer: questions.Holder | StoreError) -> None:
            self.entering = False
            holder, place = answer if isinstance(answer, questions.Holder) else (None, None)
            if place is not None:
                for consumer in list(self.consumers):
                    consumer.redirect(place)
                return
            self.tried_at = now = time.monotonic()
            if holder in (0, self.lease):
                self.asked_at = 0.0
            else:
                self.asked_at = self.asked_at or now
            self.entered = not self.asked_at or now - self.asked_at >= _ASK_SECONDS / 2
            if holder == self.lease:
                self.holding = True
                self.home.holding.add(self)
                self.in_store(0)
            elif self.entered:
                self.touch()
            else:
                self.instance.loop.call_later(_ASK_SECONDS, self.touch)

        # what is searched or browsed here has to be told here
        here = None if self.searches or self.browsers else self.instance.here
        questions.hold(self.instance.queries, self.group_id, self.lease, here, answered)

    def _enter_in_time(self) -> None:
        """Enter, unless the holder of the group was asked just now, or is this instance and shares it."""
        asked = self in self.home.entered and time.monotonic() - self.tried_at < _ASK_SECONDS / 2
        if not self.entering and not asked and self not in self.home.sharing:
            self.enter()

    def enter_again(self) -> None:
        """Enter, if the holder of the group was asked to share it, and consumers wait for that."""
        asked = self in self.home.entered and not self.entered and not self.entering
        if asked and not self.holding and self.has_links:
            self.enter()

    def may_hold(self, before: float) -> bool:
        """Whether to try to hold the group: consumers are here, and it is shared since a monotonic time ``before``."""
        return (
            self.entered
            and not self.holding
            and not self.entering
            and self.tried_at <= before
            and not self.policies.paused
            and bool(self.consumers or self.searches)
        )

    def share(self) -> None:
        """Stop holding the whole group, as another instance has consumers of it, or none are here."""
        if self.holding and self not in self.home.sharing:
            self.home.sharing.add(self)
            self._share_when_read()

    def _share_when_read(self) -> None:
        if self.normal.loading or self.entering:  # the entries being read, or the holder, are not known yet
            self.instance.loop.call_later(_READ_SECONDS, self._share_when_read)
            return
        if not self.wanted():
            self._yield_all()  # in one batch with the sharing: consumers elsewhere get it before what is newer (P17)
        self.normal.loading = True
        self.instance.commit.add(Share(self))

    def shared(self, pinned: Sequence[int]) -> None:
        """Complete the sharing: the entries with these ids, which were here, are leased row by row."""
        # An entry given back in this batch or the one before was free in the store already, and is leased again now.
        let_go = [each for each in pinned if each not in self.held]
        if let_go:
            self.yield_ids(let_go)
        self.holding = False
        self.tried_at = time.monotonic()
        self.home.holding.discard(self)
        self.home.sharing.discard(self)
        self.normal.load_ended()
        self.in_store(0)

    def not_shared(self) -> None:
        """Read on after a refused sharing: in the store this instance still holds the whole group, and no row is
        leased.

        The instance that has consumers asks again, or the next check of idle queues does.
        """
        self.home.sharing.discard(self)
        self.normal.load_ended()
        self.touch()

    # -- entries that all consumers with room have refused (:mod:`coordinator.group.refused`)

    def _make_room(self, window: Window) -> None:
        """Set aside entries that all consumers with room have refused, if the window is at least half full."""
        bounds, memory = self.instance.bounds, self.instance.memory
        few = 2 * len(window) < bounds.window_messages and 2 * window.octets < memory.window_bytes
        keys = {consumer.key for consumer in self.takers}
        if keys and not few and not memory.windows_full:
            entries = window.refused_by(keys)[: self.refused.room]
            window.take_out({entry.id for entry in entries})
            self.refused.add(entries)

    def refused_by(self, keys: set[int]) -> list[Entry]:
        """Return the entries here, set aside or not, that all consumers with these keys have refused."""
        aside = [entry for entry in self.refused.aside.values() if keys.issubset(entry.refused_by)]
        return aside + [entry for window in self.windows for entry in window.refused_by(keys)]

    def offer(self, entries: Sequence[Entry]) -> None:
        """Yield entries refused here to the store, for other instances; this instance does not load them at once."""
        ids = {entry.id for entry in entries}
        for window in self.windows:
            window.take_out(ids)
        for entry in entries:
            self.forget(entry)
        self.instance.commit.add(Offer(self, [entry.id for entry in entries], list(map(stored_attempts, entries))))

    def offered(self) -> None:
        """Note that the offer is durable."""
        self.returning -= 1
        self.touch()
        self.refused.offered()

    def load_offered(self, lowest: int) -> None:
        """Load offered entries again: other instances may have left them in the store, from this id on."""
        self.in_store(lowest)

    def _take_back_refused(self) -> None:
        """Yield the entries set aside, with their whole windows, to the store, as a consumer with room may take some:
        they are loaded again in order. Entries that arrive meanwhile, posted or loaded, wait for them (D5).
        """
        entries = self.refused.empty()
        ranks = {rank_of(entry.priority) for entry in entries}
        for window in self.windows:
            if window.rank in ranks:
                entries += window.empty()
                window.in_store(min(entry.id for entry in entries if rank_of(entry.priority) == window.rank), None)
        self.yield_entries(entries)
        self.refused.load_offered()

    def wanted(self) -> int:
        """Return the number of entries that consumers here have room for."""
        return self.takers.wanted

    def hand(self, consumer: Consumer, entry: Entry) -> bool:
        """Send a held entry that was taken out of its window; whether the consumer takes another right away."""
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
        """Expire an entry whose time to live ended before a consumer got it (P12)."""
        entry.met(UNSENT)
        self.sent_octets += entry.size  # as if it were under way: done_with() subtracts it again
        self.instance.commit.add(Expiry(entry))

    def set_aside(self, entry: Entry, reason: str) -> None:
        """Move an entry that cannot be delivered to any consumer to the dead letters, whatever its attempts."""
        log.error("a message is set aside", queue=self.name, entry=entry.id, half=entry.half_id, why=reason)
        entry.met(UNSENT)
        self.sent_octets += entry.size
        self.instance.commit.add(SetAside(entry, reason))

    def withdraw(self, entry: Entry) -> bool:
        """Remove a held entry from its window; whether it was there, and not with a consumer."""
        return self.refused.aside.pop(entry.id, None) is not None or self.window(entry.priority).withdraw(entry)
