"""Looks into the store for the metrics, and answers those who ask for them.

It runs in a process of its own, one for all workers. A request never asks the store: it gets what the last look has
seen.
"""

from __future__ import annotations

import hmac
import select
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import structlog
from prometheus_client.exposition import choose_encoder

from coordinator.login.origin import origin_of
from coordinator.process import certificates, doors
from coordinator.process.exposition import registry
from coordinator.process.secret_files import FileInvalid
from coordinator.process.supervising import Supervising
from coordinator.process.telling import LONG_SECONDS, Workers
from coordinator.settings import Settings
from store.errors import ONLY_READS, from_sqlstate
from store.looking import Looks, Seen

_log: structlog.stdlib.BoundLogger = structlog.get_logger()

#: Between two looks, at least; and so many times as long as the last took, as looking takes a twentieth of the time.
LOOK_SECONDS = 5.0
_TIMES_LONGER = 20
#: A look that is older says nothing about now.
_FRESH_SECONDS = 30.0
#: With fewer days after today, the service could soon take no post.
_FEWEST_DAYS = 1
_MOST_REQUESTS = 8
#: A browser runs, embeds and keeps nothing of an answer (S11).
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_LONGEST_REQUEST_SECONDS = 10.0
#: How long a request that was cut off may take to end.
_CUT_SECONDS = 1.0


class Measuring:
    """``run()`` until the supervisor has ended."""

    def __init__(
        self,
        url: str,
        supervising: Supervising,
        listeners: Sequence[socket.socket],
        settings: Settings,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._settings = settings
        #: of requests from now on, where there is TLS
        self.tls = tls if settings.metrics.has_tls else None
        self.token = doors.token(settings.metrics)
        #: whether posts are refused for lack of disk, as the supervisor has told
        self.disk_low = False
        self._looks = Looks(url)
        self._supervising = supervising
        self._listeners = listeners
        #: with when to look next, by the monotonic clock; replaced as a whole, as the threads of requests read it
        self._last: tuple[Seen, float] | None = None
        self.workers = Workers()

    def run(self) -> None:
        for listener in self._listeners:
            threading.Thread(target=_Server(listener, self).serve_forever, daemon=True).start()
        failed: tuple[str, ...] = ()
        while True:
            seen = self._looks.look()
            # A look that found no store has waited, and costs nothing.
            pause = LOOK_SECONDS if seen.state is None else max(LOOK_SECONDS, _TIMES_LONGER * seen.seconds)
            self._last = (seen, time.monotonic() + pause)
            if seen.failed != failed:
                failed = seen.failed
                if failed:
                    _log.warning("metrics are missing", parts=failed, seconds=round(seen.seconds, 1))
                else:
                    _log.info("all metrics are there again")
            if not self._hear_until(time.monotonic() + pause):
                return

    def _hear_until(self, end: float) -> bool:
        """What the workers tell; False: the supervisor has ended."""
        while True:
            readable, _, _ = select.select([self._supervising], [], [], max(0.0, end - time.monotonic()))
            if not readable:
                return True
            words = self._supervising.hear()
            if not words:
                return False
            for each in words:
                if "certificates" in each:
                    self._read_again()
                elif "disk_low" in each:
                    self.disk_low = bool(each["disk_low"])
                else:
                    self.workers.told(**each)

    def _read_again(self) -> None:
        """Certificates, and the token; where a file cannot be used, what was in it stays."""
        try:
            token = doors.token(self._settings.metrics)
            self.tls = certificates.load(self._settings.tls) if self._settings.metrics.has_tls else None
            self.token = token
        except FileInvalid as error:
            _log.error("certificates not read again", reason=str(error))

    def seen(self) -> Seen | None:
        """The last look, unless there was none yet."""
        return None if self._last is None else self._last[0]

    def wanting(self) -> list[str]:
        """What the service lacks to be ready; a line each, without a text of the store's."""
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
    """On a socket that listens already. Requests that take long are cut off; of those beyond some at a time, one of the
    host that has the most, so that it keeps no other out (S5).
    """

    daemon_threads = True

    def __init__(self, listener: socket.socket, measuring: Measuring) -> None:
        super().__init__(listener.getsockname()[:2], _Request, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        listener.setblocking(False)
        self.measuring = measuring
        self._room = threading.BoundedSemaphore(_MOST_REQUESTS)
        #: the host of each request, or its network of 64 bits, the oldest first
        self._hosts: dict[socket.socket, str] = {}

    def get_request(self) -> tuple[socket.socket, Any]:
        """Behind TLS, where there is; its handshake comes with what is read first."""
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
        """A peer that goes away, or asks what is none of HTTP."""
        _log.debug("a request for metrics failed", exc_info=True)


def _cut(request: socket.socket) -> None:
    """End it, while its thread reads or writes: below TLS, so that nothing more goes out, encrypted or not."""
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
            seen = measuring.seen()
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
        """Without HTTP/0.9, whose requests and answers have no header."""
        words = self.raw_requestline.decode("iso-8859-1").split()
        if len(words) == 2 or words[-1] == "HTTP/0.9":
            self.command, self.requestline = "", ""
            self.send_error(HTTPStatus.BAD_REQUEST)
            return False
        return super().parse_request()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What is none of HTTP, or another method: without what was sent, and no HTML."""
        self.close_connection = True
        self.request_version = self.protocol_version  # with a status line, also where none of the request's was read
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
        """Requests are not logged."""
