"""The report's plots, each as one SVG picture; by matplotlib, without a display and without its global state."""

from __future__ import annotations

import io
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from spark.metrics import Metrics, Outcomes

#: Addresses with a panel of their own; the others share one.
MOST_PANELS: Final = 6

COMMITTED: Final = "#2a7f62"
#: An ordinary outcome; red is for what has gone wrong.
ROLLED_BACK: Final = "#8a97a3"
FAILED: Final = "#c8553d"
UNDECIDED: Final = "#e3b23c"
NEUTRAL: Final = "#4a6fa5"
INK: Final = "#22303c"

_STYLE: Final[dict[str, Any]] = {
    "text.parse_math": False,  # a $ in an address is a $
    "svg.fonttype": "path",  # looks the same wherever it is opened
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.edgecolor": "#b8c0c8",
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e9ec",
    "grid.linewidth": 0.8,
    "xtick.color": "#55626e",
    "ytick.color": "#55626e",
    "legend.frameon": False,
    "text.color": INK,
}
_WIDTH: Final = 10.0


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One plot: ``svg`` is a whole document, or empty where there is nothing to draw; ``note`` says how to read it."""

    title: str
    note: str
    svg: str
    alt: str


def readable(name: str | None, missing: str, longest: int = 60) -> str:
    """A name from the wire, fit for a picture: control characters shown as a box, and not longer than a line."""
    if name is None:
        return missing
    if name == "":
        return "(default)"
    clean = re.sub(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\ud800-\udfff]", "\ufffd", name)
    return clean if len(clean) <= longest else f"{clean[: longest - 1]}…"


def _svg(draw: Callable[[Figure], None], height: float, name: str) -> str:
    style: Any = {**_STYLE, "svg.hashsalt": name}
    with mpl.rc_context(style), warnings.catch_warnings():
        # a character that the font lacks is drawn as a box; that is enough
        warnings.simplefilter("ignore", category=UserWarning)
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        draw(figure)
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue().decode("utf-8")


#: An axis of time has room for as many.
_LEAST_POINTS: Final = 12


def _counts(axes: Axes, axis: str = "y") -> None:
    # up to a line, so that no bar is higher than the last one
    lines = MaxNLocator(nbins=5, integer=True, min_n_ticks=1)
    ticks = lines.tick_values(0, max(1, getattr(axes, f"get_{axis}lim")()[1]))
    getattr(axes, f"set_{axis}lim")(0, ticks[-1])
    getattr(axes, f"{axis}axis").set_major_locator(FixedLocator(ticks))
    getattr(axes, f"{axis}axis").set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _times(axes: Axes, moments: Sequence[datetime], width: timedelta) -> None:
    """``moments`` are where points of ``width`` begin. Around a few points the axis has a margin of ours: its own would
    be years around a single one."""
    first, last = min(moments), max(moments) + width
    margin = max(width * _LEAST_POINTS - (last - first), width) / 2
    axes.set_xlim(first - margin, last + margin)  # type: ignore[arg-type]
    locator = AutoDateLocator()  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]


def _span(width: timedelta) -> str:
    seconds = int(width.total_seconds())
    for unit, name in ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds % unit == 0:
            count = seconds // unit
            return name if count == 1 else f"{count} {name}s"
    return f"{seconds} seconds"


def _days(moments: Sequence[datetime]) -> list[float]:
    """As matplotlib counts time."""
    return [float(day) for day in date2num(moments)]  # type: ignore[no-untyped-call]


def _bars_over_time(
    axes: Axes,
    moments: Sequence[datetime],
    width: timedelta,
    heights: Sequence[int],
    floor: Sequence[int],
    *,
    colour: str,
    label: str,
) -> None:
    """Bars from their moments on, each on its ``floor``, as one thing to draw: matplotlib's own are one each, and a
    thousand of them take seconds."""
    corners = [
        [(begin, low), (begin, low + height), (end, low + height), (end, low)]
        for begin, end, height, low in zip(
            _days(moments), _days([moment + width for moment in moments]), heights, floor, strict=True
        )
    ]
    axes.add_collection(PolyCollection(corners, facecolor=colour, linewidth=0, label=label))
    axes.xaxis_date()
    axes.set_ylim(0, max(axes.dataLim.y1, 1))


def outcomes_over_time(metrics: Metrics) -> Chart:
    """What became of the halves posted, stacked, one panel an address."""
    by_address: dict[str | None, list[Outcomes]] = defaultdict(list)
    weight: Counter[str | None] = Counter()
    for item in metrics.outcomes:
        by_address[item.address].append(item)
        weight[item.address] += item.committed + item.rolled_back + item.undecided
    ranked = [address for address, _ in weight.most_common()]
    panels: list[tuple[str, list[Outcomes]]] = [
        (readable(address, "(addresses that are gone)", 90), by_address[address]) for address in ranked[:MOST_PANELS]
    ]
    if len(ranked) > MOST_PANELS:
        rest = [item for address in ranked[MOST_PANELS:] for item in by_address[address]]
        panels.append((f"{len(ranked) - MOST_PANELS:,} other addresses", rest))
    count = len(panels) + bool(metrics.unstored)

    def draw(figure: Figure) -> None:
        every = figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0]
        width = metrics.bucket
        for axes, (title, items) in zip(every, panels, strict=False):
            sums: dict[datetime, list[int]] = defaultdict(lambda: [0, 0, 0])
            for item in items:
                for place, value in enumerate((item.committed, item.rolled_back, item.undecided)):
                    sums[item.at][place] += value
            moments = sorted(sums)
            floor = [0] * len(moments)
            for place, (label, colour) in enumerate(
                (("committed", COMMITTED), ("rolled back", ROLLED_BACK), ("undecided", UNDECIDED))
            ):
                heights = [sums[moment][place] for moment in moments]
                _bars_over_time(axes, moments, width, heights, floor, colour=colour, label=label)
                floor = [below + height for below, height in zip(floor, heights, strict=True)]
            axes.set_title(title)
            _counts(axes)
        if metrics.unstored:
            axes = every[-1]
            moments, heights = [at for at, _ in metrics.unstored], [value for _, value in metrics.unstored]
            floor = [0] * len(moments)
            _bars_over_time(axes, moments, width, heights, floor, colour=ROLLED_BACK, label="rolled back")
            axes.set_title("rolled back before they were stored (address not known)")
            _counts(axes)
        at = [item.at for item in metrics.outcomes] + [moment for moment, _ in metrics.unstored]
        _times(every[-1], at, metrics.bucket)
        every[0].legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0.2)

    return Chart(
        title="Outcomes over time, by address",
        note=f"Messages posted in each {_span(metrics.bucket)}, by what became of their transaction. Times are UTC.",
        svg=_svg(draw, 0.7 + 1.35 * count, "outcomes") if count else "",
        alt="Stacked bars over time of messages committed, rolled back and undecided, one panel an address",
    )


#: Where the scale of durations has its lines, in seconds.
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


def decision_latency(metrics: Metrics) -> Chart:
    """p50, p95 and p99 of the time from declare to decision."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        names = dict(_DURATIONS)
        moments: Any = [item.at + metrics.bucket / 2 for item in metrics.latencies]
        for name, colour in (("p99", FAILED), ("p95", UNDECIDED), ("p50", NEUTRAL)):
            values = [max(getattr(item, name), 0.0001) for item in metrics.latencies]
            axes.plot(moments, values, color=colour, label=name, marker="o", markersize=3, linewidth=1.6)
        axes.set_yscale("log")
        lowest, highest = axes.get_ylim()
        axes.set_ylim(
            max((seconds for seconds in names if seconds <= lowest), default=lowest),
            min((seconds for seconds in names if seconds >= highest), default=highest),
        )
        axes.yaxis.set_major_locator(FixedLocator([seconds for seconds, _ in _DURATIONS]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: names.get(value, "")))
        axes.yaxis.set_minor_locator(NullLocator())
        _times(axes, [item.at for item in metrics.latencies], metrics.bucket)
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0.2)

    return Chart(
        title="From declare to decision",
        note=f"Of transactions decided in each {_span(metrics.bucket)}: half took less than p50, "
        "1 in 100 longer than p99. The scale is logarithmic.",
        svg=_svg(draw, 2.9, "latency") if metrics.latencies else "",
        alt="Lines over time of the median, 95th and 99th percentile of the time from declare to decision",
    )


def _bars(rows: list[tuple[str, int]], colour: str, name: str) -> str:
    """Horizontal bars with their numbers, the first on top."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        drawn = axes.barh([label for label, _ in rows], [value for _, value in rows], color=colour, height=0.66)
        axes.bar_label(drawn, labels=[f"{value:,}" for _, value in rows], padding=4, fontsize=8.5, color=INK)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.1)
        _counts(axes, "x")

    return _svg(draw, 0.6 + 0.3 * len(rows), name)


def undecided_by_age(metrics: Metrics) -> Chart:
    """How old the undecided transactions are."""
    total = sum(count for _, count in metrics.undecided_by_age)
    return Chart(
        title="Undecided transactions, by age",
        note="At the moment of the snapshot. Plain transactions are listed once they are older than a second or so.",
        svg=_bars(metrics.undecided_by_age, UNDECIDED, "undecided") if total else "",
        alt="Bars of the number of undecided transactions by age",
    )


def deliveries_by_attempt(metrics: Metrics) -> Chart:
    """At which attempt deliveries ended, or are waiting."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        places = [row[0] for row in metrics.attempts]
        # beside each other, not stacked: the scale is logarithmic
        for column, (label, colour) in enumerate(
            (("accepted", COMMITTED), ("dead-lettered", FAILED), ("waiting", UNDECIDED)), start=1
        ):
            heights = [row[column] for row in metrics.attempts]
            bars = axes.bar([place + 0.27 * (column - 2) for place in places], heights, 0.25, color=colour, label=label)
            axes.bar_label(
                bars, labels=[f"{height:,}" if height else "" for height in heights], padding=2, fontsize=7.5
            )
        axes.margins(y=0.15)
        axes.set_xlim(0.4, max(places[-1], 5) + 0.6)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("attempt")
        axes.grid(visible=False, axis="x")
        axes.set_yscale("symlog", linthresh=10)
        most = max(max(row[1:]) for row in metrics.attempts)
        # whole numbers; the small ones stand too close below large ones
        small = (0, 1, 2, 5) if most < 100 else (0,)
        axes.yaxis.set_major_locator(FixedLocator([*small, *(10**power for power in range(1, 13))]))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0.2)

    return Chart(
        title="Deliveries, by attempt",
        note="Deliveries of the period's messages: at which attempt they were accepted or given up, "
        "or which one they wait for. The scale is logarithmic above 10.",
        svg=_svg(draw, 2.6, "attempts") if metrics.attempts else "",
        alt="Bars of the number of deliveries accepted, dead-lettered and waiting, by attempt",
    )


def dead_letters(metrics: Metrics) -> Chart:
    """Dead letters by group and error, the most frequent first."""
    rows: list[tuple[str, int]] = []
    for address, group, error, count in metrics.dead_letters:
        where = readable(address, "(gone)", 28)
        where += f"::{readable(group, '(gone)', 20)}" if group else ""
        rows.append((f"{where} — {readable(error, '', 40)}", count))
    # equal labels after shortening would fall on one bar
    seen: Counter[str] = Counter()
    for place, (label, count) in enumerate(rows):
        seen[label] += 1
        if seen[label] > 1:
            rows[place] = (f"{label} ({seen[label]})", count)
    return Chart(
        title="Dead letters, by group and error",
        note="Deliveries given up, the most frequent first.",
        svg=_bars(rows, FAILED, "dead") if rows else "",
        alt="Bars of the number of dead letters by consumer group and error",
    )


def charts(metrics: Metrics) -> list[Chart]:
    """All plots of the report, in its order."""
    return [
        outcomes_over_time(metrics),
        decision_latency(metrics),
        undecided_by_age(metrics),
        deliveries_by_attempt(metrics),
        dead_letters(metrics),
    ]
