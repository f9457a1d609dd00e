"""Traces of OpenTelemetry: what clients ask for becomes spans, in the traces that their messages name; a collector
takes them by OTLP.
"""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from store.embedded.running import running_url
from tests.fix_collector import CLIENT, SERVER, Collector, Took, collecting
from tests.fix_command import environment
from tests.fix_compiled import BOTH_RULES
from tests.fix_console import Operator
from tests.fix_service import REPOSITORY, Service, running_service
from tests.fix_wire import Begin, BeginAt
from tests.wire.checkable import in_group
from tests.wire.frames import Accepted, Declare, Rejected, TransactionalState
from tests.wire.messages import (
    APPLICATION_PROPERTIES,
    MESSAGE_ANNOTATIONS,
    VALUE,
    Properties,
    data,
    section,
)
from tests.wire.types import Symbol, UInt

pytestmark = [*BOTH_RULES, pytest.mark.rule("H21")]

#: The length of a checkable transaction's immunity, and of the time to the next check, in milliseconds.
AT_ONCE = {"check_immunity_ms": UInt(0), "check_interval_ms": UInt(1000)}
SOON = {"coordinator.traces._EVERY_MS": 200}
BRIEF = {"coordinator.process.worker_reports.REPORT_SECONDS": 0.5}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@pytest.fixture(scope="module")
def service(rules: None, collector: Collector) -> Iterator[Service]:
    """Traces nothing by chance: what messages name alone."""
    with running_service({"traces.endpoint": collector.url, "traces.sample": "0"}, SOON) as found:
        yield found


class Parent:
    """The span of a client."""

    def __init__(self, *, sampled: bool = True) -> None:
        self.trace_id, self.span_id = secrets.token_hex(16), secrets.token_hex(8)
        self.text = f"00-{self.trace_id}-{self.span_id}-{'01' if sampled else '00'}"

    def message(self, body: bytes, **more: Any) -> bytes:
        """A message whose producer has put it into the application properties."""
        return section(APPLICATION_PROPERTIES, {"traceparent": self.text, **more}) + data(body)


def uuid_of(txn: bytes) -> str:
    return re.sub("(.{8})(.{4})(.{4})(.{4})(.{12})", r"\1-\2-\3-\4-\5", txn.hex())


def only(spans: list[Took], name: str) -> Took:
    (found,) = [each for each in spans if each.name == name]
    return found


def test_a_transaction_is_in_the_trace_of_its_message(
    begin: Begin, address: str, collector: Collector, service: Service
) -> None:
    parent, session = Parent(), begin()
    sender, control = session.sender(address), session.control()
    txn = control.declare()
    message = parent.message(b"body-that-no-span-has", tracestate="shop=1", customer="secret-of-the-shop")
    assert sender.outcome(message, txn=txn) == TransactionalState(txn_id=txn, outcome=Accepted())
    control.commit(txn)
    consumer = session.receiver(address)
    taken = consumer.take()
    assert taken.octets.endswith(message), "the bare message is as it was"
    assert taken.message.annotations == {}
    taken.disposition(Accepted())

    spans = collector.of_trace(parent.trace_id, "declare", "discharge", f"settle {address}")
    declare, post, discharge = only(spans, "declare"), only(spans, f"post {address}"), only(spans, "discharge")
    deliver, settle = only(spans, f"deliver {address}"), only(spans, f"settle {address}")
    assert len(spans) == 5
    assert {each.parent_id for each in (declare, post, deliver)} == {parent.span_id}
    assert (discharge.parent_id, settle.parent_id) == (declare.span_id, deliver.span_id)
    assert [each.kind for each in (declare, post, discharge, deliver, settle)] == [
        SERVER,
        SERVER,
        SERVER,
        CLIENT,
        SERVER,
    ]
    assert {each.state for each in spans} == {"shop=1"}
    assert all(each.began <= each.ended for each in spans)
    assert {each.attributes["coordinator.txn_id"] for each in (declare, post, discharge)} == {uuid_of(txn)}
    assert post.attributes["messaging.destination.name"] == address
    assert discharge.attributes["coordinator.outcome"] == "commit"
    assert deliver.attributes["coordinator.outcome"] == settle.attributes["coordinator.outcome"] == "accepted"
    ((trace, span),) = discharge.links
    commit = only(collector.of_trace(trace, "commit"), "commit")
    assert (commit.span_id, commit.parent_id, commit.kind) == (span, "", CLIENT)
    assert discharge.began <= commit.began <= commit.ended <= discharge.ended
    sent = b"".join(collector.octets)
    assert b"body-that-no-span-has" not in sent
    assert b"secret-of-the-shop" not in sent

    told = json.loads(service.cli("transaction", "show", uuid_of(txn), "--json"))
    assert [each["trace_id"] for each in told["events"] if each["what"] == "posted"] == [parent.trace_id]
    assert f"trace {parent.trace_id}" in service.cli("transaction", "show", uuid_of(txn))


def test_annotations_come_before_application_properties(begin: Begin, address: str, collector: Collector) -> None:
    """Who is on the way puts the trace there; a declare may name one, too."""
    near, far, declared, session = Parent(), Parent(), Parent(), begin()
    annotations = section(MESSAGE_ANNOTATIONS, {Symbol("traceparent"): near.text, Symbol("x-opt-mine"): "1"})
    message = annotations + Properties(message_id="order-7").encoded() + far.message(b"x")
    sender, control = session.sender(address), session.control()
    asked = section(APPLICATION_PROPERTIES, {"traceparent": declared.text}) + section(VALUE, Declare().described())
    txn = bytes(control.reply(asked).txn_id)
    sender.outcome(message, txn=txn)
    control.roll_back(txn)

    post = only(collector.of_trace(near.trace_id, f"post {address}"), f"post {address}")
    assert post.parent_id == near.span_id
    assert post.attributes["messaging.message.id"] == "order-7"
    declare, discharge = collector.of_trace(declared.trace_id, "declare", "discharge")
    assert declare.parent_id == declared.span_id
    assert post.links == [declare.place]
    assert (discharge.parent_id, discharge.attributes["coordinator.outcome"]) == (declare.span_id, "rollback")
    assert far.trace_id not in {each.trace_id for each in collector.spans}


def test_a_post_outside_transactions(begin: Begin, address: str, collector: Collector) -> None:
    parent, session = Parent(), begin()
    assert session.sender(address).outcome(parent.message(b"x")) == Accepted()
    (post,) = collector.of_trace(parent.trace_id, f"post {address}")
    ((trace, span),) = post.links
    assert only(collector.of_trace(trace, "commit"), "commit").span_id == span


def test_a_delivery_retired_in_a_transaction_that_rolls_back_and_again(
    begin: Begin, address: str, collector: Collector
) -> None:
    """The transaction, which has no trace of its own, gets that of what it retires; a post in it is of it, too."""
    parent, session = Parent(), begin()
    sender, control, consumer = session.sender(address), session.control(), session.receiver(address)
    assert sender.outcome(parent.message(b"x")) == Accepted()
    onward = session.sender(f"{address}-onward")
    for ends in (control.roll_back, control.commit):
        txn = control.declare()
        consumer.take().retire(txn)
        onward.outcome(data(b"y"), txn=txn)
        ends(txn)

    def both(spans: list[Took]) -> bool:
        return [each.name for each in spans if each.trace_id == parent.trace_id].count("discharge") == 2

    collector.wait(both)
    spans = collector.of_trace(parent.trace_id)
    settles = [each for each in spans if each.name == f"settle {address}"]
    discharges = [each for each in spans if each.name == "discharge"]
    assert [each.attributes["coordinator.outcome"] for each in discharges] == ["rollback", "commit"]
    assert [each.error for each in settles] == ["rolled back", None]
    posts = [each for each in spans if each.name == f"post {address}-onward"]
    assert [each.parent_id for each in posts] == [each.parent_id for each in discharges]
    marked = session.receiver(f"{address}-onward").take().message.annotations["traceparent"]
    assert marked == f"00-{parent.trace_id}-{posts[1].span_id}-01"


def test_what_is_refused_says_the_condition_alone(begin: Begin, address: str, collector: Collector) -> None:
    parent, session = Parent(), begin()
    state = session.sender(address).outcome(parent.message(b"x") + b"\x00\x53\x75\xa0")
    assert isinstance(state, Rejected)
    (post,) = collector.of_trace(parent.trace_id, f"post {address}")
    assert post.error == "amqp:decode-error"


def test_a_check_is_in_the_trace_of_its_message(begin: Begin, address: str, collector: Collector) -> None:
    parent, client, checker = Parent(), begin(), begin()
    control, sender = in_group(client, address, **AT_ONCE), client.sender(address)
    txn = control.declare()
    sender.outcome(parent.message(b"x"), txn=txn)
    client.peer.close_socket()
    checker.receiver(f"$check/{address}", credit=10).take().disposition(Accepted(), settled=False)
    check = f"check-back {address}"
    spans = collector.of_trace(parent.trace_id, check)
    found = next(each for each in spans if each.name == check and each.attributes["coordinator.outcome"] == "commit")
    assert (found.parent_id, found.attributes["coordinator.txn_id"]) == (parent.span_id, uuid_of(txn))
    post = only(spans, f"post {address}")
    assert len(post.links) == 1, "it was stored before it was answered"


def test_a_message_posted_in_sql(begin: Begin, address: str, collector: Collector, service: Service) -> None:
    parent, session = Parent(), begin()
    consumer = session.receiver(address, credit=1)
    with psycopg.connect(running_url(service.data_dir)) as shop:
        headers = json.dumps({"traceparent": parent.text})
        shop.execute("select coordinator.post(%s, 'x'::text, headers => %s)", [address, headers])
    consumer.take().disposition(Accepted())
    spans = collector.of_trace(parent.trace_id, f"settle {address}")
    post, deliver = only(spans, f"post {address}"), only(spans, f"deliver {address}")
    assert post.attributes["coordinator.posted_in_sql"] is True
    assert {post.parent_id, deliver.parent_id} == {parent.span_id}
    assert post.began < deliver.began


def test_a_large_message(begin: Begin, address: str, collector: Collector) -> None:
    """It is in a file here, and read piece by piece."""
    parent, session = Parent(), begin()
    message = parent.message(bytes(3 << 20))
    assert session.sender(address).outcome(message) == Accepted()
    taken = session.receiver(address).take()
    assert taken.octets.endswith(message)
    taken.disposition(Accepted())
    assert len(collector.of_trace(parent.trace_id, f"settle {address}")) == 3


HOSTILE = {
    "short": "00-1234",
    "long": "00-" + "a" * 32 + "-" + "b" * 16 + "-01-more",
    "capitals": "00-" + "A" * 32 + "-" + "B" * 16 + "-01",
    "no trace": "00-" + "0" * 32 + "-" + "b" * 16 + "-01",
    "no span": "00-" + "a" * 32 + "-" + "0" * 16 + "-01",
    "no version": "ff-" + "a" * 32 + "-" + "b" * 16 + "-01",
    "NUL": "00-" + "a" * 31 + "\0-" + "b" * 16 + "-01",
    "line end": "00-" + "a" * 32 + "-" + "b" * 16 + "-01\n",
    "a megabyte": "00-" + "a" * (1 << 20) + "-01",
    "number": UInt(1),
    "octets": b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01",
    "none": None,
    "other digits": "00-" + "a" * 31 + "\N{ARABIC-INDIC DIGIT ONE}-" + "b" * 16 + "-01",
}


def test_a_hostile_trace_is_passed_on_and_ignored(begin: Begin, address: str, collector: Collector) -> None:
    session = begin()
    sender, consumer = session.sender(address), session.receiver(address)
    before = {each.trace_id for each in collector.spans}
    for value in HOSTILE.values():
        for of_message in (
            section(APPLICATION_PROPERTIES, {"traceparent": value}),
            section(MESSAGE_ANNOTATIONS, {Symbol("traceparent"): value}),
            section(MESSAGE_ANNOTATIONS, {Symbol("traceparent"): {"a": [value]}}),
            section(APPLICATION_PROPERTIES, {"tracestate": value, "traceparent": value}),
        ):
            message = of_message + data(b"x")
            assert sender.outcome(message) == Accepted()
            taken = consumer.take()
            assert taken.octets.endswith(message)
            taken.disposition(Accepted())
    last = Parent()
    assert sender.outcome(last.message(b"x", tracestate="x" * 600)) == Accepted()
    assert {each.state for each in collector.of_trace(last.trace_id, f"post {address}")} == {""}
    commits = {each.trace_id for each in collector.spans if each.name == "commit"}
    assert {each.trace_id for each in collector.spans} - before - commits == {last.trace_id}


def test_what_is_not_sampled_has_no_span(begin: Begin, address: str, collector: Collector) -> None:
    unsampled, last, session = Parent(sampled=False), Parent(), begin()
    sender, consumer = session.sender(address), session.receiver(address)
    for message in (unsampled.message(b"x"), data(b"y"), last.message(b"z")):
        assert sender.outcome(message) == Accepted()
        taken = consumer.take()
        assert taken.octets.endswith(message)
        taken.disposition(Accepted())
    collector.of_trace(last.trace_id, f"settle {address}")
    assert unsampled.trace_id not in {each.trace_id for each in collector.spans}


def test_by_chance_all(rules: None, begin_at: BeginAt, token_settings: dict[str, str]) -> None:
    """What names no trace gets one, and its message tells it; what is in a transaction is in that of its declare."""
    with (
        collecting() as collector,
        running_service({**token_settings, "traces.sample": "1", "traces.endpoint": collector.url}, SOON) as service,
    ):
        session = begin_at(service)
        sender, control, consumer = session.sender("a"), session.control(), session.receiver("a")
        assert sender.outcome(section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-mine"): "1"}) + data(b"x")) == Accepted()
        txn = control.declare()
        sender.outcome(data(b"y"), txn=txn)
        control.commit(txn)
        first, second = consumer.take_many(2)
        assert (first.message.annotations.pop("x-opt-mine"), first.message.bare) == ("1", data(b"x"))
        plain, of_txn = (each.message.annotations["traceparent"].split("-") for each in (first, second))
        first.disposition(Accepted(), last=second)
        deliver, post = (only(collector.of_trace(plain[1], "settle a"), name) for name in ("deliver a", "post a"))
        assert (post.parent_id, post.span_id, deliver.parent_id) == ("", plain[2], plain[2])
        spans = collector.of_trace(of_txn[1], "settle a", "discharge")
        declare, post = only(spans, "declare"), only(spans, "post a")
        assert (declare.parent_id, post.parent_id, post.span_id) == ("", declare.span_id, of_txn[2])
        message = first.tag.decode().rpartition(":")[2]
        told = json.loads(service.cli("message", "show", message, "--json"))
        assert [each["trace_id"] for each in told["events"] if each["what"] == "posted"] == [plain[1]]
        assert f"trace {plain[1]}" in Operator(service).log_in(f"/console/message?id={message}").text("p")


def test_the_collector_is_away_refuses_and_comes_back(rules: None, begin_at: BeginAt, tmp_path: Path) -> None:
    """The service goes on; a line of the log says what is lost, and that it is over; the metrics count it."""
    with collecting() as first:
        port = first.port
    headers = tmp_path / "headers"
    headers.write_text("Authorization: Bearer key-of-the-collector\n\nX-Tenant: shop\r\n")
    headers.chmod(0o600)
    given = {
        "traces.endpoint": f"http://127.0.0.1:{port}", "traces.sample": "1", "traces.headers": str(headers),
        "metrics.listen": "http://127.0.0.1:0",
    }  # fmt: skip
    constants = {**BRIEF, "coordinator.traces._REQUEST_SECONDS": 0.5, "coordinator.traces._EVERY_MS": 100}
    with running_service(given, constants) as service:
        sender = begin_at(service).sender("a")
        assert sender.outcome(data(b"x")) == Accepted()
        away = service.wait_for(lambda line: line["event"].startswith("the collector takes no spans"))
        assert (away["endpoint"], away["level"]) == (f"http://127.0.0.1:{port}/v1/traces", "warning")
        assert "refused" in away["reason"] or "timeout" in away["reason"], away
        with collecting(port) as collector:
            collector.status = 503
            assert sender.outcome(data(b"y")) == Accepted()
            collector.asked(1)
            collector.status = 200
            assert sender.outcome(data(b"z")) == Accepted()
            collector.wait(lambda spans: any(each.name == "post a" for each in spans))
            assert sender.outcome(data(b"z")) == Accepted()
            back = service.wait_for(lambda line: line["event"] == "the collector takes spans again")
            assert back["dropped"] > 0
            assert {each["authorization"] for each in collector.headers} == {"Bearer key-of-the-collector"}
            assert {each["x-tenant"] for each in collector.headers} == {"shop"}
        assert "key-of-the-collector" not in json.dumps(service.log_lines())
        (place,) = next(line["listen"] for line in service.log_lines() if line["event"] == "metrics")
        dropped = 0.0
        while dropped < back["dropped"]:
            with urllib.request.urlopen(f"{place}/metrics") as answer:
                (line,) = re.findall(r'^coordinator_spans_total\{state="dropped"\} (.*)$', answer.read().decode(), re.M)
                dropped = float(line)
        assert service.stop() == 0


@pytest.mark.parametrize(
    "bounds",
    [{"MOST_WAITING": 10, "_MOST_AT_ONCE": 10}, {"MOST_A_SECOND": 10}, {"MOST_UNDER_WAY": 10}],
    ids=["waiting", "in a second", "under way"],
)
def test_what_is_too_much_costs_spans(bounds: dict[str, int], rules: None, begin_at: BeginAt) -> None:
    """For a collector that is slow, or of clients that have all traced."""
    with collecting() as collector:
        constants = {f"coordinator.traces.{name}": most for name, most in bounds.items()}
        with running_service({"traces.endpoint": collector.url, "traces.sample": "1"}, constants) as service:
            session = begin_at(service)
            sender = session.sender("a")
            numbers = [sender.post(data(b"x")) for _ in range(100)]
            assert {sender.answer_to(number).state for number in numbers} == {Accepted()}
            for taken in session.receiver("a").take_many(100):
                taken.disposition(Accepted())
            session.sync()
            assert service.stop() == 0
        assert 0 < len([each for each in collector.spans if each.name in ("post a", "deliver a")]) < 200


@pytest.mark.night
def test_the_collector_of_opentelemetry_takes_them(
    rules: None, collector_program: Path, begin_at: BeginAt, tmp_path: Path
) -> None:
    """The real one, which writes what it has taken to a file, as JSON."""
    with collecting() as other:  # a port that is free
        place = f"127.0.0.1:{other.port}"
    file, config = tmp_path / "spans.json", tmp_path / "collector.yaml"
    pipeline = {"traces": {"receivers": ["otlp"], "exporters": ["file"]}}
    given = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": place}}}},
        "exporters": {"file": {"path": str(file), "flush_interval": "100ms"}},
        "service": {"telemetry": {"metrics": {"level": "none"}}, "pipelines": pipeline},
    }
    config.write_text(json.dumps(given))
    parent, service_settings = Parent(), {"traces.endpoint": f"http://{place}", "traces.sample": "0"}
    with subprocess.Popen([collector_program, "--config", config], stderr=subprocess.DEVNULL) as real:
        try:
            with running_service(service_settings, SOON) as service:
                session = begin_at(service)
                sender, consumer = session.sender("a"), session.receiver("a")
                names: set[str] = set()
                while "settle a" not in names:  # until the collector is up, spans are lost
                    assert sender.outcome(parent.message(b"x")) == Accepted()
                    consumer.take().disposition(Accepted())
                    time.sleep(0.5)
                    lines = file.read_text().splitlines() if file.exists() else []
                    spans = [span for line in lines for span in _of_json(json.loads(line))]
                    names = {span["name"] for span in spans}
        finally:
            real.terminate()
    of_trace = [span for span in spans if span["traceId"] == parent.trace_id]
    assert {span["name"] for span in of_trace} == {"post a", "deliver a", "settle a"}
    assert {span["parentSpanId"] for span in of_trace if span["name"] != "settle a"} == {parent.span_id}


def _of_json(request: dict[str, Any]) -> list[dict[str, Any]]:
    scopes = [scope for resource in request["resourceSpans"] for scope in resource["scopeSpans"]]
    return [span for scope in scopes for span in scope["spans"]]


_LOADED = """
import sys
from coordinator.settings import Settings
from coordinator.commands.serve import _run
import coordinator.process.supervisor, coordinator.commands.worker, links.worker
coordinator.process.supervisor.Supervisor.run = lambda self: 0
_run(Settings())
assert not [name for name in sys.modules if name.startswith("opentelemetry")], "it is off"
import coordinator.traces
assert "opentelemetry.sdk" in sys.modules
"""


def test_off_by_default_nothing_is_loaded() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOADED], cwd=REPOSITORY, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [
        ("Authorization Bearer key-1\n", 0o600, "line 1: expected Name: value"),
        ("A: 1\nB: a\0key-1\n", 0o600, "line 2: expected Name: value"),
        ("A: key-1\n", 0o644, "all users may read it"),
    ],
)
def test_wrong_headers_end_the_start(content: str, mode: int, says: str, tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text(content)
    file.chmod(mode)
    given = {"traces.endpoint": "http://127.0.0.1:1", "traces.headers": str(file)}
    with pytest.raises(AssertionError, match=re.escape(says)) as raised, running_service(given):
        pass
    assert "cannot start" in str(raised.value)
    assert "key-1" not in str(raised.value)
