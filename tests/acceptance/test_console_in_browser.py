"""The console in Chromium: on a screen, on a phone in the dark, by keyboard alone, with hostile names (S7, S11)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page

from tests.fix_browser import Opened
from tests.fix_console import BRIEF, TOKEN, Operator, fill, until_listed
from tests.fix_hostile import HOSTILE
from tests.fix_service import running_service

pytestmark = [pytest.mark.rule("S7", "S11"), pytest.mark.night]

PHONE = 360
SCRIPTS = ("/console/local-times.js", "/console/live.js")
#: What the browser's console says of the page that asks for the login.
_OF_THE_LOGIN = ("status of 401", "Password forms should have")


@pytest.fixture(scope="module")
def paths(token_settings: dict[str, str]) -> Iterator[list[str]]:
    """URLs of the console: one of each kind of page, of values that are long or would run."""
    values = [HOSTILE[name][:1000] for name in ("HTML", "an attribute", "very long", "turned text")]
    with running_service(token_settings, BRIEF) as service, fill(service, *values):
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
        found.page.keyboard.type(TOKEN)  # its field has the focus
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
    assert own == {"/console/login", "/console/console.css", "/console/events", *SCRIPTS}


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


def test_a_report_runs_its_scripts_and_reaches_nothing_of_the_console(browser: Browser, paths: list[str]) -> None:
    url = next(each for each in paths if "/findings?" in each)
    with logged_in(browser, url, 1280, "light") as shown:
        with shown.page.expect_popup() as opened:
            shown.page.get_by_role("link", name="Its report").click()
        report = opened.value
        assert report.title() == "Reconciliation ran"
        assert report.evaluate("self.origin") == "null"
        assert report.evaluate("fetch('/console').then(() => 'read', () => 'refused')") == "refused"


def test_a_logout_ends_it(browser: Browser, paths: list[str]) -> None:
    with logged_in(browser, paths[0], PHONE, "light") as shown:
        shown.page.get_by_role("button", name="Log out").click()
        shown.page.wait_for_selector("#token")
        shown.page.goto(paths[0])
        assert shown.page.locator("h1").inner_text() == "Log in"
