"""The selectors that links have: each text is read once, and the memory of all of them has a bound (P16, S4)."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary, finalize

from coordinator.codec.selectors import Selector
from coordinator.errors import Condition, Refusal

if TYPE_CHECKING:
    from coordinator.memory import Account

#: that are kept for the next link when no link has them any more
_MOST_KEPT = 128


class Selectors:
    """Those of one worker; links that ask for the same text have the same selector."""

    def __init__(self, memory: Account) -> None:
        self._memory = memory
        self._known: WeakValueDictionary[str, Selector] = WeakValueDictionary()
        #: the selectors that were asked for last
        self._recent: OrderedDict[str, Selector] = OrderedDict()

    def of(self, text: str) -> Selector:
        """Refusal if the text is no selector, or all selectors together take too much memory."""
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = self._read(text)
        self._recent[text] = found
        self._recent.move_to_end(text)
        if len(self._recent) > _MOST_KEPT:
            self._recent.popitem(last=False)
        return found

    def _read(self, text: str) -> Selector:
        selector = Selector(text)
        memory = self._memory
        if memory.selectors + selector.octets > memory.share:
            self._recent.clear()
        if memory.selectors + selector.octets > memory.share:
            why = "the selectors of all consumers take too much memory (limits.memory_bytes): ask for fewer or shorter"
            raise Refusal(Condition.RESOURCE_LIMIT_EXCEEDED, why)
        memory.selectors += selector.octets
        finalize(selector, self._gone, selector.octets).atexit = False
        return selector

    def _gone(self, octets: int) -> None:
        self._memory.selectors -= octets
