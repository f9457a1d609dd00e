"""Operators act over HTTP as they do with commands, and the audit names them (S10, S11)."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from sqlalchemy import text

from store.database import connected
from store.embedded.running import running_url
from tests.acceptance import api
from tests.acceptance.api import TOKEN, asked, buried, done, got, left, refused
from tests.fix_service import Service, running_service
from tests.fix_wire import Begin
from tests.tables import all_cases
from tests.wire.frames import Accepted
from tests.wire.peer import Peer
from tests.wire.queues import post

pytestmark = [pytest.mark.rule("S10"), pytest.mark.rule("S11")]

_NONE = "0" * 32


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    more = {"coordinator.connection_list.SCAN_SECONDS": 0.1}
    with running_service(api.settings(tmp_path_factory.mktemp("api")), more) as service:
        yield service


def test_an_undecided_transaction_is_decided_once(service: Service) -> None:
    first, second = left(service, 2)
    told = done(service, f"/transactions/{first}/resolve", decision="commit", reason="paid, says the bank")
    assert (told["txn_id"].replace("-", ""), told["outcome"], told["posted_to"]) == (first, "commit", ["orders"])
    assert got(service, f"/transactions/{first}")["outcome"] == "commit"
    status, detail = refused(service, f"/transactions/{first}/resolve", decision="rollback", reason="no")
    assert status == 409
    assert " is decided already: commit (paid, says the bank) at 20" in detail
    done(service, f"/transactions/{second}/resolve", decision="rollback", reason="not paid")
    assert got(service, f"/transactions/{second}")["outcome"] == "rollback"


def test_the_audit_has_who_why_and_from_where(service: Service) -> None:
    (txn,) = left(service)
    done(service, f"/transactions/{txn}/resolve", decision="commit", reason="of the audit")
    (line,) = [each for each in got(service, "/audit?who=anna&what=resolve") if each["reason"] == "of the audit"]
    assert line["subject"].replace("-", "") == txn
    assert (line["os_user"], line["place"], line["client_user"]) == ("anna", "api 127.0.0.1", None)
    bob = {"Authorization": f"Bearer another-{api.OPERATOR}"}
    body = json.dumps({"decision": "commit", "reason": "his"})
    assert asked(service, "POST", f"/transactions/{left(service)[0]}/resolve", body, **bob).status == 200
    assert [each["reason"] for each in got(service, "/audit?who=bob")] == ["his"]


def test_checks_begin_again(service: Service) -> None:
    (txn,) = left(service)
    assert done(service, f"/transactions/{txn}/resume")["txn_id"].replace("-", "") == txn
    done(service, f"/transactions/{txn}/resolve", decision="rollback", reason="enough")
    assert refused(service, f"/transactions/{txn}/resume")[0] == 409


def test_a_connection_is_closed(service: Service) -> None:
    peer = Peer(service.port)
    peer.open(container_id="to-be-closed")
    wanted = ""
    while not wanted:
        listed = json.loads(service.cli("connection", "list", "--json"))
        wanted = "".join(each["connection"] for each in listed if each["container_id"] == "to-be-closed")
    assert done(service, f"/connections/{wanted}/close", reason="too loud") == {"connection": wanted, "closed": True}
    assert "too loud" in str(peer.closed())
    status, detail = refused(service, f"/connections/{wanted}/close")
    assert status == 409
    assert f"the connection {wanted} was closed at 20" in detail


def test_letters_are_replayed(begin: Begin, service: Service, address: str) -> None:
    session = begin()
    first, *others = buried(service, session, address, 3)
    told = done(service, f"/dead-letters/{address}/replay", ids=[first, 1], reason="mended")
    assert told == {"ids": [first], "left": [[1, "there is no such letter"]], "next": None}
    told = done(service, f"/dead-letters/{address}/replay", all=True)
    assert (told["ids"], told["left"], told["next"]) == (others, [], None)
    assert session.receiver(address, credit=5).bodies() == [b"0", b"1", b"2"]
    (line,) = [each for each in got(service, "/audit?what=replay") if each["reason"] == "mended"]
    assert line["detail"] == {"ids": [first, 1]}


def test_a_replay_goes_on_where_another_has_stopped(begin: Begin, service: Service, address: str) -> None:
    session = begin()
    buried(service, session, address, 2)
    nothing: dict[str, Any] = {"ids": [], "left": [], "next": None}
    assert done(service, f"/dead-letters/{address}/replay", all=True, after=0, until=0) == nothing
    assert done(service, f"/dead-letters/{address}/replay", all=True, after=(1 << 63) - 1) == nothing
    assert len(done(service, f"/dead-letters/{address}/replay", all=True, after=0, until=(1 << 63) - 1)["ids"]) == 2


def test_what_waits_is_purged(begin: Begin, service: Service, address: str) -> None:
    session = begin()
    post(session, address, b"1", b"2")
    assert done(service, f"/addresses/{address}/purge") == {"purged": 2, "held": 0, "finished": True, "next": None}
    (line,) = [each for each in got(service, "/audit?what=purge") if each["subject"] == address]
    assert line["os_user"] == "anna"
    status, detail = refused(service, "/addresses/none/purge")
    assert (status, detail) == (404, "there is no address 'none'")


def test_a_group_is_moved(begin: Begin, service: Service, address: str) -> None:
    session = begin()
    post(session, address, b"1", b"2")
    consumer = session.receiver(address)
    for delivery in consumer.take_many(2):
        delivery.disposition(Accepted(), settled=False)
        delivery.settlement()
    (moved,) = done(service, f"/groups/{address}/seek", back_to="2026-01-01T00:00:00Z", reason="again")
    assert (moved["back"], moved["moved"]) == (True, 2)
    assert [delivery.body for delivery in consumer.take_many(2)] == [b"1", b"2"]


def test_addresses_and_groups_are_changed(service: Service, address: str) -> None:
    made = done(service, f"/addresses/{address}/add", kind="mixed", max_attempts=3, reason="new")
    assert made == {"name": address, "routing": "queue"}
    assert done(service, f"/addresses/{address}/set", retry="ladder 1s", check_most="inherit")["retry"] == "ladder 1s"
    shown = got(service, f"/addresses/{address}")
    assert (shown["kind"], shown["max_attempts"], shown["retry"]) == ("mixed", 3, "ladder 1s")
    assert done(service, f"/groups/{address}/set", max_attempts=5) == {"max_attempts": 5}
    assert done(service, f"/groups/{address}/set", max_attempts="inherit") == {"max_attempts": None}
    said = f"there is an address '{address}' already"
    assert refused(service, f"/addresses/{address}/add") == (409, said)
    assert done(service, f"/addresses/{address}/remove")["removed"] is True
    assert refused(service, f"/addresses/{address}/remove") == (404, f"there is no address '{address}'")


def test_an_address_with_messages_stays(begin: Begin, service: Service, address: str) -> None:
    post(begin(), address, b"1")
    status, detail = refused(service, f"/addresses/{address}/remove")
    assert status == 409
    assert detail.endswith("; --force removes it with them")
    assert done(service, f"/addresses/{address}/remove", force=True)["dropped"] == 1


def test_users_are_disabled_and_permissions_taken(service: Service) -> None:
    service.cli("user", "add", "carl", "--without-password")
    told = done(service, "/permissions/grant", verbs="all", pattern="*", role="anonymous", reason="before carl")
    assert (told["role"], told["open_now"]) == ("anonymous", False)
    assert done(service, "/users/carl/set", disable=True) == {"name": "carl", "state": "disabled"}
    (line,) = got(service, "/users")
    assert line["disabled_at"] is not None
    assert done(service, "/users/carl/set", role="clerks")["state"] == "has the role clerks"
    assert refused(service, "/users/carl/set", without_role="none")[0] == 404
    told = done(service, "/permissions/grant", verbs="send,receive", pattern="orders", user="carl")
    assert told["verbs"] == ["send", "receive"]
    assert done(service, "/permissions/revoke", verbs="send", pattern="orders", user="carl")["revoked"] == 1
    assert done(service, "/users/carl/remove")["open_now"] is False
    assert got(service, "/audit?what=grant")[0]["reason"] == "before carl"
    wrong = asked(service, "GET", "/permissions?verb=fly&name=x")
    assert (wrong.status, wrong.value["detail"].partition(" send, ")[0]) == (400, "verb: expected one of")


@all_cases(
    ("path", "given", "status", "detail"),
    [
        ("/addresses/%25x/add", {"kind": "odd"}, 400, "kind: expected normal, "),
        ("/addresses/$x/add", {}, 400, "the address "),
        ("/addresses/orders/set", {}, 400, "give at least one of --kind"),
        ("/addresses/orders/set", {"check_most": "0"}, 400, "check_most: expected a number from 1 to 1000"),
        ("/addresses/orders/set", {"max_attempts": 0}, 400, "max_attempts: Input should be greater than or equal to 1"),
        ("/addresses/orders/set", {"kind": "fifo"}, 409, "kind: 'orders' is of kind "),
        (
            "/groups/orders/set",
            {"max_attempts": True},
            400,
            "max_attempts: Input should be a valid integer, or Input should be a valid string",
        ),
        ("/dead-letters/none/replay", {"ids": ["a", "b"]}, 400, "ids: Input should be a valid integer"),
        ("/groups/orders/set", {"max_attempts": "many"}, 400, "max_attempts: expected a number from 1 to 32767"),
        ("/groups/orders/set", {"retry": "x"}, 400, "retry: "),
        ("/permissions/grant", {"verbs": "fly", "pattern": "x", "user": "a"}, 400, "VERBS: expected some of send, "),
        ("/permissions/grant", {"verbs": "all", "pattern": "a*b", "user": "a"}, 400, "PATTERN: a * can only be its "),
        ("/permissions/grant", {"verbs": "all", "pattern": "x"}, 400, "give --user or --role"),
        ("/permissions/grant", {"verbs": "all", "pattern": "x", "user": "none"}, 404, "there is no user none"),
        ("/users/none/remove", {}, 404, "there is no user none"),
        ("/users/none/set", {"disable": True, "enable": True}, 400, "give one of --password, "),
        ("/transactions/xyz/resolve", {"decision": "commit", "reason": "r"}, 400, "TXN-ID: expected 32 hexadecimal "),
        (f"/transactions/{_NONE}/resolve", {"decision": "commit", "reason": "r"}, 404, "no undecided transaction "),
        (f"/transactions/{_NONE}/resolve", {"decision": "commit"}, 400, "reason: Field required"),
        (f"/transactions/{_NONE}/resolve", {"reason": "r"}, 400, "decision: Field required"),
        (f"/transactions/{_NONE}/resolve", {"decision": "x", "reason": "r"}, 400, "decision: Input should be 'commit'"),
        (f"/transactions/{_NONE}/resolve", {"decision": "commit", "reason": ""}, 400, "reason: expected 1 to 1000 "),
        (f"/transactions/{_NONE}/resolve", {"decision": "commit", "reason": "a\0"}, 400, "reason: expected 1 to 1000 "),
        (
            f"/transactions/{_NONE}/resolve",
            {"decision": "commit", "reason": "timeout"},
            400,
            "reason: timeout is a wor",
        ),
        (
            f"/transactions/{_NONE}/resolve",
            {"decision": "commit", "reason": 1},
            400,
            "reason: Input should be a valid ",
        ),
        (f"/transactions/{_NONE}/resume", {"raeson": "r"}, 400, "raeson: Extra inputs are not permitted"),
        ("/transactions/%00/resume", {}, 400, "expected no NUL character: no name has one"),
        ("/connections/1/close", {}, 400, "CONNECTION: expected two numbers, as in 12-345"),
        ("/connections/1-999/close", {}, 404, "there is no connection 1-999"),
        ("/dead-letters/none/replay", {"all": True}, 404, "there are no dead letters of 'none'"),
        ("/dead-letters/none/replay", {}, 400, "give letters by ID, or --all"),
        ("/dead-letters/none/replay", {"all": "yes"}, 400, "all: Input should be a valid boolean"),
        ("/dead-letters/none/replay", {"ids": [1] * 1001}, 400, "ids: List should have at most 1000 items"),
        ("/dead-letters/none/replay", {"all": True, "after": 1 << 63}, 400, "after: Input should be less than 922"),
        ("/dead-letters/none/replay", {"all": True, "to": "a\0"}, 400, "expected no NUL character"),
        ("/addresses/orders/purge", {"until": -1}, 400, "until: Input should be greater than or equal to 0"),
        ("/dead-letters/none/replay", {"all": True, "seconds": 1}, 400, "seconds: Extra inputs are not permitted"),
        ("/groups/none/seek", {"to": "2026-01-01T00:00:00Z"}, 404, "there is no address 'none'"),
        ("/groups/orders/seek", {"to": "yesterday"}, 400, "to: expected a time such as 2026-11-22T12:00:00Z"),
        ("/groups/orders/seek", {"back_to": "1"}, 404, "back_to: the store has no message '1' of this address"),
        ("/groups/orders/seek", {}, 400, "give one of --to, --back-to and --forth-to"),
        ("/nothing", {}, 404, "expected what /api/v1/openapi.json has"),
        ("/addresses", {}, 405, "expected what /api/v1/openapi.json has"),
    ],
)
def test_what_is_wrong_is_said(
    service: Service, undecided: str, path: str, given: dict[str, object], status: int, detail: str
) -> None:
    del undecided
    found, said = refused(service, path, **given)
    assert (found, said[: len(detail)]) == (status, detail)


@pytest.fixture(scope="module")
def undecided(service: Service) -> str:
    (txn,) = left(service)
    return txn


@pytest.mark.parametrize(
    "body", ["", "{", "[]", "1", '{"reason": "\\ud800"}', "[" * 30_000, b"\xff", '{"reason": NaN}']
)
def test_what_is_no_object_is_said(service: Service, undecided: str, body: str | bytes) -> None:
    answer = asked(service, "POST", f"/transactions/{undecided}/resume", body)
    assert (answer.status, answer.value["status"]) == (400, 400)


@pytest.mark.parametrize("given", ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data", ""])
def test_a_form_does_not_act(service: Service, undecided: str, given: str) -> None:
    """Such types a foreign page may send without asking first."""
    answer = asked(service, "POST", f"/transactions/{undecided}/resume", "{}", Content_Type=given)
    assert (answer.status, answer.value["detail"]) == (415, "expected the header Content-Type: application/json")


def test_a_foreign_page_may_not_ask_first(service: Service, undecided: str) -> None:
    answer = asked(service, "OPTIONS", f"/transactions/{undecided}/resume", Origin="https://evil.example")
    assert answer.status == 405
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]


def test_a_body_is_short(service: Service, undecided: str) -> None:
    answer = asked(service, "POST", f"/transactions/{undecided}/resume", " " * 70_000 + "{}")
    assert (answer.status, answer.value["detail"]) == (413, "expected a body of at most 65536 octets")


def test_a_body_without_an_end_is_not_read_before_the_token(service: Service) -> None:
    place = urlsplit(api.place(service))
    with socket.create_connection((place.hostname, place.port)) as peer:
        head = "POST /api/v1/addresses/orders/purge HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999999\r\n\r\n"
        peer.sendall(head.encode())
        assert peer.recv(1 << 16).startswith(b"HTTP/1.1 401 ")


@all_cases(
    ("header", "status", "detail"),
    [
        (f"Bearer {TOKEN}", 403, "metrics.token only reads, expected a token of metrics.operators"),
        ("Bearer another-of-these-tests", 401, "expected the token of metrics.token, or one of metrics.operators"),
        ("", 401, "expected the token of metrics.token, or one of metrics.operators"),
    ],
)
def test_only_operators_act(service: Service, undecided: str, header: str, status: int, detail: str) -> None:
    answer = asked(service, "POST", f"/transactions/{undecided}/resume", "{}", Authorization=header)
    assert (answer.status, answer.value["detail"]) == (status, detail)


@pytest.mark.parametrize(("text", "line"), [("anna short", 1), ("anna", 1), (f"a {TOKEN}\n\n", 2), (f"a,b {TOKEN}", 1)])
def test_a_file_of_operators_that_is_none_is_said(
    service: Service, tmp_path_factory: pytest.TempPathFactory, text: str, line: int
) -> None:
    file = tmp_path_factory.mktemp("operators") / "operators"
    file.touch(0o600)
    file.write_text(text)
    given = api.settings(file.parent) | {"metrics.operators": str(file)}
    file.write_text(text)
    with pytest.raises(AssertionError, match=f"line {line}: expected NAME TOKEN"), running_service(given):
        pass


@pytest.fixture(scope="module")
def brief(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Each piece of an act is an act, and an act of more than a second is answered before it ends."""
    constants = {"coordinator.http.acting._PIECES_SECONDS": 0.0, "store.dead_letters.CHUNK": 2}
    given = api.settings(tmp_path_factory.mktemp("brief"))
    with running_service(given, constants | {"coordinator.http.acting._ANSWER_SECONDS": 1.0}) as service:
        yield service


def test_long_acts_go_on_piece_by_piece(brief: Service) -> None:
    peer = Peer(brief.port)
    peer.open()
    session = peer.begin()
    letters = buried(brief, session, "orders", 5)
    told = done(brief, "/dead-letters/orders/replay", all=True, reason="first")
    pieces = [told["ids"]]
    while told["next"] is not None:
        told = done(brief, "/dead-letters/orders/replay", all=True, **told["next"])
        pieces.append(told["ids"])
    assert pieces == [letters[:2], letters[2:4], letters[4:]]
    brief.cli("address", "add", "news", "--topic")
    for group in ("one", "two"):
        session.receiver(f"news::{group}").detach()
    post(session, "news", b"1", b"2")
    told = done(brief, "/addresses/news/purge")
    purged = [told["purged"]]
    post(session, "news", b"later")
    while told["next"] is not None:
        assert not told["finished"]
        told = done(brief, "/addresses/news/purge", **told["next"])
        purged.append(told["purged"])
    assert (told["finished"], [each for each in purged if each]) == (True, [2, 2])
    for group in ("one", "two"):
        assert session.receiver(f"news::{group}", credit=3).take().body == b"later"
    peer.close_socket()


def test_what_takes_longer_than_its_request_goes_on(brief: Service) -> None:
    peer = Peer(brief.port)
    peer.open()
    session = peer.begin()
    post(session, "slow", b"1")
    session.receiver("slow", credit=1).take().disposition(Accepted())
    with connected(running_url(brief.data_dir)) as connection:
        connection.execute(text("select from coordinator.address where name = 'slow' for update"))
        connection.execute(text("select from coordinator.consumer_group for update"))
        answer = asked(brief, "POST", "/groups/slow/seek", json.dumps({"back_to": "2026-01-01T00:00:00Z"}))
        assert (answer.status, "goes on" in answer.value["goes_on"]) == (202, True)
        status, detail = refused(brief, "/groups/slow/seek", back_to="2026-01-01T00:00:00Z")
        assert (status, detail) == (409, "another seek of this consumer group is under way")
        connection.rollback()
    line = brief.wait_for(lambda line: line.get("event") == "an act has ended")
    assert line["act"] == "group seek"
    assert session.receiver("slow", credit=1).take().body == b"1"
    peer.close_socket()


def test_a_store_that_is_away_is_said(brief: Service) -> None:
    brief.signal_database(signal.SIGSTOP)
    try:
        first = asked(brief, "POST", "/addresses/slow/purge", "{}")
    finally:
        brief.signal_database(signal.SIGCONT)
    assert first.status == 202
