"""The consumers of a queue that have room, in turns: a message costs the same whether there are two or two thousand.

What a consumer has room for is asked of it only after it said that something has changed (credit, a settled delivery, a
socket that takes more), and when it is its turn.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.group.entries import Consumer


class ReadyConsumers:
    """``wanted``: entries that all of them have room for, as far as they have said."""

    __slots__ = ("_changed", "_draining", "_rooms", "_wanted")

    def __init__(self) -> None:
        #: those with room, in the order of their turns
        self._rooms: OrderedDict[Consumer, int] = OrderedDict()
        self._changed: dict[Consumer, None] = {}
        self._draining: dict[Consumer, None] = {}
        self._wanted = 0

    def changed(self, consumer: Consumer) -> None:
        """Its room may be more than it was, or it may drain now."""
        self._changed[consumer] = None

    def remove(self, consumer: Consumer) -> None:
        self._changed.pop(consumer, None)
        self._draining.pop(consumer, None)
        self._wanted -= self._rooms.pop(consumer, 0)

    def _refresh(self) -> None:
        if self._changed:
            changed, self._changed = self._changed, {}
            for consumer in changed:
                self.keep(consumer, consumer.room)
                if consumer.draining:
                    self._draining[consumer] = None
                else:
                    self._draining.pop(consumer, None)

    def keep(self, consumer: Consumer, room: int) -> None:
        """It has so much room; one that has none comes again when it says so."""
        rooms = self._rooms
        if room > 0:
            self._wanted += room - rooms.get(consumer, 0)
            rooms[consumer] = room
        else:
            self._wanted -= rooms.pop(consumer, 0)

    def __len__(self) -> int:
        self._refresh()
        return len(self._rooms)

    def __iter__(self) -> Iterator[Consumer]:
        """In the order of their turns."""
        self._refresh()
        return iter(list(self._rooms))

    @property
    def wanted(self) -> int:
        self._refresh()
        return self._wanted

    def next(self) -> Consumer:
        """Whose turn it is; the others come before it then. There is one."""
        rooms = self._rooms
        consumer = next(iter(rooms))
        rooms.move_to_end(consumer)
        return consumer

    def draining(self) -> list[Consumer]:
        """Those that want to be told when there is nothing for them, or no room until deliveries are settled."""
        self._refresh()
        return [each for each in self._draining if each.draining and (each.room > 0 or not each.waits or each.shut)]

    @property
    def asked(self) -> bool:
        """Whether one that has no room now wants to be told when there is nothing for it."""
        self._refresh()
        return any(each.draining and each.shut for each in self._draining)

    def drained(self, consumer: Consumer) -> None:
        self._draining.pop(consumer, None)
        self.keep(consumer, consumer.room)
