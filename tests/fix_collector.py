"""Collectors of spans: one in the test, over the published protocol (OTLP by HTTP); and OpenTelemetry's own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.fix_service import PATIENCE

#: Where collectors take spans.
PATH = "/v1/traces"
#: By OTLP's numbers.
INTERNAL, SERVER, CLIENT = 1, 2, 3
ERROR = 2


class Took(NamedTuple):
    """A span; ids in hexadecimal digits. ``links``: trace and span. ``error``: the text of its status, if it failed."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    attributes: dict[str, Any]
    links: list[tuple[str, str]]
    error: str | None
    began: int
    ended: int
    state: str

    @property
    def place(self) -> tuple[str, str]:
        return self.trace_id, self.span_id


def spans_of(octets: bytes) -> list[Took]:
    """The spans of a request."""
    request = ExportTraceServiceRequest.FromString(octets)
    return [
        Took(
            name=span.name,
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            kind=span.kind,
            attributes={each.key: _value(each.value) for each in span.attributes},
            links=[(each.trace_id.hex(), each.span_id.hex()) for each in span.links],
            error=span.status.message if span.status.code == ERROR else None,
            began=span.start_time_unix_nano,
            ended=span.end_time_unix_nano,
            state=span.trace_state,
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


class Collector:
    """Takes spans at :attr:`url`, or answers with :attr:`status`. ``octets`` and ``headers``: of its requests."""

    def __init__(self, port: int = 0) -> None:
        self.status = 200
        self.octets: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self._news = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with collector._news:
                    status = collector.status if self.path == PATH else 404
                    if status == 200:
                        collector.octets.append(body)
                    collector.headers.append({name.lower(): each for name, each in self.headers.items()})
                    collector._news.notify_all()
                self.send_response(status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """It is silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def spans(self) -> list[Took]:
        with self._news:
            return [span for octets in self.octets for span in spans_of(octets)]

    def wait(self, done: Callable[[list[Took]], object]) -> list[Took]:
        """All spans, once they are as wanted."""
        with self._news:
            self._news.wait_for(lambda: done(self.spans), timeout=PATIENCE)
            found = self.spans
        assert done(found), "\n".join(map(str, found)) or "no span came"
        return found

    def of_trace(self, trace_id: str, *names: str) -> list[Took]:
        """The spans of a trace, once there are some of all these names; in the order in which they began."""

        def of_it(spans: list[Took]) -> list[Took]:
            return sorted((each for each in spans if each.trace_id == trace_id), key=lambda each: each.began)

        return of_it(self.wait(lambda spans: set(names) <= {each.name for each in of_it(spans)}))

    def asked(self, times: int) -> None:
        """Wait until it was asked so often, whatever it answered."""
        with self._news:
            assert self._news.wait_for(lambda: len(self.headers) >= times, timeout=PATIENCE)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def collecting(port: int = 0) -> Iterator[Collector]:
    collector = Collector(port)
    try:
        yield collector
    finally:
        collector.close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found
