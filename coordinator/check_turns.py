"""Which checkers an instance looks for next: some at a time, so that thousands of them keep nothing else waiting.

Those that have more room go first. All others have their turn in each round, one after the other.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

Checker = TypeVar("Checker")


class Turns(Generic[Checker]):
    __slots__ = ("_first", "_line", "left")

    def __init__(self) -> None:
        #: the one whose turn was last comes last
        self._line: OrderedDict[Checker, None] = OrderedDict()
        #: those that go first
        self._first: dict[Checker, None] = {}
        #: of the line, how many the round has left
        self.left = 0

    def add(self, checker: Checker) -> None:
        self._line[checker] = None

    def remove(self, checker: Checker) -> None:
        del self._line[checker]
        self.left = min(self.left, len(self._line))
        self._first.pop(checker, None)

    def first(self, checkers: Iterable[Checker]) -> None:
        """They go first."""
        self._first |= dict.fromkeys(checkers)

    def begin(self) -> None:
        """A new round; what was left of the last one is in it."""
        self.left = len(self._line)

    @property
    def hurried(self) -> bool:
        """Whether any go first."""
        return bool(self._first)

    def take(self, most: int) -> list[Checker]:
        """The next checkers, at most so many; half of them are of the round, as long as it has any left."""
        taken = dict.fromkeys(islice(self._first, most // 2 if self.left else most))
        for checker in taken:
            del self._first[checker]
        while self.left and len(taken) < most:
            self.left -= 1
            checker = next(iter(self._line))
            self._line.move_to_end(checker)
            taken[checker] = None
        return list(taken)
