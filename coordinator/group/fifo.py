"""A consumer group of a fifo address: message groups that keep their order, each with one consumer at a time (rules
P18, D3; part 3, section 3.2.4).

**Decision.** A window that is read by ranges of ids (:mod:`coordinator.group.windows`) would be full of one group
whose consumer waits, and hold up all that lies behind. So entries are found by their group: an index has them by
(group, id), a *scan* steps from one group to the next over however many entries, and each group is read on by itself, a
few entries at a time. Nothing here walks through a backlog.

* A group belongs to the instance that has *claimed* it (table ``message_group``), before it reads anything of it. Its
  entries are leased one by one besides, so that a crash, expiry and retirement work as on any queue.
* In memory a group is in a *lane*: that of the consumer that has deliveries of it, or the free one. A consumer is
  given what is first in its own lane and the free one, in order of commit; the first delivery takes the group to its
  lane, and when the last is settled (or its transaction decided) it is free again.
* While an entry of a group is on its way back, nothing newer of the group is sent. What does not fit into memory
  returns to the store; then the group is read again from its first entry on.
* A failed delivery that waits for its time (D2) keeps its id, and stays in the store; so does what comes behind it in
  its group, which no instance reads or claims before. It has no timer: the schedule makes it due
  (:mod:`coordinator.group.schedule`), and tells the instances. What a consumer has of the group already stays with it.
* Nothing posted is born leased: the order of the store is the order of delivery, whichever instance took the post.
* A message without group-id is a group of its own, with a key above 0; its lease is all the claim it needs.

Memory is bounded by the window of the queue: when it is full, entries of groups whose consumer has no room are yielded
to the store, in favour of groups that consumers have room for; and so are those of groups whose first message all with
room have refused (:mod:`coordinator.group.refused_groups`).
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING

from coordinator.group.claims import MOST_GROUPS, Claims
from coordinator.group.entries import now_micros
from coordinator.group.message_groups import GroupedEntry, Lane, MessageGroup, first_for
from coordinator.group.queues import Queue
from coordinator.group.reading import Reading
from coordinator.group.units import stored_attempts
from coordinator.outcomes import UNTRANSFERRED
from coordinator.transitions import BACK
from store.commit.terms import key_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.group.entries import Consumer, Entry
    from coordinator.group.policies import Policies
    from coordinator.group.queues import Home
    from coordinator.instance import Instance
    from store.commit.batch import Batch
    from store.commit.terms import Terms

#: groups whose claim is kept while nothing of them is there
_MOST_IDLE = 1000
#: keys of groups with something new that are remembered one by one
_MOST_NEWS = 2000


class FifoQueue(Queue):
    """As :class:`Queue`; the windows are not used, nor is the group ever held whole."""

    __slots__ = (
        "_octets", "_tickets", "_yielding", "asking", "claims", "free", "groups", "lanes", "reading", "ready",
        "resting", "strange",
    )  # fmt: skip

    entry_kind = GroupedEntry

    def __init__(
        self,
        instance: Instance,
        home: Home,
        group_id: int,
        address_id: int,
        name: str,
        policies: Policies,
    ) -> None:
        super().__init__(instance, home, group_id, address_id, name, policies)
        #: by key, those that are this instance's
        self.groups: dict[int, MessageGroup] = {}
        self.free = Lane(None)
        #: by the key of their consumer
        self.lanes: dict[int, Lane] = {}
        #: claimed, with nothing to deliver; the longest idle first
        self.resting: dict[int, MessageGroup] = {}
        self.claims = Claims(self)
        self.reading = Reading(self)
        #: a question is under way: one at a time
        self.asking = False
        #: entries that are ready, and their octets
        self.ready = self._octets = 0
        self._tickets = 0
        #: on their way to the store
        self._yielding: dict[int, MessageGroup] = {}
        #: how many entries are on their way to the store that were leased for a load whose answer was lost
        self.strange = 0

    # -- entries arriving

    @property
    def window_octets(self) -> int:
        return self._octets

    def reserve(self, size: int, priority: int) -> bool:
        return False

    def posted(self, entry_id: int, terms: Terms) -> None:
        self.came(key_of(terms, entry_id), entry_id)

    def came(self, key: int, entry_id: int) -> None:
        """The store has this entry of the group, to be delivered now."""
        if (group := self.groups.get(key)) is not None:
            group.look_from(entry_id)
        self.news(key)

    def news(self, key: int) -> None:
        """The store has something new of the group."""
        group = self.groups.get(key)
        if group is not None:
            group.more = True
            self.place(group)
        elif not self.consumers:
            self.claims.more = True
        elif len(news := self.claims.news) < _MOST_NEWS:
            news[key] = None
        else:
            self.claims.look_anywhere()
        for browser in self.browsers:
            browser.came()
        self.touch()

    def in_store(self, lowest: int | None = None, priority: int | None = None) -> None:
        self.claims.look_anywhere()
        for group in list(self.groups.values()):
            group.more = True
            if lowest is not None:
                group.look_from(lowest)
            self.place(group)
        for browser in self.browsers:
            browser.came()
        self.touch()

    def came_before(self, lowest: int) -> None:
        for group in self.groups.values():
            group.came_back(lowest)
        self.in_store(lowest)

    def has_passed(self, entry_id: int) -> bool:
        return True  # which message groups may be concerned is not known

    def touch(self) -> None:
        if not self.dirty and (self.consumers or self.groups or self.browsers):
            self.dirty = True
            self.home.dirty.append(self)

    def place(self, group: MessageGroup) -> None:
        """Put the group where it belongs now: ready or hungry in its lane, resting, or forgotten."""
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

    def comes_back(self, entry: Entry) -> None:
        super().comes_back(entry)
        assert isinstance(entry, GroupedEntry)
        entry.coming = True
        entry.group.coming += 1
        self.place(entry.group)

    def _decided(self, entry: Entry) -> MessageGroup:
        """No consumer has it any more."""
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
            self.hold_back(group)  # while it waits, nothing of the group is in memory
        self.place(group)
        self.touch()

    def keep(self, entry: GroupedEntry) -> None:
        heappush(entry.group.ready, entry)
        self.ready += 1
        self._octets += entry.size
        if entry.refused_by:
            self.claims.refused.held_up(entry)

    def _next(self, group: MessageGroup) -> GroupedEntry:
        entry = heappop(group.ready)
        self.ready -= 1
        self._octets -= entry.size
        return entry

    def _to_store(self, entries: Sequence[Entry]) -> None:
        """Yield entries that are leased and with no consumer; their groups wait until the store has them."""
        for entry in entries:
            assert isinstance(entry, GroupedEntry)
            self._yielding[entry.id] = entry.group
            entry.group.coming += 1
        self.yield_ids([entry.id for entry in entries], list(map(stored_attempts, entries)))

    def empty(self, groups: Sequence[MessageGroup]) -> None:
        """Yield to the store what they have ready."""
        entries = [self._next(group) for group in groups for _ in range(len(group.ready))]
        for entry in entries:
            self.forget(entry)
        self._to_store(entries)
        for group in groups:
            self.place(group)

    def hold_back(self, group: MessageGroup) -> None:
        """Yield to the store what comes behind an entry that waits there."""
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
        """Notifies the other instances of entries of groups without a claim; of a claimed group when it is released."""
        for each in ids:
            held = self.held.get(each)
            group = held.group if isinstance(held, GroupedEntry) else self._yielding.get(each)
            if group is None:
                batch.tell(self.group_id, each)
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
        self.claims.refused.yielded()
        for browser in self.browsers:
            browser.came()
        self.touch()

    # -- consumers

    def add(self, consumer: Consumer) -> None:
        self.consumers[consumer] = None
        self.takers.changed(consumer)
        self.lanes[consumer.key] = Lane(consumer)
        self.claims.look_anywhere()
        self.touch()

    def remove(self, consumer: Consumer) -> None:
        if self.lanes.pop(consumer.key, None) is not None:
            del self.consumers[consumer]
            self.takers.remove(consumer)
        if not self.consumers:
            self.refused.clear()
        self.touch()

    def _let_go(self) -> None:
        """No consumer here takes anything: yield all to the store, for other instances."""
        self.empty(list(self.groups.values()))
        self.claims.release(list(self.groups.values()))

    # -- entries going out

    def pump(self) -> None:
        self.dirty = False
        if self.consumers:
            active = self._hand_out()
            if active:
                self.claims.refused.taken_back()
                self.reading.ask()
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
            self._let_go()
        if len(self.resting) > _MOST_IDLE:
            self.claims.release(list(islice(self.resting.values(), MOST_GROUPS)))
        if self.instance.peers and self.groups:
            self.surplus.look()
        for browser in self.browsers:
            browser.advance()

    def _hand_out(self) -> bool:
        """Send what is ready to consumers with room, one by one in turns; whether any consumer had room."""
        takers: deque[tuple[Lane, Consumer, int]] = deque()
        for each in self.takers:
            room = each.room
            self.takers.keep(each, room)
            if room > 0:
                takers.append((self.lanes[each.key], each, room))
        if takers:
            self.takers.next()
        active = bool(takers) or self.takers.asked
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
        """Yield to the store what no consumer here has had room for, and release claims that are of no use here."""
        if not self.instance.peers:
            return
        free = [group for group in self.groups.values() if group.lane is self.free]
        if self.wanted():
            self.claims.release([group for group in free if group.key in self.resting])
            self.claims.refused.offer()
        else:
            self.empty(free)
            self.claims.release(free)
        self.touch()
