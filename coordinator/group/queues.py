"""One consumer group of an address, as this instance serves it: windows of entries it has leased, and its consumers.

Entries are sent by priority (rule P17) and within one in order of commit; what comes back is sent before what is newer
(rule D5). A rank of priorities waits until those above it have nothing more, here or in the store. Besides the windows,
the bodies kept for deliveries under way are bounded too: an entry whose body was dropped returns through the store.

The windows are for consumers that take anything. Those with a selector (rule P16) would leave them full of what no
consumer wants: each has a :class:`coordinator.group.selecting.Search` of its own instead, which says how.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, ClassVar

import structlog

from coordinator.group.entries import Entry, now_micros
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

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coordinator.group.entries import Browser, Consumer
    from coordinator.group.policies import Policies
    from coordinator.group.selecting import Search
    from coordinator.group.serving import Queues
    from coordinator.instance import Instance
    from store.commit.batch import Batch
    from store.commit.terms import DeliveryTerms


#: how long a message waits in one instance's window for a consumer's credit while other instances live
SURPLUS_SECONDS = 0.1
#: how long a group that is being read waits to be shared
_READ_SECONDS = 0.01
#: entries of one load where the window is full of what the store may have better than
_FEW = 100

log = structlog.get_logger(__name__)


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
        #: of the consumers that choose
        self.searches: list[Search] = []
        #: a subscription that gets nothing posted on this connection (no-local)
        self.not_from: object = None
        self.held: dict[int, Entry] = {}
        self.refused = Refused(self)
        #: by rank
        self.windows = tuple(Window(rank) for rank in Rank)
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
        window = self.normal if priority == DEFAULT else self.window(priority)
        if window.more or window.loading:
            return False
        instance = self.instance
        have = len(window) + window.reserved
        if have >= instance.bounds.window_messages or window.octets + size > instance.memory.window_room:
            return False
        if instance.peers and have >= self.wanted():
            return False  # another instance may have a consumer that takes it now
        window.reserve(size)
        return True

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
        newest = self.instance.ids.last
        return any(window.has_passed(entry_id, newest) for window in self.windows) or any(
            search.has_passed(entry_id) for search in self.searches
        )

    def touch(self) -> None:
        """Pump at the end of this turn."""
        if not self.dirty and (self.consumers or self.held or self.searches or self.browsers):
            self.dirty = True
            self.home.dirty.append(self)

    def posted(self, entry_id: int, terms: DeliveryTerms) -> None:
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
        :func:`coordinator.group.units.stored_attempts` has them; none: no link had any.
        """
        attempts = attempts or [NEVER_HAD] * len(ids)
        for start in range(0, len(ids), 1000):
            self.instance.commit.add(Yield(self, ids[start : start + 1000], attempts[start : start + 1000]))

    def wake(self, batch: Batch, ids: Sequence[int]) -> None:
        """Notifies the other instances that these entries are not leased."""
        batch.tell(self.group_id, min(ids))

    def yields(self) -> None:
        """A unit is on its way that brings entries back to the store; :meth:`yielded` or :meth:`offered` follows."""
        self.returning += 1

    def yielded(self, ids: Sequence[int]) -> None:
        """The store has them."""
        self.returning -= 1
        self.in_store(min(ids, default=None))
        if self.holding and not self.held and not self.consumers:
            # should this instance die, no entry of the group counts as sent
            questions.unread(self.instance.queries, self.group_id, self.instance.instance_id)

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

    def _distribute(self, window: Window) -> None:
        """Give what is ready to consumers with room, in turns."""
        takers = self.takers
        progress = True
        while progress and window and not window.waits:
            progress = False
            count = len(takers)
            share = max(1, len(window) // count) if count else 0
            for _ in range(count):
                consumer = takers.next()
                room = consumer.room
                given = self._give(window, consumer, min(room, share)) if room > 0 else 0
                # what a subscription passes over costs it no room
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
        """Whether entries are taken by the range of their ids, not leased one by one."""
        return self.holding and window.rank is Rank.NORMAL

    def _refill(self, window: Window) -> bool:
        """Ask the store for more where consumers have room; whether entries may come: lower ranks wait for them."""
        if window.loading:
            return True
        wanted = self.wanted() if window.more else 0
        if not wanted and window.more and not window and self.takers.asked:
            wanted = 1
        if not wanted:
            return False
        if self.returning:
            return True
        instance = self.instance
        have = len(window) + window.reserved
        # one instance alone reads ahead; no consumer with room may have what is here still (undeliverable-here)
        ahead = wanted - window.reserved if instance.peers else max(2 * wanted, _FEW)
        most = min(instance.bounds.window_messages - have, ahead)
        octets = instance.memory.window_bytes - window.octets
        if instance.memory.windows_full:  # one message
            most, octets = min(most, _FEW), min(octets, 1)
        blocked = window.blocked
        if blocked:  # what is still here waits for what the store has
            most, octets = max(most, min(wanted, _FEW)), max(octets, 1)
        elif most <= 0 or octets <= 0:
            return False
        if window.reserved < wanted or blocked:
            window.asks()
            self._load(window, most, octets)
        return True

    def _load(self, window: Window, most: int, octets: int) -> None:
        """Alone, this instance holds the whole group and reads on from where it was; among others it leases entries."""
        if self.holding or self.instance.peers:
            self._ask(window, most, octets)
        else:
            self.hold(lambda: self._ask(window, most, octets))

    def _ask(self, window: Window, most: int, octets: int) -> None:
        low, version, by_range = window.low, window.version, self._by_range(window)
        looks_at_all = low.looks_at_all

        def answered(answer: questions.Loaded | StoreError) -> None:
            if isinstance(answer, StoreError):
                # a row that the server cannot read: asking at once would change nothing
                self.instance.loop.call_later(LOAD_RETRY_SECONDS, lambda: self.reclaim(window.load_ended))
                return
            rows, found = answer
            entry_kind = self.entry_kind
            entries = [entry_kind(self, *row[:10]) for row in rows]
            # nothing beyond what came; what is not read by the range may lie below the low-water mark, so that an empty
            # answer above it says little
            complete = found == len(rows) < most if rows else by_range or looks_at_all
            self.loaded(window, entries, complete=complete, version=version)
            self.touch()

        asked, group, number = self.instance.queries, self.group_id, self.instance.instance_id
        if by_range:
            questions.read(asked, group, low.marks[0], most, octets, number, answered)
        else:
            questions.lease(asked, window.rank, group, low.marks, most, octets, number, answered)

    def loaded(self, window: Window, entries: list[Entry], *, complete: bool, version: int) -> None:
        """These came from the store; ``complete``: there was nothing beyond them, with the news at ``version``."""
        held, instance, by_range = self.held, self.instance, self._by_range(window)
        # What a range brings may have been read before: it is held still, or was settled meanwhile. What was leased
        # just now is new, whatever is known of it here.
        gone = window.gone
        new = [each for each in entries if each.id not in held and each.id not in gone] if by_range else entries
        for entry in new:
            held[entry.id] = entry
        if self.refused.knows_any:
            for entry in new:
                self.refused.recall(entry)
        window.put(new)
        window.loaded(entries, complete=complete, version=version)
        if not by_range:
            newest, alone = instance.ids.last, self.holding
            seconds = window.move_low(entries, newest, complete=complete, version=version, alone=alone)
            if seconds is not None:
                instance.loop.call_later(seconds, lambda: self._look_at_all(window))
        elif entries:
            window.low.read_through(entries[-1].id)
        window.load_ended()

    def _look_at_all(self, window: Window) -> None:
        window.look_at_all(by_range=self._by_range(window))
        self.touch()

    def reclaim(self, then: Callable[[], None] | None = None) -> None:
        """A load may have leased entries that this instance does not know: find them, and give them back to the store.

        Entries born leased in a batch under way are not known either, until the batch is answered: what is listed now
        is looked at again once every batch before is answered. ``then`` is called when the entries are known, and on
        their way back.
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
        """Look at entries of this rank that no instance has, behind a priority and an id, and take none."""
        questions.browse(self.instance.queries, rank, self.group_id, behind, most, octets, found)

    def piece(self, entry: Entry, at: int, size: int, found: Callable[[bytes | None], None]) -> None:
        """Octets of an entry's stored message from an offset on; None where there are none, or the store fails."""
        questions.piece(self.instance.queries, entry.half_id, at, size, found)

    # -- a group that one instance holds whole: the only one that lives reads on by ranges of ids and leases nothing row
    # by row. When another comes, the group is shared: what the holder has of it is leased then.

    def hold(self, then: Callable[[], None]) -> None:
        """Hold the group whole, where no other instance lives or has it."""

        def answered(held: bool) -> None:
            self.holding = held
            if held:
                self.home.holding.add(self)
            then()

        questions.hold(self.instance.queries, self.group_id, self.instance.instance_id, answered)

    def share(self) -> None:
        """Another instance came: hold the group no longer whole."""
        if self.holding and self not in self.home.sharing:
            self.home.sharing.add(self)
            self._share_when_read()

    def _share_when_read(self) -> None:
        if self.normal.loading:  # what is being read is not known yet
            self.instance.loop.call_later(_READ_SECONDS, self._share_when_read)
            return
        self.normal.loading = True
        self.instance.commit.add(Share(self))

    def shared(self, pinned: Sequence[int]) -> None:
        """The store has it so: what was here, with these ids, is leased row by row."""
        # An entry given back in this batch or the one before was free in the store already, and is leased again now.
        let_go = [each for each in pinned if each not in self.held]
        if let_go:
            self.yield_ids(let_go)
        self.holding = False
        self.home.holding.discard(self)
        self.home.sharing.discard(self)
        self.normal.load_ended()
        self.in_store(0)

    def not_shared(self) -> None:
        """In the store this instance still holds the group whole, and nothing is leased row by row: it reads on.

        The next heartbeat that sees other instances, or the next look for idle queues, shares the group again.
        """
        self.home.sharing.discard(self)
        self.normal.load_ended()
        self.touch()

    # -- what all with room have refused (:mod:`coordinator.group.refused`)

    def _make_room(self, window: Window) -> None:
        """What all with room have refused stands aside, where it may be in the way: the window is half full."""
        bounds, memory = self.instance.bounds, self.instance.memory
        few = 2 * len(window) < bounds.window_messages and 2 * window.octets < memory.window_bytes
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
