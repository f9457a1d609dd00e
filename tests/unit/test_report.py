"""The report at nothing, at one finding and at 100,000; and whatever names come from the wire."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.dates import num2date
from matplotlib.figure import Figure

from spark.charts import FAILED, charts, dead_letters, decision_latency, deliveries_by_attempt, outcomes_over_time
from spark.finding import Finding
from spark.metrics import AddressBalance, Latency, Metrics, Outcomes, bucket_width
from spark.period import Period
from spark.report import BookTotals, Run, render, summary, write_report
from spark.results import SHOWN, Findings
from spark.snapshot import StoreName

AT = datetime(2026, 3, 10, 12, tzinfo=UTC)
NASTY = "<script>alert(1)</script>$x^2$\u202e\x07\n'\" onload=x %d {{7*7}} 名前"
_BALANCE = dict.fromkeys(
    (
        "posted",
        "committed",
        "rolled_back",
        "undecided",
        "unknown",
        "expected",
        "accepted",
        "dead_lettered",
        "expired",
        "purged",
        "ready",
        "inflight",
        "scheduled",
        "failing",
    ),
    3,
)
_TOTALS = {
    "transactions": 1234567,
    "transactions_committed": 3,
    "transactions_rolled_back": 2,
    "transactions_undecided": 1,
    "rolled_back_unstored": 4,
    **_BALANCE,
}


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
            AddressBalance(address=None if not number else f"{NASTY}{number}", counts=_BALANCE)
            for number in range(addresses)
        ],
        totals=_TOTALS,
    )


EMPTY = Metrics(
    bucket=timedelta(seconds=1),
    outcomes=[],
    unstored=[],
    latencies=[],
    undecided_by_age=[("to 1 min", 0)],
    attempts=[],
    dead_letters=[],
    balances=[],
    totals=dict.fromkeys(_TOTALS, 0),
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


ORDERS = BookTotals(name="orders", rows=5, messages=6, grace=timedelta(minutes=5))


def run(found: Findings, numbers: Metrics, *books: BookTotals) -> Run:
    return Run(
        store=StoreName(database="shop", server="db.example:5432", id="0badcafe", schema="0001"),
        version="1.2.3",
        period=Period(),
        kept_since=None,
        seen_at=AT,
        took=timedelta(seconds=12.3),
        rows_read={"half": 1000},
        metrics=numbers,
        charts=charts(numbers),
        findings=found,
        books=list(books),
    )


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
    html = render(run(Findings(), EMPTY, ORDERS))
    assert "Clean: everything agrees." in html
    assert "with the book orders." in html
    assert html.count("— none.") == 5


@pytest.mark.rule("R30")
def test_a_clean_report_without_a_book_says_what_it_has_not_seen() -> None:
    html = render(run(Findings(), EMPTY))
    assert "Clean: the coordinator agrees with itself." in html
    assert "No book of an application was compared" in html
    assert "everything agrees" not in html


@pytest.mark.rule("R30", "H16")
def test_a_report_of_less_than_was_asked_for_says_so() -> None:
    whole = run(Findings(), EMPTY)
    assert whole.shortened == ""
    assert "What is kept begins" not in render(whole)
    part = replace(whole, kept_since=datetime(2026, 3, 4, tzinfo=UTC))
    assert "What is kept begins at 2026-03-04 00:00:00 UTC" in render(part)
    assert summary(part, "error")["kept_since"] == "2026-03-04T00:00:00+00:00"


@pytest.mark.rule("R30")
def test_the_report_says_of_which_store_it_is() -> None:
    this = run(Findings(), EMPTY)
    html = render(this)
    for said in ("0badcafe", "shop on db.example:5432", "schema 0001", "coordinator 1.2.3", "the beginning to now"):
        assert said in html
    assert summary(this, "error")["store"] == {
        "id": "0badcafe",
        "database": "shop",
        "server": "db.example:5432",
        "schema": "0001",
    }


@pytest.mark.rule("R30")
def test_each_value_of_a_finding_has_its_name_beside_it() -> None:
    """On a narrow screen the table has no columns: the name stands before the value."""
    html = render(run(findings(1, "lost-delivery"), EMPTY))
    header = re.findall(r"<th>([^<]*)</th>", html)
    assert header
    assert re.findall(r'<td[^>]* data-name="([^"]*)"', html) == header


def axes_of(draw: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[Axes]:
    """The axes that ``draw`` makes."""
    drawn: list[Axes] = []
    whole = Figure.savefig

    def keep(figure: Figure, *given: Any, **named: Any) -> None:
        whole(figure, *given, **named)
        drawn.extend(figure.axes)

    monkeypatch.setattr(Figure, "savefig", keep)
    draw()
    return drawn


def test_a_single_point_has_an_axis_of_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    one = replace(
        EMPTY,
        bucket=timedelta(seconds=1),
        outcomes=[Outcomes(at=AT, address="orders", committed=2, rolled_back=0, undecided=0)],
        latencies=[Latency(at=AT, p50=0.01, p95=0.02, p99=0.02)],
    )
    for draw in (outcomes_over_time, decision_latency):
        (axes,) = axes_of(partial(draw, one), monkeypatch)
        left, right = (num2date(edge) for edge in axes.get_xlim())  # type: ignore[no-untyped-call]
        assert left < AT < right
        assert right - left <= timedelta(minutes=1)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 10, 11, 101, 12345])
def test_no_bar_is_higher_than_its_scale(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    one = replace(EMPTY, outcomes=[Outcomes(at=AT, address="orders", committed=count, rolled_back=0, undecided=0)])
    (axes,) = axes_of(lambda: outcomes_over_time(one), monkeypatch)
    low, high = axes.get_ylim()
    assert low == 0
    assert count <= high
    assert max(tick for tick in axes.get_yticks() if tick <= high) >= count


def test_lines_of_the_scale_are_where_their_numbers_say(monkeypatch: pytest.MonkeyPatch) -> None:
    one = replace(EMPTY, attempts=[(1, 1, 0, 0)], latencies=[Latency(at=AT, p50=0.01, p95=0.012, p99=0.02)])
    (attempts,) = axes_of(partial(deliveries_by_attempt, one), monkeypatch)
    _, high = attempts.get_ylim()
    assert [tick for tick in attempts.get_yticks() if tick <= high] == [0, 1]
    (latency,) = axes_of(partial(decision_latency, one), monkeypatch)
    low, high = latency.get_ylim()
    assert low < 0.01
    assert high > 0.02
    assert len([tick for tick in latency.get_yticks() if low <= tick <= high]) >= 2


def test_an_ordinary_rollback_is_not_red_and_a_dead_letter_is() -> None:
    one = replace(
        EMPTY,
        outcomes=[Outcomes(at=AT, address="orders", committed=0, rolled_back=2, undecided=0)],
        dead_letters=[("orders", None, "expired", 1)],
    )
    assert FAILED not in outcomes_over_time(one).svg
    assert FAILED in dead_letters(one).svg


@pytest.mark.rule("R34")
@pytest.mark.parametrize(
    ("kind", "said"),
    [("lost-delivery", 1), ("overdue", 1), ("undecided-but-known", 1), ("double-delivery", 0), ("stuck-delivery", 1)],
)
def test_the_report_says_what_can_be_repaired(kind: str, said: int) -> None:
    assert render(run(findings(1, kind), metrics())).count("<code>coordinator repair</code>") == said


@pytest.mark.rule("R30")
@pytest.mark.parametrize("count", [1, 100_000])
def test_the_report_is_readable_at_any_number_of_findings(count: int) -> None:
    html = render(run(findings(count, "lost-delivery", "phantom-message"), metrics(40)))
    page = Page(html)
    assert "script" not in page.tags
    assert set(re.findall(r"onload=x %d (\S+)", html)) == {"{{7*7}}"}
    # everything is in the one file
    assert page.sources
    assert all(source.startswith(("data:image/svg+xml;base64,", "#")) for source in page.sources)
    assert html.count(f'<span class="many">{count:,}</span>') == 2
    assert (f"and {count - SHOWN:,} more" in html) is (count > SHOWN)
    assert page.rows < 2 * SHOWN + 120
    assert len(html) < 3_000_000


@pytest.mark.rule("R30")
def test_the_summary_is_for_programs(tmp_path: Path) -> None:
    this = run(findings(3, "lost-delivery"), metrics())
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


@pytest.mark.parametrize("seconds", [0, 1, 119, 3600, 86400, 30 * 86400, 3 * 365 * 86400])
def test_time_is_drawn_in_a_bounded_number_of_points(seconds: int) -> None:
    extent = timedelta(seconds=seconds)
    assert extent / bucket_width(extent) <= 120
