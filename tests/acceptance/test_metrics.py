"""Metrics, health and readiness over HTTP, of a service as people run it (H19)."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from coordinator.settings import Settings
from store.embedded.running import running_url
from store.migrations import REVISIONS
from tests.fix_command import alive
from tests.fix_postgres import signal_server
from tests.fix_service import PATIENCE, Service, running_service
from tests.fix_wire import Ask, BeginAt
from tests.held_store import nothing_is_decided
from tests.refusing import refused
from tests.tables import all_cases
from tests.wire.frames import Accepted, Discharge, Rejected, Released
from tests.wire.messages import APPLICATION_PROPERTIES, data, section
from tests.wire.queues import dead_letters, post
from tests.wire.types import Symbol, UInt
from tests.workers import pids_of_workers

pytestmark = pytest.mark.rule("H19")

#: Values by name and labels.
Figures = dict[tuple[str, frozenset[tuple[str, str]]], float]

#: Seconds that tests wait for.
LONG = 2.0
BRIEF = {
    "coordinator.process.measuring.POLL_SECONDS": 0.5,
    "coordinator.process.measuring.LONG_SECONDS": LONG,
    "coordinator.http.server._LONGEST_REQUEST_SECONDS": 2.0,
    "coordinator.process.worker_reports.REPORT_SECONDS": 0.5,
    "coordinator.process.worker_reports.LONG_SECONDS": LONG,
    "store.health._LONG_SECONDS": 1,
}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service({"metrics.listen": "http://127.0.0.1:0"}, BRIEF) as service:
        yield service


def _place(service: Service) -> str:
    lines = [line for line in service.log_lines() if line.get("event") == "metrics"]
    (place,) = lines[-1]["listen"]
    return str(place)


def _get(service: Service, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{_place(service)}{path}", timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def _until(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not found():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.2)


def _until_checked(service: Service, wrong: str) -> None:
    """The store has what the last beat has written."""

    def checked() -> bool:
        done = service.command("check", "--fewest-free", "0")
        return done.returncode == 1 and re.search(wrong, done.stdout) is not None

    _until(checked)


def _ready(service: Service) -> int:
    return _get(service, "/readyz")[0]


def _figures(service: Service) -> Figures:
    status, told = _get(service, "/metrics")
    if status != 200:
        return {}
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(told)
        for sample in family.samples
    }


def _told(service: Service, name: str, **labels: str) -> float:
    return _figures(service).get((f"coordinator_{name}", frozenset(labels.items())), 0.0)


def test_what_clients_do_is_told(service: Service, begin_at: BeginAt) -> None:
    _until(lambda: _ready(service) == 200)
    before = _figures(service)
    session = begin_at(service)
    post(session, "metrics-plain", b"1", b"2", b"3")
    consumer = session.receiver("metrics-plain", credit=2)
    held, bad = consumer.take_many(2)
    bad.disposition(Rejected())
    control, sender = session.control(), session.sender("metrics-txn")
    for _ in range(3):
        txn = control.declare()
        sender.outcome(data(b"x"), txn=txn)
        control.commit(txn)
    txn = control.declare()
    sender.outcome(data(b"x"), txn=txn)
    control.discharge(txn, fail=True)
    open_txn = control.declare()
    sender.outcome(data(b"x"), txn=open_txn)
    dead_letters(session, "metrics-plain")

    def grown(name: str, **labels: str) -> float:
        key = (f"coordinator_{name}", frozenset(labels.items()))
        return _figures(service).get(key, 0.0) - before.get(key, 0.0)

    _until(lambda: grown("decisions_total", decision="commit", reason="discharged") == 3)
    _until(lambda: grown("decisions_total", decision="rollback", reason="discharged") == 1)
    _until(lambda: grown("decision_seconds_count", decision="commit") == 3)
    _until(lambda: grown("decision_seconds_bucket", decision="commit", le="+Inf") == 3)
    _until(lambda: _told(service, "entries", address="metrics-txn", group="", state="ready") == 3)
    _until(lambda: _told(service, "entries", address="metrics-plain", group="", state="inflight") >= 1)
    _until(lambda: _told(service, "dead_letters", address="%DLQ%metrics-plain") == 1)
    _until(lambda: grown("undecided_transactions", kind="plain") == 1)
    _until(lambda: _told(service, "undecided_oldest_seconds") > 1)
    assert _told(service, "instances", state="alive") == 1
    assert held.body == b"1"
    control.commit(open_txn)
    _until(lambda: _told(service, "undecided_transactions", kind="plain") == 0)
    _until(lambda: grown("decisions_total", decision="commit", reason="discharged") == 4)


def test_what_workers_do_is_told(service: Service, begin_at: BeginAt) -> None:
    """Their connections and links now; the batches that they committed, and their checks, since they began."""
    before = _figures(service)
    session = begin_at(service)
    post(session, "metrics-workers", b"1")
    links = [session.receiver("metrics-workers", credit=0) for _ in range(3)]
    _until(lambda: _told(service, "connections", worker="0") >= 1 and _told(service, "links", worker="0") >= 3)
    checker = session.receiver("$check/metrics-workers", credit=10)
    for outcome in (Released(), Accepted()):
        control = session.control(properties={Symbol("coordinator:producer-group"): "metrics-workers"})
        sender = session.sender("metrics-workers")
        sender.outcome(
            section(APPLICATION_PROPERTIES, {"check-immunity-ms": UInt(0)}) + data(b"x"), txn=control.declare()
        )
        control.detach()
        checker.take().disposition(outcome)

    def grown(name: str, **labels: str) -> float:
        key = (f"coordinator_{name}", frozenset(labels.items()))
        return _figures(service).get(key, 0.0) - before.get(key, 0.0)

    _until(lambda: grown("checks_total", state="sent") >= 2)
    _until(lambda: grown("checks_total", state="answered") >= 1)
    _until(lambda: grown("checks_total", state="unanswered") >= 1)
    assert grown("batch_rows_count") >= 4
    assert grown("batch_rows_sum") >= grown("batch_rows_count")
    assert grown("commit_seconds_count") == grown("batch_rows_count")
    assert grown("commit_seconds_sum") > 0
    for link in links:
        link.detach()


def test_a_hostile_name_is_told_whole(service: Service, begin_at: BeginAt) -> None:
    name = 'x"} 1\\n # {evil="1",\\'
    post(begin_at(service), name, b"1")
    _until(lambda: _told(service, "entries", address=name, group="", state="ready") == 1)


def test_paths_and_methods(service: Service) -> None:
    assert _get(service, "/healthz") == _get(service, "/livez") == (200, "ok\n")
    assert _get(service, "/")[0] == 404
    place = urlsplit(_place(service))
    for request in (
        b"POST /metrics HTTP/1.0\r\n\r\n",
        b"\x00\xff\r\n\r\n",
        b"GET /metrics HTTP/1.0\r\nA: " + b"x" * 70000,
    ):
        with socket.create_connection((place.hostname, place.port), timeout=PATIENCE) as peer:
            peer.sendall(request)
            peer.shutdown(socket.SHUT_WR)
            assert b" 200 " not in peer.recv(4096)
    assert _get(service, "/healthz") == (200, "ok\n")


def test_peers_that_send_nothing_are_cut_off(service: Service) -> None:
    place = urlsplit(_place(service))
    silent = [socket.create_connection((place.hostname, place.port), timeout=PATIENCE) for _ in range(100)]
    for peer in silent:
        assert peer.recv(1) == b""
        peer.close()
    assert _get(service, "/healthz") == (200, "ok\n")


@pytest.mark.rule("S5", "S11")
def test_peers_that_send_nothing_keep_none_out(service: Service) -> None:
    """A proxy that is told nothing takes the service for dead."""
    place = urlsplit(_place(service))
    for _ in range(3):
        silent = [socket.create_connection((place.hostname, place.port), timeout=PATIENCE) for _ in range(100)]
        assert _get(service, "/healthz") == (200, "ok\n")
        for peer in silent:
            peer.close()


def test_those_behind_one_proxy_ask_at_once(service: Service) -> None:
    with ThreadPoolExecutor(40) as pool:
        assert set(pool.map(lambda _: _get(service, "/healthz"), range(80))) == {(200, "ok\n")}


def _processes(service: Service, name: str) -> list[int]:
    children = Path(f"/proc/{service.pid}/task/{service.pid}/children").read_text().split()
    return [int(each) for each in children if Path(f"/proc/{each}/comm").read_text().strip() == name]


def test_the_metrics_are_started_again_and_a_worker_that_dies_is_seen(service: Service, begin_at: BeginAt) -> None:
    os.kill(pids_of_workers(service, count=1)[0], signal.SIGKILL)
    begin_at(service)
    _until(lambda: _told(service, "instances", state="alive") == 1 and _ready(service) == 200)
    (pid,) = _processes(service, "coord-metrics")
    os.kill(pid, signal.SIGKILL)
    _until(lambda: not alive(pid))
    # The socket is the supervisor's: a request waits until there is a process again.
    assert _get(service, "/healthz") == (200, "ok\n")
    assert pid not in _processes(service, "coord-metrics")
    _until(lambda: _told(service, "connections", worker="0") >= 1)  # told to the new one


def test_a_store_that_is_away(service: Service) -> None:
    _until(lambda: _ready(service) == 200)
    started = [line for line in service.log_lines() if line.get("event") == "database started"]
    signal_server(int(started[-1]["pid"]), signal.SIGSTOP)
    try:
        _until(lambda: _ready(service) == 503)
        _until(lambda: _told(service, "store_up") == 0)
        assert _get(service, "/readyz") == (503, "store: away, or it does not answer\n")
        assert _get(service, "/healthz") == (200, "ok\n")
        assert ("coordinator_instances", frozenset({("state", "alive")})) not in _figures(service)
    finally:
        signal_server(int(started[-1]["pid"]), signal.SIGCONT)
    _until(lambda: _ready(service) == 200)


def test_a_store_that_does_not_commit(service: Service, begin_at: BeginAt, address: str) -> None:
    """The store answers, and others hold a lock."""
    session = begin_at(service)
    control, sender = session.control(), session.sender(address)
    txn = control.declare()
    sender.outcome(data(b"x"), txn=txn)
    _until(lambda: _ready(service) == 200)
    with nothing_is_decided(service):
        asked = control.request(Discharge(txn_id=txn, fail=False))
        _until(lambda: _ready(service) == 503)
        status, line = _get(service, "/readyz")
        assert (status, line.startswith("store: worker 0 waits for a commit, for ")) == (503, True)
        assert _told(service, "commit_waits_seconds", worker="0") > LONG
        assert _told(service, "store_up") == 1
        service.wait_for(lambda line: line.get("event") == "the store does not commit: clients wait")
        _until_checked(service, r"wrong: a batch of the service waits for \d+ s.*held up by process \d+ \(")
    assert control.answer_to(asked).state == Accepted()
    _until(lambda: _ready(service) == 200)
    service.wait_for(lambda line: line.get("event") == "the store commits again")
    assert _told(service, "commit_waits_seconds", worker="0") == 0
    # The store has the wait that the last beat has written, until the next beat.
    _until(lambda: service.command("check", "--fewest-free", "0").returncode == 0)


def test_a_store_whose_disk_is_full(service: Service, begin_at: BeginAt, address: str) -> None:
    """Each attempt ends at once, with an error that the log and ``coordinator check`` repeat."""
    full = "the database's disk is full (SQLSTATE 53100)"
    sender, lines = begin_at(service).sender(address), len(service.log_lines())
    with refused(running_url(service.data_dir), "insert on coordinator.half", "53100"):
        posted = sender.post(data(b"x"))
        said = service.wait_for(
            lambda line: line.get("event") == "the store does not commit: clients wait", since=lines
        )
        assert said["hint"] == full
        _until_checked(service, rf"wrong: a batch of the service waits for \d+ s.*; {re.escape(full)}\n")
    assert sender.answer_to(posted).state == Accepted()


def test_what_is_wanting_is_said(service: Service, ask: Ask) -> None:
    _until(lambda: _ready(service) == 200)
    ask("update coordinator.alembic_version set version_num = '9999' returning 1")
    _until(lambda: _get(service, "/readyz") == (503, "schema: not the one of this version\n"))
    assert _told(service, "store_up") == 1
    ask("update coordinator.alembic_version set version_num = %s returning 1", REVISIONS[-1])
    _until(lambda: _ready(service) == 200)


def test_without_the_setting_there_is_no_process_and_no_port(begin_at: BeginAt) -> None:
    """The log says what the metrics would."""
    with running_service(constants=BRIEF) as service:
        assert [line for line in service.log_lines() if line.get("event") == "metrics"] == []
        assert _processes(service, "coord-metrics") == []
        sender = begin_at(service).sender("orders")
        with refused(running_url(service.data_dir), "insert on coordinator.half", "53100"):
            posted = sender.post(data(b"x"))
            service.wait_for(lambda line: line.get("event") == "the store does not commit: clients wait")
        assert sender.answer_to(posted).state == Accepted()
        service.wait_for(lambda line: line.get("event") == "the store commits again")


@pytest.mark.rule("S11")
def test_nothing_listens_for_http_unless_told() -> None:
    assert Settings().metrics.listen is None
    with running_service() as service:
        listening = {line["event"]: line["listen"] for line in service.log_lines() if "listen" in line}
        assert list(listening) == ["listening"]
        assert all(place.startswith("amqp://127.0.0.1:") for place in listening["listening"])


@pytest.mark.rule("S11", "S7")
@all_cases(
    ("request_line", "code"),
    [
        ("GET /metrics HTTP/1.1", "200"),
        ("HEAD /metrics HTTP/1.1", "200"),
        ("GET /healthz?<script>alert(1)</script> HTTP/1.1", "200"),
        ("GET /readyz HTTP/1.0", "200"),
        ("GET / HTTP/1.1", "404"),
        ("GET /<script>alert(1)</script> HTTP/1.1", "404"),
        ("GET /../../etc/passwd HTTP/1.1", "404"),
        ("GET http://metadata/ HTTP/1.1", "404"),
        ("POST /metrics HTTP/1.1", "405"),
        ("DELETE /<script>alert(1)</script> HTTP/1.1", "404"),
        ("<script>alert(1)</script> /metrics HTTP/1.1", "400"),
        ("CONNECT other:80 HTTP/1.1", "404"),
        ("GET /metrics HTTP/9.9", "505"),
        ("GET /metrics SPDY/1", "400"),
        ("GET", "400"),
        ("GET /metrics", "400"),
        ("GET /metrics HTTP/0.9", "505"),
    ],
)
def test_what_a_browser_could_be_told_is_inert(service: Service, request_line: str, code: str) -> None:
    """Beyond health and metrics there is nothing, so nothing needs a login; no answer repeats what was asked."""
    _until(lambda: _ready(service) == 200)
    place = urlsplit(_place(service))
    with socket.create_connection((str(place.hostname), place.port or 0), timeout=PATIENCE) as connection:
        connection.sendall(f"{request_line}\r\nHost: evil.example\r\nConnection: close\r\n\r\n".encode())
        connection.shutdown(socket.SHUT_WR)
        head, _, body = b"".join(iter(lambda: connection.recv(65536), b"")).partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    told = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert status.split()[1] == code
    assert told["content-type"].startswith(("text/plain", "application/openmetrics-text"))
    policy = told["content-security-policy"].split("; ")
    assert {"default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'"} <= set(policy)
    assert not {"'unsafe-inline'", "'unsafe-eval'", "*"} & set(" ".join(policy).split())
    assert (told["x-content-type-options"], told["cache-control"]) == ("nosniff", "no-store")
    assert not {"set-cookie", "access-control-allow-origin", "location"} & set(told)
    for hostile in (b"<script", b"passwd", b"evil.example"):
        assert hostile not in head + body
