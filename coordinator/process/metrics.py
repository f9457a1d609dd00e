"""Metrics in the form that Prometheus reads, of what the store and the workers have told (H19)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from coordinator.printable import printable
from coordinator.process.worker_reports import Workers
from coordinator.version import VERSION
from store.figures import (
    BATCH_ROWS,
    BUCKETS,
    COMMIT_SECONDS,
    AddressFigures,
    Decided,
    Figures,
    GroupFigures,
    PausedFigures,
    Undecided,
)
from store.runs import Stored
from store.watched import WatchState

#: The label for the sum of all but the largest. An address of this name is counted there, too.
REST = "(other)"
_LONGEST_LABEL = 128
#: How many kinds of findings are counted separately: all existing ones, unless others were inserted by hand.
_MOST_KINDS = 50


def registry(seen: Figures, workers: Workers, *, disk_low: bool = False) -> CollectorRegistry:
    """Return the figures of the store and the workers, for the encoders of the client library. ``disk_low``: posts are
    refused as the disk is nearly full.
    """
    made = CollectorRegistry(auto_describe=False)
    made.register(_Collector(seen, workers, disk_low))
    return made


class _Collector:
    """Implements the client library's interface of a collector."""

    def __init__(self, seen: Figures, workers: Workers, disk_low: bool) -> None:
        self._seen = seen
        self._disk_low = disk_low
        self._workers = workers

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        seen = self._seen
        yield _gauge("build_info", "Always 1; its label is the version.", [((VERSION,), 1)], "version")
        yield _gauge("store_up", "1: the store answered the last look.", [((), int(seen.state is not None))])
        yield _gauge("look_seconds", "How long the last look into the store took.", [((), seen.seconds)])
        low = [((), int(self._disk_low))]
        yield _gauge("disk_low", "1: posts are refused, as the disk of the embedded server is nearly full.", low)
        failed = [((part,), 1.0) for part in seen.failed]
        yield _gauge("look_failed", "1: this part of the last look was given up, or took too long.", failed, "part")
        if seen.state is not None and seen.state.schema:
            states = [(("alive",), seen.state.instances_alive), (("silent",), seen.state.instances_silent)]
            yield _gauge("instances", "Instances that have not ended, by whether their hearts beat.", states, "state")
            days = [((), seen.state.days_ahead)]
            yield _gauge("partitions_ahead", "Days after today that have partitions; -1: not even today.", days)
        if seen.entries is not None:
            yield from _entries(seen.entries)
        if seen.paused is not None:
            yield _paused(seen.paused)
        if seen.dead_letters is not None:
            help_text = "Messages that wait at addresses of dead letters."
            yield _by_address("dead_letters", help_text, [(each, each.count) for each in seen.dead_letters])
        if seen.undecided is not None:
            yield from _undecided(seen.undecided)
        if seen.last_run is not None:
            yield from _last_run(seen.last_run)
        if seen.watched is not None:
            yield from _watch_metrics(seen.watched)
        yield from _decided(seen.decided)
        yield from _of_workers(self._workers)


def _gauge(name: str, text: str, values: Sequence[tuple[tuple[str, ...], float]], *labels: str) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"coordinator_{name}", text, labels=labels)
    for own, value in values:
        family.add_metric(own, value)
    return family


def label(name: str | None) -> str:
    """Return ``name`` as the value of a label: printable, of bounded length, and unique for each name."""
    if name is None:
        return REST
    shown = printable(name, _LONGEST_LABEL)
    return shown if shown == name else f"{shown} {hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _summed(values: Iterable[tuple[tuple[str, ...], float]]) -> list[tuple[tuple[str, ...], float]]:
    """Sum values with equal labels: an address may have the name of the rest."""
    sums: dict[tuple[str, ...], float] = {}
    for labels, value in values:
        sums[labels] = sums.get(labels, 0) + value
    return list(sums.items())


def _entries(groups: tuple[GroupFigures, ...]) -> Iterator[Metric]:
    values = []
    for each in groups:
        place = (label(each.address), REST if each.group is None else label(each.group))
        counts = {"ready": each.ready, "inflight": each.inflight, "scheduled": each.scheduled, "failed": each.failed}
        values += [((*place, state), float(count)) for state, count in counts.items()]
    help_text = "Messages that consumer groups have still to end, by state."
    yield _gauge("entries", help_text, _summed(values), "address", "group", "state")
    estimated = sum(each.estimated for each in groups)
    yield _gauge("groups_estimated", "Consumer groups whose ready messages are estimated.", [((), estimated)])


def _paused(groups: tuple[PausedFigures, ...]) -> Metric:
    values = [((label(each.address), label(each.group)), each.seconds) for each in groups]
    help_text = "For how long an operator has paused a consumer group; of no other is there a value."
    return _gauge("group_paused_seconds", help_text, values, "address", "group")


def _by_address(name: str, text: str, values: Sequence[tuple[AddressFigures, float]]) -> GaugeMetricFamily:
    return _gauge(name, text, _summed(((label(each.address),), value) for each, value in values), "address")


def _undecided(found: Undecided) -> Iterator[Metric]:
    kinds = [(("plain",), found.plain), (("checkable",), found.checkable)]
    yield _gauge("undecided_transactions", "Transactions without a decision that the store knows.", kinds, "kind")
    oldest = [((), found.oldest_seconds)]
    yield _gauge("undecided_oldest_seconds", "The age of the oldest of them.", oldest)
    yield _gauge("undecided_checks_sent", "Checks sent for transactions that are undecided now.", [((), found.checks)])
    waiting = [((), found.waiting)]
    yield _gauge("undecided_checks_due", "Transactions whose check is due, and not sent yet.", waiting)
    retired = [((), found.retired)]
    yield _gauge("undecided_retirements", "Deliveries retired in undecided checkable transactions.", retired)
    halves = [(each, float(each.count)) for each in found.halves]
    yield _by_address("undecided_halves", "Messages of undecided checkable transactions.", halves)
    ages: dict[tuple[str, ...], float] = {}
    for each in found.halves:
        own = (label(each.address),)
        ages[own] = max(ages.get(own, 0.0), each.oldest_seconds)
    text = "The age of the oldest of these messages."
    yield _gauge("undecided_halves_oldest_seconds", text, list(ages.items()), "address")


def _findings(counts: Mapping[tuple[str, str], int]) -> list[tuple[tuple[str, ...], float]]:
    """Return the numbers of findings by kind and severity."""
    most = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    named = [((label(kind), severity), float(count)) for (kind, severity), count in most[:_MOST_KINDS]]
    rest = [((REST, severity), float(count)) for (_, severity), count in most[_MOST_KINDS:]]
    return _summed(named + rest)


def _watch_metrics(found: WatchState) -> Iterator[Metric]:
    help_text = "Findings of coordinator watch since it began anew, by kind and severity."
    yield _gauge("watch_findings", help_text, _findings(found.findings), "kind", "severity")
    counter = CounterMetricFamily(
        "coordinator_watch_counted", "Halves, ops and deliveries that coordinator watch has counted.", labels=("what",)
    )
    for what, count in sorted(found.counts.items()):
        counter.add_metric((label(what),), count)
    yield counter
    help_text = "Halves and ops that coordinator watch has not counted yet, up to 100,000 of each."
    yield _gauge("watch_rows_behind", help_text, [((), found.lag.rows)])
    yield _gauge("watch_lag_seconds", "The age of the oldest of them.", [((), found.lag.seconds)])


def _last_run(run: Stored) -> Iterator[Metric]:
    help_text = "Findings of the last run of coordinator reconcile --store, by kind and severity."
    yield _gauge("findings", help_text, _findings(run.counts), "kind", "severity")
    at = [((), run.seen_at.timestamp())]
    yield _gauge("reconciled_timestamp_seconds", "When that run read the store, in seconds since 1970.", at)


def _decided(decided: Decided) -> Iterator[Metric]:
    counter = CounterMetricFamily(
        "coordinator_decisions", "Transactions decided, by decision and reason.", labels=("decision", "reason")
    )
    for told, count in decided.counts.items():
        counter.add_metric(told, count)
    yield counter
    histogram = HistogramMetricFamily(
        "coordinator_decision_seconds", "Time from a transaction's declare to its decision.", labels=("decision",)
    )
    for decision, times in decided.times.items():
        histogram.add_metric((decision,), buckets=_buckets(BUCKETS, times), sum_value=decided.seconds[decision])
    yield histogram


def _buckets(ends: Sequence[float], counts: Sequence[float]) -> list[tuple[str, float]]:
    """Return buckets for Prometheus: the number of values up to each end."""
    return list(zip((*map(str, ends), "+Inf"), map(float, accumulate(counts)), strict=True))


def _of_workers(workers: Workers) -> Iterator[Metric]:
    for figure, name, text in (
        ("connections", "connections", "Connections of clients."),
        ("links", "links", "Links of clients."),
        ("commit_waits", "commit_waits_seconds", "How long the batch under way has waited for the store; 0: none is."),
    ):
        values = [((str(worker),), count) for worker, count in sorted(workers.now(figure).items())]
        yield _gauge(name, text, values, "worker")
    counted = workers.counted()
    batches = HistogramMetricFamily("coordinator_batch_rows", "Batches that were committed, by their rows.")
    batches.add_metric((), buckets=_buckets(BATCH_ROWS, counted.rows), sum_value=counted.rows_total)
    yield batches
    times = HistogramMetricFamily("coordinator_commit_seconds", "Time that the store took to commit a batch.")
    times.add_metric((), buckets=_buckets(COMMIT_SECONDS, counted.seconds), sum_value=counted.seconds_total)
    yield times
    checks = CounterMetricFamily(
        "coordinator_checks", "Checks sent, and those that were answered with a decision or not.", labels=("state",)
    )
    for state, count in zip(("sent", "answered", "unanswered"), counted.checks, strict=True):
        checks.add_metric((state,), count)
    yield checks
    spans = CounterMetricFamily(
        "coordinator_spans", "Spans that a collector has taken, and those that were dropped.", labels=("state",)
    )
    for state, count in zip(("sent", "dropped"), counted.spans, strict=True):
        spans.add_metric((state,), count)
    yield spans
