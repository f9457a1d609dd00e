"""The patterns of LIKE (Jakarta Messaging 3.1, section 3.8.1.2), matched in time of at most text times pattern."""

from __future__ import annotations

import re


class _Segment:
    """A part of a pattern between two ``%``; it matches texts of its own length."""

    __slots__ = ("_expression", "_literal", "cost", "length")

    def __init__(self, characters: list[str]) -> None:
        self.length = len(characters)
        self._literal = "".join(characters)
        self._expression = None
        #: work for each character of a text: :meth:`str.find` skips most comparisons, an expression does not
        self.cost = 1 + self.length // 8
        if "" in characters:
            self.cost = self.length
            self._expression = re.compile("".join(re.escape(each) or "." for each in characters), re.DOTALL)

    def is_at(self, text: str, at: int) -> bool:
        if self._expression is None:
            return text.startswith(self._literal, at)
        return self._expression.match(text, at) is not None

    def find(self, text: str, at: int, end: int) -> int:
        """Its first place in ``text[at:end]``; below 0 if it is not there."""
        if self._expression is None:
            return text.find(self._literal, at, end)
        found = self._expression.search(text, at, end)
        return -1 if found is None else found.start()


class Pattern:
    """A pattern of LIKE. Each part between two ``%`` is matched at its first place only: if the pattern matches with a
    later place, it matches with the first as well.
    """

    __slots__ = ("_between", "_first", "_last", "cost")

    def __init__(self, segments: list[list[str]]) -> None:
        first, *others = segments
        self._first = _Segment(first)
        #: None: there is no % in it
        self._last = _Segment(others[-1]) if others else None
        self._between = [_Segment(each) for each in others[:-1] if each]
        #: work for each character of a text
        self.cost = sum(each.cost for each in (self._first, self._last, *self._between) if each is not None)

    def matches(self, text: str) -> bool:
        at = self._first.length
        if self._last is None:
            return len(text) == at and self._first.is_at(text, 0)
        end = len(text) - self._last.length
        if end < at or not self._first.is_at(text, 0) or not self._last.is_at(text, end):
            return False
        for segment in self._between:
            found = segment.find(text, at, end)
            if found < 0:
                return False
            at = found + segment.length
        return True
