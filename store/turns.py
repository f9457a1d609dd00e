"""Turns: whose work is next, of owners by their shares, or of a line one after the other."""

from __future__ import annotations

from collections import OrderedDict, deque
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Generic, TypeVar

K = TypeVar("K")
T = TypeVar("T")


def turn_of(line: OrderedDict[K, Any]) -> K:
    """Return whose turn it is in a line, and move it behind all others. There is at least one."""
    first = next(iter(line))
    line.move_to_end(first)
    return first


class Line(Generic[T]):
    """Holds the waiting items of one owner. ``held``: the owner gets no turn for now."""

    __slots__ = ("had", "held", "items", "number", "owner")

    def __init__(self, owner: object, number: int, had: float) -> None:
        self.owner = owner
        self.number = number
        #: the sum of its shares: the owner with the least has the turn
        self.had = had
        self.held = False
        self.items: deque[T] = deque()

    def __lt__(self, other: Line[T]) -> bool:
        return (self.had, self.number) < (other.had, other.number)


class Turns(Generic[T]):
    """Holds the waiting items of all owners and chooses whose is next; those of one owner are taken in order.

    The owner with the smallest sum of shares has the turn. A new one starts from the sum that the last one had at its
    turn (start-time fair queueing): it waits for no backlog, and gains nothing from the time it had no items. An owner
    whose last item was taken keeps its sum until the waiting ones have reached it: otherwise it would precede them each
    time.
    """

    __slots__ = ("_numbers", "_reached", "count", "lines", "ready")

    def __init__(self) -> None:
        #: how many items wait
        self.count = 0
        #: a heap: the lines that may have a turn; the first has a waiting item
        self.ready: list[Line[T]] = []
        #: lines of owners that have waiting items, are held, or have a greater sum than one that waits
        self.lines: dict[object, Line[T]] = {}
        self._numbers = count()
        #: the sum of shares that the owner of the last turn had before it
        self._reached = 0.0

    def has_waiting(self, owner: object) -> bool:
        line = self.lines.get(owner)
        return line is not None and (line.held or bool(line.items))

    def _new(self, owner: object) -> Line[T]:
        line = self.lines[owner] = Line(owner, next(self._numbers), self._reached)
        return line

    def add(self, owner: object, item: T) -> None:
        """Add an item behind those of its owner."""
        line = self.lines.get(owner)
        if line is None:
            line = self._new(owner)
            heappush(self.ready, line)
        line.items.append(item)
        self.count += 1

    def remove(self, owner: object, item: T) -> None:
        """Remove an item that waits."""
        self.lines[owner].items.remove(item)
        self.count -= 1
        self._forget()

    def take(self) -> T:
        """Take the next item of the owner whose turn it is; :meth:`charge` ends the turn. An item must wait."""
        line = heappop(self.ready)
        self._reached = line.had
        self.count -= 1
        return line.items.popleft()

    def charge(self, owner: object, share: float) -> None:
        """End the owner's turn: add ``share``, what the taken item costs, to its sum."""
        line = self.lines[owner]
        line.had += share
        heappush(self.ready, line)
        self._forget()

    def _forget(self) -> None:
        """Forget lines whose turn has come and that have no waiting items."""
        ready = self.ready
        while ready and not ready[0].items:
            del self.lines[heappop(ready).owner]

    def hold(self, owner: object, items: list[T]) -> None:
        """Give an owner no turn for now. ``items``, which were taken from it before, are its first afterwards."""
        line = self.lines.get(owner) or self._new(owner)
        line.held = True
        line.items.extendleft(reversed(items))
        self.count += len(items)
        if line in self.ready:
            self.ready.remove(line)
            heapify(self.ready)
            self._forget()

    def release(self, owner: object) -> None:
        line = self.lines[owner]
        line.held = False
        heappush(self.ready, line)
        self._forget()
