"""Commands work from another machine by the API (``coordinator --url``), without a password of the database (S11)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests import prepared
from tests.acceptance import api
from tests.fix_certificates import Authority, key_of
from tests.fix_command import environment
from tests.fix_service import PATIENCE, Service, TwoDoors, running
from tests.tables import all_cases
from tests.wire.frames import Rejected
from tests.wire.messages import data
from tests.wire.peer import Peer
from tests.wire.queues import dead_letters, post
from tests.wire.types import Symbol

pytestmark = pytest.mark.rule("S11")

_BRIEF = {"coordinator.connection_list.SCAN_SECONDS": 0.1}
_SMALL_PAGES = {prepared.CONSTANTS: json.dumps({"coordinator.commands.remote._PAGE": 2})}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, ca: Authority) -> Iterator[Service]:
    """Other machines can connect to its API."""
    folder = tmp_path_factory.mktemp("elsewhere")
    certificate = ca.sign("elsewhere", alternative="IP:127.0.0.1")
    for name, content in (("certificate", certificate), ("key", key_of(certificate))):
        (folder / name).write_bytes(content.read_bytes())
        (folder / name).chmod(0o600)
    tls = {"tls.certificate": str(folder / "certificate"), "tls.key": str(folder / "key")}
    given = {**api.settings(folder), **tls, "metrics.listen": "https://0.0.0.0:0"}
    with running(lambda folder: TwoDoors(folder, given, _BRIEF)) as service:
        yield service


@pytest.fixture(scope="module")
def txn(service: Service) -> Iterator[str]:
    """An undecided transaction; with addresses, groups, users, a dead letter and connections."""
    peer = Peer(service.port)
    peer.open()
    session = peer.begin()
    for name in ("orders", "a/b %?", "other"):
        post(session, name, b"1", b"2")
    session.receiver("orders", credit=1).take().disposition(Rejected())
    dead_letters(session, "orders")
    for name in ("anna", "bob", "eve"):
        service.cli("user", "add", name, "--without-password")
    service.cli("permission", "grant", "all", "*", "--role", "anonymous")
    control = session.control(properties={Symbol("coordinator:producer-group"): "shop"})
    txn = control.declare()
    session.sender("orders").outcome(data(b"x"), txn=txn)
    while not json.loads(service.cli("connection", "list", "--json")):
        pass
    yield txn.hex()
    peer.close_socket()


@pytest.fixture
def elsewhere(service: Service, ca: Authority) -> Elsewhere:
    return Elsewhere(service, ca)


class Elsewhere:
    """A machine that knows no database."""

    def __init__(self, service: Service, ca: Authority) -> None:
        self.url = f"https://127.0.0.1:{urlsplit(api.place(service)).port}"
        self._trusts = {"SSL_CERT_FILE": str(ca.certificate), "HOME": "/nonexistent", "XDG_STATE_HOME": "/nonexistent"}
        self._trusts |= _SMALL_PAGES

    def run(
        self, *arguments: str, token: str = api.OPERATOR, url: str | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        given = environment(**{**self._trusts, "COORDINATOR_TOKEN": token, **more})
        return prepared.run(("--url", url or self.url, *arguments), given, timeout=5 * PATIENCE)


@all_cases(
    "arguments",
    [
        ("address", "list"),
        ("address", "show", "a/b %?"),
        ("address", "show", "orders"),
        ("group", "list"),
        ("group", "list", "orders"),
        ("dead-letters", "list"),
        ("dead-letters", "show", "orders"),
        ("schedule", "list"),
        ("schedule", "show", "orders"),
        ("user", "list"),
        ("permission", "list"),
        ("permission", "list", "--who", "send", "orders"),
        ("connection", "list", "--closed"),
        ("findings", "list"),
        ("audit", "--what", "user-add", "--limit", "2"),
        ("audit", "--what", "user-add", "--limit", "3"),
    ],
)
def test_the_answer_is_the_same(service: Service, elsewhere: Elsewhere, txn: str, arguments: tuple[str, ...]) -> None:
    del txn
    for form in ((), ("--json",)):
        told = elsewhere.run(*arguments, *form)
        assert (told.returncode, told.stderr) == (0, "")
        assert told.stdout == service.cli(*arguments, *form)


def test_so_is_what_changes_with_time(service: Service, elsewhere: Elsewhere, txn: str) -> None:
    shown = elsewhere.run("transaction", "show", txn).stdout.splitlines()
    assert shown[0].split()[-1].replace("-", "") == txn
    assert len(shown) == len(service.cli("transaction", "show", txn).splitlines())
    number = json.loads(elsewhere.run("transaction", "show", txn, "--json").stdout)["events"][1]["message"]
    said = json.loads(service.cli("message", "show", str(number), "--json"))
    assert json.loads(elsewhere.run("message", "show", str(number), "--json").stdout)["txn_id"] == said["txn_id"]
    (listed,) = json.loads(elsewhere.run("transaction", "list", "--json").stdout)
    assert listed["txn_id"].replace("-", "") == txn
    (connection,) = json.loads(elsewhere.run("connection", "list", "--json").stdout)
    assert json.loads(elsewhere.run("connection", "show", connection["connection"], "--json").stdout)["link_list"]
    assert "link" in elsewhere.run("connection", "show", connection["connection"]).stdout


def test_an_operator_acts(service: Service, elsewhere: Elsewhere, txn: str) -> None:
    told = elsewhere.run("transaction", "resolve", txn, "--rollback", "--reason", "of the test")
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.endswith(" is rolled back\n")
    (line,) = map(json.loads, service.cli("audit", "--what", "resolve", "--json").splitlines())
    assert (line["os_user"], line["place"], line["reason"]) == ("anna", "api 127.0.0.1", "of the test")
    again = elsewhere.run("transaction", "resolve", txn, "--commit", "--reason", "of the test")
    assert (again.returncode, again.stdout) == (1, "")
    assert " is decided already: rollback (of the test) at 20" in again.stderr
    (letter,) = json.loads(service.cli("dead-letters", "show", "orders", "--json"))
    replayed = elsewhere.run("dead-letters", "replay", "orders", str(letter["id"]), "1")
    assert (replayed.returncode, replayed.stdout) == (1, "replayed 1, left 1\nleft: 1: there is no such letter\n")
    assert elsewhere.run("address", "purge", "other", "--yes").stdout.startswith("purged 2, left 0 ")
    moved = elsewhere.run("group", "seek", "other", "--back-to", "2026-01-01T00:00:00Z")
    assert moved.stdout == "moved back: 2 messages are delivered again\n"
    for arguments, said in (
        (("address", "set", "other", "--max-attempts", "3"), "'other': max_attempts 3\n"),
        (("group", "set", "other", "--retry", "inherit"), "'other': retry inherit\n"),
        (("group", "pause", "other"), "'other' is paused\n"),
        (("permission", "grant", "send", "other", "--user", "bob"), "bob may send: other\n"),
        (("permission", "revoke", "send", "other", "--user", "bob"), "revoked 1\n"),
        (("user", "set", "bob", "--disable"), "bob: disabled\n"),
        (("user", "remove", "bob"), "removed the user bob\n"),
        (("address", "remove", "other", "--force"), "removed 'other', with 2 messages\n"),
    ):
        done = elsewhere.run(*arguments, "--reason", "of the test")
        assert (done.stdout, done.stderr) == (said, "")


@all_cases(
    ("arguments", "status", "said"),
    [
        (("address", "show", "none"), 1, "there is no address 'none'"),
        (("transaction", "show", "xyz"), 2, "TXN-ID: expected 32 hexadecimal digits, not 'xyz'"),
        (("transaction", "show", "0" * 32), 1, f"transaction {'0' * 8}-"),
        (("group", "seek", "orders", "--to", "yesterday"), 2, "to: expected a time such as 2026-11-22T12:00:00Z"),
        (("address", "add", "orders"), 1, "there is an address 'orders' already"),
        (("group", "resume", "orders"), 1, "'orders' is not paused"),
        (("message", "show", "never", "--since", "1h"), 1, "no message with the message-id 'never' was posted from "),
        (("message", "retire", "1", "orders", "--accepted", "--reason", "r"), 1, "the store has no message 1"),
        (("message", "retire", "x", "orders", "--accepted", "--reason", "r"), 2, "MESSAGE: expected the number of a"),
        (("message", "retire", "1", "orders", "--accepted"), 2, "reason: expected why, which is kept in the audit"),
        (
            ("role", "grant", "--reader", "reader"),
            2,
            "--url: the API does not do this; leave it out, for the store itself",
        ),
        (("serve",), 2, "--url: the API does not do this; leave it out, for the store itself"),
        (("address", "list", "--database-url", "postgresql://h/d"), 2, "--url: a store, or settings, are given too"),
        (("check", "--config", "/nonexistent"), 2, "--url: a store, or settings, are given too"),
        (("transaction", "show", "0" * 32, "--archive", "/"), 2, "--url: the API does not do this"),
    ],
)
def test_errors_are_those_of_the_command(
    elsewhere: Elsewhere, txn: str, arguments: tuple[str, ...], status: int, said: str
) -> None:
    del txn
    told = elsewhere.run(*arguments)
    assert (told.returncode, told.stdout) == (status, "")
    assert told.stderr.startswith(f"error: {said}")


@all_cases(
    ("token", "said"),
    [
        (api.TOKEN, "metrics.token is for loopback, expected a token of metrics.operators"),
        ("another-of-these-tests", "expected the token of metrics.token, or one of metrics.operators"),
        ("a b", "--url: expected the token of an operator in --token-file, or in COORDINATOR_TOKEN"),
        ("", "--url: expected the token of an operator in --token-file, or in COORDINATOR_TOKEN"),
    ],
)
def test_it_is_for_operators(elsewhere: Elsewhere, token: str, said: str) -> None:
    told = elsewhere.run("address", "list", token=token)
    assert told.returncode != 0
    assert told.stderr == f"error: {said}\n"


@all_cases(
    ("url", "said"),
    [
        ("http://10.0.0.1:9672", "--url: in plain text others could read the token; expected https://, or "),
        ("amqp://localhost", "--url: expected http://host:port or https://host:port"),
        ("https://user:secret@localhost:1", "--url: expected http://host:port or https://host:port"),
        ("http://localhost:1", "http://localhost:1: no answer of the API: Connection refused"),
    ],
)
def test_a_place_that_is_none_is_said(elsewhere: Elsewhere, url: str, said: str) -> None:
    told = elsewhere.run("address", "list", url=url)
    assert told.returncode != 0
    assert told.stderr.startswith(f"error: {said}")
    assert api.OPERATOR not in told.stderr


def test_a_certificate_that_no_one_trusts_is_refused(elsewhere: Elsewhere) -> None:
    told = elsewhere.run("address", "list", SSL_CERT_FILE="/dev/null")
    assert told.returncode == 1
    assert "no answer of the API" in told.stderr


def test_a_token_may_be_in_a_file(elsewhere: Elsewhere, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(f"{api.OPERATOR}\n")
    assert elsewhere.run("--token-file", str(file), "user", "list", token="").returncode == 0
    file.chmod(0o644)
    told = elsewhere.run("--token-file", str(file), "user", "list", token="")
    assert told.returncode == 2
    assert told.stderr.endswith("all users may read it (mode 644); expected 600\n")


def test_the_tokens_are_read_again(service: Service, elsewhere: Elsewhere) -> None:
    given, file = "the-token-of-another-operator", Path(service.environment()["COORDINATOR_METRICS__OPERATORS"])
    assert elsewhere.run("user", "list", token=given).returncode == 1
    file.write_text(f"{file.read_text()}eve {given}\n")
    os.kill(service.pid, signal.SIGHUP)
    deadline = time.monotonic() + PATIENCE
    while elsewhere.run("user", "list", token=given).returncode:
        assert time.monotonic() < deadline
