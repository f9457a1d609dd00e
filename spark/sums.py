"""What the cells of a store add up to, in the driver: by address and hour, and for the plots."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from spark import marks
from spark.collapse import HOUR
from spark.directory import Directory
from spark.ledger import Pair
from store.ids import moment_of

#: What is summed by address and hour: halves, and expected pairs by what became of them.
BALANCE: Final = ("posted", "committed", "rolled_back", "undecided", "unknown", "expected", *marks.ACCOUNTED)
#: The last attempt that is told apart.
MOST_ATTEMPTS: Final = marks.MOST_ATTEMPTS + 1

_UNIX: Final = datetime(1970, 1, 1, tzinfo=UTC)

#: An address and an hour of posting.
AddressHour = tuple[int | None, datetime]


class Sums:
    """Adds up cells (:mod:`spark.collapse`) and the pairs that were looked at."""

    def __init__(self, directory: Directory, width: timedelta) -> None:
        """``width`` is of the slots of halves."""
        self._directory = directory
        self._width = width
        self.balance: dict[AddressHour, Counter[str]] = defaultdict(Counter)
        #: address, moment -> halves committed, rolled back, undecided
        self.outcomes: dict[tuple[int | None, datetime], list[int]] = defaultdict(lambda: [0, 0, 0])
        #: attempt -> accepted, dead-lettered, waiting
        self.attempts: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])

    def add_halves(self, cell: Any) -> None:
        """A row of :func:`spark.collapse.halves`."""
        at = moment_of_slot(cell.slot, self._width)
        sums = self.balance[cell.address_id, hour_of(at)]
        sums["posted"] += cell["count"]
        if cell.committed:
            sums["committed"] += cell["count"]
        if cell.rolled_back:
            sums["rolled_back"] += cell["count"]
        if cell.open_txn_id is not None:
            listed = cell.open_txn_id in self._directory.open_transactions
            sums["undecided" if listed else "unknown"] += cell["count"]
        outcome = 0 if cell.committed else 1 if cell.rolled_back else 2
        self.outcomes[cell.address_id, at][outcome] += cell["count"]

    def add_pairs(self, cell: Any) -> None:
        """A row of :func:`spark.collapse.pairs` that has a mark."""
        pair = marks.unpacked(cell.mark)
        address_id = self._directory.receivers[cell.group_id].address_id
        sums = self.balance[address_id, moment_of_slot(cell.slot, HOUR)]
        sums["expected"] += cell["count"]
        sums[pair.accounted] += cell["count"]
        self._add_attempt(pair.accounted, pair.failed_attempts, pair.attempts, cell["count"])

    def add_pair(self, pair: Pair) -> None:
        """A pair of the period that was looked at."""
        if pair.expected:
            sums = self.balance[pair.address_id, hour_of(moment_of(pair.half_id))]
            for name in ("expected", *marks.ACCOUNTED):
                sums[name] += getattr(pair, name)
        ended = next((kind for kind in ("accepted", "dead_lettered") if getattr(pair, kind)), None)
        kind = ended or ("ready" if pair.entries else "expired")
        self._add_attempt(kind, pair.failed_attempts, pair.attempts or 0, 1)

    def _add_attempt(self, kind: str, failed: int, attempts: int, count: int) -> None:
        if kind == "accepted":
            self.attempts[min(failed + 1, MOST_ATTEMPTS)][0] += count
        elif kind == "dead_lettered":
            self.attempts[min(max(failed, 1), MOST_ATTEMPTS)][1] += count
        elif kind not in ("expired", "purged"):
            self.attempts[min(attempts + 1, MOST_ATTEMPTS)][2] += count


def moment_of_slot(slot: int, width: timedelta) -> datetime:
    """When a slot begins (:func:`spark.collapse.slot`)."""
    return datetime.fromtimestamp(slot * width.total_seconds(), UTC)


def hour_of(moment: datetime) -> datetime:
    """The beginning of its hour."""
    return moment.replace(minute=0, second=0, microsecond=0)


def moment_of_micros(microseconds: int) -> datetime:
    """From microseconds since 1970."""
    return _UNIX + timedelta(microseconds=microseconds)
