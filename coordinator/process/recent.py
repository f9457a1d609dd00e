"""Recent figures are kept in memory for some minutes, so that the console can draw them."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from coordinator.process.worker_reports import Workers
    from store.figures import Figures

#: How far back, and how many looks at the store at most.
SECONDS = 900.0
_MOST = 200

#: Values by their age in seconds, the oldest first; None: the store did not tell.
Series = list[tuple[float, float | None]]


class Seen(NamedTuple):
    """What one look has found; None: the store did not tell. Of counts since the first look: ``commits`` and
    ``rollbacks`` of transactions; ``batches`` of the workers, and the seconds that their commits took.
    """

    at: float
    commits: float | None
    rollbacks: float | None
    batches: float
    seconds: float
    waiting: float | None
    undecided: float | None
    letters: float | None


class Recent:
    """Has the last looks. Threads of requests read them meanwhile."""

    def __init__(self) -> None:
        #: the oldest first; replaced as a whole
        self._looks: tuple[Seen, ...] = ()

    def add(self, figures: Figures, workers: Workers) -> None:
        now, counted, told = time.monotonic(), workers.counted(), figures.decided.counts
        decided = {
            wanted: None if figures.state is None else float(sum(n for (each, _), n in told.items() if each == wanted))
            for wanted in ("commit", "rollback")
        }
        entries = figures.entries
        seen = Seen(
            at=now,
            commits=decided["commit"],
            rollbacks=decided["rollback"],
            batches=sum(counted.seconds),
            seconds=counted.seconds_total,
            waiting=None if entries is None else float(sum(each.ready for each in entries)),
            undecided=figures.all_undecided,
            letters=figures.all_letters,
        )
        self._looks = (*(each for each in self._looks[1 - _MOST :] if each.at > now - SECONDS), seen)

    def values(self, of: Callable[[Seen], float | None]) -> Series:
        """Return a value of each look."""
        looks = self._looks
        return [(looks[-1].at - each.at, of(each)) for each in looks]

    def rates(self, count: Callable[[Seen], float | None], by: Callable[[Seen], float | None]) -> Series:
        """Return by how much a count has grown from look to look for each one of another, such as the time."""
        looks = self._looks
        return [
            (looks[-1].at - now.at, _rate(count(before), count(now), by(before), by(now)))
            for before, now in pairwise(looks)
        ]


def _rate(before: float | None, now: float | None, since: float | None, until: float | None) -> float | None:
    if before is None or now is None or since is None or until is None or until <= since:
        return None
    return max(0.0, now - before) / (until - since)
