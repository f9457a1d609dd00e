"""Where in time an instance looks for transactions that are to be checked (rule H12).

Each look begins where the last has left none that are due. Index entries of decided transactions stay while a snapshot
is held (a dump, a reconciliation): a look that began with the oldest would walk through all of them. Older ones that
are undecided still, as they were due before this instance looked, or as another instance wrote them very late, are
looked for backwards, one piece of time in every other look.
"""

from __future__ import annotations

from coordinator.group.entries import POSTGRES_EPOCH
from store.commit.terms import BEFORE, INFINITY
from store.ids import EPOCH_MS
from store.questions.checks import Wanted

_MICROS = 1_000_000
#: the shortest piece, and each as a part of the past behind it that was looked at: about a hundred pieces in all. Such
#: a part may be a few hours of a day that was busy long ago: after a look that was slow, the next are smaller,
#: until one is quick
_SHORTEST = 60 * _MICROS
_PARTS, _MOST_PARTS = 8, 32
_SLOW_SECONDS, _QUICK_SECONDS = 0.010, 0.003
#: one that has not looked for longer begins anew, so that it never looks at so much in one piece
_LONGEST = 600 * _MICROS
#: before that, there is no transaction
_BEGINNING = EPOCH_MS * 1000 - POSTGRES_EPOCH * _MICROS


class Marks:
    """Of one producer group. Times are microseconds since 2000."""

    __slots__ = ("_asked", "_back", "_backwards", "_low", "_parts", "complete")

    def __init__(self, now: int) -> None:
        self._asked = now
        self._parts = _PARTS
        self._begin(now)

    def _begin(self, now: int) -> None:
        #: forwards, a look begins here
        self._low = now - _SHORTEST
        #: from here on to where it begins forwards, none is left; :data:`BEFORE`: none is left before either
        self._back = self._low
        #: the look under way
        self._backwards = False
        #: the last look was forwards and has left none, and all of the past was looked at before
        self.complete = False

    def again(self) -> None:
        """Look at all of the past once more."""
        if self._back == BEFORE:
            self._back = self._low

    def wanted(self, most: int, now: int) -> Wanted:
        """What to ask for now, at most so many transactions."""
        if now - self._asked > _LONGEST:
            self._begin(now)
        self._asked = now
        if self._backwards:
            return Wanted(most, self._from, self._back)
        return Wanted(most, self._low, INFINITY)

    @property
    def _from(self) -> int:
        begin = self._back - max((self._low - self._back) // self._parts, _SHORTEST)
        return begin if begin > _BEGINNING else BEFORE

    def looked(self, low: int, *, full: bool, seconds: float) -> None:
        """The answer. ``low``: from there on some may be left; ``full``: as many came as were asked for; ``seconds``:
        how long the look took.
        """
        self.complete = not (self._backwards or full) and self._back == BEFORE
        if not self._backwards:
            self._low = low
            self._back = min(self._back, low)
        elif not full:
            self._back = self._from
            if seconds > _SLOW_SECONDS:
                self._parts = min(2 * self._parts, _MOST_PARTS)
            elif seconds < _QUICK_SECONDS:
                self._parts = max(self._parts // 2, _PARTS)
        self._backwards = not self._backwards and self._back > BEFORE
