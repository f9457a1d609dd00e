"""Acts and live figures of the console in Chromium, and a service that starts anew under an open page (S11)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlencode, urlsplit

import pytest
from playwright.sync_api import Browser, expect

from tests.acceptance import api
from tests.acceptance.api import buried, got, left
from tests.fix_browser import Opened
from tests.fix_console import TOKEN
from tests.fix_service import Service, running_service
from tests.wire.peer import Peer

pytestmark = [pytest.mark.rule("S11"), pytest.mark.night]

#: Each letter is a piece of its own, and a pause follows.
_SLOW: dict[str, object] = {
    **{"coordinator.http.acting._PIECES_SECONDS": 0.0, "store.dead_letters.CHUNK": 1},
    **{"coordinator.http.underway._PAUSE_SECONDS": 3.0, "coordinator.process.measuring.POLL_SECONDS": 0.2},
}
_PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def service(token_settings: dict[str, str]) -> Iterator[Service]:
    with running_service(token_settings, _SLOW) as service:
        yield service


@contextmanager
def logged_in(browser: Browser, service: Service, path: str, *, scripts: bool = True) -> Iterator[Opened]:
    with browser.new_context(
        viewport={"width": 360, "height": 800}, java_script_enabled=scripts, reduced_motion="reduce"
    ) as context:
        found = Opened(context.new_page())
        found.page.goto(f"{api.place(service)}{path}")
        found.page.locator("#token").fill(TOKEN)
        found.page.keyboard.press("Enter")
        found.page.wait_for_selector("nav")
        yield found


@pytest.mark.parametrize("scripts", [True, False], ids=["with scripts", "without"])
def test_a_transaction_is_decided_by_keyboard(browser: Browser, service: Service, scripts: bool) -> None:
    (txn,) = left(service)
    with logged_in(browser, service, f"/console/transaction?id={txn}", scripts=scripts) as shown:
        page = shown.page
        page.get_by_role("link", name="Roll it back").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_label("Decision")).to_have_value("rollback")
        page.get_by_label("Reason, for the audit").focus()
        page.keyboard.type("the customer <b>called</b>")
        page.keyboard.press("Enter")
        page.wait_for_url("**/done?id=*")
        while page.get_by_role("link", name="Look again").count():  # where no script does
            page.reload()
        expect(page.get_by_role("status")).to_have_text("Done.")
        expect(page.locator("dd", has_text="the customer <b>called</b>").first).to_be_visible()
        page.go_back()  # to the form, which is stale now
        page.reload()
        expect(page.get_by_role("alert")).to_contain_text(" by anna (console 127.0.0.1)")
    assert got(service, f"/transactions/{txn}")["outcome"] == "rollback"


def test_a_replay_shows_how_far_it_is_and_is_stopped(browser: Browser, service: Service) -> None:
    peer = Peer(service.port)
    peer.open()
    buried(service, peer.begin(), "orders", 30)
    with logged_in(browser, service, f"/console/letters?{urlencode({'name': '%DLQ%orders'})}") as shown:
        page = shown.page
        page.get_by_role("link", name="Replay all", exact=True).click()
        page.get_by_role("button", name="Look what it would do").click()
        expect(page.locator("main")).to_contain_text("30 letters are posted anew")
        page.get_by_role("button", name="Replay dead letters").click()
        expect(page.get_by_role("status")).to_have_text("It goes on.")
        asked = page.url
        count = page.locator("dt:text-is('Replayed') + dd")
        first = count.inner_text()
        expect(count).not_to_have_text(first, timeout=_PATIENCE_MS)  # no one has loaded it anew
        page.get_by_role("button", name="Stop it").click()
        expect(page.get_by_role("status")).to_have_text("Stopped by anna.", timeout=_PATIENCE_MS)
        assert page.url == asked
        assert 0 < int(count.inner_text()) < 30
    peer.close_socket()


def _begin_replay(shown: Opened, service: Service, address: str, letters: int) -> None:
    """Of so many letters of the address, which had none; the page is that of the act then."""
    peer = Peer(service.port)
    peer.open()
    buried(service, peer.begin(), address, letters)
    peer.close_socket()
    given = {"do": "dead-letters-replay", "name": f"%DLQ%{address}", "all": "true"}
    shown.page.goto(f"{api.place(service)}/console/act?{urlencode(given)}")
    shown.page.get_by_role("button", name="Look what it would do").click()
    shown.page.get_by_role("button", name="Replay dead letters").click()
    expect(shown.page.get_by_role("status")).to_have_text("It goes on.")


def test_an_act_that_cannot_be_seen_any_more_says_why(browser: Browser, token_settings: dict[str, str]) -> None:
    with running_service(token_settings, _SLOW) as service, logged_in(browser, service, "/console") as shown:
        _begin_replay(shown, service, "orders", 30)
        page, status = shown.page, shown.page.get_by_role("status")
        other = page.context.new_page()
        other.goto(f"{api.place(service)}/console")
        other.get_by_role("button", name="Log out").click()
        other.wait_for_selector("#token")
        expect(status).to_have_text("You are logged out: log in again.", timeout=_PATIENCE_MS)
        page.get_by_role("link", name="log in again").click()
        page.locator("#token").fill(TOKEN)
        page.keyboard.press("Enter")
        expect(status).to_have_text("It goes on.")
        page.get_by_role("button", name="Stop it").focus()
        service.kill()
        expect(status).to_have_text("The service does not answer.", timeout=_PATIENCE_MS)
        with page.expect_request("**/console/done?id=*"):
            pass


def test_an_act_that_ends_under_the_focus_says_so(browser: Browser, service: Service) -> None:
    with logged_in(browser, service, "/console") as shown:
        _begin_replay(shown, service, "prices", 3)
        shown.page.get_by_role("button", name="Stop it").focus()
        expect(shown.page.get_by_role("status")).to_have_text("Done.", timeout=_PATIENCE_MS)
        shown.page.locator("h1").click()
        expect(shown.page.get_by_role("button", name="Stop it")).to_have_count(0, timeout=_PATIENCE_MS)


def test_a_look_that_has_failed_leaves_no_word_that_all_is_right(browser: Browser, service: Service) -> None:
    with logged_in(browser, service, "/console") as shown:
        status, main = shown.page.get_by_role("status"), shown.page.locator("main")
        expect(status).to_have_text("The figures follow the store.")
        expect(main).to_contain_text("Nothing needs a person.")
        service.signal_database(signal.SIGSTOP)
        try:
            expect(status).to_contain_text("The service is not ready: store: ", timeout=2 * _PATIENCE_MS)
        finally:
            service.signal_database(signal.SIGCONT)
        expect(status).to_have_text("The figures follow the store.", timeout=_PATIENCE_MS)
        expect(main).not_to_contain_text("Nothing needs a person.")
        expect(main).to_contain_text("Something may need a person by now")


def test_figures_follow_the_store_while_a_link_has_the_focus(browser: Browser, service: Service) -> None:
    with logged_in(browser, service, "/console") as shown:
        page = shown.page
        status = page.get_by_role("status")
        expect(status).to_have_text("The figures follow the store.")
        link = page.locator("a", has=page.locator("[data-live=undecided]"))
        link.focus()
        before = int(link.inner_text())
        left(service, 2)
        expect(link).to_have_text(str(before + 2), timeout=_PATIENCE_MS)
        assert page.evaluate("document.activeElement.textContent.trim()") == str(before + 2)
        assert page.locator("svg[role=img]").count() == 6
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert [each for each in shown.complaints if "401" not in each and "Password forms" not in each] == []


def test_a_service_that_starts_anew_is_followed_again_after_a_login(
    browser: Browser, token_settings: dict[str, str]
) -> None:
    with running_service(token_settings, _SLOW) as first:
        port = urlsplit(api.place(first)).port
    settings = {**token_settings, "metrics.listen": f"http://127.0.0.1:{port}"}
    with running_service(settings, _SLOW) as service, logged_in(browser, service, "/console") as shown:
        status = shown.page.get_by_role("status")
        expect(status).to_have_text("The figures follow the store.")
        service.kill()
        expect(status).to_contain_text("The figures stand still", timeout=_PATIENCE_MS)
        service.start()
        other = shown.page.context.new_page()
        other.goto(f"{api.place(service)}/console/audit")
        other.locator("#token").fill(TOKEN)
        other.keyboard.press("Enter")
        other.wait_for_selector("nav")
        other.close()
        expect(status).to_have_text("The figures follow the store.", timeout=_PATIENCE_MS)
