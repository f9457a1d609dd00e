"""Tell the time of the database, by which messages are delayed and expire, whatever the clock of this machine says."""

from __future__ import annotations

import time


class DatabaseClock:
    """The clock of this machine, less how far it was ahead of the database's at the last comparison."""

    def __init__(self) -> None:
        #: seconds; negative: it is behind
        self.ahead = 0.0

    def now(self) -> float:
        """Return the database's time, in seconds since 1970."""
        return time.time() - self.ahead

    def compare(self, before: float, database: float, after: float) -> float:
        """Take in that the database's clock showed ``database`` between two readings of this machine's; return how far
        this machine's is ahead. It is not, where the clocks may agree.
        """
        self.ahead = max(before - database, min(after - database, 0.0))
        return self.ahead


#: of this process
CLOCK = DatabaseClock()
