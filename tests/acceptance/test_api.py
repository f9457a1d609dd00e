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
from tests.fix_postgres import signal_server
from tests.fix_service import PATIENCE, Service, running_service
from tests.tables import all_cases
from tests.wire.frames import Rejected
from tests.wire.messages import data
from tests.wire.peer import Peer
from tests.wire.queues import dead_letters, post
from tests.wire.types import Symbol

pytestmark = pytest.mark.rule("S11")


_TOKEN = "a-token-of-these-tests"
_HERE = {"metrics.listen": "http://127.0.0.1:0"}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    token = tmp_path_factory.mktemp("api") / "token"
    token.touch(0o600)
    token.write_text(_TOKEN)
    return {**_HERE, "metrics.token": str(token)}


@pytest.fixture(scope="module")
def service(settings: dict[str, str]) -> Iterator[Service]:
    with running_service(settings) as service:
        yield service


def _asked(service: Service, path: str, **given: str) -> http.client.HTTPResponse:
    headers = {"Authorization": f"Bearer {_TOKEN}", **given}
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
    assert service.command("address", "set", "orders", "--max-attempts", "3").returncode == 0
    control = session.control(properties={Symbol("coordinator:producer-group"): "shop"})
    sender = session.sender("orders")
    found = []
    for _ in range(3):
        txn = control.declare()
        sender.outcome(data(b"x"), txn=txn)
        found.append(txn.hex())
    yield found
    peer.close_socket()


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
    ],
)
def test_it_answers_what_the_command_does(
    service: Service, undecided: list[str], path: str, arguments: tuple[str, ...]
) -> None:
    del undecided
    told = _got(service, path)
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
    checked = _got(service, "/check?fewest_free=0")
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


@pytest.mark.parametrize("path", ["/addresses", "/groups", "/transactions", "/dead-letters"])
def test_pages_follow_each_other(service: Service, undecided: list[str], path: str) -> None:
    """The next one is in a header, so that a page is what the command prints."""
    post_first = {json.dumps(each).partition(', "age')[0] for each in _got(service, path)}
    seen: list[str] = []
    page: str | None = f"/api/v1{path}?limit=1"
    while page is not None:
        with _asked(service, page) as answer:
            (line,) = json.loads(answer.read())
            link = answer.headers["Link"]
        seen.append(json.dumps(line).partition(', "age')[0])
        assert len(seen) <= len(post_first)
        page = None if link is None else link.removesuffix('>; rel="next"').removeprefix("<")
    assert len(seen) == len(post_first)
    assert set(seen) == post_first
    assert undecided


@all_cases(
    ("path", "status", "detail"),
    [
        ("/addresses/none", 404, "there is no address 'none'"),
        ("/groups?address=none", 404, "there is no address 'none'"),
        ("/addresses/%00", 400, "expected no NUL character: no name has one"),
        ("/groups?after=x%00", 400, "expected no NUL character: no name has one"),
        ("/transactions/xyz", 400, "TXN-ID: expected 32 hexadecimal digits, not 'xyz'"),
        ("/messages/1", 404, "the store has no message 1"),
        ("/audit?since=yesterday", 400, "'yesterday' is no time; expected 2026-03-01, 2026-03-01T12:00Z or 24h (ago)"),
        ("/addresses?limit=0", 400, "limit: Input should be greater than or equal to 1"),
        ("/nothing", 404, "expected what /api/v1/openapi.json has"),
    ],
)
def test_an_error_is_one_sentence(service: Service, path: str, status: int, detail: str) -> None:
    assert _problem(service, path) == (status, detail)


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
        said = "the API is answered where metrics.token or metrics.operators is set, to who shows a token"
        assert _problem(without, "/audit") == (403, said)


def test_elsewhere_than_on_loopback_it_is_refused() -> None:
    with running_service({"metrics.listen": "http://0.0.0.0:0", "metrics.anonymous": "always"}) as service:
        said = "the API is answered on loopback, or by https://: metrics.listen"
        assert _problem(service, "/addresses") == (403, said)
