"""Ready consumers of a queue get messages in turns: a message costs the same with two of them as with two thousand.

A consumer's room is read only after the consumer reported a change (credit, a settled delivery, a writable socket), and
when it is its turn.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.group.entries import Consumer


class ReadyConsumers:
    """Keeps the consumers with room in turns. ``wanted``: the entries for which they have reported room."""

    __slots__ = ("_changed", "_draining", "_wanted", "rooms")

    def __init__(self) -> None:
        #: consumers with room, in the order of their turns; those that changed are in it from the next look on
        self.rooms: OrderedDict[Consumer, int] = OrderedDict()
        self._changed: dict[Consumer, None] = {}
        self._draining: dict[Consumer, None] = {}
        self._wanted = 0

    def changed(self, consumer: Consumer) -> None:
        """Note that the consumer may have got more room, or may drain now."""
        self._changed[consumer] = None

    def remove(self, consumer: Consumer) -> None:
        self._changed.pop(consumer, None)
        self._draining.pop(consumer, None)
        self._wanted -= self.rooms.pop(consumer, 0)

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
        """Record the consumer's room; one without room returns when it reports a change."""
        rooms = self.rooms
        if room > 0:
            self._wanted += room - rooms.get(consumer, 0)
            rooms[consumer] = room
        else:
            self._wanted -= rooms.pop(consumer, 0)

    def __len__(self) -> int:
        self._refresh()
        return len(self.rooms)

    def __iter__(self) -> Iterator[Consumer]:
        """Iterate in the order of turns."""
        self._refresh()
        return iter(list(self.rooms))

    @property
    def wanted(self) -> int:
        self._refresh()
        return self._wanted

    def draining(self) -> list[Consumer]:
        """Return the draining consumers that may be drained: with room, or without room until deliveries are
        settled.
        """
        self._refresh()
        return [each for each in self._draining if each.draining and (each.room > 0 or not each.waits or each.shut)]

    @property
    def drain_waits(self) -> bool:
        """Whether a consumer without room, as its session's window is shut, drains."""
        self._refresh()
        return any(each.draining and each.shut for each in self._draining)

    def drained(self, consumer: Consumer) -> None:
        self._draining.pop(consumer, None)
        self.keep(consumer, consumer.room)
