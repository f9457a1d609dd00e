"""Write the report: one self-contained HTML file, for a person; and ``summary.json``, for a program (R30).

The page itself describes the findings of each kind in sentences. The findings (at most :data:`spark.results.SHOWN`, and
some of each kind) and the library that draws the plots are in it compressed, 2 MB without any finding; the browser
unpacks them. Text from the wire or a book is escaped here, and the browser inserts it as text, never as HTML; the page
loads nothing, and runs no script but its own.
"""

from __future__ import annotations

import base64
import gzip
import json
import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import jinja2

from spark.charts import Chart
from spark.finding import Finding, readable, visible
from spark.kinds import KINDS, KindText, place, text_of
from spark.metrics import Metrics
from spark.period import BEGINNING, END, Period
from spark.read_back import FORMAT
from spark.results import SHOWN, SHOWN_OF_A_KIND, Findings
from spark.schemas import SEVERITIES
from spark.snapshot import StoreName


@dataclass(frozen=True, kw_only=True)
class BookTotals:
    """The numbers of rows and messages that were compared for one book. ``store``: the name of the store; None: there
    is one store, or the rows are of none of several.
    """

    name: str
    store: str | None = None
    rows: int
    messages: int
    grace: timedelta


@dataclass(frozen=True, kw_only=True)
class Surveyed:
    """What a run has read of one store. ``kept_since``: since when messages are kept, if the requested period begins
    earlier; else None.
    """

    store: StoreName
    kept_since: datetime | None
    seen_at: datetime
    rows_read: dict[str, int]
    metrics: Metrics
    charts: list[Chart]

    @property
    def shortened(self) -> str:
        """Return a sentence on the part of the period that was not judged, or an empty string."""
        if self.kept_since is None:
            return ""
        return f"What is kept begins at {_moment(self.kept_since)} UTC (retention): what came before was not judged."


@dataclass(frozen=True, kw_only=True)
class Run(Surveyed):
    """The data of a report: of a store, and of ``others``. ``version`` is of the program that wrote it."""

    version: str
    period: Period
    took: timedelta
    findings: Findings
    books: list[BookTotals]
    others: list[Surveyed] = field(default_factory=list)

    @property
    def stores(self) -> list[Surveyed]:
        return [self, *self.others]


#: The most findings, and keys, of a kind that the page itself shows.
_EXAMPLES: Final = 3
_KEYS: Final = 12
_COLUMNS: Final = (
    *("severity", "kind", "key", "address", "consumer_group", "detail", "suggested_repair", "txn_id", "half_id"),
)
#: Besides, of several stores.
_STORE: Final = "store"


def _moment(value: datetime) -> str:
    return value.strftime("%Y-%m-%d %H:%M:%S")


def _packed(text: str) -> str:
    """Compress text for an element of the page: gzip, then base64."""
    return base64.b64encode(gzip.compress(text.encode("utf-8"), 6, mtime=0)).decode("ascii")


def _library() -> str:
    """Return the whole library Plotly from its Python package: 4.8 MB, and 2.0 MB in the page."""
    package = find_spec("plotly")
    assert package is not None
    assert package.submodule_search_locations is not None
    return Path(package.submodule_search_locations[0], "package_data", "plotly.min.js").read_text("utf-8")


@dataclass(frozen=True, kw_only=True)
class _Section:
    """The page's section on a kind: ``examples`` are its first findings, ``keys`` the book's keys of the first ones."""

    kind: str
    text: KindText
    severity: str
    count: int
    examples: list[Finding]
    keys: list[str]

    @property
    def sentence(self) -> str:
        return self.text.sentence(self.count)


def _sections(found: Findings) -> list[_Section]:
    """Return the sections of the page, the worst first, then in the order of :data:`spark.kinds.KINDS`."""
    kinds = sorted(found.by_kind, key=lambda kind: (-SEVERITIES.index(found.severities[kind]), place(kind)))
    return [
        _Section(
            kind=kind,
            text=text_of(kind),
            severity=found.severities[kind],
            count=found.by_kind[kind],
            examples=found.shown[kind][:_EXAMPLES],
            keys=_first_keys(found.shown[kind]),
        )
        for kind in kinds
    ]


def _first_keys(shown: list[Finding]) -> list[str]:
    keys: dict[str, None] = {}
    for each in shown:
        if each.key is not None:
            keys[readable(each.key, "")] = None
            if len(keys) == _KEYS:
                break
    return list(keys)


def _data(run: Run) -> str:
    """Return the data of the page's script as JSON: the plots, and the findings by columns."""
    shown = [each for section in _sections(run.findings) for each in run.findings.shown[section.kind]]
    names = (*_COLUMNS, _STORE) if run.others else _COLUMNS
    columns = {name: [_text(getattr(each, name)) for each in shown] for name in names}
    known = [*KINDS, *sorted(kind for kind in run.findings.by_kind if kind not in KINDS)]
    return json.dumps(
        {
            "seenAt": round(run.seen_at.timestamp() * 1000),
            "charts": [
                {"figure": chart.figure, "height": chart.height, "overTime": chart.over_time}
                for each in run.stores
                for chart in each.charts
            ],
            "columns": columns,
            "order": {"severity": SEVERITIES[::-1], "kind": known},
            "titles": {kind: text_of(kind).title for kind in run.findings.by_kind},
        },
        separators=(",", ":"),
        ensure_ascii=False,
    )


def _text(value: object) -> str | None:
    """Convert a value to text; also numbers, as ids of messages are larger than a script's integers."""
    return None if value is None else visible(str(value))


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
    environment.filters["visible"] = visible
    return environment


def render(run: Run, *, alone: bool = False) -> str:
    """Return the report as HTML. ``alone``: its files are not beside it, and it has no links to them."""
    found = run.findings
    folder = Path(__file__).parent
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            run=run,
            alone=alone,
            since=None if run.period.since <= BEGINNING else run.period.since,
            until=None if run.period.until >= END else run.period.until,
            sections=_sections(found),
            findings=found,
            listed=sum(map(len, found.shown.values())),
            limits=(SHOWN, SHOWN_OF_A_KIND),
            worst=next((name for name in reversed(SEVERITIES) if found.by_severity[name]), None),
            # only a script with the nonce runs; text from the wire cannot know it
            nonce=secrets.token_urlsafe(16),
            data=_packed(_data(run)),
            library=_packed(_library()),
            style=(folder / "report.css").read_text("utf-8"),
            script=(folder / "report.js").read_text("utf-8"),
        )
    )


def summary(run: Run, fail_on: str) -> dict[str, object]:
    """Return the content of ``summary.json``: of one store what it has, of several a list of these."""
    of_each = [_of_store(each) for each in run.stores]
    named = ({"name": str(each.store), **said} for each, said in zip(run.stores, of_each, strict=True))
    stores: dict[str, object] = {"stores": list(named)} if run.others else of_each[0]
    return {
        "format": FORMAT,
        "version": run.version,
        "period": {"since": run.period.since.isoformat(), "until": run.period.until.isoformat()},
        "took_seconds": round(run.took.total_seconds(), 1),
        **stores,
        "books": [
            {
                "name": book.name,
                **({"store": book.store} if run.others else {}),
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


def _of_store(read: Surveyed) -> dict[str, object]:
    return {
        "store": {
            "id": read.store.id,
            "database": read.store.database,
            "server": read.store.server,
            "schema": read.store.schema,
        },
        "kept_since": None if read.kept_since is None else read.kept_since.isoformat(),
        "seen_at": read.seen_at.isoformat(),
        "rows_read": read.rows_read,
        "totals": read.metrics.totals,
    }


def write_report(run: Run, out: Path, fail_on: str) -> None:
    """Write ``report.html`` and, last of all, ``summary.json`` into ``out``; each whole or not at all."""
    for name, content in (
        ("report.html", render(run)),
        ("summary.json", json.dumps(summary(run, fail_on), indent=2) + "\n"),
    ):
        partial = out / f".{name}.partial"
        try:
            partial.write_text(content, encoding="utf-8")
            partial.replace(out / name)
        finally:
            partial.unlink(missing_ok=True)
