"""Measuring polls the store for the metrics.

It runs in a process of its own, one for all workers, which answers HTTP. A request for metrics never queries the store:
it gets the result of the last poll.
"""

from __future__ import annotations

import select
import ssl
import time
from typing import TYPE_CHECKING

import structlog

from coordinator.process import certificates
from coordinator.process.children import Supervising
from coordinator.process.listeners import metrics_token, operators
from coordinator.process.recent import Recent
from coordinator.process.worker_reports import LONG_SECONDS, Workers
from coordinator.secret_file import FileInvalid
from coordinator.settings import Settings
from store.errors import ONLY_READS, from_sqlstate
from store.figures import FigureReader, Figures
from store.loop import TimeShare

if TYPE_CHECKING:
    from coordinator.login.tokens import Tokens

_log: structlog.stdlib.BoundLogger = structlog.get_logger()

#: The shortest pause between two polls of the store.
POLL_SECONDS = 5.0
#: The age from which on a poll is out of date.
_FRESH_SECONDS = 30.0
#: With fewer days of partitions after today, the service could soon accept no posts.
_FEWEST_DAYS = 1


class Measuring:
    """Polls the store, and reads the supervisor's reports: ``run()`` lasts until the supervisor has ended."""

    def __init__(self, url: str, supervising: Supervising, settings: Settings, tls: ssl.SSLContext | None) -> None:
        self._settings = settings
        #: the TLS context of new requests; None: without TLS
        self.tls = tls if settings.metrics.has_tls else None
        self.token = metrics_token(settings.metrics)
        #: the names of those who may act, by their tokens
        self.operators = operators(settings.metrics)
        #: checks the tokens of an issuer; None: there is none
        self.tokens: Tokens | None = None
        #: whether posts are refused as the disk is nearly full, by the supervisor's report
        self.disk_low = False
        self._reader = FigureReader(url)
        self._supervising = supervising
        #: the last poll, with the monotonic time of the next; replaced as a whole, as the threads of requests read it
        self._last: tuple[Figures, float] | None = None
        self.workers = Workers()
        self.recent = Recent()

    def run(self) -> None:
        failed: tuple[str, ...] = ()
        while True:
            seen = self._reader.read()
            # A poll that found no store has waited, without a cost for the store.
            pause = TimeShare(20, POLL_SECONDS).pause(0.0 if seen.state is None else seen.seconds)
            self.recent.add(seen, self.workers)
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
                elif "token_keys" in each:
                    if self.tokens is not None:
                        self.tokens.learn(each["token_keys"])
                elif "disk_low" in each:
                    self.disk_low = bool(each["disk_low"])
                else:
                    self.workers.receive(**each)

    @property
    def by_roles(self) -> bool:
        """Whether some role of a token lets its holder use the API."""
        settings = self._settings.tokens
        return settings.operator_role is not None or settings.reader_role is not None

    def ask_issuer(self) -> None:
        """Have the keys of the issuer of tokens read again, as one is not known."""
        self._supervising.offer(wants_keys=True)

    def _read_again(self) -> None:
        """Load the certificates and the tokens again; if a file cannot be used, the old ones stay."""
        try:
            token, named = metrics_token(self._settings.metrics), operators(self._settings.metrics)
            self.tls = certificates.load(self._settings.tls) if self._settings.metrics.has_tls else None
            self.token, self.operators = token, named
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
        if not self.workers.serving():
            lines.append("workers: none of this machine serves clients")
        if state.days_ahead < _FEWEST_DAYS:
            lines.append(f"days: {state.days_ahead} made ahead, {_FEWEST_DAYS} needed")
        for worker, seconds in sorted(self.workers.now("commit_waits").items()):
            if seconds > LONG_SECONDS:
                lines.append(f"store: worker {worker} waits for a commit, for {seconds:.0f} s")
        return lines
