"""rhea in a page, in Chromium, over a WebSocket of the service (rule S14)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Error

from tests.fix_browser import Opened
from tests.fix_service import Service, running
from tests.fix_websocket import PlainWebSocket
from tests.wire.websocket import PATH

pytestmark = [pytest.mark.night, pytest.mark.rule("S1", "S14")]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def pages(rhea_project: Path) -> Iterator[int]:
    """The port of a site with the page, which is not the service's."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(rhea_project))) as site:
        thread = threading.Thread(target=site.serve_forever)
        thread.start()
        yield site.server_port
        site.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def service(pages: int) -> Iterator[Service]:
    settings = {"websocket.origins": f"http://127.0.0.1:{pages}"}
    with running(lambda folder: PlainWebSocket(folder, settings)) as service:
        yield service


def _run(browser: Browser, site: str, case: str, service: Service) -> dict[str, Any]:
    with browser.new_context() as context:
        shown = Opened(context.new_page())
        shown.page.goto(f"{site}/page.html")
        url = f"ws://127.0.0.1:{service.port}{PATH}"
        seen = shown.page.evaluate("([name, url]) => run(name, url)", [case, url])
        assert isinstance(seen, dict)
        return seen


@pytest.mark.rule("P2", "T7", "T31")
def test_a_page_posts_and_takes_in_a_transaction(browser: Browser, pages: int, service: Service) -> None:
    seen = _run(browser, f"http://127.0.0.1:{pages}", "sessions", service)
    assert seen == {
        "rolled_back": ["accepted", None],
        "committed": ["accepted", None],
        "a": ["first a"],
        "b": ["first b"],
        "from": [],
    }


def test_a_page_of_another_origin_does_not_come_in(browser: Browser, pages: int, service: Service) -> None:
    """It is the same page, by another name."""
    since = len(service.log_lines())
    with pytest.raises(Error, match="waiting for connection_open"):
        _run(browser, f"http://localhost:{pages}", "sessions", service)
    line = service.wait_for(lambda line: line.get("event") == "connection failed", since=since)
    assert (
        line["why"] == f"WebSocket: pages of http://localhost:{pages} may not connect: it is not in websocket.origins"
    )
