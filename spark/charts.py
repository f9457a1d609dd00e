"""Make the report's plots, each as one figure of Plotly (JSON), which Plotly's library in the report draws.

A figure has moments as milliseconds since 1970 (UTC), and no colours but those of what is plotted: the report puts them
into the reader's zone and onto its own ground. With each point over time ``customdata`` has the
moment that it is of. A test holds each against Plotly's own description of figures.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from spark.finding import readable
from spark.metrics import Metrics, Outcomes

#: Addresses with a panel of their own; the others share one.
MOST_PANELS: Final = 6

COMMITTED: Final = "#2a7f62"
#: Colours of ordinary outcomes; red is for failures.
ROLLED_BACK: Final = "#8a97a3"
FAILED: Final = "#c8553d"
UNDECIDED: Final = "#e3b23c"
NEUTRAL: Final = "#4a6fa5"

Figure = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One plot: ``figure`` has ``data`` and ``layout``, or is None where there is nothing to draw; ``height`` is in
    pixels; ``note`` says how to read it; ``over_time``: its axis is of moments."""

    title: str
    note: str
    figure: Figure | None
    height: int
    over_time: bool = False


def _label(name: str) -> str:
    """Escape a name in a plot, whose texts are HTML."""
    return name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _millis(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


#: The most labels of an axis of time.
_LEAST_POINTS: Final = 12


def _times(moments: Sequence[datetime], width: timedelta) -> dict[str, Any]:
    """Return an axis; ``moments`` are where points of ``width`` begin. Around a few points it has a margin of ours:
    Plotly's own would be years around a single one.
    """
    first, last = min(moments), max(moments) + width
    margin = max(width * _LEAST_POINTS - (last - first), width) / 2
    # on a phone Plotly would turn the labels, and cut them
    edges = [_millis(first - margin), _millis(last + margin)]
    return {"type": "date", "range": edges, "tickangle": 0, "nticks": 5}


def _counts(highest: int) -> dict[str, Any]:
    """Make an axis of whole numbers from 0 on, with a line at or above ``highest``."""
    step = 1
    while highest > 5 * step:
        # 1, 2, 5, 10, 20, 50, ...
        step = step * 5 // 2 if str(step).startswith("2") else step * 2
    top = max(1, -(-highest // step)) * step
    return {"range": [0, top * 1.02], "dtick": step, "tick0": 0, "tickformat": ",d"}


def _span(width: timedelta) -> str:
    seconds = int(width.total_seconds())
    for unit, name in ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds % unit == 0:
            count = seconds // unit
            return name if count == 1 else f"{count} {name}s"
    return f"{seconds} seconds"


@dataclass(frozen=True, kw_only=True)
class _Panel:
    """Make stacked bars. ``bars``: of each outcome its height at each moment."""

    title: str
    moments: list[datetime]
    bars: list[tuple[str, str, list[int]]]

    @property
    def highest(self) -> int:
        return max(map(sum, zip(*(heights for _, _, heights in self.bars), strict=True)))


def _panel(title: str, items: Sequence[Outcomes]) -> _Panel:
    sums: dict[datetime, list[int]] = defaultdict(lambda: [0, 0, 0])
    for item in items:
        for place, value in enumerate((item.committed, item.rolled_back, item.undecided)):
            sums[item.at][place] += value
    moments = sorted(sums)
    outcomes = (("committed", COMMITTED), ("rolled back", ROLLED_BACK), ("undecided", UNDECIDED))
    bars = [(name, colour, [sums[at][place] for at in moments]) for place, (name, colour) in enumerate(outcomes)]
    return _Panel(title=title, moments=moments, bars=bars)


def _panels(metrics: Metrics) -> list[_Panel]:
    by_address: dict[str | None, list[Outcomes]] = defaultdict(list)
    weight: Counter[str | None] = Counter()
    for item in metrics.outcomes:
        by_address[item.address].append(item)
        weight[item.address] += item.committed + item.rolled_back + item.undecided
    ranked = [address for address, _ in weight.most_common()]
    panels = [
        _panel(readable(address, "(addresses that are gone)", 90), by_address[address])
        for address in ranked[:MOST_PANELS]
    ]
    if len(ranked) > MOST_PANELS:
        rest = [item for address in ranked[MOST_PANELS:] for item in by_address[address]]
        panels.append(_panel(f"{len(ranked) - MOST_PANELS:,} other addresses", rest))
    if metrics.unstored:
        bars = [("rolled back", ROLLED_BACK, [count for _, count in metrics.unstored])]
        title = "rolled back before they were stored"
        panels.append(_Panel(title=title, moments=[at for at, _ in metrics.unstored], bars=bars))
    return panels


#: A legend.
_ABOVE: Final = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "traceorder": "normal"}

#: Of a plot of panels, in pixels: each with its title; what stands above and below them.
_PANEL: Final = 130
_TITLE: Final = 34
_LEGEND: Final = 30
_TICKS: Final = 40


def _stacked(panels: Sequence[_Panel], width: timedelta) -> Figure:
    """Stack panels above each other, with one axis of time."""
    data: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    share = 1 / len(panels)
    last = "y" if len(panels) == 1 else f"y{len(panels)}"
    moments = [at for panel in panels for at in panel.moments]
    layout: dict[str, Any] = {
        "barmode": "stack",
        "xaxis": {**_times(moments, width), "anchor": last, "domain": [0, 1]},
        "annotations": annotations,
        "legend": _ABOVE,
        "margin": {"t": _LEGEND, "b": _TICKS, "l": 60, "r": 16},
    }
    named: set[str] = set()
    for place, panel in enumerate(panels):
        number = "" if not place else str(place + 1)
        top = 1 - place * share
        bottom, ceiling = top - share, top - share * _TITLE / _PANEL
        layout[f"yaxis{number}"] = {**_counts(panel.highest), "domain": [max(bottom, 0), ceiling], "anchor": "x"}
        annotations.append(
            {
                **{"text": f"<b>{_label(panel.title)}</b>", "showarrow": False, "xref": "paper", "yref": "paper"},
                **{"x": 0, "xanchor": "left", "y": ceiling, "yanchor": "bottom"},
            }
        )
        times = list(map(_millis, panel.moments))
        for name, colour, heights in panel.bars:
            data.append(
                {
                    **{"type": "bar", "name": name, "legendgroup": name, "showlegend": name not in named},
                    **{"x": times, "customdata": times, "y": heights, "yaxis": f"y{number}"},
                    **{"width": round(width.total_seconds() * 1000), "offset": 0, "marker": {"color": colour}},
                    "hovertemplate": f"%{{y:,}} {name}<br>%{{customdata}}<extra></extra>",
                }
            )
            named.add(name)
    return {"data": data, "layout": layout}


def outcomes_over_time(metrics: Metrics) -> Chart:
    """Plot the outcomes of the halves posted, stacked, one panel an address."""
    panels = _panels(metrics)
    return Chart(
        title="Outcomes over time, by address",
        note=f"Messages posted in each {_span(metrics.bucket)}, by what became of their transaction. A rollback is an"
        " ordinary outcome; of what was rolled back before it was stored the address is not known.",
        figure=_stacked(panels, metrics.bucket) if panels else None,
        height=_PANEL * len(panels) + _LEGEND + _TICKS,
        over_time=True,
    )


#: The lines of the scale of durations, in seconds.
_DURATIONS: Final = (
    (0.0001, "0.1 ms"),
    (0.001, "1 ms"),
    (0.01, "10 ms"),
    (0.1, "0.1 s"),
    (1.0, "1 s"),
    (10.0, "10 s"),
    (60.0, "1 min"),
    (600.0, "10 min"),
    (3600.0, "1 h"),
    (36_000.0, "10 h"),
    (86_400.0, "1 day"),
    (864_000.0, "10 days"),
    (8_640_000.0, "100 days"),
)
_SHORTEST: Final = _DURATIONS[0][0]


def duration(seconds: float) -> str:
    """Format a duration with three digits, in the unit that leaves most of them before the point."""
    for unit, name in ((86400.0, "days"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (0.001, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1000:.2g} ms"


def _scale_of_durations(values: Sequence[float]) -> dict[str, Any]:
    """Make a logarithmic axis from the line below the shortest duration to the line above the longest."""
    lines = [line for line, _ in _DURATIONS]
    below = max([place for place, line in enumerate(lines) if line < min(values)], default=0)
    above = min([place for place, line in enumerate(lines) if line > max(values)], default=len(lines) - 1)
    above = max(above, below + 1)
    return {
        "type": "log",
        "tickvals": lines,
        "ticktext": [name for _, name in _DURATIONS],
        "range": [math.log10(lines[below]) - 0.05, math.log10(lines[above]) + 0.05],
    }


def decision_latency(metrics: Metrics) -> Chart:
    """Plot the time from declare to decision: p50, p95, p99."""
    figure = None
    if metrics.latencies:
        data = []
        moments = [item.at for item in metrics.latencies]
        middles = [_millis(at + metrics.bucket / 2) for at in moments]
        shares = (("p50", COMMITTED, "solid"), ("p95", NEUTRAL, "dash"), ("p99", UNDECIDED, "dot"))
        for share, colour, dash in shares:
            values = [max(getattr(item, share), _SHORTEST) for item in metrics.latencies]
            data.append(
                {
                    **{"type": "scatter", "mode": "lines+markers", "name": share, "text": list(map(duration, values))},
                    **{"x": middles, "customdata": list(map(_millis, moments)), "y": values},
                    **{"line": {"color": colour, "dash": dash, "width": 2}, "marker": {"size": 5, "color": colour}},
                    "hovertemplate": f"{share} %{{text}}<br>%{{customdata}}<extra></extra>",
                }
            )
        every = [value for trace in data for value in trace["y"]]
        layout = {
            "xaxis": _times(moments, metrics.bucket),
            "yaxis": _scale_of_durations(every),
            "legend": _ABOVE,
            "margin": {"t": _LEGEND, "b": _TICKS, "l": 60, "r": 16},
        }
        figure = {"data": data, "layout": layout}
    return Chart(
        title="From declare to decision",
        note=f"Of transactions decided in each {_span(metrics.bucket)}: half took less than p50, "
        "1 in 100 longer than p99. The scale is logarithmic.",
        figure=figure,
        height=260,
        over_time=True,
    )


def _bars(rows: Sequence[tuple[str, int]], colour: str, unit: str) -> Figure:
    """Plot horizontal bars, the first on top."""
    names = [_label(name) for name, _ in rows]
    data = {
        **{"type": "bar", "orientation": "h", "y": names, "x": [value for _, value in rows]},
        **{"marker": {"color": colour}, "text": [f"{value:,}" for _, value in rows], "textposition": "outside"},
        **{"cliponaxis": False, "hovertemplate": f"%{{y}}<br>%{{x:,}} {unit}<extra></extra>"},
    }
    layout = {
        "xaxis": _counts(max(value for _, value in rows)),
        "yaxis": {"type": "category", "autorange": "reversed", "automargin": True, "showgrid": False},
        "margin": {"t": 8, "b": 32, "l": 60, "r": 60},
        "showlegend": False,
    }
    return {"data": [data], "layout": layout}


def _height_of_bars(rows: int) -> int:
    return 50 + 28 * rows


def undecided_by_age(metrics: Metrics) -> Chart:
    """Plot the ages of the undecided transactions."""
    rows = metrics.undecided_by_age
    return Chart(
        title="Undecided transactions, by age",
        note="At the moment of the snapshot. Plain transactions are listed once they are older than a second or so.",
        figure=_bars(rows, UNDECIDED, "undecided") if any(count for _, count in rows) else None,
        height=_height_of_bars(len(rows)),
    )


def deliveries_by_attempt(metrics: Metrics) -> Chart:
    """Plot the attempt at which deliveries ended, or are waiting."""
    figure = None
    if metrics.attempts:
        places = [row[0] for row in metrics.attempts]
        most = max(max(row[1:]) for row in metrics.attempts)
        # grouped, not stacked: the scale may be logarithmic
        data = []
        for column, (name, colour) in enumerate(
            (("accepted", COMMITTED), ("dead-lettered", FAILED), ("waiting", UNDECIDED)), start=1
        ):
            heights = [row[column] for row in metrics.attempts]
            data.append(
                {
                    **{"type": "bar", "name": name, "x": places, "y": heights, "marker": {"color": colour}},
                    **{"text": [f"{height:,}" if height else "" for height in heights], "textposition": "outside"},
                    **{"cliponaxis": False, "hovertemplate": f"%{{y:,}} {name} at attempt %{{x}}<extra></extra>"},
                }
            )
        powers = math.ceil(math.log10(max(most, 1))) + 1
        logarithmic = {
            "type": "log",
            "range": [math.log10(0.5), math.log10(max(most, 1)) + 0.4],
            "tickvals": [10**power for power in range(powers)],
            "ticktext": [f"{10**power:,}" for power in range(powers)],
        }
        layout = {
            "barmode": "group",
            "xaxis": {
                **{"title": {"text": "attempt"}, "range": [0.4, max(places[-1], 5) + 0.6]},
                **{"tick0": 1, "dtick": -(-places[-1] // 10), "showgrid": False},
            },
            "yaxis": logarithmic if most >= _LOGARITHMIC else _counts(most + 1),
            "legend": _ABOVE,
            "margin": {"t": _LEGEND, "b": 48, "l": 60, "r": 16},
        }
        figure = {"data": data, "layout": layout}
    return Chart(
        title="Deliveries, by attempt",
        note="Deliveries of the period's messages: at which attempt they were accepted or given up, or which one they"
        f" wait for. From {_LOGARITHMIC} on the scale is logarithmic.",
        figure=figure,
        height=260,
    )


#: The count from which a scale is logarithmic.
_LOGARITHMIC: Final = 100


def dead_letters(metrics: Metrics) -> Chart:
    """Plot dead letters by group and error, the most frequent first."""
    rows: list[tuple[str, int]] = []
    for address, group, error, count in metrics.dead_letters:
        where = readable(address, "(gone)", 28)
        where += f"::{readable(group, '(gone)', 20)}" if group else ""
        rows.append((f"{where} — {readable(error, '', 40)}", count))
    # labels that are equal after shortening would share one bar
    seen: Counter[str] = Counter()
    for place, (label, count) in enumerate(rows):
        seen[label] += 1
        if seen[label] > 1:
            rows[place] = (f"{label} ({seen[label]})", count)
    return Chart(
        title="Dead letters, by group and error",
        note="Deliveries given up, the most frequent first.",
        figure=_bars(rows, FAILED, "dead letters") if rows else None,
        height=_height_of_bars(len(rows)),
    )


def charts(metrics: Metrics) -> list[Chart]:
    """Make all plots of the report, in its order."""
    return [
        outcomes_over_time(metrics),
        decision_latency(metrics),
        undecided_by_age(metrics),
        deliveries_by_attempt(metrics),
        dead_letters(metrics),
    ]
