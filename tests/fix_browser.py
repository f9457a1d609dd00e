"""A real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Dialog, Page, sync_playwright

from tests.fix_clients import need
from tests.fix_service import PATIENCE

_PATIENCE_MS = 5 * PATIENCE * 1000


@contextmanager
def chromium() -> Iterator[Browser]:
    """Started. Playwright has a loop in this thread meanwhile: nothing else may run one."""
    with sync_playwright() as playwright:
        # as root it has no sandbox
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), chromium_sandbox=os.getuid() != 0, timeout=_PATIENCE_MS
        )
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    need("chromium", "--version", (113, 0), "Debian: apt-get install chromium")
    with chromium() as started:
        yield started


class Opened:
    """A page, and what its browser complained of, asked for and was asked."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.set_default_timeout(_PATIENCE_MS)
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", self._asked)
        page.on("request", lambda request: self.requests.append(request.url))

    def _asked(self, dialog: Dialog) -> None:
        self.complaints.append(dialog.message)
        dialog.dismiss()


@contextmanager
def opened(browser: Browser, path: Path, *, width: int = 1200, **options: Any) -> Iterator[Opened]:
    """``path`` in a window of its own, once its scripts are done; ``options`` are of Playwright's contexts."""
    with browser.new_context(viewport={"width": width, "height": 900}, **options) as context:
        found = Opened(context.new_page())
        found.page.goto(path.as_uri())
        if options.get("java_script_enabled", True):
            found.page.wait_for_selector("html[data-ready]", state="attached")
        yield found
