"""A fifo queue serves a consumer group of a fifo address: message groups keep their order, each with one consumer at a
time (rules P18, D3; part 3, section 3.2.4).

**Decision.** A window read by ranges of ids (:mod:`coordinator.group.window`) would be full of one group whose consumer
waits, and block all later entries. So entries are found by their group: an index has them by (group, id), a *scan*
steps from one group to the next over any number of entries, and each group is read on its own, a few entries at a time.
No query passes through a backlog.

* An instance *claims* a group (table ``message_group``) before it reads any entry of it. The entries are also leased
  one by one, so that a crash, expiry and retirement work as on any queue.
* In memory a group is in a *lane*: that of the consumer that has deliveries of it, or the free one. A consumer gets the
  first entries of its own lane and the free one, in order of commit; the first delivery moves the group to its lane,
  and when the last is settled (or its transaction decided) the group is free again.
* While an entry of a group is being returned, no newer entry of the group is sent. Entries that do not fit into memory
  return to the store; then the group is read again from its first entry on.
* A failed delivery that waits for a retry (D2) keeps its id, and stays in the store; so do later entries of its group,
  which no instance reads or claims before. It has no timer: the schedule makes it due
  (:mod:`coordinator.group.schedule`), and notifies the instances. Deliveries that a consumer already has stay with it.
* No posted entry is born leased: the order of the store is the order of delivery, whichever instance got the post.
* A message without group-id is a group of its own, with a key above 0; its lease is its claim.

Memory is bounded by the window of the queue: when it is full, entries of groups whose consumer has no room are yielded
to the store, in favour of groups that consumers have room for; and so are those of groups whose first message all
consumers with room have refused (:mod:`coordinator.group.refused`), which stay claimed while they are set aside.
"""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING

from coordinator.group.entries import now_micros
from coordinator.group.lanes import LOWEST, GroupedEntry, Lane, MessageGroup, first_for
from coordinator.group.queues import Queue
from coordinator.group.units import LOAD_RETRY_SECONDS, stored_attempts
from coordinator.group.window import LOW_WATER_SLACK, WHOLE
from coordinator.outcomes import UNTRANSFERRED
from coordinator.transitions import BACK
from store.commit.terms import key_of
from store.errors import StoreError
from store.questions import message_groups as questions
from store.turns import turn_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from coordinator.group.entries import Consumer, Entry
    from coordinator.group.policies import Policies
    from coordinator.group.serving import Queues
    from coordinator.instance import Instance
    from store.commit.batch import Batch
    from store.commit.terms import DeliveryTerms


# Claims finds message groups of a fifo queue in the store, claims them for this instance, and releases them.

#: how many groups are read, or claimed, at once
MOST_GROUPS = 500
#: how many groups one scan passes
_MOST_SCANNED = 2000


class Claims:
    """Claims and releases the message groups of a fifo queue. ``news``: keys of groups not claimed here that have new
    entries.

    ``more``: the store may have groups that are not known here, from the cursor on or, by later news, anywhere.
    """

    __slots__ = ("_cursor", "_queue", "_scan_version", "_version", "away", "more", "news")

    def __init__(self, queue: FifoQueue) -> None:
        self._queue = queue
        self.news: dict[int, None] = {}
        #: keys of groups offered to other instances, as all here have refused them; until the queue loads them again
        self.away: set[int] = set()
        self.more = True
        self._version = self._scan_version = 0
        self._cursor = LOWEST

    def search_anywhere(self) -> None:
        """Note that the store may have unknown groups, also before the cursor."""
        self.more = True
        self._version += 1

    def _know(self, key: int) -> None:
        queue = self._queue
        if key not in queue.groups:
            self.news.pop(key, None)
            group = queue.groups[key] = MessageGroup(key, queue.free)
            queue.place(group)

    def claim(self, most: int) -> bool:
        """Claim groups that have new entries; whether a query was sent for them."""
        queue = self._queue
        keys = list(islice(self.news, most))
        claimed: list[int] = []
        for key in sorted(keys):  # in the order of other instances: else two could deadlock
            del self.news[key]
            if key in self.away:
                continue
            if key > 0:
                self._know(key)
            else:
                claimed.append(key)
        if not claimed:
            return bool(keys) and queue.reading.load(queue.wanted(), len(keys))
        queue.asking = True
        questions.claim(queue.instance.queries, queue.group_id, claimed, queue.lease, self._claimed)
        return True

    def _claimed(self, keys: list[int] | StoreError) -> None:
        queue = self._queue
        if isinstance(keys, StoreError):
            queue.instance.loop.call_later(LOAD_RETRY_SECONDS, self._forget_unknown)
            return
        queue.asking = False
        for key in keys:
            self._know(key)
        queue.touch()

    def scan(self, most: int) -> bool:
        """Claim groups beyond the cursor, if there may be any; whether a query was sent."""
        queue = self._queue
        if not self.more:
            return False
        queue.asking = True
        if self._cursor == LOWEST:
            self._scan_version = self._version
        asked = queue.instance.queries
        questions.scan(asked, queue.group_id, self._cursor, _MOST_SCANNED, most, queue.lease, self._scanned)
        return True

    def _scanned(self, answer: questions.Scanned | StoreError) -> None:
        queue = self._queue
        if isinstance(answer, StoreError):
            queue.instance.loop.call_later(LOAD_RETRY_SECONDS, self._forget_unknown)
            return
        queue.asking = False
        for key in answer.keys:
            self._know(key)
        if answer.more:
            self._cursor = answer.at
        else:
            self._cursor = LOWEST
            self.more = self._version != self._scan_version
        queue.touch()

    def _forget_unknown(self) -> None:
        """Release the claims that are not known here, as the answer to a claim was lost."""
        queue = self._queue
        self.search_anywhere()

        def forgotten(_: StoreError | None) -> None:
            queue.asking = False
            queue.touch()

        keys = [key for key in queue.groups if key < 0]
        questions.forget(queue.instance.queries, queue.group_id, keys, queue.lease, forgotten)

    def release(self, groups: Iterable[MessageGroup], *, again: bool = True) -> None:
        """Release the groups that have no entries here. ``again``: scan at once for entries that the store has of
        them.
        """
        queue = self._queue
        keys: list[int] = []
        for group in groups:
            if group.lane is not queue.free or group.ready or group.out or group.coming or group.loading:
                continue
            queue.resting.pop(group.key, None)
            queue.free.hungry.pop(group.key, None)
            queue.take_from_aside(group)
            del queue.groups[group.key]
            if group.more and again:
                self.search_anywhere()
            if group.key < 0:
                keys.append(group.key)
        if keys:
            notify = bool(queue.instance.peers)
            questions.release(queue.instance.queries, queue.group_id, keys, queue.lease, notify=notify)


# Reading leases further entries of the message groups of a fifo queue, and chooses the next query to the store.

#: how many entries of one group are read at once
_MOST_OF_GROUP = 50
#: how many groups are read ahead of the consumers, if no other instance is alive
_FEW = 100


class Reading:
    """Leases entries of the claimed message groups of a fifo queue."""

    __slots__ = ("_doubt", "_found", "_queue", "_turn", "_unsure", "_whole_at")

    def __init__(self, queue: FifoQueue) -> None:
        self._queue = queue
        #: whether known groups are read before others are scanned for
        self._turn = False
        #: groups that were being read when the answer was lost; entries that were leased for them are yielded
        self._doubt: list[MessageGroup] = []
        #: whether those entries were found
        self._found = False
        #: keys of groups that were read above a mark: other instances may have posted entries below it late
        self._unsure: dict[int, None] = {}
        #: the monotonic time from which on they may be read from their beginning
        self._whole_at = 0.0

    def query(self) -> None:
        """Send one query at a time: in turns, read known groups, and scan for others."""
        queue = self._queue
        if queue.asking:
            return
        wanted = queue.wanted() or int(queue.takers.drain_waits and not queue.ready)
        ahead = wanted if queue.instance.peers else max(2 * wanted, _FEW)
        known = len(queue.free.hungry)
        if not wanted:  # else all consumers with room may have refused the ready entries (undeliverable-here)
            known += sum(group.ticket == ticket for _, ticket, group in queue.free.ready)
        most = min(ahead - known, queue.instance.bounds.window_messages - queue.ready, MOST_GROUPS)
        for _ in range(2):
            self._turn = not self._turn
            if self._turn:
                if self.load(wanted, ahead):
                    return
            elif most > 0 and (queue.claims.claim(most) or queue.claims.scan(most)):
                return

    def load(self, wanted: int, ahead: int) -> bool:
        """Read groups further, first those that consumers with room wait for; whether a query was sent."""
        queue = self._queue
        if not wanted:
            return False
        window = queue.instance.bounds.window_messages
        memory = queue.instance.memory
        if window - queue.ready < min(wanted, _FEW, window // 4) or queue.window_octets >= memory.window_bytes:
            self._make_room()
        most = min(window - queue.ready, ahead)
        octets = memory.window_bytes - queue.window_octets
        if memory.windows_full:  # one message
            octets = min(octets, 1)
        full = most <= 0 or octets <= 0
        if full:  # one group, whose ready entries may wait for older ones in the store
            most, octets = _MOST_OF_GROUP, 1
        groups: list[MessageGroup] = []
        for lane in queue.lanes.values():
            if lane.hungry and lane.consumer is not None and (room := lane.consumer.room) > 0:
                groups += islice(lane.hungry.values(), min(room, 1 + most // (2 * len(queue.lanes))))
        groups += islice(queue.free.hungry.values(), max(1, most - len(groups)))
        groups = [group for group in groups if group.ready][:1] if full else groups[:MOST_GROUPS]
        if not groups:
            return False
        each = min(_MOST_OF_GROUP, max(1, most // len(groups)))
        for group in groups:
            group.loads()
            queue.place(group)
        queue.asking = True
        keys, above = [group.key for group in groups], [group.low for group in groups]
        asked, loaded = queue.instance.queries, partial(self._loaded, groups, above, time.monotonic(), each)
        questions.lease(asked, queue.group_id, keys, above, each, octets, queue.lease, loaded)
        return True

    def _loaded(
        self,
        groups: list[MessageGroup],
        above: list[int],
        sent_at: float,
        each: int,
        answer: questions.Leased | StoreError,
    ) -> None:
        queue = self._queue
        if isinstance(answer, StoreError):  # entries may be leased without being known here
            self._doubt = groups
            queue.instance.loop.call_later(LOAD_RETRY_SECONDS, lambda: queue.reclaim(self.load_ended))
            return
        queue.asking = False
        of = {group.key: group for group in groups}
        came = dict.fromkeys(of, 0)
        last = dict.fromkeys(of, 0)
        for row in answer.rows:
            group = of[row[-1]]
            entry = queue.entry_kind(queue, *row[:10])
            assert isinstance(entry, GroupedEntry)
            entry.group, entry.out, entry.coming = group, False, False
            queue.refused.recall(entry)
            queue.held[entry.id] = entry
            queue.keep(entry)
            came[group.key] += 1
            last[group.key] = entry.id
        self._move_low(last, dict(zip(last, above, strict=True)), sent_at)
        for key, found in answer.found.items():
            if found == each or found > came[key]:
                group = of[key]
                group.more = True
                group.bound = last[key] if group.bound is None else 0
        for key, waiting in answer.waiting.items():
            of[key].suspend(waiting)
        for group in groups:
            if group.held and came[group.key]:
                group.held = not group.asked
        for group in groups:
            group.loading = False
            queue.hold_back(group)
            queue.place(group)
        queue.touch()

    def _move_low(self, last: dict[int, int], above: dict[int, int], sent_at: float) -> None:
        """Raise the marks of the groups that were read. ``last``: by key, the id of the last loaded entry, 0 for
        none.
        """
        queue = self._queue
        peers = queue.instance.peers
        slack = LOW_WATER_SLACK if peers else 0
        for key, entry_id in last.items():
            group = queue.groups.get(key)
            if group is not None and entry_id:
                group.read_through(max(0, entry_id - slack))
            if peers and above[key]:
                if not self._unsure:
                    seconds = max(0.0, self._whole_at - time.monotonic())
                    queue.instance.loop.call_later(seconds, self._read_all)
                self._unsure[key] = None
        if not all(above.values()):
            self._whole_at = WHOLE.after(sent_at)

    def _read_all(self) -> None:
        """Read groups from their beginning: entries that other instances posted may lie below the marks."""
        queue = self._queue
        unsure, self._unsure = self._unsure, {}
        for key in unsure:
            group = queue.groups.get(key)
            if group is not None:
                group.read_from(0)
            queue.news(key)

    def load_ended(self) -> None:
        """Note that the entries of a lost load were found, and are on their way to the store."""
        self._found = True
        self.yielded()

    def yielded(self) -> None:
        """Have the groups of a lost load read again, once the last of its entries is back in the store."""
        queue = self._queue
        if not self._found or queue.strange:
            return
        self._found = False
        queue.asking = False
        groups, self._doubt = self._doubt, []
        for group in groups:
            group.loading = False
            group.came_back(0)
            queue.place(group)
        queue.touch()

    def _make_room(self) -> None:
        """Evict entries of groups whose consumer has no room, or that all consumers with room have refused."""
        queue = self._queue
        blocked = [
            group
            for group in queue.groups.values()
            if group.ready and (consumer := group.lane.consumer) is not None and consumer.room <= 0
        ]
        queue.empty(blocked)
        queue.set_refused_aside()


#: how many groups stay claimed while they have no entries
_MOST_IDLE = 1000
#: how many keys of groups with new entries are remembered
_MOST_NEWS = 2000
#: the longest time between checks for expired entries that block their groups, in microseconds
_LONGEST_MICROS = 10_000_000


class FifoQueue(Queue):
    """Serves a consumer group of a fifo address; unlike :class:`Queue`, it uses no windows, and never holds a whole
    group.
    """

    __slots__ = (
        "_expiry_at", "_leaving", "_octets", "_tickets", "_yielding", "asking", "claims", "free", "groups", "lanes",
        "reading", "ready", "resting", "strange",
    )  # fmt: skip

    entry_kind = GroupedEntry

    def __init__(
        self,
        instance: Instance,
        home: Queues,
        group_id: int,
        address_id: int,
        name: str,
        policies: Policies,
    ) -> None:
        super().__init__(instance, home, group_id, address_id, name, policies)
        #: the message groups of this instance, by key
        self.groups: dict[int, MessageGroup] = {}
        self.free = Lane(None)
        #: lanes by the key of their consumer
        self.lanes: dict[int, Lane] = {}
        #: claimed groups without entries to deliver; the longest idle first
        self.resting: dict[int, MessageGroup] = {}
        self.claims = Claims(self)
        self.reading = Reading(self)
        #: whether a query is under way: one at a time
        self.asking = False
        #: the number of ready entries, and their octets
        self.ready = self._octets = 0
        self._tickets = 0
        #: groups by the ids of their entries on their way to the store
        self._yielding: dict[int, MessageGroup] = {}
        #: how many entries of a lost load are on their way to the store
        self.strange = 0
        #: groups that all have refused, which are released as soon as the store has their entries
        self._leaving: dict[int, MessageGroup] = {}
        #: when to check for expired entries that block their groups, in microseconds since 2000; 0: there are none
        self._expiry_at = 0

    # -- entries arriving

    @property
    def window_octets(self) -> int:
        return self._octets

    def reserve(self, size: int, priority: int) -> bool:
        return False

    def posted(self, entry_id: int, terms: DeliveryTerms) -> None:
        self.entry_stored(key_of(terms, entry_id), entry_id)

    def entry_stored(self, key: int, entry_id: int) -> None:
        """Note that the store has this entry of the group, to be delivered now."""
        if (group := self.groups.get(key)) is not None:
            group.read_from(entry_id)
        self.news(key)

    def news(self, key: int) -> None:
        """Note that the store has new entries of the group."""
        group = self.groups.get(key)
        if group is not None:
            group.more = True
            self.place(group)
        elif not self.consumers:
            self.claims.more = True
        elif len(news := self.claims.news) < _MOST_NEWS:
            news[key] = None
        else:
            self.claims.search_anywhere()
        for browser in self.browsers:
            browser.arrived()
        self.touch()

    def in_store(self, lowest: int | None = None, priority: int | None = None) -> None:
        self.claims.search_anywhere()
        for group in list(self.groups.values()):
            group.more = True
            if lowest is not None:
                group.read_from(lowest)
            self.place(group)
        for browser in self.browsers:
            browser.arrived()
        self.touch()

    def arrived_before(self, lowest: int) -> None:
        for group in self.groups.values():
            group.came_back(lowest)
        self.in_store(lowest)

    def has_passed(self, entry_id: int) -> bool:
        return True  # the message groups concerned are not known

    def touch(self) -> None:
        if not self.dirty and (self.consumers or self.groups or self.browsers):
            self.dirty = True
            self.home.dirty.append(self)

    def place(self, group: MessageGroup) -> None:
        """Put the group to its place: ready or hungry in its lane, resting, or forgotten."""
        if self.groups.get(group.key) is not group:
            return  # released while an entry of it was on its way
        lane = group.lane
        lane.hungry.pop(group.key, None)
        self.resting.pop(group.key, None)
        waits = group.coming or group.loading
        hungry = group.more and (not group.ready or (group.bound is not None and group.ready[0].id > group.bound))
        if waits or hungry or not group.ready:
            group.ticket = 0
        if waits or group.aside:
            return
        if hungry:
            lane.hungry[group.key] = group
        elif group.ready:
            if not group.ticket:
                self._tickets += 1
                group.ticket = self._tickets
                heappush(lane.ready, (group.ready[0].id, group.ticket, group))
        elif not group.out:
            if group.key < 0:
                self.resting[group.key] = group
            else:
                self.groups.pop(group.key, None)

    def _move(self, group: MessageGroup, lane: Lane) -> None:
        group.lane.hungry.pop(group.key, None)
        group.ticket = 0
        group.lane = lane

    # -- entries coming back

    def expect_return(self, entry: Entry) -> None:
        super().expect_return(entry)
        assert isinstance(entry, GroupedEntry)
        entry.coming = True
        entry.group.coming += 1
        self.place(entry.group)

    def _decided(self, entry: Entry) -> MessageGroup:
        """Note that no consumer has the entry any more; return its group."""
        assert isinstance(entry, GroupedEntry)
        group = entry.group
        if entry.coming:
            entry.coming = False
            group.coming -= 1
        if entry.out:
            entry.out = False
            group.out -= 1
            if not group.out:
                self._move(group, self.free)
        return group

    def give_back(self, entry: Entry, *, leased: bool = True) -> None:
        self._unsent(entry)
        entry.acquired = entry.acquired or entry.outcome is not UNTRANSFERRED
        entry.link = entry.delivery = entry.txn = entry.last_txn = entry.outcome = None
        entry.peer_settled = False
        group = self._decided(entry)
        if leased and self.can_keep(entry) and not group.waits_before(entry):
            assert isinstance(entry, GroupedEntry)
            entry.met(BACK)
            self.keep(entry)
        else:
            self.forget(entry)
            if leased:
                self._to_store([entry])
            else:
                group.came_back(entry.id)
        self.place(group)
        self.touch()

    def done_with(self, entry: Entry) -> None:
        group = self._decided(entry)
        super().done_with(entry)
        if entry.outcome is not None and entry.outcome.retry_at:
            group.suspend(entry.id)
            group.came_back(entry.id)
            self.hold_back(group)  # while it waits, no later entry of the group is in memory
        self.place(group)
        self.touch()

    def keep(self, entry: GroupedEntry) -> None:
        heappush(entry.group.ready, entry)
        self.ready += 1
        self._octets += entry.size
        if entry.refused_by:
            self._check_at_expiry(entry)

    def _next(self, group: MessageGroup) -> GroupedEntry:
        entry = heappop(group.ready)
        self.ready -= 1
        self._octets -= entry.size
        return entry

    def _to_store(self, entries: Sequence[Entry]) -> None:
        """Yield leased entries that no consumer has; their groups wait until the store has them."""
        for entry in entries:
            assert isinstance(entry, GroupedEntry)
            self._yielding[entry.id] = entry.group
            entry.group.coming += 1
        self.yield_ids([entry.id for entry in entries], list(map(stored_attempts, entries)))

    def empty(self, groups: Sequence[MessageGroup]) -> None:
        """Yield the ready entries of the groups to the store."""
        entries = [self._next(group) for group in groups for _ in range(len(group.ready))]
        for entry in entries:
            self.forget(entry)
        self._to_store(entries)
        for group in groups:
            self.place(group)

    def hold_back(self, group: MessageGroup) -> None:
        """Yield entries to the store that follow one that waits there."""
        if group.suspended is None and not group.held:
            return
        entries = [self._next(group) for _ in range(len(group.ready))]
        behind = [entry for entry in entries if group.waits_before(entry)]
        for entry in entries[: len(entries) - len(behind)]:
            self.keep(entry)
        for entry in behind:
            self.forget(entry)
        self._to_store(behind)

    def yield_ids(self, ids: Sequence[int], attempts: Sequence[int] = ()) -> None:
        self.strange += sum(each not in self._yielding for each in ids)
        super().yield_ids(ids, attempts)

    def wake(self, batch: Batch, ids: Sequence[int]) -> None:
        """Notify the other instances of entries of unclaimed groups; claimed groups follow when they are released."""
        for each in ids:
            held = self.held.get(each)
            group = held.group if isinstance(held, GroupedEntry) else self._yielding.get(each)
            if group is None:
                batch.notify(self.group_id, each)
            elif group.key > 0:
                batch.wake_keys.add((self.group_id, group.key))

    def yielded(self, ids: Sequence[int]) -> None:
        self.returning -= 1
        for each in ids:
            group = self._yielding.pop(each, None)
            if group is None:
                self.strange -= 1
            else:
                group.coming -= 1
                group.came_back(each)
                self.place(group)
        self.reading.yielded()
        self._give_up()
        for browser in self.browsers:
            browser.arrived()
        self.touch()

    # -- consumers

    def add(self, consumer: Consumer) -> None:
        self.consumers[consumer] = None
        self.takers.changed(consumer)
        self.lanes[consumer.key] = Lane(consumer)
        self.claims.search_anywhere()
        self.touch()

    def remove(self, consumer: Consumer) -> None:
        if self.lanes.pop(consumer.key, None) is not None:
            del self.consumers[consumer]
            self.takers.remove(consumer)
        if not self.consumers:
            self.refused.forget_all()
        self.touch()

    def _yield_all(self) -> None:
        """Yield all entries to the store, and release all groups without deliveries, as no consumer here takes any."""
        self.empty(list(self.groups.values()))
        self.claims.release(list(self.groups.values()))

    # -- entries going out

    def pump(self) -> None:
        self.dirty = False
        if self.policies.paused:
            self._yield_all()
        if self.consumers:
            active = self._hand_out()
            if active:
                if self.refused.wanted:
                    self._take_back_refused()
                self.reading.query()
            if not self.asking and not self.returning:
                for consumer in self.takers.draining():
                    lane = self.lanes[consumer.key]
                    group = first_for(consumer, lane, self.free, now_micros()) if consumer.shut else None
                    if group is not None:
                        self.place(group)
                    else:
                        consumer.drained()
                        self.takers.drained(consumer)
        else:
            self._yield_all()
        if len(self.resting) > _MOST_IDLE:
            self.claims.release(list(islice(self.resting.values(), MOST_GROUPS)))
        if self.instance.peers and self.groups:
            self._offer_surplus()
            if self.ready or self.refused.aside:
                self.refused.offer_soon()
        for browser in self.browsers:
            browser.advance()

    def _hand_out(self) -> bool:
        """Send ready entries to consumers with room, one by one in turns; whether any consumer had room."""
        takers: deque[tuple[Lane, Consumer, int]] = deque()
        for each in self.takers:
            room = each.room
            self.takers.keep(each, room)
            if room > 0:
                takers.append((self.lanes[each.key], each, room))
        if takers:
            turn_of(self.takers.rooms)
        active = bool(takers) or self.takers.drain_waits
        now = now_micros()
        while takers:
            lane, consumer, room = takers.popleft()
            group = first_for(consumer, lane, self.free, now)
            if group is None:
                continue
            entry = self._next(group)
            if entry.expires and entry.expires <= now:
                self.expire(entry)
                takers.appendleft((lane, consumer, room))
            else:
                if group.lane is not lane:
                    self._move(group, lane)
                group.out += 1
                entry.out = True
                self.takers.keep(consumer, room - 1)
                if self.hand(consumer, entry) and room > 1:
                    takers.append((lane, consumer, room - 1))
            self.place(group)
        return active

    def give_surplus(self) -> None:
        """Yield entries for which no consumer here has room, and release claims that are of no use here."""
        self.surplus_due = False
        if not self.instance.peers:
            return
        free = [group for group in self.groups.values() if group.lane is self.free]
        if self.wanted():
            self.claims.release([group for group in free if group.key in self.resting])
        else:
            self.empty(free)
            self.claims.release(free)
        self.touch()

    # -- groups whose first entry all consumers with room have refused (:mod:`coordinator.group.refused`)

    def refused_by(self, keys: set[int]) -> list[Entry]:
        aside: list[Entry] = []
        here: list[Entry] = []
        for group in self.groups.values():
            if group.coming:
                continue
            if group.aside is not None:
                aside.append(group.aside)
            elif group.lane is self.free and group.ready and not group.loading:
                here.append(group.ready[0])
        return [entry for entry in (*aside, *here) if keys.issubset(entry.refused_by)]

    def set_refused_aside(self) -> None:
        """Set aside refused groups to make room: their entries are yielded, and the groups stay claimed."""
        keys = {consumer.key for consumer in self.takers}
        refused = self.refused_by(keys) if keys else []
        firsts = [entry for entry in refused if entry.id not in self.refused.aside][: self.refused.room]
        groups = self._groups_of(firsts)
        for group in groups:
            group.aside = group.ready[0]
        self.empty(groups)
        self.refused.add(firsts)

    def take_from_aside(self, group: MessageGroup) -> None:
        if group.aside is not None:
            self.refused.aside.pop(group.aside.id, None)
            group.aside = None

    def offer(self, entries: Sequence[Entry]) -> None:
        """Yield the entries' groups to the store, and release them, for other instances."""
        groups = self._groups_of(entries)
        for group in groups:
            group.aside = None
        self._leaving.update((group.key, group) for group in groups)
        self.claims.away.update(self._leaving)
        self.empty(groups)
        self._give_up()

    def _give_up(self) -> None:
        """Release the offered groups whose entries are all in the store."""
        gone = [group for group in self._leaving.values() if not group.coming]
        if gone:
            for group in gone:
                del self._leaving[group.key]
            self.claims.release(gone, again=False)
            if not self._leaving:
                self.refused.offered()

    def load_offered(self, lowest: int) -> None:
        self.claims.away.clear()
        self.claims.search_anywhere()
        self.touch()

    def _take_back_refused(self) -> None:
        """Read some refused groups again, and scan for offered ones, as a consumer with room may take some."""
        self.refused.load_offered()
        if self.refused.aside and not self.free.hungry:
            keys = {consumer.key for consumer in self.takers}
            some = (entry for entry in self.refused.aside.values() if not keys.issubset(entry.refused_by))
            groups = self._groups_of(list(islice(some, _FEW)))
            if not groups:
                self.refused.keys |= keys
            for group in groups:
                self.take_from_aside(group)
                self.place(group)

    @staticmethod
    def _groups_of(entries: Sequence[Entry]) -> list[MessageGroup]:
        return [entry.group for entry in entries if isinstance(entry, GroupedEntry)]

    def _check_at_expiry(self, first: GroupedEntry) -> None:
        """Check the group when this entry expires (P12): it may be the first of its group, and some have refused it."""
        if first.expires and not 0 < self._expiry_at <= first.expires:
            now = now_micros()
            self._expiry_at = min(first.expires, now + _LONGEST_MICROS)
            self.instance.loop.call_later(max(0, self._expiry_at - now) / 1e6, self._check_expired)

    def _check_expired(self) -> None:
        now = now_micros()
        if not 0 < self._expiry_at <= now:
            return
        self._expiry_at = 0
        for group in self.groups.values():
            first = group.aside or (group.ready[0] if group.ready else None)
            if first is None or not first.refused_by:
                continue
            if first.expires > now:
                self._check_at_expiry(first)
            elif first.expires and group.aside:
                self.take_from_aside(group)
                self.place(group)
        self.touch()
