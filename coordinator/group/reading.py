"""Reading on the message groups of a fifo queue, and which question it asks the store next."""

from __future__ import annotations

import time
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from coordinator.group import loading
from coordinator.group.claims import MOST_GROUPS
from coordinator.group.low_water import LOW_WATER_SLACK, next_whole_look
from coordinator.group.message_groups import GroupedEntry
from store.errors import StoreError
from store.questions import message_groups as questions

if TYPE_CHECKING:
    from coordinator.group.fifo import FifoQueue
    from coordinator.group.message_groups import MessageGroup

#: entries of one group that are read at once
_MOST_OF_GROUP = 50
#: groups that are read ahead of the consumers, where no other instance wants them
_FEW = 100


class Reading:
    """Implements :class:`coordinator.group.windows.Loader`."""

    __slots__ = ("_doubt", "_found", "_queue", "_turn", "_unsure", "_whole_at")

    def __init__(self, queue: FifoQueue) -> None:
        self._queue = queue
        #: whether groups already known are read on before others are looked for
        self._turn = False
        #: groups that were being read when the answer was lost; entries that were leased for them go back
        self._doubt: list[MessageGroup] = []
        #: which those are is known
        self._found = False
        #: keys of groups that were read above a mark: below, others may have posted something late
        self._unsure: dict[int, None] = {}
        #: when they may be read from their beginning, by the monotonic clock
        self._whole_at = 0.0

    def ask(self) -> None:
        """One question at a time: groups that are known are read on, others are looked for, in turns."""
        queue = self._queue
        if queue.asking:
            return
        wanted = queue.wanted() or int(queue.takers.asked and not queue.ready)
        ahead = wanted if queue.instance.peers else max(2 * wanted, _FEW)
        known = len(queue.free.hungry)
        if not wanted:  # else no consumer with room may have what is ready (undeliverable-here)
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
        """Read on, groups that consumers with room wait for first; whether there was anything to read."""
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
        asked_at: float,
        each: int,
        answer: questions.Leased | StoreError,
    ) -> None:
        queue = self._queue
        if isinstance(answer, StoreError):  # some may be leased, and are not known here
            self._doubt = groups
            queue.instance.loop.call_later(loading.LOAD_RETRY_SECONDS, lambda: loading.reclaim(queue, self))
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
            entry.refused_by = queue.refused.pop(entry.half_id, ())
            queue.held[entry.id] = entry
            queue.keep(entry)
            came[group.key] += 1
            last[group.key] = entry.id
        self._move_low(last, dict(zip(last, above, strict=True)), asked_at)
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

    def _move_low(self, last: dict[int, int], above: dict[int, int], asked_at: float) -> None:
        """``last``: by key, the id of the last entry that came, 0 for none."""
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
                    queue.instance.loop.call_later(seconds, self._look_at_all)
                self._unsure[key] = None
        if not all(above.values()):
            self._whole_at = next_whole_look(asked_at)

    def _look_at_all(self) -> None:
        """What others posted is not told by its id, and may lie below the marks."""
        queue = self._queue
        unsure, self._unsure = self._unsure, {}
        for key in unsure:
            group = queue.groups.get(key)
            if group is not None:
                group.look_from(0)
            queue.news(key)

    def load_ended(self) -> None:
        """The answer to a load was lost; what it had leased is known now, and on its way to the store."""
        self._found = True
        self.yielded()

    def yielded(self) -> None:
        """The store has entries back: perhaps the last of a lost load, so that its groups are read again."""
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
        """Evict entries of groups whose consumer has no room, and of those that all with room have refused."""
        queue = self._queue
        blocked = [
            group
            for group in queue.groups.values()
            if group.ready and (consumer := group.lane.consumer) is not None and consumer.room <= 0
        ]
        queue.empty(blocked)
        queue.claims.refused.stand_aside()
