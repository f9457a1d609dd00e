"""The report at nothing, at one finding and at 100,000; and whatever names come from the wire."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from spark.charts import (
    FAILED,
    Chart,
    charts,
    dead_letters,
    decision_latency,
    deliveries_by_attempt,
    outcomes_over_time,
)
from spark.finding import Finding
from spark.kinds import KINDS
from spark.metrics import AddressBalance, Latency, Metrics, Outcomes, bucket_width
from spark.report import render, summary, write_report
from spark.results import SHOWN, SHOWN_OF_A_KIND, Findings
from tests.fix_reports import AT, BALANCE, EMPTY, SHOP, TOTALS, a_day, a_report
from tests.tables import all_cases

NASTY = "<script>alert(1)</script>$x^2$\u202e\x07\n'\" onload=x %d {{7*7}} 名前"


def metrics(addresses: int = 3) -> Metrics:
    return Metrics(
        bucket=timedelta(hours=1),
        outcomes=[
            Outcomes(at=AT + timedelta(hours=hour), address=f"{NASTY}{number}", committed=9, rolled_back=2, undecided=1)
            for hour in range(5)
            for number in range(addresses)
        ],
        unstored=[(AT, 4)],
        latencies=[Latency(at=AT + timedelta(hours=hour), p50=0.001 * hour, p95=2.0, p99=7200.0) for hour in range(5)],
        undecided_by_age=[("to 1 min", 2), ("over 1 day", 0)],
        attempts=[(1, 100_000, 0, 2), (16, 0, 3, 0)],
        dead_letters=[(NASTY, NASTY, NASTY, 5), (None, None, "expired", 1)],
        balances=[
            AddressBalance(address=None if not number else f"{NASTY}{number}", counts=BALANCE)
            for number in range(addresses)
        ],
        totals=TOTALS,
    )


def findings(count: int, *kinds: str) -> Findings:
    result = Findings()
    for kind in kinds:
        for number in range(count):
            result.add(
                Finding(
                    kind=kind,
                    severity="error",
                    txn_id="0195-x",
                    half_id=number,
                    address=NASTY,
                    consumer_group="",
                    seen_at=AT,
                    detail=f"number {number} {NASTY}",
                    suggested_repair="look",
                )
            )
    return result


class Page(HTMLParser):
    """What a browser would make of the page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.rows = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.rows += tag == "tr"
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        assert not any(name.startswith("on") for name, _ in attrs)


@pytest.mark.rule("R30")
def test_a_clean_report_of_nothing_says_so() -> None:
    html = render(a_report(Findings(), EMPTY, SHOP))
    assert "Clean: everything agrees." in html
    assert "with the book shop." in html
    assert html.count("— none.") == 5


@pytest.mark.rule("R30")
def test_a_clean_report_without_a_book_says_what_it_has_not_seen() -> None:
    html = render(a_report(Findings(), EMPTY))
    assert "Clean: the coordinator agrees with itself." in html
    assert "No book of an application was compared" in html
    assert "everything agrees" not in html


@pytest.mark.rule("R30", "H16")
def test_a_report_of_less_than_was_asked_for_says_so() -> None:
    whole = a_report(Findings(), EMPTY)
    assert whole.shortened == ""
    assert "What is kept begins" not in render(whole)
    part = replace(whole, kept_since=datetime(2026, 3, 4, tzinfo=UTC))
    assert "What is kept begins at 2026-03-04 00:00:00 UTC" in render(part)
    assert summary(part, "error")["kept_since"] == "2026-03-04T00:00:00+00:00"


@pytest.mark.rule("R30")
def test_the_report_says_of_which_store_it_is() -> None:
    this = a_report(Findings(), EMPTY)
    html = render(this)
    for said in ("0badcafe", "shop on db.example:5432", "schema 0001", "coordinator 1.2.3", "the beginning to now"):
        assert said in html
    assert summary(this, "error")["store"] == {
        "id": "0badcafe",
        "database": "shop",
        "server": "db.example:5432",
        "schema": "0001",
    }


def figure(chart: Chart) -> Any:
    """As Plotly understands it: what it does not know is an error."""
    return go.Figure(chart.figure)


@pytest.mark.parametrize("numbers", [metrics(), metrics(40), a_day(), a_day(1)], ids=["few", "many", "day", "moment"])
def test_plotly_knows_all_that_a_plot_says(numbers: Metrics) -> None:
    assert len([figure(chart).data for chart in charts(numbers)]) == 5


def test_a_single_point_has_an_axis_of_its_own_time() -> None:
    one = replace(
        EMPTY,
        bucket=timedelta(seconds=1),
        outcomes=[Outcomes(at=AT, address="orders", committed=2, rolled_back=0, undecided=0)],
        latencies=[Latency(at=AT, p50=0.01, p95=0.02, p99=0.02)],
    )
    for draw in (outcomes_over_time, decision_latency):
        left, right = (datetime.fromtimestamp(edge / 1000, UTC) for edge in figure(draw(one)).layout.xaxis.range)
        assert left < AT < right
        assert right - left <= timedelta(minutes=1)


@all_cases("count", [1, 2, 3, 7, 10, 11, 99, 101, 12345, 10**9 + 1])
def test_no_bar_is_higher_than_its_scale(count: int) -> None:
    one = replace(EMPTY, outcomes=[Outcomes(at=AT, address="orders", committed=count, rolled_back=0, undecided=0)])
    axis = figure(outcomes_over_time(one)).layout.yaxis
    low, high = axis.range
    assert low == 0
    assert count <= high // axis.dtick * axis.dtick
    assert 1 <= high // axis.dtick <= 5


def test_lines_of_the_scale_are_where_their_numbers_say() -> None:
    one = replace(EMPTY, attempts=[(1, 1, 0, 0)], latencies=[Latency(at=AT, p50=0.01, p95=0.012, p99=0.02)])
    few = figure(deliveries_by_attempt(one)).layout.yaxis
    assert (few.type, few.dtick) == (None, 1)
    many = figure(deliveries_by_attempt(replace(EMPTY, attempts=[(1, 1234, 1, 0)]))).layout.yaxis
    # a bar of 1 can be seen
    assert (many.type, many.range[0] < 0) == ("log", True)
    assert (many.tickvals, many.ticktext) == ((1, 10, 100, 1000, 10_000), ("1", "10", "100", "1,000", "10,000"))
    axis = figure(decision_latency(one)).layout.yaxis
    low, high = (10**edge for edge in axis.range)
    assert low < 0.01
    assert high > 0.02
    assert len([tick for tick in axis.tickvals if low <= tick <= high]) >= 2


def test_panels_stand_above_each_other() -> None:
    layout = figure(outcomes_over_time(metrics(40))).layout
    domains = [layout[f"yaxis{number}"].domain for number in ("", *range(2, 9))]
    assert len(domains) == 6 + 2  # the other addresses; what was never stored
    assert domains == sorted(domains, reverse=True)
    edges = [edge for low, high in domains[::-1] for edge in (low, high)]
    assert edges == sorted(edges)


def test_an_ordinary_rollback_is_not_red_and_a_dead_letter_is() -> None:
    one = replace(
        EMPTY,
        outcomes=[Outcomes(at=AT, address="orders", committed=0, rolled_back=2, undecided=0)],
        dead_letters=[("orders", None, "expired", 1)],
    )
    assert FAILED not in json.dumps(outcomes_over_time(one).figure)
    assert FAILED in json.dumps(dead_letters(one).figure)


@pytest.mark.rule("R34")
@pytest.mark.parametrize(
    ("kind", "said"),
    [("lost-delivery", 1), ("overdue", 1), ("undecided-but-known", 1), ("double-delivery", 0), ("stuck-delivery", 1)],
)
def test_the_report_says_what_can_be_repaired(kind: str, said: int) -> None:
    assert render(a_report(findings(1, kind), metrics())).count("<code>coordinator repair</code>") == said


def unpacked(html: str, name: str) -> str:
    packed = re.search(rf'<script type="text/plain" id="{name}">([^<]*)</script>', html)
    assert packed is not None
    return gzip.decompress(base64.b64decode(packed[1])).decode("utf-8")


@pytest.mark.rule("R30")
@pytest.mark.parametrize("count", [1, 60_000])
def test_the_report_is_one_file_at_any_number_of_findings(count: int) -> None:
    html = render(a_report(findings(count, "lost-delivery", "phantom-message"), metrics(40)))
    page = Page(html)
    # two that are data, and ours, which says that it is
    assert page.tags.count("script") == 3
    assert len(re.findall('<script nonce="[^"]{20,}">', html)) == 1
    assert "default-src 'none'" in html
    assert set(re.findall(r"onload=x %d (\S+)", html)) == {"{{7*7}}"}
    assert set(page.sources) == {"#findings", "findings.csv", "findings.parquet"}
    assert unpacked(html, "library").startswith("/**\n* plotly.js")
    kinds = json.loads(unpacked(html, "data"))["columns"]["kind"]
    shown = min(count, SHOWN - count)
    assert [kinds.count("lost-delivery"), kinds.count("phantom-message")] == [count, shown]
    assert (f"The table has {SHOWN:,} of {2 * count:,} findings" in html) is (count > shown)
    assert len(html) < 9_000_000


@pytest.mark.rule("R30")
def test_each_kind_has_some_findings_in_the_report() -> None:
    found = findings(SHOWN, "lost-delivery")
    for kind in ("overdue", "unbalanced"):
        for _ in range(SHOWN_OF_A_KIND + 5):
            found.add(Finding(kind=kind, severity="error", seen_at=AT, detail="", suggested_repair=""))
    assert {kind: len(shown) for kind, shown in found.shown.items()} == {
        "lost-delivery": SHOWN,
        "overdue": SHOWN_OF_A_KIND,
        "unbalanced": SHOWN_OF_A_KIND,
    }


@pytest.mark.rule("R30")
def test_what_is_wrong_comes_first_in_sentences_with_keys() -> None:
    found = Findings()
    for kind, severity, key in (
        ("overdue", "warning", None),
        ("lost-message", "error", "A-1"),
        ("lost-message", "error", "A-2"),
    ):
        found.add(Finding(kind=kind, severity=severity, key=key, seen_at=AT, detail="d", suggested_repair="r"))
    html = render(a_report(found, EMPTY, SHOP))
    wrong, rest = html[html.index("What is wrong") :].split("The period in numbers")
    assert re.findall("<h3>([^<]*)</h3>", wrong) == [
        "2 rows of a book are committed, and their messages were not sent.",
        "A transaction is undecided past its time.",
    ]
    assert "<b>A-1</b>, <b>A-2</b></p>" in wrong
    assert "<b>A-1</b>" not in rest


def test_the_report_has_words_for_each_kind_of_the_page() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "explanation" / "reconciliation.md").read_text("utf-8")
    named = {
        kind
        for row in re.findall(r"^\| R\d+ \| (`.*?) \|", page, re.MULTILINE)
        for kind in re.findall("`([a-z-]+)`", row)
    }
    assert len(named) > 15
    assert named - set(KINDS) == set()


@pytest.mark.rule("R30")
def test_the_summary_is_for_programs(tmp_path: Path) -> None:
    this = a_report(findings(3, "lost-delivery"), metrics())
    write_report(this, tmp_path, "error")
    read = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert read == json.loads(json.dumps(summary(this, "error")))
    assert read["findings"] == {
        "total": 3,
        "by_severity": {"note": 0, "warning": 0, "error": 3},
        "by_kind": {"lost-delivery": 3},
    }
    assert read["clean"] is False
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "summary.json"]


@pytest.mark.rule("R31")
def test_what_counts_is_the_severity_asked_for() -> None:
    found = findings(2, "lost-delivery")
    found.add(
        Finding(
            kind="overdue",
            severity="warning",
            txn_id=None,
            half_id=None,
            address=None,
            consumer_group=None,
            seen_at=AT,
            detail="",
            suggested_repair="",
        )
    )
    assert [found.at_or_above(severity) for severity in ("note", "warning", "error")] == [3, 3, 2]


@all_cases("seconds", [0, 1, 119, 3600, 86400, 30 * 86400, 3 * 365 * 86400])
def test_time_is_drawn_in_a_bounded_number_of_points(seconds: int) -> None:
    extent = timedelta(seconds=seconds)
    assert extent / bucket_width(extent) <= 120
