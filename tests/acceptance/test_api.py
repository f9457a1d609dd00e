"""The API answers what commands answer (S11)."""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from fastapi.routing import APIRoute

from coordinator.http.acting import routes as acts
from coordinator.http.api import routes
from store.database import connected
from store.embedded.running import running_url
from tests.acceptance import api
from tests.fix_postgres import signal_server
from tests.fix_reports import lost
from tests.fix_runs import store_run
from tests.fix_service import PATIENCE, Service, running_service
from tests.tables import all_cases
from tests.wire.frames import Rejected
from tests.wire.messages import data
from tests.wire.peer import Peer
from tests.wire.queues import dead_letters, later, post
from tests.wire.types import Symbol

pytestmark = pytest.mark.rule("S11")


_OPERATOR = f"Bearer {api.OPERATOR}"
_HERE = {"metrics.listen": "http://127.0.0.1:0"}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return api.settings(tmp_path_factory.mktemp("api"))


@pytest.fixture(scope="module")
def service(settings: dict[str, str]) -> Iterator[Service]:
    with running_service(settings, {"coordinator.connection_list.SCAN_SECONDS": 0.1}) as service:
        yield service


def _asked(service: Service, path: str, **given: str) -> http.client.HTTPResponse:
    headers = {"Authorization": f"Bearer {api.TOKEN}", **given}
    lines = [line for line in service.log_lines() if line.get("event") == "metrics"]
    place = urlsplit(lines[-1]["listen"][0])
    connection = http.client.HTTPConnection("127.0.0.1", place.port, timeout=PATIENCE)
    connection.request("GET", path, headers=headers)
    return connection.getresponse()


def _got(service: Service, path: str, **headers: str) -> Any:
    with _asked(service, f"/api/v1{path}", **headers) as answer:
        assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
        return json.loads(answer.read())


def _problem(service: Service, path: str, **headers: str) -> tuple[int, str]:
    """Status and sentence."""
    with _asked(service, f"/api/v1{path}", **headers) as answer:
        assert answer.headers["Content-Type"] == "application/problem+json"
        told = json.loads(answer.read())
        assert told["status"] == answer.status
        return answer.status, told["detail"]


@pytest.fixture(scope="module")
def undecided(service: Service) -> Iterator[list[str]]:
    """Txn-ids of checkable transactions; with addresses, groups, a dead letter, and a row of the audit."""
    peer = Peer(service.port)
    peer.open()
    session = peer.begin()
    for name in ("orders", "a/b %?", "<script>"):
        post(session, name, b"1", b"2")
    session.receiver("orders", credit=1).take().disposition(Rejected())
    dead_letters(session, "orders")
    session.sender("orders").outcome(later(b"3", delay=3_600_000))
    service.cli("address", "set", "orders", "--max-attempts", "3")
    for name in ("anna", "bob", "eve"):
        service.cli("user", "add", name, "--without-password")
    service.cli("permission", "grant", "all", "*", "--role", "anonymous")
    service.cli("permission", "grant", "send", "orders", "--user", "anna")
    with connected(running_url(service.data_dir)) as connection:
        store_run(connection, [lost(1), lost(2), lost(3)])
    control = session.control(properties={Symbol("coordinator:producer-group"): "shop"})
    sender = session.sender("orders")
    found = []
    for _ in range(3):
        txn = control.declare()
        sender.outcome(data(b"x"), txn=txn)
        found.append(txn.hex())
    other = Peer(service.port)
    other.open()
    while len(json.loads(service.cli("connection", "list", "--json"))) < 2:
        pass
    yield found
    peer.close_socket()
    other.close_socket()


@all_cases(
    ("path", "arguments"),
    [
        ("/addresses", ("address", "list")),
        ("/groups", ("group", "list")),
        ("/groups?address=orders", ("group", "list", "orders")),
        ("/addresses/orders", ("address", "show", "orders")),
        (f"/addresses/{quote('a/b %?', safe='')}", ("address", "show", "a/b %?")),
        ("/addresses/a/b%20%25%3F", ("address", "show", "a/b %?")),
        ("/dead-letters", ("dead-letters", "list")),
        ("/schedules", ("schedule", "list")),
        ("/schedules/orders", ("schedule", "show", "orders")),
        ("/dead-letters/orders", ("dead-letters", "show", "orders")),
        ("/users", ("user", "list")),
        ("/permissions", ("permission", "list")),
        ("/permissions?verb=send&name=orders", ("permission", "list", "--who", "send", "orders")),
        ("/findings", ("findings", "list")),
    ],
)
def test_it_answers_what_the_command_does(
    service: Service, undecided: list[str], path: str, arguments: tuple[str, ...]
) -> None:
    del undecided
    told = _got(service, path, Authorization=_OPERATOR)
    assert told
    assert told == json.loads(service.command(*arguments, "--json").stdout)


def test_so_does_the_audit_whose_command_prints_a_document_a_line(service: Service, undecided: list[str]) -> None:
    del undecided
    told = _got(service, "/audit?what=address-set")
    assert told
    assert told == [
        json.loads(line) for line in service.command("audit", "--what", "address-set", "--json").stdout.splitlines()
    ]


def test_what_changes_with_time_has_the_same_names(service: Service, undecided: list[str]) -> None:
    listed = _got(service, "/transactions")
    said = json.loads(service.command("transaction", "list", "--json").stdout)
    assert [each["txn_id"] for each in listed] == [each["txn_id"] for each in said]
    assert {each["txn_id"].replace("-", "") for each in listed} >= set(undecided)
    for told, of in zip(listed, said, strict=True):
        assert told.keys() == of.keys()
    (one, other) = _got(service, "/connections")
    assert _got(service, f"/connections/{one['connection']}")["container_id"] == one["container_id"]
    said = json.loads(service.command("connection", "list", "--json").stdout)
    assert [each["connection"] for each in said] == [one["connection"], other["connection"]]
    assert said[0].keys() == one.keys()
    assert _got(service, "/connections?closed=true") == []
    checked = _got(service, "/check?fewest_free=0")
    assert checked["only_reads"] is False
    assert checked["free_bytes"] > 0  # of the embedded server's disk, which its role may not ask for
    assert checked.keys() == json.loads(service.command("check", "--fewest-free", "0", "--json").stdout).keys()


def test_what_became_of_a_transaction_and_its_message(service: Service, undecided: list[str]) -> None:
    told = _got(service, f"/transactions/{undecided[0]}")
    assert told["outcome"] == "undecided"
    (number,) = {each["message"] for each in told["events"]} - {None}
    assert _got(service, f"/messages/{number}")["txn_id"].replace("-", "") == undecided[0]


def test_the_document_describes_each_path(service: Service) -> None:
    with _asked(service, "/api/v1/openapi.json") as answer:
        told = json.loads(answer.read())
    assert told["openapi"].startswith("3.1.")
    assert told["info"]["title"] == "coordinator"
    assert {path: list(of) for path, of in told["paths"].items()} == {
        str(route.path).replace(":path}", "}"): [each.lower() for each in route.methods or ()]
        for route in (*routes.routes, *acts.routes)
        if isinstance(route, APIRoute)
    }


@pytest.mark.parametrize("path", ["/addresses", "/groups", "/transactions", "/dead-letters", "/connections", "/users"])
def test_pages_follow_each_other(service: Service, undecided: list[str], path: str) -> None:
    """The next one is in a header, so that a page is what the command prints."""
    post_first = {_key(each) for each in _got(service, path, Authorization=_OPERATOR)}
    seen: list[str] = []
    page: str | None = f"/api/v1{path}?limit=1"
    while page is not None:
        with _asked(service, page, Authorization=_OPERATOR) as answer:
            (line,) = json.loads(answer.read())
            link = answer.headers["Link"]
        seen.append(_key(line))
        assert len(seen) <= len(post_first)
        page = None if link is None else link.removesuffix('>; rel="next"').removeprefix("<")
    assert len(seen) == len(post_first)
    assert set(seen) == post_first
    assert undecided


def _key(line: dict[str, Any]) -> str:
    """What does not change with time, and is of one line alone."""
    return str([line.get(name) for name in ("name", "address", "group", "txn_id", "connection")])


def test_findings_come_page_by_page(service: Service, undecided: list[str]) -> None:
    del undecided
    (run,) = _got(service, "/findings")
    assert _got(service, f"/findings/{run['run']}") == run
    path = f"/findings/{run['run']}/findings"
    said = [json.loads(line) for line in service.cli("findings", "show", str(run["run"]), "--json").splitlines()]
    assert len(said) == 3
    assert _got(service, path) == said
    assert _got(service, f"{path}?after=1&limit=1") == said[1:2]
    assert _got(service, f"{path}?kind=lost-delivery&kind=overdue") == said
    assert _got(service, f"{path}?kind=overdue") == []


def test_pages_of_the_audit_lead_back(service: Service, undecided: list[str]) -> None:
    del undecided
    said = service.command("audit", "--json").stdout.splitlines()
    seen: list[dict[str, Any]] = []
    page: str | None = "/api/v1/audit?limit=2"
    while page is not None:
        with _asked(service, page) as answer:
            seen = json.loads(answer.read()) + seen
            link = answer.headers["Link"]
        page = None if link is None else link.removesuffix('>; rel="prev"').removeprefix("<")
    assert len(seen) > 2
    assert seen == [json.loads(line) for line in said]


def test_letters_have_their_messages_where_asked_for(service: Service, undecided: list[str]) -> None:
    del undecided
    (letter,) = _got(service, "/dead-letters/orders?whole=true", Authorization=_OPERATOR)
    (said,) = map(json.loads, service.cli("dead-letters", "export", "orders").splitlines())
    assert letter["message"] == said["message"]


@pytest.mark.parametrize("path", ["/users", "/permissions", "/dead-letters/orders"])
def test_who_may_do_what_and_messages_are_for_operators(service: Service, path: str) -> None:
    said = "metrics.token is not for this, expected a token of metrics.operators"
    assert _problem(service, path) == (403, said)


@all_cases(
    ("path", "status", "detail"),
    [
        ("/addresses/none", 404, "there is no address 'none'"),
        ("/groups?address=none", 404, "there is no address 'none'"),
        ("/addresses/%00", 400, "expected no NUL character: no name has one"),
        ("/findings/1/findings?kind=x%00&kind=x", 400, "expected no NUL character: no name has one"),
        ("/groups?after=x%00", 400, "expected no NUL character: no name has one"),
        ("/transactions/xyz", 400, "TXN-ID: expected 32 hexadecimal digits, not 'xyz'"),
        ("/messages/1", 404, "the store has no message 1"),
        ("/messages?message_id=never", 404, "no message with the message-id 'never' was posted from "),
        ("/messages?message_id=", 400, "MESSAGE: expected the message-id that a client gave, not ''"),
        ("/messages?message_id=x&since=soon", 400, "'soon' is no time; expected 2026-03-01, 2026-03-01T12:00Z or 24h"),
        ("/audit?since=yesterday", 400, "'yesterday' is no time; expected 2026-03-01, 2026-03-01T12:00Z or 24h (ago)"),
        ("/addresses?limit=0", 400, "limit: Input should be greater than or equal to 1"),
        (
            "/connections/1-999",
            404,
            "there is no connection 1-999 (coordinator connection list has them",
        ),
        (
            "/connections/x",
            400,
            "CONNECTION: expected two numbers, as in 12-345 (coordinator connection list), not 'x'",
        ),
        ("/connections?after=x", 400, "'x' is no time; expected 2026-03-01, 2026-03-01T12:00Z or 24h (ago)"),
        ("/findings/9", 404, "there is no run 9: coordinator findings list has those that are stored"),
        ("/findings/x", 400, "run: Input should be a valid integer, unable to parse string as an integer"),
        ("/audit?before=0", 400, "before: Input should be greater than or equal to 1"),
        ("/nothing", 404, "expected what /api/v1/openapi.json has"),
    ],
)
def test_an_error_is_one_sentence(service: Service, path: str, status: int, detail: str) -> None:
    found, said = _problem(service, path)
    assert (found, said[: len(detail)]) == (status, detail)


def test_an_unknown_transaction_is_said_as_the_command_says_it(service: Service) -> None:
    status, detail = _problem(service, f"/transactions/{'0' * 32}")
    assert (status, f"error: {detail}\n") == (404, service.command("transaction", "show", "0" * 32).stderr)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "10.0.0.1", "[", ""])
def test_a_page_that_has_its_name_lead_here_reads_nothing(service: Service, host: str) -> None:
    said = "the header Host names another machine, expected localhost"
    assert _problem(service, "/addresses", Host=host) == (403, said)


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1", "[::1]:9672"])
def test_names_of_this_machine_do(service: Service, host: str) -> None:
    assert isinstance(_got(service, "/addresses", Host=host), list)


def test_a_store_that_is_away_is_said(settings: dict[str, str]) -> None:
    with running_service(settings) as service:
        started = [line for line in service.log_lines() if line.get("event") == "database started"]
        signal_server(int(started[-1]["pid"]), signal.SIGSTOP)
        try:
            status, detail = _problem(service, "/addresses")
        finally:
            signal_server(int(started[-1]["pid"]), signal.SIGCONT)
        assert status == 503
        assert detail.startswith("database at ")


def test_it_is_for_who_shows_the_token(service: Service) -> None:
    for wrong in ("Bearer another-of-these-tests", "Basic x", ""):
        assert _problem(service, "/audit", Authorization=wrong) == (
            401,
            "expected the token of metrics.token, or one of metrics.operators",
        )
    with running_service(_HERE) as without:
        needed = "metrics.token, metrics.operators or tokens.operator_role"
        said = f"the API is answered where {needed} is set, to who shows a token"
        assert _problem(without, "/audit") == (403, said)


def test_elsewhere_than_on_loopback_it_is_refused() -> None:
    with running_service({"metrics.listen": "http://0.0.0.0:0", "metrics.anonymous": "always"}) as service:
        said = "the API is answered on loopback, or by https://: metrics.listen"
        assert _problem(service, "/addresses") == (403, said)
