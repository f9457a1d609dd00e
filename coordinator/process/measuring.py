"""Measuring polls the store for the metrics, and answers requests for them.

It runs in a process of its own, one for all workers. A request never queries the store: it gets the result of the last
poll.
"""

from __future__ import annotations

import hashlib
import hmac
import select
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from typing import Any

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from coordinator.login.logins import origin_of
from coordinator.printable import printable
from coordinator.process import certificates
from coordinator.process.children import Supervising
from coordinator.process.listeners import metrics_token
from coordinator.process.worker_reports import LONG_SECONDS, Workers
from coordinator.secret_file import FileInvalid
from coordinator.settings import Settings
from coordinator.version import VERSION
from store.errors import ONLY_READS, from_sqlstate
from store.figures import (
    BATCH_ROWS,
    BUCKETS,
    COMMIT_SECONDS,
    AddressFigures,
    Decided,
    FigureReader,
    Figures,
    GroupFigures,
    Undecided,
)
from store.loop import TimeShare
from store.runs import Stored
from store.watched import WatchState

# The metrics in the form that Prometheus reads (H19).

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


_log: structlog.stdlib.BoundLogger = structlog.get_logger()

#: The shortest pause between two polls of the store.
POLL_SECONDS = 5.0
#: The age from which on a poll is out of date.
_FRESH_SECONDS = 30.0
#: With fewer days of partitions after today, the service could soon accept no posts.
_FEWEST_DAYS = 1
_MOST_REQUESTS = 8
#: A browser must not run, embed or keep an answer (S11).
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_LONGEST_REQUEST_SECONDS = 10.0
#: Seconds for a request that was cut off to end.
_CUT_SECONDS = 1.0


class Measuring:
    """Polls the store, and serves the metrics: ``run()`` lasts until the supervisor has ended."""

    def __init__(
        self,
        url: str,
        supervising: Supervising,
        listeners: Sequence[socket.socket],
        settings: Settings,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._settings = settings
        #: the TLS context of new requests; None: without TLS
        self.tls = tls if settings.metrics.has_tls else None
        self.token = metrics_token(settings.metrics)
        #: whether posts are refused as the disk is nearly full, by the supervisor's report
        self.disk_low = False
        self._reader = FigureReader(url)
        self._supervising = supervising
        self._listeners = listeners
        #: the last poll, with the monotonic time of the next; replaced as a whole, as the threads of requests read it
        self._last: tuple[Figures, float] | None = None
        self.workers = Workers()

    def run(self) -> None:
        for listener in self._listeners:
            threading.Thread(target=_Server(listener, self).serve_forever, daemon=True).start()
        failed: tuple[str, ...] = ()
        while True:
            seen = self._reader.read()
            # A poll that found no store has waited, without a cost for the store.
            pause = TimeShare(20, POLL_SECONDS).pause(0.0 if seen.state is None else seen.seconds)
            self._last = (seen, time.monotonic() + pause)
            if seen.failed != failed:
                failed = seen.failed
                if failed:
                    _log.warning("metrics are missing", parts=failed, seconds=round(seen.seconds, 1))
                else:
                    _log.info("all metrics are there again")
            if not self._receive_until(time.monotonic() + pause):
                return

    def _receive_until(self, end: float) -> bool:
        """Read the workers' reports until ``end``; False: the supervisor has ended."""
        while True:
            readable, _, _ = select.select([self._supervising], [], [], max(0.0, end - time.monotonic()))
            if not readable:
                return True
            words = self._supervising.receive()
            if not words:
                return False
            for each in words:
                if "certificates" in each:
                    self._read_again()
                elif "disk_low" in each:
                    self.disk_low = bool(each["disk_low"])
                else:
                    self.workers.receive(**each)

    def _read_again(self) -> None:
        """Load the certificates and the token again; if a file cannot be used, the old ones stay."""
        try:
            token = metrics_token(self._settings.metrics)
            self.tls = certificates.load(self._settings.tls) if self._settings.metrics.has_tls else None
            self.token = token
        except FileInvalid as error:
            _log.error("certificates not read again", reason=str(error))

    def figures(self) -> Figures | None:
        """Return the result of the last poll; None: there was no poll yet."""
        return None if self._last is None else self._last[0]

    def wanting(self) -> list[str]:
        """Return what the service lacks to be ready, a line each, without texts of the store."""
        if self._last is None or time.monotonic() > self._last[1] + _FRESH_SECONDS:
            return ["store: not looked at yet, or it does not answer"]
        state = self._last[0].state
        if state is None:
            return ["store: away, or it does not answer"]
        if not state.schema:
            return ["schema: not the one of this version"]
        if state.only_reads:
            return [f"store: {from_sqlstate(ONLY_READS)}"]
        lines = []
        if not state.instances_alive:
            lines.append("instances: none is alive")
        if state.days_ahead < _FEWEST_DAYS:
            lines.append(f"days: {state.days_ahead} made ahead, {_FEWEST_DAYS} needed")
        for worker, seconds in sorted(self.workers.now("commit_waits").items()):
            if seconds > LONG_SECONDS:
                lines.append(f"store: worker {worker} waits for a commit, for {seconds:.0f} s")
        return lines


class _Server(ThreadingHTTPServer):
    """Serves requests on a listening socket. Long requests are cut off; if there are too many at once, one of the host
    with the most is, so that it does not exclude others (S5).
    """

    daemon_threads = True

    def __init__(self, listener: socket.socket, measuring: Measuring) -> None:
        super().__init__(listener.getsockname()[:2], _Request, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        listener.setblocking(False)
        self.measuring = measuring
        self._room = threading.BoundedSemaphore(_MOST_REQUESTS)
        #: the host of each request, or its IPv6 network of 64 bits, the oldest first
        self._hosts: dict[socket.socket, str] = {}

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a request, with TLS if configured; the handshake takes place with the first read."""
        request, address = super().get_request()
        tls = self.measuring.tls
        if tls is not None:
            request = tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        return request, address

    def process_request(self, request: socket.socket, client_address: Any) -> None:  # type: ignore[override]
        if not self._room.acquire(blocking=False):
            self._make_room()
            if not self._room.acquire(timeout=_CUT_SECONDS):
                self.shutdown_request(request)
                return
        self._hosts[request] = origin_of(client_address[0])
        super().process_request(request, client_address)

    def _make_room(self) -> None:
        hosts = self._hosts.copy()
        if hosts:
            ((most, _),) = Counter(hosts.values()).most_common(1)
            _cut(next(request for request, host in hosts.items() if host == most))

    def process_request_thread(self, request: socket.socket, client_address: Any) -> None:  # type: ignore[override]
        limit = threading.Timer(_LONGEST_REQUEST_SECONDS, _cut, [request])
        try:
            limit.start()
            super().process_request_thread(request, client_address)
        finally:
            limit.cancel()
            del self._hosts[request]
            self._room.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Log a failed request: the peer has disconnected, or the request is not HTTP."""
        _log.debug("a request for metrics failed", exc_info=True)


def _cut(request: socket.socket) -> None:
    """End a request while its thread reads or writes: below TLS, so that no more octets are sent."""
    with suppress(OSError):
        socket.socket.shutdown(request, socket.SHUT_RDWR)


class _Request(BaseHTTPRequestHandler):
    server: _Server
    #: the octets of the request's first line
    raw_requestline: bytes

    def version_string(self) -> str:
        return "coordinator"

    def do_GET(self) -> None:
        measuring = self.server.measuring
        path = self.path.partition("?")[0]
        if path == "/metrics" and not self._shows_token():
            self._answer(HTTPStatus.UNAUTHORIZED, b"expected the token of metrics.token\n")
        elif path == "/metrics":
            seen = measuring.figures()
            if seen is None:
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, b"the store is not looked at yet\n")
                return
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            self._answer(HTTPStatus.OK, encode(registry(seen, measuring.workers, disk_low=measuring.disk_low)), kind)
        elif path == "/healthz":
            self._answer(HTTPStatus.OK, b"ok\n")
        elif path == "/readyz":
            lines = measuring.wanting()
            status = HTTPStatus.SERVICE_UNAVAILABLE if lines else HTTPStatus.OK
            self._answer(status, "".join(f"{line}\n" for line in lines or ["ok"]).encode())
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"expected /metrics, /healthz or /readyz\n")

    do_HEAD = do_GET

    def parse_request(self) -> bool:
        """Parse a request, and refuse HTTP/0.9, whose requests and answers have no header."""
        words = self.raw_requestline.decode("iso-8859-1").split()
        if len(words) == 2 or words[-1] == "HTTP/0.9":
            self.command, self.requestline = "", ""
            self.send_error(HTTPStatus.BAD_REQUEST)
            return False
        return super().parse_request()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer an invalid request or another method, without quoting it, and without HTML."""
        self.close_connection = True
        self.request_version = self.protocol_version  # with a status line, even if the request's was not read
        self._answer(HTTPStatus(code), b"expected GET or HEAD of HTTP/1.0 or HTTP/1.1\n")

    def _shows_token(self) -> bool:
        token = self.server.measuring.token
        if token is None:
            return True
        kind, _, shown = self.headers.get("Authorization", "").partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(shown.strip().encode(), token)

    def _answer(self, status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", 'Bearer realm="metrics"')
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Do nothing: requests are not logged."""
