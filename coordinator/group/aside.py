"""Entries that every consumer with room has refused (``modified`` with undeliverable-here): they leave a window to
others.

They stay leased, without their messages, until a consumer that may take them has room. They go to the store then, and
come from there in their order. A consumer that chooses takes its own from here, with the message that it has read.
"""

from __future__ import annotations

from heapq import heapify
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.group.entries import Entry
    from coordinator.group.windows import Window

#: of one window
_MOST = 10_000


class Aside:
    """Of one window; false where there are none."""

    __slots__ = ("_entries", "_refused_by", "_window")

    def __init__(self, window: Window) -> None:
        self._window = window
        #: by id
        self._entries: dict[int, Entry] = {}
        #: keys of the consumers that have refused all of them
        self._refused_by: set[int] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry: Entry) -> bool:
        return entry.id in self._entries

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def take(self) -> None:
        """Take what no consumer takes out of the window, where it is in the way of others."""
        window = self._window
        queue = window.queue
        bounds, memory = queue.instance.bounds, queue.instance.memory
        if memory.windows_full:
            return
        if 2 * len(window) < bounds.window_messages and 2 * window.octets < memory.window_bytes:
            return
        keys = {consumer.key for consumer in queue.takers}
        if not keys:
            return
        stay: list[Entry] = []
        for entry in window.returned:
            if len(self._entries) < _MOST and keys.issubset(entry.refused_by):
                self._refused_by = self._refused_by.intersection(entry.refused_by) if self else set(entry.refused_by)
                self._entries[entry.id] = entry
                window.octets -= entry.size
                entry.message = None
            else:
                stay.append(entry)
        heapify(stay)
        window.returned = stay

    def take_out(self, entry_id: int) -> bool:
        """Whether it was there."""
        return self._entries.pop(entry_id, None) is not None

    def empty(self) -> list[Entry]:
        """Take all out."""
        entries, self._entries = self._entries, {}
        return list(entries.values())

    def give_back(self) -> None:
        """To the store, with what is in the window, where a consumer that has room may take some. What comes meanwhile,
        posted now or by a load on its way, waits for them (D5).
        """
        window = self._window
        queue = window.queue
        if any(consumer.key not in self._refused_by for consumer in queue.takers):
            entries = window.empty()
            window.in_store(min(entry.id for entry in entries), None)
            queue.yield_entries(entries)
