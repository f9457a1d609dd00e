"""``python -m tests.benchmarks.pages`` writes docs/benchmarks, with plots, from what ``make bench-peers`` measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import plotly.graph_objects as go
from playwright.sync_api import Browser

from tests.benchmarks.generator import FOLDER, REPOSITORY
from tests.benchmarks.report import Row
from tests.fix_browser import chromium

PAGES: Final = REPOSITORY / "docs" / "benchmarks"
#: Each report, and what its load is.
_LOADS: Final = {
    "report": "Many transactions under way: the generator in C",
    "report-jms": "Qpid JMS: one transaction at a time on each connection",
}
_COLOURS: Final = {"service": "#2a7f62", "artemis": "#c8553d", "broker-j": "#4a6fa5", "rocketmq": "#b8902a"}
_INTRODUCTION: Final = """# The service beside other brokers

What `make bench-peers` measured: each cell on each server in turn, in one run, on one machine. How to read it, and
what a cell is: [How to measure it](../how-to/measure.md). Compare within a cell; all servers share the cores with the
load, so a rate is the reciprocal of all processor times together, and microseconds a message say more.

Every message is durable, and what is answered is on the disk. The service: PostgreSQL as it comes, with
`fsync` and `synchronous_commit` on. Artemis 2.50.0: its journal (NIO) is synced before a commit is answered, and its
buffer waits as long as a flush of this disk takes.
Broker-J 9.2.1: its store in Berkeley DB as it comes, which flushes its log (`fdatasync`) before a commit is answered,
one flush for all commits that wait. RocketMQ 5.5.0: `SYNC_FLUSH`; its own producers send a half message, which is
answered when it is on the disk, and then a commit, which has no answer.
"""


def main() -> None:
    PAGES.mkdir(exist_ok=True)
    parts = [_INTRODUCTION]
    with chromium() as browser:
        for name, title in _LOADS.items():
            report = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
            rows = [Row(**{**row, "failures": tuple(row["failures"])}) for row in report["rows"]]
            measured = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
            parts.append(f"## {title}\n\n![Rate and processor time]({name}.png)\n\n{measured}")
            _draw(browser, rows, PAGES / f"{name}.png")
    (PAGES / "README.md").write_text("\n".join(parts), encoding="utf-8")


def _draw(browser: Browser, rows: Sequence[Row], path: Path) -> None:
    page = browser.new_page(viewport={"width": 1000, "height": 420})
    page.set_content(_figure(rows).to_html(include_plotlyjs=True, config={"staticPlot": True}))
    page.wait_for_selector(".main-svg")
    page.screenshot(path=path)
    page.close()


def _figure(rows: Sequence[Row]) -> Any:
    """Two panels: messages a second, and microseconds of the server's processor time a message."""
    servers = list(dict.fromkeys(row.server for row in rows))
    figure = go.Figure()
    for server in servers:
        own = [row for row in rows if row.server == server and row.messages]
        cells = [row.cell for row in own]
        common = {"name": server, "marker_color": _COLOURS.get(server, "#8a97a3"), "legendgroup": server}
        figure.add_bar(x=cells, y=[row.messages_per_second for row in own], **common)
        figure.add_bar(x=cells, y=[row.server_us for row in own], xaxis="x2", yaxis="y2", showlegend=False, **common)
    figure.update_layout(
        barmode="group",
        template="plotly_white",
        margin={"l": 60, "r": 10, "t": 30, "b": 60},
        legend={"orientation": "h", "y": 1.12},
        xaxis={"domain": [0, 0.47]},
        xaxis2={"domain": [0.54, 1], "anchor": "y2"},
        yaxis={"title": "messages a second"},
        yaxis2={"title": "us of processor time a message", "anchor": "x2"},
    )
    return figure


if __name__ == "__main__":
    main()
