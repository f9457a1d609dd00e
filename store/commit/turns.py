"""Units that wait for a batch: those of one connection in order, the connections in turns."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from store.commit.batch import Unit

#: memory of a unit that waits, without its messages
_UNIT_OCTETS = 512


class Line:
    """The units of one connection that wait. ``held``: it gets no turn for now."""

    __slots__ = ("had", "held", "number", "owner", "units")

    def __init__(self, owner: object, number: int, had: float) -> None:
        self.owner = owner
        self.number = number
        #: the shares of batches it has had: the connection with the least has the turn
        self.had = had
        self.held = False
        self.units: deque[tuple[Unit, int]] = deque()

    def __lt__(self, other: Line) -> bool:
        return (self.had, self.number) < (other.had, other.number)


class Turns:
    """``count``: units that wait; ``octets``: of them, with their messages.

    The connection that has had the least has the turn. A new one begins with what the last one had when its turn came
    (start-time fair queueing): it waits for no backlog, and does not catch up on time without units. A connection whose
    last unit was taken keeps its count until those that wait have had as much: otherwise it would come before them each
    time.
    """

    __slots__ = ("_numbers", "_reached", "_turn", "count", "lines", "octets", "ready")

    def __init__(self) -> None:
        self.count = 0
        self.octets = 0
        #: a heap: the lines that may have a turn; the first has something waiting
        self.ready: list[Line] = []
        #: of connections that have units waiting, are held, or have had more than one that waits
        self.lines: dict[object, Line] = {}
        self._numbers = count()
        #: what the connection of the last turn had had before it
        self._reached = 0.0
        self._turn: Line | None = None

    def __contains__(self, owner: object) -> bool:
        return owner in self.lines

    def has_waiting(self, owner: object) -> bool:
        line = self.lines.get(owner)
        return line is not None and (line.held or bool(line.units))

    def _new(self, owner: object) -> Line:
        line = self.lines[owner] = Line(owner, next(self._numbers), self._reached)
        return line

    def add(self, unit: Unit, octets: int) -> None:
        """``octets``: of the messages that the unit holds."""
        line = self.lines.get(unit.owner)
        if line is None:
            line = self._new(unit.owner)
            heappush(self.ready, line)
        line.units.append((unit, octets))
        self.count += 1
        self.octets += octets + _UNIT_OCTETS

    def take(self) -> Unit:
        """The next unit of the connection whose turn it is; :meth:`charge` ends the turn. There must be one."""
        line = self._turn = heappop(self.ready)
        self._reached = line.had
        unit, octets = line.units.popleft()
        self.count -= 1
        self.octets -= octets + _UNIT_OCTETS
        return unit

    def charge(self, share: float) -> None:
        """The unit just taken is so large a share of a batch."""
        line = self._turn
        assert line is not None
        line.had += share
        self._place(line)

    def _place(self, line: Line) -> None:
        heappush(self.ready, line)
        self._forget()

    def _forget(self) -> None:
        """Forget lines with nothing waiting whose turn has come."""
        ready = self.ready
        while ready and not ready[0].units:
            del self.lines[heappop(ready).owner]

    def hold(self, owner: object, units: Sequence[Unit]) -> None:
        """A connection gets no turn for now. Its ``units``, which were taken before, come first afterwards."""
        line = self.lines.get(owner) or self._new(owner)
        line.held = True
        line.units.extendleft((unit, 0) for unit in reversed(units))
        self.count += len(units)
        self.octets += _UNIT_OCTETS * len(units)
        if line in self.ready:
            self.ready.remove(line)
            heapify(self.ready)
            self._forget()

    def release(self, owner: object) -> None:
        line = self.lines[owner]
        line.held = False
        self._place(line)
