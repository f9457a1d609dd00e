"""``python -m tests.pictures`` takes the pictures of the report that docs/ has, of a shop's day, in Chromium."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from spark.report import render
from tests.fix_browser import chromium, opened
from tests.fix_reports import SHOP, a_day, a_report, of_a_shop

_FOLDER = Path(__file__).resolve().parent.parent / "docs" / "explanation"
#: Each with the width of the window, the scheme of the reader's system, and what is at the top of the window.
_PICTURES = (
    ("report", 1000, "light", "h1"),
    ("report-plots", 1000, "light", ".card:has(.chart)"),
    ("report-phone", 390, "dark", ".card:has(.chart)"),
)


def main() -> None:
    with TemporaryDirectory() as folder, chromium() as browser:
        path = Path(folder, "report.html")
        path.write_text(render(a_report(of_a_shop(7), a_day(), SHOP)), "utf-8")
        for name, width, scheme, top in _PICTURES:
            with opened(browser, path, width=width, color_scheme=scheme, timezone_id="Europe/Berlin") as shown:
                shown.page.locator(top).first.evaluate("each => each.scrollIntoView()")
                shown.page.screenshot(path=_FOLDER / f"{name}.png")


if __name__ == "__main__":
    main()
