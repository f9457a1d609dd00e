"""Operators make users and set passwords over HTTP and in the console; no password is told again (S8, S10, S11)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.acceptance import api
from tests.acceptance.api import asked, done, got, place, refused
from tests.fix_command import environment
from tests.fix_console import BRIEF, Operator, Page
from tests.fix_service import PATIENCE, Service, running_service
from tests.prepared import run
from tests.tables import all_cases
from tests.wire.peer import Peer
from tests.wire.sasl import Login, ScramClient

pytestmark = pytest.mark.rule("S8", "S10", "S11")

#: what must be found nowhere
FIRST, SECOND, THIRD = "th3-first-0ne", "th3-s3cond-one", "th3-th1rd-one"


@pytest.fixture(scope="module")
def service(token_settings: dict[str, str]) -> Iterator[Service]:
    with running_service({**token_settings, "log.level": "debug"}, BRIEF) as service:
        service.cli("permission", "grant", "all", "*", "--role", "anonymous")
        yield service


def _may(service: Service, user: str, password: str) -> bool:
    return Login(Peer(service.port)).scram(ScramClient(user=user, password=password)).code == 0


def _tells_none(service: Service, *pages: Page) -> None:
    said = [
        json.dumps(got(service, "/audit?limit=1000")),
        json.dumps(service.log_lines()),
        *(each.html for each in pages),
    ]
    assert [password for password in (FIRST, SECOND, THIRD) for text in said if password in text] == []


def test_a_user_is_made_and_gets_other_passwords(service: Service) -> None:
    told = done(service, "/users/carl/add", password=FIRST, reason="new")
    assert told == {"name": "carl", "open_before": False, "open_now": False}
    assert _may(service, "carl", FIRST)
    assert done(service, "/users/carl/set", password=SECOND) == {"name": "carl", "state": "has a new password"}
    assert (_may(service, "carl", FIRST), _may(service, "carl", SECOND)) == (False, True)
    assert refused(service, "/users/carl/add", password=THIRD) == (409, "there is a user carl already")
    assert {each["action"] for each in got(service, "/audit") if each["subject"] == "carl"} >= {
        "user-add",
        "user-password",
    }
    _tells_none(service)


def test_the_console_asks_for_a_password_and_shows_it_no_more(service: Service) -> None:
    anna = Operator(service)
    anna.log_in()
    form = anna.ask("/console/act?do=user-add")
    (field,) = [each for each in form.all_of("input") if each.get("name") == "password"]
    assert (field["type"], field["autocomplete"]) == ("password", "new-password")
    wrong = anna.answer(form, name=" ", password=FIRST)
    assert wrong.status == 400
    made = anna.answer(form, name="dora", password=FIRST)
    assert "Done" in made.text("p")
    changed = anna.sent(f"/console/act?{urlencode({'do': 'user-set', 'name': 'dora'})}", password=SECOND)
    assert "Done" in changed.text("p")
    assert (_may(service, "dora", FIRST), _may(service, "dora", SECOND)) == (False, True)
    _tells_none(service, wrong, made, changed, anna.ask("/console/acts"), anna.ask("/console/users"))
    assert FIRST not in made.path + changed.path + wrong.path


def test_the_command_does_so_from_elsewhere(service: Service, tmp_path: Path) -> None:
    given, file = environment(COORDINATOR_TOKEN=api.OPERATOR), tmp_path / "password"
    for password, arguments, said in (
        (FIRST, ("add", "eva"), "made the user eva"),
        (SECOND, ("set", "eva"), "eva: has a new password"),
    ):
        file.write_text(f"{password}\n")
        command = ("--url", place(service), "user", *arguments, "--password-file", str(file))
        told = run(command, given, timeout=PATIENCE)
        assert (told.returncode, told.stdout) == (0, f"{said}\n"), told.stderr
        assert _may(service, "eva", password)
    _tells_none(service)


@all_cases(
    ("path", "given", "status", "said"),
    [
        ("/users/none/set", {"password": THIRD}, 404, "there is no user none"),
        ("/users/none/set", {"password": "short"}, 400, "password: this can be no password: "),
        ("/users/none/set", {"password": [THIRD]}, 400, "password: Input should be a valid string"),
        ("/users/none/set", {"password": THIRD, "enable": True}, 400, "give one of --password, --role, "),
        ("/users/none/add", {}, 400, "give a password, or --without-password"),
        ("/users/none/add", {"password": THIRD, "without_password": True}, 400, "give a password, or --without-p"),
        ("/users/%20x/add", {"password": THIRD}, 400, "this can be no name of a user: it begins or ends with a space"),
    ],
)
def test_what_is_wrong_is_said(service: Service, path: str, given: dict[str, object], status: int, said: str) -> None:
    answer = asked(service, "POST", path, json.dumps(given))
    assert (answer.status, str(answer.value["detail"])[: len(said)]) == (status, said)
    assert THIRD not in json.dumps(answer.value)
    _tells_none(service)
