"""Operators repair what a stored run has found, over HTTP, from elsewhere, and in the console (R34, S10, S11)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from subprocess import CompletedProcess
from urllib.parse import urlencode
from uuid import UUID

import pytest

from store.database import connected
from store.embedded.running import running_url
from tests.acceptance import api
from tests.acceptance.api import done, got, left, place, refused
from tests.fix_command import environment
from tests.fix_console import BRIEF, Operator
from tests.fix_reports import SEEN_AT, finding, known
from tests.fix_runs import a_run, store_run
from tests.fix_service import PATIENCE, Service, running_service
from tests.prepared import run
from tests.tables import all_cases

pytestmark = pytest.mark.rule("R34", "S10", "S11")

REASON = "the book is right"


@pytest.fixture(scope="module")
def service(token_settings: dict[str, str]) -> Iterator[Service]:
    with running_service(token_settings, BRIEF) as service:
        yield service


@pytest.fixture
def found(service: Service, request: pytest.FixtureRequest) -> tuple[int, list[str]]:
    """A run, and the transactions that it has found: one to commit, one to roll back, and two findings for a person."""
    txns = left(service, 2)
    look = [finding("lost-message", f"look at {number}", half_id=number) for number in (7, 8)]
    findings = [known(UUID(txns[0]), "commit"), look[0], known(UUID(txns[1]), "rollback"), look[1]]
    with connected(running_url(service.data_dir)) as connection:
        # another than those of other tests
        at = SEEN_AT + timedelta(seconds=len(request.node.name))
        return store_run(connection, findings, a_run(at, since=at - timedelta(hours=len(request.node.name)))), txns


def _outcomes(service: Service, txns: list[str]) -> list[str]:
    return [got(service, f"/transactions/{txn}")["outcome"] for txn in txns]


def test_it_is_said_first_and_done_once(service: Service, found: tuple[int, list[str]]) -> None:
    number, txns = found
    dry = done(service, f"/findings/{number}/repair")
    assert (dry["applied"], [each["state"] for each in dry["repairs"]], dry["next"]) == (False, ["can"] * 2, None)
    assert [(each["kind"], each["findings"]) for each in dry["by_hand"]] == [("lost-message", 2)]
    assert _outcomes(service, txns) == ["undecided"] * 2
    told = done(service, f"/findings/{number}/repair", apply=True, reason=REASON)
    assert [each["state"] for each in told["repairs"]] == ["done"] * 2
    assert _outcomes(service, txns) == ["commit", "rollback"]
    again = done(service, f"/findings/{number}/repair", apply=True)
    assert [each["state"] for each in again["repairs"]] == ["done"] * 2
    lines = [each for each in got(service, "/audit?what=repair") if each["reason"] == REASON]
    assert sorted(each["subject"].replace("-", "") for each in lines) == sorted(txns)
    assert {(each["os_user"], each["place"]) for each in lines} == {("anna", "api 127.0.0.1")}


def test_one_finding_is_repaired_from_its_page(service: Service, found: tuple[int, list[str]]) -> None:
    number, txns = found
    anna = Operator(service)
    anna.log_in()
    page = anna.ask(f"/console/findings?{urlencode({'run': number})}")
    of_one = [each for each in page.links if "do=repair" in each and "finding=3" in each]
    form = anna.ask(of_one[0])
    assert f"It would rollback transaction {UUID(txns[1])} (undecided-but-known)." in form.text("p")
    assert _outcomes(service, txns) == ["undecided"] * 2
    answer = anna.answer(form, reason=REASON)
    assert "Done" in answer.text("p")
    assert _outcomes(service, txns) == ["undecided", "rollback"]
    (of_all,) = [each for each in page.links if "do=repair" in each and "finding" not in each.partition("?")[2]]
    form = anna.ask(of_all)
    assert "By hand: 2 lost-message: look at 7" in form.text("p")
    assert "Done" in anna.answer(form).text("p")
    assert _outcomes(service, txns) == ["commit", "rollback"]


def test_the_command_does_so_from_elsewhere_as_in_the_store(service: Service, found: tuple[int, list[str]]) -> None:
    number, txns = found

    def elsewhere(*more: str) -> CompletedProcess[str]:
        given = environment(COORDINATOR_TOKEN=api.OPERATOR)
        return run(("--url", place(service), "repair", "--run", str(number), *more), given, timeout=PATIENCE)

    for more in ((), ("--json",), ("--finding", "2")):
        here, there = service.command("repair", "--run", str(number), *more), elsewhere(*more)
        assert (there.returncode, there.stdout, there.stderr) == (1, here.stdout, here.stderr)
    assert json.loads(elsewhere("--json").stdout)["by_hand"] == [
        {"kind": "lost-message", "findings": 2, "suggested_repair": "look at 7"}
    ]
    assert elsewhere("--apply", "--finding", "1", "--reason", REASON).returncode == 0
    assert _outcomes(service, txns) == ["commit", "undecided"]
    told = elsewhere("--finding", "99")
    assert (told.returncode, told.stderr) == (2, f"error: run {number} has no finding 99\n")


def _stored_again(service: Service, number: int, txns: list[str]) -> None:
    """Of two findings by the numbers 1 and 2 the run now has the second alone, by the number 1."""
    of = got(service, f"/findings/{number}")
    seen_at, since = (datetime.fromisoformat(of[name]) for name in ("seen_at", "since"))
    with connected(running_url(service.data_dir)) as connection:
        again = a_run(seen_at + timedelta(hours=1), since=since)
        assert store_run(connection, [known(UUID(txns[1]), "rollback")], again) == number


def test_a_run_that_was_stored_again_is_not_repaired(service: Service, found: tuple[int, list[str]]) -> None:
    number, txns = found
    anna = Operator(service)
    anna.log_in()
    page = anna.ask(f"/console/findings?{urlencode({'run': number})}")
    of_list = next(each for each in page.links if "do=repair" in each and "finding=1" in each)
    forms = [anna.ask(of_list), anna.ask(f"/console/act?do=repair&run={number}&finding=1&apply=true")]
    looked = done(service, f"/findings/{number}/repair", finding=1)
    assert [each.text("p").count("It would commit") for each in forms] == [1, 1]
    _stored_again(service, number, txns)
    for answer in (*(anna.answer(form, reason=REASON) for form in forms), anna.ask(of_list)):
        assert (answer.status, f"run {number} was stored again, as of 20" in answer.text("p")) == (409, True)
    given = {"finding": 1, "apply": True, "seen_at": looked["seen_at"]}
    status, said = refused(service, f"/findings/{number}/repair", **given)
    assert (status, said.endswith(": look at it anew")) == (409, True)
    assert _outcomes(service, txns) == ["undecided"] * 2
    done(service, f"/findings/{number}/repair", finding=1, apply=True)
    assert _outcomes(service, txns) == ["undecided", "rollback"]


def test_what_is_left_goes_on(token_settings: dict[str, str]) -> None:
    """A piece has the findings that were looked at until its time was over."""
    brief = {"coordinator.http.acting._PIECES_SECONDS": 0.0, "coordinator.repairs._MOST_TOGETHER": 1}
    with running_service(token_settings, brief) as service:
        look = [finding("lost-message", f"look at {number}", half_id=number) for number in (1, 2, 3)]
        with connected(running_url(service.data_dir)) as connection:
            number = store_run(connection, look)
        counted = 0
        rest: dict[str, object] = {"after": 0}
        for _ in look:
            told = done(service, f"/findings/{number}/repair", **rest)
            counted, rest = counted + told["by_hand"][0]["findings"], told["next"]
        assert counted == 3
        assert done(service, f"/findings/{number}/repair", **rest)["next"] is None
        given = environment(COORDINATOR_TOKEN=api.OPERATOR)
        told = run(("--url", place(service), "repair", "--run", str(number)), given, timeout=PATIENCE)
        assert told.stdout == "by hand: 3 lost-message: look at 1\n"
        with connected(running_url(service.data_dir)) as connection:
            store_run(connection, look, a_run(SEEN_AT + timedelta(hours=1)))
        assert refused(service, f"/findings/{number}/repair", **rest)[0] == 409


@all_cases(
    ("path", "given", "status", "said"),
    [
        ("/findings/x/repair", {}, 400, "RUN: expected the number of a run, not 'x'"),
        ("/findings/9999/repair", {}, 404, "there is no run 9999: coordinator findings list has those"),
        ("/findings/1/repair", {"finding": 0}, 400, "finding: Input should be greater than or equal to 1"),
        ("/findings/1/repair", {"seen_at": "2026-01-01T00:00:00"}, 400, "seen_at: Input should have timezone info"),
        ("/findings/1/repair", {"apply": "yes"}, 400, "apply: Input should be a valid boolean"),
    ],
)
def test_what_is_wrong_is_said(service: Service, path: str, given: dict[str, object], status: int, said: str) -> None:
    found, detail = refused(service, path, **given)
    assert (found, detail[: len(said)]) == (status, said)
