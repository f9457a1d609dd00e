"""A consumer group of a fifo address: message groups that keep their order, each with one consumer at a time (rules
P18, D3; part 3, section 3.2.4).

**Decision.** A window that is read by ranges of ids (:mod:`coordinator.group.windows`) would be full of one group
whose consumer waits, and hold up all that lies behind. So entries are found by their group: an index has them by
(group, id), a *scan* steps from one group to the next over however many entries, and each group is read on by itself, a
few entries at a time. Nothing here goes over a backlog.

* A group belongs to the instance that has *claimed* it (table ``message_group``), before it reads anything of it. Its
  entries are leased one by one besides, so that a crash, expiry and retirement work as on any queue.
* In memory a group is in a *lane*: that of the consumer that has deliveries of it, or the free one. A consumer is
  given what is first in its own lane and the free one, in order of commit; the first delivery takes the group to its
  lane, and when the last is settled (or its transaction decided) it is free again.
* While anything of a group is on its way back, nothing newer of it goes out. What could not be kept in memory went to
  the store; then the group is read again from its first entry on before it goes on.
* Nothing posted is born leased: what is in the store first goes first, whichever instance it was posted at.
* A message without group-id is a group of its own, with a key above 0; its lease is all the claim it needs.

Memory is bounded by the window of the queue: entries of groups whose consumer has no room go back to the store where
others want theirs.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from hashlib import blake2b
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING

from coordinator.group import loading
from coordinator.group.entries import Entry, now_micros
from coordinator.group.queues import SURPLUS_SECONDS, Queue
from coordinator.transitions import BACK
from store.commit.terms import key_of
from store.errors import StoreError
from store.questions import message_groups as questions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from coordinator.group.entries import Consumer
    from coordinator.group.policies import Policies
    from coordinator.group.queues import Home
    from coordinator.instance import Instance
    from store.commit.batch import Batch
    from store.commit.terms import Terms

#: entries of one group that are read at once
_MOST_OF_GROUP = 50
#: groups that are read, or claimed, at once
_MOST_GROUPS = 500
#: groups that one scan looks at
_MOST_SCANNED = 2000
#: groups that are read ahead of the consumers, where no other instance wants them
_FEW = 100
#: groups whose claim is kept while nothing of them is there
_MOST_IDLE = 1000
#: keys of groups with something new that are remembered one by one
_MOST_NEWS = 2000
_LOWEST = -(1 << 63)


def message_group(group_id: str) -> int:
    """The number of a group, below 0. Two that have the same are one group, which does no harm."""
    return int.from_bytes(blake2b(group_id.encode(errors="surrogatepass"), digest_size=8).digest()) // 2 + _LOWEST


class GroupedEntry(Entry):
    """``out``: in a consumer's hands, or enlisted; ``coming``: its outcome may bring it back."""

    __slots__ = ("coming", "group", "out")

    group: MessageGroup
    coming: bool
    out: bool


class Lane:
    """The message groups of one consumer, or those that are free (no consumer)."""

    __slots__ = ("consumer", "hungry", "ready")

    def __init__(self, consumer: Consumer | None) -> None:
        self.consumer = consumer
        #: a heap of groups by what they have first; those whose ticket is another are no longer here
        self.ready: list[tuple[int, int, MessageGroup]] = []
        #: groups that must be read on, in the order in which they came
        self.hungry: dict[int, MessageGroup] = {}


class MessageGroup:
    __slots__ = ("bound", "coming", "key", "lane", "loading", "more", "out", "ready", "ticket")

    def __init__(self, key: int, lane: Lane) -> None:
        self.key = key
        self.lane = lane
        #: a heap: leased to this instance, and not with a consumer
        self.ready: list[GroupedEntry] = []
        #: deliveries not settled, or enlisted in a transaction that is undecided
        self.out = 0
        #: entries whose outcome, or whose way back to the store, is not durable yet
        self.coming = 0
        self.loading = False
        #: the store may have more of it
        self.more = True
        #: the store may have older ones than those beyond this id, which must wait; None: it has none
        self.bound: int | None = None
        #: of its place among the ready ones of its lane; 0: it has none
        self.ticket = 0


class FifoQueue(Queue):
    """As :class:`Queue`; the windows are not used, nor is the group ever held whole."""

    __slots__ = (
        "_asking",
        "_count",
        "_cursor",
        "_doubt",
        "_free",
        "_groups",
        "_idle",
        "_lanes",
        "_more",
        "_news",
        "_octets",
        "_scan_version",
        "_strange",
        "_tickets",
        "_turn",
        "_version",
        "_yielding",
    )

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
        self._groups: dict[int, MessageGroup] = {}
        self._free = Lane(None)
        self._lanes: dict[int, Lane] = {}
        #: claimed, with nothing to deliver; the longest idle first
        self._idle: dict[int, MessageGroup] = {}
        #: keys of groups not claimed here that have something new
        self._news: dict[int, None] = {}
        #: the store may have groups that are not known, from the cursor on or, by later news, anywhere
        self._more = True
        self._version = self._scan_version = 0
        self._cursor = _LOWEST
        #: of entries that are ready
        self._count = self._octets = 0
        self._tickets = 0
        #: a question is under way
        self._asking = False
        #: whether groups already known are read on before others are looked for
        self._turn = False
        #: on their way to the store
        self._yielding: dict[int, MessageGroup] = {}
        #: groups that were being read when the answer was lost, and entries that were leased for them and go back
        self._doubt: list[MessageGroup] = []
        self._strange = 0

    # -- entries arriving

    @property
    def window_octets(self) -> int:
        return self._octets

    def reserve(self, size: int, priority: int) -> bool:
        return False

    def posted(self, entry_id: int, terms: Terms) -> None:
        self.news(key_of(terms, entry_id))

    def news(self, key: int) -> None:
        """The store has something new of the group."""
        group = self._groups.get(key)
        if group is not None:
            group.more = True
            self._place(group)
        elif not self.consumers:
            self._more = True
        elif len(self._news) < _MOST_NEWS:
            self._news[key] = None
        else:
            self._more = True
            self._version += 1
        for browser in self.browsers:
            browser.came()
        self.touch()

    def in_store(self, lowest: int | None = None, priority: int | None = None) -> None:
        self._more = True
        self._version += 1
        for group in list(self._groups.values()):
            group.more = True
            self._place(group)
        for browser in self.browsers:
            browser.came()
        self.touch()

    def touch(self) -> None:
        if not self.dirty and (self.consumers or self._groups or self.browsers):
            self.dirty = True
            self.home.dirty.append(self)

    def _place(self, group: MessageGroup) -> None:
        """Where it belongs, now that something has changed."""
        if self._groups.get(group.key) is not group:
            return  # given up: what it waited for was on its way out
        lane = group.lane
        lane.hungry.pop(group.key, None)
        self._idle.pop(group.key, None)
        waits = group.coming or group.loading
        hungry = group.more and (not group.ready or (group.bound is not None and group.ready[0].id > group.bound))
        if waits or hungry or not group.ready:
            group.ticket = 0
        if waits:
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
                self._idle[group.key] = group
            else:
                self._groups.pop(group.key, None)

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
        self._place(entry.group)

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
                self._move(group, self._free)
        return group

    def give_back(self, entry: Entry, *, leased: bool = True) -> None:
        self._unsent(entry)
        entry.link = entry.delivery = entry.txn = entry.last_txn = entry.outcome = None
        entry.peer_settled = False
        entry.acquired = True
        group = self._decided(entry)
        if leased and self.can_keep(entry):
            assert isinstance(entry, GroupedEntry)
            entry.met(BACK)
            self._keep(entry)
        else:
            self._forget(entry)
            if leased:
                self._to_store([entry])
            else:
                group.more, group.bound = True, 0
        self._place(group)
        self.touch()

    def done_with(self, entry: Entry) -> None:
        group = self._decided(entry)
        super().done_with(entry)
        self._place(group)
        self.touch()

    def _keep(self, entry: GroupedEntry) -> None:
        heappush(entry.group.ready, entry)
        self._count += 1
        self._octets += entry.size

    def _next(self, group: MessageGroup) -> GroupedEntry:
        entry = heappop(group.ready)
        self._count -= 1
        self._octets -= entry.size
        return entry

    def _to_store(self, entries: Sequence[Entry]) -> None:
        """Entries that are leased to us and with no consumer; their groups wait until the store has them."""
        for entry in entries:
            assert isinstance(entry, GroupedEntry)
            self._yielding[entry.id] = entry.group
            entry.group.coming += 1
        for acquired in (True, False):
            self.yield_ids([entry.id for entry in entries if entry.acquired is acquired], acquired=acquired)

    def _empty(self, groups: Sequence[MessageGroup]) -> None:
        """What they have ready goes to the store."""
        entries = [self._next(group) for group in groups for _ in range(len(group.ready))]
        for entry in entries:
            self._forget(entry)
        self._to_store(entries)
        for group in groups:
            self._place(group)

    def yield_ids(self, ids: Sequence[int], *, acquired: bool = False) -> None:
        self._strange += sum(each not in self._yielding for each in ids)
        super().yield_ids(ids, acquired=acquired)

    def wake(self, batch: Batch, ids: Sequence[int]) -> None:
        """Of what is claimed others hear when it is no longer."""
        for each in ids:
            held = self.held.get(each)
            group = held.group if isinstance(held, GroupedEntry) else self._yielding.get(each)
            if group is None:
                batch.wake.add(self.group_id)
            elif group.key > 0:
                batch.wake_keys.add((self.group_id, group.key))

    def yielded(self, ids: Sequence[int]) -> None:
        self.returning -= 1
        for each in ids:
            group = self._yielding.pop(each, None)
            if group is None:
                self._strange -= 1
            else:
                group.coming -= 1
                group.more, group.bound = True, 0
                self._place(group)
        if self._doubt and not self._strange:
            self._resolve()
        for browser in self.browsers:
            browser.came()
        self.touch()

    # -- consumers

    def add(self, consumer: Consumer) -> None:
        self.consumers[consumer] = None
        self.takers.changed(consumer)
        self._lanes[consumer.key] = Lane(consumer)
        self._more = True
        self._version += 1
        self.touch()

    def remove(self, consumer: Consumer) -> None:
        if self._lanes.pop(consumer.key, None) is not None:
            del self.consumers[consumer]
            self.takers.remove(consumer)
        if not self.consumers:
            self.refused.clear()
        self.touch()

    def _let_go(self) -> None:
        """Nobody here takes anything: others may."""
        self._empty(list(self._groups.values()))
        self._release(list(self._groups.values()))

    # -- entries going out

    def pump(self) -> None:
        self.dirty = False
        if self.consumers:
            active = self._hand_out()
            if active:
                self._ask()
            if not self._asking and not self.returning:
                for consumer in self.takers.draining():
                    if consumer.room > 0:
                        consumer.drained()
                        self.takers.drained(consumer)
        else:
            self._let_go()
        if len(self._idle) > _MOST_IDLE:
            self._release(list(islice(self._idle.values(), _MOST_GROUPS)))
        if self.instance.peers and not self._surplus and self._groups:
            self._surplus = True
            self.instance.loop.call_later(SURPLUS_SECONDS, self._give_surplus)
        for browser in self.browsers:
            browser.advance()

    def _hand_out(self) -> bool:
        """Give what is ready to who wants it, one by one in turns; whether anybody had room."""
        takers: deque[tuple[Lane, Consumer, int]] = deque()
        for each in self.takers:
            room = each.room
            self.takers.keep(each, room)
            if room > 0:
                takers.append((self._lanes[each.key], each, room))
        active = bool(takers)
        if active:
            self.takers.next()
        now = now_micros()
        while takers:
            lane, consumer, room = takers.popleft()
            group = self._first(lane, consumer)
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
            self._place(group)
        return active

    def _first(self, lane: Lane, consumer: Consumer) -> MessageGroup | None:
        """Of the groups that the consumer may have, the one whose next entry is the oldest; it has no place then."""
        aside: list[tuple[int, int, MessageGroup]] = []
        found = None
        while found is None:
            own, free = _valid(lane.ready), _valid(self._free.ready)
            if not own and not free:
                break
            heap = own if own and (not free or own[0] < free[0]) else free
            place = heappop(heap)
            group = place[2]
            if consumer.key not in group.ready[0].refused_by:
                group.ticket = 0
                found = group
            elif heap is own:
                group.ticket = 0  # until nothing of it is in the consumer's hands
            else:
                aside.append(place)
        for place in aside:
            heappush(self._free.ready, place)
        return found

    def _give_surplus(self) -> None:
        """What nobody here has had room for goes to the store, and so do claims that are of no use."""
        self._surplus = False
        if not self.instance.peers:
            return
        free = [group for group in self._groups.values() if group.lane is self._free]
        if self.wanted():
            self._release([group for group in free if group.key in self._idle])
        else:
            self._empty(free)
            self._release(free)
        self.touch()

    # -- loading

    def _ask(self) -> None:
        """One question at a time: groups that are known are read on, others are looked for, in turns."""
        if self._asking:
            return
        wanted = self.wanted()
        ahead = wanted if self.instance.peers else max(2 * wanted, _FEW)
        known = len(self._free.hungry)
        if not wanted:  # else what is ready nobody with room may have
            known += sum(group.ticket == ticket for _, ticket, group in self._free.ready)
        most = min(ahead - known, self.instance.limits.window_messages - self._count, _MOST_GROUPS)
        for _ in range(2):
            self._turn = not self._turn
            asked = self._load(wanted, ahead) if self._turn else most > 0 and (self._claim(most) or self._scan(most))
            if asked:
                return

    def _load(self, wanted: int, ahead: int) -> bool:
        """Read on; whether there was anything to read."""
        if not wanted:
            return False
        limits = self.instance.limits
        window = limits.window_messages
        if window - self._count < min(wanted, _FEW, window // 4) or self._octets >= self.instance.memory.window_bytes:
            self._make_room()
        most = min(window - self._count, ahead)
        octets = self.instance.memory.window_bytes - self._octets
        if self.instance.memory.windows_full:  # one message
            octets = min(octets, 1)
        full = most <= 0 or octets <= 0
        if full:  # perhaps of what waits for older ones
            most, octets = _MOST_OF_GROUP, 1
        groups: list[MessageGroup] = []
        for lane in self._lanes.values():
            if lane.hungry and lane.consumer is not None and (room := lane.consumer.room) > 0:
                groups += islice(lane.hungry.values(), min(room, 1 + most // (2 * len(self._lanes))))
        groups += islice(self._free.hungry.values(), max(1, most - len(groups)))
        groups = [group for group in groups if group.ready][:1] if full else groups[:_MOST_GROUPS]
        if not groups:
            return False
        each = min(_MOST_OF_GROUP, max(1, most // len(groups)))
        for group in groups:
            group.loading = True
            group.more, group.bound = False, None
            self._place(group)
        self._asking = True
        keys = [group.key for group in groups]
        asked, loaded = self.instance.queries, partial(self._loaded, groups, each)
        questions.lease(asked, self.group_id, keys, each, octets, self.lease, loaded)
        return True

    def _loaded(self, groups: list[MessageGroup], each: int, answer: questions.Leased | StoreError) -> None:
        if isinstance(answer, StoreError):  # some may be leased, and nobody knows of them
            self._doubt = groups
            self._later(lambda: loading.reclaim(self, self))
            return
        self._asking = False
        of = {group.key: group for group in groups}
        came = dict.fromkeys(of, 0)
        last = dict.fromkeys(of, 0)
        for row in answer.rows:
            group = of[row[9]]
            entry = loading.entry_of(self, row[:9])
            assert isinstance(entry, GroupedEntry)
            entry.group, entry.out, entry.coming = group, False, False
            entry.refused_by = self.refused.pop(entry.id, ())
            self.held[entry.id] = entry
            self._keep(entry)
            came[group.key] += 1
            last[group.key] = entry.id
        for key, found in answer.found.items():
            if found == each or found > came[key]:
                group = of[key]
                group.more = True
                group.bound = last[key] if group.bound is None else 0
        for group in groups:
            group.loading = False
            self._place(group)
        self.touch()

    def _later(self, what: Callable[[], None]) -> None:
        """What the store could not answer; meanwhile nothing else is asked."""
        self.instance.loop.call_later(loading.LOAD_RETRY_SECONDS, what)

    def load_ended(self) -> None:
        """The answer to a load was lost; what it had leased is known now, and on its way to the store."""
        if not self._strange:
            self._resolve()

    def _resolve(self) -> None:
        """Nothing of a lost load is leased any more."""
        self._asking = False
        groups, self._doubt = self._doubt, []
        for group in groups:
            group.loading = False
            group.more, group.bound = True, 0
            self._place(group)
        self.touch()

    def _make_room(self) -> None:
        """Groups whose consumer takes nothing now have entries that others' could be in place of."""
        blocked = [
            group
            for group in self._groups.values()
            if group.ready and (consumer := group.lane.consumer) is not None and consumer.room <= 0
        ]
        self._empty(blocked)

    # -- claims

    def _know(self, key: int) -> None:
        if key not in self._groups:
            self._news.pop(key, None)
            group = self._groups[key] = MessageGroup(key, self._free)
            self._place(group)

    def _claim(self, most: int) -> bool:
        """Take groups that have something new; whether the store must be asked for them."""
        keys = list(islice(self._news, most))
        claimed: list[int] = []
        for key in sorted(keys):  # as others claim them, who would wait for us otherwise, and we for them
            del self._news[key]
            if key > 0:
                self._know(key)
            else:
                claimed.append(key)
        if not claimed:
            return bool(keys) and self._load(self.wanted(), len(keys))
        self._asking = True
        questions.claim(self.instance.queries, self.group_id, claimed, self.lease, self._claimed)
        return True

    def _claimed(self, keys: list[int] | StoreError) -> None:
        if isinstance(keys, StoreError):
            self._later(self._forget_unknown)
            return
        self._asking = False
        for key in keys:
            self._know(key)
        self.touch()

    def _scan(self, most: int) -> bool:
        """Take groups that are behind the cursor, where there may be any."""
        if not self._more:
            return False
        self._asking = True
        if self._cursor == _LOWEST:
            self._scan_version = self._version
        asked = self.instance.queries
        questions.scan(asked, self.group_id, self._cursor, _MOST_SCANNED, most, self.lease, self._scanned)
        return True

    def _scanned(self, answer: questions.Scanned | StoreError) -> None:
        if isinstance(answer, StoreError):
            self._later(self._forget_unknown)
            return
        self._asking = False
        for key in answer.keys:
            self._know(key)
        if answer.more:
            self._cursor = answer.at
        else:
            self._cursor = _LOWEST
            self._more = self._version != self._scan_version
        self.touch()

    def _forget_unknown(self) -> None:
        """The answer to a claim was lost: what was claimed is not known here."""
        self._more = True
        self._version += 1

        def forgotten(_: StoreError | None) -> None:
            self._asking = False
            self.touch()

        keys = [key for key in self._groups if key < 0]
        questions.forget(self.instance.queries, self.group_id, keys, self.lease, forgotten)

    def _release(self, groups: Iterable[MessageGroup]) -> None:
        """Give up those of which nothing is here."""
        keys: list[int] = []
        for group in groups:
            if group.lane is not self._free or group.ready or group.out or group.coming or group.loading:
                continue
            self._idle.pop(group.key, None)
            self._free.hungry.pop(group.key, None)
            del self._groups[group.key]
            if group.more:
                self._more = True
                self._version += 1
            if group.key < 0:
                keys.append(group.key)
        if keys:
            questions.release(self.instance.queries, self.group_id, keys, self.lease, notify=bool(self.instance.peers))


def _valid(places: list[tuple[int, int, MessageGroup]]) -> list[tuple[int, int, MessageGroup]]:
    """The heap without what is first in it and no longer of its lane."""
    while places and places[0][2].ticket != places[0][1]:
        heappop(places)
    return places
