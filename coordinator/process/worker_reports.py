"""Workers report their figures to the supervisor, which passes them to the metrics (H19).

The figures of a worker that dies are lost; the metrics keep the counts that it has reported, so that no counter falls.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog

from store.errors import from_sqlstate
from store.figures import BATCH_ROWS, COMMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sized

    from coordinator.process.children import Supervising
    from coordinator.service import Service

#: seconds between two reports of a worker
REPORT_SECONDS = 2.0
#: Seconds after which an uncommitted batch is logged, and the service is not ready.
LONG_SECONDS = 10.0
#: A worker whose last report is older than this stands still.
_SILENT_SECONDS = 10.0

log = structlog.get_logger(__name__)


class Reporting:
    """The worker's side: reports every few seconds, and never waits for the supervisor."""

    def __init__(
        self, service: Service, supervising: Supervising, connections: Sized, open_links: Callable[[], int]
    ) -> None:
        self._connections, self._open_links = connections, open_links
        self._service = service
        self._supervising = supervising
        self._stands = False
        self._turn()

    def _turn(self) -> None:
        self._service.loop.call_later(REPORT_SECONDS, self._turn)
        commit, checks, traces = self._service.commit, self._service.checks, self._service.instance.traces
        waits, why = commit.waits
        self._check_commit(waits, why)
        self._supervising.offer(
            figures={
                "connections": len(self._connections),
                "links": self._open_links(),
                "serves": self._service.starved is None,
                "commit_waits": waits,
                "rows": commit.sizes.counts,
                "rows_total": commit.sizes.total,
                "seconds": commit.times.counts,
                "seconds_total": commit.times.total,
                "checks": [checks.sent, checks.answered, checks.unanswered],
                "spans": [0, 0] if traces is None else [traces.sent, traces.dropped],
            }
        )

    def _check_commit(self, waits: float, why: str) -> None:
        if waits > LONG_SECONDS and not self._stands:
            hint = str(from_sqlstate(why)) if why else "coordinator check says which session holds it up"
            log.error("the store does not commit: clients wait", seconds=round(waits), hint=hint)
        elif self._stands and waits <= LONG_SECONDS:
            log.warning("the store commits again")
        self._stands = waits > LONG_SECONDS


@dataclass
class Counted:
    """The counts of workers since they, or the metrics, began."""

    #: batches by their rows (:data:`BATCH_ROWS`), and the rows
    rows: list[float] = field(default_factory=lambda: [0.0] * (len(BATCH_ROWS) + 1))
    rows_total: float = 0.0
    #: batches by the time of their commit (:data:`COMMIT_SECONDS`), and these times
    seconds: list[float] = field(default_factory=lambda: [0.0] * (len(COMMIT_SECONDS) + 1))
    seconds_total: float = 0.0
    #: checks sent, answered, unanswered
    checks: list[float] = field(default_factory=lambda: [0.0] * 3)
    #: spans that a collector has taken, and those that were dropped
    spans: list[float] = field(default_factory=lambda: [0.0] * 2)

    def add(self, figures: Mapping[str, Any]) -> None:
        self.rows = _sums(self.rows, figures["rows"])
        self.rows_total += figures["rows_total"]
        self.seconds = _sums(self.seconds, figures["seconds"])
        self.seconds_total += figures["seconds_total"]
        self.checks = _sums(self.checks, figures["checks"])
        self.spans = _sums(self.spans, figures["spans"])


def _sums(some: Sequence[float], others: Sequence[float]) -> list[float]:
    return [one + other for one, other in zip(some, others, strict=True)]


class Workers:
    """The metrics' side: keeps the last report of each worker. Threads of requests read it meanwhile."""

    def __init__(self) -> None:
        #: the counts of ended workers; and process, figures and time of arrival by the worker's number. Replaced as a
        #: whole
        self._reports: tuple[Counted, dict[int, tuple[int, Mapping[str, Any], float]]] = Counted(), {}

    def receive(self, worker: int, pid: int, figures: Mapping[str, Any]) -> None:
        ended, last = self._reports
        before = last.get(worker)
        if before is not None and before[0] != pid:
            ended = _sum(vars(ended), before[1])
        self._reports = ended, {**last, worker: (pid, figures, time.monotonic())}

    def now(self, name: str) -> dict[int, float]:
        """Return ``connections``, ``links`` or ``commit_waits``, by worker."""
        _, last = self._reports
        return {worker: float(figures[name]) for worker, (_, figures, _) in last.items()}

    def lines(self) -> list[dict[str, object]]:
        """Return the last report of each worker, its number, its process, and its age in seconds (``ago``)."""
        _, last = self._reports
        now = time.monotonic()
        return [
            {"worker": worker, "pid": pid, "ago": now - at, **figures}
            for worker, (pid, figures, at) in sorted(last.items())
        ]

    def serving(self) -> int:
        """Return how many workers serve clients, by reports that are not old."""
        _, last = self._reports
        since = time.monotonic() - _SILENT_SECONDS
        return sum(bool(figures["serves"]) and at >= since for _, figures, at in last.values())

    def counted(self) -> Counted:
        ended, last = self._reports
        return _sum(vars(ended), *(figures for _, figures, _ in last.values()))


def _sum(*counted: Mapping[str, Any]) -> Counted:
    found = Counted()
    for each in counted:
        found.add(each)
    return found
