"""The console shows what waits without taking it, what messages say, and what runs and instances have found (S11)."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from urllib.parse import urlencode
from uuid import uuid4

import pytest

from tests.acceptance import api
from tests.acceptance.api import buried
from tests.fix_console import BRIEF, REPORT, Operator, Page, fill
from tests.fix_service import Service, running_service
from tests.fix_wire import Begin
from tests.wire.frames import Accepted
from tests.wire.messages import Properties, data, section
from tests.wire.queues import post

pytestmark = pytest.mark.rule("S11")


@pytest.fixture(scope="module")
def service(token_settings: dict[str, str]) -> Iterator[Service]:
    with running_service(token_settings, {**BRIEF, "coordinator.http.console._MOST": 2}) as service:
        yield service


def rows_of(page: Page) -> int:
    return page.html.count("<tr>") - page.html.count("<thead>")


def test_looking_takes_nothing(begin: Begin, anna: Operator, address: str) -> None:
    session = begin()
    bodies = [b'{"a": 1}', b"tea", b"<b>\xff"]
    post(session, address, *bodies)
    page = anna.ask(f"/console/browse?{urlencode({'name': address})}")
    assert page.following is not None
    following = anna.ask(page.following)
    assert (rows_of(page), rows_of(following), following.following) == (2, 1, None)
    messages = [each for shown in (page, following) for each in shown.links if "/message?" in each]
    said = [anna.ask(each).text("pre").strip() for each in messages]
    assert said == ['{"a": 1}', "tea", "3c 62 3e ff"]
    assert session.receiver(address, credit=3).bodies() == bodies


@pytest.mark.rule("D11")
def test_the_page_to_retire_what_a_consumer_has_says_so(begin: Begin, anna: Operator, address: str) -> None:
    """As an open page of what waited has it still."""
    session = begin()
    post(session, address, b"x")
    listed = anna.ask(f"/console/browse?{urlencode({'name': address})}")
    (retire,) = (each for each in listed.links if "do=message-retire" in each)
    assert anna.ask(retire).status == 200
    session.receiver(address, credit=1).take()
    page = anna.ask(retire)
    assert page.status == 409
    assert "in the hands of a consumer" in page.text("p")


def test_a_long_line_is_shown_whole_and_a_line_end_in_a_property_is_seen(
    begin: Begin, anna: Operator, address: str
) -> None:
    body = json.dumps({"a": "<" * 60_000}).encode()
    properties = section(0x74, {"a": "1\nx-admin: true"})
    assert begin().sender(address).outcome(properties + data(body)) == Accepted()
    page = anna.ask(f"/console/browse?{urlencode({'name': address})}")
    (path,) = (each for each in page.links if "/message?" in each)
    assert anna.ask(path).text("pre").split() == ["a:", "1\\nx-admin:", "true", *body.decode().split()]


def test_what_a_message_says_is_for_operators(service: Service, begin: Begin, anna: Operator, address: str) -> None:
    post(begin(), address, b"secret")
    page = anna.ask(f"/console/browse?{urlencode({'name': address})}")
    (path,) = (each for each in page.links if "/message?" in each)
    reader = Operator(service)
    reader.log_in(token=api.TOKEN)
    assert ("secret" in anna.ask(path).html, "secret" in reader.ask(path).html) == (True, False)


def test_a_message_is_found_by_what_its_client_called_it(begin: Begin, anna: Operator, address: str) -> None:
    """What is no id, and no address, is looked for among messages."""
    sender = begin().sender(address)
    called = f"of {address}"
    for body in (b"1", b"2"):
        assert sender.outcome(Properties(message_id=called).encoded() + data(body)) == Accepted()
    found = anna.ask(f"/console/find?{urlencode({'what': called})}")
    assert (found.status, rows_of(found), found.path.partition("?")[0]) == (200, 2, "/console/messages")
    (first, _) = (each for each in found.links if "/message?" in each)
    assert f"to {address}, " in anna.ask(first).html
    assert anna.ask(f"/console/find?{urlencode({'what': address})}").text("h1") == f"Address {address}"
    early = anna.ask(f"/console/messages?{urlencode({'message_id': called, 'until': '1h', 'since': '2h'})}")
    assert (early.status, rows_of(early)) == (404, 0)
    assert early.text("p").startswith(f"no message with the message-id '{called}' was posted from ")
    (none,) = (each for each in anna.ask(f"/console/find?what={uuid4()}").links if "/messages?" in each)
    assert anna.ask(none).status == 404
    assert anna.ask("/console/messages").status == 200
    soon = anna.ask(f"/console/messages?{urlencode({'message_id': called, 'since': 'soon'})}")
    assert (soon.status, soon.text("p").startswith("'soon' is no time; ")) == (400, True)
    assert anna.ask(f"/console/find?{urlencode({'what': 'a' + chr(0)})}").status == 400


def test_letters_are_exported(service: Service, begin: Begin, anna: Operator, address: str) -> None:
    """Those of several pieces, for operators."""
    letters = buried(service, begin(), address, 5)
    path = f"/console/letters.jsonl?{urlencode({'name': f'%DLQ%{address}'})}"
    lines = [json.loads(each) for each in anna.raw(path).splitlines()]
    assert [each["id"] for each in lines] == letters
    assert [base64.b64decode(each["message"])[-1:] for each in lines] == [b"0", b"1", b"2", b"3", b"4"]
    reader = Operator(service)
    reader.log_in(token=api.TOKEN)
    assert [each.ask(path).status for each in (reader, Operator(service))] == [403, 401]
    assert anna.ask("/console/letters.jsonl?name=none").status == 404


def test_a_group_that_is_not_there_is_said(anna: Operator, begin: Begin, address: str) -> None:
    post(begin(), address, b"x")
    for name, said in (("none", "there is no address 'none'"), (f"{address}::none", f"the address '{address}")):
        page = anna.ask(f"/console/browse?{urlencode({'name': name})}")
        assert (page.status, page.text("p").startswith(said)) == (404, True)


def test_findings_are_shown_by_kind(service: Service, anna: Operator) -> None:
    with fill(service, "a <b>"):
        page = anna.ask("/console/runs")
    (path,) = (each for each in page.links if "/findings?" in each)
    run = anna.ask(path)
    assert (rows_of(run), "a <b>" in run.text("td")) == (1, True)
    by_kind = next(each for each in run.links if "kind=lost-message" in each)
    assert rows_of(anna.ask(by_kind)) == 1
    assert rows_of(anna.ask(by_kind.replace("lost-message", "another"))) == 0
    assert anna.ask("/console/findings?run=77").status == 404


@pytest.mark.rule("S7", "S11")
def test_a_report_belongs_to_no_site(service: Service, anna: Operator) -> None:
    """It has scripts of its own, beside what clients and books say: a page of the console has it in a frame, from which
    no script gets out.
    """
    with fill(service, "a <b>"):
        page = anna.ask("/console/runs")
    run = next(each for each in page.links if "/findings?" in each)
    (to,) = (each for each in anna.ask(run).links if "/report?" in each)
    shown = anna.ask(to)
    (frame,) = shown.all_of("iframe")
    assert frame["sandbox"] == "allow-scripts allow-downloads"
    assert "; frame-src 'self'; " in shown.headers["Content-Security-Policy"]
    report = anna.ask(frame["src"] or "", None, **{"Sec-Fetch-Dest": "iframe"})
    assert report.html == REPORT.decode()
    (policy,) = report.headers.get_all("Content-Security-Policy", [])
    assert policy.endswith("; sandbox allow-scripts allow-downloads; frame-ancestors 'self'")
    alone = anna.ask(frame["src"] or "", None, **{"Sec-Fetch-Dest": "document"})
    assert (alone.status, f"a report is shown in a page of the console: {to}" in alone.text("p")) == (403, True)
    for path in (to, frame["src"] or ""):
        assert Operator(service).ask(path).status == 401
        assert anna.ask(re.sub("run=.*", "run=77", path)).status == 404


def test_instances_and_workers_are_shown(anna: Operator) -> None:
    page = anna.ask("/console/instances")
    while "yes" not in page.text("td").split():  # until the worker has told
        page = anna.ask("/console/instances")
    assert "at work" in page.text("td")
    assert re.search(r"\d+\.\d+\.\d+", page.text("td"))


def test_users_and_permissions_are_shown_with_what_can_be_done(service: Service, anna: Operator) -> None:
    service.cli("permission", "grant", "all", "*", "--role", "anonymous")
    service.cli("user", "add", "carl", "--without-password")
    service.cli("permission", "grant", "send", "orders", "--user", "carl")
    users, permissions = anna.ask("/console/users"), anna.ask("/console/permissions")
    assert "carl" in users.text("td")
    path = next(each for each in permissions.links if "user=carl" in each)
    done = anna.answer(anna.ask(path), user="carl", verbs="send", pattern="orders")
    assert (done.status, "Done" in done.text("p")) == (200, True)
    assert "user=carl" not in anna.ask("/console/permissions").html
    disable = anna.answer(anna.ask(next(each for each in users.links if "user-set" in each)), disable="true")
    assert "disabled" in disable.text("dd")
