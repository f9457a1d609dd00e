"""Compute the numbers of the report's plots from the cells of the store (:mod:`spark.sums`)."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from spark.checks import Transaction
from spark.directory import Directory
from spark.ledger import declared_at
from spark.sums import BALANCE, SHORTEST, STEPS_PER_E, Sums, moment_of_slot

#: A plot over time has at most this many points.
MOST_BUCKETS: Final = 120
_WIDTHS: Final = tuple(
    timedelta(seconds=seconds)
    for seconds in (1, 5, 15, 60, 300, 900, 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400, 365 * 86400)
)
#: Upper edges of the ages of undecided transactions, with what they are called.
AGES: Final = (
    (1, "up to 1 s"),
    (10, "to 10 s"),
    (60, "to 1 min"),
    (600, "to 10 min"),
    (3600, "to 1 h"),
    (86400, "to 1 day"),
)
OLDEST_AGE: Final = "over 1 day"


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """The numbers of halves of one address in one bucket of time, by outcome."""

    at: datetime
    address: str | None
    committed: int
    rolled_back: int
    undecided: int


@dataclass(frozen=True, kw_only=True)
class Latency:
    """The times from declare to decision, in seconds, of the transactions decided in one bucket."""

    at: datetime
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, kw_only=True)
class AddressBalance:
    """The sums of R19 for one address over the whole period."""

    address: str | None
    counts: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """All numbers of a report."""

    bucket: timedelta
    outcomes: list[Outcomes]
    #: halves that plain transactions posted and rolled back: they were never stored, so no address is known
    unstored: list[tuple[datetime, int]]
    latencies: list[Latency]
    undecided_by_age: list[tuple[str, int]]
    #: attempt -> (accepted, dead-lettered, waiting)
    attempts: list[tuple[int, int, int, int]]
    #: address, group, error, count
    dead_letters: list[tuple[str | None, str | None, str, int]]
    balances: list[AddressBalance]
    totals: dict[str, int] = field(default_factory=dict)


def bucket_width(extent: timedelta) -> timedelta:
    """Return the finest width that draws ``extent`` in at most ``MOST_BUCKETS`` points."""
    for width in _WIDTHS:
        if extent <= width * MOST_BUCKETS:
            return width
    return _WIDTHS[-1]


class Decisions:
    """Adds up the transactions of the period."""

    def __init__(self, width: timedelta) -> None:
        """``width`` is of the slots of their cells."""
        self._width = width
        self.totals: Counter[str] = Counter()
        #: moment -> step of the time from declare to decision -> how many
        self.waited: dict[datetime, Counter[int]] = defaultdict(Counter)
        self.unstored: Counter[datetime] = Counter()
        self.open_since: list[datetime] = []

    def add_cell(self, cell: Any) -> None:
        """Add a row of :func:`spark.sums.transactions` whose ``looked_at`` is null."""
        self._add(moment_of_slot(cell.slot, self._width), cell.committed, cell.latency, cell["count"])
        self.unstored[moment_of_slot(cell.slot, self._width)] += cell.unstored

    def add(self, found: Transaction) -> None:
        """Add a transaction that was examined."""
        if found.decided_at is None:
            self.totals["transactions"] += 1
            self.totals["transactions_undecided"] += 1
            self.open_since.append(declared_at(found.txn_id))
            return
        waited = (found.decided_at - declared_at(found.txn_id)).total_seconds()
        step = math.floor(math.log(max(waited, SHORTEST) / SHORTEST) * STEPS_PER_E)
        at = _floor(found.decided_at, self._width)
        self._add(at, found.commits > 0, step, 1)
        if found.rollbacks:
            self.unstored[at] += max((found.posted or 0) - found.halves, 0)

    def _add(self, at: datetime, committed: bool, step: int, count: int) -> None:
        self.totals["transactions"] += count
        self.totals["transactions_committed" if committed else "transactions_rolled_back"] += count
        self.waited[at][step] += count


def measure(
    sums: Sums,
    decisions: Decisions,
    *,
    dead_letters: Sequence[tuple[int | None, int, str, int]],
    directory: Directory,
    least_width: timedelta,
    seen_at: datetime,
) -> Metrics:
    """Everything the report plots.

    ``dead_letters``: address, group, error and count, the most frequent first. Points of time are no closer than
    ``least_width``.
    """
    moments = [at for _, at in sums.outcomes] + list(decisions.waited)
    width = max(least_width, bucket_width(max(moments) - min(moments))) if moments else least_width
    unstored: Counter[datetime] = Counter()
    for at, count in decisions.unstored.items():
        unstored[_floor(at, width)] += count
    balances = _balances(sums, directory)
    return Metrics(
        bucket=width,
        outcomes=_outcomes(sums, directory, width),
        unstored=sorted((at, count) for at, count in unstored.items() if count),
        latencies=_latencies(decisions, width),
        undecided_by_age=_undecided_by_age(decisions.open_since, seen_at),
        attempts=[(attempt, *map(int, counts)) for attempt, counts in sorted(sums.attempts.items())],  # type: ignore[misc]
        dead_letters=[
            (directory.addresses.get(address) if address is not None else None, directory.groups.get(group), why, count)
            for address, group, why, count in dead_letters
        ],
        balances=balances,
        totals={
            **{name: decisions.totals[name] for name in _TRANSACTION_TOTALS},
            "rolled_back_unstored": unstored.total(),
            **{name: sum(of_address.counts[name] for of_address in balances) for name in BALANCE},
        },
    )


_TRANSACTION_TOTALS: Final = (
    "transactions",
    "transactions_committed",
    "transactions_rolled_back",
    "transactions_undecided",
)


def _floor(moment: datetime, width: timedelta) -> datetime:
    seconds = int(width.total_seconds())
    return datetime.fromtimestamp(int(moment.timestamp()) // seconds * seconds, UTC)


def _outcomes(sums: Sums, directory: Directory, width: timedelta) -> list[Outcomes]:
    found: dict[tuple[datetime, str | None], list[int]] = defaultdict(lambda: [0, 0, 0])
    for (address_id, at), counts in sums.outcomes.items():
        name = directory.addresses.get(address_id) if address_id is not None else None
        for place, count in enumerate(counts):
            found[_floor(at, width), name][place] += count
    return [
        Outcomes(at=at, address=name, committed=counts[0], rolled_back=counts[1], undecided=counts[2])
        for (at, name), counts in sorted(found.items(), key=lambda item: (item[0][0], item[0][1] or ""))
    ]


def _latencies(decisions: Decisions, width: timedelta) -> list[Latency]:
    found: dict[datetime, Counter[int]] = defaultdict(Counter)
    for at, steps in decisions.waited.items():
        found[_floor(at, width)].update(steps)
    return [
        Latency(at=at, p50=percentile(steps, 0.5), p95=percentile(steps, 0.95), p99=percentile(steps, 0.99))
        for at, steps in sorted(found.items())
    ]


def percentile(steps: Counter[int], share: float) -> float:
    """Return the seconds (to 2 percent) that ``share`` of the counted took at most; ``steps`` as :mod:`spark.sums` has
    them.
    """
    wanted = math.ceil(share * steps.total())
    for step in sorted(steps):
        wanted -= steps[step]
        if wanted <= 0:
            return SHORTEST * math.exp((step + 0.5) / STEPS_PER_E)
    raise ValueError("nothing was counted")


def _balances(sums: Sums, directory: Directory) -> list[AddressBalance]:
    found: dict[str | None, Counter[str]] = defaultdict(Counter)
    for (address_id, _), counts in sums.balance.items():
        found[directory.addresses.get(address_id) if address_id is not None else None].update(counts)
    return [
        AddressBalance(address=name, counts={part: counts[part] for part in BALANCE})
        for name, counts in sorted(found.items(), key=lambda item: (item[0] is not None, item[0] or ""))
    ]


def _undecided_by_age(open_since: Iterable[datetime], seen_at: datetime) -> list[tuple[str, int]]:
    counted: Counter[str] = Counter()
    for since in open_since:
        age = (seen_at - since).total_seconds()
        counted[next((name for most, name in AGES if age <= most), OLDEST_AGE)] += 1
    return [(name, counted[name]) for name in (*(name for _, name in AGES), OLDEST_AGE)]
