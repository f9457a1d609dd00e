"""The console: its login, and each page with nothing, with some, and with hostile values (S7, S11)."""

from __future__ import annotations

import os
import signal
import ssl
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance import api
from tests.fix_certificates import Authority, key_of
from tests.fix_console import BRIEF, TOKEN, Operator, Page, fill, kinds, of_query, rows, until_listed
from tests.fix_hostile import HOSTILE, harmful
from tests.fix_night import by_night
from tests.fix_service import Service, running_service
from tests.tables import all_cases

pytestmark = pytest.mark.rule("S11")

LISTS = (
    *("addresses", "groups", "transactions", "dead-letters", "connections", "audit"),
    *("users", "permissions", "acts", "instances", "runs", "schedules"),
)
ALL_KINDS = {
    "",
    *LISTS,
    "act",
    "browse",
    "findings",
    "address",
    "transaction",
    "message",
    "letters",
    "letter",
    "report",
    "connection",
    "schedule",
}
#: What AMQP can say: its strings have no lone surrogates.
VALUES = {name: value[:1000] for name, value in HOSTILE.items() if name != "lone surrogates"}
#: Of these some are for the day.
BY_DAY = ("HTML", "an attribute", "a template", "SQL", "controls", "turned text")
LINES_OF_A_PAGE = 2
SCRIPTS = ["/console/local-times.js", "/console/live.js"]


@pytest.fixture(scope="module")
def service(token_settings: dict[str, str]) -> Iterator[Service]:
    """With nothing in its store."""
    with running_service(token_settings, BRIEF) as service:
        yield service


@pytest.fixture(scope="module")
def used(token_settings: dict[str, str]) -> Iterator[Operator]:
    """Of a service with some of everything, whose lists are longer than a page."""
    with (
        running_service(token_settings, {**BRIEF, "coordinator.http.console._MOST": LINES_OF_A_PAGE}) as service,
        fill(service, "a", "b/c", ".. &"),
    ):
        operator = Operator(service)
        operator.log_in()
        until_listed(operator, LINES_OF_A_PAGE)
        yield operator


@pytest.fixture(scope="module")
def crawled(used: Operator) -> dict[str, Page]:
    return used.crawl()


@pytest.fixture(scope="module")
def hostile(request: pytest.FixtureRequest, token_settings: dict[str, str]) -> Iterator[dict[str, Page]]:
    """All pages, of clients that call everything by a hostile value, one of the named ones each."""
    values = [VALUES[name] for name in request.param]
    with running_service(token_settings, BRIEF) as service, fill(service, *values):
        operator = Operator(service)
        operator.log_in()
        until_listed(operator, len(values))
        yield operator.crawl()


# The login.


def test_without_a_login_a_page_is_its_form_and_leads_there_afterwards(service: Service) -> None:
    operator = Operator(service)
    asked = "/console/letters?name=%25DLQ%25a%26b&after=7"
    page = operator.ask(asked)
    assert (page.status, page.text("h1")) == (401, "Log in")
    (to,) = (each["value"] for each in page.all_of("input") if each.get("name") == "to")
    assert to == asked
    assert operator.log_in(to).path == asked


@all_cases("path", ["", *(f"/{each}" for each in LISTS), "/find?what=1", "/message?id=1", "/letter?id=1"])
def test_no_page_tells_anything_without_a_login(service: Service, path: str) -> None:
    page = Operator(service).ask(f"/console{path}", Cookie="coordinator=x; session=", Authorization=f"Bearer {TOKEN}")
    assert (page.status, page.text("h1")) == (401, "Log in")


def test_the_cookie_is_for_the_console_alone_and_is_not_the_token(service: Service) -> None:
    operator = Operator(service)
    operator.log_in()
    (cookie,) = operator.cookies
    assert (cookie.path, cookie.secure, cookie.expires) == ("/console", False, None)
    assert (cookie.has_nonstandard_attr("HttpOnly"), cookie.get_nonstandard_attr("SameSite")) == (True, "strict")
    assert TOKEN not in (cookie.value or "")
    assert len(cookie.value or "") >= 32
    again = Operator(service)
    again.log_in()
    assert [each.value for each in again.cookies] != [cookie.value]


def test_a_wrong_token_opens_nothing(service: Service) -> None:
    operator = Operator(service)
    for wrong in ("another-of-these-tests", "", "ü\0\r\n", TOKEN[:-1]):
        page = operator.ask("/console/login", {"token": wrong, "to": "/console/audit"})
        assert (page.status, page.text("h1")) == (401, "Log in")
        assert "expected the token of metrics.token" in page.text("p")
        assert "another" not in page.html
    assert list(operator.cookies) == []


@all_cases(
    "to",
    [
        *("https://evil.example/", "//evil.example/", "/metrics", "/consolex", "javascript:alert(1)", "//["),
        *("/console/logout", "/console/stop", "/console/none"),
    ],
)
def test_a_login_leads_to_pages_of_the_console_alone(service: Service, to: str) -> None:
    page = Operator(service).log_in(to)
    assert (page.path, page.status) == ("/console", 200)


@all_cases(("sent", "to"), [("logout", ""), ("stop", ""), ("act?do=user-add", "/act?do=user-add")])
def test_a_form_without_a_session_leads_through_the_login_to_its_page_or_the_overview(
    service: Service, sent: str, to: str
) -> None:
    operator = Operator(service)
    page = operator.ask(f"/console/{sent}", {"form": "", "id": "1"})
    assert (page.status, page.text("h1")) == (401, "Log in")
    page = operator.ask("/console/login", {**page.hidden, "token": TOKEN})
    assert (page.status, page.path) == (200, f"/console{to}")


def test_a_logout_is_a_form_of_a_page_of_the_session(service: Service) -> None:
    operator, other = Operator(service), Operator(service)
    shown, of_another = operator.log_in(), other.log_in()
    forms = [
        next(each["value"] or "" for each in page.all_of("input") if each.get("name") == "form")
        for page in (shown, of_another)
    ]
    for wrong in ({}, {"form": ""}, {"form": forms[1]}):
        assert operator.ask("/console/logout", wrong).status == 403
    assert operator.ask("/console/logout").status == 405
    cookie = next(iter(operator.cookies))
    assert operator.ask("/console/logout", {"form": forms[0]}).text("h1") == "Log in"
    assert list(operator.cookies) == []
    operator.cookies.set_cookie(cookie)
    assert operator.ask("/console").status == 401  # the service has forgotten it, whatever the browser keeps
    assert other.ask("/console").status == 200


@all_cases(
    ("form", "status", "said"),
    [
        ({"token": "x" * 20_000}, 413, "expected a form of at most 16384 octets"),
        ({str(number): "x" for number in range(20)}, 400, "expected the fields of a form"),
    ],
)
def test_what_is_no_form_is_refused(service: Service, form: dict[str, str], status: int, said: str) -> None:
    page = Operator(service).ask("/console/login", form)
    assert (page.status, page.text("p").partition("  ")[0]) == (status, f"{said} ".rstrip())


def test_a_page_that_has_its_name_lead_here_gets_nothing(service: Service) -> None:
    operator = Operator(service)
    operator.log_in()
    page = operator.ask("/console/audit", Host="evil.example")
    assert page.status in (401, 403)
    page = operator.ask("/console/login", {"token": TOKEN}, Host="evil.example")
    assert (page.status, "Set-Cookie" in page.headers) == (403, False)
    assert "the header Host names another machine" in page.text("p")


def test_a_token_that_reads_metrics_shows_no_letter(service: Service) -> None:
    reader = Operator(service)
    assert reader.log_in(token=api.TOKEN).text("h1") == "Overview"
    assert reader.ask("/console/dead-letters").status == 200
    for path in ("letters?name=orders", "letter?id=1", "browse?name=orders", "users", "permissions", "acts"):
        page = reader.ask(f"/console/{path}")
        assert page.status == 403
        assert "metrics.token is not for this, expected a token of metrics.operators" in page.text("p")


def test_without_a_token_there_is_no_login() -> None:
    with running_service({"metrics.listen": "http://127.0.0.1:0"}) as service:
        page = Operator(service).log_in()
    assert page.status == 403
    assert "metrics.token" in page.text("p")


def test_behind_tls_the_cookie_is_for_tls_and_another_token_ends_the_session(ca: Authority, tmp_path: Path) -> None:
    certificate = ca.sign("console", alternative="IP:127.0.0.1")
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(TOKEN)
    settings = {
        "metrics.listen": "https://127.0.0.1:0",
        "metrics.token": str(token),
        "tls.certificate": str(certificate),
        "tls.key": str(key_of(certificate)),
    }
    with running_service(settings) as service:
        operator = Operator(service, ssl.create_default_context(cafile=str(ca.certificate)))
        assert operator.log_in().text("h1") == "Overview"
        assert [each.secure for each in operator.cookies] == [True]
        token.write_text("the-token-of-tomorrow")
        os.kill(service.pid, signal.SIGHUP)
        service.wait_for(lambda line: line.get("event") == "certificates read again")
        while operator.ask("/console").status != 401:  # each process reads it when it is told
            pass
        assert operator.log_in().status == 401


# Its pages.


@all_cases("name", [each for each in LISTS if each != "instances"])
def test_a_list_of_nothing_says_so(service: Service, name: str) -> None:
    operator = Operator(service)
    page = operator.log_in(f"/console/{name}")
    assert (page.status, page.path) == (200, f"/console/{name}")
    assert "There is none" in page.text("p")
    assert [each.get("aria-current") for each in page.all_of("a")].count("page") == 1


def test_where_nothing_is_wrong_the_overview_says_so(service: Service) -> None:
    assert "Nothing needs a person." in Operator(service).log_in().text("p")


def test_what_needs_a_person_stands_first(token_settings: dict[str, str]) -> None:
    with running_service({**token_settings, "limits.disk_free_bytes": str(1 << 60)}) as service:
        page = Operator(service).log_in()
    assert "This needs a person" in page.text("h2")
    assert page.text("li").strip().endswith(" MiB): with an embedded server, posts are refused")
    assert page.html.index("This needs a person") < page.html.index("<dl>")


@all_cases(
    ("path", "status", "said"),
    [
        ("address?name=none", 404, "there is no address 'none'"),
        ("address?name=%00", 400, "expected no NUL character: no name has one"),
        ("address", 400, "name: Field required"),
        ("transaction?id=xyz", 400, "TXN-ID: expected 32 hexadecimal digits, not 'xyz'"),
        ("message?id=1", 404, "the store has no message 1"),
        ("letter?id=1", 404, "the store has no message 1"),
        ("letters?name=orders", 404, "there are no dead letters of 'orders'"),
        ("letters?name=orders&after=x", 400, "after: Input should be a valid integer"),
        (
            "connection?id=1",
            400,
            "CONNECTION: expected two numbers, as in 12-345 (coordinator connection list), not '1'",
        ),
        ("connections?after=x", 400, "'x' is no time; expected 2026-03-01, 2026-03-01T12:00Z or 24h (ago)"),
        (f"audit?after={1 << 63}", 400, "after: Input should be less than 9223372036854775808"),
        ("audit?after=x", 400, "after: Input should be a valid integer"),
        ("find?what=none", 404, "no message with the message-id 'none' was posted from "),
        ("find?what=1", 404, "the store has no message 1"),
        ("find?what=1-1", 404, "there is no connection 1-1"),
        (f"find?what={'0' * 32}", 404, "transaction 00000000-0000-0000-0000-000000000000 is not known"),
    ],
)
def test_an_error_is_a_page_with_one_sentence(service: Service, path: str, status: int, said: str) -> None:
    page = Operator(service).log_in(f"/console/{path}")
    assert page.status == status
    assert page.text("p").strip().startswith(said)
    assert "/console" in page.links


def test_each_kind_of_page_is_reached_by_links(crawled: dict[str, Page]) -> None:
    assert kinds(crawled) == ALL_KINDS


def test_pages_can_be_read_by_a_program_that_reads_them_out(crawled: dict[str, Page]) -> None:
    for path, page in crawled.items():
        found = Counter(tag for tag, _ in page.elements)
        assert (found["h1"], found["main"], found["title"]) == (1, 1, 1), path
        assert found["caption"] == found["table"], path
        assert all(each.get("scope") == "col" for each in page.all_of("th")), path
        named = {each["for"] for each in page.all_of("label")}
        asked = [*page.all_of("input"), *page.all_of("select")]
        assert {each["id"] for each in asked if each.get("type") != "hidden"} == named, path
        assert {each["lang"] for each in page.all_of("html")} == {"en"}
        assert page.text("title").startswith(page.text("h1")), path
        assert all(str(each["datetime"]).endswith("+00:00") for each in page.all_of("time")), path


def test_pages_load_their_own_style_and_script_and_nothing_else(crawled: dict[str, Page]) -> None:
    for path, page in crawled.items():
        policy = dict(each.split(" ", 1) for each in page.headers["Content-Security-Policy"].split("; "))
        assert policy == {
            **{"default-src": "'none'", "style-src": "'self'", "script-src": "'self'", "form-action": "'self'"},
            **{"base-uri": "'none'", "frame-ancestors": "'none'", "connect-src": "'self'"},
            "frame-src": "'self'",
        }
        assert page.headers["Referrer-Policy"] == "no-referrer"
        assert page.headers["X-Content-Type-Options"] == "nosniff"
        assert [each["src"] for each in page.all_of("script")] == SCRIPTS, path
        assert [each["href"] for each in page.all_of("link")] == ["/console/console.css"]
        assert not [name for _, given in page.elements for name in given if name == "style" or name.startswith("on")]


@all_cases("name", ["addresses", "groups", "transactions", "dead-letters", "connections"])
def test_pages_of_a_list_follow_each_other(used: Operator, name: str) -> None:
    """Each line once, as the API has them."""
    found = list(rows(used, f"/console/{name}"))
    assert [len(each) for each in found[:-1]] == [LINES_OF_A_PAGE] * (len(found) - 1)
    links = [each for page in found for each in page]
    assert len(links) == len(set(links)) or name == "groups"
    assert len(links) > LINES_OF_A_PAGE or name == "dead-letters"


def test_an_address_shows_who_has_links_to_it(used: Operator) -> None:
    orders, none = (used.ask(f"/console/address?name={name}") for name in ("orders", "%25DLQ%25orders"))
    assert orders.text("td").split().count("receiver") + orders.text("td").split().count("sender") == LINES_OF_A_PAGE
    assert "There are more." in orders.text("p")
    assert len({each for each in orders.links if "/connection?" in each}) > 0
    assert "No client has a link to it." in none.text("p")


def test_letters_are_by_where_they_come_from_and_why(used: Operator, crawled: dict[str, Page]) -> None:
    first = used.ask("/console/letters?name=%25DLQ%25orders")
    assert first.text("h2") == "1 from orders 1 from orders"
    assert "test:refused: a" in first.text("p")
    letters = [each for page in rows(used, first.path) for each in page]
    assert len(letters) == len(set(letters)) == 3
    page = crawled[letters[0]]
    facts = dict(zip([text for tag, text in page.texts if tag == "dt"], page.html.split("<dd>")[1:], strict=True))
    assert facts["Error"].startswith("test:refused: ")
    message = of_query(next(each for each in page.links if "/message?" in each), "id")
    assert facts["Message"].startswith(f'<a href="/console/message?id={message}">')
    assert "rejected" in page.text("strong") or "dead-lettered" in page.text("strong")


def test_what_a_transaction_waits_for_is_in_the_list_and_its_life_in_a_page(
    used: Operator, crawled: dict[str, Page]
) -> None:
    listed = used.ask("/console/transactions")
    assert "its client has it, until" in listed.text("td")
    shown = crawled[next(each for each in listed.links if "/transaction?" in each)]
    assert shown.text("strong").split()[0] == "declared"
    assert shown.text("strong").endswith("now undecided")


def test_the_audit_has_the_latest_first_and_leads_to_all(used: Operator) -> None:
    seen = []
    following: str | None = "/console/audit"
    while following is not None:
        page = used.ask(following)
        seen += [each["datetime"] for each in page.all_of("time")]
        following = page.following
    assert len(seen) == 3
    assert seen == sorted(seen, key=str, reverse=True)


@pytest.mark.rule("S7")
@pytest.mark.parametrize("hostile", [BY_DAY, by_night(VALUES)], ids=["some", "all"], indirect=True)
def test_hostile_values_are_text(hostile: dict[str, Page], crawled: dict[str, Page]) -> None:
    assert kinds(hostile) == ALL_KINDS
    usual = {(tag, name) for page in crawled.values() for tag, given in page.elements for name in ("", *given)}
    seen = ""
    for path, page in hostile.items():
        found = {(tag, name) for tag, given in page.elements for name in ("", *given)}
        assert found <= usual | {("ul", "")}, path
        assert harmful(page.html) <= {"\n"}, path
        assert len(page.html) < 2_000_000
        seen += page.text()
    for name in BY_DAY[:4]:
        assert VALUES[name] in seen, name


@pytest.mark.rule("S7")
def test_what_an_operator_writes_is_text(service: Service) -> None:
    page = Operator(service).log_in("/console/find?what=<script>alert(1)</script>")
    assert page.status == 404
    assert [each["src"] for each in page.all_of("script")] == SCRIPTS
    page = Operator(service).ask('/console/audit?x="><script>alert(1)</script>'.replace('"', "%22"))
    assert [each["src"] for each in page.all_of("script")] == SCRIPTS


@pytest.mark.night
def test_a_store_that_is_away_is_said_on_a_page(token_settings: dict[str, str]) -> None:
    with running_service(token_settings) as service:
        operator = Operator(service)
        assert operator.log_in().status == 200
        service.signal_database(signal.SIGSTOP)
        try:
            page = operator.ask("/console")
        finally:
            service.signal_database(signal.SIGCONT)
    assert page.status == 503
    assert page.text("p").startswith("database at ")
