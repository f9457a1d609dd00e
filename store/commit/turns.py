"""Units that wait for a batch: those of one connection in their order, the connections by turns."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from store.commit.unit import Unit

#: what a unit that waits takes in memory besides its messages
_UNIT_OCTETS = 512


class Line:
    """What one connection has waiting. ``held``: it has no turn for now."""

    __slots__ = ("had", "held", "number", "units")

    def __init__(self, number: int, had: float) -> None:
        self.number = number
        #: shares of batches: by this its turn comes
        self.had = had
        self.held = False
        self.units: deque[tuple[Unit, int]] = deque()

    def __lt__(self, other: Line) -> bool:
        return (self.had, self.number) < (other.had, other.number)


class Turns:
    """``count``: units that wait; ``octets``: of them, with their messages.

    The turn is with the connection that has had the least. One that comes begins with what the one before it had when
    its turn was over (self-clocked fair queueing): it waits for no backlog, does not catch up on the time in which it
    wanted nothing, and has no more turns for coming again and again.
    """

    __slots__ = ("_numbers", "_reached", "_turn", "count", "lines", "octets", "ready")

    def __init__(self) -> None:
        self.count = 0
        self.octets = 0
        #: a heap: the lines that may have a turn
        self.ready: list[Line] = []
        #: of the connections that have something waiting, or are held
        self.lines: dict[object, Line] = {}
        self._numbers = count()
        #: what the one whose turn was the last has had
        self._reached = 0.0
        self._turn: Line | None = None

    def __contains__(self, owner: object) -> bool:
        return owner in self.lines

    def _line(self, owner: object) -> Line:
        line = self.lines.get(owner)
        if line is None:
            line = self.lines[owner] = Line(next(self._numbers), self._reached)
        return line

    def add(self, unit: Unit, octets: int) -> None:
        """``octets``: of the messages that the unit holds."""
        line = self._line(unit.owner)
        if not line.units and not line.held:
            heappush(self.ready, line)
        line.units.append((unit, octets))
        self.count += 1
        self.octets += octets + _UNIT_OCTETS

    def take(self) -> Unit:
        """The next unit, of the connection whose turn it is; :meth:`charge` ends the turn. There is one."""
        line = self._turn = heappop(self.ready)
        unit, octets = line.units.popleft()
        self.count -= 1
        self.octets -= octets + _UNIT_OCTETS
        if not line.units:
            del self.lines[unit.owner]
        return unit

    def charge(self, share: float) -> None:
        """The unit that was taken is so much of a batch."""
        line = self._turn
        assert line is not None
        line.had += share
        self._reached = line.had
        if line.units:
            heappush(self.ready, line)

    def hold(self, owner: object, units: Sequence[Unit]) -> None:
        """A connection has no turn for now. ``units`` of it, which were taken before, go first then."""
        line = self._line(owner)
        line.held = True
        line.units.extendleft((unit, 0) for unit in reversed(units))
        self.count += len(units)
        self.octets += _UNIT_OCTETS * len(units)
        if line in self.ready:
            self.ready.remove(line)
            heapify(self.ready)

    def release(self, owner: object) -> None:
        line = self.lines[owner]
        line.held = False
        if line.units:
            heappush(self.ready, line)
        else:
            del self.lines[owner]
