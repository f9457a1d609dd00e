"""``python -m tests.pictures`` takes the pictures that docs/ has, in Chromium: of the report of a shop's day, and of
the console beside a minute of its work.
"""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Browser

from spark.report import render
from tests.acceptance import api
from tests.fix_browser import chromium, opened
from tests.fix_console import BRIEF, TOKEN, Operator, fill, until_listed
from tests.fix_reports import SHOP, a_day, a_report, of_a_shop
from tests.fix_service import Service, running_service
from tests.wire.frames import Accepted
from tests.wire.messages import Properties, data
from tests.wire.peer import Peer

_DOCS = Path(__file__).resolve().parent.parent / "docs"
#: Each with the width of the window, the scheme of the reader's system, and what is at the top of the window.
_PICTURES = (
    ("report", 1000, "light", "h1"),
    ("report-plots", 1000, "light", ".card:has(.chart)"),
    ("report-phone", 390, "dark", ".card:has(.chart)"),
)


#: Of the console: each with a page and what is in its path, the width and the scheme.
_PAGES = (
    ("console", "", "", 1000, "light"),
    ("console-transaction", "transactions", "/transaction?", 1000, "light"),
    ("console-phone", "", "", 390, "dark"),
)
_WORK_SECONDS = 60


def main() -> None:
    with TemporaryDirectory() as folder, chromium() as browser:
        _console(browser, Path(folder))
        path = Path(folder, "report.html")
        path.write_text(render(a_report(of_a_shop(7), a_day(), SHOP)), "utf-8")
        for name, width, scheme, top in _PICTURES:
            with opened(browser, path, width=width, color_scheme=scheme, timezone_id="Europe/Berlin") as shown:
                shown.page.locator(top).first.evaluate("each => each.scrollIntoView()")
                shown.page.screenshot(path=_DOCS / "explanation" / f"{name}.png")


def _console(browser: Browser, folder: Path) -> None:
    with running_service(api.settings(folder), BRIEF) as service, fill(service, "billing", "shipping"):
        _work(service)
        operator = Operator(service)
        operator.log_in()
        until_listed(operator, 2)
        for name, page, of, width, scheme in _PAGES:
            path = f"/console/{page}".removesuffix("/")
            if of:
                path = next(each for each in operator.ask(path).links if of in each)
            with browser.new_context(
                viewport={"width": width, "height": 900},
                color_scheme="dark" if scheme == "dark" else "light",
                timezone_id="Europe/Berlin",
            ) as context:
                shown = context.new_page()
                shown.goto(operator.place + path)
                shown.keyboard.type(TOKEN)
                shown.keyboard.press("Enter")
                shown.wait_for_selector("nav")
                shown.screenshot(path=_DOCS / "how-to" / f"{name}.png")


def _work(service: Service) -> None:
    """Post orders in transactions, and retire most of them, more of them as time goes by."""
    peer = Peer(service.port)
    peer.open(container_id="shop")
    session = peer.begin()
    control, sender, receiver = session.control(), session.sender("orders"), session.receiver("orders", credit=0)
    began = time.monotonic()
    number = 0
    while (passed := time.monotonic() - began) < _WORK_SECONDS:
        for _ in range(1 + int(passed / 10)):
            number += 1
            message = Properties(message_id=f"order-{number}").encoded() + data(b'{"order": 1}')
            txn = control.declare()
            sender.outcome(message, txn=txn)
            control.commit(txn)
            if number % 5:
                receiver.credit(1)
                receiver.take().disposition(Accepted())
        time.sleep(0.1)
    peer.close_socket()


if __name__ == "__main__":
    main()
