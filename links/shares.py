"""The shares that connections have of the time in which a turn reads (:mod:`links.reading`)."""

from __future__ import annotations

#: A read counts for no more. It may have taken longer for another reason: a disk, or a machine that stood still.
COUNTED_SECONDS = 0.005
#: Of its share a connection that says little keeps so much. When hundreds of these begin to say much, each has this
#: before those that have said much.
SAVED_SECONDS = 0.002


class Shares:
    """Of the time that reads take, by the seconds that count for each connection."""

    __slots__ = ("_level", "behind", "most")

    def __init__(self) -> None:
        #: the last turn has left some unread
        self.behind = False
        #: The most that counts for one, by :data:`COUNTED_SECONDS` above what counted for those that are read now. New
        #: ones begin with it: those that come and go have no more than those that stay.
        self.most = 0.0
        #: what had counted for those that were read last
        self._level = 0.0

    @property
    def least(self) -> float:
        """Less counts as this: one that was away for long has not saved all of it up."""
        return self._level - SAVED_SECONDS

    def ended(self, had: float, most: float, *, behind: bool) -> None:
        """A turn. ``had``: by the last that was read, before; ``most``: by any."""
        self._level, self.most, self.behind = max(self._level, had), most, behind
