"""The report: one HTML file that needs nothing else, for a person; and ``summary.json``, for a program (R30).

Everything that comes from the wire or a book is escaped; pictures are embedded as images, so nothing in them runs. At
most :data:`spark.results.SHOWN` findings of a kind are listed, with the file that has the others: the page stays
readable at 100,000.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import jinja2

from spark.charts import Chart, readable
from spark.finding import Finding
from spark.metrics import Metrics
from spark.period import BEGINNING, END, Period
from spark.results import Findings
from spark.schemas import SEVERITIES
from spark.snapshot import StoreName


@dataclass(frozen=True, kw_only=True)
class KindText:
    """What a kind of finding means, in a sentence; ``repaired``: by ``coordinator repair``, where it can (R34)."""

    title: str
    meaning: str
    repaired: bool = False


#: In the order of the report; R numbers are in docs/explanation/reconciliation.md.
KINDS: Final = {
    "double-decision": KindText(
        title="Decided twice", meaning="A transaction has two decisions; the first must be the only one."
    ),
    "phantom-delivery": KindText(
        title="Delivered without a commit",
        meaning="A consumer has, or will get, a message whose transaction is not committed.",
    ),
    "lost-delivery": KindText(
        title="Committed, never delivered",
        meaning="A committed message that one of its consumer groups will never get.",
        repaired=True,
    ),
    "orphan-entry": KindText(
        title="Kept for a group that is gone",
        meaning="A message waits in a consumer group that was removed; no consumer can get it there.",
    ),
    "double-delivery": KindText(
        title="Delivered twice", meaning="A message was finished with twice in one consumer group."
    ),
    "orphan-op": KindText(
        title="A decision without its message", meaning="An op names a message that the store does not have."
    ),
    "stuck-delivery": KindText(
        title="Waits, and no consumer gets it",
        meaning="An instance that has ended still has a message, or consumers take later ones and pass it over.",
        repaired=True,
    ),
    "dead-letter-mismatch": KindText(
        title="Dead letters and their ops differ",
        meaning="A delivery was given up and its dead letter is not there, or a dead letter is there without that.",
        repaired=True,
    ),
    "order": KindText(
        title="Delivered before it was committed",
        meaning="A consumer's answer is older than the commit of the message: one of them, or a clock, is wrong.",
    ),
    "unbalanced": KindText(
        title="The sums do not match",
        meaning="Posted and decided, or committed and delivered, do not add up for an address and hour.",
    ),
    "overdue": KindText(
        title="Undecided past its time",
        meaning="A transaction that should have been checked or decided by now.",
        repaired=True,
    ),
    "lost-message": KindText(
        title="In the book, not sent",
        meaning="The application committed its own record, but the message was rolled back or never came.",
    ),
    "phantom-message": KindText(
        title="Sent, not in the book",
        meaning="The message was committed, but the application's record is rolled back or not there.",
    ),
    "undecided-but-known": KindText(
        title="Undecided here, decided in the book",
        meaning="The application knows the outcome; the coordinator still waits for it.",
        repaired=True,
    ),
    "different-content": KindText(
        title="Book and message differ", meaning="Both are committed, but a value that must be equal is not."
    ),
    "consumed-not-processed": KindText(
        title="Consumed, and not in the book",
        meaning="A consumer group has accepted a message, and its book does not say that the work was done.",
    ),
    "processed-not-consumed": KindText(
        title="In the book, and not consumed",
        meaning="A consumer's book says that the work of a message was done; its group has not accepted it.",
    ),
    "processed-twice": KindText(
        title="In the book too often",
        meaning="A consumer's book has more rows of a message than times that its group has accepted it.",
    ),
    "repeated-key": KindText(
        title="A key that occurs twice", meaning="Rows or messages that share a key and so cannot be told apart."
    ),
    "null-key": KindText(title="No key", meaning="Rows or messages without the key by which they are compared."),
    "unparsable-key": KindText(title="A key that cannot be read", meaning="Rows or messages whose key does not parse."),
    "unclear-row": KindText(
        title="A row that says nothing clear", meaning="A row of a book without a time, or with two outcomes."
    ),
    "unknown-consumer": KindText(
        title="A consumer that is no group",
        meaning="The store's inbox has rows of a consumer that no group is named as; they are compared with nothing.",
    ),
}


@dataclass(frozen=True, kw_only=True)
class BookTotals:
    """What was compared of one book."""

    name: str
    rows: int
    messages: int
    grace: timedelta


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that a report says. ``version`` is of the program that made it. ``kept_since``: where the period that
    was asked for begins earlier, and the messages before are no longer kept; else None.
    """

    store: StoreName
    version: str
    period: Period
    kept_since: datetime | None
    seen_at: datetime
    took: timedelta
    rows_read: dict[str, int]
    metrics: Metrics
    charts: list[Chart]
    findings: Findings
    books: list[BookTotals]

    @property
    def shortened(self) -> str:
        """What a reader must know of the period; nothing where all of it was judged."""
        if self.kept_since is None:
            return ""
        return f"What is kept begins at {_moment(self.kept_since)} UTC (retention): what came before was not judged."


def _moment(value: datetime) -> str:
    return value.strftime("%Y-%m-%d %H:%M:%S")


def _period(period: Period) -> str:
    since = "the beginning" if period.since <= BEGINNING else f"{_moment(period.since)}"
    until = "now" if period.until >= END else f"{_moment(period.until)}"
    return f"{since} to {until}"


def _picture(svg: str) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode("utf-8")).decode("ascii")


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["count"] = lambda value: f"{value:,}"
    environment.filters["moment"] = _moment
    environment.filters["name"] = lambda value: readable(value, "", 120)
    environment.filters["picture"] = _picture
    return environment


def _place(kind: str) -> int:
    known = list(KINDS)
    return known.index(kind) if kind in KINDS else len(known)


def render(run: Run) -> str:
    """The report as HTML."""
    found = run.findings
    # the worst first, then in the order of the table above
    kinds = sorted(found.by_kind, key=lambda kind: (-SEVERITIES.index(found.severities[kind]), _place(kind)))
    worst = next((name for name in reversed(SEVERITIES) if found.by_severity[name]), None)
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            run=run,
            period=_period(run.period),
            totals=run.metrics.totals,
            charts=run.charts,
            kinds=[
                (kind, KINDS.get(kind, KindText(title=kind, meaning="")), _columns(found.shown[kind])) for kind in kinds
            ],
            findings=found,
            worst=worst,
        )
    )


def _columns(shown: list[Finding]) -> tuple[str, ...]:
    """The columns that say what a finding is about, and of which one of these has a value."""
    return tuple(
        name
        for name in ("address", "consumer_group", "txn_id", "half_id")
        if any(getattr(item, name) is not None for item in shown)
    )


def summary(run: Run, fail_on: str) -> dict[str, object]:
    """What ``summary.json`` says."""
    return {
        "format": 1,
        "version": run.version,
        "store": {
            "id": run.store.id,
            "database": run.store.database,
            "server": run.store.server,
            "schema": run.store.schema,
        },
        "period": {"since": run.period.since.isoformat(), "until": run.period.until.isoformat()},
        "kept_since": None if run.kept_since is None else run.kept_since.isoformat(),
        "seen_at": run.seen_at.isoformat(),
        "took_seconds": round(run.took.total_seconds(), 1),
        "rows_read": run.rows_read,
        "totals": run.metrics.totals,
        "books": [
            {
                "name": book.name,
                "rows": book.rows,
                "messages": book.messages,
                "grace_seconds": book.grace.total_seconds(),
            }
            for book in run.books
        ],
        "findings": {
            "total": run.findings.total,
            "by_severity": {name: run.findings.by_severity[name] for name in SEVERITIES},
            "by_kind": dict(sorted(run.findings.by_kind.items())),
        },
        "fail_on": fail_on,
        "clean": run.findings.at_or_above(fail_on) == 0,
    }


def write_report(run: Run, out: Path, fail_on: str) -> None:
    """Write ``report.html`` and, last of all, ``summary.json`` into ``out``; each whole or not at all."""
    for name, content in (
        ("report.html", render(run)),
        ("summary.json", json.dumps(summary(run, fail_on), indent=2) + "\n"),
    ):
        partial = out / f".{name}.partial"
        partial.write_text(content, encoding="utf-8")
        partial.replace(out / name)
