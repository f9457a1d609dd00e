"""The console in Chromium: on a screen, on a phone in the dark, by keyboard alone, with hostile names (S7, S11)."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from spark.report import render
from store import runs
from store.database import connected
from store.embedded.running import running_url
from tests.fix_browser import Opened
from tests.fix_console import BRIEF, TOKEN, Operator, fill, until_listed
from tests.fix_hostile import HOSTILE
from tests.fix_reports import SHOP, a_day, a_report, of_a_shop
from tests.fix_service import PATIENCE, Service, running_service

pytestmark = [pytest.mark.rule("S7", "S11"), pytest.mark.night]

PHONE = 360
SCRIPTS = ("/console/local-times.js", "/console/live.js")
#: What the browser's console says of the page that asks for the login.
_OF_THE_LOGIN = ("status of 401", "Password forms should have")


@pytest.fixture(scope="module")
def service(token_settings: dict[str, str]) -> Iterator[Service]:
    with running_service(token_settings, BRIEF) as service:
        yield service


@pytest.fixture(scope="module")
def paths(service: Service) -> Iterator[list[str]]:
    """URLs of the console: one of each kind of page, of values that are long or would run."""
    values = [HOSTILE[name][:1000] for name in ("HTML", "an attribute", "very long", "turned text")]
    with fill(service, *values):
        operator = Operator(service)
        operator.log_in()
        until_listed(operator, len(values))
        kinds = {urlsplit(path).path: path for path in operator.crawl()}
        yield [f"{operator.place}{path}" for path in kinds.values()]


@contextmanager
def logged_in(browser: Browser, url: str, width: int, scheme: str) -> Iterator[Opened]:
    """By keyboard alone."""
    with browser.new_context(
        viewport={"width": width, "height": 800},
        color_scheme="dark" if scheme == "dark" else "light",
        timezone_id="Europe/Berlin",
    ) as context:
        found = Opened(context.new_page())
        found.page.goto(url)
        found.page.wait_for_selector("#token:focus")
        found.page.keyboard.type(TOKEN)
        found.page.keyboard.press("Enter")
        found.page.wait_for_selector("nav")
        assert found.page.url == url
        yield found


def _ground(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


@pytest.mark.parametrize(
    ("width", "scheme", "ground"),
    [(1280, "light", "rgb(245, 247, 249)"), (PHONE, "dark", "rgb(21, 27, 33)")],
    ids=["screen", "phone in the dark"],
)
def test_each_page_fits_and_runs_nothing_foreign(
    browser: Browser, paths: list[str], width: int, scheme: str, ground: str
) -> None:
    with logged_in(browser, paths[0], width, scheme) as shown:
        for url in paths:
            shown.page.goto(url)
            assert shown.page.evaluate("document.documentElement.scrollWidth") <= width, url
            assert _ground(shown.page) == ground
            assert shown.page.locator("h1").count() == 1
    assert [each for each in shown.complaints if not any(of in each for of in _OF_THE_LOGIN)] == []
    own = {urlsplit(url).path for url in shown.requests} - {urlsplit(url).path for url in paths}
    assert own == {"/console/login", "/console/console.css", "/console/events", "/console/report.html", *SCRIPTS}


def test_a_time_is_in_utc_with_the_readers_own_beside(browser: Browser, paths: list[str]) -> None:
    url = next(each for each in paths if "/transaction?" in each)
    with logged_in(browser, url, 1280, "light") as shown:
        first = shown.page.locator(".life time").first
        assert first.inner_text().endswith("Z")
        beside = shown.page.locator(".life time + .local")
        assert beside.count() == shown.page.locator(".life time").count()
        assert beside.first.inner_text().endswith(" here")


def test_the_keyboard_reaches_the_content_first_and_scrolls_a_table(browser: Browser, paths: list[str]) -> None:
    url = next(each for each in paths if "/transactions" in each)
    with logged_in(browser, url, PHONE, "light") as shown:
        page = shown.page
        page.goto(url)
        page.keyboard.press("Tab")
        skip = page.locator(":focus")
        assert skip.inner_text() == "Skip to the content"
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        assert page.evaluate("document.querySelector('main').contains(document.activeElement)")
        table = page.locator(".scroll")
        table.focus()
        assert page.evaluate("document.activeElement.scrollLeft") == 0
        page.keyboard.press("ArrowRight")
        page.wait_for_function("document.activeElement.scrollLeft > 0")


def _with_report(service: Service, html: str) -> str:
    """The page of a run that has this report."""
    of = runs.Run(since=None, until=None, books=("shop",), seen_at=datetime.now(UTC), version="1.2.3")
    with connected(running_url(service.data_dir)) as connection:
        number = runs.store(connection, of, [], report=gzip.compress(html.encode()))
    return f"{Operator(service).place}/console/findings?run={number}"


def test_a_report_runs_its_scripts_and_reaches_nothing_of_the_console(browser: Browser, paths: list[str]) -> None:
    url = next(each for each in paths if "/findings?" in each)
    with logged_in(browser, url, 1280, "light") as shown:
        shown.page.get_by_role("link", name="Its report").click()
        shown.page.wait_for_url("**/console/report?run=*")
        report = shown.page.frames[1]
        report.wait_for_function("document.title === 'Reconciliation ran'")
        assert report.evaluate("self.origin") == "null"
        assert report.evaluate("fetch('/console').then(() => 'read', () => 'refused')") == "refused"
        refused = shown.page.goto(report.url)
        assert refused is not None
        assert refused.status == 403


def test_a_report_as_it_is_made_has_its_plots_and_its_download(browser: Browser, service: Service) -> None:
    url = _with_report(service, render(a_report(of_a_shop(7), a_day(), SHOP), alone=True))
    with logged_in(browser, url, 1280, "light") as shown:
        shown.page.get_by_role("link", name="Its report").click()
        report = shown.page.frame_locator("iframe")
        report.locator("html[data-ready]").wait_for()
        expect(report.locator(".chart svg.main-svg").first).to_be_visible()
        report.get_by_role("link", name="Show all of them").first.click()
        with shown.page.expect_download() as begun:
            report.get_by_role("button", name="Download as CSV").click()
        assert begun.value.suggested_filename == "findings-shown.csv"
    assert [each for each in shown.complaints if not any(of in each for of in _OF_THE_LOGIN)] == []


_HOSTILE_REPORT = """<!doctype html><title>Log in</title>
<form action="{place}" target="_top"><input name="token"></form>
<script>
  const attempts = [
    () => fetch("{place}"), () => open("{place}"), () => document.forms[0].submit(), () => top.location = "{place}",
    () => parent.document.title, () => document.body.append(Object.assign(new Image(), {{src: "{place}"}})),
    () => location = "{place}?token=typed",
  ];
  for (const each of attempts) try {{ each(); }} catch {{}}
</script>"""


def _received(listener: socket.socket) -> bytes:
    """All that was sent there by those who have closed. A browser connects before it looks whether it may ask."""
    octets = b""
    with suppress(BlockingIOError):
        while True:
            peer, _ = listener.accept()
            with peer:
                peer.settimeout(PATIENCE)
                while more := peer.recv(4096):
                    octets += more
    return octets


def test_a_hostile_report_leads_nowhere_and_sends_nothing(browser: Browser, service: Service) -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.setblocking(False)
        html = _HOSTILE_REPORT.format(place=f"http://127.0.0.1:{elsewhere.getsockname()[1]}/")
        with logged_in(browser, _with_report(service, html), 1280, "light") as shown:
            with shown.page.expect_console_message(lambda message: "frame-src" in message.text):
                shown.page.get_by_role("link", name="Its report").click()
            assert "/console/report?run=" in shown.page.url
            assert shown.page.context.pages == [shown.page]
        assert _received(elsewhere) == b""


def test_a_logout_ends_it(browser: Browser, paths: list[str]) -> None:
    with logged_in(browser, paths[0], PHONE, "light") as shown:
        shown.page.get_by_role("button", name="Log out").click()
        shown.page.wait_for_selector("#token")
        shown.page.goto(paths[0])
        assert shown.page.locator("h1").inner_text() == "Log in"
