"""The report of a reconciliation in Chromium, at no, one and 100,000 findings: on a screen, a phone, in the dark and on
paper."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from spark.charts import COMMITTED
from spark.finding import Finding
from spark.metrics import Outcomes
from spark.report import render
from spark.results import Findings
from tests.fix_browser import opened
from tests.fix_hostile import HOSTILE, harmful
from tests.fix_night import by_night
from tests.fix_reports import AT, SHOP, a_day, a_report, of_a_shop

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.rule("R30")

MANY = 100_000
PLOTS = 5


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """By how many findings they have; that without any is of one moment."""
    folder = tmp_path_factory.mktemp("reports")
    found = {count: folder / f"{count}.html" for count in (0, 1, MANY)}
    for count, path in found.items():
        path.write_text(render(a_report(of_a_shop(count), a_day(96 if count else 1), SHOP)), "utf-8")
    return found


@pytest.fixture(scope="module")
def many(browser: Browser, reports: dict[int, Path]) -> Iterator[Page]:
    """The page of 100,000 findings, for a reader in Kolkata; each test leaves it as it likes."""
    with opened(browser, reports[MANY], timezone_id="Asia/Kolkata", accept_downloads=True) as shown:
        yield shown.page


def _ground(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


#: What scrolls sideways.
_WIDER = "css => [...document.querySelectorAll(css)].map(each => each.scrollWidth - each.clientWidth).filter(Boolean)"


def _rows(page: Page) -> Locator:
    return page.locator(".listed tbody tr")


@pytest.mark.parametrize(
    ("width", "scheme", "ground", "ink"),
    [(1280, "light", "rgb(245, 247, 249)", "rgb(34, 48, 60)"), (390, "dark", "rgb(21, 27, 33)", "rgb(223, 230, 236)")],
    ids=["screen", "phone in the dark"],
)
@pytest.mark.parametrize("count", [by_night(0), by_night(1), MANY])
def test_a_report_is_one_page_that_fits(
    browser: Browser, reports: dict[int, Path], count: int, width: int, scheme: str, ground: str, ink: str
) -> None:
    """It asks for nothing, complains of nothing, has all plots, in the colours of the reader, and is no wider than the
    window."""
    with opened(browser, reports[count], width=width, color_scheme=scheme) as shown:
        page = shown.page
        assert shown.complaints == []
        assert [url for url in shown.requests if not url.startswith(("data:", "blob:"))] == [reports[count].as_uri()]
        assert page.locator(".chart .main-svg .cartesianlayer").count() == PLOTS
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(_WIDER, "#table .scroll") == []
        assert _ground(page) == ground
        ticks = page.locator(".xtick text").first
        assert ticks.evaluate("each => getComputedStyle(each).fill") != ink  # softer than the text
        assert page.locator(".legendtext").first.evaluate("each => getComputedStyle(each).fill") == ink
        assert _rows(page).count() == min(count, 25)
        assert page.locator("h2").first.inner_text() == ("What is wrong" if count else "The period in numbers")


def test_a_moment_is_in_the_zone_of_the_reader_with_utc_beside(
    browser: Browser, reports: dict[int, Path], many: Page
) -> None:
    as_of = "dt:text('as of') + dd"
    assert many.locator(as_of).inner_text() == "2026-03-10 17:30:00 UTC+05:30 (2026-03-10 12:00:00 UTC)"
    assert "Times are UTC+05:30." in many.locator("section", has=many.locator(".chart")).first.inner_text()
    with opened(browser, reports[0], timezone_id="UTC") as shown:
        assert shown.page.locator(as_of).inner_text() == "2026-03-10 12:00:00 UTC"
        # an ordinary day is green
        assert "Clean: everything agrees." in shown.page.locator(".verdict").inner_text()
        border = shown.page.locator(".verdict").evaluate("each => getComputedStyle(each).borderLeftColor")
        assert border == "rgb({}, {}, {})".format(*bytes.fromhex(COMMITTED[1:]))


def test_a_plot_tells_its_numbers_and_is_zoomed(many: Page) -> None:
    plot = many.locator(".chart").first
    plot.scroll_into_view_if_needed()
    first = plot.locator(".point").first
    first.hover(force=True)
    told = many.locator(".hovertext").first.text_content() or ""
    assert re.search(r"\d+ committed", told)
    # the first quarter of an hour of the day
    assert "2026-03-09 17:30:00 UTC+05:30 (2026-03-09 12:00:00 UTC)" in told

    def extent() -> float:
        return float(
            plot.evaluate(
                "each => { const [from, to] = each._fullLayout.xaxis.range.map(Date.parse); return to - from; }"
            )
        )

    whole = extent()
    box = plot.locator(".draglayer .nsewdrag").first.bounding_box()
    assert box is not None
    height = box["y"] + box["height"] / 2
    many.mouse.move(box["x"] + box["width"] * 0.25, height)
    many.mouse.down()
    many.mouse.move(box["x"] + box["width"] * 0.5, height, steps=5)
    many.mouse.up()
    many.wait_for_function(
        "([plot, whole]) => { const [from, to] = plot._fullLayout.xaxis.range.map(Date.parse);"
        " return to - from < whole / 2; }",
        arg=[plot.element_handle(), whole],
    )
    assert extent() == pytest.approx(whole / 4, rel=0.1)


def test_a_plot_is_sent_nowhere(many: Page) -> None:
    """Plotly has a button for that."""
    buttons = many.locator(".chart").first.locator(".modebar-btn")
    titles = [str(each.get_attribute("data-title")) for each in buttons.all()]
    assert len(titles) == 6
    assert not [title for title in titles if re.search("cloud|chart studio|share|link|edit", title, re.IGNORECASE)]


def test_findings_are_filtered_sorted_and_downloaded(many: Page, tmp_path: Path) -> None:
    pages = many.locator("#pages")
    many.locator("#filter-kind").select_option("")
    many.locator("#filter-text").fill("")
    expect(pages).to_have_text(re.compile(" of 100,000$"))
    assert pages.inner_text() == "1 to 25 of 100,000"
    many.get_by_role("button", name="Last").click()
    assert pages.inner_text() == "99,976 to 100,000 of 100,000"
    many.locator("#filter-kind").select_option("lost-message")
    assert pages.inner_text() == "1 to 25 of 33,334 (of 100,000)"
    many.locator("#filter-text").fill("key a-9999")
    expect(pages).to_have_text(re.compile("^1 to 3 of 3 "))
    keys = many.locator(".listed td.key")
    assert keys.all_inner_texts() == ["A-99991", "A-99994", "A-99997"]
    header = many.get_by_role("columnheader", name="key")
    header.get_by_role("button").click()
    header.get_by_role("button").click()
    assert header.get_attribute("aria-sort") == "descending"
    assert keys.all_inner_texts() == ["A-99997", "A-99994", "A-99991"]
    with many.expect_download() as download:
        many.get_by_role("button", name="Download as CSV").click()
    download.value.save_as(tmp_path / "shown.csv")
    with (tmp_path / "shown.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["key"] for row in rows] == ["A-99997", "A-99994", "A-99991"]
    assert rows[0] == {
        "kind": "lost-message",
        "severity": "error",
        "txn_id": "0195a3c0-869d-7000-8000-00000001869d",
        "half_id": "",
        "address": "orders",
        "consumer_group": "",
        "key": "A-99997",
        "detail": "book shop, key A-99997: the book says committed, the coordinator knows nothing of it",
        "suggested_repair": "post the message again from the book's row",
    }
    many.locator("#filter-severity").select_option("warning")
    assert pages.inner_text() == "none (of 100,000)"


def test_what_is_wrong_leads_to_its_findings(many: Page) -> None:
    wrong = many.locator(".wrong").nth(1)
    assert wrong.locator("h3").inner_text() == "33,334 rows of a book are committed, and their messages were not sent."
    assert wrong.locator(".keys").inner_text().startswith("A-1, A-4, A-7, ")
    many.locator("#filter-text").fill("nothing is like this")
    wrong.get_by_role("link").click()
    assert set(many.locator(".listed td.kind").all_inner_texts()) == {"In the book, not sent"}
    assert many.locator("#pages").inner_text() == "1 to 25 of 33,334 (of 100,000)"


def _inked(page: Page, colour: str) -> None:
    """Wait until the plots have ink of this colour."""
    page.wait_for_function(
        "colour => getComputedStyle(document.querySelector('.legendtext')).fill === colour", arg=colour
    )


def test_paper_is_white_and_has_a_few_pages(many: Page) -> None:
    """Also of a report that is dark, as the reader's system has become meanwhile."""
    dark = "rgb(223, 230, 236)"
    many.emulate_media(color_scheme="dark")
    _inked(many, dark)
    assert _ground(many) == "rgb(21, 27, 33)"
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", many.pdf())) <= 12
    # as it was, on the screen
    _inked(many, dark)
    many.emulate_media(media="print", color_scheme="dark")
    many.evaluate("dispatchEvent(new Event('beforeprint'))")
    _inked(many, "rgb(34, 48, 60)")
    assert _ground(many) == "rgb(255, 255, 255)"
    assert not many.locator(".controls").is_visible()
    many.evaluate("dispatchEvent(new Event('afterprint'))")
    many.emulate_media(media="screen", color_scheme="light")


def test_without_scripts_it_says_what_is_wrong(browser: Browser, reports: dict[int, Path]) -> None:
    with opened(browser, reports[1], java_script_enabled=False) as shown:
        said = shown.page.locator("main").inner_text()
        assert "A row of a book is committed, and its message was not sent." in said
        assert "book shop, key A-1: the book says committed" in said
        assert "Without scripts there are no table and no plots here" in said
        assert "2026-03-10 12:00:00 UTC" in said


@pytest.mark.rule("S7")
def test_nothing_from_the_wire_runs_in_it(browser: Browser, tmp_path: Path) -> None:
    attack = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{7*7}}<a href='javascript:alert(3)'>x</a>"
    found = Findings()
    for kind in ("lost-message", "made-elsewhere"):
        found.add(
            Finding(
                kind=kind,
                severity="error",
                address=attack,
                consumer_group=attack,
                key=attack,
                seen_at=AT,
                detail=attack,
                suggested_repair=attack,
            )
        )
    numbers = a_day(1)
    numbers.dead_letters.append((attack, attack, attack, 1))
    numbers.outcomes.append(Outcomes(at=AT, address=attack, committed=1, rolled_back=0, undecided=0))
    path = tmp_path / "report.html"
    path.write_text(render(a_report(found, numbers)), "utf-8")
    with opened(browser, path) as shown:
        assert shown.complaints == []
        assert shown.page.locator(".listed td.detail").all_inner_texts() == [attack, attack]
        assert shown.page.locator("main img, main script").count() == 0
        led_to = shown.page.locator("main a[href]").evaluate_all("all => all.map(each => each.getAttribute('href'))")
        assert set(led_to) == {"#findings", "findings.csv", "findings.parquet"}


@pytest.mark.rule("S7")
def test_what_is_downloaded_has_no_formula(browser: Browser, tmp_path: Path) -> None:
    found = Findings()
    for value in HOSTILE.values():
        one = Finding(kind="lost-message", severity="error", seen_at=AT, detail=value, suggested_repair=value)
        found.add(replace(one, address=value, consumer_group=value, key=value))
    path = tmp_path / "report.html"
    path.write_text(render(a_report(found, a_day(1))), "utf-8")
    with opened(browser, path, accept_downloads=True) as shown:
        assert shown.complaints == []
        with shown.page.expect_download() as download:
            shown.page.locator("#download").click()
        download.value.save_as(tmp_path / "shown.csv")
    text = (tmp_path / "shown.csv").read_text("utf-8")
    assert len(text.splitlines()) == 1 + len(HOSTILE)
    rows = list(csv.DictReader(text.splitlines()))
    assert len(rows) == len(HOSTILE)
    for cell in (cell for row in rows for cell in row.values()):
        assert harmful(cell) == set()
        assert cell.strip()[:1] not in ("=", "+", "-", "@", "\uff1d")
