"""Operators act in the console's pages: forms that need no script, for sessions of operators alone (S10, S11)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import urlencode

import pytest
from sqlalchemy import text

from store.database import connected
from store.embedded.running import running_url
from tests.acceptance import api
from tests.acceptance.api import buried, got, left
from tests.fix_console import BRIEF, Operator, Page, of_query
from tests.fix_service import PATIENCE, Service, running_service
from tests.fix_wire import Begin
from tests.tables import all_cases
from tests.wire.frames import Error, Rejected
from tests.wire.messages import data
from tests.wire.peer import Peer
from tests.wire.queues import post
from tests.wire.types import Symbol

pytestmark = pytest.mark.rule("S10", "S11")

_NONE = "0" * 32
_NOTHING = "\N{EN DASH}"


@pytest.fixture(scope="module")
def service(token_settings: dict[str, str]) -> Iterator[Service]:
    with running_service(token_settings, BRIEF) as service:
        yield service


@pytest.fixture(scope="module")
def bob(service: Service) -> Operator:
    operator = Operator(service)
    operator.log_in(token=f"another-{api.OPERATOR}")
    return operator


@pytest.fixture(scope="module")
def reader(service: Service) -> Operator:
    operator = Operator(service)
    operator.log_in(token=api.TOKEN)
    return operator


def form(do: str, **given: object) -> str:
    return f"/console/act?{urlencode({'do': do, **given})}"


def facts(page: Page) -> dict[str, str]:
    """What a page tells, by name."""
    names = [text for tag, text in page.texts if tag == "dt"]
    return dict(zip(names, (each.partition("</dd>")[0] for each in page.html.split("<dd>")[1:]), strict=True))


def acts_of(page: Page) -> set[str]:
    return {of_query(each, "do") for each in page.links if each.startswith("/console/act?")}


# Who decides, and that it is seen.


def test_a_decision_in_a_page_is_seen_by_a_client(service: Service, begin: Begin, anna: Operator) -> None:
    (txn,) = left(service)
    page = anna.ask(f"/console/transaction?id={txn}")
    assert acts_of(page) == {"transaction-resolve", "transaction-resume"}
    wanted = next(each for each in page.links if "decision=commit" in each)
    page = anna.ask(wanted)
    assert "with 1 messages posted" in page.text("p")
    done = anna.answer(page, decision="commit", reason="paid, says the bank")
    assert done.path.startswith("/console/done?id=")
    assert (done.status, facts(done)["Outcome"], facts(done)["By"]) == (200, "commit", "anna")
    (line,) = [each for each in got(service, "/audit?what=resolve") if each["subject"].replace("-", "") == txn]
    assert (line["os_user"], line["place"]) == ("anna", "console 127.0.0.1")
    assert line["reason"] == "paid, says the bank"
    assert begin().receiver("orders", credit=1).take().body == b"x"


def test_the_first_of_two_decisions_wins_and_the_other_is_told(service: Service, anna: Operator, bob: Operator) -> None:
    (txn,) = left(service)
    path = form("transaction-resolve", txn_id=txn)
    of_anna, of_bob = anna.ask(path), bob.ask(path)
    assert bob.answer(of_bob, decision="rollback", reason="cancelled").status == 200
    late = anna.answer(of_anna, decision="commit", reason="paid")
    assert late.status == 409
    said = late.text("p")
    assert " is decided already: rollback (cancelled) at 20" in said
    assert " by bob (console 127.0.0.1)" in said
    assert got(service, f"/transactions/{txn}")["outcome"] == "rollback"
    stale = anna.ask(path)
    assert (stale.status, " by bob (console 127.0.0.1)" in stale.text("p")) == (409, True)
    assert acts_of(anna.ask(f"/console/transaction?id={txn}")) == set()


def test_of_two_who_decide_at_one_time_one_is_told(service: Service, anna: Operator, bob: Operator) -> None:
    (txn,) = left(service)
    path = form("transaction-resolve", txn_id=txn)
    pages = [(each, each.ask(path)) for each in (anna, bob)]
    with ThreadPoolExecutor() as pool:
        decide = [
            pool.submit(operator.answer, page, decision=decision, reason=decision)
            for (operator, page), decision in zip(pages, ("commit", "rollback"), strict=True)
        ]
    answers = sorted((each.result() for each in decide), key=lambda page: page.status)
    assert [each.status for each in answers] == [200, 409]
    first = facts(answers[0])
    assert f"is decided already: {first['Outcome']} ({first['Outcome']}) at 20" in answers[1].text("p")
    assert f" by {first['By']} (console 127.0.0.1)" in answers[1].text("p")


def test_checks_begin_again(service: Service, anna: Operator) -> None:
    (txn,) = left(service)
    assert "Done" in anna.sent(form("transaction-resume", txn_id=txn), reason="mended").text("p")
    assert got(service, "/audit?what=resume")[-1]["reason"] == "mended"


def test_of_a_plain_transaction_is_offered_what_can_be_done(
    service: Service, begin: Begin, anna: Operator, address: str
) -> None:
    session = begin()
    txn = session.control().declare()
    session.sender(address).outcome(data(b"x"), txn=txn)
    deadline = time.monotonic() + PATIENCE
    while (page := anna.ask(f"/console/transaction?id={txn.hex()}")).status == 404:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert ["decision=rollback" in each for each in page.links if "/act?" in each] == [True]
    for path, said in (
        (
            form("transaction-resolve", txn_id=txn.hex(), decision="commit"),
            "cannot be committed by hand: it is a plain",
        ),
        (form("transaction-resume", txn_id=txn.hex()), "is a plain one: it has no producer group"),
    ):
        answer = anna.ask(path)
        assert (answer.status, said in answer.text("p")) == (409, True)
    undecided = anna.ask(form("transaction-resolve", txn_id=txn.hex()))
    assert "which its client alone can commit: a rollback throws them away" in undecided.text("p")
    assert anna.answer(undecided, decision="rollback", reason="of a test").status == 200
    assert got(service, f"/transactions/{txn.hex()}")["outcome"] == "rollback"


def test_a_connection_is_closed(service: Service, anna: Operator) -> None:
    peer = Peer(service.port)
    peer.open(container_id="to-be-closed")
    found: list[str] = []
    deadline = time.monotonic() + PATIENCE
    while not found:
        assert time.monotonic() < deadline
        listed = json.loads(service.cli("connection", "list", "--json"))
        found = [each["connection"] for each in listed if each["container_id"] == "to-be-closed"]
    page = anna.ask(f"/console/connection?id={found[0]}")
    (path,) = (each for each in page.links if "/act?" in each)
    page = anna.ask(path)
    assert "The client to-be-closed of user" in page.text("p")
    assert "Done" in anna.answer(page, reason="too loud").text("p")
    assert "too loud" in str(peer.closed())


# Dead letters.


def test_one_letter_a_group_of_them_and_all_are_replayed(
    service: Service, begin: Begin, anna: Operator, address: str
) -> None:
    session = begin()
    buried(service, session, address, 3)
    box = f"%DLQ%{address}"
    page = anna.ask(f"/console/letters?{urlencode({'name': box})}")
    assert acts_of(page) == {"dead-letters-replay"}
    letter = anna.ask(next(each for each in page.links if "/letter?" in each))
    one = anna.ask(next(each for each in letter.links if "ids=" in each))
    looked = anna.answer(one, look="1")
    assert f"1 letter is posted anew to the group that they came from of '{address}'." in looked.text("p")
    assert facts(anna.answer(looked, reason="mended"))["Replayed"] == "1"
    alike = anna.answer(anna.ask(next(each for each in page.links if "like=" in each)), look="1", to=f"{address}-2")
    assert f"2 letters stay: there is no address '{address}-2' with a consumer group." in alike.text("p")
    service.cli("address", "add", f"{address}-2")
    assert facts(anna.answer(alike, reason="mended"))["Replayed"] == "2"
    assert [session.receiver(each, credit=3).take().body for each in (address, f"{address}-2")] == [b"0", b"1"]
    emptied = anna.answer(anna.ask(form("dead-letters-replay", name=box, all="true")), look="1")
    assert "No letter is there that would be posted." in emptied.text("p")


def test_of_letters_alike_no_others_are_replayed(service: Service, begin: Begin, anna: Operator, address: str) -> None:
    session = begin()
    first, *_ = buried(service, session, address, 2)
    post(session, address, b"2")
    error = Error(condition=Symbol("test:refused"), description="another one")
    session.receiver(address, credit=1).take().disposition(Rejected(error=error))
    while len(letters := got(service, f"/dead-letters/{address}")) < 3:
        pass
    path = form("dead-letters-replay", name=address, all="true", like=first)
    looked = anna.sent(path, look="1")
    assert looked.text("p").startswith("2 letters are posted anew")
    done = facts(anna.answer(looked, reason="mended"))
    assert (done["Replayed"], done["Left"]) == ("2", "0")
    (left_there,) = got(service, f"/dead-letters/{address}")
    assert left_there == letters[2]
    (line,) = [each for each in got(service, "/audit?what=replay") if each["detail"].get("like") == first]
    assert line["detail"] == {"ids": None, "like": first}
    assert anna.sent(form("dead-letters-replay", name=address, all="true", like=1), look="1").status == 404
    service.cli("dead-letters", "replay", address, "--all", "--like", str(left_there["id"]))
    assert got(service, f"/dead-letters/{address}") == []


def test_a_letter_that_stays_says_what_to_write_in_the_page(
    service: Service, begin: Begin, anna: Operator, address: str
) -> None:
    buried(service, begin(), address, 1)
    service.cli("address", "remove", address, "--force")
    looked = anna.sent(form("dead-letters-replay", name=f"%DLQ%{address}", all="true"), look="1")
    said = f"there is no address '{address}'; give \"To this address\""
    assert f"1 letter stays: {said}." in looked.text("p")
    done = anna.answer(looked)
    assert f": {said}" in done.text("p")


# Other acts.


def test_a_purge_says_what_it_would_do_and_does_it(
    service: Service, begin: Begin, anna: Operator, address: str
) -> None:
    post(begin(), address, b"1", b"2")
    page = anna.ask(form("address-purge", name=address))
    assert f"2 messages that wait at '{address}' are thrown away, in all its groups." in page.text("p")
    assert got(service, f"/addresses/{address}")["ready"] == 2
    removal = anna.sent(form("address-remove", name=address))
    assert '; "With its messages, which are lost, and its groups" removes it with them' in removal.text("p")
    done = anna.answer(page, reason="of a test")
    assert (facts(done)["Purged"], facts(done)["Held"]) == ("2", "0")
    assert got(service, f"/addresses/{address}")["ready"] == 0


def test_a_group_is_moved(service: Service, begin: Begin, anna: Operator, address: str) -> None:
    post(begin(), address, b"1", b"2")
    path = form("group-seek", name=address)
    assert anna.sent(path, look="1").status == 400
    assert "to: 'soon' is no time" not in anna.sent(path, look="1", to="soon").text("p")
    looked = anna.sent(path, look="1", forth_to=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    assert "messages that wait, " in looked.text("p")
    back = anna.sent(path, look="1", back_to="2026-01-01T00:00:00Z")
    assert "2 were posted to this address" in back.text("p")
    assert facts(anna.answer(back, reason="again"))["Moved"] == "0"


def test_addresses_users_and_permissions_are_changed(service: Service, anna: Operator, address: str) -> None:
    done = anna.sent(form("address-add"), name=address, kind="mixed", max_attempts="3", topic="true", reason="new")
    assert facts(done)["Name"] == address
    assert got(service, f"/addresses/{address}")["routing"] == "topic"
    assert facts(anna.sent(form("address-set", name=address), retry="ladder 1s"))["Retry"] == "ladder 1s"
    assert anna.sent(form("address-set", name=address), max_attempts="many").status == 400
    assert facts(anna.sent(form("address-remove", name=address)))["Removed"] == "True"
    done = anna.sent(form("permission-grant"), verbs="all", pattern="*", role="anonymous")
    assert facts(done)["Role"] == "anonymous"
    assert facts(anna.sent(form("permission-revoke"), verbs="all", pattern="*", role="anonymous"))["Revoked"] == "6"
    assert anna.sent(form("user-set", name="none"), disable="true").status == 404
    assert anna.ask(form("user-remove", name="none")).status == 404
    anna.sent(form("address-add"), name=f"{address}-2", kind="normal")
    done = anna.sent(form("group-set", name=f"{address}-2"), max_attempts="inherit")
    assert facts(done)["Max attempts"] == _NOTHING


def test_who_may_do_what_is_said_before_it_changes(service: Service, anna: Operator) -> None:
    """Of the permissions of a store that has no others."""
    assert got(service, "/users") == got(service, "/permissions") == []
    may, to_none = {"verbs": "all", "pattern": "*"}, "there is no permission: no client may do anything"
    everything = "no user and no permission is left: clients without a login may do everything"

    def said(page: Page) -> str:
        assert page.status == 200, page.text("p")
        return page.text("p")

    first = said(anna.ask(form("user-add")))
    assert "Up to now clients without a login may do everything" in first
    assert to_none in first
    assert "grant all with the pattern * to the role anonymous first" in first
    granting = anna.sent(form("permission-grant"), look="1", role="clerks", **may)
    assert "Then permissions count: clients without a login may do what the role anonymous may" in said(granting)
    assert facts(anna.answer(granting, reason="of a test"))["Role"] == "clerks"
    of_list = next(each for each in anna.ask("/console/permissions").links if "do=permission-revoke" in each)
    one = anna.sent(of_list, look="1", role="clerks", verbs="send", pattern="*")
    assert "1 permissions are taken back" in said(one)
    assert "That stays so." in said(one)
    whole = form("permission-revoke", role="clerks", **may)
    assert everything in said(anna.sent(whole, look="1", role="clerks", **may))
    anna.sent(form("user-add"), name="carl", without_password="true")
    assert to_none in said(anna.sent(whole, look="1", role="clerks", **may))
    removal = form("user-remove", name="carl")
    assert "That stays so." in said(anna.ask(removal))
    anna.sent(form("permission-grant"), user="carl", verbs="send", pattern="x")
    anna.sent(whole, role="clerks", **may)
    assert everything in said(anna.ask(removal))
    assert facts(anna.sent(removal))["Clients without a login may do everything now"] == "True"
    missing = anna.sent(whole, look="1", role="clerks", **may)
    assert (missing.status, "has no such permission" in missing.text("p")) == (404, True)


# Who may, and which forms count.


@all_cases("do", ["transaction-resolve", "dead-letters-replay", "address-purge", "group-seek", "user-remove"])
def test_only_operators_act(service: Service, reader: Operator, do: str) -> None:
    path = form(do, name="orders", txn_id=_NONE)
    word = reader.ask("/console").hidden["form"]
    for page in (reader.ask(path), reader.ask(path, {"form": word, "reason": "r", "decision": "commit"})):
        assert page.status == 403
        assert "expected a token of metrics.operators" in page.text("p")
    stranger = Operator(service)
    page = stranger.ask(path, {"form": word, "reason": "r"})
    assert (page.status, page.text("h1")) == (401, "Log in")


def test_a_reader_sees_no_acts(service: Service, reader: Operator, anna: Operator) -> None:
    (txn,) = left(service)
    paths = ("addresses", "groups", "address?name=orders", f"transaction?id={txn}", "connections")
    assert [acts_of(reader.ask(f"/console/{each}")) for each in paths] == [set()] * len(paths)
    assert [bool(acts_of(anna.ask(f"/console/{each}"))) for each in paths] == [True, True, True, True, False]


@all_cases("word", ["", "x", "of bob"])
def test_a_form_without_the_word_of_its_session_does_nothing(
    service: Service, anna: Operator, bob: Operator, word: str
) -> None:
    (txn,) = left(service)
    path = form("transaction-resolve", txn_id=txn)
    shown = {"of bob": bob.ask("/console").hidden["form"]}.get(word, word)
    page = anna.ask(path, {"form": shown, "decision": "commit", "reason": "r"})
    assert page.status == 403
    assert "the form is of no page of this session; nothing was done" in page.text("p")
    page = anna.ask(path, {"decision": "commit", "reason": "r"})
    assert page.status == 403
    assert got(service, f"/transactions/{txn}")["outcome"] == "undecided"


def test_a_session_that_has_ended_does_nothing_and_leads_back(service: Service) -> None:
    (txn,) = left(service)
    carla = Operator(service)
    path = form("transaction-resolve", txn_id=txn)
    page = carla.log_in(path)
    carla.cookies.clear()
    asked = carla.answer(page, decision="commit", reason="r")
    assert (asked.status, asked.text("h1")) == (401, "Log in")
    (to,) = (each["value"] for each in asked.all_of("input") if each.get("name") == "to")
    again = carla.log_in(to or "")
    assert again.path == path
    assert got(service, f"/transactions/{txn}")["outcome"] == "undecided"
    assert carla.answer(again, decision="rollback", reason="r").status == 200


@all_cases(
    ("do", "given", "fields", "status", "said"),
    [
        ("nothing", {}, {}, 404, "the console has no such act"),
        ("transaction-resolve", {}, {"decision": "commit"}, 400, "expected txn_id"),
        ("transaction-resolve", {"txn_id": "x"}, {"decision": "commit", "reason": "r"}, 400, "TXN-ID: expected 32"),
        ("transaction-resolve", {"txn_id": _NONE}, {"decision": "commit"}, 400, "reason: Field required"),
        ("transaction-resolve", {"txn_id": _NONE}, {"decision": "x", "reason": "r"}, 400, "decision: Input should be"),
        ("transaction-resolve", {"txn_id": _NONE}, {"decision": "commit", "reason": "r"}, 404, "no undecided"),
        ("address-purge", {"name": "none"}, {}, 404, "there is no address 'none'"),
        ("address-purge", {"name": "orders"}, {"reason": "a\nb"}, 400, "reason: expected 1 to 1000 characters"),
        ("address-purge", {"name": "orders"}, {"surprise": "1"}, 400, "surprise: Extra inputs are not permitted"),
        ("dead-letters-replay", {"name": "orders"}, {}, 400, "give letters by ID, or all"),
        ("dead-letters-replay", {"name": "orders", "ids": "abc"}, {}, 400, "ids: Input should be a valid integer"),
        ("group-set", {"name": "none"}, {}, 400, 'give at least one of "An expired message", "Attempts" and "Retries"'),
        ("group-seek", {"name": "orders"}, {}, 400, 'give one of "Or to it", "Back to a time" and "Or forth to it"'),
        ("permission-grant", {"verbs": "all", "pattern": "x"}, {}, 400, 'give "User" or "Or role"'),
        ("address-add", {}, {"name": "<b>$</b>\0"}, 400, "expected no NUL character"),
    ],
)
def test_what_is_wrong_is_said(
    anna: Operator, do: str, given: dict[str, str], fields: dict[str, str], status: int, said: str
) -> None:
    page = anna.ask(form(do, **given), {"form": anna.ask("/console").hidden["form"], **fields})
    assert (page.status, said in page.text("p")) == (status, True), page.text("p")


@pytest.mark.rule("S7")
def test_what_an_operator_writes_is_text(service: Service, anna: Operator) -> None:
    hostile = '"><script>alert(1)</script>'
    page = anna.sent(form("address-set", name=hostile), retry=hostile, kind=hostile)
    assert (page.status, len(page.all_of("script"))) == (400, 2)
    assert hostile in page.text("h1")
    assert hostile in [each.get("value") for each in page.all_of("input")]
    (txn,) = left(service)
    done = anna.sent(form("transaction-resolve", txn_id=txn), decision="commit", reason=hostile)
    assert (done.status, len(done.all_of("script")), hostile in done.text("dd")) == (200, 2, True)


def test_an_act_that_is_not_known_any_more_is_said(anna: Operator) -> None:
    page = anna.ask("/console/done?id=1")
    assert (page.status, "the audit has it" in page.text("p")) == (404, True)


# Acts in pieces.


@pytest.fixture(scope="module")
def slow(token_settings: dict[str, str]) -> Iterator[Service]:
    """Each letter is a piece of its own, and a pause follows."""
    constants: dict[str, object] = {
        **{"coordinator.http.acting._PIECES_SECONDS": 0.0, "store.dead_letters.CHUNK": 1},
        **{"coordinator.http.underway._PAUSE_SECONDS": 1.0, "coordinator.http.underway._WAIT_SECONDS": 0.1},
        **{"coordinator.previews._MOST": 2, "coordinator.previews._MOST_LETTERS": 2},
    }
    with running_service(token_settings, constants) as service:
        yield service


def _until_ended(operator: Operator, path: str) -> Page:
    deadline = time.monotonic() + PATIENCE
    while "Ended" not in (page := operator.ask(path)).text("dt") or facts(page)["Ended"] == _NOTHING:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return page


def test_of_much_a_preview_looks_at_a_part(slow: Service) -> None:
    peer = Peer(slow.port)
    peer.open()
    session = peer.begin()
    post(session, "much", b"1", b"2", b"3")
    buried(slow, session, "buried", 3)
    anna = Operator(slow)
    anna.log_in()
    said = anna.ask(form("address-purge", name="much")).text("p")
    assert "At least 2 messages that wait at 'much' are thrown away" in said
    assert "2 and more messages are at 'much'." in anna.ask(form("address-remove", name="much")).text("p")
    seek = anna.sent(form("group-seek", name="much"), look="1", to="2026-01-01T00:00:00Z").text("p")
    assert "Of the next 2 messages that wait, 0 were posted before" in seek
    assert "Of the first 2 messages of the store from there on, 2 were posted to this address" in seek
    said = anna.sent(form("dead-letters-replay", name="buried", all="true"), look="1").text("p")
    assert "That is of the first 2 letters; if there are others, they follow likewise." in said
    peer.close_socket()


@contextmanager
def _no_purge_of(service: Service, group: str) -> Iterator[None]:
    """No entry of the group news::GROUP can be deleted: the commit fails."""
    url = running_url(service.data_dir)
    with connected(url) as connection:
        connection.execute(
            text(
                "create function coordinator.no_purge() returns trigger language plpgsql as "
                "$$ begin raise exception 'refused'; end $$"
            )
        )
        number = connection.scalar(
            text("select id from coordinator.consumer_group where name = :name"), {"name": group}
        )
        connection.execute(
            text(
                "create constraint trigger no_purge after delete on coordinator.entry deferrable initially deferred "
                f"for each row when (old.group_id = {number}) execute function coordinator.no_purge()"
            )
        )
        connection.commit()
    yield
    with connected(url) as connection:
        connection.execute(text("drop function coordinator.no_purge cascade"))
        connection.commit()


def test_a_purge_in_pieces_leaves_what_is_posted_later_and_says_what_a_failed_piece_may_have_done(
    slow: Service,
) -> None:
    peer = Peer(slow.port)
    peer.open()
    session = peer.begin()
    slow.cli("address", "add", "news", "--topic")
    for group in ("one", "two"):
        session.receiver(f"news::{group}").detach()
    post(session, "news", b"1", b"2")
    anna = Operator(slow)
    anna.log_in()
    path = form("address-purge", name="news")
    with _no_purge_of(slow, "two"):
        going = anna.sent(path)
        post(session, "news", b"later")
        ended = _until_ended(anna, going.path)
        assert "It has ended with an error" in ended.text("p")
        assert "; a part of it may be done." in ended.text("p")
        assert ("What was done, at least" in ended.text("h2"), facts(ended)["Purged"]) == (True, "2")
    with _no_purge_of(slow, "one"):
        page = anna.sent(path)
        assert "Back, without doing it" not in page.text("a")
        assert "a part of it may be done" in (page if page.status == 503 else _until_ended(anna, page.path)).text("p")
    peer.close_socket()


def test_a_replay_goes_on_and_is_stopped(slow: Service) -> None:
    peer = Peer(slow.port)
    peer.open()
    session = peer.begin()
    letters = buried(slow, session, "orders", 4)
    anna, bob = Operator(slow), Operator(slow)
    anna.log_in()
    bob.log_in(token=f"another-{api.OPERATOR}")
    path = form("dead-letters-replay", name="orders", all="true")
    going = anna.answer(anna.sent(path, look="1"), reason="mended")
    assert "It goes on" in going.text("p")
    refused = bob.answer(bob.sent(path, look="1"), reason="his")
    assert (refused.status, "another act goes on" in refused.text("p")) == (503, True)
    path_of_it = next(each for each in bob.ask("/console/acts").links if "/done?" in each)
    bob.answer(bob.ask(path_of_it))
    ended = _until_ended(anna, going.path)
    assert "Stopped by bob" in ended.text("p")
    first = int(facts(ended)["Replayed"])
    assert 0 < first < len(letters)
    last = _until_ended(anna, anna.answer(anna.sent(path, look="1")).path)
    assert int(facts(last)["Replayed"]) == len(letters) - first
    assert session.receiver("orders", credit=9).take_many(4)[0].body == b"0"
    peer.close_socket()
