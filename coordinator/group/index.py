"""An index of a queue knows the value that a field has in each entry that searches have read (rule P16).

A client that waits for one reply attaches with a selector such as ``JMSCorrelationID = '…'``, often for each reply
anew. Beside 20,000 messages that it does not want, its search would read and evaluate all of them first. With the index
it reads those of its value, and what came after the entries that the index covers.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from coordinator.memory import Account

#: Memory that an entry takes, with a value of its own.
_OCTETS: Final = 160
#: seconds after which an index that is full begins anew, as most of its entries may be gone
_FULL_SECONDS: Final = 60.0


class Index:
    """Covers the entries of normal priority up to an id. Values are known by their hashes: a search reads an entry
    before it sends it.

    ``field``: the field, by the name that selectors have for it.
    """

    __slots__ = ("_began", "_ids", "_memory", "count", "field", "through")

    def __init__(self, field: str, memory: Account) -> None:
        self.field = field
        #: all entries up to this id were read
        self.through = 0
        self.count = 0
        self._ids: dict[int, list[int]] = {}
        self._memory = memory
        self._began = time.monotonic()

    def __del__(self) -> None:
        self._memory.indexes -= self.count * _OCTETS

    def renew(self) -> None:
        """Begin anew if there was no room for long."""
        if self._full and time.monotonic() - self._began > _FULL_SECONDS:
            self._memory.indexes -= self.count * _OCTETS
            self._ids = {}
            self.through = self.count = 0
            self._began = time.monotonic()

    @property
    def _full(self) -> bool:
        return self._memory.indexes + _OCTETS > self._memory.share

    def note(self, value: object, entry_id: int, behind: int) -> bool:
        """Note an entry that was read; the others from the id ``behind`` on are noted. False: there is no room."""
        if isinstance(value, str):
            ids = self._ids.get(hash(value), [])
            place = bisect_left(ids, entry_id)
            if place == len(ids) or ids[place] != entry_id:
                if self._full:
                    return False
                self._ids.setdefault(hash(value), ids).insert(place, entry_id)
                self.count += 1
                self._memory.indexes += _OCTETS
        if behind <= self.through < entry_id:
            self.through = entry_id
        return True

    def gone(self, value: str, entry_id: int) -> None:
        """Forget an entry that a consumer gets. If it returns, :meth:`lower` is called."""
        ids = self._ids.get(hash(value), [])
        place = bisect_left(ids, entry_id)
        if place < len(ids) and ids[place] == entry_id:
            del ids[place]
            self.count -= 1
            self._memory.indexes -= _OCTETS
            if not ids:
                del self._ids[hash(value)]

    def lower(self, to: int) -> None:
        """Cover nothing behind the id ``to``, as there may be entries that were not read."""
        self.through = min(self.through, to)

    def passes(self, value: str, at: int, through: int) -> int:
        """Return the id behind which a search goes on that has read all entries up to ``at``. ``through``: it passes
        nothing behind it.
        """
        through = min(self.through, through)
        ids = self._ids.get(hash(value), [])
        place = bisect_right(ids, at)
        return max(at, min(ids[place] - 1, through) if place < len(ids) else through)
