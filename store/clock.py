"""Tell the time of the database, by which messages are delayed and expire, whatever the clock of this machine says."""

from __future__ import annotations

import time
from typing import NamedTuple


class Reading(NamedTuple):
    """What this machine's clocks say at one moment: one that is never set, and the time of day. Seconds."""

    steady: float
    day: float


def reading() -> Reading:
    """Read both clocks."""
    return Reading(time.monotonic(), time.time())


class DatabaseClock:
    """The database's clock as it was at the last comparison, and what has gone by since.

    A time of day that is set in between changes nothing: ids that it put ahead would stay so for as long, and messages
    of a ``fifo`` address that other instances post meanwhile would overtake those with them.
    """

    def __init__(self) -> None:
        #: the database's time when the steady clock was 0
        self._begin = time.time() - time.monotonic()

    def now(self) -> float:
        """Return the database's time, in seconds since 1970."""
        return self._begin + time.monotonic()

    def compare(self, before: Reading, database: float, after: Reading) -> float:
        """Take in that the database's clock showed ``database`` between two readings of this machine's; return how far
        this machine's time of day is ahead. It is not, where the clocks may agree.
        """
        begin = self._begin
        self._begin -= _ahead(begin + before.steady, database, begin + after.steady)
        return _ahead(before.day, database, after.day)


def _ahead(before: float, database: float, after: float) -> float:
    return max(before - database, min(after - database, 0.0))


#: of this process
CLOCK = DatabaseClock()
