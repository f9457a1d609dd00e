"""What the API answers is what its document says, and nothing else (S11)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker, ValidationError

from coordinator.operations import ACTS, READS, ROOT, Operation
from store.database import connected
from store.embedded.running import running_url
from tests.acceptance import api
from tests.acceptance.api import asked, got, left
from tests.fix_reports import lost
from tests.fix_runs import store_run
from tests.fix_service import Service, running_service
from tests.tables import all_cases
from tests.wire.messages import Properties, data
from tests.wire.peer import Peer
from tests.wire.queues import later

pytestmark = pytest.mark.rule("S11")

#: Requests of each operation that reads, with the names of :func:`made`.
_READS = {
    "/addresses": ["/addresses"],
    "/addresses/{name:path}": ["/addresses/orders"],
    "/audit": ["/audit"],
    "/check": ["/check?fewest_free=0"],
    "/connections": ["/connections"],
    "/connections/{connection_id}": ["/connections/{connection}"],
    "/dead-letters": ["/dead-letters"],
    "/dead-letters/{name:path}": ["/dead-letters/orders", "/dead-letters/orders?whole=true"],
    "/findings": ["/findings"],
    "/findings/{run}": ["/findings/{run}"],
    "/findings/{run}/findings": ["/findings/{run}/findings"],
    "/groups": ["/groups"],
    "/messages": ["/messages?message_id=mine"],
    "/messages/{half_id}": ["/messages/{letter}"],
    "/permissions": ["/permissions", "/permissions?verb=send&name=orders"],
    "/schedules": ["/schedules"],
    "/schedules/{name:path}": ["/schedules/orders"],
    "/transactions": ["/transactions"],
    "/transactions/{txn_id}": ["/transactions/{undecided}", "/transactions/{decided}"],
    "/users": ["/users"],
}
_NOW = datetime.now(UTC).isoformat()
#: Acts in an order in which each can be done: operation, request, and what is in its object.
_ACTS: list[tuple[str, str, dict[str, Any]]] = [
    ("/users/{name:path}/add", "/users/carl/add", {"without_password": True}),
    ("/users/{name:path}/set", "/users/carl/set", {"disable": True}),
    ("/permissions/grant", "/permissions/grant", {"verbs": "all", "pattern": "x", "user": "carl"}),
    ("/permissions/revoke", "/permissions/revoke", {"verbs": "all", "pattern": "x", "user": "carl"}),
    ("/users/{name:path}/remove", "/users/carl/remove", {}),
    ("/addresses/{name:path}/add", "/addresses/new/add", {}),
    ("/addresses/{name:path}/set", "/addresses/new/set", {"max_attempts": 3, "check_immunity": "inherit"}),
    ("/groups/{name:path}/set", "/groups/new/set", {"retry": "ladder", "max_attempts": "inherit"}),
    ("/groups/{name:path}/pause", "/groups/new/pause", {"reason": "why"}),
    ("/groups/{name:path}/resume", "/groups/new/resume", {}),
    ("/groups/{name:path}/seek", "/groups/new/seek", {"to": _NOW}),
    ("/addresses/{name:path}/purge", "/addresses/new/purge", {}),
    ("/addresses/{name:path}/remove", "/addresses/new/remove", {}),
    (
        "/messages/{half_id}/retire",
        "/messages/{waits}/retire",
        {"group": "orders", "outcome": "accepted", "reason": "x"},
    ),
    ("/dead-letters/{name:path}/replay", "/dead-letters/orders/replay", {"all": True}),
    ("/findings/{run}/repair", "/findings/{run}/repair", {}),
    ("/transactions/{txn_id}/resume", "/transactions/{undecided}/resume", {}),
    ("/transactions/{txn_id}/resolve", "/transactions/{undecided}/resolve", {"decision": "rollback", "reason": "x"}),
    ("/connections/{connection_id}/close", "/connections/{connection}/close", {}),
]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = api.settings(tmp_path_factory.mktemp("document"))
    with running_service(settings, {"coordinator.connection_list.SCAN_SECONDS": 0.1}) as service:
        yield service


@pytest.fixture(scope="module")
def document(service: Service) -> dict[str, Any]:
    """The document; its objects have no other members than it says."""
    found: dict[str, Any] = got(service, "/openapi.json")
    objects = [each for each in found["components"]["schemas"].values() if "properties" in each]
    assert len(objects) > 40
    for each in objects:
        each["additionalProperties"] = False
    return found


@pytest.fixture(scope="module")
def made(service: Service) -> Iterator[dict[str, Any]]:
    """Something of everything that there is, by names of requests."""
    peer = Peer(service.port)
    peer.open()
    session = peer.begin()
    letters = api.buried(service, session, "orders", 1)
    sender = session.sender("orders")
    for message in (Properties(message_id="mine").encoded() + data(b"waits"), later(b"later", delay=3_600_000)):
        sender.outcome(message)
    service.cli("user", "add", "anna", "--without-password")
    service.cli("permission", "grant", "all", "*", "--role", "anonymous")
    service.cli("permission", "grant", "send", "orders", "--user", "anna")
    with connected(running_url(service.data_dir)) as connection:
        store_run(connection, [lost(1), lost(2)])
    undecided, decided = left(service, 2)
    service.cli("transaction", "resolve", decided, "--commit", "--reason", "x")
    found: list[dict[str, Any]] = []
    while not found:
        found = got(service, "/connections")
    (run,) = got(service, "/findings")
    (message,) = got(service, "/messages?message_id=mine")
    (waits,) = {each["message"] for each in message["events"]}
    yield {
        "connection": found[0]["connection"],
        "decided": decided,
        "letter": letters[0],
        "run": run["run"],
        "undecided": undecided,
        "waits": waits,
    }
    peer.close_socket()


def _check(document: dict[str, Any], method: str, path: str, value: Any, status: str = "200") -> str:
    """See that ``value`` is what the operation answers, and return its media type."""
    responses = document["paths"][ROOT + path.replace(":path", "")][method]["responses"]
    ((media_type, content),) = responses[status]["content"].items()
    schema = {**content["schema"], "components": document["components"]}
    Draft202012Validator(schema, format_checker=FormatChecker()).validate(value)
    return str(media_type)


def test_each_operation_says_what_it_answers(document: dict[str, Any]) -> None:
    said = {(method, path): each for path, of in document["paths"].items() for method, each in of.items()}
    assert len(said) == len(READS) + len(ACTS)
    for each in said.values():
        assert set(each["responses"]) - {"202"} == {"200", "default"}
        for response in each["responses"].values():
            for content in response["content"].values():
                Draft202012Validator.check_schema(content["schema"])
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
        assert schema.get("required", []) == list(schema.get("properties", []))


@all_cases("operation", READS, ids=[each.path for each in READS])
def test_a_read_answers_what_is_said(
    service: Service, document: dict[str, Any], made: dict[str, Any], operation: Operation
) -> None:
    for request in _READS[operation.path]:
        value = got(service, request.format(**made))
        assert value
        assert _check(document, "get", operation.path, value) == "application/json"


def test_another_answer_would_be_found(document: dict[str, Any]) -> None:
    line: dict[str, Any] = {
        "id": "x",
        "name": "anna",
        "disabled_at": None,
        "created_at": _NOW,
        "password_set_at": None,
        "roles": [],
    }
    _check(document, "get", "/users", [line])
    for wrong in ({**line, "more": 1}, {**line, "roles": None}, {name: line[name] for name in line if name != "id"}):
        with pytest.raises(ValidationError):
            _check(document, "get", "/users", [wrong])


@all_cases(
    ("path", "request_path", "status"),
    [
        ("/addresses/{name:path}", "/addresses/none", 404),
        ("/addresses", "/addresses?limit=0", 400),
        ("/transactions/{txn_id}", "/transactions/x", 400),
    ],
)
def test_an_error_is_what_is_said(
    service: Service, document: dict[str, Any], path: str, request_path: str, status: int
) -> None:
    answer = asked(service, "GET", request_path)
    assert answer.status == status
    assert _check(document, "get", path, answer.value, "default") == answer.headers["content-type"]
    refused = asked(service, "GET", request_path, Authorization="Bearer x")
    assert refused.status == 401
    assert _check(document, "get", path, refused.value, "default") == refused.headers["content-type"]


def test_an_act_answers_what_is_said(service: Service, document: dict[str, Any], made: dict[str, Any]) -> None:
    """Last, as it changes what there is."""
    assert {path for path, _, _ in _ACTS} == {each.path for each in ACTS}
    for path, request, given in _ACTS:
        answer = asked(service, "POST", request.format(**made), json.dumps(given))
        assert answer.status == 200, answer
        assert _check(document, "post", path, answer.value) == "application/json"
    path, request, given = _ACTS[-2]
    again = asked(service, "POST", request.format(**made), json.dumps(given))
    assert (again.status, _check(document, "post", path, again.value, "default")) == (409, "application/problem+json")
