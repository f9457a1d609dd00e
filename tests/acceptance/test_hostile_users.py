"""Users, roles, patterns and reasons that are called by a hostile value: by the command line, in a login over the wire,
in the list of rights, in the audit, in the log and in the metrics (rule S7)."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest
from typer.testing import CliRunner, Result

from coordinator.__main__ import app
from coordinator.login import verifiers
from store.embedded.running import running_url
from tests.fix_hostile import HOSTILE, harmful
from tests.fix_service import PATIENCE, Service, running_service
from tests.fix_users import PASSWORD
from tests.wire.frames import Target
from tests.wire.messages import Properties, data
from tests.wire.peer import Peer
from tests.wire.sasl import HASHES, Login, ScramClient, plain

pytestmark = pytest.mark.rule("S7")

#: What the command line and AMQP can say, neither of which has lone surrogates; of the formulas some.
VALUES = {name: value for name, value in HOSTILE.items() if name != "lone surrogates" and " by " not in name}
MECHANISMS = ("PLAIN", *HASHES)


def _names() -> Iterator[tuple[str, str]]:
    for name, value in VALUES.items():
        with suppress(verifiers.NotPrepared):
            if value.isprintable():  # the command line takes no others
                yield name, verifiers.prepared_name(value)


#: As they are kept, those that a user can have.
NAMES = dict(_names())
#: Some of both kinds: each wrong password of an address makes the next wait longer.
GUESSED = ("HTML", "SQL", "a path", "newlines", "a terminal's escapes", "turned text", "NUL")
#: By the name of a value: what the commands said.
Made = dict[str, list[Result]]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    settings = {"metrics.listen": "http://127.0.0.1:0", "log.level": "debug", "login.plain": "always"}
    with running_service(settings) as service:
        yield service


@pytest.fixture(scope="module")
def made(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Made:
    password = tmp_path_factory.mktemp("hostile") / "password"
    password.write_text(PASSWORD)
    assert _run(service, "user", "add", "known", "--password-file", str(password)).exit_code == 0
    return {name: _make(service, value, str(password)) for name, value in VALUES.items()}


def _make(service: Service, value: str, password: str) -> list[Result]:
    why = ("--reason", value[:900])
    return [
        _run(service, "user", "add", "--password-file", password, *why, "--", value),
        _run(service, "user", "set", *why, f"--role={value}", "--", "known"),
        _run(service, "permission", "grant", "send,create", "--user", "known", *why, "--", value),
        _run(service, "permission", "list", "--who", "send", value),
    ]


def _run(service: Service, *arguments: str) -> Result:
    """Its environment is the one of the test: options come before the ``--`` that ends them."""
    where = ("--database-url", running_url(service.data_dir))
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return CliRunner().invoke(app, [*arguments[:end], *where, *arguments[end:]])


def _harmless(text: str) -> bool:
    return not {each for line in text.split("\n") for each in harmful(line)}


def test_the_names_are_some_that_a_user_can_have_and_some_that_none_can() -> None:
    assert {"HTML", "SQL", "a path", "a formula", "JSON"} <= set(NAMES)
    assert {"newlines", "a terminal's escapes", "turned text", "NUL", "very long"} <= set(VALUES) - set(NAMES)


def test_commands_say_a_harmless_line(made: Made) -> None:
    for name, done in made.items():
        assert (done[0].exit_code == 0) == (name in NAMES), (name, done[0].output)
        for each in done:
            assert each.exit_code in (0, 1, 2), (name, each.exception)
            assert _harmless(each.output), (name, each.output)
            assert len(each.stderr.splitlines()) <= 2, (name, each.stderr)


@pytest.mark.parametrize("form", ["table", "json"])
def test_lists_have_them_and_no_control_character(made: Made, service: Service, form: str) -> None:
    assert made
    more = () if form == "table" else ("--json",)
    users = _run(service, "user", "list", *more)
    rights = _run(service, "permission", "list", *more)
    audit = _run(service, "audit", "--format", form)
    for each in (users, rights, audit):
        assert each.exit_code == 0, each.output
        assert _harmless(each.output)
    assert "forged" not in {line.strip().split(" ")[0] for line in users.stdout.splitlines()}
    if form == "json":
        names = {row["name"] for row in json.loads(users.stdout)}
        assert names == {*NAMES.values(), "known"}
        assert all(json.loads(line)["action"] for line in audit.stdout.splitlines())


def test_logins_by_them(made: Made, service: Service) -> None:
    """Right ones come in; wrong ones, and those that no user can have, get the one answer."""
    assert made
    since = len(service.log_lines())
    for name in NAMES:
        for mechanism in MECHANISMS:
            assert _log_in(service, mechanism, VALUES[name], PASSWORD) == 0, (name, mechanism)
    for name in GUESSED:
        assert _log_in(service, "PLAIN", VALUES[name], "wr0ng") == 1, name
    assert _log_in(service, "PLAIN", "<b>not there", "wr0ng") == 1
    seen = service.log_lines()[since:]
    assert {line.get("event") for line in seen} <= {
        "connection opened",
        "login refused",
        "attach refused",
        "post refused",
        "connection closed",
    }
    named = {line["user"] for line in seen if line["event"] == "login refused"}
    assert named == {*(NAMES[name] for name in GUESSED if name in NAMES), None}
    assert all(_harmless(json.dumps(line, ensure_ascii=False)) for line in seen)


def _log_in(service: Service, mechanism: str, user: str, password: str) -> int:
    login = Login(Peer(service.port))
    if mechanism == "PLAIN":
        login.init("PLAIN", plain(user, password))
        code = login.outcome().code
    else:
        code = login.scram(ScramClient(user=user, password=password, mechanism=mechanism)).code
    if code == 0:
        _use(login.peer, user)
    login.peer.close_socket()
    return int(code)


def _use(peer: Peer, user: str) -> None:
    """It may send nothing: what it is refused names what it has named."""
    peer.open()
    session = peer.begin()
    refused = session.sender(user).wait_detached().error
    assert refused is not None
    state = session.sender(Target()).outcome(Properties(to=user).encoded() + data(b"1"))
    for error in (refused, getattr(state, "error", None)):
        assert error is not None
        assert error.condition == "amqp:unauthorized-access"
        assert harmful(str(error.description)) == set()
    peer.close()


def test_metrics_have_no_line_of_theirs(made: Made, service: Service) -> None:
    assert made
    (place,) = next(line for line in service.log_lines() if line.get("event") == "metrics")["listen"]
    with urllib.request.urlopen(f"{place}/metrics", timeout=PATIENCE) as answer:
        text = answer.read().decode()
    assert "forged" not in text
    assert _harmless(text)


def test_no_statement_comes_of_them(made: Made, service: Service) -> None:
    assert made
    with psycopg.connect(running_url(service.data_dir)) as store:
        assert store.execute("select count(*) from coordinator.op").fetchone() is not None
        found = store.execute("select name from coordinator.user_account").fetchall()
    assert {row[0] for row in found} == {*NAMES.values(), "known"}
