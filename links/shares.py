"""The shares that connections have of the time in which a turn reads (:mod:`links.reading`)."""

from __future__ import annotations

#: So much of its share a connection that says nothing keeps, at least, and twice as much at most.
SAVED_SECONDS = 1.0


class Shares:
    """Of the time that reads take, by the seconds that each connection has had."""

    __slots__ = ("_at", "_before", "_between", "_now", "behind", "most")

    def __init__(self) -> None:
        #: the last turn has left some unread
        self.behind = False
        #: The most that one has had. New ones begin with it: those that come and go have no more than those that stay.
        self.most = 0.0
        #: what those that were read last had had before; the same once or twice that time ago, and when that was noted
        self._now = self._between = self._before = self._at = 0.0

    def least(self, now: float) -> float:
        """Who has had less counts as this: one that was away for long has not saved all of it up."""
        if now - self._at > SAVED_SECONDS:
            self._before, self._between, self._at = self._between, self._now, now
        return self._before

    def ended(self, had: float, most: float, *, behind: bool) -> None:
        """A turn. ``had``: by the last that was read, before; ``most``: by any."""
        self._now, self.most, self.behind = had, most, behind
