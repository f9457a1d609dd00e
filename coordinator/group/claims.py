"""Which message groups of a fifo queue are this instance's: found in the store, claimed, and given up again."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from coordinator.group.loading import LOAD_RETRY_SECONDS
from coordinator.group.message_groups import LOWEST, MessageGroup
from coordinator.group.refused_groups import RefusedGroups
from store.errors import StoreError
from store.questions import message_groups as questions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coordinator.group.fifo import FifoQueue

#: groups that are read, or claimed, at once
MOST_GROUPS = 500
#: groups that one scan looks at
_MOST_SCANNED = 2000


class Claims:
    """``news``: keys of groups not claimed here that have something new.

    ``more``: the store may have groups that are not known here, from the cursor on or, by later news, anywhere.
    """

    __slots__ = ("_cursor", "_queue", "_scan_version", "_version", "more", "news", "refused")

    def __init__(self, queue: FifoQueue) -> None:
        self._queue = queue
        self.refused = RefusedGroups(queue)
        self.news: dict[int, None] = {}
        self.more = True
        self._version = self._scan_version = 0
        self._cursor = LOWEST

    def look_anywhere(self) -> None:
        """The store may have groups that are not known, also behind the cursor."""
        self.more = True
        self._version += 1

    def _know(self, key: int) -> None:
        queue = self._queue
        if key not in queue.groups:
            self.news.pop(key, None)
            group = queue.groups[key] = MessageGroup(key, queue.free)
            queue.place(group)

    def claim(self, most: int) -> bool:
        """Take groups that have something new; whether the store must be asked for them."""
        queue = self._queue
        keys = list(islice(self.news, most))
        claimed: list[int] = []
        for key in sorted(keys):  # as other instances claim them: else two could wait for each other
            del self.news[key]
            if key in self.refused.away:
                continue  # looked for later: others may have it now
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
        """Take groups that are behind the cursor, where there may be any."""
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
        """The answer to a claim was lost: what was claimed is not known here."""
        queue = self._queue
        self.look_anywhere()

        def forgotten(_: StoreError | None) -> None:
            queue.asking = False
            queue.touch()

        keys = [key for key in queue.groups if key < 0]
        questions.forget(queue.instance.queries, queue.group_id, keys, queue.lease, forgotten)

    def release(self, groups: Iterable[MessageGroup], *, again: bool = True) -> None:
        """Give up those of which nothing is here. ``again``: look at once for what the store has of them."""
        queue = self._queue
        keys: list[int] = []
        for group in groups:
            if group.lane is not queue.free or group.ready or group.out or group.coming or group.loading:
                continue
            queue.resting.pop(group.key, None)
            queue.free.hungry.pop(group.key, None)
            self.refused.aside.pop(group.key, None)
            del queue.groups[group.key]
            if group.more and again:
                self.look_anywhere()
            if group.key < 0:
                keys.append(group.key)
        if keys:
            notify = bool(queue.instance.peers)
            questions.release(queue.instance.queries, queue.group_id, keys, queue.lease, notify=notify)
