"""The low-water mark of loads from the store: what was consumed at the head is not walked through again.

Rows already consumed stay in the indexes for a while, and as long as an old snapshot is held: a load that began at
their head would cost more with each message gone by.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from store.priorities import STEPS, Rank, shares_step, step_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coordinator.group.entries import Entry

#: how far below the last entry taken a load looks again: for slower commits of other instances
LOW_WATER_SLACK = 60_000 << 22
_HIGHEST = 1 << 63
#: all is looked at no more often, and no more than a share of the time
_WHOLE_SECONDS = 1.0
_WHOLE_SHARE = 20
#: but not more seldom: a look may last for other reasons than what there is to look through
_WHOLE_MOST_SECONDS = 30.0


def next_whole_look(asked_at: float, least: float = _WHOLE_SECONDS) -> float:
    """When all may be looked at again, by the monotonic clock. ``asked_at``: when the look that ends now was asked for;
    ``least``: seconds until the next at least.
    """
    now = time.monotonic()
    return now + min(max(least, _WHOLE_SHARE * (now - asked_at)), _WHOLE_MOST_SECONDS)


class LowWater:
    """Of one rank, for each of its steps (:data:`store.priorities.STEPS`). ``marks``: ids above which to look; as far
    as is known, the store has nothing below.
    """

    __slots__ = ("_asked", "_asked_at", "_lowered", "_whole_at", "marks")

    def __init__(self, rank: Rank) -> None:
        self.marks = [0] * STEPS[rank].number
        #: of the load on its way: the marks above which it looks, when it was asked for, and what came back since then
        self._asked = self.marks
        self._asked_at = 0.0
        self._lowered = self._nothing_back()
        #: before then the store is not looked through from its beginning again
        self._whole_at = 0.0

    def _nothing_back(self) -> list[int]:
        return [_HIGHEST] * len(self.marks)

    @property
    def looks_at_all(self) -> bool:
        return not any(self.marks)

    @property
    def whole_in(self) -> float:
        """Seconds until all may be looked at again; 0: now."""
        return max(0.0, self._whole_at - time.monotonic())

    def has_passed(self, entry_id: int) -> bool:
        return any(mark >= entry_id for mark in self.marks)

    def lower(self, below: int, priority: int | None) -> None:
        """Something came that is above this id; ``priority``: its own, None where that is not known."""
        marks, lowered = self.marks, self._lowered
        for step in range(len(marks)) if priority is None else (step_of(priority),):
            if below < marks[step]:
                marks[step] = below
            if below < lowered[step]:
                lowered[step] = below

    def asked(self) -> None:
        """A load looks above the marks."""
        self._asked = list(self.marks)
        self._asked_at = time.monotonic()
        self._lowered = self._nothing_back()

    def read_through(self, last: int) -> None:
        """A range was read up to this id: below, nothing comes any more but what is told by its id."""
        self.marks[0] = min(max(self.marks[0], last), self._lowered[0])

    def loaded(self, entries: Sequence[Entry], newest: int, *, complete: bool, alone: bool) -> bool:
        """The load brought these entries; whether it looked at all. ``newest``: no entry of this instance is newer;
        ``complete``: there was nothing beyond them; ``alone``: no other instance has any.
        """
        looked_at_all = not any(self._asked)
        if looked_at_all:
            self._whole_at = next_whole_look(self._asked_at)
        through = step_of(entries[-1].priority) if entries and not complete else len(self.marks)
        if entries and not complete and shares_step(entries[-1].priority):
            entries = ()
        last: dict[int, int] = {}
        for entry in entries:
            step = step_of(entry.priority)
            last[step] = max(last.get(step, 0), entry.id)
        for step, asked in enumerate(self._asked):
            if step in last:
                mark = max(0, last[step] - (0 if alone else LOW_WATER_SLACK))
            elif step < through and not asked:
                mark = max(0, newest - LOW_WATER_SLACK)
            else:
                continue
            self.marks[step] = min(mark, self._lowered[step])
        return looked_at_all
