"""Where in time an instance looks for transactions that are to be checked (rule H12).

Each look begins where the last has left none that are due. Index entries of decided transactions stay while a snapshot
is held (a dump, a reconciliation): a look that began with the oldest would walk through all of them. Older ones that
are undecided still, as they were due before this instance looked, or as another instance wrote them very late, are
looked for backwards, one piece of time in every other look.
"""

from __future__ import annotations

from store.commit.terms import BEFORE, INFINITY
from store.questions.checks import Wanted

_MICROS = 1_000_000
#: the first piece; the shortest one; and the shortest one as a part of the past that was looked at, so that the end is
#: reached in some hundred looks also where each of them is slow
_FIRST = 60 * _MICROS
_SHORTEST = _MICROS
_PARTS = 32
#: seconds that a look takes: below, the next piece is longer by this factor; above, shorter
_FAST = 0.005
_SLOW = 0.02
_FACTOR = 4
#: before that, there is no transaction: the year 2000
_BEGINNING = 0


class Marks:
    """Of one producer group. Times are microseconds since 2000."""

    __slots__ = ("_back", "_backwards", "_low", "_piece", "complete")

    def __init__(self, now: int) -> None:
        #: forwards, a look begins here
        self._low = now - _FIRST
        #: from here on to where it begins forwards, none is left; :data:`BEFORE`: none is left before either
        self._back = self._low
        self._piece = _FIRST
        #: the look under way
        self._backwards = False
        #: the last look was forwards, and all of the past was looked at before
        self.complete = False

    def again(self) -> None:
        """Look at all of the past once more."""
        if self._back == BEFORE:
            self._back = self._low

    def wanted(self, most: int) -> Wanted:
        """What to ask for now, at most so many transactions."""
        if self._backwards:
            return Wanted(most, self._from, self._back)
        return Wanted(most, self._low, INFINITY)

    @property
    def _from(self) -> int:
        return self._back - self._piece if self._back - self._piece > _BEGINNING else BEFORE

    def looked(self, low: int, *, full: bool, seconds: float) -> None:
        """The answer. ``low``: from there on some may be left; ``full``: as many came as were asked for; ``seconds``:
        so long the look took.
        """
        self.complete = not self._backwards and self._back == BEFORE
        if not self._backwards:
            self._low = low
            self._back = min(self._back, low)
        elif not full:
            self._back = self._from
            if seconds < _FAST:
                self._piece *= _FACTOR
            elif seconds > _SLOW:
                self._piece //= _FACTOR
            self._piece = max(self._piece, _SHORTEST, (self._low - self._back) // _PARTS)
        self._backwards = not self._backwards and self._back > BEFORE
