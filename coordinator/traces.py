"""Traces turn what is sampled into spans of OpenTelemetry, and export them to a collector by OTLP.

This module is loaded where ``traces.endpoint`` is set. The rules and the links call it where a transaction is declared,
a message is posted or delivered, and so on; a transaction, a post or a delivery that is not sampled has no object here.

- What is sampled: a message whose ``traceparent`` says so (:mod:`store.codec.trace_context`); a transaction whose
  declare has such a message, or whose posts or deliveries do; of all others the part that ``traces.sample`` says,
  decided once for a transaction. Posts without a trace of their own are of that of their transaction.
- The spans of a message have its ``traceparent`` for their parent, in whichever process and however late they are made.
- A span has names and numbers, never contents: no body, no property but the message-id, no description of an error.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from random import getrandbits, random
from typing import TYPE_CHECKING, Final
from uuid import UUID
from weakref import WeakSet

import structlog
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from coordinator.version import VERSION
from store.clock import CLOCK
from store.codec.encoding import DecodeError
from store.codec.message import PROPERTIES, fields_of, sections
from store.codec.trace_context import TraceContext, glance, read_trace, with_trace
from store.ids import OUTBOX, micros_of, moment_of, slot_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.util.types import AnyValue

    from coordinator.errors import Refusal
    from coordinator.group.entries import Entry
    from coordinator.outcomes import Outcome
    from coordinator.settings import TraceSettings
    from coordinator.transaction import Transaction
    from store.commit.batch import Batch
    from store.questions.checks import Due
    from store.spool import Octets

log = structlog.get_logger(__name__)

#: the most ended spans that wait for the collector; further ones are dropped
MOST_WAITING: Final = 4096
#: The most messages and transactions that are traced in a second: what a client can make the others wait by asking for
#: traces is bounded.
MOST_A_SECOND: Final = 1000
#: the most transactions, posts and deliveries that are traced at one time, some kB of memory each
MOST_UNDER_WAY: Final = 4096
#: spans of one request, milliseconds between two, and seconds for one with its repetitions
_MOST_AT_ONCE, _EVERY_MS, _REQUEST_SECONDS = 512, 5000, 5.0
#: seconds that the end of the worker waits for the last spans
_LAST_SECONDS = 1.0
#: characters of an address or another text in a span
_LONGEST = 256
#: how many messages posted in SQL are remembered, and how many checks may be unanswered
_MOST_REMEMBERED = 1000
#: octets of a declare in its usual encodings, which names no trace
_PLAIN_DECLARE = 9
#: octets of a message in which its message-id is looked for
_FRONT_OCTETS = 1 << 16

SYSTEM, OPERATION, OPERATION_TYPE = "messaging.system", "messaging.operation.name", "messaging.operation.type"
DESTINATION, GROUP, MESSAGE_ID = "messaging.destination.name", "messaging.consumer.group.name", "messaging.message.id"
TXN_ID, HALF_ID, OUTCOME = "coordinator.txn_id", "coordinator.message", "coordinator.outcome"
FROM_SQL, PRODUCER_GROUP, CHECKS = "coordinator.posted_in_sql", "coordinator.producer_group", "coordinator.checks"

_Attributes = dict[str, str | int | bool]
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_SCOPE: Final = InstrumentationScope("coordinator", VERSION)


class Traces:
    """The spans of one worker. ``sent`` and ``dropped``: how many spans the collector has taken, and how many are lost
    as it took none, or not fast enough.
    """

    def __init__(self, settings: TraceSettings, headers: Mapping[str, str], store_id: str, instance_id: int) -> None:
        """``headers``: of each request to the collector."""
        self._sample = settings.sample
        #: where the libraries say why a request has failed
        self._why = _LastWord()
        library = logging.getLogger("opentelemetry")
        library.handlers, library.propagate = [self._why], False
        url = settings.url
        exporter = OTLPSpanExporter(
            url, headers=dict(headers), timeout=_REQUEST_SECONDS, compression=Compression.NoCompression
        )
        self._exporting = _Exporting(exporter, url, self._why)
        names = {"service.name": "coordinator", "service.version": VERSION, "service.namespace": store_id}
        self._resource = _Hashed(Resource.create({**names, "service.instance.id": str(instance_id)}).attributes)
        self._waiting = BatchSpanProcessor(
            self._exporting,
            max_queue_size=2 * MOST_WAITING,  # it is never full: spans are counted before
            schedule_delay_millis=_EVERY_MS,
            max_export_batch_size=_MOST_AT_ONCE,
        )
        self._ended = self._left_out = 0
        #: when the second under way began, by the monotonic clock, and how much was traced in it
        self._second, self._traced = 0.0, 0
        #: what is traced, until its span has ended, or it is forgotten with what it was of
        self.under_way: WeakSet[object] = WeakSet()
        #: the number of the last batch of which there is a span
        self._batch: tuple[int, SpanContext] | None = None
        self._from_sql: OrderedDict[int, None] = OrderedDict()
        self._checks: OrderedDict[bytes, Span] = OrderedDict()

    @property
    def sent(self) -> int:
        return self._exporting.sent

    @property
    def dropped(self) -> int:
        return self._left_out + self._exporting.failed

    def close(self) -> None:
        """Send the last spans, if that takes no longer than a second."""
        ending = threading.Thread(target=self._waiting.shutdown, daemon=True)
        ending.start()
        ending.join(_LAST_SECONDS)

    # -- spans

    def start(
        self,
        operation: str,
        place: str,
        kind: SpanKind,
        parent: SpanContext | None,
        attributes: _Attributes,
        *,
        links: Sequence[SpanContext] = (),
        at: int | None = None,
    ) -> Span:
        """Begin a span. ``place``: an address or a group, or empty; ``parent``: None begins a trace; ``at``:
        nanoseconds of Unix time, None: now.
        """
        trace_id = (getrandbits(128) or 1) if parent is None else parent.trace_id
        state = None if parent is None else parent.trace_state
        return Span(
            f"{operation} {place}"[:_LONGEST] if place else operation,
            SpanContext(trace_id, getrandbits(64) or 1, False, _SAMPLED, state),
            parent,
            self._resource,
            {SYSTEM: "amqp", OPERATION: operation, **attributes},
            links=[Link(each) for each in links],
            kind=kind,
            start_time=time.time_ns() if at is None else at,
            instrumentation_scope=_SCOPE,
        )

    def end(self, span: Span) -> None:
        """End a span; it is dropped where too many wait for the collector."""
        if self._ended - self._exporting.seen >= MOST_WAITING:
            self._left_out += 1
        else:
            self._ended += 1
            span.end()
            self._waiting.on_end(span)

    def commit(self, batch: Batch) -> SpanContext:
        """Return the span of a batch that has just been committed, of a trace of its own; make it for the first."""
        if self._batch is None or self._batch[0] != batch.number:
            began = time.time_ns() - int((time.monotonic() - batch.begun) * 1e9)
            told: _Attributes = {
                "db.system.name": "postgresql",
                "coordinator.rows": batch.rows,
                "coordinator.units": len(batch.units),
            }
            span = self.start("commit", "", SpanKind.CLIENT, None, told, at=began)
            self._batch = batch.number, span.here
            self.end(span)
        return self._batch[1]

    def _sampled(self, trace: TraceContext | None, txn: Transaction | None) -> bool:
        """Whether a message is sampled: as it says itself, else as its transaction is, else by chance."""
        if trace is not None:
            return trace.sampled
        if txn is not None:
            return txn.trace is not None
        return random() < self._sample  # noqa: S311 - no one gains by foreseeing it

    def _may(self) -> bool:
        """Whether another message or transaction may be traced now; else a span counts as dropped."""
        now = time.monotonic()
        if now - self._second >= 1:
            self._second, self._traced = now, 0
        self._traced += 1
        if self._traced > MOST_A_SECOND or len(self.under_way) >= MOST_UNDER_WAY:
            self._left_out += 1
            return False
        return True

    # -- transactions

    def declared(self, txn: Transaction, message: Octets) -> None:
        """Trace a transaction that was declared, if it is sampled. ``message``: its declare."""
        if len(message) <= _PLAIN_DECLARE and random() >= self._sample:  # noqa: S311 - as below; it is nearly all of them
            return
        trace = glance(message)
        if (len(message) <= _PLAIN_DECLARE or self._sampled(trace, None)) and self._may():
            self.begin(txn, None if trace is None else _remote(trace))

    def begin(self, txn: Transaction, parent: SpanContext | None) -> TxnTrace:
        """Trace a transaction, as a part of it is sampled: from its declare on, which may be over."""
        at = _here(micros_of(txn.id) / 1e6)
        span = self.start("declare", "", SpanKind.SERVER, parent, {TXN_ID: str(UUID(bytes=txn.id))}, at=at)
        trace = txn.trace = TxnTrace(self, span)
        self.end(span)
        return trace

    # -- messages

    def posted(self, message: Octets, txn: Transaction | None, address: str) -> PostSpan | None:
        """Begin the span of a post; None: it is not sampled. ``txn``: None outside transactions."""
        trace = glance(message)
        if trace is None and txn is not None and txn.trace is None:  # nearly all of them
            return None
        if not self._sampled(trace, txn) or not self._may():
            return None
        parent = None if trace is None else _remote(trace)
        links: list[SpanContext] = []
        if txn is not None:
            of_txn = txn.trace or self.begin(txn, parent)
            if trace is None:
                parent = of_txn.span
            elif of_txn.span.trace_id != int(trace.trace_id, 16):
                links.append(of_txn.span)
        told: _Attributes = {OPERATION_TYPE: "receive", DESTINATION: address[:_LONGEST]}
        if txn is not None:
            told[TXN_ID] = str(UUID(bytes=txn.id))
        span = self.start("post", address, SpanKind.SERVER, parent, told | _message_id(message), links=links)
        if trace is None and isinstance(message, bytes):
            message = _marked(message, span.here)
        return PostSpan(self, span, message)

    def delivered(self, entry: Entry) -> None:
        """Begin the span of a delivery, which was handed over to be sent, if its message's trace is sampled."""
        message = entry.message
        trace = None if message is None else glance(message)
        if message is None or trace is None or not trace.sampled or not self._may():
            return
        parent, queue = _remote(trace), entry.queue.name
        told: _Attributes = {GROUP: queue[:_LONGEST], HALF_ID: entry.half_id, **_message_id(message)}
        if slot_of(entry.half_id) == OUTBOX and not entry.attempts and self._is_new(entry.half_id):
            at = _here(moment_of(entry.half_id).timestamp())
            span = self.start("post", queue, SpanKind.SERVER, parent, {FROM_SQL: True, **told}, at=at)
            self.end(span)
        span = self.start("deliver", queue, SpanKind.CLIENT, parent, {OPERATION_TYPE: "send", **told})
        entry.trace = DeliverySpan(self, span, queue, told)

    def _is_new(self, half_id: int) -> bool:
        """Whether this message, posted in SQL, is delivered here for the first time, as far as is remembered."""
        if half_id in self._from_sql:
            return False
        self._from_sql[half_id] = None
        if len(self._from_sql) > _MOST_REMEMBERED:
            self._from_sql.popitem(last=False)
        return True

    # -- checks

    def checked(self, due: Due, front: bytes) -> None:
        """Begin the span of a check that was sent, if the message that it shows is of a sampled trace; the check
        before it has no answer.
        """
        self.answered(due.txn_id, "unanswered")
        trace = read_trace(front)
        if trace is None or not trace.sampled:
            return
        told: _Attributes = {
            TXN_ID: str(UUID(bytes=due.txn_id)),
            PRODUCER_GROUP: due.group[:_LONGEST],
            CHECKS: due.checks,
        }
        self._checks[due.txn_id] = self.start("check-back", due.group, SpanKind.CLIENT, _remote(trace), told)
        if len(self._checks) > _MOST_REMEMBERED:
            self.answered(next(iter(self._checks)), "unanswered")

    def answered(self, txn_id: bytes, answer: str) -> None:
        """End the span of the last check of a transaction, if there is one. ``answer``: ``commit``, ``rollback``; or
        ``unanswered``, ``too-late``.
        """
        span = self._checks.pop(txn_id, None)
        if span is not None:
            span.set_attribute(OUTCOME, answer)
            self.end(span)


class Span(ReadableSpan):
    """A span under way. That of the SDK costs several times as much, for limits, locks, samplers and events, none of
    which is needed here.
    """

    _attributes: _Attributes
    _links: list[Link]

    @property
    def here(self) -> SpanContext:
        context = self._context
        assert context is not None
        return context

    def set_attribute(self, name: str, value: str | int | bool) -> None:
        self._attributes[name] = value

    def add_link(self, to: SpanContext) -> None:
        self._links.append(Link(to))

    def set_status(self, status: Status) -> None:
        self._status = status

    def end(self) -> None:
        self._end_time = time.time_ns()


class _Hashed(Resource):
    """A resource whose hash, which its encoder asks of each span, is counted once: that of the SDK writes JSON."""

    def __init__(self, attributes: Mapping[str, AnyValue]) -> None:
        super().__init__(attributes)
        self._hash = super().__hash__()

    def __hash__(self) -> int:
        return self._hash

    __eq__ = Resource.__eq__


class TxnTrace:
    """The trace of a sampled transaction: its declare, whose span all others of it have for their parent."""

    __slots__ = ("__weakref__", "_discharge", "_traces", "batch", "span")

    def __init__(self, traces: Traces, declare: Span) -> None:
        self._traces = traces
        traces.under_way.add(self)
        self.span = declare.here
        #: the batch that its decision was written to last
        self.batch: Batch | None = None
        self._discharge: Span | None = None

    def discharged(self, txn: Transaction) -> None:
        """Begin the span of its discharge."""
        told: _Attributes = {TXN_ID: str(UUID(bytes=txn.id))}
        self._discharge = self._traces.start("discharge", "", SpanKind.SERVER, self.span, told)

    def finished(self, txn: Transaction, committed: bool | None, refusal: Refusal | None) -> None:
        """End it with its decision. None: it is decided elsewhere, or later."""
        if self._discharge is None:  # its time was over, or its link was lost
            self.discharged(txn)
        span, self._discharge = self._discharge, None
        assert span is not None
        span.set_attribute(OUTCOME, {True: "commit", False: "rollback", None: "undecided"}[committed])
        if self.batch is not None and committed is not None:
            span.add_link(self._traces.commit(self.batch))
        self.batch = None
        _fail(span, refusal)
        self._traces.end(span)


class PostSpan:
    """The span of a post. ``message``: as it is to be stored."""

    __slots__ = ("__weakref__", "_span", "_traces", "batch", "message")

    def __init__(self, traces: Traces, span: Span, message: Octets) -> None:
        self._traces = traces
        traces.under_way.add(self)
        self._span = span
        self.message = message
        #: the batch that it was written to last
        self.batch: Batch | None = None

    def end(self, refusal: Refusal | None = None) -> None:
        """End it, as the post is answered."""
        if self.batch is not None and refusal is None:
            self._span.add_link(self._traces.commit(self.batch))
        self.batch = None
        _fail(self._span, refusal)
        self._traces.end(self._span)


class DeliverySpan:
    """The span of a delivery, until its outcome comes; then that of the outcome, until it is durable."""

    __slots__ = ("__weakref__", "_delivery", "_outcome", "_queue", "_told", "_traces")

    def __init__(self, traces: Traces, delivery: Span, queue: str, told: _Attributes) -> None:
        self._traces = traces
        traces.under_way.add(self)
        self._delivery = delivery
        self._queue = queue
        self._told = told
        self._outcome: Span | None = None

    def came(self, outcome: Outcome, txn: Transaction | None) -> None:
        """Note that the outcome has come. ``txn``: the transaction that it is part of. A later one, which replaces it,
        has no span.
        """
        if self._outcome is not None:
            return
        told: _Attributes = {OUTCOME: outcome.kind.name.lower(), OPERATION_TYPE: "settle"}
        delivery, links = self._delivery.here, []
        if txn is not None:
            told[TXN_ID] = str(UUID(bytes=txn.id))
            links.append((txn.trace or self._traces.begin(txn, delivery)).span)
        if self._delivery.end_time is None:
            self._delivery.set_attribute(OUTCOME, outcome.kind.name.lower())
            self._traces.end(self._delivery)
        self._outcome = self._traces.start(
            "settle", self._queue, SpanKind.SERVER, delivery, {**self._told, **told}, links=links
        )

    def over(self, *, undone: bool = False) -> None:
        """End the span of the outcome. ``undone``: its transaction was rolled back."""
        if self._outcome is not None:
            if undone:
                self._outcome.set_status(Status(StatusCode.ERROR, "rolled back"))
            self._traces.end(self._outcome)
            self._outcome = None


class _LastWord(logging.Handler):
    """Keeps the last message of a library, for the log line that says why spans are lost."""

    said = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.said = record.getMessage()


class _Exporting(SpanExporter):
    """Counts what the collector takes, and logs when it begins to fail and to work; runs in a thread of its own."""

    def __init__(self, exporter: SpanExporter, url: str, why: _LastWord) -> None:
        self._exporter = exporter
        self._url = url
        self._why = why
        self._fails = False
        self.sent = self.failed = 0

    @property
    def seen(self) -> int:
        return self.sent + self.failed

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        fails = result is not SpanExportResult.SUCCESS
        if fails:
            self.failed += len(spans)
        else:
            self.sent += len(spans)
        if fails and not self._fails:
            log.warning("the collector takes no spans: they are dropped", endpoint=self._url, reason=self._why.said)
        elif self._fails and not fails:
            log.info("the collector takes spans again", endpoint=self._url, dropped=self.failed)
        self._fails = fails
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


def _remote(trace: TraceContext) -> SpanContext:
    """Return the context of a span that the message names."""
    state = TraceState.from_header([trace.state]) if trace.state else None
    return SpanContext(int(trace.trace_id, 16), int(trace.span_id, 16), True, _SAMPLED, state)


def _here(seconds: float) -> int:
    """Return the nanoseconds of Unix time here, of a moment by the database's clock."""
    return int((time.time() + min(0.0, seconds - CLOCK.now())) * 1e9)


def _fail(span: Span, refusal: Refusal | None) -> None:
    """Mark what was refused, by the condition alone: a description may have contents."""
    if refusal is not None:
        span.set_status(Status(StatusCode.ERROR, refusal.condition.value))


def _marked(message: bytes, span: SpanContext) -> bytes:
    """Return the message with the trace of its post in its annotations; as it is where they cannot be read."""
    try:
        return with_trace(message, f"{span.trace_id:032x}", f"{span.span_id:016x}")
    except DecodeError:
        return message


def _message_id(message: Octets) -> _Attributes:
    """Return the message-id of a message as an attribute, if it has one."""
    front = message[:_FRONT_OCTETS]
    try:
        for code, _, value, _ in sections(front, PROPERTIES):
            if code == PROPERTIES and (fields := fields_of(front, value, PROPERTIES)) and fields[0] is not None:
                given = fields[0]
                return {MESSAGE_ID: (given.hex() if isinstance(given, bytes) else str(given))[:_LONGEST]}
    except DecodeError:
        pass
    return {}
